"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const state = { run: 0, attacker: null, way: null };
const DASH = ["solid", "dash", "dot", "dashdot", "longdash"];
const SYMBOLS = {
  circle: "M7,1.5 A5.5,5.5 0 1 1 6.99,1.5Z", square: "M2,2H12V12H2Z", diamond: "M7,0.5 13,7 7,13.5 1,7Z", "triangle-up": "M7,1 13,12.5H1Z",
  cross: "M5,1H9V5H13V9H9V13H5V9H1V5H5Z", "triangle-down": "M1,1.5H13L7,13Z", hexagon: "M7,1 12,4V10L7,13 2,10V4Z", x: "M3,0.5 7,4.5 11,0.5 13.5,3 9.5,7 13.5,11 11,13.5 7,9.5 3,13.5 0.5,11 4.5,7 0.5,3Z",
};
const SYMBOL = Object.keys(SYMBOLS);
const STAR = "M0,-6 1.6,-2 6,-1.8 2.5,1 3.7,5.2 0,2.8 -3.7,5.2 -2.5,1 -6,-1.8 -1.6,-2Z";
const VIRIDIS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"];
const RAMP = VIRIDIS.map((colour, i) => [i / (VIRIDIS.length - 1), colour]);
const better = data.less_is_better ? "lower is better" : "higher is better";
const run = () => data.runs[state.run];
const leaks = () => run().leaks;
const way = () => leaks() && leaks().ways[state.way];

// --- small things ---------------------------------------------------------------------------------------------------

