// The ROC curves of membership attacks, pictures, and audits.

const percent = (value, digits = 0) => `${(100 * value).toFixed(digits)} %`;
const percents = ({ value, low, high }) =>
  `${percent(value, 1)} (${[low, high].map((end) => (100 * end).toFixed(1)).join(" to ")})`;

function drawRoc() {
  const place = figure("roc", "Membership inference: can an adversary tell which rows were trained on?", "square");
  const made = data.series.flatMap((one) => {
    const attacked = one.runs.map((number) => data.runs[number]).find((run) => run.attack);
    return Object.entries(attacked?.attacks ?? {}).map(([kind, found]) => ({ one, kind, found, run: attacked }));
  });
  const drawn = made.filter(({ found }) => found.roc);
  if (!drawn.length) return place.missing(run().missing.attack || run().missing.roc);
  const kinds = [...new Set(drawn.map(({ kind }) => kind))], several = kinds.length > 1;
  const without = data.series.filter((one) => !made.some((other) => other.one === one)).map((one) => data.runs[one.runs[0]]);
  const line = ({ one, kind, found: { roc }, run: own }) => {
    const name = several ? `${one.name}, ${kind}` : one.name, dash = several ? DASH[kinds.indexOf(kind)] : one.dash;
    const words = (rate, i) => `${name}\nfinds ${percent(roc.tpr[i])} of members\naccuses ${percent(rate)} of others`;
    const points = roc.fpr.map((rate, i) => [rate, roc.tpr[i]]), width = own === run() ? 3.2 : 1.8;
    return { kind: "line", points, colour: one.colour, width, dash, hover: roc.fpr.map(words), name };
  };
  const lines = drawn.map(line);
  place.draw({
    marks: [{ kind: "line", points: [[0, 0], [1, 1]], colour: css("--soft"), dash: "dot", width: 1.5 }, ...lines],
    x: { title: "others taken for members", format: (value) => percent(value), range: [0, 1.01] },
    y: { title: "members found", format: (value) => percent(value), range: [0, 1.01] },
    legend: [...lines.map(lineKey), key(stroke("currentColor", 2, DASHES.dot), "random guessing")],
    caption:
      "Shown rows and the models it received, the adversary says which rows were trained on: the further a line bends above the dotted one, the more it knows.",
    notes: [
      ...kinds.map((kind) => `The attack “${kind}” ${ATTACK_CAPTIONS[kind]}.`),
      "One attack shows what is possible, not what is impossible: only the guarantees say that.",
      without.length && `Not attacked yet: ${without.map((one) => one.label).join(", ")} (${without[0].missing.attack[1]}).`,
    ],
    numbers: table(made, [
      ["run", ({ one }) => one.name],
      ["attack", ({ found }) => found.method],
      ["AUC (0.5 is random guessing)", ({ found }) => interval(found.auc)],
      ["members found at 1 % false positives", ({ found }) => percents(found.tpr_at_1_percent)],
      ["at 0.1 %", ({ found }) => percents(found.tpr_at_0_1_percent)],
      ["intervals", ({ found }) => `${100 * found.confidence} %, ${found.interval}, ${found.victims} victims`],
    ]),
  });
}

function drawPictures() {
  const place = at("pictures");
  if (!data.pictures || place.firstChild) return;
  const drawing = made("div", [], "gallery", { innerHTML: data.pictures });
  drawing.firstChild.setAttribute("aria-label", "Pictures of two neighbours, and what was reconstructed of them");
  const words =
    "Above, the pictures of a node's first batch; below each, run by run, the closest that a neighbour makes of the one message that the node then sent.";
  place.append(made("figure", [made("h3", "What a neighbour can see of the pictures"), drawing, made("figcaption", words)]));
}

function drawChecks() {
  const place = at("checks"), { audit, member, folder } = run();
  const card = (title, ...parts) => place.append(made("div", [made("h3", title), ...parts.filter(Boolean)], "table-card"));
  place.replaceChildren();
  if (audit.length) {
    const columns = [
      ["canaries", (one) => one.canaries],
      ["against", (one) => one.view],
      ["kind", (one) => one.kind],
      ["ε is at least", (one) => epsilonText(one.found)],
      ["claimed at most", (one) => epsilonText(one.claimed)],
      ["verdict", (one) => one.verdict],
    ];
    return card("Claims checked by audit", table(audit, columns, { stack: true }));
  }
  const words =
    "No audit has been made of this run. An audit proves from below how much leaks, beside what is claimed from above";
  const rest =
    ". It needs everybody's rows, which nobody has here: audit a simulation of the agreement, with data that may be seen.";
  place.append(made("p", member ? words + rest : [`${words}:`, made("code", `sotto audit ${folder}`)], "missing"));
}

register({ id: "pictures", section: "attacks", draw: drawPictures });
register({ id: "roc", section: "attacks", draw: drawRoc });
register({ id: "checks", section: "attacks", draw: drawChecks });
