"""Laws: written once, run over every discovered algorithm on every topology it admits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sottovoce import Coordinate, InputError, Unaccountable, algorithm, iterate_rounds, metropolis, train, weigh
from sottovoce.algorithms.registry import algorithm_names, examples
from sottovoce.core.loop import play_round, start_run
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.random_streams import NoiseKey
from sottovoce.tracing.tracer import trace
from tests.cases import DIMENSION, FIXED, PLACES, ROUNDS, Case, Silenced, cases, refused, task
from tests.selection import rest_slow
from tests.tracing.dense_oracle import trace_dense

CASES = list(cases())
ONE_SUM = {"dp-fedavg", "secure-average", "secure-mafalda"}
"""Algorithms with one sum over everyone."""
COMPLETE = ONE_SUM | {"swarm"}
"""Algorithms in which all meet."""
LINEAR = [case for case in CASES if case.algorithm.compression.linear]
every_case = pytest.mark.parametrize("case", rest_slow(CASES))
every_linear_case = pytest.mark.parametrize("case", rest_slow(LINEAR))
every_example = pytest.mark.parametrize("example", examples(), ids=str)


class RecordingAlgorithm:
    """An algorithm that notes what it is asked."""

    def __init__(self, inner):
        self.inner, self.sent, self.took = inner, [], []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def on(self, net):
        self.inner = self.inner.on(net)
        return self

    def message(self, state):
        message = self.inner.message(state)
        self.sent.append(getattr(message, "value", message))
        return message

    def absorb(self, state, mixed):
        self.took.append(getattr(mixed, "value", mixed))
        return self.inner.absorb(state, mixed)


def start(case, x0):
    """A public starting point; averaging begins at zero, and updates are of one model."""
    if case.example.name in ("secure-average", "secure-mafalda"):
        return np.repeat(x0[:1], len(x0), axis=0)
    return 0 * x0 if case.algorithm.averaging else x0


def observe(spy, topology, feed, x0, rounds=ROUNDS):
    """All messages of a run, one row each."""
    inner, loop_state = start_run(spy, topology, x0, rounds)
    rows = []
    for t in range(rounds):
        played = play_round(inner, topology, loop_state, feed, t)
        loop_state = played.loop_state
        rows += [step.sent_messages().rows for step in played.steps]
    return np.concatenate(rows)


class Mute(NoiseFeed):
    """Draws without noise."""

    def noise(self, sources, matrix, round, step):
        return 0.0 * super().noise(sources, matrix, round, step)


@every_linear_case
def test_messages_of_an_adaptive_run_are_A_G_plus_B_Z(case):
    net, n = case.topology, case.topology.n
    x0 = start(case, np.random.default_rng(7).standard_normal((n, DIMENSION)))
    gradient, gradients = task(n), []

    def noted(t, x):
        gradients.append(gradient(t, x))
        return gradients[-1]

    seen = observe(case.algorithm, net, NoiseFeed(11, NoiseKey.of_seed(11), noted, x0), x0)
    public = observe(case.algorithm, net, Mute(11, NoiseKey.of_seed(11), lambda t, x: 0.0 * x, x0), x0)
    G = np.concatenate(gradients)
    for c in range(DIMENSION):
        system = trace(case.algorithm, net, rounds=ROUNDS, seed=11, coordinate=Coordinate(c, DIMENSION))
        A, B, _ = system.dense()
        Z = system.draw(NoiseKey.of_seed(11), DIMENSION)
        expected = A @ G[:, c] + B @ Z[:, c]
        np.testing.assert_allclose((seen - public)[:, c], expected, rtol=0, atol=1e-10)


@every_linear_case
def test_step_matrices_unrolled_are_the_whole_run_on_basis_rows(case):
    where = {"seed": 2, "coordinate": Coordinate(1, DIMENSION)}
    unrolled = trace(case.algorithm, case.topology, rounds=ROUNDS, **where).dense()
    whole = trace_dense(case.algorithm, case.topology, rounds=ROUNDS, **where)
    for ours, oracle in zip(unrolled[:2], whole[:2], strict=True):
        np.testing.assert_allclose(ours, oracle, rtol=0, atol=1e-12)
    for ours, oracle in zip(unrolled[2], whole[2], strict=True):
        np.testing.assert_array_equal(ours, oracle)


@pytest.mark.parametrize("case", rest_slow(case for case in cases(Silenced) if not case.example.unlike_d_psgd))
def test_without_noise_every_algorithm_is_d_psgd(case):
    silent, net = case.algorithm, case.topology
    base = task(net.n)
    plain = algorithm("d-psgd", step_size=silent.step_size, order=case.order)
    gradient = (lambda t, x: base(0, 0 * x) if t == 0 else 0 * x) if silent.averaging else base
    x0 = start(case, np.full((net.n, DIMENSION), 0.3))
    ours, theirs = (train(it, net, x0, gradient, rounds=ROUNDS) for it in (silent, plain))
    if case.example.settings.get("chebyshev") and silent.averaging:
        assert net.static
        ours, theirs = (train(it, net, x0, gradient, rounds=1) for it in (silent, plain))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


@every_example
def test_some_topology_is_admitted(example):
    places = [case.place for case in CASES if case.example is example]
    assert "complete:4" in places
    if example.name == "secure-gossip":
        assert {"ring:5", "exponential:6"} <= set(places)
    elif example.name not in COMPLETE:
        assert {"ring:5", "path:4"} <= set(places)


def test_the_fast_tests_meet_every_example_and_every_topology():
    fast = [one.values[0] for one in rest_slow(CASES) if not one.marks]
    assert {case.place for case in fast} == set(PLACES)
    assert [case.example for case in fast if case.place in FIXED] == list(examples())
    assert {case.example.name for case in fast if case.place not in FIXED} == set(algorithm_names()) - COMPLETE - {
        "secure-gossip"
    }


def test_refusals_are_these_and_no_others():
    """A new algorithm shows up here: say on which topologies it may not run."""
    undirected = {"muffliato", "muffliato-sgd", "zip-dl", "zip-dl-averaging", "rss-nb", "rss-lb", "decor"}
    found = {(e.name, place) for e in examples() for place in PLACES if refused(Case(e, place))}
    expected = {(name, "exponential:6") for name in undirected}
    expected |= {(name, place) for name in COMPLETE for place in PLACES if place != "complete:4"}
    expected |= {("dp-csgp", "dropout")}  # push weights promise columns, unannounced dropout keeps rows
    changing = ("fresh", "edges", "dropout", "announced")
    expected |= {
        ("secure-gossip", place) for place in ("path:4", "star:5", *changing)
    }  # sets of two and more, agreed on
    expected |= {("dp-csgp", place) for place in changing}  # where messages are compressed
    expected |= {("muffliato", place) for place in changing}  # where Chebyshev needs one W
    expected |= {("muffliato-sgd", place) for place in ("edges", "dropout", "announced")}  # and nodes that all meet
    expected |= {("mafalda", place) for place in changing}  # where classes of nodes need one W
    assert found == expected


def preserving(case):
    """Column sums of one; and where messages carry noise of their own, receivers that are all there (zip-dl A.5)."""
    cancels = case.place != "dropout" or not case.algorithm.noise.edge(case.topology.at(0))
    return cancels and all(case.topology.at(t).column_stochastic for t in range(ROUNDS))


@pytest.mark.parametrize("case", rest_slow(filter(preserving, CASES)))
def test_mixing_preserves_the_sum_of_messages(case):
    """zip-dl Corollary 3.2, exactly; push-sum's weighted sum; every doubly stochastic W."""
    n, spy = case.topology.n, RecordingAlgorithm(case.algorithm)
    x0 = start(case, np.ones((n, DIMENSION)))
    observe(spy, case.topology, NoiseFeed(5, NoiseKey.of_seed(5), task(n), x0), x0)
    said = spy.sent[1:] if case.algorithm.compression.name != "identity" else spy.sent  # the first copy is public
    for before, after in zip(said, spy.took, strict=True):
        np.testing.assert_allclose(after.sum(axis=0), before.sum(axis=0), rtol=0, atol=1e-10)


