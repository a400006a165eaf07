// Charts as plain SVG. A chart has two axes and a list of marks:
//   line   points [x, y] in order (null breaks it), `steps` where the later value holds between two points
//   band   x with low and high
//   dots   one object for each dot: x, y, colour, symbol, size, text inside it, hover text, what a click chooses
//   spans  bars from low to high across one axis, with an optional tick at `middle`
//   bars   from zero to y, `wide` in units of x
//   cells  a table of colours, one row for each y
//   guide  a line across at x or y, with a label; or a frame around a row
// An axis says its title, range, ticks [value, text], a format for ticks, and whether it starts at zero or shows a grid.

const SVG_SPACE = "http://www.w3.org/2000/svg";
const drawn = (tag, attributes, text) => {
  const found = document.createElementNS(SVG_SPACE, tag);
  Object.entries(attributes).forEach(([name, value]) => value != null && found.setAttribute(name, value));
  if (text != null) found.textContent = text;
  return found;
};
const DASHES = { solid: null, dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4" };
const SYMBOLS = {
  circle: "M7,1.5 A5.5,5.5 0 1 1 6.99,1.5Z",
  square: "M2,2H12V12H2Z",
  diamond: "M7,0.5 13,7 7,13.5 1,7Z",
  "triangle-up": "M7,1 13,12.5H1Z",
  cross: "M5,1H9V5H13V9H9V13H5V9H1V5H5Z",
  "triangle-down": "M1,1.5H13L7,13Z",
  hexagon: "M7,1 12,4V10L7,13 2,10V4Z",
  x: "M3,0.5 7,4.5 11,0.5 13.5,3 9.5,7 13.5,11 11,13.5 7,9.5 3,13.5 0.5,11 4.5,7 0.5,3Z",
  star: "M7,0 8.9,4.9 14,5.1 10,8.3 11.4,13.3 7,10.4 2.6,13.3 4,8.3 0,5.1 5.1,4.9Z",
};
const VIRIDIS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"];

// The colour of a share from 0 to 1.
function ramp(share) {
  const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1),
    below = Math.min(Math.floor(at), VIRIDIS.length - 2);
  const parts = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const [low, high] = [parts(VIRIDIS[below]), parts(VIRIDIS[below + 1])];
  return `rgb(${low.map((part, i) => Math.round(part + (high[i] - part) * (at - below))).join(" ")})`;
}

// Round numbers within a range, some five of them.
function roundTicks(low, high) {
  const span = high - low || 1,
    power = 10 ** Math.floor(Math.log10(span / 4)),
    step = [1, 2, 5, 10].map((part) => part * power).find((size) => span / size <= 6);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found.map((value) => [value, String(Number(value.toPrecision(10)))]);
}

const finiteNumbers = (values) => values.filter((value) => typeof value === "number" && Number.isFinite(value));

// What a mark reaches to along an axis, for the range of the axis.
function reach(mark, axis) {
  if (mark.kind === "line") return mark.points.filter(Boolean).map((point) => point[axis === "x" ? 0 : 1]);
  if (mark.kind === "band") return axis === "x" ? mark.x : [...mark.low, ...mark.high];
  if (mark.kind === "dots") return mark.dots.map((dot) => dot[axis]);
  if (mark.kind === "bars")
    return axis === "x"
      ? mark.bars.flatMap((bar) => [bar.x - bar.wide / 2, bar.x + bar.wide / 2])
      : [0, ...mark.bars.map((bar) => bar.y)];
  if (mark.kind === "spans")
    return mark.along === axis
      ? mark.spans.flatMap((span) => [span.low, span.high])
      : mark.spans.map((span) => span.at);
  return [];
}

function axisRange(axis, marks, name) {
  if (axis.range) return axis.range;
  const values = finiteNumbers(marks.flatMap((mark) => reach(mark, name)));
  if (!values.length) return [0, 1];
  const low = axis.zero ? Math.min(0, ...values) : Math.min(...values),
    high = Math.max(...values),
    room = 0.05 * (high - low || Math.abs(high) || 1);
  const [least, most] = axis.limits || [-Infinity, Infinity];
  return [axis.zero && low === 0 ? 0 : Math.max(low - room, least - room / 5), Math.min(high + room, most + room / 5)];
}

// Draws a chart into a place, and again whenever the place changes its size.
function chart(place, wanted) {
  place.chart = wanted;
  if (!place.observer) {
    place.observer = new ResizeObserver(() => place.chart && drawChart(place));
    place.observer.observe(place);
    place.addEventListener("pointermove", (event) => pointAt(place, event));
    place.addEventListener("pointerleave", () => showHint(null));
    place.addEventListener("click", (event) => {
      const hit = nearest(place, event);
      if (hit && hit.choice != null && place.chart.click) place.chart.click(hit.choice);
    });
  }
  drawChart(place);
}

