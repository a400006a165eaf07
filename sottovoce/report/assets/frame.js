// What all figures share: the data, what is chosen, texts of figures, tables, and the frame of a figure.

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
// A page begins with a run that protects somebody, best with one in which what is proven differs from node to node.
const colourful = ({ leaks }) =>
  leaks && leaks.ways.proven && new Set(leaks.ways.proven.by_distance.map((one) => one.most)).size > 1;
const protective = [(one) => colourful(one), () => true]
  .map((wanted) => data.runs.findIndex((one) => typeof one.epsilon === "number" && wanted(one)))
  .find((number) => number >= 0);
const state = { run: protective ?? 0, attacker: null, figureKind: null };
const DASH = ["solid", "dash", "dot", "dashdot", "longdash"];
const SYMBOL = Object.keys(SYMBOLS).filter((name) => name !== "star");
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
const epsilonIs = (value) => (typeof value === "number" ? `ε = ${value}` : `ε ${epsilonText(value)}`);
const small = (value) => (value < 0.001 ? value.toExponential() : String(value));
const first = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const accuracyText = (percent) => (percent == null ? "no limit" : `${percent.toFixed(1)} %`);
const share = (value) => (value == null ? "diverged" : value.toFixed(3));
const bytes = (count) => (count < 1e6 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`);
// A node by its name, or by its number where it has none: short for labels, and as the subject of a sentence.
const label = (number) => (run().labels ? run().labels[number] : String(number));
const node = (number) => (label(number) === String(number) ? `node ${number}` : label(number));
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
    draw({ legend: keys = [], caption: words, notes = [], numbers, height = "", ...wanted }) {
      instead.replaceChildren();
      legend.replaceChildren(...keys);
      const plot = found.querySelector(".plot");
      ["legend", "plot"].forEach((part) => (found.querySelector("." + part).hidden = false));
      found.querySelector("details").hidden = false;
      plot.style.height = height;
      plot.setAttribute("aria-label", `${title}. The numbers are in the table below it.`);
      chart(plot, wanted);
      caption(found.querySelector("figcaption"), words);
      found
        .querySelector("details div")
        .replaceChildren(...notes.filter(Boolean).map((line) => made("p", line)), numbers);
    },
    // What a chart would show can be said in a sentence; the numbers stay.
    sentence(text, numbers) {
      this.missing([text, ""]);
      instead.firstChild.className = "plain";
      found.querySelector("details").hidden = !numbers;
      if (numbers) found.querySelector("details div").replaceChildren(numbers);
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

const svg = (inner, width = 26) => {
  const box = made("span");
  box.innerHTML = `<svg width="${width}" height="14" viewBox="0 0 ${width} 14" aria-hidden="true">${inner}</svg>`;
  return box.firstChild;
};
const symbolKey = (name, fill, stroke = "none") =>
  svg(`<path d="${SYMBOLS[name]}" fill="${fill}" stroke="${stroke}" stroke-width="1.3"/>`, 14);
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
const chosenSeries = () => data.series.find((one) => one.runs.includes(state.run));
const lineKey = (one) =>
  key(
    svg(
      `<line x1="0" y1="7" x2="26" y2="7" stroke="${one.colour}" stroke-width="3" stroke-dasharray="${DASHES[one.dash] || ""}"/>`,
    ),
    one.name,
  );
const dotKey = (one) => key(symbolKey(one.symbol, one.colour), one.curve_name);
const dotKeys = (members) =>
  curves
    .map((curve) => members.find((one) => one.curve === curve))
    .filter(Boolean)
    .map(dotKey);
