// What was learned over rounds and bytes, and epsilon over rounds.

// of a federation: whose model a page shows; null where all nodes were simulated
const memberOf = (series) => data.runs[series.runs[0]].member;
const modelName = (series) => (memberOf(series) ? `model of ${memberOf(series)}` : "average model");

// Shares stay between 0 and 1, whatever room an axis leaves.
const metricAxis = (title) => ({ title, limits: data.less_is_better ? [0, Infinity] : [0, 1] });

// Little data in kilobytes: an axis of 0.001 megabytes says nothing.
const sentUnit = Math.max(...data.series.flatMap((one) => one.megabytes)) < 0.5 ? ["kilobytes", 1000] : ["megabytes", 1];
data.series.forEach((one) => (one.sent = one.megabytes.map((value) => value * sentUnit[1])));

function learningTable(own, xs, xTitle) {
  return table(
    [
      xTitle,
      ...data.series.flatMap((one) => [
        `${one.name}, ${modelName(one)}`,
        ...(memberOf(one) ? [] : [`${one.name}, nodes`]),
        `${one.name}, ε spent`,
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
  );
}

function drawLearning(id, title, xs, xTitle, words) {
  const own = chosenSeries(),
    member = memberOf(own),
    place = figure(id, title),
    numbers = learningTable(own, xs, xTitle);
  if (own[xs].length < 2)
    return place.sentence(`Measured once, at the end: ${data.metric} ${share(own.final)} of ${own.name}.`, numbers);
  place.draw({
    marks: [
      { kind: "band", x: own[xs], low: own.min, high: own.max, colour: own.colour },
      ...data.series.map((one) => ({
        kind: "line",
        points: one[xs].map((value, i) => [value, one.average[i]]),
        colour: one.colour,
        width: one === own ? 3.2 : 1.8,
        dash: one.dash,
        hover: one[xs].map(
          (value, i) =>
            `${one.name}\n${Number(value.toPrecision(4))} ${xTitle}\n${modelName(one)}: ${share(one.average[i])}`,
        ),
      })),
    ],
    x: { title: xTitle },
    y: metricAxis(member ? `${data.metric}, own held-out rows` : `test ${data.metric}`),
    legend: data.series.map(lineKey),
    caption: member
      ? [`${words}: the model of `, member, ` on its own held-out rows (${better}); other members' are not known here.`]
      : [
          `${words}: lines are the average of all nodes' models on rows nobody trained on (${better}), the band, of `,
          own.name,
          ", is from the worst node to the best.",
        ],
    numbers,
  });
}

function drawEpsilonOverRounds() {
  const place = figure("epsilon-over-rounds", "ε over rounds");
  const known = data.series.map((one) => [one, data.runs[one.runs[0]]]).filter(([, first]) => first.over_rounds.length);
  if (!known.length) return place.missing(run().missing.over_rounds);
  const drawn = known.filter(([, first]) => first.over_rounds.some((stage) => !isInf(stage.epsilon)));
  const endless = known.filter((pair) => !drawn.includes(pair)).map(([one]) => one.name);
  const unknown = data.series.filter((one) => !known.some(([other]) => other === one)).map((one) => one.name);
  const numbers = table(
    ["run", "rounds", "ε", "kind", "adversary"],
    known.flatMap(([one, first]) =>
      first.over_rounds.map((stage) => [
        one.name,
        String(stage.round),
        epsilonText(stage.epsilon),
        first.kind,
        first.adversary,
      ]),
    ),
  );
  if (!drawn.length)
    return place.missing([
      `ε is infinite from the first round on: ${endless.join(", ")}. ` +
        "Without noise, or where it does not cover everything that is sent, nothing is hidden at any time.",
      "",
    ]);
  if (drawn.every(([, first]) => first.over_rounds.length < 2))
    return place.sentence(
      drawn
        .map(
          ([one, first]) =>
            `${one.name}: ${epsilonIs(first.over_rounds[0].epsilon)} after ${first.over_rounds[0].round} rounds.`,
        )
        .join(" "),
      numbers,
    );
  const points = (first) =>
    first.over_rounds.map((stage) => (isInf(stage.epsilon) ? null : [stage.round, stage.epsilon]));
  place.draw({
    marks: drawn.flatMap(([one, first]) => [
      // between two of the rounds asked about, the later one's figure holds; a straight line would lie below the truth
      {
        kind: "line",
        steps: true,
        points: points(first),
        colour: one.colour,
        dash: one.dash,
        width: one === chosenSeries() ? 3.2 : 1.8,
      },
      {
        kind: "dots",
        dots: points(first)
          .filter(Boolean)
          .map(([x, y]) => ({
            x,
            y,
            size: 8,
            symbol: one.symbol,
            colour: one.colour,
            hover: `${one.name}\nafter ${x} rounds: ε = ${y}\n${first.kind}, ${first.adversary}`,
          })),
      },
    ]),
    x: { title: "rounds" },
    y: { title: "ε, proven", zero: true },
    legend: drawn.map(([one]) => lineKey(one)),
    caption: [
      "What would be guaranteed if training had ended earlier: every round that the adversary observes costs privacy.",
    ],
    notes: [
      "Points are computed; between them the line is at the later one's figure, which holds there too.",
      `By each run's own headline: ${headlines(drawn.map((pair) => pair[1]))}; δ = ${small(run().delta)}.`,
      endless.length && `Infinite from the first round on, so not drawn: ${endless.join(", ")}.`,
      unknown.length && `Not known over rounds, or nothing proven: ${unknown.join(", ")}.`,
    ],
    numbers,
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
      "How good the models were as training went on",
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
      "sent",
      `${sentUnit[0]} sent by ${memberOf(chosenSeries()) ?? "all nodes"}`,
      "How good they were for what was sent",
    ),
});
register({ id: "epsilon-over-rounds", section: "learning", draw: drawEpsilonOverRounds });