function drawChart(place) {
  const width = place.clientWidth,
    height = place.clientHeight;
  if (!width || !height) return;
  const { marks, x = {}, y = {}, click } = place.chart;
  const whole = drawn("svg", { viewBox: `0 0 ${width} ${height}`, "font-size": 12.5, fill: css("--soft") });
  place.hits = [];
  const ranges = { x: axisRange(x, marks, "x"), y: axisRange(y, marks, "y") };
  const ticksOf = (axis, range) =>
    axis.hidden
      ? []
      : axis.ticks ||
        roundTicks(Math.min(...range), Math.max(...range)).map(([at, text]) => [
          at,
          axis.format ? axis.format(at) : text,
        ]);
  const ticks = { x: ticksOf(x, ranges.x), y: ticksOf(y, ranges.y) };
  const widest = Math.max(0, ...ticks.y.map(([, text]) => text.length)) * 7;
  const box = x.hidden
    ? { left: 22, right: width - 22, top: 22, bottom: height - 22 }
    : {
        left: 14 + Math.min(widest, width / 3) + (y.title ? 20 : 0),
        right: width - 18,
        top: 10,
        bottom: height - 26 - (x.title ? 22 : 0),
      };
  const to = {
    x: (value) => box.left + ((value - ranges.x[0]) / (ranges.x[1] - ranges.x[0])) * (box.right - box.left),
    y: (value) => box.bottom - ((value - ranges.y[0]) / (ranges.y[1] - ranges.y[0])) * (box.bottom - box.top),
  };
  drawAxes(whole, { x, y }, ticks, to, box, width, height);
  marks.forEach((mark) => DRAW[mark.kind](whole, mark, to, box, place.hits));
  if (click) whole.style.cursor = "pointer";
  place.replaceChildren(whole);
}

