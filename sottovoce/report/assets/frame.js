// What all figures share: the data, what is chosen, texts of figures, tables, and the frame of a figure.

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
// A page begins with a run that protects somebody, if there is one.
const protective = data.runs.findIndex((one) => typeof one.epsilon === "number");
const state = { run: Math.max(0, protective), attacker: null, figureKind: null };
const DASH = ["solid", "dash", "dot", "dashdot", "longdash"];
const SYMBOLS = {
  circle: "M7,1.5 A5.5,5.5 0 1 1 6.99,1.5Z",
  square: "M2,2H12V12H2Z",
  diamond: "M7,0.5 13,7 7,13.5 1,7Z",
  "triangle-up": "M7,1 13,12.5H1Z",
  cross: "M5,1H9V5H13V9H9V13H5V9H1V5H5Z",
  "triangle-down": "M1,1.5H13L7,13Z",
  hexagon: "M7,1 12,4V10L7,13 2,10V4Z",
  x: "M3,0.5 7,4.5 11,0.5 13.5,3 9.5,7 13.5,11 11,13.5 7,9.5 3,13.5 0.5,11 4.5,7 0.5,3Z",
};
const SYMBOL = Object.keys(SYMBOLS);
const STAR = "M0,-6 1.6,-2 6,-1.8 2.5,1 3.7,5.2 0,2.8 -3.7,5.2 -2.5,1 -6,-1.8 -1.6,-2Z";
const VIRIDIS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"];
const RAMP = VIRIDIS.map((colour, i) => [i / (VIRIDIS.length - 1), colour]);
const better = data.less_is_better ? "lower is better" : "higher is better";
const run = () => data.runs[state.run];
const leakage = () => run().leaks; // what each node can learn about each other, where that was accounted for
const figures = () => leakage() && leakage().ways[state.figureKind]; // the proven ones, or the idealised ones

// Against whom, and by which kind of proof, the headlines of some runs are.
const headlines = (runs) =>
  [...new Set(runs.filter((one) => one.kind).map((one) => `${one.adversary}, ${one.kind}`))].join("; ") ||
  "none proven";
