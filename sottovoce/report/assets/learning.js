// What was learned over rounds and bytes, and epsilon over rounds.

// of a federation: whose model a page shows; null where all nodes were simulated
const memberOf = (series) => data.runs[series.runs[0]].member;
const modelName = (series) => (memberOf(series) ? `model of ${memberOf(series)}` : "average model");

function drawLearning(id, title, xs, xTitle, words) {
  const own = chosenSeries(),
    member = memberOf(own),
    traces = [];
  traces.push({
    type: "scatter",
    mode: "lines",
    x: [...own[xs], ...[...own[xs]].reverse()],
    y: [...own.max, ...[...own.min].reverse()],
    fill: "toself",
    fillcolor: own.colour + "26",
    line: { width: 0 },
    hoverinfo: "skip",
  });
  data.series.forEach((one) => {
    const wide = one === own ? 3.2 : 1.8;
    traces.push({
      type: "scatter",
      mode: "lines",
      x: one[xs],
      y: one.average,
      line: { color: one.colour, width: wide, dash: one.dash },
      hovertemplate: `${safe(one.name)}<br>%{x:.4g}: %{y:.4f}<extra>${safe(modelName(one))}</extra>`,
    });
  });
  figure(id, title).draw({
    traces,
    layout: { xaxis: { title: xTitle }, yaxis: { title: member ? `${data.metric}, own held-out rows` : `test ${data.metric}` } },
    legend: data.series.map(lineKey),
    caption: member
      ? [`${words} The model of `, member, `, on its own held-out rows (${better}). Other members' are not known here.`]
      : [
          `${words} Lines: the average of all nodes' models on data nobody trained on (${better}). The band, of `,
          own.name,
          ", runs from the worst node to the best.",
        ],
    numbers: table(
      [
        xTitle,
        ...data.series.flatMap((one) => [
          `${one.name}, ${modelName(one)}`,
          ...(memberOf(one) ? [] : [`${one.name}, nodes`]),
          `${one.name}, epsilon spent`,
        ]),
      ],
      own[xs].map((_, i) => [
        own[xs][i].toPrecision(4).replace(/\.?0+$/, ""),
        ...data.series.flatMap((one) => [
          share(one.average[i]),
          ...(memberOf(one) ? [] : [share(one.mean[i])]),
          epsilonText(one.spent[i]),
        ]),
      ]),
    ),
  });
}

function drawEpsilonOverRounds() {
  const place = figure("epsilon-over-rounds", "Epsilon over rounds");
  const known = data.series.map((one) => [one, data.runs[one.runs[0]]]).filter(([, first]) => first.over_rounds.length);
  if (!known.length) return place.missing(run().missing.over_rounds);
  const drawn = known.filter(([, first]) => first.over_rounds.some((stage) => !isInf(stage.epsilon)));
  const endless = known.filter((pair) => !drawn.includes(pair)).map(([one]) => one.name);
  const unknown = data.series.filter((one) => !known.some(([other]) => other === one)).map((one) => one.name);
  const notes =
    (endless.length ? ` Infinite from the first round on, so not drawn: ${endless.join(", ")}.` : "") +
    (unknown.length ? ` Not known over rounds, or nothing proven: ${unknown.join(", ")}.` : "");
  if (!drawn.length)
    return place.missing([
      `Epsilon is infinite from the first round on: ${endless.join(", ")}. ` +
        "Without noise, or where it does not cover everything that is sent, nothing is hidden at any time.",
      "",
    ]);
  place.draw({
    traces: drawn.map(([one, first]) => ({
      type: "scatter",
      mode: "lines+markers",
      x: first.over_rounds.map((stage) => stage.round),
      y: first.over_rounds.map((stage) => (isInf(stage.epsilon) ? null : stage.epsilon)),
      // between two of the rounds asked about, the later one's figure holds; a straight line would lie below the truth
      line: { shape: "vh", color: one.colour, dash: one.dash, width: one === chosenSeries() ? 3.2 : 1.8 },
      marker: { symbol: one.symbol, size: 8, color: one.colour },
      hovertemplate: `${safe(one.name)}<br>after %{x} rounds: epsilon %{y}<extra>${first.kind}, ${first.adversary}</extra>`,
    })),
    layout: { xaxis: { title: "rounds" }, yaxis: { title: "epsilon, proven", rangemode: "tozero" } },
    legend: drawn.map(([one]) => lineKey(one)),
    caption: [
      `The guarantee if training had ended earlier: every round that the adversary observes costs privacy. ` +
        `Points are computed; between them the line is at the later one's figure, which holds there too. ` +
        `By each run's own headline: ${headlines(drawn.map((pair) => pair[1]))}; delta ${small(run().delta)}.${notes}`,
    ],
    numbers: table(
      ["run", "rounds", "epsilon", "kind", "adversary"],
      known.flatMap(([one, first]) =>
        first.over_rounds.map((stage) => [
          one.name,
          String(stage.round),
          epsilonText(stage.epsilon),
          first.kind,
          first.adversary,
        ]),
      ),
    ),
  });
}

const metricName = data.metric === "rmse" ? "Error" : "Accuracy";
register({
  id: "rounds",
  section: "learning",
  row: "rounds-and-bytes",
  draw: () =>
    drawLearning(
      "rounds",
      `${metricName} over rounds`,
      "round",
      "rounds",
      "How good the models were as training went on.",
    ),
});
register({
  id: "bytes",
  section: "learning",
  row: "rounds-and-bytes",
  draw: () =>
    drawLearning(
      "bytes",
      `${metricName} over data sent`,
      "megabytes",
      memberOf(chosenSeries()) ? `megabytes sent by ${memberOf(chosenSeries())}` : "megabytes sent by all nodes",
      "How good they were for what was sent.",
    ),
});
register({ id: "epsilon-over-rounds", section: "learning", draw: drawEpsilonOverRounds });
