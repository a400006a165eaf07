// The graph, coloured by what the chosen adversary can learn, and what figures about pairs share.

function scale() {
  const values = finite(figures().epsilon.flat());
  const least = Math.min(...values),
    most = Math.max(...values);
  const log = values.length > 0 && least > 0 && most / least > 6;
  const to = (value) => (log ? Math.log10(value) : value);
  const low = values.length ? to(least) : 0,
    high = values.length ? to(most) : 1;
  return {
    least,
    most,
    log,
    to,
    low: high > low ? low : low - 1,
    high: high > low ? high : high + 1,
    any: values.length > 0,
  };
}

function colourLegend(range, extra = []) {
  const keys = [];
  if (range.any) {
    const bar = made("i", null, "ramp");
    bar.style.background = `linear-gradient(90deg, ${VIRIDIS.join(", ")})`;
    if (range.least === range.most) bar.style.background = VIRIDIS[4];
    keys.push(
      key(
        bar,
        `epsilon ${range.least === range.most ? "" : `${epsilonText(range.least)} to `}${epsilonText(range.most)}${range.log ? ", log scale" : ""}`,
      ),
    );
  }
  if (figures().epsilon.flat().some(isInf))
    keys.push(
      key(svg(`<rect x="1" y="1" width="12" height="12" fill="${css("--warn")}"/>`, 14), "infinite: nothing protects"),
    );
  return [...keys, ...extra];
}

const named = (kinds) =>
  kinds.map((kind, i) => (i < kinds.length - 1 ? kind.replace("training", "") : kind)).join(" or ");

function figureKindSentence() {
  const { kinds, by_distance: by } = figures();
  if (state.figureKind !== "proven")
    return "This is an idealisation, no proof for training (fixed-streams): true leaks can be larger.";
  const flat =
    by.length > 1 && !isInf(by[0].least) && by.every((one) => one.least === by[0].least && one.most === by[0].least);
  const columns = figures().epsilon || [],
    own = columns.length > 1 && columns[0].every((_, victim) => {
      const known = columns.map((row) => row[victim]).filter((one) => one != null);
      return known.every((one) => one === known[0]);
    });
  const same = flat
    ? " All pairs have the same figure, because this proof does not count on distance."
    : own
      ? " A figure depends on whom it is about, not on who the adversary is: this proof does not count on distance."
      : "";
  const ideal = same && leakage().ways["fixed-streams"];
  return `Proven (${named(kinds)}).${same}${ideal ? " Choose the idealised figures to see what distance may bring." : ""}`;
}

