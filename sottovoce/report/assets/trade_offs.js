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
      "epsilon",
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
const joined = (members, x, more) =>
  curves.map((curve) => {
    const own = members.filter((one) => one.curve === curve).sort((a, b) => x(a) - x(b));
    return {
      type: "scatter",
      mode: own.length > 1 ? "lines+markers" : "markers",
      x: own.map(x),
      y: own.map(utility),
      line: { width: 1.5, color: own.length ? own[0].colour : "" },
      marker: {
        opacity: 1,
        size: own.map((one) => (one === chosenSeries() ? 15 : 11)),
        symbol: own.map((one) => one.symbol),
        color: own.map((one) => one.colour),
        line: { width: 1.5, color: css("--card") },
      },
      hoverinfo: "text",
      ...more(own),
    };
  });

function drawPrivacy() {
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
    ends = [...(inf ? [[endless, "infinite"]] : []), ...(odd ? [[none, "none<br>proven"]] : [])];
  const right = odd ? none : inf ? endless : Math.log10(high),
    room = 0.12 * (right - Math.log10(low) || 1);
  const about = new Set(data.runs.filter((one) => one.epsilon != null).map((one) => `${one.adjacency}, ${one.change}`));
  figure("privacy", `${data.metric === "rmse" ? "Error" : "Accuracy"} against privacy`).draw({
    traces: joined(data.series, x, (own) => ({
      hovertext: own.map(
        (one) =>
          `${safe(one.name)}<br>${data.metric} ${share(utility(one))}<br>epsilon ${epsilonText(one.epsilon)}<br>` +
          headlines([data.runs[one.runs[0]]]),
      ),
    })),
    layout: {
      xaxis: {
        title: "epsilon, proven",
        tickvals: [...ticks.map(Math.log10), ...ends.map(([place]) => place)],
        ticktext: [...ticks.map(String), ...ends.map(([, text]) => text)],
        range: [Math.log10(low) - room, right + room],
      },
      yaxis: { title: `test ${data.metric}` },
    },
    legend: dotKeys(data.series),
    caption: [
      `Left is more private, ${data.less_is_better ? "down" : "up"} is better. ` +
        "Runs that differ only in how much noise they add are joined by a line. " +
        `Test ${data.metric} is the mean over ${data.final_rounds}. ` +
        `Epsilon is each run’s headline (${headlines(data.runs)}).` +
        (data.series.length === 1 ? " One run is one point: give several runs to sotto compare to see a curve." : "") +
        (about.size > 1
          ? " Not all epsilons here are about the same change of data (see the table of guarantees), so compare like with like."
          : ""),
    ],
    numbers: tradeOffTable(),
  });
}

function drawAttackSuccess() {
  const place = figure("success", `${data.metric === "rmse" ? "Error" : "Accuracy"} against the attack`),
    members = data.series.filter((one) => one.attack);
  if (!members.length) return place.missing(run().missing.attack || ["No run was attacked.", ""]);
  place.draw({
    traces: joined(
      members,
      (one) => one.attack.value,
      (own) => ({
        mode: "markers",
        error_x: {
          type: "data",
          symmetric: false,
          array: own.map((one) => one.attack.high - one.attack.value),
          arrayminus: own.map((one) => one.attack.value - one.attack.low),
          color: own.length ? own[0].colour : "",
          thickness: 1.5,
          width: 4,
        },
        hovertext: own.map(
          (one) =>
            `${safe(one.name)}<br>${data.metric} ${share(utility(one))}<br>AUC ${interval(one.attack)}, ${one.attack.attack}`,
        ),
      }),
    ),
    layout: {
      xaxis: { title: "membership inference AUC (0.5 is random guessing)" },
      yaxis: { title: `test ${data.metric}` },
      shapes: [
        {
          type: "line",
          x0: 0.5,
          x1: 0.5,
          yref: "paper",
          y0: 0,
          y1: 1,
          line: { color: css("--soft"), width: 1.5, dash: "dot" },
        },
      ],
    },
    legend: dotKeys(members),
    caption: [
      "Left, near the dotted line, the attack is no better than random guessing; " +
        `${data.less_is_better ? "down" : "up"} is better for training. Bars are confidence intervals. ` +
        `Test ${data.metric} is the mean over ${data.final_rounds}. ` +
        "The strongest attack that was tried on each run is shown; a stronger one may exist.",
    ],
    numbers: tradeOffTable(),
  });
}

register({ id: "privacy", section: "trade", row: "trade-offs", draw: drawPrivacy });
register({ id: "success", section: "trade", row: "trade-offs", draw: drawAttackSuccess });
