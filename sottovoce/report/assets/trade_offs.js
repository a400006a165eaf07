// Accuracy against privacy, and against the attack.

const logTicks = (low, high) => {
  const found = [];
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.log10(high) + 1; power++)
    found.push(...[1, 2, 5].map((part) => part * 10 ** power));
  const within = found.filter((value) => value >= low / 1.7 && value <= high * 1.7);
  return within.length > 8 ? within.filter((value) => /^1/.test(value.toExponential())) : within;
};
function tradeOffTable() {
  const ofMembers = data.runs.every((one) => one.member);
  const columns = [
    ["run", (one) => one.label],
    ["algorithm", (one) => one.algorithm],
    [`${data.metric}, ${ofMembers ? "own model" : "average model"}`, (one) => share(one.average_model)],
    !ofMembers && ["nodes", (one) => share(one.mean_node)],
    ["ε", (one) => epsilonText(one.epsilon)],
    ["kind, adversary", (one) => (one.kind ? `${one.kind}, ${one.adversary}` : "")],
    ["membership inference AUC", ({ attack }) => (attack ? `${attack.value.toFixed(3)} (${attack.attack})` : "not attacked")],
    ["sent", (one) => bytes(one.bytes)],
  ];
  return table(data.runs, columns, { chosen: state.run });
}
const towards = () => (data.less_is_better ? "down" : "up");
const finalNote = `Test ${data.metric}: ${data.final_rounds}.`;
// Series that have a final figure, as dots.
const dotsOf = (members, x, hover) => ({
  kind: "dots",
  dots: members.filter((one) => one.final != null).map((one) => ({
    x: x(one), y: one.final, symbol: one.symbol, colour: one.colour, size: one === chosenSeries() ? 16 : 12,
    hover: `${one.name}\n${data.metric} ${share(one.final)}\n${hover(one)}`,
  })),
});

function drawPrivacy() {
  const place = figure("privacy", `${metricName} against privacy`), [one, ...others] = data.series;
  if (!others.length)
    return place.sentence(
      `One run is one point: ${data.metric} ${share(one.final)} at ${epsilonIs(one.epsilon)}. Give several runs to sotto compare to see a curve.`,
      tradeOffTable(),
    );
  const values = finite(data.series.map((one) => one.epsilon)).filter((value) => value > 0).sort((a, b) => a - b);
  const low = values[0] ?? 1, high = values.at(-1) ?? 1, [left, right] = [low, high].map(Math.log10);
  const endless = right + Math.max(0.25, 0.18 * Math.log10(high / low)), none = 2 * endless - right;
  const x = ({ epsilon }) => (epsilon == null ? none : isInf(epsilon) ? endless : Math.log10(Math.max(epsilon, low)));
  const ends = [
    ...(data.series.some((one) => isInf(one.epsilon)) ? [[endless, "infinite"]] : []),
    ...(data.series.some((one) => one.epsilon == null) ? [[none, "none proven"]] : []),
  ];
  const each = [...new Set(values)], few = each.filter((value, i) => !i || value > 1.15 * each[i - 1]);
  const ticks = each.length < 6 ? few : logTicks(low, high).filter((value) => value <= high * 1.3);
  const most = ends.at(-1)?.[0] ?? right, room = 0.12 * (most - left || 1);
  const about = new Set(data.runs.filter((one) => one.epsilon != null).map((one) => `${one.adjacency}, ${one.change}`));
  // Runs that differ only in how much noise they add lie on one line.
  const marks = curves.flatMap((curve) => {
    const own = data.series.filter((one) => one.curve === curve).sort((a, b) => x(a) - x(b));
    return [
      { kind: "line", points: own.map((one) => [x(one), one.final]), colour: own[0].colour, width: 1.5 },
      dotsOf(own, x, (one) => `${epsilonIs(one.epsilon)}\n${headlines([data.runs[one.runs[0]]])}`),
    ];
  });
  place.draw({
    marks,
    x: {
      title: "ε, proven", range: [left - room, most + room],
      ticks: [...ticks.map((value) => [Math.log10(value), String(value)]), ...ends],
    },
    y: metricAxis(),
    legend: dotKeys(data.series),
    caption: `Left is more private, ${towards()} is better; lines join runs that differ only in how much noise they add.`,
    notes: [
      finalNote,
      `ε is each run's headline (${headlines(data.runs)}).`,
      about.size > 1 &&
        "Not all ε here are about the same change of data (see the table of guarantees): compare like with like.",
    ],
    numbers: tradeOffTable(),
  });
}

function drawAttackSuccess() {
  const place = figure("success", `${metricName} against the attack`), members = data.series.filter((one) => one.attack);
  at("success").hidden = !members.length; // the section about attacks says why there is none
  if (!members.length) return;
  if (members.length === 1)
    return place.sentence(
      `The strongest attack that was tried on ${members[0].name} has a membership inference AUC of ${interval(members[0].attack)}; 0.5 is random guessing.`,
      tradeOffTable(),
    );
  const span = ({ final, attack, colour }) => ({ at: final, low: attack.low, high: attack.high, colour });
  const words = ({ attack }) => `AUC ${interval(attack)}, ${attack.attack}`;
  place.draw({
    marks: [
      { kind: "guide", x: 0.5, label: "random guessing" },
      { kind: "spans", along: "x", wide: 1.6, spans: members.filter((one) => one.final != null).map(span) },
      dotsOf(members, (one) => one.attack.value, words),
    ],
    x: { title: "membership inference AUC", limits: [0, 1] },
    y: metricAxis(),
    legend: dotKeys(members),
    caption: `At the dotted line the attack is no better than random guessing; ${towards()} is better for training, and bars are confidence intervals.`,
    notes: [finalNote, "The strongest attack that was tried on each run is shown; a stronger one may exist."],
    numbers: tradeOffTable(),
  });
}

register({ id: "privacy", section: "trade", row: "trade-offs", draw: drawPrivacy });
register({ id: "success", section: "trade", row: "trade-offs", draw: drawAttackSuccess });