function drawAxes(whole, axes, ticks, to, box, width, height) {
  if (!axes.x.hidden) {
    const shortest = Math.max(
      1,
      Math.ceil(
        (ticks.x.length * Math.max(...ticks.x.map(([, text]) => text.length), 1) * 7.5) / (box.right - box.left),
      ),
    );
    ticks.x.forEach(([value, text], number) => {
      const at = to.x(value);
      if (axes.x.grid !== false)
        whole.append(drawn("line", { x1: at, x2: at, y1: box.top, y2: box.bottom, stroke: css("--grid") }));
      if (number % shortest === 0)
        whole.append(drawn("text", { x: at, y: box.bottom + 17, "text-anchor": "middle", class: "tick" }, text));
    });
    whole.append(drawn("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, stroke: css("--line") }));
    if (axes.x.title)
      whole.append(
        drawn("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, axes.x.title),
      );
  }
  ticks.y.forEach(([value, text]) => {
    const at = to.y(value);
    if (axes.y.grid !== false)
      whole.append(drawn("line", { x1: box.left, x2: box.right, y1: at, y2: at, stroke: css("--grid") }));
    const room = Math.floor((box.left - (axes.y.title ? 26 : 8)) / 6.4);
    whole.append(
      drawn(
        "text",
        { x: box.left - 7, y: at + 4, "text-anchor": "end", class: "tick" },
        text.length > room ? text.slice(0, room - 1) + "…" : text,
      ),
    );
  });
  if (axes.y.title)
    whole.append(
      drawn(
        "text",
        {
          transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(${axes.y.title.length > 1 ? -90 : 0})`, // ε stands
          "text-anchor": "middle",
        },
        axes.y.title,
      ),
    );
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

const DRAW = {
  line(whole, { points, steps, colour, width = 2, dash = "solid", hover }, to, box, hits) {
    let last = null,
      text = "";
    points.forEach((point, i) => {
      if (!point || point.some((value) => value == null)) return void (last = null);
      const [x, y] = [to.x(point[0]), to.y(point[1])];
      text += last
        ? steps
          ? `V${y.toFixed(1)}H${x.toFixed(1)}`
          : `L${x.toFixed(1)},${y.toFixed(1)}`
        : `M${x.toFixed(1)},${y.toFixed(1)}`;
      last = point;
      if (hover) hits.push({ x, y, text: hover[i] });
    });
    whole.append(
      drawn("path", {
        d: text,
        fill: "none",
        stroke: colour,
        "stroke-width": width,
        "stroke-dasharray": DASHES[dash],
        "stroke-linejoin": "round",
        class: "line",
      }),
    );
  },
  band(whole, { x, low, high, colour }, to) {
    const whereKnown = x.map((_, i) => i).filter((i) => low[i] != null && high[i] != null);
    const edge = [
      ...whereKnown.map((i) => [to.x(x[i]), to.y(high[i])]),
      ...whereKnown.reverse().map((i) => [to.x(x[i]), to.y(low[i])]),
    ];
    if (edge.length) whole.append(drawn("path", { d: path(edge) + "Z", fill: colour, opacity: 0.15 }));
  },
  dots(whole, { dots, outline }, to, box, hits) {
    dots.forEach((dot) => {
      const [x, y, size] = [to.x(dot.x), to.y(dot.y), dot.size || 10];
      const place = drawn("g", { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, class: "dot" });
      place.append(
        drawn("path", {
          d: SYMBOLS[dot.symbol || "circle"],
          fill: dot.colour,
          stroke: outline || css("--card"),
          "stroke-width": (dot.heavy ? 2.5 : 1.4) / (size / 13),
          transform: `scale(${size / 13}) translate(-7 -7)`,
        }),
      );
      if (dot.text)
        place.append(
          drawn(
            "text",
            {
              y: dot.below ? size / 2 + 14 : 4,
              "text-anchor": "middle",
              fill: dot.below ? css("--ink") : dot.ink,
              "font-size": dot.below ? 12 : size > 20 ? 12 : 9.5,
              class: "name",
            },
            dot.text,
          ),
        );
      whole.append(place);
      if (dot.hover) hits.push({ x, y, text: dot.hover, choice: dot.choice, near: Math.max(size / 2 + 3, 10) });
    });
  },
  spans(whole, { along, spans, colour, wide = 2, ticks }, to, box, hits) {
    spans.forEach((span) => {
      const [low, high] = [to[along](span.low), to[along](span.high)],
        at = to[along === "x" ? "y" : "x"](span.at);
      const ends = along === "x" ? { x1: low, x2: high, y1: at, y2: at } : { x1: at, x2: at, y1: low, y2: high };
      whole.append(drawn("line", { ...ends, stroke: span.colour || colour, "stroke-width": wide }));
      if (span.middle != null) {
        const middle = to[along](span.middle);
        whole.append(
          drawn("line", { x1: at - 13, x2: at + 13, y1: middle, y2: middle, stroke: ticks, "stroke-width": 3 }),
        );
        hits.push({ x: at, y: middle, text: span.hover });
      }
    });
  },
  bars(whole, { bars, colour }, to, box, hits) {
    bars.forEach((bar) => {
      const left = to.x(bar.x - bar.wide / 2),
        top = to.y(bar.y);
      whole.append(
        drawn("rect", {
          x: left,
          y: top,
          width: Math.max(1, to.x(bar.x + bar.wide / 2) - left - 1),
          height: Math.max(0, to.y(0) - top),
          fill: bar.colour || colour,
        }),
      );
      hits.push({ x: to.x(bar.x), y: top, text: bar.hover });
    });
  },
  cells(whole, { rows }, to, box, hits) {
    const high = Math.abs(to.y(1) - to.y(0)),
      wide = to.x(1) - to.x(0),
      gap = wide > 8 && high > 8 ? 1 : 0;
    rows.forEach((row, y) =>
      row.forEach((cell, x) => {
        if (!cell) return;
        const [left, top] = [to.x(x - 0.5), to.y(y) - high / 2];
        whole.append(
          drawn("rect", { x: left, y: top, width: wide - gap, height: high - gap, fill: cell.colour, class: "cell" }),
        );
        hits.push({
          x: left + wide / 2,
          y: top + high / 2,
          text: cell.hover,
          choice: cell.choice,
          near: Math.max(wide, high),
        });
      }),
    );
  },
  guide(whole, { x, y, row, label, colour = css("--soft") }, to, box) {
    if (row != null) {
      const high = Math.abs(to.y(1) - to.y(0));
      whole.append(
        drawn("rect", {
          x: box.left,
          y: to.y(row) - high / 2,
          width: box.right - box.left,
          height: high,
          fill: "none",
          stroke: css("--ink"),
          "stroke-width": 2.5,
          class: "frame",
        }),
      );
      return;
    }
    const ends =
      x != null
        ? { x1: to.x(x), x2: to.x(x), y1: box.top, y2: box.bottom }
        : { x1: box.left, x2: box.right, y1: to.y(y), y2: to.y(y) };
    whole.append(drawn("line", { ...ends, stroke: colour, "stroke-width": 1.4, "stroke-dasharray": DASHES.dot }));
    if (label)
      whole.append(
        drawn(
          "text",
          { x: ends.x1 + 5, y: (x != null ? box.top : ends.y1) - (x != null ? -12 : 5), fill: colour },
          label,
        ),
      );
  },
};

// --- what the pointer is at ---------------------------------------------------------------------------------------------

function nearest(place, event) {
  const box = place.getBoundingClientRect(),
    [x, y] = [event.clientX - box.left, event.clientY - box.top];
  let found = null,
    least = Infinity;
  (place.hits || []).forEach((hit) => {
    const far = Math.hypot(hit.x - x, hit.y - y);
    if (far < least && far <= (hit.near || 18)) [found, least] = [hit, far];
  });
  return found;
}

function pointAt(place, event) {
  const hit = nearest(place, event);
  showHint(hit && hit.text, event);
}

function showHint(text, event) {
  const hint = at("hint");
  hint.hidden = !text;
  if (!text) return;
  hint.textContent = text;
  const left = Math.min(event.clientX + 14, window.innerWidth - hint.offsetWidth - 8),
    top =
      event.clientY + 16 + hint.offsetHeight > window.innerHeight
        ? event.clientY - hint.offsetHeight - 10
        : event.clientY + 16;
  hint.style.transform = `translate(${Math.max(8, left)}px, ${top}px)`;
}
