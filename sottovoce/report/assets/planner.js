// The planner: what a run would take, from figures that the accountant computed beforehand. Nothing here is a privacy
// formula: rounds go up to the next count that was computed, which is then named, and the table between epsilon and mu is crossed by chords that
// lie on the safe side, so no figure is below the accountant's. Where the page is served by `sotto plan --serve`, the
// accountant itself is asked, and its answer takes the place of what was computed beforehand.

// The value of a table of rising xs and ys at x, by the chord; beyond its ends null.
function chord(xs, ys, x) {
  const next = xs.findIndex((one) => one >= x);
  if (next < 0 || x < xs[0]) return null;
  if (xs[next] === x) return ys[next];
  const share = (x - xs[next - 1]) / (xs[next] - xs[next - 1]);
  return ys[next - 1] + share * (ys[next] - ys[next - 1]);
}

function planned(grid, { graph, algorithm, batches, rounds, epsilon, records, parameters }) {
  const at = grid.rounds.findIndex((one) => one >= rounds);
  const mu = chord(grid.epsilons, grid.mus, epsilon);
  const point = grid.points[graph]?.[algorithm]?.[batches]?.[at];
  if (!point || mu == null || !(records >= batches) || !(parameters >= 1)) return null;
  const sigma = point.mu / mu,
    moved = ((2 * batches) / records) * sigma * Math.sqrt(parameters);
  return {
    sigma,
    rounds: grid.rounds[at],
    covers: grid.algorithms[algorithm].covers,
    average: moved * point.average,
    node: moved * point.node,
    convex: grid.algorithms[algorithm].convex,
    leaks: point.by_distance.map((one, i) => {
      const lost = one / sigma;
      const least = grid.epsilons[0];
      const most = lost < grid.mus[0] ? least : Math.min(epsilon, chord(grid.mus, grid.epsilons, lost) ?? epsilon);
      return [i + 1, most];
    }),
  };
}

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
const PLAN_NUMBERS = { rounds: [1, 100], epsilon: [0.01, 8], records: [1, 100], parameters: [1, 1000] };
const ASKED_NUMBERS = { batches: [1, 5], ...PLAN_NUMBERS, colluders: [1, 1] };
const planState = { graph: "ring:16", algorithm: "dp-d-sgd", batches: 5, observer: "0" };

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

function planControls(grid, form) {
  const served = data.ask;
  if (served) {
    planState.graph = served.graphs[0];
    const known = Object.assign(made("datalist"), { id: "plan-graphs" });
    known.append(...served.graphs.map((value) => Object.assign(made("option"), { value })));
    form.append(known);
    planInput(form, "graph", { type: "text", maxLength: 500 }).setAttribute("list", "plan-graphs");
    planChoice(form, "algorithm", served.algorithms);
  } else {
    planChoice(form, "graph", Object.keys(grid.points));
    planChoice(form, "algorithm", Object.keys(grid.algorithms));
    planChoice(form, "batches", Object.keys(grid.points[planState.graph][planState.algorithm]));
  }
  Object.entries(served ? ASKED_NUMBERS : PLAN_NUMBERS).forEach(([name, [min, value]]) => {
    planState[name] = value;
    planInput(form, name, { type: "number", min, step: "any", value }, Number);
  });
  if (served) planInput(form, "observer", { type: "text", maxLength: 200 });
}

// Why the table has no answer, and where there is one.
function whyNotStored(grid, { graph, algorithm }) {
  if (!grid.points[graph]?.[algorithm])
    return `${algorithm} is one sum over all nodes: choose a complete graph. For sums over neighbours (secure-gossip) and other algorithms, type sotto plan, or sotto plan --serve for a planner that computes.`;
  return `Computed are up to ${grid.rounds.at(-1)} rounds and ε from ${grid.epsilons[0]} to ${grid.epsilons.at(-1)}, for nodes with a record in each batch at least. For more, ask sotto plan, or type sotto plan --serve for a planner that computes.`;
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
      answer = { refused: "The accountant does not answer: sotto plan --serve was ended.", gone: true };
    }
    if (turn !== asking.turn) return;
    clearInterval(asking.clock);
    show(answer);
  }, 250);
}

