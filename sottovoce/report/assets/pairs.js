// Who can learn what from whom: the graph, leak by distance, how many pairs have which epsilon, and all pairs.

// The colours of the figures that are shown.
function scale() {
  const values = finite(figures().epsilon.flat()), most = Math.max(...values);
  const least = Math.min(...values, most / 4); // colours of figures that are nearly alike are nearly alike
  const log = values.length > 0 && least > 0 && most / least > 6, to = (value) => (log ? Math.log10(value) : value);
  const share = (value) => (most > least ? (to(value) - to(least)) / (to(most) - to(least)) : 0.5);
  const colour = (value) => (isInf(value) ? css("--warn") : value == null ? css("--none") : ramp(share(value)));
  return { least, most, log, share, colour, any: values.length > 0 };
}

const figureKindName = () =>
  state.figureKind === "proven"
    ? `proven: ${named(figures().kinds)}`
    : "an idealisation, no proof for training (fixed-streams): true leaks can be larger";
const kindKey = () => key(made("i", [], "badge"), figureKindName());

function colourLegend({ any, least, most, log }, extra = []) {
  const bar = made("i", [], "ramp"), ends = [least, most];
  bar.style.background = `linear-gradient(90deg, ${VIRIDIS.join(", ")})`;
  return [
    ...(any ? [key(bar, `ε ${ends.map(epsilonText).join(" to ")}${log ? ", log scale" : ""}`)] : []),
    ...(figures().epsilon.flat().some(isInf) ? [key(symbolKey("square", css("--warn")), "infinite: nothing protects")] : []),
    ...extra,
    kindKey(),
  ];
}

const named = (kinds) =>
  kinds.map((kind, i) => (i < kinds.length - 1 ? kind.replace("training", "") : kind)).join(" or ");

// Where there is nothing about pairs, the graph says why, or the leak by distance where there is no graph.
const hideWithoutPairs = (id) => (at(id).hidden = !figures() && (id !== "distance" || !run().missing.graph));
const noPairs = () => run().missing.pairs || ["No kind of figure applies to single nodes here.", ""];

const allAlike = () => new Set(figures().by_distance.flatMap((one) => [one.least, one.most])).size < 2;
const column = (victim) => figures().epsilon.map((row) => row[victim]).filter((one) => one != null);
const ownFigures = () =>
  figures().epsilon?.length > 1 && figures().epsilon[0].every((_, victim) => new Set(column(victim)).size < 2);

// Where all pairs, or all adversaries of a node, have one figure: the sentence that says so; empty where they differ.
function sameForAll() {
  const { most } = figures().by_distance[0] ?? {}, every = leakage().attackers.length === run().n;
  const hint = state.figureKind === "proven" && leakage().ways["fixed-streams"];
  const more = hint ? " Choose the idealised figures to see what distance may bring." : "";
  if (allAlike() && isInf(most) && every) return `Nobody is protected from anybody: ε is infinite for every pair of nodes.${more}`;
  if (allAlike() && isInf(most)) return `ε is infinite for every pair that is accounted for.${more}`;
  const who = every ? "Every node" : "Each node that is accounted for";
  const which = every ? "who" : "which of the nodes that are accounted for";
  if (allAlike())
    return `${who} can learn the same about every other, ${epsilonIs(most)}: this proof does not count on distance.${more}`;
  if (ownFigures())
    return `What can be learned depends on whom it is about, not on ${which} the adversary is: this proof does not count on distance.${more}`;
  return "";
}

const nodes = () => [...Array(run().n).keys()];
const drawnGraph = ({ edges, positions }, dots) => ({
  marks: [
    {
      kind: "line", points: edges.flatMap(([a, b]) => [positions[a], positions[b], null]),
      colour: css("--none"), width: 1.2,
    },
    { kind: "dots", outline: css("--ink"), dots: dots.map((dot, i) => ({ x: positions[i][0], y: positions[i][1], ...dot })) },
  ],
  x: { hidden: true },
  y: { hidden: true },
});

