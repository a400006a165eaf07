// The planner: what a run would take, asked of the accountant that `sotto plan --serve` runs. Nothing here is a privacy
// formula.

// Four digits, rounded up.
function upwards(value) {
  if (!(value > 0) || !isFinite(value)) return String(value);
  const unit = 10 ** (Math.floor(Math.log10(value)) - 3);
  return String(Number((Math.ceil(value / unit) * unit).toPrecision(4)));
}

// What is asked, in the order of the form: the words before it, and of a number the least and the first value.
const PLAN_FORM = {
  graph: ["graph"],
  algorithm: ["algorithm"],
  batches: ["batches an epoch", 1, 5],
  rounds: ["rounds", 1, 100],
  epsilon: ["target ε", 0.01, 8],
  records: ["records a node", 1, 100],
  parameters: ["parameters", 1, 1000],
  colluders: ["colluding nodes", 1, 1],
  observer: ["seen by node"],
};
const planState = { graph: data.ask.graphs[0], algorithm: "dp-d-sgd", observer: "0" };

function planControls() {
  const options = (values) => values.map((value) => made("option", value, "", { value }));
  const controls = {
    graph: () => made("input", [], "", { type: "text", maxLength: 500 }),
    algorithm: () => made("select", options(data.ask.algorithms)),
    observer: () => made("input", [], "", { type: "text", maxLength: 200 }),
  };
  const known = made("datalist", data.ask.graphs.map((value) => made("option", [], "", { value })), "", { id: "plan-graphs" });
  const labels = Object.entries(PLAN_FORM).map(([name, [text, min, value]]) => {
    const control = controls[name]?.() ?? made("input", [], "", { type: "number", min, step: "any" });
    planState[name] ??= value;
    Object.assign(control, { id: `plan-${name}`, value: planState[name] });
    if (name === "graph") control.setAttribute("list", known.id);
    control.addEventListener(name === "algorithm" ? "change" : "input", () => {
      planState[name] = min == null ? control.value : Number(control.value);
      drawPlan();
    });
    return made("label", [`${text} `, control]);
  });
  const form = made("form", [known, ...labels], "planner");
  form.addEventListener("submit", (event) => event.preventDefault());
  return form;
}

// What was asked last; an answer to an earlier question is not shown. `wait` is told every second how long it takes.
const asking = { turn: 0, timer: null, clock: null };
function askAccountant(wait, show) {
  const turn = ++asking.turn, begun = performance.now();
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
  const points = found.leaks.filter(([, epsilon]) => isFinite(epsilon)), colour = css("--accent");
  if (!points.length) return place.missing(["No finite ε is proven for what a single node could learn.", ""]);
  const [[, one]] = points, covers = `The noise protects ${found.covers}.`;
  const numbers = table(found.leaks, [["hops", ([hops]) => String(hops)], ["ε at most", ([, epsilon]) => upwards(epsilon)]]);
  if (points.every(([, epsilon]) => epsilon === one)) {
    const where = points.length > 1 ? ", at every distance" : "";
    return place.sentence(`ε = ${upwards(one)} about every node${where}: ${planCaption(found)} ${covers}`, numbers);
  }
  const dots = points.map(([x, y]) => ({ x, y, colour, size: 11, hover: `${x} hops\nε = ${upwards(y)}` }));
  place.draw({
    marks: [{ kind: "line", points, colour, width: 1.5 }, { kind: "dots", dots }],
    x: { title: "hops", ticks: points.map(([x]) => [x, String(x)]) },
    y: { title: "ε", zero: true },
    caption: planCaption(found),
    notes: [covers],
    numbers,
  });
}

function drawPlan() {
  if (!at("plan-answer"))
    at("plan").before(
      planControls(),
      made("p", [], "", { id: "plan-answer", role: "status" }),
      made("p", [], "note", { id: "plan-waiting", hidden: true }),
    );
  const answer = at("plan-answer"), waiting = at("plan-waiting");
  const place = figure("plan", "What a node could learn about one record, by distance");
  const say = (from, text) => {
    answer.dataset.from = from;
    answer.textContent = text;
  };
  say("nobody", "");
  place.missing(["The accountant is computing.", ""]);
  askAccountant(
    (seconds) => {
      waiting.hidden = false;
      waiting.textContent = `The accountant is computing: ${seconds} s.`;
    },
    (found) => {
      waiting.hidden = true;
      say(found.refused ? "nobody" : "accountant", found.refused || planWords(found));
      if (found.refused) place.missing(["There is no answer to this question; the reason is above.", ""]);
      else showPlan(place, found);
    },
  );
}

register({ id: "plan", section: "planner", draw: drawPlan });
