// What was learned over rounds and bytes, and epsilon over rounds.

// of a federation: whose model a page shows; null where all nodes were simulated
const memberOf = (series) => data.runs[series.runs[0]].member;
const modelName = (series) => (memberOf(series) ? `model of ${memberOf(series)}` : "average model");
const metricName = { rmse: "Error", log_loss: "Log loss" }[data.metric] ?? "Accuracy";

// Shares stay between 0 and 1, whatever room an axis leaves.
const metricAxis = (title = `test ${data.metric}`) => ({ title, limits: [0, data.less_is_better ? Infinity : 1] });
const lineWidth = (one) => (one === chosenSeries() ? 3.2 : 1.8);

// Little data in kilobytes: an axis of 0.001 megabytes says nothing.
const sentUnit = Math.max(...data.series.flatMap((one) => one.megabytes)) < 0.5 ? ["kilobytes", 1000] : ["megabytes", 1];
data.series.forEach((one) => (one.sent = one.megabytes.map((value) => value * sentUnit[1])));

function learningTable(own, xs, xTitle) {
  const columns = data.series.flatMap((one) => [
    [`${one.name}, ${modelName(one)}`, (_, i) => share(one.average[i])],
    !memberOf(one) && [`${one.name}, nodes`, (_, i) => share(one.mean[i])],
    [`${one.name}, ε spent`, (_, i) => epsilonText(one.spent[i])],
  ]);
  return table(own[xs], [[xTitle, (value) => value.toPrecision(4).replace(/\.?0+$/, "")], ...columns]);
}

function drawLearning(id, title, xs, xTitle, words) {
  const own = chosenSeries(), member = memberOf(own), place = figure(id, title), numbers = learningTable(own, xs, xTitle);
  if (own[xs].length < 2)
    return place.sentence(`Measured once, at the end: ${data.metric} ${share(own.final)} of ${own.name}.`, numbers);
  const hover = (one) => (value, i) =>
    `${one.name}\n${Number(value.toPrecision(4))} ${xTitle}\n${modelName(one)}: ${share(one.average[i])}`;
  const lines = data.series.map((one) => ({
    kind: "line", points: one[xs].map((value, i) => [value, one.average[i]]), colour: one.colour, dash: one.dash,
    width: lineWidth(one), hover: one[xs].map(hover(one)),
  }));
  const [before, whose, after] = member
    ? ["the model of ", member, ` on its own held-out rows (${better}); other members' are not known here.`]
    : [
        `lines are the average of all nodes' models on rows nobody trained on (${better}), the band, of `,
        own.name, ", is from the worst node to the best.",
      ];
  place.draw({
    marks: [{ kind: "band", x: own[xs], low: own.min, high: own.max, colour: own.colour }, ...lines],
    x: { title: xTitle },
    y: metricAxis(member ? `${data.metric}, own held-out rows` : undefined),
    legend: data.series.map(lineKey),
    caption: [`${words}: ${before}`, whose, after],
    numbers,
  });
}

function drawEpsilonOverRounds() {
  const place = figure("epsilon-over-rounds", "ε over rounds");
  const all = data.series.map((one) => [one, data.runs[one.runs[0]]]), names = (pairs) => pairs.map(([one]) => one.name).join(", ");
  const known = all.filter(([, run]) => run.over_rounds.length), unknown = all.filter((pair) => !known.includes(pair));
  if (!known.length) return place.missing(run().missing.over_rounds);
  const drawn = known.filter(([, run]) => run.over_rounds.some((stage) => !isInf(stage.epsilon)));
  const endless = known.filter((pair) => !drawn.includes(pair));
  const stages = known.flatMap(([one, run]) => run.over_rounds.map((stage) => ({ ...run, ...stage, name: one.name })));
  const numbers = table(stages, [
    ["run", (stage) => stage.name],
    ["rounds", (stage) => String(stage.round)],
    ["ε", (stage) => epsilonText(stage.epsilon)],
    ["kind", (stage) => stage.kind],
    ["adversary", (stage) => stage.adversary],
  ]);
  if (!drawn.length)
    return place.missing([
      `ε is infinite from the first round on: ${names(endless)}. ` +
        "Without noise, or where it does not cover everything that is sent, nothing is hidden at any time.",
      "",
    ]);
  if (drawn.every(([, run]) => run.over_rounds.length < 2)) {
    const after = ([one, { over_rounds: [stage] }]) => `${one.name}: ${epsilonIs(stage.epsilon)} after ${stage.round} rounds.`;
    return place.sentence(drawn.map(after).join(" "), numbers);
  }
  const points = (run) => run.over_rounds.map((stage) => (isInf(stage.epsilon) ? null : [stage.round, stage.epsilon]));
  const dot = ({ name, symbol, colour }, { kind, adversary }) => ([x, y]) => ({
    x, y, size: 8, symbol, colour, hover: `${name}\nafter ${x} rounds: ε = ${y}\n${kind}, ${adversary}`,
  });
  place.draw({
    marks: drawn.flatMap(([one, run]) => [
      // between two of the rounds asked about, the later one's figure holds; a straight line would lie below the truth
      { kind: "line", steps: true, points: points(run), colour: one.colour, dash: one.dash, width: lineWidth(one) },
      { kind: "dots", dots: points(run).filter(Boolean).map(dot(one, run)) },
    ]),
    x: { title: "rounds" },
    y: { title: "ε, proven", zero: true },
    legend: drawn.map(([one]) => lineKey(one)),
    caption: "What would be guaranteed if training had ended earlier: every round that the adversary observes costs privacy.",
    notes: [
      "Points are computed; between them the line is at the later one's figure, which holds there too.",
      `By each run's own headline: ${headlines(drawn.map(([, run]) => run))}; δ = ${small(run().delta)}.`,
      endless.length && `Infinite from the first round on, so not drawn: ${names(endless)}.`,
      unknown.length && `Not known over rounds, or nothing proven: ${names(unknown)}.`,
    ],
    numbers,
  });
}

