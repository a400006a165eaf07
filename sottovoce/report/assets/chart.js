// Charts as plain SVG. A chart has two axes and a list of marks:
//   line   points [x, y] in order (null breaks it), `steps` where the later value holds between two points
//   band   x with low and high
//   dots   one object for each dot: x, y, colour, symbol, size, text inside it, hover text, what a click chooses
//   spans  bars from low to high across one axis, with an optional tick at `middle`
//   bars   from zero to y, `wide` in units of x
//   cells  a table of colours, one row for each y
//   guide  a line across at x or y, with a label; or a frame around a row
// An axis says its title, range, ticks [value, text], a format for ticks, and whether it starts at zero or shows a grid.

const drawn = (tag, attributes, ...inside) => {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => value != null && found.setAttribute(name, value));
  found.append(...inside.filter((one) => one != null));
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
const finite = (values) => values.filter(Number.isFinite);

// The colour of a share from 0 to 1.
function ramp(share) {
  const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1), below = Math.min(Math.floor(at), VIRIDIS.length - 2);
  const parts = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const [low, high] = [parts(VIRIDIS[below]), parts(VIRIDIS[below + 1])];
  return `rgb(${low.map((part, i) => Math.round(part + (high[i] - part) * (at - below))).join(" ")})`;
}

// Round numbers within a range, some five of them.
function roundTicks(low, high) {
  const span = high - low || 1, power = 10 ** Math.floor(Math.log10(span / 4)), found = [];
  const step = [1, 2, 5, 10].map((part) => part * power).find((size) => span / size <= 6);
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found.map((value) => [value, String(Number(value.toPrecision(10)))]);
}

// What a mark reaches to along an axis, for the range of the axis.
const REACH = {
  line: ({ points }, axis) => points.filter(Boolean).map((point) => point[axis === "x" ? 0 : 1]),
  band: ({ x, low, high }, axis) => (axis === "x" ? x : [...low, ...high]),
  dots: ({ dots }, axis) => dots.map((dot) => dot[axis]),
  bars: ({ bars }, axis) => bars.flatMap((bar) => (axis === "x" ? [bar.x - bar.wide / 2, bar.x + bar.wide / 2] : [0, bar.y])),
  spans: ({ along, spans }, axis) => spans.flatMap((span) => (along === axis ? [span.low, span.high] : [span.at])),
};

function axisRange(axis, marks, name) {
  if (axis.range) return axis.range;
  const values = finite(marks.flatMap((mark) => REACH[mark.kind]?.(mark, name) ?? []));
  if (!values.length) return [0, 1];
  const low = Math.min(...values, ...(axis.zero ? [0] : [])), high = Math.max(...values);
  const room = 0.05 * (high - low || Math.abs(high) || 1), [least, most] = axis.limits || [-Infinity, Infinity];
  return [axis.zero && low === 0 ? 0 : Math.max(low - room, least - room / 5), Math.min(high + room, most + room / 5)];
}

// Draws a chart into a place, and again whenever the place changes its size.
function chart(place, wanted) {
  place.chart = wanted;
  if (!place.observer) {
    place.observer = new ResizeObserver(() => drawChart(place));
    place.observer.observe(place);
    place.addEventListener("pointermove", (event) => showHint(nearest(place, event)?.text, event));
    place.addEventListener("pointerleave", () => showHint(null));
    place.addEventListener("click", (event) => {
      const choice = nearest(place, event)?.choice;
      if (choice != null) place.chart.click?.(choice);
    });
  }
  drawChart(place);
}

