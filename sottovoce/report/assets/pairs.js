// Who can learn what from whom: leakage by distance, how many pairs have which epsilon, and all pairs.

function drawDistance() {
  const place = figure("distance", "Leak by distance");
  hideWithoutPairs("distance");
  if (!figures()) return place.missing(noPairs());
  const by = figures().by_distance,
    row = leakage().attackers.indexOf(state.attacker);
  const text = (one) => (one.distance == null ? "unknown" : String(one.distance));
  const numbers = table(
    ["hops", "pairs", "least ε", "middle", "largest"],
    by.map((one) => [
      text(one),
      String(one.pairs),
      epsilonText(one.least),
      epsilonText(one.median),
      epsilonText(one.most),
    ]),
  );
  if (sameForAll()) return place.sentence(sameForAll() + idealisedHint(), numbers);
  const tops = finite(by.flatMap((one) => [one.least, one.median, one.most]));
  const top = tops.length ? Math.max(...tops) : 1,
    lift = (value) => (isInf(value) ? top * 1.15 || 1 : value);
  const hopsOf = (one) => one.distance ?? (by.length > 1 ? by[by.length - 2].distance + 1 : 1);
  const endless = by.some((one) => isInf(one.most));
  const own = figures().epsilon ? figures().epsilon[row] : [],
    hops = figures().epsilon ? leakage().distance[row] : [];
  place.draw({
    marks: [
      {
        kind: "spans",
        along: "y",
        wide: 9,
        colour: css("--none"),
        ticks: css("--soft"),
        spans: by.map((one) => ({
          at: hopsOf(one),
          low: lift(one.least),
          high: lift(one.most),
          middle: lift(one.median),
          hover:
            `${text(one)} hops, ${one.pairs} pairs of any two nodes\nε ${epsilonText(one.least)} to ${epsilonText(one.most)}\n` +
            `half of them at most ${epsilonText(one.median)}`,
        })),
      },
      {
        kind: "dots",
        dots: own
          .map((value, i) => ({ value, i }))
          .filter(({ value }) => value != null)
          .map(({ value, i }) => ({
            x: (hops[i] ?? hopsOf({})) + (((i * 37) % 19) / 19 - 0.5) * 0.34,
            y: lift(value),
            size: 10,
            colour: isInf(value) ? css("--warn") : css("--accent"),
            hover: `${first(node(i))}\n${epsilonIs(value)}`,
          })),
      },
      ...(endless ? [{ kind: "guide", y: lift("inf"), label: "infinite", colour: css("--warn") }] : []),
    ],
    x: {
      title: "hops between the two nodes",
      ticks: by.map((one) => [hopsOf(one), text(one)]),
      range: [hopsOf(by[0]) - 0.5, hopsOf(by[by.length - 1]) + 0.5],
      grid: false,
    },
    y: { title: "ε", range: [0, top * (endless ? 1.25 : 1.08)] },
    legend: [
      ...(own.length ? [key(symbolKey("circle", css("--accent")), `learned by ${node(state.attacker)}`)] : []),
      key(
        svg(
          `<rect x="9" y="0" width="8" height="14" fill="${css("--none")}"/><rect x="1" y="6" width="24" height="3" fill="${css("--soft")}"/>`,
        ),
        leakage().attackers.length < run().n
          ? "all pairs accounted for: from least to most, and the middle one"
          : "all pairs of nodes: from least to most, and the middle one",
      ),
      key(made("i", null, "badge"), figureKindName()),
    ],
    caption: [
      "The more hops a message needs between two nodes, the less one can learn about the other, where points fall to the right.",
    ],
    numbers,
  });
}

function drawHistogram() {
  const shown = figures() && figures().histogram;
  at("histogram").hidden = !shown;
  if (!shown) return;
  const { edges, counts, infinite } = shown;
  figure("histogram", "How many pairs have which ε").draw({
    marks: [
      {
        kind: "bars",
        colour: css("--accent"),
        bars: counts.map((count, i) => ({
          x: (edges[i] + edges[i + 1]) / 2,
          y: count,
          wide: edges[i + 1] - edges[i],
          hover: `${count} pairs`,
        })),
      },
    ],
    x: { title: "ε" },
    y: { title: "pairs of nodes", zero: true },
    legend: [key(made("i", null, "badge"), figureKindName())],
    caption: [
      `There are too many pairs to show one by one${infinite ? `; ${infinite} with an infinite ε are not drawn` : ""}.`,
    ],
    numbers: table(
      ["ε from", "to", "pairs"],
      counts.map((count, i) => [edges[i].toPrecision(4), edges[i + 1].toPrecision(4), String(count)]),
    ),
  });
}