const isInf = (value) => value === "inf";
const finite = (values) => values.filter((value) => typeof value === "number");
const epsilonText = (value) => (value == null ? "none proven" : isInf(value) ? "infinite" : String(value));
const small = (value) => (value < 0.001 ? value.toExponential() : String(value));
const first = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const accuracyText = (percent) => (percent == null ? "no limit" : `${percent.toFixed(1)} %`);
const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const share = (value) => (value == null ? "diverged" : value.toFixed(3));
const bytes = (count) => (count < 1e6 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`);
const node = (number) => {
  const labels = run().labels;
  return labels && labels[number] !== String(number) ? `${number} (${labels[number]})` : String(number);
};
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const narrow = () => window.innerWidth < 560;
const made = (tag, text, kind) => {
  const found = document.createElement(tag);
  if (text != null) found.textContent = text;
  if (kind) found.className = kind;
  return found;
};

function table(heads, rows, { chosen = null, stack = false } = {}) {
  const whole = made("table", null, stack ? "stack" : ""),
    head = made("tr"),
    body = made("tbody");
  heads.forEach((text) => head.append(made("th", text)));
  rows.forEach((cells, number) => {
    const row = made("tr", null, number === chosen ? "chosen" : "");
    cells.forEach((cell, column) => {
      const place = cell instanceof Node ? made("td", null, "long") : made("td", cell);
      if (cell instanceof Node) place.append(cell);
      place.dataset.head = heads[column];
      row.append(place);
    });
    body.append(row);
  });
  const top = made("thead");
  top.append(head);
  whole.append(top, body);
  const scroll = made("div", null, "scroll");
  scroll.append(whole);
  return scroll;
}

function caption(place, parts) {
  place.replaceChildren(
    ...[parts]
      .flat()
      .map((part, i) => made(i % 2 ? "b" : "span", part))
      .filter((part) => part.textContent),
  );
}

// Every figure is registered once, in the script that draws it. It stands at the end of its section, side by side with
// the others of its row. Figures about `pairs` are drawn anew when another adversary or kind of figure is chosen.
const registered = [];
function register({ id, section, row, pairs = false, draw }) {
  let parent = at(section);
  if (row && !at(row)) parent.append(Object.assign(made("div", null, "pair"), { id: row }));
  if (row) parent = at(row);
  parent.append(Object.assign(made("div"), { id }));
  registered.push({ pairs, draw });
}

// A figure is a title, a legend, a plot, a caption and the numbers behind it; or a line that says why it is not there.
function figure(id, title, shape = "") {
  const place = at(id);
  let found = place.querySelector("figure");
  if (!found) {
    found = made("figure");
    const details = made("details");
    details.append(made("summary", "The numbers behind it"), made("div"));
    const plot = made("div", null, `plot ${shape}`);
    plot.setAttribute("role", "img");
    found.append(made("h3"), made("div", null, "legend"), made("div"), plot, made("figcaption"), details);
    place.append(found);
  }
  found.querySelector("h3").textContent = title;
  const [, legend, instead] = found.children;
  return {
    draw({ traces, layout, legend: keys = [], caption: words, numbers, click, height = "" }) {
      instead.replaceChildren();
      legend.replaceChildren(...keys);
      const plot = found.querySelector(".plot");
      ["legend", "plot"].forEach((part) => (found.querySelector("." + part).hidden = false));
      found.querySelector("details").hidden = false;
      plot.style.height = height;
      plot.setAttribute("aria-label", `${title}. The numbers are in the table below it.`);
      Plotly.react(plot, traces, themed(layout), { displayModeBar: false, responsive: true, doubleClick: false });
      if (click && !plot.dataset.clicks) {
        plot.dataset.clicks = "1";
        plot.on("plotly_click", (event) => click(event.points[0]));
      }
      caption(found.querySelector("figcaption"), words);
      found.querySelector("details div").replaceChildren(numbers);
    },
    missing([text, command]) {
      const note = made("p", text, "missing");
      if (command) note.append(made("code", command));
      instead.replaceChildren(note);
      [".legend", ".plot", "details"].forEach((part) => (found.querySelector(part).hidden = true));
      found.querySelector("figcaption").textContent = "";
    },
  };
}

function themed(layout) {
  const ink = css("--ink"),
    grid = css("--grid"),
    soft = css("--soft");
  const axis = (own = {}) => ({
    gridcolor: grid,
    zeroline: false,
    linecolor: css("--line"),
    tickcolor: soft,
    automargin: true,
    fixedrange: true,
    ...own,
    title: { text: own.title || "", standoff: 10, font: { color: soft, size: 13 } },
  });
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    hovermode: "closest",
    dragmode: false,
    margin: { l: 12, r: 12, t: 10, b: 12 },
    font: { color: ink, size: 12.5, family: getComputedStyle(document.body).fontFamily },
    hoverlabel: { bgcolor: css("--card"), bordercolor: soft, font: { color: ink }, align: "left" },
    ...layout,
    xaxis: axis(layout.xaxis),
    yaxis: axis(layout.yaxis),
  };
}

const svg = (inner, width = 26) => {
  const box = made("span");
  box.innerHTML = `<svg width="${width}" height="14" viewBox="0 0 ${width} 14" aria-hidden="true">${inner}</svg>`;
  return box.firstChild;
};
const key = (drawing, text) => {
  const found = made("span");
  found.append(drawing, made("span", text));
  return found;
};

// Runs are distinguished by a colour for each curve, and by dashes and marks besides.
const curves = [...new Set(data.series.map((one) => one.curve))];
data.series.forEach((one) => {
  const number = curves.indexOf(one.curve);
  const within = data.series.filter((other) => other.curve === one.curve).indexOf(one);
  one.colour = data.colours[number % data.colours.length];
  one.dash = DASH[(number + within) % DASH.length];
  one.symbol = SYMBOL[number % SYMBOL.length];
});
const dashes = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4" };
const chosenSeries = () => data.series.find((one) => one.runs.includes(state.run));
const lineKey = (one) =>
  key(
    svg(
      `<line x1="0" y1="7" x2="26" y2="7" stroke="${one.colour}" stroke-width="3" stroke-dasharray="${dashes[one.dash]}"/>`,
    ),
    one.name,
  );
const dotKey = (one) => key(svg(`<path d="${SYMBOLS[one.symbol]}" fill="${one.colour}"/>`, 14), one.curve_name);
const dotKeys = (members) =>
  curves
    .map((curve) => members.find((one) => one.curve === curve))
    .filter(Boolean)
    .map(dotKey);
