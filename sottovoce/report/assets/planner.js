// The planner: what a run would take, from figures that the accountant computed beforehand. Nothing here is a privacy
// formula: rounds go up to the next that was computed, and the table between epsilon and mu is crossed by chords that
// lie on the safe side, so no figure is below the accountant's.

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
  if (at < 0 || mu == null || !(records >= batches) || !(parameters >= 1)) return null;
  const point = grid.points[graph][algorithm][batches][at],
    sigma = point.mu / mu,
    moved = ((2 * batches) / records) * sigma * Math.sqrt(parameters);
  return {
    sigma,
    average: moved * point.average,
    node: moved * point.node,
    leaks: point.by_distance.map((one) => {
      const lost = one / sigma;
      const least = grid.epsilons[0];
      return lost < grid.mus[0] ? least : Math.min(epsilon, chord(grid.mus, grid.epsilons, lost) ?? epsilon);
    }),
  };
}

// Four digits, rounded up.
function upwards(value) {
  const unit = 10 ** (Math.floor(Math.log10(value)) - 3);
  return String(Number((Math.ceil(value / unit) * unit).toPrecision(4)));
}

const PLAN_NUMBERS = { rounds: [1, 100], epsilon: [0.01, 8], records: [1, 100], parameters: [1, 1000] };
const planState = { graph: "ring:16", algorithm: "dp-d-sgd", batches: 5 };
const planControl = (text, input) => {
  const found = made("label", text + " ");
  found.append(input);
  return found;
};

function planControls(grid, form) {
  const graph = planState.graph;
  const choices = {
    graph: ["graph", Object.keys(grid.points)],
    algorithm: ["algorithm", Object.keys(grid.points[graph])],
    batches: ["batches an epoch", Object.keys(grid.points[graph][planState.algorithm])],
  };
  Object.entries(choices).forEach(([name, [text, values]]) => {
    const select = Object.assign(made("select"), { id: `plan-${name}` });
    select.append(...values.map((value) => Object.assign(made("option", value), { value })));
    select.value = planState[name];
    select.addEventListener("change", () => ((planState[name] = select.value), drawPlan()));
    form.append(planControl(text, select));
  });
  const texts = { rounds: "rounds", epsilon: "target ε", records: "records a node", parameters: "parameters" };
  Object.entries(PLAN_NUMBERS).forEach(([name, [min, value]]) => {
    planState[name] = value;
    const input = Object.assign(made("input"), { id: `plan-${name}`, type: "number", min, step: "any", value });
    input.addEventListener("input", () => ((planState[name] = Number(input.value)), drawPlan()));
    form.append(planControl(texts[name], input));
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
    at("plan-answer").setAttribute("role", "status");
  }
  const found = planned(grid, planState),
    place = figure("plan", "What a node could learn about one record, by distance");
  if (!found) {
    at("plan-answer").textContent =
      `Computed are up to ${grid.rounds.at(-1)} rounds and ε from ${grid.epsilons[0]} to ${grid.epsilons.at(-1)}, for nodes with a record in each batch at least: ask sotto plan for more.`;
    return place.missing(["No answer for these numbers.", ""]);
  }
  at("plan-answer").textContent =
    `Noise needed: σ = ${upwards(found.sigma)} times the sensitivity. It moves the average model by ${upwards(found.average)} and the model of a node by ${upwards(found.node)}, for steps of size one and gradients clipped to one.`;
  const points = found.leaks.map((one, i) => [i + 1, one]);
  place.draw({
    marks: [
      { kind: "line", points, colour: css("--accent"), width: 1.5 },
      { kind: "dots", dots: points.map(([x, y]) => ({ x, y, colour: css("--accent"), symbol: "circle", size: 11, hover: `${x} hops\nε = ${upwards(y)}` })) },
    ],
    x: { title: "hops", ticks: points.map(([x]) => [x, String(x)]) },
    y: { title: "ε", zero: true },
    caption: [
      planState.algorithm === "mafalda"
        ? "ε at δ = 1e-5, for any training: this proof does not count on distance."
        : "ε at δ = 1e-5, for convex training with small enough steps; a direct neighbour learns as much as whoever hears everything.",
    ],
    notes: ["Rounds go up to the next that was computed, and every figure is rounded up: the accountant's own are never larger."],
    numbers: table(
      ["hops", "ε at most"],
      points.map(([hops, epsilon]) => [String(hops), upwards(epsilon)]),
    ),
  });
}

register({ id: "plan", section: "planner", draw: drawPlan });