def test_unannounced_dropout_leaves_zero_sum_noise_in_the_average():
    case = next(case for case in CASES if case.example.name == "zip-dl" and case.place == "dropout")
    n, spy = case.topology.n, RecordingAlgorithm(case.algorithm)
    x0 = np.ones((n, DIMENSION))
    observe(spy, case.topology, NoiseFeed(5, NoiseKey.of_seed(5), task(n), x0), x0)
    gaps = [abs(a.sum(axis=0) - b.sum(axis=0)).max() for a, b in zip(spy.took, spy.sent, strict=True)]
    assert max(gaps) > 0.01


def rejects(samples, sigma, level=1e-9):
    """Whether a two-sided chi-square test tells the spread of zero-mean samples from sigma."""
    statistic = (samples**2).sum() / sigma**2
    tail = stats.chi2(samples.size)
    return 2 * min(tail.cdf(statistic), tail.sf(statistic)) < level


@every_linear_case
def test_noise_on_every_message_has_the_traced_size_and_no_other(case):
    n, D = case.topology.n, 8000
    x0 = np.zeros((n, D))
    seen = observe(
        case.algorithm, case.topology, NoiseFeed(3, NoiseKey.of_seed(3), lambda t, x: 0 * x, x0), x0, rounds=2
    )
    if case.algorithm.compression.name != "identity":
        check_random_k(case, seen)
        return
    _, B, _ = trace(case.algorithm, case.topology, rounds=2).dense()
    for row, sigma in zip(seen, np.linalg.norm(B, axis=1), strict=True):
        if sigma < 1e-12:
            assert abs(row).max() < 1e-12
            continue
        assert not rejects(row, sigma)
        assert rejects(row, 0.9 * sigma)
        assert rejects(row, 1.1 * sigma)


