// The graph, coloured by what the chosen adversary can learn, and what figures about pairs share.

function scale() {
  const values = finite(figures().epsilon.flat());
  const least = Math.min(...values),
    most = Math.max(...values);
  const log = values.length > 0 && least > 0 && most / least > 6;
  const to = (value) => (log ? Math.log10(value) : value);
  const share = (value) => (most > least ? (to(value) - to(least)) / (to(most) - to(least)) : 0.5);
  return { least, most, log, share, colour: (value) => ramp(share(value)), any: values.length > 0 };
}

function colourLegend(range, extra = []) {
  const keys = [];
  if (range.any) {
    const bar = made("i", null, "ramp");
    const one = range.least === range.most;
    bar.style.background = one ? ramp(0.5) : `linear-gradient(90deg, ${VIRIDIS.join(", ")})`;
    const ends = one ? epsilonText(range.most) : `${epsilonText(range.least)} to ${epsilonText(range.most)}`;
    keys.push(key(bar, `ε ${ends}${range.log ? ", log scale" : ""}`));
  }
  if (figures().epsilon.flat().some(isInf))
    keys.push(key(symbolKey("square", css("--warn")), "infinite: nothing protects"));
  return [...keys, ...extra, key(made("i", null, "badge"), figureKindName())];
}

const named = (kinds) =>
  kinds.map((kind, i) => (i < kinds.length - 1 ? kind.replace("training", "") : kind)).join(" or ");

// Where there is nothing about pairs, the graph says why, or the leak by distance where there is no graph.
const hideWithoutPairs = (id) => (at(id).hidden = !figures() && (id !== "distance" || !run().missing.graph));

const figureKindName = () =>
  state.figureKind === "proven"
    ? `proven: ${named(figures().kinds)}`
    : "an idealisation, no proof for training (fixed-streams): true leaks can be larger";

const allAlike = () => new Set(figures().by_distance.flatMap((one) => [one.least, one.most])).size < 2;

// Where all pairs, or all adversaries of a node, have one figure: the sentence that says so; null where they differ.
function sameForAll() {
  const { by_distance: by, epsilon } = figures(),
    every = leakage().attackers.length === run().n;
  if (allAlike())
    return isInf(by[0].most)
      ? every
        ? "Nobody is protected from anybody: ε is infinite for every pair of nodes."
        : "ε is infinite for every pair that is accounted for."
      : `${every ? "Every node" : "Each node that is accounted for"} can learn the same about every other, ${epsilonIs(by[0].most)}: this proof does not count on distance.`;
  if (ownFigures(epsilon))
    return `What can be learned depends on whom it is about, not on ${every ? "who" : "which of the nodes that are accounted for"} the adversary is: this proof does not count on distance.`;
  return null;
}

function ownFigures(epsilon) {
  return (
    epsilon &&
    epsilon.length > 1 &&
    epsilon[0].every((_, victim) => new Set(epsilon.map((row) => row[victim]).filter((one) => one != null)).size < 2)
  );
}

const idealisedHint = () =>
  state.figureKind === "proven" && leakage().ways["fixed-streams"]
    ? " Choose the idealised figures to see what distance may bring."
    : "";

const noPairs = () => run().missing.pairs || ["No kind of figure applies to single nodes here.", ""];
const linesOf = ({ edges, positions }) => edges.flatMap(([a, b]) => [positions[a], positions[b], null]);

// Of a member's run without figures about single members: who is who, and who hears whom.
function drawBareGraph(place, graph) {
  const own = (i) => label(i) === run().member;
  place.draw({
    marks: [
      { kind: "line", points: linesOf(graph), colour: css("--none"), width: 1.2 },
      {
        kind: "dots",
        outline: css("--ink"),
        dots: graph.positions.map(([x, y], i) => ({
          x,
          y,
          colour: own(i) ? css("--accent") : css("--none"),
          symbol: "circle",
          size: 22,
          heavy: own(i),
          text: label(i),
          below: true,
          hover: own(i) ? `${label(i)}: this page is its own` : label(i),
        })),
      },
    ],
    x: { hidden: true },
    y: { hidden: true },
    caption: ["This is the page of ", run().member, `. ${noPairs()[0]}`],
    numbers: table(
      ["member", "exchanges messages with"],
      graph.positions.map((_, i) => [
        label(i),
        graph.edges
          .filter((edge) => edge.includes(i))
          .map(([a, b]) => label(a === i ? b : a))
          .join(", "),
      ]),
    ),
  });
}