const isInf = (value) => value === "inf";
const finite = (values) => values.filter((value) => typeof value === "number");
const said = (value) => value == null ? "none proven" : isInf(value) ? "infinite" : String(value);
const small = (value) => value < 0.001 ? value.toExponential() : String(value);
const first = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const guessed = (epsilon, percent) => isInf(epsilon) ? "always" : `${percent.toFixed(1)} % of the time`;
const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const share = (value) => value == null ? "astray" : value.toFixed(3);
const bytes = (count) => count < 1e6 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`;
const node = (number) => {
  const labels = run().graph.labels;
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
  const whole = made("table", null, stack ? "stack" : ""), head = made("tr"), body = made("tbody");
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
  place.replaceChildren(...[parts].flat().map((part, i) => made(i % 2 ? "b" : "span", part)).filter((part) => part.textContent));
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
  const ink = css("--ink"), grid = css("--grid"), soft = css("--soft");
  const axis = (own = {}) => ({
    gridcolor: grid, zeroline: false, linecolor: css("--line"), tickcolor: soft, automargin: true, fixedrange: true,
    ...own, title: { text: own.title || "", standoff: 10, font: { color: soft, size: 13 } },
  });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    dragmode: false, margin: { l: 12, r: 12, t: 10, b: 12 },
    font: { color: ink, size: 12.5, family: getComputedStyle(document.body).fontFamily },
    hoverlabel: { bgcolor: css("--card"), bordercolor: soft, font: { color: ink }, align: "left" },
    ...layout, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
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

// --- runs told apart: a colour for each curve, dashes and marks besides ---------------------------------------------

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
const lineKey = (one) => key(svg(
  `<line x1="0" y1="7" x2="26" y2="7" stroke="${one.colour}" stroke-width="3" stroke-dasharray="${dashes[one.dash]}"/>`), one.name);
const dotKey = (one) => key(svg(`<path d="${SYMBOLS[one.symbol]}" fill="${one.colour}"/>`, 14), one.curve_name);
const dotKeys = (members) => curves.map((curve) => members.find((one) => one.curve === curve)).filter(Boolean).map(dotKey);

// --- who can learn what ---------------------------------------------------------------------------------------------

function scale() {
  const values = finite(way().epsilon.flat());
  const least = Math.min(...values), most = Math.max(...values);
  const log = values.length > 0 && least > 0 && most / least > 6;
  const to = (value) => (log ? Math.log10(value) : value);
  const low = values.length ? to(least) : 0, high = values.length ? to(most) : 1;
  return { least, most, log, to, low: high > low ? low : low - 1, high: high > low ? high : high + 1, any: values.length > 0 };
}

function colourLegend(range, extra = []) {
  const keys = [];
  if (range.any) {
    const bar = made("i", null, "ramp");
    bar.style.background = `linear-gradient(90deg, ${VIRIDIS.join(", ")})`;
    if (range.least === range.most) bar.style.background = VIRIDIS[4];
    keys.push(key(bar, `epsilon ${range.least === range.most ? "" : `${said(range.least)} to `}${said(range.most)}${range.log ? ", log scale" : ""}`));
  }
  if (way().epsilon.flat().some(isInf))
    keys.push(key(svg(`<rect x="1" y="1" width="12" height="12" fill="${css("--warn")}"/>`, 14), "infinite: nothing protects"));
  return [...keys, ...extra];
}

const named = (kinds) => kinds.map((kind, i) => (i < kinds.length - 1 ? kind.replace("training", "") : kind)).join(" or ");

function wayWords() {
  const { kinds, by_distance: by } = way();
  if (state.way !== "proven") return "This is an idealisation, no proof for training (fixed-streams): true leaks can be larger.";
  const flat = by.length > 1 && !isInf(by[0].least) && by.every((one) => one.least === by[0].least && one.most === by[0].least);
  return `Proven (${named(kinds)}).` + (flat ? " All pairs have the same figure, because this proof does not count on distance." +
    (leaks().ways["fixed-streams"] ? " Choose the idealised figures to see what distance may bring." : "") : "");
}

function drawGraph() {
  const place = figure("graph", "The graph, coloured by what the curious node can learn");
  const graph = run().graph, missing = run().missing;
  if (missing.graph) return place.missing(missing.graph);
  if (!leaks() || !way()) return place.missing(missing.pairs || ["No kind of figure applies to single nodes here.", ""]);
  if (!way().epsilon) return place.missing(["Too many pairs to show one by one. See leak by distance.", ""]);
  const row = leaks().attackers.indexOf(state.attacker), range = scale();
  const epsilon = way().epsilon[row], guess = way().guess[row], hops = leaks().distance[row], count = run().n;
  const size = count <= 20 ? (narrow() ? 22 : 27) : count <= 60 ? 19 : count <= 150 ? 12 : 8;
  const hover = epsilon.map((value, victim) => victim === state.attacker
    ? `node ${safe(node(victim))}: the curious one`
    : `node ${safe(node(victim))}<br>${hops[victim] == null ? "no path" : `${hops[victim]} hops away`}<br>epsilon ${said(value)}` +
      (guess[victim] == null ? "" : `<br>guesses right at most ${guess[victim]} %`) + `<br>${state.way}`);
  const group = (members, marker, colour) => ({
    type: "scatter", mode: size > 12 ? "markers+text" : "markers", hoverinfo: "text", showlegend: false,
    x: members.map((i) => graph.positions[i][0]), y: members.map((i) => graph.positions[i][1]), customdata: members,
    text: members.map(String), hovertext: members.map((i) => hover[i]), textfont: { size: size > 20 ? 12 : 9.5, color: colour },
    marker: { size, line: { width: 1.5, color: css("--ink") }, opacity: 1, ...marker },
  });
  const nodes = [...Array(count).keys()];
  const known = nodes.filter((i) => i !== state.attacker && typeof epsilon[i] === "number");
  const light = (i) => (range.to(epsilon[i]) - range.low) / (range.high - range.low) > 0.55 ? "#14171c" : "#ffffff";
  const lines = { x: [], y: [] };
  graph.edges.forEach(([a, b]) => ["x", "y"].forEach((axis, i) => lines[axis].push(graph.positions[a][i], graph.positions[b][i], null)));
  const bare = { visible: false, showgrid: false };
  const seen = finite(known.map((i) => epsilon[i])), most = nodes.filter((i) => i !== state.attacker && isInf(epsilon[i])).length;
  place.draw({
    traces: [
      { type: "scatter", mode: "lines", ...lines, hoverinfo: "skip", line: { color: css("--none"), width: 1.2 } },
      group(known, { color: known.map((i) => range.to(epsilon[i])), colorscale: RAMP, cmin: range.low, cmax: range.high }, known.map(light)),
      group(nodes.filter((i) => isInf(epsilon[i])), { color: css("--warn"), symbol: "square" }, "#ffffff"),
      group(nodes.filter((i) => i !== state.attacker && epsilon[i] == null), { color: css("--none") }, "#14171c"),
      group([state.attacker], { color: css("--card"), symbol: "star", size: size + 12, line: { width: 2.5, color: css("--ink") } }, css("--ink")),
    ],
    layout: { xaxis: bare, yaxis: bare },
    legend: colourLegend(range, [key(svg(`<path d="${STAR}" transform="translate(7 7)" fill="none" stroke="currentColor" stroke-width="1.5"/>`, 14), "the curious node")]),
    caption: ["", `Node ${node(state.attacker)} is curious.`, ` Each other node has the colour of what node ${node(state.attacker)} can learn about it from ` +
      `all messages it receives, at delta ${small(run().delta)}: ${[...(seen.length ? [`epsilon up to ${said(Math.max(...seen))}`] : []), ...(most ? [`${most} nodes have no protection at all`] : [])].join("; ") || "no figure"}. ` +
      `${wayWords()} ${graph.note || ""}${graph.directed ? " Messages go one way along an edge." : ""} `, leaks().attackers.length === count ? "Click another node to make it the curious one." : leaks().attackers.length > 1 ? `Click a node to make it the curious one; accounted for are ${leaks().attackers.slice(0, 12).join(", ")}${leaks().attackers.length > 12 ? ", ..." : ""}.` : ""],
    numbers: table(["node", "hops", "epsilon", "best guess right at most", "kind"], nodes.filter((i) => i !== state.attacker).map((i) => [
      node(i), hops[i] == null ? "no path" : String(hops[i]), said(epsilon[i]), guess[i] == null ? "" : `${guess[i]} %`,
      way().kind[row][i] == null ? "" : way().kinds[way().kind[row][i]]])),
    click: (point) => point.customdata != null && choose(point.customdata),
  });
}

function drawDistance() {
  const place = figure("distance", "Leak by distance");
  if (!leaks() || !way()) return place.missing(run().missing.pairs || ["No kind of figure applies to single nodes here.", ""]);
  const by = way().by_distance, row = leaks().attackers.indexOf(state.attacker);
  const tops = finite(by.flatMap((one) => [one.least, one.median, one.most]));
  const top = tops.length ? Math.max(...tops) : 1, lift = (value) => (isInf(value) ? top * 1.15 || 1 : value);
  const hopsOf = (one) => one.distance ?? (by.length > 1 ? by[by.length - 2].distance + 1 : 1);
  const text = (one) => one.distance == null ? "unknown" : String(one.distance);
  const traces = [{
    type: "scatter", mode: "markers", x: by.map(hopsOf), y: by.map((one) => lift(one.median)), hoverinfo: "text",
    hovertext: by.map((one) => `${text(one)} hops, ${one.pairs} pairs of any two nodes<br>epsilon ${said(one.least)} to ${said(one.most)}<br>half of them at most ${said(one.median)}`),
    marker: { symbol: "line-ew", size: 26, line: { width: 3, color: css("--soft") } },
    error_y: { type: "data", symmetric: false, thickness: 9, width: 0, color: css("--none"),
      array: by.map((one) => lift(one.most) - lift(one.median)), arrayminus: by.map((one) => lift(one.median) - lift(one.least)) },
  }];
  if (way().epsilon) {
    const mine = way().epsilon[row], hops = leaks().distance[row], victims = mine.map((_, i) => i).filter((i) => mine[i] != null);
    traces.push({
      type: "scatter", mode: "markers", hoverinfo: "text", x: victims.map((i) => (hops[i] ?? hopsOf({})) + (((i * 37) % 19) / 19 - 0.5) * 0.34),
      y: victims.map((i) => lift(mine[i])), hovertext: victims.map((i) => `node ${safe(node(i))}<br>epsilon ${said(mine[i])}<br>${state.way}`),
      marker: { size: 9, color: victims.map((i) => isInf(mine[i]) ? css("--warn") : css("--accent")), line: { width: 1, color: css("--card") } },
    });
  }
  const endless = by.some((one) => isInf(one.most));
  place.draw({
    traces,
    layout: {
      xaxis: { title: "hops between the two nodes", tickvals: by.map(hopsOf), ticktext: by.map(text), range: [hopsOf(by[0]) - 0.5, hopsOf(by[by.length - 1]) + 0.5], showgrid: false },
      yaxis: { title: `epsilon (${state.way})`, range: [0, top * (endless ? 1.25 : 1.08)], showticklabels: tops.length > 0, ticks: tops.length ? "outside" : "" },
      annotations: endless ? [{ text: "infinite", x: 0, xref: "paper", y: lift("inf"), xanchor: "left", yanchor: "bottom", showarrow: false, font: { color: css("--warn") } }] : [],
      shapes: endless ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: lift("inf"), y1: lift("inf"), line: { color: css("--warn"), width: 1, dash: "dot" } }] : [],
    },
    legend: [
      ...(way().epsilon ? [key(svg(`<circle cx="7" cy="7" r="5" fill="${css("--accent")}"/>`, 14), `learned by node ${node(state.attacker)}`)] : []),
      key(svg(`<rect x="9" y="0" width="8" height="14" fill="${css("--none")}"/><rect x="1" y="6" width="24" height="3" fill="${css("--soft")}"/>`), "all pairs of nodes: from least to most, and the middle one"),
    ],
    caption: [`What one node can learn about another, by how many hops a message needs between them. Where points fall to the right, distance protects. ${wayWords()}`],
    numbers: table(["hops", "pairs", "least epsilon", "middle", "largest"], by.map((one) => [text(one), String(one.pairs), said(one.least), said(one.median), said(one.most)])),
  });
}

function drawHistogram() {
  const shown = way() && way().histogram;
  at("histogram").hidden = !shown;
  if (!shown) return;
  const { edges, counts, infinite } = shown, middle = counts.map((_, i) => (edges[i] + edges[i + 1]) / 2);
  figure("histogram", "How many pairs have which epsilon").draw({
    traces: [{ type: "bar", x: middle, y: counts, width: counts.map((_, i) => (edges[i + 1] - edges[i]) * 0.94), marker: { color: css("--accent") }, hovertemplate: "%{y} pairs<extra></extra>" }],
    layout: { xaxis: { title: `epsilon (${state.way})` }, yaxis: { title: "pairs of nodes" } },
    caption: [`There are too many pairs to show one by one. ${infinite ? `${infinite} pairs have an infinite epsilon and are not drawn. ` : ""}${wayWords()}`],
    numbers: table(["epsilon from", "to", "pairs"], counts.map((count, i) => [edges[i].toPrecision(4), edges[i + 1].toPrecision(4), String(count)])),
  });
}

function drawPairs() {
  const place = figure("pairs", "All pairs: who learns how much about whom", "tall");
  if (!leaks() || !way()) return place.missing(run().missing.pairs || ["No kind of figure applies to single nodes here.", ""]);
  if (run().n > 150 || !way().epsilon) return place.missing([`${run().n} nodes are more than the 150 that a map can show. See leak by distance.`, ""]);
  const { attackers } = leaks(), { epsilon } = way(), range = scale(), victims = [...Array(run().n).keys()];
  const hover = epsilon.map((row, a) => row.map((value, v) => value == null ? "" : `node ${safe(node(attackers[a]))} about node ${safe(node(v))}<br>epsilon ${said(value)}<br>${state.way}`));
  const cells = (pick, colours, low, high) => ({
    type: "heatmap", x: victims, y: attackers.map((_, i) => i), z: epsilon.map((row) => row.map(pick)), text: hover, hoverinfo: "text", xgap: run().n > 60 ? 0 : 1, ygap: run().n > 60 ? 0 : 1,
    colorscale: colours, zmin: low, zmax: high, showscale: false, hoverongaps: false, customdata: epsilon.map((_, a) => victims.map(() => attackers[a])),
  });
  const warn = css("--warn"), chosen = attackers.indexOf(state.attacker), step = Math.ceil(attackers.length / 20), every = Math.ceil(run().n / (narrow() ? 10 : 30));
  place.draw({
    traces: [
      cells((value) => (typeof value === "number" ? range.to(value) : null), RAMP, range.low, range.high),
      cells((value) => (isInf(value) ? 1 : null), [[0, warn], [1, warn]], 0, 1),
    ],
    layout: {
      xaxis: { title: "about this node", tickvals: victims.filter((i) => i % every === 0), showgrid: false, range: [-0.5, run().n - 0.5] },
      yaxis: { title: "the curious node", tickvals: attackers.map((_, i) => i).filter((i) => i % step === 0), ticktext: attackers.filter((_, i) => i % step === 0).map(String), showgrid: false, range: [attackers.length - 0.5, -0.5] },
      shapes: chosen < 0 ? [] : [{ type: "rect", x0: -0.5, x1: run().n - 0.5, y0: chosen - 0.5, y1: chosen + 0.5, line: { color: css("--ink"), width: 2.5 } }],
    },
    legend: colourLegend(range),
    caption: ["Each row is one curious node, each column a node it is curious about; the brighter, the more it can learn. The framed row is ", `node ${node(state.attacker)}`, `; click a row to choose another. ${wayWords()}`],
    height: attackers.length < 10 ? `${110 + 32 * attackers.length}px` : "",
    numbers: table(["curious node", ...victims.map((i) => `about ${i}`)], epsilon.map((row, a) => [String(attackers[a]), ...row.map((value, v) => v === attackers[a] ? "" : value == null ? "none" : said(value))]), { chosen }),
    click: (point) => choose(point.customdata),
  });
}

// --- what was learned -----------------------------------------------------------------------------------------------

function drawLearning(id, title, xs, xTitle, words) {
  const own = chosenSeries(), traces = [];
  traces.push({ type: "scatter", mode: "lines", x: [...own[xs], ...[...own[xs]].reverse()], y: [...own.max, ...[...own.min].reverse()], fill: "toself", fillcolor: own.colour + "26", line: { width: 0 }, hoverinfo: "skip" });
  data.series.forEach((one) => {
    const wide = one === own ? 3.2 : 1.8;
    traces.push({ type: "scatter", mode: "lines", x: one[xs], y: one.average, line: { color: one.colour, width: wide, dash: one.dash }, hovertemplate: `${safe(one.name)}<br>%{x:.4g}: %{y:.4f}<extra>average model</extra>` });
  });
  figure(id, title).draw({
    traces, layout: { xaxis: { title: xTitle }, yaxis: { title: `test ${data.metric}` } },
    legend: data.series.map(lineKey),
    caption: [`${words} Lines: the average of all nodes' models on data nobody trained on (${better}). The band, of `, own.name, ", runs from the worst node to the best."],
    numbers: table([xTitle, ...data.series.flatMap((one) => [`${one.name}, average model`, `${one.name}, nodes`])],
      own[xs].map((_, i) => [own[xs][i].toPrecision(4).replace(/\.?0+$/, ""), ...data.series.flatMap((one) => [share(one.average[i]), share(one.mean[i])])])),
  });
}

