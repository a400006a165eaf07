// The ROC curves of membership attacks, what can be reconstructed, and audits.

const percent = (one) =>
  `${(100 * one.value).toFixed(1)} % (${(100 * one.low).toFixed(1)} to ${(100 * one.high).toFixed(1)})`;
const wholePercent = (value) => `${Math.round(100 * value)} %`;
const interval = (one) => `${one.value.toFixed(3)} (${one.low.toFixed(3)} to ${one.high.toFixed(3)})`;

function drawRoc() {
  const place = figure("roc", "Membership inference: can an adversary tell which rows were trained on?", "square");
  const made = data.series.flatMap((one) =>
    one.runs
      .filter((number) => data.runs[number].attack)
      .slice(0, 1)
      .flatMap((number) =>
        Object.entries(data.runs[number].attacks).map(([kind, found]) => ({
          one,
          kind,
          found,
          run: data.runs[number],
        })),
      ),
  );
  const drawn = made.filter(({ found }) => found.roc);
  if (!drawn.length) return place.missing(run().missing.attack || run().missing.roc);
  const kinds = [...new Set(drawn.map(({ kind }) => kind))];
  const without = data.series
    .filter((one) => !made.some((other) => other.one === one))
    .map((one) => data.runs[one.runs[0]]);
  const dashOf = ({ one, kind }) => (kinds.length > 1 ? DASH[kinds.indexOf(kind)] : one.dash);
  const name = ({ one, kind }) => (kinds.length > 1 ? `${one.name}, ${kind}` : one.name);
  place.draw({
    marks: [
      {
        kind: "line",
        points: [
          [0, 0],
          [1, 1],
        ],
        colour: css("--soft"),
        dash: "dot",
        width: 1.5,
      },
      ...drawn.map((each) => ({
        kind: "line",
        points: each.found.roc.fpr.map((rate, i) => [rate, each.found.roc.tpr[i]]),
        colour: each.one.colour,
        width: each.run === run() ? 3.2 : 1.8,
        dash: dashOf(each),
        hover: each.found.roc.fpr.map(
          (rate, i) =>
            `${name(each)}\nfinds ${wholePercent(each.found.roc.tpr[i])} of members\naccuses ${wholePercent(rate)} of others`,
        ),
      })),
    ],
    x: { title: "others taken for members", format: wholePercent, range: [0, 1.01] },
    y: { title: "members found", format: wholePercent, range: [0, 1.01] },
    legend: [
      ...drawn.map((each) => lineKey({ ...each.one, name: name(each), dash: dashOf(each) })),
      key(
        svg(`<line x1="0" y1="7" x2="26" y2="7" stroke="currentColor" stroke-width="2" stroke-dasharray="2 3"/>`),
        "random guessing",
      ),
    ],
    caption: [
      "Shown rows and the models it received, the adversary says which rows were trained on: the further a line bends above the dotted one, the more it knows.",
    ],
    notes: [
      ...kinds.map((kind) => `The attack “${kind}” ${ATTACK_CAPTIONS[kind]}.`),
      "One attack shows what is possible, not what is impossible: only the guarantees say that.",
      without.length &&
        `Not attacked yet: ${without.map((one) => one.label).join(", ")} (${without[0].missing.attack[1]}).`,
    ],
    numbers: table(
      [
        "run",
        "attack",
        "AUC (0.5 is random guessing)",
        "members found at 1 % false positives",
        "at 0.1 %",
        "intervals",
      ],
      made.map((each) => [
        each.one.name,
        each.found.method,
        interval(each.found.auc),
        percent(each.found.tpr_at_1_percent),
        percent(each.found.tpr_at_0_1_percent),
        `${100 * each.found.confidence} %, ${each.found.interval}, ${each.found.victims} victims`,
      ]),
    ),
  });
}

function drawPictures() {
  const place = at("pictures");
  if (!data.pictures || place.firstChild) return;
  const found = made("figure"),
    drawing = made("div", null, "gallery");
  drawing.innerHTML = data.pictures;
  drawing.firstChild.setAttribute("aria-label", "Pictures of two neighbours, and what was reconstructed of them");
  found.append(
    made("h3", "What a neighbour can see of the pictures"),
    drawing,
    made(
      "figcaption",
      "Above, the pictures of a node's first batch; below each, run by run, the closest that a neighbour makes of the one message that the node then sent.",
    ),
  );
  place.append(found);
}

function drawChecks() {
  const place = at("checks"),
    { audit, solved } = run();
  place.replaceChildren();
  const card = (title, ...parts) => {
    const box = made("div", null, "table-card");
    box.append(made("h3", title), ...parts);
    place.append(box);
  };
  if (solved && solved.nodes) {
    const open = solved.nodes.filter((one) => one.solved_rounds > 0);
    card(
      `What ${node(solved.attacker)} can reconstruct`,
      made(
        "p",
        open.length
          ? `From its messages in ${solved.rounds} rounds, gradients of these nodes can be computed up to the error shown.`
          : `From its messages in ${solved.rounds} rounds, no node's gradients can be reconstructed.`,
      ),
      ...(open.length
        ? [
            table(
              ["node", "hops", "gradients reconstructed", "smallest error"],
              open.map((one) => [
                label(one.node),
                String(one.distance),
                `${one.solved_rounds} of ${solved.rounds}`,
                one.deviation < 1e-9 ? "exactly" : `± ${one.deviation.toPrecision(3)}`,
              ]),
            ),
          ]
        : []),
    );
  }
  if (audit.length)
    card(
      "Claims checked by audit",
      table(
        ["canaries", "against", "kind", "ε is at least", "claimed at most", "verdict"],
        audit.map((one) => [
          one.canaries,
          one.view,
          one.kind,
          isInf(one.found) ? "infinite" : one.found,
          epsilonText(one.claimed),
          one.verdict,
        ]),
        { stack: true },
      ),
    );
  else {
    const words = "An audit proves from below how much leaks, beside what is claimed from above";
    const member = run().member;
    const note = made(
      "p",
      member
        ? `No audit has been made of this run. ${words}. It needs everybody's rows, which nobody has here: audit a simulation of the agreement, with data that may be seen.`
        : `No audit has been made of this run. ${words}:`,
      "missing",
    );
    if (!member) note.append(made("code", `sotto audit ${run().folder}`));
    place.append(note);
  }
}

register({ id: "pictures", section: "attacks", draw: drawPictures });
register({ id: "roc", section: "attacks", draw: drawRoc });
register({ id: "checks", section: "attacks", draw: drawChecks });