const moved = (value) => (value == null ? "an amount that is not predicted" : upwards(value));
const planWords = (found) =>
  `Noise needed: σ = ${upwards(found.sigma)} times the sensitivity. It moves the average model by ${moved(found.average)} and the model of a node by ${moved(found.node)}, for steps of size one and gradients clipped to one.`;
const countedRounds = (found) => found.rounds && found.rounds !== planState.rounds;
const storedWords = (found) =>
  planWords(found) +
  (countedRounds(found)
    ? ` This is for ${found.rounds} rounds, the next number above ${planState.rounds} that was computed; noise and leaks for ${planState.rounds} are not larger.`
    : "");

function planCaption(found, exact) {
  const observer = /^\d+$/.test(planState.observer) ? `node ${planState.observer}` : planState.observer;
  const who = exact ? `what ${observer} could learn about one record` : "about one record";
  const proof = found.convex
    ? "for convex training with small enough steps; a direct neighbour can learn as much as whoever hears everything"
    : "for any training: this proof does not count on distance";
  return `ε at δ = ${small(data.plans.delta)}, ${who}${countedRounds(found) ? ` in ${found.rounds} rounds` : ""}, ${proof}.`;
}

function showPlan(place, found, exact) {
  const points = found.leaks.filter(([, epsilon]) => isFinite(epsilon));
  if (!points.length) return place.missing(["No finite ε is proven for what a single node could learn.", ""]);
  const numbers = table(
    ["hops", "ε at most"],
    found.leaks.map(([hops, epsilon]) => [String(hops), upwards(epsilon)]),
  );
  if (points.every(([, epsilon]) => epsilon === points[0][1]))
    return place.sentence(
      `ε = ${upwards(points[0][1])} about every node${points.length > 1 ? ", at every distance" : ""}: ${planCaption(found, exact)} The noise protects ${found.covers}.`,
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
    caption: [planCaption(found, exact)],
    notes: [
      exact
        ? "The accountant computed these figures."
        : "Noise and leaks are rounded up: the accountant's own are never larger.",
      `The noise protects ${found.covers}.`,
    ],
    numbers,
  });
}

function drawPlan() {
  const section = at("planner"),
    grid = data.plans;
  if (!section.querySelector("form")) {
    const form = made("form", null, "planner");
    form.addEventListener("submit", (event) => event.preventDefault());
    planControls(grid, form);
    section.insertBefore(form, at("plan"));
    section.insertBefore(Object.assign(made("p"), { id: "plan-answer" }), at("plan"));
    section.insertBefore(Object.assign(made("p", null, "note"), { id: "plan-waiting", hidden: true }), at("plan"));
    at("plan-answer").setAttribute("role", "status");
  }
  const stored = planned(grid, planState),
    answer = at("plan-answer"),
    place = figure("plan", "What a node could learn about one record, by distance");
  answer.dataset.from = stored ? "table" : "nobody";
  if (stored) {
    answer.textContent = storedWords(stored);
    showPlan(place, stored, false);
  } else {
    answer.textContent = data.ask ? "" : whyNotStored(grid, planState);
    place.missing([data.ask ? "The accountant is computing." : "The table has no answer for these choices.", ""]);
  }
  if (!data.ask) return;
  const waiting = at("plan-waiting");
  askAccountant(
    (seconds) => {
      waiting.hidden = false;
      waiting.textContent = `The accountant is computing: ${seconds} s.${stored ? " Until it answers, figures are those that were computed beforehand." : ""}`;
    },
    (found) => {
      waiting.hidden = true;
      answer.dataset.from = found.refused ? "nobody" : "accountant";
      if (found.refused && found.gone && stored) {
        answer.textContent = `${storedWords(stored)} ${found.refused} These figures were computed beforehand.`;
      } else if (found.refused) {
        answer.textContent = found.refused;
        place.missing(["There is no answer to this question; the reason is above.", ""]);
      } else {
        answer.textContent = planWords(found);
        showPlan(place, found, true);
      }
    },
  );
}

register({ id: "plan", section: "planner", draw: drawPlan });
