// What is chosen, by clicks and by keys, and what is then drawn anew.

function options(id, values, chosen) {
  at(id).replaceChildren(
    ...values.map(([value, text]) =>
      Object.assign(made("option", text), { value, selected: String(value) === String(chosen) }),
    ),
  );
  at(id).disabled = values.length < 2;
}

function settle() {
  const found = leaks(),
    names = { proven: "proven", "fixed-streams": "idealised (fixed-streams)" };
  const ways = found ? Object.keys(found.ways) : [];
  state.way = ways.includes(state.way) ? state.way : ways[0];
  if (found && !found.attackers.includes(state.attacker)) state.attacker = found.attackers[0];
  options(
    "run",
    data.runs.map((one, i) => [i, one.label]),
    state.run,
  );
  options(
    "attacker",
    found ? found.attackers.map((i) => [i, `node ${node(i)}`]) : [["", "none accounted for"]],
    state.attacker,
  );
  options(
    "way",
    ways.length
      ? ways.map((one) => [one, one === "proven" ? `proven (${named(found.ways[one].kinds)})` : names[one]])
      : [["", "none"]],
    state.way,
  );
}

const aboutPairs = () => [drawGraph, drawDistance, drawHistogram, drawPairs, drawPromises].forEach((draw) => draw());
function all() {
  settle();
  drawSummary();
  aboutPairs();
  drawLearning(
    "rounds",
    `${data.metric === "rmse" ? "Error" : "Accuracy"} over rounds`,
    "round",
    "rounds",
    "How good the models were as training went on.",
  );
  drawLearning(
    "bytes",
    `${data.metric === "rmse" ? "Error" : "Accuracy"} over data sent`,
    "megabytes",
    "megabytes sent by all nodes",
    "How good they were for what was sent.",
  );
  [drawStages, drawRoc, drawChecks, drawPrivacy, drawSuccess].forEach((draw) => draw());
}
function choose(attacker) {
  if (!leaks() || !leaks().attackers.includes(attacker)) return;
  state.attacker = attacker;
  settle();
  aboutPairs();
}

at("run").addEventListener("change", (event) => {
  state.run = Number(event.target.value);
  all();
});
at("attacker").addEventListener("change", (event) => choose(Number(event.target.value)));
at("way").addEventListener("change", (event) => {
  state.way = event.target.value;
  settle();
  aboutPairs();
});
at("controls").addEventListener("submit", (event) => event.preventDefault());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
const paper = (on) => {
  document.documentElement.classList.toggle("paper", on);
  all();
};
window.addEventListener("beforeprint", () => paper(true));
window.addEventListener("afterprint", () => paper(false));
at("lead").textContent =
  data.runs.length === 1
    ? `${data.runs[0].algorithm} on ${data.runs[0].n} nodes, ${data.runs[0].rounds} rounds.`
    : `${data.runs.length} runs. Choose whose graph is shown; curves show all of them.`;
if (data.left_out)
  at("lead").textContent +=
    ` ${data.left_out} more ${data.left_out > 1 ? "are" : "is"} left out: stopped, or gone astray.`;
at("made").textContent =
  `Written by sottovoce ${data.version}. Everything is in this file: it asks nobody for anything. Privacy figures are rounded up.`;
all();