def check_random_k(case, seen):
    """The first round's messages: half of the coordinates carry the noise of the local step, the others nothing."""
    first = seen[: case.topology.n]
    sigma = case.algorithm.step_size * case.example.settings["sigma"]
    for row in first:
        assert np.count_nonzero(row) == row.size // 2
        assert not rejects(row[row != 0], sigma)
        assert rejects(row[row != 0], 0.9 * sigma)
        assert rejects(row[row != 0], 1.1 * sigma)


@pytest.mark.parametrize("weights", ["metropolis", "max-degree"])
@pytest.mark.parametrize("place", ["path:4", "star:5", "florentine", "ring:5"])
@pytest.mark.parametrize("setting", ["sigma", "message_sigma"])
def test_zero_sum_noise_has_the_variances_of_lemma_3_3(place, weights, setting):
    net, D = weigh(place, weights), 20_000
    W = net.at(0).weights.toarray()
    if not W.diagonal().all():
        with pytest.raises(InputError, match=r"W\[\d+,\d+\] = 0; zero-sum noise over the closed neighbourhood"):
            start_run(algorithm("zip-dl", sigma=1.0), net, np.zeros((net.n, 1)), 1)
        return
    zip_dl = algorithm("zip-dl", **{setting: 2.0}, step_size=0.5)
    step = next(iterate_rounds(zip_dl, net, np.zeros((net.n, D)), lambda t, x: 0 * x, rounds=1)).steps[0]
    sender, receiver, rows = step.sent_messages()
    lemma = {}
    for a in range(net.n):
        near = np.flatnonzero(W[a])
        d = len(near)
        for v in near:
            rest = sum(W[a, j] ** 2 for j in near if j != v)
            lemma[a, v] = ((d - 1) ** 2 / d**2 + rest / (d * W[a, v]) ** 2) ** 0.5
    least = {a: min(lemma[a, v] for v in np.flatnonzero(W[a]) if v != a) for a in range(net.n)}
    for a, v, row in zip(sender, receiver, rows, strict=True):
        sigma = 0.5 * 2.0 * lemma[a, v] / (1 if setting == "sigma" else least[a])
        assert not rejects(row, sigma)
        assert rejects(row, 0.9 * sigma)
        assert rejects(row, 1.1 * sigma)
        assert setting == "sigma" or sigma >= 0.5 * 2.0 * (1 - 1e-12)


