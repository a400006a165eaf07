// What all figures share: the data, what is chosen, texts of figures, tables, and the frame of a figure.

const at = (id) => document.getElementById(id);
const data = JSON.parse(at("data").textContent);
// A page begins with a run that protects somebody, best with one in which what is proven differs from node to node.
const protects = (one) => typeof one.epsilon === "number";
const colourful = ({ leaks }) => leaks?.ways.proven && new Set(leaks.ways.proven.by_distance.map((one) => one.most)).size > 1;
const begins = data.runs.find((one) => protects(one) && colourful(one)) ?? data.runs.find(protects);
const state = { run: Math.max(0, data.runs.indexOf(begins)), attacker: null, figureKind: null };
const DASH = Object.keys(DASHES);
const SYMBOL = Object.keys(SYMBOLS).filter((name) => name !== "star");
const better = data.less_is_better ? "lower is better" : "higher is better";
const run = () => data.runs[state.run];
const leakage = () => run().leaks; // what each node can learn about each other, where that was accounted for
const figures = () => leakage()?.ways[state.figureKind]; // the proven ones, or the idealised ones

// Against whom, and by which kind of proof, the headlines of some runs are.
const headlines = (runs) =>
  [...new Set(runs.filter((one) => one.kind).map((one) => `${one.adversary}, ${one.kind}`))].join("; ") || "none proven";
const isInf = (value) => value === "inf";
const epsilonText = (value) => (value == null ? "none proven" : isInf(value) ? "infinite" : String(value));
const epsilonIs = (value) => (typeof value === "number" ? `ε = ${value}` : `ε ${epsilonText(value)}`);
const small = (value) => (value < 0.001 ? value.toExponential() : String(value));
const first = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const accuracyText = (percent) => (percent == null ? "no limit" : `${percent.toFixed(1)} %`);
const share = (value) => (value == null ? "diverged" : value.toFixed(3));
const interval = (one) => `${one.value.toFixed(3)} (${one.low.toFixed(3)} to ${one.high.toFixed(3)})`;
const bytes = (count) => (count < 1e6 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`);
// A node by its name, or by its number where it has none: short for labels, and as the subject of a sentence.
const label = (number) => run().labels?.[number] ?? String(number);
const node = (number) => (label(number) === String(number) ? `node ${number}` : label(number));
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const made = (tag, inside, kind, more = {}) => {
  const found = Object.assign(document.createElement(tag), more, kind ? { className: kind } : {});
  found.append(...[inside ?? []].flat().filter((one) => one != null && one !== false));
  return found;
};

// A line for each thing; a column is its heading and what it says of a thing.
function table(things, columns, { chosen = null, stack = false } = {}) {
  const wanted = columns.filter(Boolean), head = made("tr", wanted.map(([text]) => made("th", text)));
  const row = (thing, number) => {
    const cells = wanted.map(([head, cell]) => {
      const inside = cell(thing, number), found = made("td", inside, inside instanceof Node ? "long" : "");
      found.dataset.head = head;
      return found;
    });
    return made("tr", cells, number === chosen ? "chosen" : "");
  };
  const body = made("tbody", things.map(row));
  return made("div", made("table", [made("thead", head), body], stack ? "stack" : ""), "scroll");
}

// Every figure is registered once, in the script that draws it. It stands at the end of its section, side by side with
// the others of its row. Figures about `pairs` are drawn anew when another adversary or kind of figure is chosen.
const registered = [];
function register({ id, section, row, pairs = false, draw }) {
  if (row && !at(row)) at(section).append(made("div", [], "pair", { id: row }));
  at(row ?? section).append(made("div", [], "", { id }));
  registered.push({ pairs, draw });
}

// A figure is a title, a legend, a plot, a caption and the numbers behind it; or a line that says why it is not there.
function figure(id, title, shape = "") {
  if (!at(id).querySelector("figure")) {
    const plot = made("div", [], `plot ${shape}`, { role: "img" });
    const details = made("details", [made("summary", "The numbers behind it"), made("div")]);
    at(id).append(made("figure", [made("h3"), made("div", [], "legend"), made("div"), plot, made("figcaption"), details]));
  }
  const [heading, legend, instead, plot, words, details] = at(id).querySelector("figure").children;
  heading.textContent = title;
  const show = (there, ...behind) => {
    legend.hidden = plot.hidden = !there;
    details.hidden = !behind.length;
    details.lastChild.replaceChildren(...behind);
  };
  return {
    draw({ legend: keys = [], caption = [], notes = [], numbers, height = "", ...wanted }) {
      instead.replaceChildren();
      legend.replaceChildren(...keys);
      show(true, ...notes.filter(Boolean).map((line) => made("p", line)), numbers);
      plot.style.height = height;
      plot.setAttribute("aria-label", `${title}. The numbers are in the table below it.`);
      chart(plot, wanted);
      const parts = [caption].flat().map((part, i) => part && made(i % 2 ? "b" : "span", part));
      words.replaceChildren(...parts.filter(Boolean));
    },
    // What a chart would show can be said in a sentence; the numbers stay.
    sentence(text, numbers) {
      this.missing([text, ""], "plain", numbers);
    },
    missing([text, command], kind = "missing", numbers) {
      instead.replaceChildren(made("p", [text, command && made("code", command)], kind));
      show(false, ...(numbers ? [numbers] : []));
      words.textContent = "";
    },
  };
}

const svg = (inner, width = 26) =>
  made("span", [], "", {
    innerHTML: `<svg width="${width}" height="14" viewBox="0 0 ${width} 14" aria-hidden="true">${inner}</svg>`,
  }).firstChild;
const stroke = (colour, width, dash) =>
  svg(`<line x1="0" y1="7" x2="26" y2="7" stroke="${colour}" stroke-width="${width}" stroke-dasharray="${dash || ""}"/>`);
const symbolKey = (name, fill, stroke = "none") =>
  svg(`<path d="${SYMBOLS[name]}" fill="${fill}" stroke="${stroke}" stroke-width="1.3"/>`, 14);
const key = (drawing, text) => made("span", [drawing, made("span", text)]);

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
const lineKey = (one) => key(stroke(one.colour, 3, DASHES[one.dash]), one.name);
const dotKeys = (members) =>
  curves.flatMap((curve) => members.filter((one) => one.curve === curve).slice(0, 1))
    .map((one) => key(symbolKey(one.symbol, one.colour), one.curve_name));
