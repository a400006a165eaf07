// The graph, coloured by what the chosen node can learn, and what figures about pairs share.

function scale() {
  const values = finite(way().epsilon.flat());
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
        `epsilon ${range.least === range.most ? "" : `${said(range.least)} to `}${said(range.most)}${range.log ? ", log scale" : ""}`,
      ),
    );
  }
  if (way().epsilon.flat().some(isInf))
    keys.push(
      key(svg(`<rect x="1" y="1" width="12" height="12" fill="${css("--warn")}"/>`, 14), "infinite: nothing protects"),
    );
  return [...keys, ...extra];
}

const named = (kinds) =>
  kinds.map((kind, i) => (i < kinds.length - 1 ? kind.replace("training", "") : kind)).join(" or ");

function wayWords() {
  const { kinds, by_distance: by } = way();
  if (state.way !== "proven")
    return "This is an idealisation, no proof for training (fixed-streams): true leaks can be larger.";
  const flat =
    by.length > 1 && !isInf(by[0].least) && by.every((one) => one.least === by[0].least && one.most === by[0].least);
  const columns = way().epsilon || [],
    own = columns.length > 1 && columns[0].every((_, victim) => {
      const told = columns.map((row) => row[victim]).filter((one) => one != null);
      return told.every((one) => one === told[0]);
    });
  const same = flat
    ? " All pairs have the same figure, because this proof does not count on distance."
    : own
      ? " A figure depends on whom it is about, not on who is curious: this proof does not count on distance."
      : "";
  const ideal = same && leaks().ways["fixed-streams"];
  return `Proven (${named(kinds)}).${same}${ideal ? " Choose the idealised figures to see what distance may bring." : ""}`;
}

function drawGraph() {
  const place = figure("graph", "The graph, coloured by what the curious node can learn");
  const graph = run().graph,
    missing = run().missing;
  if (missing.graph) return place.missing(missing.graph);
  if (!leaks() || !way())
    return place.missing(missing.pairs || ["No kind of figure applies to single nodes here.", ""]);
  if (!way().epsilon) return place.missing(["Too many pairs to show one by one. See leak by distance.", ""]);
  const row = leaks().attackers.indexOf(state.attacker),
    range = scale();
  const epsilon = way().epsilon[row],
    guess = way().guess[row],
    hops = leaks().distance[row],
    count = run().n;
  const size = count <= 20 ? (narrow() ? 22 : 27) : count <= 60 ? 19 : count <= 150 ? 12 : 8;
  const hover = epsilon.map((value, victim) =>
    victim === state.attacker
      ? `node ${safe(node(victim))}: the curious one`
      : `node ${safe(node(victim))}<br>${hops[victim] == null ? "no path" : `${hops[victim]} hops away`}<br>epsilon ${said(value)}` +
        (guess[victim] == null ? "" : `<br>guesses right at most ${guess[victim]} %`) +
        `<br>${state.way}`,
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
    ...(seen.length ? [`epsilon up to ${said(Math.max(...seen))}`] : []),
    ...(most ? [`${most} nodes have no protection at all`] : []),
  ];
  const few = leaks().attackers.slice(0, 12).join(", ") + (leaks().attackers.length > 12 ? ", ..." : "");
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
        "the curious node",
      ),
    ]),
    caption: [
      "",
      `Node ${node(state.attacker)} is curious.`,
      ` Each other node has the colour of what node ${node(state.attacker)} can learn about it from ` +
        `all messages it receives, at delta ${small(run().delta)}: ${summed.join("; ") || "no figure"}. ` +
        `${wayWords()} ${graph.note || ""}${graph.directed ? " Messages go one way along an edge." : ""} `,
      leaks().attackers.length === count
        ? "Click another node to make it the curious one."
        : leaks().attackers.length > 1
          ? `Click a node to make it the curious one; accounted for are ${few}.`
          : "",
    ],
    numbers: table(
      ["node", "hops", "epsilon", "best guess right at most", "kind"],
      nodes
        .filter((i) => i !== state.attacker)
        .map((i) => [
          node(i),
          hops[i] == null ? "no path" : String(hops[i]),
          said(epsilon[i]),
          guess[i] == null ? "" : `${guess[i]} %`,
          way().kind[row][i] == null ? "" : way().kinds[way().kind[row][i]],
        ]),
    ),
    click: (point) => point.customdata != null && choose(point.customdata),
  });
}