function drawStages() {
  const place = figure("stages", "Epsilon over rounds");
  const known = data.series.map((one) => [one, data.runs[one.runs[0]]]).filter(([, first]) => first.over_rounds.length);
  if (!known.length) return place.missing(run().missing.over_rounds);
  const drawn = known.filter(([, first]) => first.over_rounds.some((stage) => !isInf(stage.epsilon)));
  const endless = known.filter((pair) => !drawn.includes(pair)).map(([one]) => one.name);
  const untold = data.series.filter((one) => !known.some(([other]) => other === one)).map((one) => one.name);
  const notes = (endless.length ? ` Infinite from the first round on, so not drawn: ${endless.join(", ")}.` : "") + (untold.length ? ` Not told over rounds, or nothing proven: ${untold.join(", ")}.` : "");
  if (!drawn.length) return place.missing([`Epsilon is infinite from the first round on: ${endless.join(", ")}. Without noise, or where it does not cover everything that is sent, nothing is hidden at any time.`, ""]);
  place.draw({
    traces: drawn.map(([one, first]) => ({
      type: "scatter", mode: "lines+markers", x: first.over_rounds.map((stage) => stage.round), y: first.over_rounds.map((stage) => isInf(stage.epsilon) ? null : stage.epsilon),
      line: { color: one.colour, dash: one.dash, width: one === chosenSeries() ? 3.2 : 1.8 }, marker: { symbol: one.symbol, size: 8, color: one.colour },
      hovertemplate: `${safe(one.name)}<br>after %{x} rounds: epsilon %{y}<extra>${first.kind}, ${first.adversary}</extra>`,
    })),
    layout: { xaxis: { title: "rounds" }, yaxis: { title: "epsilon, proven", rangemode: "tozero" } },
    legend: drawn.map(([one]) => lineKey(one)),
    caption: [`What would have been promised if training had ended earlier: every round that is listened to costs privacy. ` +
      `By each run's own headline: ${[...new Set(drawn.map(([, first]) => `${first.adversary}, ${first.kind}`))].join("; ")}; delta ${small(run().delta)}.${notes}`],
    numbers: table(["run", "rounds", "epsilon", "kind", "adversary"], known.flatMap(([one, first]) => first.over_rounds.map((stage) => [one.name, String(stage.round), said(stage.epsilon), first.kind, first.adversary]))),
  });
}

