// The controls: which run, which adversary, which kind of figure; and what is then drawn anew.

function options(id, values, chosen) {
  const lines = values.map(([value, text]) => made("option", text, "", { value, selected: String(value) === String(chosen) }));
  at(id).replaceChildren(...lines);
  at(id).disabled = values.length < 2;
  at(id).parentElement.hidden = !values.some(([value]) => value !== "") || (id === "run" && values.length < 2);
}

function updateControls() {
  const found = leakage(), kinds = Object.keys(found?.ways ?? {});
  if (!kinds.includes(state.figureKind)) state.figureKind = kinds[0];
  if (found && !found.attackers.includes(state.attacker)) state.attacker = found.attackers[0];
  const kindText = (one) => (one === "proven" ? `proven (${named(found.ways[one].kinds)})` : "idealised (fixed-streams)");
  const attackers = found ? found.attackers.map((i) => [i, first(node(i))]) : [["", "none accounted for"]];
  options("run", data.runs.map((one, i) => [i, one.label]), state.run);
  options("attacker", attackers, state.attacker);
  options("figure-kind", kinds.length ? kinds.map((one) => [one, kindText(one)]) : [["", "none"]], state.figureKind);
  at("controls").hidden = [...at("controls").children].every((one) => one.hidden);
}

function drawAboutPairs() {
  updateControls();
  registered.filter((one) => one.pairs).forEach((one) => one.draw());
  drawGuarantees();
}
const UNCHECKED = "Privacy figures were computed again when this page was made. How good the model is was not: it is as "
  + "the folder of the run states it; sotto audit compares it.";
// What speaks against the folders, first; and beside figures what nothing was compared with.
function drawChecked() {
  document.querySelectorAll(".checked").forEach((one) => one.remove());
  const findings = [...new Set(data.runs.flatMap((one) => one.findings))];
  at("plain").before(...findings.map((line) => made("p", `Finding: ${line}`, "missing checked")));
  for (const id of new Set(data.runs.flatMap((one) => Object.keys(one.unchecked)))) {
    const lines = [...new Set(data.runs.flatMap((one) => one.unchecked[id] ?? []))], head = at(id).querySelector("h2");
    const note = made("p", `Not checked: ${lines.join("; ")}.`, "note checked");
    if (id !== "plain") {
      head ? head.after(note) : at(id).append(note);
      continue;
    }
    const folded = made("details", "", "checked");
    folded.append(made("summary", UNCHECKED), note);
    at(id).append(folded);
  }
}
function drawAll() {
  drawAboutPairs();
  drawPlain();
  drawSummary();
  drawChecked();
  registered.filter((one) => !one.pairs).forEach((one) => one.draw());
}
function choose(attacker) {
  if (!leakage()?.attackers.includes(attacker)) return;
  state.attacker = attacker;
  drawAboutPairs();
}

at("run").addEventListener("change", (event) => {
  state.run = Number(event.target.value);
  drawAll();
});
at("attacker").addEventListener("change", (event) => choose(Number(event.target.value)));
at("figure-kind").addEventListener("change", (event) => {
  state.figureKind = event.target.value;
  drawAboutPairs();
});
at("controls").addEventListener("submit", (event) => event.preventDefault());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
[["beforeprint", true], ["afterprint", false]].forEach(([event, on]) =>
  window.addEventListener(event, () => {
    document.documentElement.classList.toggle("paper", on);
    drawAll();
  }),
);
const [only, more] = [data.runs.length === 1 && data.runs[0], data.left_out];
at("lead").textContent =
  (only
    ? `${only.n} ${only.labels ? "members" : "nodes"}, ${only.rounds} rounds of training.`
    : `${data.runs.length} runs. Choose which one the page tells about; curves show all of them.`) +
  (more ? ` ${more} more ${more > 1 ? "are" : "is"} left out: stopped, or diverged.` : "");
// Of a single run, what can be chosen is about the figures: it stands with them, behind the plain words.
if (only) document.querySelector(".behind").after(at("controls"));
at("made").textContent =
  `Written by sottovoce ${data.version}. Everything is in this file: it asks nobody for anything. Privacy figures are rounded up.`;
drawAll();