function drawGraph() {
  const place = figure("graph", "The graph, coloured by what the adversary can learn");
  const graph = run().graph,
    missing = run().missing;
  if (missing.graph) return place.missing(missing.graph);
  if (!figures() && run().member) return drawBareGraph(figure("graph", "Who exchanges messages with whom"), graph);
  if (!figures()) return place.missing(noPairs());
  if (!figures().epsilon) return place.missing(["Too many pairs to show one by one. See leak by distance.", ""]);
  const row = leakage().attackers.indexOf(state.attacker),
    range = scale();
  const epsilon = figures().epsilon[row],
    guess = figures().guess[row],
    hops = leakage().distance[row],
    count = run().n;
  const size = count <= 20 ? (narrow() ? 22 : 27) : count <= 60 ? 19 : count <= 150 ? 12 : 8;
  const names = run().labels && count <= 60;
  const hover = (i) =>
    i === state.attacker
      ? `${first(node(i))}: the adversary`
      : `${first(node(i))}\n${hops[i] == null ? "no path" : `${hops[i]} ${hops[i] === 1 ? "hop" : "hops"} away`}\n${epsilonIs(epsilon[i])}` +
        (guess[i] == null ? "" : `\nguessing accuracy at most ${guess[i]} %`);
  const nodes = [...Array(count).keys()];
  const colour = (i) =>
    i === state.attacker
      ? css("--card")
      : isInf(epsilon[i])
        ? css("--warn")
        : epsilon[i] == null
          ? css("--none")
          : range.colour(epsilon[i]);
  const ink = (i) =>
    i === state.attacker
      ? css("--ink")
      : typeof epsilon[i] === "number" && range.share(epsilon[i]) > 0.55
        ? "#14171c"
        : "#ffffff";
  const seen = finite(nodes.filter((i) => i !== state.attacker).map((i) => epsilon[i])),
    bare = nodes.filter((i) => i !== state.attacker && isInf(epsilon[i])).length;
  const choices = leakage().attackers;
  const few = choices.slice(0, 12).map(label).join(", ") + (choices.length > 12 ? ", …" : "");
  place.draw({
    marks: [
      { kind: "line", points: linesOf(graph), colour: css("--none"), width: 1.2 },
      {
        kind: "dots",
        outline: css("--ink"),
        dots: nodes.map((i) => ({
          x: graph.positions[i][0],
          y: graph.positions[i][1],
          colour: colour(i),
          ink: ink(i),
          symbol: i === state.attacker ? "star" : isInf(epsilon[i]) ? "square" : "circle",
          size: i === state.attacker ? size + 10 : size,
          heavy: i === state.attacker,
          text: names || (size > 12 && !run().labels) ? label(i) : null,
          below: Boolean(names),
          hover: hover(i),
          choice: i,
        })),
      },
    ],
    x: { hidden: true },
    y: { hidden: true },
    legend: colourLegend(range, [key(symbolKey("star", "none", "currentColor"), "the adversary")]),
    caption: [
      "",
      `${first(node(state.attacker))} is the adversary`,
      `; other nodes have the colour of what it can learn about them from all that it receives, at δ = ${small(run().delta)}: ` +
        `${[...(seen.length ? [`ε up to ${epsilonText(Math.max(...seen))}`] : []), ...(bare ? [`${bare} nodes have no protection at all`] : [])].join("; ") || "no figure"}.` +
        (choices.length === count
          ? " Click another node to choose it."
          : choices.length > 1
            ? ` Click a node to choose it; accounted for are ${few}.`
            : ""),
    ],
    notes: [
      sameForAll() && sameForAll() + idealisedHint(),
      graph.note,
      graph.directed && "Messages go one way along an edge.",
    ],
    numbers: table(
      ["node", "hops", "ε", "upper bound on guessing accuracy", "kind", "figure"],
      nodes
        .filter((i) => i !== state.attacker)
        .map((i) => [
          label(i),
          hops[i] == null ? "no path" : String(hops[i]),
          epsilonText(epsilon[i]),
          guess[i] == null ? "" : `${guess[i]} %`,
          figures().kind[row][i] == null ? "" : figures().kinds[figures().kind[row][i]],
          data.figures[figures().figure[row][i]] || "",
        ]),
    ),
    click: choose,
  });
}

register({ id: "graph", section: "who", row: "graph-and-distance", pairs: true, draw: drawGraph });