// --- attacks --------------------------------------------------------------------------------------------------------

const ATTACKS = {
  threshold: "takes rows with a low loss for members", classifier: "learns from known members what a member's losses look like",
  likelihood: "compares with many runs in which the row was or was not used",
};
const percent = (one) => `${(100 * one.value).toFixed(1)} % (${(100 * one.low).toFixed(1)} to ${(100 * one.high).toFixed(1)})`;
const area = (one) => `${one.value.toFixed(3)} (${one.low.toFixed(3)} to ${one.high.toFixed(3)})`;

function drawRoc() {
  const place = figure("roc", "Can a curious node tell who was trained on?", "square");
  const made = data.series.flatMap((one) => one.runs.filter((number) => data.runs[number].attack).slice(0, 1).flatMap((number) => Object.entries(data.runs[number].attacks).map(([kind, found]) => ({ one, kind, found, run: data.runs[number] }))));
  const drawn = made.filter(({ found }) => found.roc);
  if (!drawn.length) return place.missing(run().missing.attack || run().missing.roc);
  const kinds = [...new Set(drawn.map(({ kind }) => kind))];
  const without = data.series.filter((one) => !made.some((other) => other.one === one)).map((one) => data.runs[one.runs[0]]);
  const dashOf = ({ one, kind }) => (kinds.length > 1 ? DASH[kinds.indexOf(kind)] : one.dash);
  const name = ({ one, kind }) => kinds.length > 1 ? `${one.name}, ${kind}` : one.name;
  place.draw({
    traces: [
      { type: "scatter", mode: "lines", x: [0, 1], y: [0, 1], line: { color: css("--soft"), dash: "dot", width: 1.5 }, hoverinfo: "skip" },
      ...drawn.map((each) => ({ type: "scatter", mode: "lines", x: each.found.roc.fpr, y: each.found.roc.tpr,
        line: { color: each.one.colour, width: each.run === run() ? 3.2 : 1.8, dash: dashOf(each) }, hovertemplate: `${safe(name(each))}<br>finds %{y:.1%} of members<br>accuses %{x:.1%} of others<extra></extra>` })),
    ],
    layout: { margin: { l: 12, r: 26, t: 10, b: 12 }, xaxis: { title: "others taken for members", tickformat: ".0%", range: [0, 1.01] }, yaxis: { title: "members found", tickformat: ".0%", range: [0, 1.01] } },
    legend: [...drawn.map((each) => lineKey({ ...each.one, name: name(each), dash: dashOf(each) })), key(svg(`<line x1="0" y1="7" x2="26" y2="7" stroke="currentColor" stroke-width="2" stroke-dasharray="2 3"/>`), "guessing")],
    caption: [`Shown rows of data and the models it received, an attacker says which rows were trained on. The further a line bends above the dotted one, the more it knows; on it, it guesses. ` +
      `${kinds.map((kind) => `The attack “${kind}” ${ATTACKS[kind]}.`).join(" ")} One attack shows what is possible, not what is impossible: only the guarantees say that.` +
      (without.length ? ` Not attacked yet: ${without.map((one) => one.label).join(", ")} (${without[0].missing.attack ? without[0].missing.attack[1] : "sotto attack"}).` : "")],
    numbers: table(["run", "attack", "area (0.5 is guessing)", "members found at 1 % false alarms", "at 0.1 %", "intervals"], made.map((each) => [each.one.name, each.found.method, area(each.found.auc), percent(each.found.tpr_at_1_percent), percent(each.found.tpr_at_0_1_percent), `${100 * each.found.confidence} %, ${each.found.interval}, ${each.found.victims} victims`])),
  });
}

