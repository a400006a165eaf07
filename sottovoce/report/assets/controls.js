// The controls: which run, which adversary, which kind of figure; and what is then drawn anew.

function options(id, values, chosen) {
  at(id).replaceChildren(
    ...values.map(([value, text]) =>
      Object.assign(made("option", text), { value, selected: String(value) === String(chosen) }),
    ),
  );
  at(id).disabled = values.length < 2;
  at(id).parentElement.hidden = !values.some(([value]) => value !== "") || (id === "run" && values.length < 2);
}

function updateControls() {
  const found = leakage(),
    names = { proven: "proven", "fixed-streams": "idealised (fixed-streams)" };
  const kinds = found ? Object.keys(found.ways) : [];
  state.figureKind = kinds.includes(state.figureKind) ? state.figureKind : kinds[0];
  if (found && !found.attackers.includes(state.attacker)) state.attacker = found.attackers[0];
  options(
    "run",
    data.runs.map((one, i) => [i, one.label]),
    state.run,
  );
  options(
    "attacker",
    found ? found.attackers.map((i) => [i, first(node(i))]) : [["", "none accounted for"]],
    state.attacker,
  );
  options(
    "figure-kind",
    kinds.length
      ? kinds.map((one) => [one, one === "proven" ? `proven (${named(found.ways[one].kinds)})` : names[one]])
      : [["", "none"]],
    state.figureKind,
  );
  at("controls").hidden = [...at("controls").children].every((one) => one.hidden);
}

function drawAboutPairs() {
  registered.filter((one) => one.pairs).forEach((one) => one.draw());
  drawGuarantees();
}
function drawAll() {
  updateControls();
  drawPlain();
  drawSummary();
  drawAboutPairs();
  registered.filter((one) => !one.pairs).forEach((one) => one.draw());
}
function choose(attacker) {
  if (!leakage() || !leakage().attackers.includes(attacker)) return;
  state.attacker = attacker;
  updateControls();
  drawAboutPairs();
}

at("run").addEventListener("change", (event) => {
  state.run = Number(event.target.value);
  drawAll();
});
at("attacker").addEventListener("change", (event) => choose(Number(event.target.value)));
at("figure-kind").addEventListener("change", (event) => {
  state.figureKind = event.target.value;
  updateControls();
  drawAboutPairs();
});
at("controls").addEventListener("submit", (event) => event.preventDefault());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
const paper = (on) => {
  document.documentElement.classList.toggle("paper", on);
  drawAll();
};
window.addEventListener("beforeprint", () => paper(true));
window.addEventListener("afterprint", () => paper(false));
at("lead").textContent =
  data.runs.length === 1
    ? `${data.runs[0].n} ${data.runs[0].labels ? "members" : "nodes"}, ${data.runs[0].rounds} rounds of training.`
    : `${data.runs.length} runs. Choose which one the page tells about; curves show all of them.`;
// Of a single run, what can be chosen is about the figures: it stands with them, behind the plain words.
if (data.runs.length === 1) document.querySelector(".behind").after(at("controls"));
if (data.left_out)
  at("lead").textContent +=
    ` ${data.left_out} more ${data.left_out > 1 ? "are" : "is"} left out: stopped, or diverged.`;
at("made").textContent =
  `Written by sottovoce ${data.version}. Everything is in this file: it asks nobody for anything. Privacy figures are rounded up.`;
drawAll();
