// The run in plain words, guarantees in words, the summary, and what was trained.

function guaranteeRow(one) {
  const meaning = made("div"),
    assumed = made("div");
  meaning.append(
    made("p", `${one.kind}, ${data.figures[one.figure]}`, "kind"),
    made(
      "p",
      isInf(one.epsilon)
        ? "No limit: nothing here keeps a change of data from being seen."
        : data.kinds[one.kind] || "",
    ),
    made("p", one.models + "."),
  );
  one.assumptions.forEach((line) => assumed.append(made("p", first(line) + ".")));
  return [one.adversary, one.protects, epsilonText(one.epsilon), accuracyText(one.guess), meaning, assumed];
}

// What the chosen adversary can learn from messages, and what if it sees final models as well.
function adversaryGuarantees() {
  if (!figures()) return [];
  const published = leakage().with_models[state.figureKind];
  return [
    ...guaranteesOf(figures(), ""),
    ...(published ? guaranteesOf(published, `, with ${published.models[0]}`) : []),
  ];
}

// About the node it can learn most about, and about the one it can learn least about.
function guaranteesOf(shown, models) {
  if (!shown.epsilon) return [];
  const row = leakage().attackers.indexOf(state.attacker),
    epsilon = shown.epsilon[row],
    size = (i) => (isInf(epsilon[i]) ? Infinity : epsilon[i]);
  const order = epsilon
    .map((_, i) => i)
    .filter((i) => epsilon[i] != null)
    .sort((a, b) => size(b) - size(a) || a - b);
  if (!order.length) return [];
  return [
    [order[0], "most"],
    [order[order.length - 1], "least"],
  ].map(([victim, how]) => ({
    adversary: `${node(state.attacker)}, the chosen adversary${models}, about ${node(victim)}, of which it can learn ${how}`,
    protects: run().promises.length ? run().protects : "",
    epsilon: epsilon[victim],
    guess: shown.guess[row][victim],
    kind: shown.kinds[shown.kind[row][victim]],
    figure: shown.figure[row][victim],
    models: shown.models[1],
    assumptions: shown.assumptions[shown.kinds[shown.kind[row][victim]]],
  }));
}

function drawGuarantees() {
  const rows = [...run().promises, ...adversaryGuarantees()].map(guaranteeRow),
    card = made("div", null, "table-card");
  card.append(made("h3", `Guarantees of ${run().label}, at δ = ${small(run().delta)}`));
  if (run().epsilon == null || isInf(run().epsilon)) card.append(made("p", run().verdict, "missing"));
  if (rows.length)
    card.append(
      table(
        ["against", "what is protected", "ε", "upper bound on guessing accuracy", "kind, and what it means", "assumes"],
        rows,
        { stack: true },
      ),
    );
  const notes = [
    run().bound,
    first(run().convexity) + ".",
    first(run().certificate) + ".",
    ...(leakage()
      ? leakage()
          .refusals.slice(0, 1)
          .map(
            (line) =>
              `Not offered for single nodes: ${line}${leakage().refusals.length > 1 ? ` (and ${leakage().refusals.length - 1} alike)` : ""}.`,
          )
      : []),
  ];
  notes.forEach((line) => card.append(made("p", line, "note")));
  at("guarantees").replaceChildren(card);
  at("uncovered").replaceChildren(...run().not_covered.map((line) => made("li", line)));
}