function drawChecks() {
  const place = at("checks"), { audit, solved } = run();
  place.replaceChildren();
  const card = (title, ...parts) => {
    const box = made("div", null, "table-card");
    box.append(made("h3", title), ...parts);
    place.append(box);
  };
  if (solved && solved.nodes) {
    const open = solved.nodes.filter((one) => one.solved_rounds > 0);
    card(`What node ${solved.attacker} can solve for`, made("p", open.length ? `From its messages in ${solved.rounds} rounds, gradients of these nodes can be computed up to the deviation shown.` : `From its messages in ${solved.rounds} rounds, no node's gradients can be solved for.`),
      ...(open.length ? [table(["node", "hops", "gradients solved for", "sharpest"], open.map((one) => [String(one.node), String(one.distance), `${one.solved_rounds} of ${solved.rounds}`, `± ${one.deviation.toPrecision(3)}`]))] : []));
  }
  if (audit.length) card("Claims checked by audit", table(["canaries", "against", "kind", "epsilon is at least", "claimed at most", "verdict"], audit.map((one) => [one.canaries, one.view, one.kind, isInf(one.found) ? "infinite" : one.found.toFixed(3), said(one.claimed), one.verdict]), { stack: true }));
  else {
    const note = made("p", "No audit has been made of this run. An audit proves from below how much leaks, beside what is claimed from above:", "missing");
    note.append(made("code", `sotto audit ${run().folder}`));
    place.append(note);
  }
}