function drawGraph() {
  const place = figure("graph", "The graph, coloured by what the adversary can learn");
  const graph = run().graph,
    missing = run().missing;
  if (missing.graph) return place.missing(missing.graph);
  if (!leakage() || !figures())
    return place.missing(missing.pairs || ["No kind of figure applies to single nodes here.", ""]);
  if (!figures().epsilon) return place.missing(["Too many pairs to show one by one. See leak by distance.", ""]);
  const row = leakage().attackers.indexOf(state.attacker),
    range = scale();
  const epsilon = figures().epsilon[row],
    guess = figures().guess[row],
    hops = leakage().distance[row],
    count = run().n;
  const size = count <= 20 ? (narrow() ? 22 : 27) : count <= 60 ? 19 : count <= 150 ? 12 : 8;
  const hover = epsilon.map((value, victim) =>
    victim === state.attacker
      ? `node ${safe(node(victim))}: the adversary`
      : `node ${safe(node(victim))}<br>${hops[victim] == null ? "no path" : `${hops[victim]} hops away`}<br>epsilon ${epsilonText(value)}` +
        (guess[victim] == null ? "" : `<br>guessing accuracy at most ${guess[victim]} %`) +
        `<br>${state.figureKind}`,
  );
  const group = (members, marker, colour) => ({
    type: "scatter",
    mode: size > 12 ? "markers+text" : "markers",
    hoverinfo: "text",
    showlegend: false,
    x: members.map((i) => graph.positions[i][0]),
    y: members.map((i) => graph.positions[i][1]),
    customdata: members,
    text: members.map(String),
    hovertext: members.map((i) => hover[i]),
    textfont: { size: size > 20 ? 12 : 9.5, color: colour },
    marker: { size, line: { width: 1.5, color: css("--ink") }, opacity: 1, ...marker },
  });
  const nodes = [...Array(count).keys()];
  const known = nodes.filter((i) => i !== state.attacker && typeof epsilon[i] === "number");
  const light = (i) => ((range.to(epsilon[i]) - range.low) / (range.high - range.low) > 0.55 ? "#14171c" : "#ffffff");
  const lines = { x: [], y: [] };
  graph.edges.forEach(([a, b]) =>
    ["x", "y"].forEach((axis, i) => lines[axis].push(graph.positions[a][i], graph.positions[b][i], null)),
  );
  const bare = { visible: false, showgrid: false };
  const seen = finite(known.map((i) => epsilon[i])),
    most = nodes.filter((i) => i !== state.attacker && isInf(epsilon[i])).length;
  const summed = [
    ...(seen.length ? [`epsilon up to ${epsilonText(Math.max(...seen))}`] : []),
    ...(most ? [`${most} nodes have no protection at all`] : []),
  ];
  const few = leakage().attackers.slice(0, 12).map(node).join(", ") + (leakage().attackers.length > 12 ? ", ..." : "");
  place.draw({
    traces: [
      { type: "scatter", mode: "lines", ...lines, hoverinfo: "skip", line: { color: css("--none"), width: 1.2 } },
      group(
        known,
        { color: known.map((i) => range.to(epsilon[i])), colorscale: RAMP, cmin: range.low, cmax: range.high },
        known.map(light),
      ),
      group(
        nodes.filter((i) => isInf(epsilon[i])),
        { color: css("--warn"), symbol: "square" },
        "#ffffff",
      ),
      group(
        nodes.filter((i) => i !== state.attacker && epsilon[i] == null),
        { color: css("--none") },
        "#14171c",
      ),
      group(
        [state.attacker],
        { color: css("--card"), symbol: "star", size: size + 12, line: { width: 2.5, color: css("--ink") } },
        css("--ink"),
      ),
    ],
    layout: { xaxis: bare, yaxis: bare },
    legend: colourLegend(range, [
      key(
        svg(`<path d="${STAR}" transform="translate(7 7)" fill="none" stroke="currentColor" stroke-width="1.5"/>`, 14),
        "the adversary",
      ),
    ]),
    caption: [
      "",
      `Node ${node(state.attacker)} is the adversary.`,
      ` Each other node has the colour of what node ${node(state.attacker)} can learn about it from ` +
        `all messages it receives, at delta ${small(run().delta)}: ${summed.join("; ") || "no figure"}. ` +
        `${figureKindSentence()} ${graph.note || ""}${graph.directed ? " Messages go one way along an edge." : ""} `,
      leakage().attackers.length === count
        ? "Click another node to make it the adversary."
        : leakage().attackers.length > 1
          ? `Click a node to make it the adversary; accounted for are ${few}.`
          : "",
    ],
    numbers: table(
      ["node", "hops", "epsilon", "upper bound on guessing accuracy", "kind"],
      nodes
        .filter((i) => i !== state.attacker)
        .map((i) => [
          node(i),
          hops[i] == null ? "no path" : String(hops[i]),
          epsilonText(epsilon[i]),
          guess[i] == null ? "" : `${guess[i]} %`,
          figures().kind[row][i] == null ? "" : figures().kinds[figures().kind[row][i]],
        ]),
    ),
    click: (point) => point.customdata != null && choose(point.customdata),
  });
}

register({ id: "graph", section: "who", row: "graph-and-distance", pairs: true, draw: drawGraph });