// A line for each member; where all are alike in everything, and have no names, a sentence.
function memberLines(members, about) {
  const noun = run().labels ? "member" : "node",
    right = `a guess about ${about} is right at most`;
  const others = (one) => one.closest && one.closest.names.length === members.length - 1,
    alike = members.every((one) => others(one) && one.closest.guess === one.guess),
    same = members.every((one) => one.guess === members[0].guess && one.records === members[0].records);
  const models = members.some((one) => one.closest && one.closest.with_models) ? " that gets the final models too" : "";
  const nobody = `For each of the others${models}, no smaller number is proven.`;
  const limit = `${right} ${accuracyText(members[0].guess)} of the time`;
  if (!run().labels && same && members[0].guess == null)
    return [made("p", `Nothing limits how often a guess about ${about} is right, whichever node it is.`)];
  if (!run().labels && same && (alike || members.every((one) => !one.closest)))
    return [made("p", `The same for every node: ${limit}.`), ...(alike ? [made("p", nobody)] : [])];
  const few = (names) =>
    names.length === members.length - 1 && names.length > 1
      ? "each of them alike"
      : names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");
  const some = (key) => members.some((one) => one[key] != null);
  const wanted = [
    [noun, (one) => one.name],
    ...(some("records") ? [["records", (one) => (one.records == null ? "" : String(one.records))]] : []),
    [right, (one) => accuracyText(one.guess)],
    ...(some("closest") && !alike
      ? [
          [
            "who of the others could learn most",
            (one) => (one.closest ? `${few(one.closest.names)}: ${accuracyText(one.closest.guess)}` : ""),
          ],
        ]
      : []),
  ];
  const lines = table(
    wanted.map(([head]) => head),
    members.map((one) => wanted.map(([, cell]) => cell(one))),
  );
  const details = made("details");
  details.append(made("summary", `All ${members.length}`), lines);
  return [members.length > 20 ? details : lines, ...(alike ? [made("p", nobody, "note")] : [])];
}

// A line of an answer: a number stays with its percent sign, and a command at the end is set as one.
function answered(tag, line) {
  const [, words, command] = /^(.*?: )?(sotto .*)$/s.exec(line) ?? [null, line, null];
  const found = made(tag, words.replace(/(\d) %/g, "$1\u00a0%"));
  if (command) found.append(made("code", command));
  return found;
}

// For a reader who has never heard of epsilon: questions with their answers, and a line for each member.
function drawPlain() {
  const { purpose, questions, members, guess_about: about } = run().plain,
    parts = [made("h2", data.runs.length > 1 ? `In plain words: ${run().label}` : "In plain words")];
  if (purpose) parts.push(made("p", purpose, "intro"));
  questions.forEach(([question, answers]) => {
    parts.push(made("h3", question));
    if (answers.length < 4) parts.push(...answers.map((line) => answered("p", line)));
    else {
      const list = made("ul");
      answers.forEach((line) => list.append(answered("li", line)));
      parts.push(list);
    }
  });
  parts.push(made("h3", run().labels ? "Member by member" : "Node by node"), ...memberLines(members, about));
  at("plain").replaceChildren(...parts);
}

function drawSummary() {
  const one = run();
  at("headline").textContent = one.verdict;
  at("headline").className = one.epsilon == null || isInf(one.epsilon) ? "bad" : "";
  const cards = [
    [
      one.member ? `${data.metric}, model of ${one.member}` : `test ${data.metric}, average model`,
      share(one.average_model),
      `${data.final_rounds}${one.member ? ", on its own held-out rows" : `; nodes: ${share(one.mean_node)}, worst ${share(one.worst_node)}`}`,
    ],
    [
      "epsilon (ε)",
      epsilonText(one.epsilon),
      one.kind ? `δ = ${small(one.delta)}, ${one.adversary} as adversary, ${one.kind}` : "see the guarantees below",
    ],
    ["guessing accuracy", accuracyText(one.guess), "upper bound; 50 % is random guessing"],
    [
      "membership inference AUC",
      one.attack ? one.attack.value.toFixed(3) : "none yet",
      one.attack ? `${one.attack.attack} attack; 0.5 is random guessing` : "no membership attack on this run",
    ],
    ["sent", bytes(one.bytes), `by ${one.member ?? `${one.n} nodes`} in ${one.rounds} rounds`],
  ];
  at("cards").replaceChildren(
    ...cards.map(([name, value, note]) => {
      const box = made("div"),
        figure = made("dd", value);
      figure.append(made("small", note));
      box.append(made("dt", name), figure);
      return box;
    }),
  );
  at("facts").replaceChildren(...one.facts.flatMap(([name, value]) => [made("dt", name), made("dd", value)]));
}