// --- trade-offs -----------------------------------------------------------------------------------------------------

const steps = (low, high) => {
  const found = [];
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.log10(high) + 1; power++) [1, 2, 5].forEach((part) => found.push(part * 10 ** power));
  const within = found.filter((value) => value >= low / 1.7 && value <= high * 1.7);
  return within.length > 8 ? within.filter((value) => /^1/.test(value.toExponential())) : within;
};
const utility = (one) => one.ending;
const endings = () => table(["run", "algorithm", `${data.metric}, average model`, "nodes", "epsilon", "kind, adversary", "attack's area", "sent"], data.runs.map((one) => [
  one.label, one.algorithm, share(one.average_model), share(one.mean_node), said(one.epsilon), one.kind ? `${one.kind}, ${one.adversary}` : "", one.attack ? `${one.attack.value.toFixed(3)} (${one.attack.attack})` : "not attacked", bytes(one.bytes)]), { chosen: state.run });
const joined = (members, x, more) => curves.map((curve) => {
  const mine = members.filter((one) => one.curve === curve).sort((a, b) => x(a) - x(b));
  return { type: "scatter", mode: mine.length > 1 ? "lines+markers" : "markers", x: mine.map(x), y: mine.map(utility), line: { width: 1.5, color: mine.length ? mine[0].colour : "" },
    marker: { opacity: 1, size: mine.map((one) => one === chosenSeries() ? 15 : 11), symbol: mine.map((one) => one.symbol), color: mine.map((one) => one.colour), line: { width: 1.5, color: css("--card") } }, hoverinfo: "text", ...more(mine) };
});

