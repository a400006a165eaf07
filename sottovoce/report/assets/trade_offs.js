// Accuracy against privacy, and against the attack.

const logTicks = (low, high) => {
  const found = [];
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.log10(high) + 1; power++)
    [1, 2, 5].forEach((part) => found.push(part * 10 ** power));
  const within = found.filter((value) => value >= low / 1.7 && value <= high * 1.7);
  return within.length > 8 ? within.filter((value) => /^1/.test(value.toExponential())) : within;
};
const utility = (one) => one.final;
const ofMembers = data.runs.every((one) => one.member);
const tradeOffTable = () =>
  table(
    [
      "run",
      "algorithm",
      `${data.metric}, ${ofMembers ? "own model" : "average model"}`,
      ...(ofMembers ? [] : ["nodes"]),
      "ε",
      "kind, adversary",
      "membership inference AUC",
      "sent",
    ],
    data.runs.map((one) => [
      one.label,
      one.algorithm,
      share(one.average_model),
      ...(ofMembers ? [] : [share(one.mean_node)]),
      epsilonText(one.epsilon),
      one.kind ? `${one.kind}, ${one.adversary}` : "",
      one.attack ? `${one.attack.value.toFixed(3)} (${one.attack.attack})` : "not attacked",
      bytes(one.bytes),
    ]),
    { chosen: state.run },
  );
// Runs that differ only in how much noise they add lie on one line.
function joined(members, x, hover) {
  return curves.flatMap((curve) => {
    const own = members.filter((one) => one.curve === curve).sort((a, b) => x(a) - x(b));
    if (!own.length) return [];
    const points = own.map((one) => [x(one), utility(one)]);
    const dots = own
      .filter((one) => utility(one) != null)
      .map((one) => ({
        x: x(one),
        y: utility(one),
        symbol: one.symbol,
        colour: one.colour,
        hover: hover(one),
        size: one === chosenSeries() ? 16 : 12,
      }));
    return [
      { kind: "line", points, colour: own[0].colour, width: 1.5 },
      { kind: "dots", dots },
    ];
  });
}

function drawPrivacy() {
  const place = figure("privacy", `${metricName} against privacy`),
    one = data.series[0];
  if (data.series.length === 1)
    return place.sentence(
      `One run is one point: ${data.metric} ${share(utility(one))} at ${epsilonIs(one.epsilon)}. Give several runs to sotto compare to see a curve.`,
      tradeOffTable(),
    );
  const values = finite(data.series.map((one) => one.epsilon)).filter((value) => value > 0),
    low = values.length ? Math.min(...values) : 1,
    high = values.length ? Math.max(...values) : 1;
  const endless = Math.log10(high) + Math.max(0.25, 0.18 * Math.log10(high / low)),
    none = endless + (endless - Math.log10(high));
  const x = (one) =>
    one.epsilon == null ? none : isInf(one.epsilon) ? endless : Math.log10(Math.max(one.epsilon, low));
  const odd = data.series.some((one) => one.epsilon == null),
    inf = data.series.some((one) => isInf(one.epsilon));
  const each = [...new Set(values)].sort((a, b) => a - b),
    ticks =
      each.length < 6
        ? each.filter((value, i) => !i || value > 1.15 * each[i - 1])
        : logTicks(low, high).filter((value) => value <= high * 1.3),
    ends = [...(inf ? [[endless, "infinite"]] : []), ...(odd ? [[none, "none proven"]] : [])];
  const right = odd ? none : inf ? endless : Math.log10(high),
    room = 0.12 * (right - Math.log10(low) || 1);
  const about = new Set(data.runs.filter((one) => one.epsilon != null).map((one) => `${one.adjacency}, ${one.change}`));
  place.draw({
    marks: joined(
      data.series,
      x,
      (one) =>
        `${one.name}\n${data.metric} ${share(utility(one))}\n${epsilonIs(one.epsilon)}\n${headlines([data.runs[one.runs[0]]])}`,
    ),
    x: {
      title: "ε, proven",
      ticks: [...ticks.map((value) => [Math.log10(value), String(value)]), ...ends],
      range: [Math.log10(low) - room, right + room],
    },
    y: metricAxis(`test ${data.metric}`),
    legend: dotKeys(data.series),
    caption: [
      `Left is more private, ${data.less_is_better ? "down" : "up"} is better; lines join runs that differ only in how much noise they add.`,
    ],
    notes: [
      `Test ${data.metric}: ${data.final_rounds}.`,
      `ε is each run's headline (${headlines(data.runs)}).`,
      about.size > 1 &&
        "Not all ε here are about the same change of data (see the table of guarantees): compare like with like.",
    ],
    numbers: tradeOffTable(),
  });
}

function drawAttackSuccess() {
  const place = figure("success", `${metricName} against the attack`),
    members = data.series.filter((one) => one.attack);
  at("success").hidden = !members.length; // the section about attacks says why there is none
  if (!members.length) return;
  if (members.length === 1)
    return place.sentence(
      `The strongest attack that was tried on ${members[0].name} has a membership inference AUC of ${interval(members[0].attack)}; 0.5 is random guessing.`,
      tradeOffTable(),
    );
  place.draw({
    marks: [
      { kind: "guide", x: 0.5, label: "random guessing" },
      {
        kind: "spans",
        along: "x",
        wide: 1.6,
        spans: members
          .filter((one) => utility(one) != null)
          .map((one) => ({ at: utility(one), low: one.attack.low, high: one.attack.high, colour: one.colour })),
      },
      ...joined(
        members,
        (one) => one.attack.value,
        (one) =>
          `${one.name}\n${data.metric} ${share(utility(one))}\nAUC ${interval(one.attack)}, ${one.attack.attack}`,
      ).filter((mark) => mark.kind === "dots"),
    ],
    x: { title: "membership inference AUC", limits: [0, 1] },
    y: metricAxis(`test ${data.metric}`),
    legend: dotKeys(members),
    caption: [
      `At the dotted line the attack is no better than random guessing; ${data.less_is_better ? "down" : "up"} is better for training, and bars are confidence intervals.`,
    ],
    notes: [
      `Test ${data.metric}: ${data.final_rounds}.`,
      "The strongest attack that was tried on each run is shown; a stronger one may exist.",
    ],
    numbers: tradeOffTable(),
  });
}

register({ id: "privacy", section: "trade", row: "trade-offs", draw: drawPrivacy });
register({ id: "success", section: "trade", row: "trade-offs", draw: drawAttackSuccess });