function drawChart(place) {
  const { clientWidth: width, clientHeight: height } = place;
  if (!width || !height) return;
  const { marks, x = {}, y = {}, click } = place.chart, ranges = { x: axisRange(x, marks, "x"), y: axisRange(y, marks, "y") };
  const whole = drawn("svg", { viewBox: `0 0 ${width} ${height}`, "font-size": 12.5, fill: css("--soft") });
  const ticksOf = (axis, range) => {
    if (axis.hidden || axis.ticks) return axis.hidden ? [] : axis.ticks;
    return roundTicks(Math.min(...range), Math.max(...range)).map(([at, text]) => [at, axis.format ? axis.format(at) : text]);
  };
  const ticks = { x: ticksOf(x, ranges.x), y: ticksOf(y, ranges.y) };
  const widest = Math.max(0, ...ticks.y.map(([, text]) => text.length)) * 7;
  const left = 14 + Math.min(widest, width / 3) + (y.title ? 20 : 0), bottom = height - 26 - (x.title ? 22 : 0);
  const box = x.hidden
    ? { left: 22, right: width - 22, top: 22, bottom: height - 22 }
    : { left, right: width - 18, top: 10, bottom };
  const to = {
    x: (value) => box.left + ((value - ranges.x[0]) / (ranges.x[1] - ranges.x[0])) * (box.right - box.left),
    y: (value) => box.bottom - ((value - ranges.y[0]) / (ranges.y[1] - ranges.y[0])) * (box.bottom - box.top),
  };
  const add = (...part) => whole.append(drawn(...part));
  place.hits = [];
  drawAxes(add, x, y, ticks, to, box, height);
  marks.forEach((mark) => DRAW[mark.kind](add, mark, to, box, place.hits));
  if (click) whole.style.cursor = "pointer";
  place.replaceChildren(whole);
}

// A straight line through the whole box.
const through = (box, to, { x, y }) =>
  x != null
    ? { x1: to.x(x), x2: to.x(x), y1: box.top, y2: box.bottom }
    : { x1: box.left, x2: box.right, y1: to.y(y), y2: to.y(y) };