function drawPrivacy() {
  const values = finite(data.series.map((one) => one.epsilon)).filter((value) => value > 0), low = values.length ? Math.min(...values) : 1, high = values.length ? Math.max(...values) : 1;
  const endless = Math.log10(high) + Math.max(0.25, 0.18 * Math.log10(high / low)), none = endless + (endless - Math.log10(high));
  const x = (one) => one.epsilon == null ? none : isInf(one.epsilon) ? endless : Math.log10(Math.max(one.epsilon, low));
  const odd = data.series.some((one) => one.epsilon == null), inf = data.series.some((one) => isInf(one.epsilon));
  const each = [...new Set(values)].sort((a, b) => a - b), ticks = each.length < 6 ? each.filter((value, i) => !i || value > 1.15 * each[i - 1]) : steps(low, high).filter((value) => value <= high * 1.3), ends = [...(inf ? [[endless, "infinite"]] : []), ...(odd ? [[none, "none<br>proven"]] : [])];
  const right = odd ? none : inf ? endless : Math.log10(high), room = 0.12 * (right - Math.log10(low) || 1);
  const about = new Set(data.runs.filter((one) => one.epsilon != null).map((one) => `${one.adjacency}, ${one.change}`));
  figure("privacy", `${data.metric === "rmse" ? "Error" : "Accuracy"} against privacy`).draw({
    traces: joined(data.series, x, (mine) => ({ hovertext: mine.map((one) => `${safe(one.name)}<br>${data.metric} ${share(utility(one))}<br>epsilon ${said(one.epsilon == null ? null : data.runs[one.runs[0]].epsilon)}<br>${data.runs[one.runs[0]].kind || ""}`) })),
    layout: { xaxis: { title: "epsilon, proven", tickvals: [...ticks.map(Math.log10), ...ends.map(([place]) => place)], ticktext: [...ticks.map(String), ...ends.map(([, text]) => text)], range: [Math.log10(low) - room, right + room] }, yaxis: { title: `test ${data.metric}` } },
    legend: dotKeys(data.series),
    caption: [`Left is more private, ${data.less_is_better ? "down" : "up"} is better. Runs that differ only in how much noise they add are joined by a line. Epsilon is each run’s headline (${[...new Set(data.runs.filter((one) => one.kind).map((one) => `${one.adversary}, ${one.kind}`))].join("; ") || "none proven"}).` +
      (data.series.length === 1 ? " One run is one point: give several runs to sotto compare to see a curve." : "") + (about.size > 1 ? " Not all epsilons here are about the same change of data (see the table of guarantees), so compare like with like." : "")],
    numbers: endings(),
  });
}

function drawSuccess() {
  const place = figure("success", `${data.metric === "rmse" ? "Error" : "Accuracy"} against the attack`), members = data.series.filter((one) => one.attack);
  if (!members.length) return place.missing(run().missing.attack || [ "No run was attacked.", "" ]);
  place.draw({
    traces: joined(members, (one) => one.attack.value, (mine) => ({
      mode: "markers", error_x: { type: "data", symmetric: false, array: mine.map((one) => one.attack.high - one.attack.value), arrayminus: mine.map((one) => one.attack.value - one.attack.low), color: mine.length ? mine[0].colour : "", thickness: 1.5, width: 4 },
      hovertext: mine.map((one) => `${safe(one.name)}<br>${data.metric} ${share(utility(one))}<br>area ${area(one.attack)}, ${one.attack.attack}`),
    })),
    layout: { xaxis: { title: "attack’s area (0.5 is guessing)" }, yaxis: { title: `test ${data.metric}` }, shapes: [{ type: "line", x0: 0.5, x1: 0.5, yref: "paper", y0: 0, y1: 1, line: { color: css("--soft"), width: 1.5, dash: "dot" } }] },
    legend: dotKeys(members),
    caption: [`Left, near the dotted line, the attack is no better than guessing; ${data.less_is_better ? "down" : "up"} is better for training. Bars are confidence intervals. The strongest attack that was tried on each run is shown; a stronger one may exist.`],
    numbers: endings(),
  });
}

// --- promises and facts ---------------------------------------------------------------------------------------------

function promised(one) {
  const meaning = made("div"), assumed = made("div");
  meaning.append(made("p", one.kind, "kind"), made("p", isInf(one.epsilon) ? "No limit: nothing here keeps a change of data from being seen." : data.kinds[one.kind] || ""));
  one.assumptions.forEach((line) => assumed.append(made("p", first(line) + ".")));
  return [one.adversary, one.protects, said(one.epsilon), one.guess == null ? "no limit" : guessed(one.epsilon, one.guess), meaning, assumed];
}

// What the curious node can learn about the node it can learn most about, and about the one it can learn least about.
function chosenPromises() {
  if (!way() || !way().epsilon) return [];
  const row = leaks().attackers.indexOf(state.attacker), epsilon = way().epsilon[row], size = (i) => (isInf(epsilon[i]) ? Infinity : epsilon[i]);
  const order = epsilon.map((_, i) => i).filter((i) => epsilon[i] != null).sort((a, b) => size(b) - size(a) || a - b);
  if (!order.length) return [];
  return [[order[0], "most"], [order[order.length - 1], "least"]].map(([victim, how]) => ({
    adversary: `node ${node(state.attacker)}, the curious one, about node ${node(victim)}, of which it can learn ${how}`,
    protects: run().promises.length ? run().protects : "", epsilon: epsilon[victim], guess: way().guess[row][victim],
    kind: way().kinds[way().kind[row][victim]], assumptions: way().assumptions[way().kinds[way().kind[row][victim]]],
  }));
}