def test_equal_weights_give_remark_3_4():
    net = metropolis("regular:12,d=4,seed=0")
    noise = algorithm("zip-dl", message_sigma=3.0).noise
    np.testing.assert_allclose(noise.zetas(net.at(0)), 3.0 * np.sqrt(5 / 4))


def steps_to(error, chebyshev, net):
    """Gossip steps until every value is within `error` of the mean, from one value of 1 and no noise."""
    values = np.zeros((net.n, 1))
    values[0] = net.n
    played = iterate_rounds(
        algorithm("muffliato", sigma=0.0, chebyshev=chebyshev),
        net,
        np.zeros((net.n, 1)),
        lambda t, x: values if t == 0 else 0 * x,
        rounds=100_000,
    )
    for count, round in enumerate(played, start=1):
        if abs(round.loop_state.state.x - 1).max() < error:
            return count
    raise AssertionError("never")


def test_chebyshev_needs_about_the_square_root_of_the_steps():
    net = metropolis("ring:64")
    plain, accelerated = steps_to(1e-3, False, net), steps_to(1e-3, True, net)
    root = net.spectral_gap**0.5
    assert accelerated < plain / 10
    assert 0.5 < (accelerated / plain) / root < 2.0, (plain, accelerated, root)


@every_case
def test_same_key_same_run_other_key_other_run(case):
    n = case.topology.n
    x0 = np.zeros((n, DIMENSION))
    first, again, other = (
        train(case.algorithm, case.topology, x0, task(n), rounds=ROUNDS, seed=s, noise_key=NoiseKey.of_seed(s))
        for s in (1, 1, 2)
    )
    assert (first == again).all()
    noisy = case.algorithm.noise.local(case.topology.at(0)) or case.algorithm.noise.edge(case.topology.at(0))
    assert (first != other).any() or not noisy


@every_linear_case
def test_no_noise_draw_is_used_twice(case):
    Z = (
        trace(case.algorithm, case.topology, rounds=ROUNDS, coordinate=Coordinate(0, DIMENSION))
        .draw(NoiseKey.of_seed(4), 1)
        .ravel()
    )
    assert len(np.unique(Z)) == len(Z)


@every_case
def test_torch_and_numpy_are_the_same_run(case):
    torch = pytest.importorskip("torch")
    n = case.topology.n
    numpy_task = task(n)
    x0 = start(case, np.full((n, DIMENSION), 0.2))
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-5)):
        ours = train(
            case.algorithm,
            case.topology,
            x0.astype(dtype),
            numpy_task,
            rounds=ROUNDS,
            seed=9,
            noise_key=NoiseKey.of_seed(9),
        )
        tensors = train(
            case.algorithm,
            case.topology,
            torch.from_numpy(x0.astype(dtype)),
            lambda t, x: torch.from_numpy(numpy_task(t, x.numpy())),
            rounds=ROUNDS,
            seed=9,
            noise_key=NoiseKey.of_seed(9),
        )
        assert ours.dtype == dtype
        assert tensors.numpy().dtype == dtype
        np.testing.assert_allclose(tensors.numpy(), ours, rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", [case for case in CASES if case not in LINEAR], ids=str)
def test_nonlinear_compression_refuses_by_name(case):
    with pytest.raises(Unaccountable, match=f"^{case.algorithm.compression.name} is not linear"):
        trace(case.algorithm, case.topology, rounds=ROUNDS)


def test_every_named_algorithm_of_the_papers_is_here():
    assert set(algorithm_names()) >= {
        "anti-pgd", "d-psgd", "decor", "dp-csgp", "dp-d-sgd", "dp-fedavg", "dp2sgd", "mafalda", "mf-d-sgd",
        "muffliato", "muffliato-sgd", "rss-lb", "rss-nb", "zip-dl", "zip-dl-averaging",
    }  # fmt: skip
