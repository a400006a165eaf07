// The run in plain words, guarantees in words, the summary, and what was trained.

function meaningOf({ epsilon, kind, figure, models }) {
  const nothing = "No limit: nothing here keeps a change of data from being seen.";
  const meaning = [
    made("p", `${kind}, ${data.figures[figure]}`, "kind"),
    made("p", isInf(epsilon) ? nothing : data.kinds[kind]),
    made("p", models + "."),
  ];
  return made("div", meaning);
}
const GUARANTEE_COLUMNS = [
  ["against", (one) => one.adversary],
  ["what is protected", (one) => one.protects],
  ["ε", (one) => epsilonText(one.epsilon)],
  ["upper bound on guessing accuracy", (one) => accuracyText(one.guess)],
  ["kind, and what it means", meaningOf],
  ["assumes", (one) => made("div", one.assumptions.map((line) => made("p", first(line) + ".")))],
];

// What the chosen adversary can learn from messages, and what if it sees final models as well.
function adversaryGuarantees() {
  const published = leakage()?.with_models[state.figureKind];
  return [...guaranteesOf(figures(), ""), ...guaranteesOf(published, `, with ${published?.models[0]}`)];
}

// About the node it can learn most about, and about the one it can learn least about.
function guaranteesOf(shown, models) {
  if (!shown?.epsilon) return [];
  const row = leakage().attackers.indexOf(state.attacker), epsilon = shown.epsilon[row];
  const size = (i) => (isInf(epsilon[i]) ? Infinity : epsilon[i]);
  const order = nodes().filter((i) => epsilon[i] != null).sort((a, b) => size(b) - size(a) || a - b);
  const ends = order.length ? [[order[0], "most"], [order.at(-1), "least"]] : [];
  return ends.map(([victim, how]) => {
    const kind = shown.kinds[shown.kind[row][victim]];
    return {
      adversary: `${node(state.attacker)}, the chosen adversary${models}, about ${node(victim)}, of which it can learn ${how}`,
      protects: run().promises.length ? run().protects : "", epsilon: epsilon[victim], guess: shown.guess[row][victim],
      kind, figure: shown.figure[row][victim], models: shown.models[1], assumptions: shown.assumptions[kind],
    };
  });
}

function drawGuarantees() {
  const { label, delta, epsilon, verdict, promises, bound, convexity, certificate, not_covered: uncovered } = run();
  const rows = [...promises, ...adversaryGuarantees()], [refusal, ...alike] = leakage()?.refusals ?? [];
  const notes = [bound, first(convexity) + ".", first(certificate) + "."];
  if (refusal) notes.push(`Not offered for single nodes: ${refusal}${alike.length ? ` (and ${alike.length} alike)` : ""}.`);
  const card = [
    made("h3", `Guarantees of ${label}, at δ = ${small(delta)}`),
    (epsilon == null || isInf(epsilon)) && made("p", verdict, "missing"),
    rows.length && table(rows, GUARANTEE_COLUMNS, { stack: true }),
    ...notes.map((line) => made("p", line, "note")),
  ];
  at("guarantees").replaceChildren(made("div", card.filter(Boolean), "table-card"));
  at("uncovered").replaceChildren(...uncovered.map((line) => made("li", line)));
}

// A line for each member; where all are alike in everything, and have no names, a sentence.
function memberLines(members, about) {
  const { labels } = run(), [{ guess, records }] = members, right = `a guess about ${about} is right at most`;
  const everybody = ({ names }) => names.length === members.length - 1;
  const alike = members.every(({ closest, guess }) => closest && everybody(closest) && closest.guess === guess);
  const same = !labels && members.every((one) => one.guess === guess && one.records === records);
  const models = members.some((one) => one.closest?.with_models) ? " that gets the final models too" : "";
  const nobody = `For each of the others${models}, no smaller number is proven.`;
  if (same && guess == null)
    return [made("p", `Nothing limits how often a guess about ${about} is right, whichever node it is.`)];
  if (same && (alike || members.every((one) => !one.closest)))
    return [made("p", `The same for every node: ${right} ${accuracyText(guess)} of the time.`), alike && made("p", nobody)];
  const few = ({ names }) =>
    everybody({ names }) && names.length > 1
      ? "each of them alike"
      : names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");
  const some = (key) => members.some((one) => one[key] != null);
  const most = ({ closest }) => (closest ? `${few(closest)}: ${accuracyText(closest.guess)}` : "");
  const lines = table(members, [
    [labels ? "member" : "node", (one) => one.name],
    some("records") && ["records", (one) => String(one.records ?? "")],
    [right, (one) => accuracyText(one.guess)],
    some("closest") && !alike && ["who of the others could learn most", most],
  ]);
  const folded = members.length > 20 ? made("details", [made("summary", `All ${members.length}`), lines]) : lines;
  return [folded, alike && made("p", nobody, "note")];
}

// A line of an answer: a number stays with its percent sign, and a command at the end is set as one.
function answered(tag, line) {
  const [, words, command] = /^(.*?: )?(sotto .*)$/s.exec(line) ?? [null, line, null];
  return made(tag, [words.replace(/(\d) %/g, "$1\u00a0%"), command && made("code", command)]);
}

// For a reader who has never heard of epsilon: questions with their answers, and a line for each member.
function drawPlain() {
  const { plain: { purpose, questions, members, guess_about: about }, label, labels } = run();
  const answers = (lines) =>
    lines.length < 4
      ? lines.map((line) => answered("p", line))
      : [made("ul", lines.map((line) => answered("li", line)))];
  const parts = [
    made("h2", data.runs.length > 1 ? `In plain words: ${label}` : "In plain words"),
    purpose && made("p", purpose, "intro"),
    ...questions.flatMap(([question, lines]) => [made("h3", question), ...answers(lines)]),
    made("h3", labels ? "Member by member" : "Node by node"),
    ...memberLines(members, about),
  ];
  at("plain").replaceChildren(...parts.filter(Boolean));
}

function drawSummary() {
  const one = run(), { member, attack, epsilon } = one;
  at("headline").textContent = one.verdict;
  at("headline").className = epsilon == null || isInf(epsilon) ? "bad" : "";
  const nodes = `; nodes: ${share(one.mean_node)}, worst ${share(one.worst_node)}`;
  const cards = [
    [
      member ? `${data.metric}, model of ${member}` : `test ${data.metric}, average model`, share(one.average_model),
      data.final_rounds + (member ? ", on its own held-out rows" : nodes),
    ],
    [
      "epsilon (ε)", epsilonText(epsilon),
      one.kind ? `δ = ${small(one.delta)}, ${one.adversary} as adversary, ${one.kind}` : "see the guarantees below",
    ],
    ["guessing accuracy", accuracyText(one.guess), "upper bound; 50 % is random guessing"],
    [
      "membership inference AUC", attack ? attack.value.toFixed(3) : "none yet",
      attack ? `${attack.attack} attack; 0.5 is random guessing` : "no membership attack on this run",
    ],
    ["sent", bytes(one.bytes), `by ${member ?? `${one.n} nodes`} in ${one.rounds} rounds`],
  ];
  const card = ([name, value, note]) => made("div", [made("dt", name), made("dd", [value, made("small", note)])]);
  at("cards").replaceChildren(...cards.map(card));
  at("facts").replaceChildren(...one.facts.flatMap(([name, value]) => [made("dt", name), made("dd", value)]));
}
