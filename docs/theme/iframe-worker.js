/* Browsers start no worker for a page that was opened from disk. The search then runs in a hidden frame instead, with the same messages. */
if (location.protocol === "file:")
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inner = frame.contentWindow
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.inner.document.createElement("script")
      script.src = url
      script.onload = () => {
        const early = this.waiting
        this.waiting = null
        early.forEach(data => this.deliver(data))
      }
      this.inner.document.body.append(script)
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.deliver(data)
    }
    deliver(data) {
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }))
    }
    terminate() {
      this.inner.frameElement.remove()
    }
  }