function drawPairs() {
  const place = figure("pairs", "All pairs: who learns how much about whom", "tall");
  hideWithoutPairs("pairs");
  if (!figures()) return;
  at("pairs").hidden = allAlike(); // the leak by distance has said it
  if (at("pairs").hidden) return;
  if (run().n > 150 || !figures().epsilon)
    return place.missing([`${run().n} nodes are more than the 150 that a map can show. See leak by distance.`, ""]);
  const { attackers } = leakage(),
    { epsilon } = figures(),
    range = scale(),
    victims = [...Array(run().n).keys()],
    chosen = attackers.indexOf(state.attacker);
  const numbers = table(
    ["adversary", ...victims.map((i) => `about ${label(i)}`)],
    epsilon.map((row, a) => [
      label(attackers[a]),
      ...row.map((value, v) => (v === attackers[a] ? "" : value == null ? "none" : epsilonText(value))),
    ]),
    { chosen },
  );
  if (ownFigures(epsilon)) return drawVictims(place, victims, epsilon, numbers);
  const step = Math.ceil(attackers.length / 20);
  place.draw({
    marks: [
      {
        kind: "cells",
        rows: epsilon.map((row, a) =>
          row.map(
            (value, v) =>
              value != null && {
                colour: isInf(value) ? css("--warn") : range.colour(value),
                hover: `${first(node(attackers[a]))} about ${node(v)}\n${epsilonIs(value)}`,
                choice: attackers[a],
              },
          ),
        ),
      },
      ...(chosen < 0 ? [] : [{ kind: "guide", row: chosen }]),
    ],
    x: {
      title: "about this node",
      ticks: victims.map((i) => [i, label(i)]),
      grid: false,
      range: [-0.5, run().n - 0.5],
    },
    y: {
      title: "adversary",
      ticks: attackers.map((one, i) => [i, label(one)]).filter((_, i) => i % step === 0),
      grid: false,
      range: [attackers.length - 0.5, -0.5],
    },
    legend: colourLegend(range),
    caption: [
      "Each row is one node as the adversary, each column a node that it learns about; the framed row is ",
      node(state.attacker),
      attackers.length > 1 ? ", and a click on a row chooses another." : ".",
    ],
    height: attackers.length < 10 ? `${110 + 32 * attackers.length}px` : "",
    numbers,
    click: choose,
  });
}

// Where a figure depends only on whom it is about, one bar for each node says it all.
function drawVictims(place, victims, epsilon, numbers) {
  const worst = victims.map((victim) => epsilon.map((row) => row[victim]).find((value) => value != null));
  const known = finite(worst);
  if (new Set(worst).size < 2 || !known.length) return place.sentence(sameForAll() + idealisedHint(), numbers);
  place.draw({
    marks: [
      {
        kind: "bars",
        colour: css("--accent"),
        bars: victims
          .filter((victim) => typeof worst[victim] === "number")
          .map((victim) => ({
            x: victim,
            y: worst[victim],
            wide: 0.8,
            hover: `About ${node(victim)}\n${epsilonIs(worst[victim])}`,
          })),
      },
    ],
    x: {
      title: "about this node",
      ticks: victims.map((i) => [i, label(i)]),
      grid: false,
      range: [-0.6, victims.length - 0.4],
    },
    y: { title: "ε", zero: true },
    legend: [key(made("i", null, "badge"), figureKindName())],
    caption: [sameForAll() + idealisedHint()],
    numbers,
  });
}

register({ id: "distance", section: "who", row: "graph-and-distance", pairs: true, draw: drawDistance });
register({ id: "histogram", section: "who", pairs: true, draw: drawHistogram });
register({ id: "pairs", section: "who", pairs: true, draw: drawPairs });
