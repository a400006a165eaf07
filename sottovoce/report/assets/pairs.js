// Who can learn what from whom: leakage by distance, how many pairs have which epsilon, and all pairs.

function drawDistance() {
  const place = figure("distance", "Leak by distance");
  if (!leakage() || !figures())
    return place.missing(run().missing.pairs || ["No kind of figure applies to single nodes here.", ""]);
  const by = figures().by_distance,
    row = leakage().attackers.indexOf(state.attacker);
  const tops = finite(by.flatMap((one) => [one.least, one.median, one.most]));
  const top = tops.length ? Math.max(...tops) : 1,
    lift = (value) => (isInf(value) ? top * 1.15 || 1 : value);
  const hopsOf = (one) => one.distance ?? (by.length > 1 ? by[by.length - 2].distance + 1 : 1);
  const text = (one) => (one.distance == null ? "unknown" : String(one.distance));
  const traces = [
    {
      type: "scatter",
      mode: "markers",
      x: by.map(hopsOf),
      y: by.map((one) => lift(one.median)),
      hoverinfo: "text",
      hovertext: by.map(
        (one) =>
          `${text(one)} hops, ${one.pairs} pairs of any two nodes<br>epsilon ${epsilonText(one.least)} to ${epsilonText(one.most)}<br>` +
          `half of them at most ${epsilonText(one.median)}`,
      ),
      marker: { symbol: "line-ew", size: 26, line: { width: 3, color: css("--soft") } },
      error_y: {
        type: "data",
        symmetric: false,
        thickness: 9,
        width: 0,
        color: css("--none"),
        array: by.map((one) => lift(one.most) - lift(one.median)),
        arrayminus: by.map((one) => lift(one.median) - lift(one.least)),
      },
    },
  ];
  if (figures().epsilon) {
    const own = figures().epsilon[row],
      hops = leakage().distance[row],
      victims = own.map((_, i) => i).filter((i) => own[i] != null);
    traces.push({
      type: "scatter",
      mode: "markers",
      hoverinfo: "text",
      x: victims.map((i) => (hops[i] ?? hopsOf({})) + (((i * 37) % 19) / 19 - 0.5) * 0.34),
      y: victims.map((i) => lift(own[i])),
      hovertext: victims.map((i) => `node ${safe(node(i))}<br>epsilon ${epsilonText(own[i])}<br>${state.figureKind}`),
      marker: {
        size: 9,
        color: victims.map((i) => (isInf(own[i]) ? css("--warn") : css("--accent"))),
        line: { width: 1, color: css("--card") },
      },
    });
  }
  const endless = by.some((one) => isInf(one.most));
  place.draw({
    traces,
    layout: {
      xaxis: {
        title: "hops between the two nodes",
        tickvals: by.map(hopsOf),
        ticktext: by.map(text),
        range: [hopsOf(by[0]) - 0.5, hopsOf(by[by.length - 1]) + 0.5],
        showgrid: false,
      },
      yaxis: {
        title: `epsilon (${state.figureKind})`,
        range: [0, top * (endless ? 1.25 : 1.08)],
        showticklabels: tops.length > 0,
        ticks: tops.length ? "outside" : "",
      },
      annotations: endless
        ? [
            {
              text: "infinite",
              x: 0,
              xref: "paper",
              y: lift("inf"),
              xanchor: "left",
              yanchor: "bottom",
              showarrow: false,
              font: { color: css("--warn") },
            },
          ]
        : [],
      shapes: endless
        ? [
            {
              type: "line",
              xref: "paper",
              x0: 0,
              x1: 1,
              y0: lift("inf"),
              y1: lift("inf"),
              line: { color: css("--warn"), width: 1, dash: "dot" },
            },
          ]
        : [],
    },
    legend: [
      ...(figures().epsilon
        ? [
            key(
              svg(`<circle cx="7" cy="7" r="5" fill="${css("--accent")}"/>`, 14),
              `learned by node ${node(state.attacker)}`,
            ),
          ]
        : []),
      key(
        svg(
          `<rect x="9" y="0" width="8" height="14" fill="${css("--none")}"/><rect x="1" y="6" width="24" height="3" fill="${css("--soft")}"/>`,
        ),
        "all pairs of nodes: from least to most, and the middle one",
      ),
    ],
    caption: [
      "What one node can learn about another, by how many hops a message needs between them. " +
        `Where points fall to the right, distance protects. ${figureKindSentence()}`,
    ],
    numbers: table(
      ["hops", "pairs", "least epsilon", "middle", "largest"],
      by.map((one) => [text(one), String(one.pairs), epsilonText(one.least), epsilonText(one.median), epsilonText(one.most)]),
    ),
  });
}