// Of a member's run without figures about single members: who is who, and who hears whom.
function drawBareGraph(place, graph) {
  const own = (i) => label(i) === run().member;
  const heard = (i) => graph.edges.filter((edge) => edge.includes(i)).map(([a, b]) => label(a === i ? b : a));
  const dots = nodes().map((i) => ({
    colour: css(own(i) ? "--accent" : "--none"), size: 22, heavy: own(i), text: label(i), below: true,
    hover: own(i) ? `${label(i)}: this page is its own` : label(i),
  }));
  place.draw({
    ...drawnGraph(graph, dots),
    caption: ["This is the page of ", run().member, `. ${noPairs()[0]}`],
    numbers: table(nodes(), [["member", label], ["exchanges messages with", (i) => heard(i).join(", ")]]),
  });
}

function drawGraph() {
  const place = figure("graph", "The graph, coloured by what the adversary can learn"), { graph, missing } = run();
  if (missing.graph) return place.missing(missing.graph);
  if (!figures() && run().member) return drawBareGraph(figure("graph", "Who exchanges messages with whom"), graph);
  if (!figures()) return place.missing(noPairs());
  if (!figures().epsilon) return place.missing(["Too many pairs to show one by one. See leak by distance.", ""]);
  const row = leakage().attackers.indexOf(state.attacker), range = scale(), count = run().n;
  const [epsilon, guess, kind, exact] = ["epsilon", "guess", "kind", "figure"].map((part) => figures()[part][row]);
  const hops = leakage().distance[row], isAdversary = (i) => i === state.attacker;
  const size = count <= 20 ? (window.innerWidth < 560 ? 22 : 27) : count <= 60 ? 19 : count <= 150 ? 12 : 8;
  const below = Boolean(run().labels && count <= 60), inside = size > 12 && !run().labels;
  const away = (i) => (hops[i] == null ? "no path" : `${hops[i]} ${hops[i] === 1 ? "hop" : "hops"} away`);
  const limit = (i) => (guess[i] == null ? "" : `\nguessing accuracy at most ${guess[i]} %`);
  const light = (i) => typeof epsilon[i] === "number" && range.share(epsilon[i]) > 0.55;
  const dot = (i) =>
    isAdversary(i)
      ? { colour: css("--card"), ink: css("--ink"), symbol: "star", size: size + 10, heavy: true,
          hover: `${first(node(i))}: the adversary` }
      : { colour: range.colour(epsilon[i]), ink: light(i) ? "#14171c" : "#ffffff", size,
          symbol: isInf(epsilon[i]) ? "square" : "circle",
          hover: `${first(node(i))}\n${away(i)}\n${epsilonIs(epsilon[i])}${limit(i)}` };
  const others = nodes().filter((i) => !isAdversary(i)), seen = finite(others.map((i) => epsilon[i]));
  const bare = others.filter((i) => isInf(epsilon[i])).length, choices = leakage().attackers;
  const reach = [
    seen.length ? `ε up to ${epsilonText(Math.max(...seen))}` : "", bare ? `${bare} nodes have no protection at all` : "",
  ].filter(Boolean).join("; ");
  const few = choices.slice(0, 12).map(label).join(", ") + (choices.length > 12 ? ", …" : "");
  const click = choices.length > 1 ? ` Click a node to choose it; accounted for are ${few}.` : "";
  place.draw({
    ...drawnGraph(graph, nodes().map((i) => ({ ...dot(i), text: below || inside ? label(i) : null, below, choice: i }))),
    legend: colourLegend(range, [key(symbolKey("star", "none", "currentColor"), "the adversary")]),
    caption: [
      "",
      `${first(node(state.attacker))} is the adversary`,
      "; other nodes have the colour of what it can learn about them from all that it receives, at " +
        `δ = ${small(run().delta)}: ${reach || "no figure"}.` +
        (choices.length === count ? " Click another node to choose it." : click),
    ],
    notes: [sameForAll(), graph.note, graph.directed && "Messages go one way along an edge."],
    numbers: table(others, [
      ["node", label],
      ["hops", (i) => String(hops[i] ?? "no path")],
      ["ε", (i) => epsilonText(epsilon[i])],
      ["upper bound on guessing accuracy", (i) => (guess[i] == null ? "" : `${guess[i]} %`)],
      ["kind", (i) => figures().kinds[kind[i]]],
      ["figure", (i) => data.figures[exact[i]]],
    ]),
    click: choose,
  });
}