function drawPromises() {
  const rows = [...run().promises, ...chosenPromises()].map(promised), card = made("div", null, "table-card");
  card.append(made("h3", `Guarantees of ${run().label}, at delta ${small(run().delta)}`));
  if (run().epsilon == null) card.append(made("p", run().verdict, "missing"));
  if (rows.length) card.append(table(["against", "what is protected", "epsilon", "a guess between two data sets is right at most", "kind, and what it means", "assumes"], rows, { stack: true }));
  const notes = [run().bound, first(run().convexity) + ".", ...(leaks() ? leaks().refusals.slice(0, 1).map((line) => `Not offered for single nodes: ${line}${leaks().refusals.length > 1 ? ` (and ${leaks().refusals.length - 1} alike)` : ""}.`) : [])];
  notes.forEach((line) => card.append(made("p", line, "note")));
  at("promises").replaceChildren(card);
  at("uncovered").replaceChildren(...run().not_covered.map((line) => made("li", line)));
}

function drawSummary() {
  const one = run(), best = one.promises.filter((row) => row.proven).sort((a, b) => a.guess - b.guess)[0];
  at("verdict").textContent = one.verdict;
  at("verdict").className = one.epsilon == null || isInf(one.epsilon) ? "bad" : "";
  const cards = [
    [`test ${data.metric}, average model`, share(one.average_model), `nodes: ${share(one.mean_node)}, worst ${share(one.worst_node)}`],
    ["epsilon", said(one.epsilon), one.kind ? `delta ${small(one.delta)}, ${one.adversary} as adversary, ${one.kind}` : "see the guarantees below"],
    ["a spy’s best guess", best ? `${best.guess.toFixed(1)} %` : "no limit", "right at most so often; 50 % is a coin"],
    ["attack’s area", one.attack ? one.attack.value.toFixed(3) : "none yet", one.attack ? `${one.attack.attack}; 0.5 is guessing` : "nobody attacked this run"],
    ["sent", bytes(one.bytes), `by ${one.n} nodes in ${one.rounds} rounds`],
  ];
  at("cards").replaceChildren(...cards.map(([name, value, note]) => {
    const box = made("div"), figure = made("dd", value);
    figure.append(made("small", note));
    box.append(made("dt", name), figure);
    return box;
  }));
  at("facts").replaceChildren(...one.facts.flatMap(([name, value]) => [made("dt", name), made("dd", value)]));
}

// --- choosing -------------------------------------------------------------------------------------------------------

function options(id, values, chosen) {
  at(id).replaceChildren(...values.map(([value, text]) => Object.assign(made("option", text), { value, selected: String(value) === String(chosen) })));
  at(id).disabled = values.length < 2;
}

function settle() {
  const found = leaks(), names = { proven: "proven", "fixed-streams": "idealised (fixed-streams)" };
  const ways = found ? Object.keys(found.ways) : [];
  state.way = ways.includes(state.way) ? state.way : ways[0];
  if (found && !found.attackers.includes(state.attacker)) state.attacker = found.attackers[0];
  options("run", data.runs.map((one, i) => [i, one.label]), state.run);
  options("attacker", found ? found.attackers.map((i) => [i, `node ${node(i)}`]) : [["", "none accounted for"]], state.attacker);
  options("way", ways.length ? ways.map((one) => [one, one === "proven" ? `proven (${named(found.ways[one].kinds)})` : names[one]]) : [["", "none"]], state.way);
}

const aboutPairs = () => [drawGraph, drawDistance, drawHistogram, drawPairs, drawPromises].forEach((draw) => draw());
function all() {
  settle();
  drawSummary();
  aboutPairs();
  drawLearning("rounds", `${data.metric === "rmse" ? "Error" : "Accuracy"} over rounds`, "round", "rounds", "How good the models were as training went on.");
  drawLearning("bytes", `${data.metric === "rmse" ? "Error" : "Accuracy"} over data sent`, "megabytes", "megabytes sent by all nodes", "How good they were for what was sent.");
  [drawStages, drawRoc, drawChecks, drawPrivacy, drawSuccess].forEach((draw) => draw());
}
function choose(attacker) {
  if (!leaks() || !leaks().attackers.includes(attacker)) return;
  state.attacker = attacker;
  settle();
  aboutPairs();
}

at("run").addEventListener("change", (event) => { state.run = Number(event.target.value); all(); });
at("attacker").addEventListener("change", (event) => choose(Number(event.target.value)));
at("way").addEventListener("change", (event) => { state.way = event.target.value; settle(); aboutPairs(); });
at("controls").addEventListener("submit", (event) => event.preventDefault());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
const paper = (on) => { document.documentElement.classList.toggle("paper", on); all(); };
window.addEventListener("beforeprint", () => paper(true));
window.addEventListener("afterprint", () => paper(false));
at("lead").textContent = data.runs.length === 1 ? `${data.runs[0].algorithm} on ${data.runs[0].n} nodes, ${data.runs[0].rounds} rounds.`
  : `${data.runs.length} runs. Choose whose graph is shown; curves show all of them.`;
if (data.left_out) at("lead").textContent += ` ${data.left_out} more ${data.left_out > 1 ? "are" : "is"} left out: stopped, or gone astray.`;
at("made").textContent = `Written by sottovoce ${data.version}. Everything is in this file: it asks nobody for anything. Privacy figures are rounded up.`;
all();
})();