function drawAxes(add, x, y, ticks, to, box, height) {
  if (!x.hidden) {
    const longest = Math.max(...ticks.x.map(([, text]) => text.length), 1);
    const every = Math.max(1, Math.ceil((ticks.x.length * longest * 7.5) / (box.right - box.left)));
    ticks.x.forEach(([value, text], number) => {
      if (x.grid !== false) add("line", { ...through(box, to, { x: value }), stroke: css("--grid") });
      if (number % every === 0)
        add("text", { x: to.x(value), y: box.bottom + 17, "text-anchor": "middle", class: "tick" }, text);
    });
    add("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, stroke: css("--line") });
    if (x.title) add("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, x.title);
  }
  const room = Math.floor((box.left - (y.title ? 26 : 8)) / 6.4);
  ticks.y.forEach(([value, text]) => {
    if (y.grid !== false) add("line", { ...through(box, to, { y: value }), stroke: css("--grid") });
    const shown = text.length > room ? text.slice(0, room - 1) + "…" : text;
    add("text", { x: box.left - 7, y: to.y(value) + 4, "text-anchor": "end", class: "tick" }, shown);
  });
  const turned = `translate(13 ${(box.top + box.bottom) / 2}) rotate(${y.title?.length > 1 ? -90 : 0})`; // ε stands
  if (y.title) add("text", { transform: turned, "text-anchor": "middle" }, y.title);
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

const DRAW = {
  line(add, { points, steps, colour, width = 2, dash = "solid", hover }, to, box, hits) {
    let joined = false, d = "";
    points.forEach((point, i) => {
      const known = point && point.every((value) => value != null);
      if (known) {
        const [x, y] = [to.x(point[0]), to.y(point[1])], [across, up] = [x.toFixed(1), y.toFixed(1)];
        d += joined && steps ? `V${up}H${across}` : `${joined ? "L" : "M"}${across},${up}`;
        if (hover) hits.push({ x, y, text: hover[i] });
      }
      joined = known;
    });
    const style = { "stroke-width": width, "stroke-dasharray": DASHES[dash], "stroke-linejoin": "round" };
    add("path", { d, fill: "none", stroke: colour, ...style, class: "line" });
  },
  band(add, { x, low, high, colour }, to) {
    const known = x.map((_, i) => i).filter((i) => low[i] != null && high[i] != null);
    const edge = (values) => known.map((i) => [to.x(x[i]), to.y(values[i])]);
    if (known.length) add("path", { d: path([...edge(high), ...edge(low).reverse()]) + "Z", fill: colour, opacity: 0.15 });
  },
  dots(add, { dots, outline = css("--card") }, to, box, hits) {
    dots.forEach(({ size = 10, symbol = "circle", ...dot }) => {
      const [x, y] = [to.x(dot.x), to.y(dot.y)], scale = size / 13;
      const width = (dot.heavy ? 2.5 : 1.4) / scale, transform = `scale(${scale}) translate(-7 -7)`;
      const shape = { d: SYMBOLS[symbol], fill: dot.colour, stroke: outline, "stroke-width": width, transform };
      const place = dot.below
        ? { y: size / 2 + 14, fill: css("--ink"), "font-size": 12 }
        : { y: 4, fill: dot.ink, "font-size": size > 20 ? 12 : 9.5 };
      const text = dot.text && drawn("text", { ...place, "text-anchor": "middle", class: "name" }, dot.text);
      const moved = { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, class: "dot" };
      add("g", moved, drawn("path", shape), text);
      if (dot.hover) hits.push({ x, y, text: dot.hover, choice: dot.choice, near: Math.max(size / 2 + 3, 10) });
    });
  },
  spans(add, { along, spans, colour, wide = 2, ticks }, to, box, hits) {
    spans.forEach((span) => {
      const [low, high] = [to[along](span.low), to[along](span.high)], at = to[along === "x" ? "y" : "x"](span.at);
      const ends = along === "x" ? { x1: low, x2: high, y1: at, y2: at } : { x1: at, x2: at, y1: low, y2: high };
      add("line", { ...ends, stroke: span.colour || colour, "stroke-width": wide });
      if (span.middle == null) return;
      const y = to[along](span.middle);
      add("line", { x1: at - 13, x2: at + 13, y1: y, y2: y, stroke: ticks, "stroke-width": 3 });
      hits.push({ x: at, y, text: span.hover });
    });
  },
  bars(add, { bars, colour }, to, box, hits) {
    bars.forEach((bar) => {
      const x = to.x(bar.x - bar.wide / 2), y = to.y(bar.y), width = Math.max(1, to.x(bar.x + bar.wide / 2) - x - 1);
      add("rect", { x, y, width, height: Math.max(0, to.y(0) - y), fill: colour });
      hits.push({ x: to.x(bar.x), y, text: bar.hover });
    });
  },
  cells(add, { rows }, to, box, hits) {
    const high = Math.abs(to.y(1) - to.y(0)), wide = to.x(1) - to.x(0), gap = wide > 8 && high > 8 ? 1 : 0;
    const size = { width: wide - gap, height: high - gap };
    rows.forEach((row, y) =>
      row.forEach((cell, x) => {
        if (!cell) return;
        add("rect", { x: to.x(x - 0.5), y: to.y(y) - high / 2, ...size, fill: cell.colour, class: "cell" });
        hits.push({ x: to.x(x), y: to.y(y), text: cell.hover, choice: cell.choice, near: Math.max(wide, high) });
      }),
    );
  },
  guide(add, { x, y, row, label, colour = css("--soft") }, to, box) {
    if (row != null) {
      const height = Math.abs(to.y(1) - to.y(0)), place = { x: box.left, y: to.y(row) - height / 2, width: box.right - box.left };
      return add("rect", { ...place, height, fill: "none", stroke: css("--ink"), "stroke-width": 2.5, class: "frame" });
    }
    const ends = through(box, to, { x, y });
    add("line", { ...ends, stroke: colour, "stroke-width": 1.4, "stroke-dasharray": DASHES.dot });
    if (label) add("text", { x: ends.x1 + 5, y: x != null ? box.top + 12 : ends.y1 - 5, fill: colour }, label);
  },
};

// --- what the pointer is at ---------------------------------------------------------------------------------------------

function nearest(place, event) {
  const box = place.getBoundingClientRect();
  const far = (hit) => Math.hypot(hit.x - (event.clientX - box.left), hit.y - (event.clientY - box.top));
  const within = place.hits.filter((hit) => far(hit) <= (hit.near || 18));
  return within.reduce((best, hit) => (best && far(best) <= far(hit) ? best : hit), null);
}

function showHint(text, event) {
  const hint = at("hint");
  hint.hidden = !text;
  if (!text) return;
  hint.textContent = text;
  const left = Math.min(event.clientX + 14, window.innerWidth - hint.offsetWidth - 8);
  const below = event.clientY + 16, fits = below + hint.offsetHeight <= window.innerHeight;
  hint.style.transform = `translate(${Math.max(8, left)}px, ${fits ? below : event.clientY - hint.offsetHeight - 10}px)`;
}