function drawDistance() {
  const place = figure("distance", "Leak by distance");
  hideWithoutPairs("distance");
  if (!figures()) return place.missing(noPairs());
  const by = figures().by_distance, row = leakage().attackers.indexOf(state.attacker);
  const text = (one) => (one.distance == null ? "unknown" : String(one.distance));
  const numbers = table(by, [
    ["hops", text],
    ["pairs", (one) => String(one.pairs)],
    ["least ε", (one) => epsilonText(one.least)],
    ["middle", (one) => epsilonText(one.median)],
    ["largest", (one) => epsilonText(one.most)],
  ]);
  if (sameForAll()) return place.sentence(sameForAll(), numbers);
  const tops = finite(by.flatMap((one) => [one.least, one.median, one.most])), top = tops.length ? Math.max(...tops) : 1;
  const lift = (value) => (isInf(value) ? top * 1.15 || 1 : value);
  const hopsOf = (one) => one.distance ?? (by.length > 1 ? by[by.length - 2].distance + 1 : 1);
  const endless = by.some((one) => isInf(one.most)), own = figures().epsilon?.[row] ?? [];
  const across = (i) => (leakage().distance[row][i] ?? hopsOf({})) + (((i * 37) % 19) / 19 - 0.5) * 0.34;
  const spans = by.map((one) => ({
    at: hopsOf(one), low: lift(one.least), high: lift(one.most), middle: lift(one.median),
    hover:
      `${text(one)} hops, ${one.pairs} pairs of any two nodes\nε ${epsilonText(one.least)} to ${epsilonText(one.most)}\n` +
      `half of them at most ${epsilonText(one.median)}`,
  }));
  const dots = own.map((value, i) => ({
    x: across(i), y: lift(value), colour: css(isInf(value) ? "--warn" : "--accent"),
    hover: `${first(node(i))}\n${epsilonIs(value)}`,
  }));
  const bar = `<rect x="9" y="0" width="8" height="14" fill="${css("--none")}"/>`;
  const middle = `<rect x="1" y="6" width="24" height="3" fill="${css("--soft")}"/>`;
  const every = leakage().attackers.length < run().n ? "all pairs accounted for" : "all pairs of nodes";
  place.draw({
    marks: [
      { kind: "spans", along: "y", wide: 9, colour: css("--none"), ticks: css("--soft"), spans },
      { kind: "dots", dots: dots.filter((_, i) => own[i] != null) },
      ...(endless ? [{ kind: "guide", y: lift("inf"), label: "infinite", colour: css("--warn") }] : []),
    ],
    x: {
      title: "hops between the two nodes", ticks: by.map((one) => [hopsOf(one), text(one)]), grid: false,
      range: [hopsOf(by[0]) - 0.5, hopsOf(by[by.length - 1]) + 0.5],
    },
    y: { title: "ε", range: [0, top * (endless ? 1.25 : 1.08)] },
    legend: [
      ...(own.length ? [key(symbolKey("circle", css("--accent")), `learned by ${node(state.attacker)}`)] : []),
      key(svg(bar + middle), `${every}: from least to most, and the middle one`),
      kindKey(),
    ],
    caption: "The more hops a message needs between two nodes, the less one can learn about the other, where points fall to the right.",
    numbers,
  });
}