const inWords = ([heads, ...rows]) => table(rows, heads.map((head, i) => [head, (row) => row[i]]));
const ownLine = (colour, dash, text) => key(stroke(colour, 3, DASHES[dash]), text);

// Who acts above a threshold says how many false alerts a missed case is worth: what that comes to, of all records.
function drawDecisions() {
  const { decisions, threshold, decision_table: words } = run().held_out;
  at("decisions").hidden = !decisions;
  if (!decisions) return;
  const sure = decisions.filter((one) => one.intervals.net_benefit), ends = (i) => sure.map((one) => one.intervals.net_benefit[i]);
  const most = Math.max(...decisions.flatMap((one) => [one.net_benefit, one.treat_all]), ...ends(1), 0.01), floor = -most / 4;
  const shown = (value) => (value < floor ? null : value), colour = chosenSeries().colour, grey = css("--soft");
  const curve = (name) => decisions.map((one) => [one.threshold, shown(one[name])]);
  figure("decisions", "Is it of use? Net benefit over thresholds").draw({
    marks: [
      { kind: "band", x: sure.map((one) => one.threshold), low: ends(0).map((end) => Math.max(end, floor)), high: ends(1), colour },
      { kind: "line", points: decisions.map((one) => [one.threshold, 0]), colour: grey, dash: "dot" },
      { kind: "line", points: curve("net_benefit"), colour, width: 3, hover: decisions.map((one) =>
        `above ${one.threshold}: net benefit ${one.net_benefit.toFixed(3)}`) },
      { kind: "line", points: curve("treat_all"), colour: grey, dash: "dash" },
      { kind: "guide", x: threshold, label: `decided at ${threshold}` },
    ],
    x: { title: "threshold on the probability", range: [0, 1] },
    y: { title: "net benefit", range: [floor, most] },
    legend: [ownLine(colour, "solid", modelName(chosenSeries())), ownLine(grey, "dash", "alerting all"), ownLine(grey, "dot", "alerting nobody")],
    caption: "The model is of use where its line is above both others, and surely where the band (95 % intervals) is, too.",
    notes: ["Net benefit: the share rightly alerted, less that of false alerts times t / (1 - t)."],
    numbers: inWords(words),
  });
}

function drawCalibration() {
  const { calibration: bins, calibration_table: words } = run().held_out;
  at("calibration").hidden = !bins;
  if (!bins) return;
  const colour = chosenSeries().colour, ends = bins.flatMap((one) => [one.predicted, one.found, ...(one.interval ?? [])]);
  const [low, high] = [Math.min(...ends), Math.max(...ends)], sure = bins.filter((one) => one.interval);
  figure("calibration", "Does it happen as often as it is predicted?").draw({
    marks: [
      { kind: "line", points: [[low, low], [high, high]], colour: css("--soft"), dash: "dash" },
      { kind: "spans", along: "y", colour, spans: sure.map(({ predicted, interval: [low, high] }) => ({ at: predicted, low, high })) },
      { kind: "dots", dots: bins.map((one) => ({ x: one.predicted, y: one.found, size: 9, colour,
        hover: `${one.rows} records\npredicted ${one.predicted.toFixed(3)}, found ${one.found.toFixed(3)}` })) },
    ],
    x: { title: bins[0].until ? "predicted by the end of a period, mean" : "predicted, mean of a bin" },
    y: { title: "found" },
    caption: "On the dashed line, predictions are right on average. Bars are 95 % intervals.",
    numbers: inWords(words),
  });
}

const beside = { section: "learning", row: "rounds-and-bytes" };
const sentBy = () => `${sentUnit[0]} sent by ${memberOf(chosenSeries()) ?? "all nodes"}`;
register({ ...beside, id: "rounds", draw: () =>
  drawLearning("rounds", `${metricName} over rounds`, "round", "rounds", "How good the models were as training went on") });
register({ ...beside, id: "bytes", draw: () =>
  drawLearning("bytes", `${metricName} over data sent`, "sent", sentBy(), "How good they were for what was sent") });
register({ section: "learning", row: "use", id: "decisions", draw: drawDecisions });
register({ section: "learning", row: "use", id: "calibration", draw: drawCalibration });
register({ id: "epsilon-over-rounds", section: "learning", draw: drawEpsilonOverRounds });
