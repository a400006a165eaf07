// The planner: what a run would take, asked of the accountant that `sotto plan --serve` runs. Nothing here is a privacy
// formula.

// Four digits, rounded up.
function upwards(value) {
  if (!(value > 0) || !isFinite(value)) return String(value);
  const unit = 10 ** (Math.floor(Math.log10(value)) - 3);
  return String(Number((Math.ceil(value / unit) * unit).toPrecision(4)));
}

const PLAN_TEXTS = {
  graph: "graph",
  algorithm: "algorithm",
  batches: "batches an epoch",
  rounds: "rounds",
  epsilon: "target ε",
  records: "records a node",
  parameters: "parameters",
  observer: "seen by node",
  colluders: "colluding nodes",
};
const PLAN_NUMBERS = {
  batches: [1, 5],
  rounds: [1, 100],
  epsilon: [0.01, 8],
  records: [1, 100],
  parameters: [1, 1000],
  colluders: [1, 1],
};
const planState = { graph: data.ask.graphs[0], algorithm: "dp-d-sgd", observer: "0" };

function planControl(form, name, control) {
  const label = made("label", `${PLAN_TEXTS[name]} `);
  control.id = `plan-${name}`;
  label.append(control);
  form.append(label);
}

function planChoice(form, name, values) {
  const select = made("select");
  select.append(...values.map((value) => Object.assign(made("option", value), { value })));
  select.value = planState[name];
  select.addEventListener("change", () => ((planState[name] = select.value), drawPlan()));
  planControl(form, name, select);
}

function planInput(form, name, settings, read = String) {
  const input = Object.assign(made("input"), { value: planState[name], ...settings });
  input.addEventListener("input", () => ((planState[name] = read(input.value)), drawPlan()));
  planControl(form, name, input);
  return input;
}

function planControls(form) {
  const known = Object.assign(made("datalist"), { id: "plan-graphs" });
  known.append(...data.ask.graphs.map((value) => Object.assign(made("option"), { value })));
  form.append(known);
  planInput(form, "graph", { type: "text", maxLength: 500 }).setAttribute("list", "plan-graphs");
  planChoice(form, "algorithm", data.ask.algorithms);
  Object.entries(PLAN_NUMBERS).forEach(([name, [min, value]]) => {
    planState[name] = value;
    planInput(form, name, { type: "number", min, step: "any", value }, Number);
  });
  planInput(form, "observer", { type: "text", maxLength: 200 });
}

// What was asked last; an answer to an earlier question is not shown. `wait` is told every second how long it takes.
const asking = { turn: 0, timer: null, clock: null };
function askAccountant(wait, show) {
  const turn = ++asking.turn,
    begun = performance.now();
  const waited = () => wait(Math.round((performance.now() - begun) / 1000));
  clearTimeout(asking.timer);
  clearInterval(asking.clock);
  asking.clock = setInterval(waited, 1000);
  waited();
  asking.timer = setTimeout(async () => {
    let answer;
    try {
      const response = await fetch(`${data.ask.at}?${new URLSearchParams(planState)}`);
      answer = response.ok ? await response.json() : { refused: "The question was not accepted. Reload the page." };
    } catch {
      answer = { refused: "The accountant does not answer: sotto plan --serve was ended." };
    }
    if (turn !== asking.turn) return;
    clearInterval(asking.clock);
    show(answer);
  }, 250);
}

const moved = (value) => (value == null ? "an amount that is not predicted" : upwards(value));
const planWords = (found) =>
  `Noise needed: σ = ${upwards(found.sigma)} times the sensitivity. It moves the average model by ${moved(found.average)} and the model of a node by ${moved(found.node)}, for steps of size one and gradients clipped to one.`;

function planCaption(found) {
  const observer = /^\d+$/.test(planState.observer) ? `node ${planState.observer}` : planState.observer;
  const proof = found.convex
    ? "for convex training with small enough steps; a direct neighbour can learn as much as whoever hears everything"
    : "for any training: this proof does not count on distance";
  return `ε at δ = ${small(data.ask.delta)}, what ${observer} could learn about one record, ${proof}.`;
}

function showPlan(place, found) {
  const points = found.leaks.filter(([, epsilon]) => isFinite(epsilon));
  if (!points.length) return place.missing(["No finite ε is proven for what a single node could learn.", ""]);
  const numbers = table(
    ["hops", "ε at most"],
    found.leaks.map(([hops, epsilon]) => [String(hops), upwards(epsilon)]),
  );
  if (points.every(([, epsilon]) => epsilon === points[0][1]))
    return place.sentence(
      `ε = ${upwards(points[0][1])} about every node${points.length > 1 ? ", at every distance" : ""}: ${planCaption(found)} The noise protects ${found.covers}.`,
      numbers,
    );
  const dot = ([x, y]) => ({
    x,
    y,
    colour: css("--accent"),
    symbol: "circle",
    size: 11,
    hover: `${x} hops\nε = ${upwards(y)}`,
  });
  place.draw({
    marks: [
      { kind: "line", points, colour: css("--accent"), width: 1.5 },
      { kind: "dots", dots: points.map(dot) },
    ],
    x: { title: "hops", ticks: points.map(([x]) => [x, String(x)]) },
    y: { title: "ε", zero: true },
    caption: [planCaption(found)],
    notes: [`The noise protects ${found.covers}.`],
    numbers,
  });
}

function drawPlan() {
  const section = at("planner");
  if (!section.querySelector("form")) {
    const form = made("form", null, "planner");
    form.addEventListener("submit", (event) => event.preventDefault());
    planControls(form);
    section.insertBefore(form, at("plan"));
    section.insertBefore(Object.assign(made("p"), { id: "plan-answer" }), at("plan"));
    section.insertBefore(Object.assign(made("p", null, "note"), { id: "plan-waiting", hidden: true }), at("plan"));
    at("plan-answer").setAttribute("role", "status");
  }
  const answer = at("plan-answer"),
    waiting = at("plan-waiting"),
    place = figure("plan", "What a node could learn about one record, by distance");
  answer.dataset.from = "nobody";
  answer.textContent = "";
  place.missing(["The accountant is computing.", ""]);
  askAccountant(
    (seconds) => {
      waiting.hidden = false;
      waiting.textContent = `The accountant is computing: ${seconds} s.`;
    },
    (found) => {
      waiting.hidden = true;
      answer.dataset.from = found.refused ? "nobody" : "accountant";
      answer.textContent = found.refused || planWords(found);
      if (found.refused) place.missing(["There is no answer to this question; the reason is above.", ""]);
      else showPlan(place, found);
    },
  );
}

register({ id: "plan", section: "planner", draw: drawPlan });