function drawHistogram() {
  const shown = figures()?.histogram;
  at("histogram").hidden = !shown;
  if (!shown) return;
  const { edges, counts, infinite } = shown;
  const bars = counts.map((count, i) => ({
    x: (edges[i] + edges[i + 1]) / 2, y: count, wide: edges[i + 1] - edges[i], hover: `${count} pairs`,
  }));
  const endless = infinite ? `; ${infinite} with an infinite ε are not drawn` : "";
  figure("histogram", "How many pairs have which ε").draw({
    marks: [{ kind: "bars", colour: css("--accent"), bars }],
    x: { title: "ε" },
    y: { title: "pairs of nodes", zero: true },
    legend: [kindKey()],
    caption: `There are too many pairs to show one by one${endless}.`,
    numbers: table(counts, [
      ["ε from", (_, i) => edges[i].toPrecision(4)],
      ["to", (_, i) => edges[i + 1].toPrecision(4)],
      ["pairs", String],
    ]),
  });
}

function drawPairs() {
  const place = figure("pairs", "All pairs: who learns how much about whom", "tall");
  hideWithoutPairs("pairs");
  if (!figures()) return;
  at("pairs").hidden = allAlike(); // the leak by distance has said it
  if (at("pairs").hidden) return;
  const { attackers } = leakage(), { epsilon } = figures(), chosen = attackers.indexOf(state.attacker);
  if (run().n > 150 || !epsilon)
    return place.missing([`${run().n} nodes are more than the 150 that a map can show. See leak by distance.`, ""]);
  const about = (i) => (row, a) => (i === attackers[a] ? "" : row[i] == null ? "none" : epsilonText(row[i]));
  const columns = nodes().map((i) => [`about ${label(i)}`, about(i)]);
  const numbers = table(epsilon, [["adversary", (_, a) => label(attackers[a])], ...columns], { chosen });
  const x = { title: "about this node", ticks: nodes().map((i) => [i, label(i)]), grid: false };
  if (ownFigures()) return drawVictims(place, x, numbers);
  const range = scale(), step = Math.ceil(attackers.length / 20);
  const cell = (value, a, v) =>
    value != null && {
      colour: range.colour(value), choice: attackers[a],
      hover: `${first(node(attackers[a]))} about ${node(v)}\n${epsilonIs(value)}`,
    };
  place.draw({
    marks: [
      { kind: "cells", rows: epsilon.map((row, a) => row.map((value, v) => cell(value, a, v))) },
      ...(chosen < 0 ? [] : [{ kind: "guide", row: chosen }]),
    ],
    x: { ...x, range: [-0.5, run().n - 0.5] },
    y: {
      title: "adversary", grid: false, range: [attackers.length - 0.5, -0.5],
      ticks: attackers.map((one, i) => [i, label(one)]).filter((_, i) => i % step === 0),
    },
    legend: colourLegend(range),
    caption: [
      "Each row is one node as the adversary, each column a node that it learns about; the framed row is ",
      node(state.attacker),
      attackers.length > 1 ? ", and a click on a row chooses another." : ".",
    ],
    height: attackers.length < 10 ? `${110 + 32 * attackers.length}px` : "",
    numbers,
    click: choose,
  });
}

// Where a figure depends only on whom it is about, one bar for each node says it all.
function drawVictims(place, x, numbers) {
  const worst = nodes().map((victim) => column(victim)[0]);
  if (new Set(worst).size < 2 || !finite(worst).length) return place.sentence(sameForAll(), numbers);
  const bars = worst.map((y, i) => ({ x: i, y, wide: 0.8, hover: `About ${node(i)}\n${epsilonIs(y)}` }));
  place.draw({
    marks: [{ kind: "bars", colour: css("--accent"), bars: bars.filter((bar) => Number.isFinite(bar.y)) }],
    x: { ...x, range: [-0.6, run().n - 0.4] },
    y: { title: "ε", zero: true },
    legend: [kindKey()],
    caption: sameForAll(),
    numbers,
  });
}

register({ id: "graph", section: "who", row: "graph-and-distance", pairs: true, draw: drawGraph });
register({ id: "distance", section: "who", row: "graph-and-distance", pairs: true, draw: drawDistance });
register({ id: "histogram", section: "who", pairs: true, draw: drawHistogram });
register({ id: "pairs", section: "who", pairs: true, draw: drawPairs });