function drawHistogram() {
  const shown = figures() && figures().histogram;
  at("histogram").hidden = !shown;
  if (!shown) return;
  const { edges, counts, infinite } = shown,
    middle = counts.map((_, i) => (edges[i] + edges[i + 1]) / 2);
  figure("histogram", "How many pairs have which epsilon").draw({
    traces: [
      {
        type: "bar",
        x: middle,
        y: counts,
        width: counts.map((_, i) => (edges[i + 1] - edges[i]) * 0.94),
        marker: { color: css("--accent") },
        hovertemplate: "%{y} pairs<extra></extra>",
      },
    ],
    layout: { xaxis: { title: `epsilon (${state.figureKind})` }, yaxis: { title: "pairs of nodes" } },
    caption: [
      "There are too many pairs to show one by one. " +
        `${infinite ? `${infinite} pairs have an infinite epsilon and are not drawn. ` : ""}${figureKindSentence()}`,
    ],
    numbers: table(
      ["epsilon from", "to", "pairs"],
      counts.map((count, i) => [edges[i].toPrecision(4), edges[i + 1].toPrecision(4), String(count)]),
    ),
  });
}

function drawPairs() {
  const place = figure("pairs", "All pairs: who learns how much about whom", "tall");
  if (!leakage() || !figures())
    return place.missing(run().missing.pairs || ["No kind of figure applies to single nodes here.", ""]);
  if (run().n > 150 || !figures().epsilon)
    return place.missing([`${run().n} nodes are more than the 150 that a map can show. See leak by distance.`, ""]);
  const { attackers } = leakage(),
    { epsilon } = figures(),
    range = scale(),
    victims = [...Array(run().n).keys()];
  const hover = epsilon.map((row, a) =>
    row.map((value, v) =>
      value == null
        ? ""
        : `node ${safe(node(attackers[a]))} about node ${safe(node(v))}<br>epsilon ${epsilonText(value)}<br>${state.figureKind}`,
    ),
  );
  const cells = (pick, colours, low, high) => ({
    type: "heatmap",
    x: victims,
    y: attackers.map((_, i) => i),
    z: epsilon.map((row) => row.map(pick)),
    text: hover,
    hoverinfo: "text",
    xgap: run().n > 60 ? 0 : 1,
    ygap: run().n > 60 ? 0 : 1,
    colorscale: colours,
    zmin: low,
    zmax: high,
    showscale: false,
    hoverongaps: false,
    customdata: epsilon.map((_, a) => victims.map(() => attackers[a])),
  });
  const warn = css("--warn"),
    chosen = attackers.indexOf(state.attacker),
    step = Math.ceil(attackers.length / 20),
    every = Math.ceil(run().n / (narrow() ? 10 : 30));
  place.draw({
    traces: [
      cells((value) => (typeof value === "number" ? range.to(value) : null), RAMP, range.low, range.high),
      cells(
        (value) => (isInf(value) ? 1 : null),
        [
          [0, warn],
          [1, warn],
        ],
        0,
        1,
      ),
    ],
    layout: {
      xaxis: {
        title: "about this node",
        tickvals: victims.filter((i) => i % every === 0),
        ticktext: victims.filter((i) => i % every === 0).map(node),
        showgrid: false,
        range: [-0.5, run().n - 0.5],
      },
      yaxis: {
        title: "adversary",
        tickvals: attackers.map((_, i) => i).filter((i) => i % step === 0),
        ticktext: attackers.filter((_, i) => i % step === 0).map(node),
        showgrid: false,
        range: [attackers.length - 0.5, -0.5],
      },
      shapes:
        chosen < 0
          ? []
          : [
              {
                type: "rect",
                x0: -0.5,
                x1: run().n - 0.5,
                y0: chosen - 0.5,
                y1: chosen + 0.5,
                line: { color: css("--ink"), width: 2.5 },
              },
            ],
    },
    legend: colourLegend(range),
    caption: [
      "Each row is one node as the adversary, each column a node that it learns about; the brighter, the more it can learn. The framed row is ",
      `node ${node(state.attacker)}`,
      `; click a row to choose another. ${figureKindSentence()}`,
    ],
    height: attackers.length < 10 ? `${110 + 32 * attackers.length}px` : "",
    numbers: table(
      ["adversary", ...victims.map((i) => `about ${node(i)}`)],
      epsilon.map((row, a) => [
        node(attackers[a]),
        ...row.map((value, v) => (v === attackers[a] ? "" : value == null ? "none" : epsilonText(value))),
      ]),
      { chosen },
    ),
    click: (point) => choose(point.customdata),
  });
}

register({ id: "distance", section: "who", row: "graph-and-distance", pairs: true, draw: drawDistance });
register({ id: "histogram", section: "who", pairs: true, draw: drawHistogram });
register({ id: "pairs", section: "who", pairs: true, draw: drawPairs });
