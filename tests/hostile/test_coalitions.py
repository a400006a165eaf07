"""Nodes that collude, and models that are published: what plain numpy finds, and what is said about it.

No code of the accountant is used to find it: rounds are played on rows of numbers, one column for each unknown.
"""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from scipy.special import log_ndtr

from sottovoce import account, algorithm, calibrate, metropolis, trace
from sottovoce.core.graphs import graph
from sottovoce.planning.planner import plan
from sottovoce.planning.question import Question
from sottovoce.privacy.covering_views import Coverage

DELTA, NODES = 1e-5, 8


def epsilon_reached(mu: float, delta: float = DELTA) -> float:
    """The epsilon of a Gaussian shift by mu, by bisection of its definition."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        first = math.exp(log_ndtr(-middle / mu + mu / 2))
        second = math.exp(middle + log_ndtr(-middle / mu - mu / 2))
        low, high = (middle, high) if first - second > delta else (low, middle)
    return low


def ring_weights(n: int) -> np.ndarray:
    W = np.eye(n) / 3
    for node in range(n):
        W[node, (node + 1) % n] = W[node, (node - 1) % n] = 1 / 3
    return W


def shift_seen(observed: np.ndarray, signal: list[int], unknown: list[int]) -> float:
    """mu of moving all columns `signal` by one at once, under unit noise in the columns `unknown`."""
    moved, noise = observed[:, signal].sum(axis=1), observed[:, unknown]
    values, vectors = np.linalg.eigh(noise @ noise.T)
    there = values > 1e-9 * values[-1]
    bare = moved - vectors[:, there] @ (vectors[:, there].T @ moved)
    assert np.abs(bare).max() < 1e-9
    return float(np.linalg.norm((vectors[:, there].T @ moved) / np.sqrt(values[there])))


# --- DECOR: neighbours share secrets ---------------------------------------------------------------------------------


def decor_pairs(sigma: float, pair: float, rounds: int, size: int) -> dict[tuple[int, ...], float]:
    """What every coalition of a size learns about the node it learns most about, on a ring, by a constant shift."""
    n, W = NODES, ring_weights(NODES)
    edges = [(node, (node + 1) % n) for node in range(n)]
    width = n + n + len(edges)  # of a round: gradients, own noise, secrets of edges
    state, said = np.zeros((n, rounds * width)), []
    for t in range(rounds):
        at = t * width
        sent = state.copy()
        for node in range(n):
            sent[node, at + node] += 1.0
            sent[node, at + n + node] += sigma
        for number, (one, other) in enumerate(edges):
            sent[one, at + 2 * n + number] += pair
            sent[other, at + 2 * n + number] -= pair
        said.append(sent)
        state = W @ sent
    out = {}
    for members in itertools.combinations(range(n), size):
        heard = sorted({(member + step) % n for member in members for step in (-1, 1)} - set(members))
        rows = np.concatenate([sent[heard] for sent in said])
        unknown = [
            t * width + n + column
            for t in range(rounds)
            for column in (
                *(node for node in range(n) if node not in members),
                *(n + number for number, ends in enumerate(edges) if not set(ends) & set(members)),
            )
        ]
        out[members] = max(
            shift_seen(rows, [t * width + victim for t in range(rounds)], unknown)
            for victim in range(n)
            if victim not in members
        )
    return out


@pytest.fixture(scope="module")
def decor():
    return algorithm("decor", sigma=1.0, sigma_pair=20.0), metropolis(f"ring:{NODES}")


def test_pairs_of_nodes_beat_what_decor_says_about_single_ones_and_that_is_said(sotto):
    line = f"account --graph ring:{NODES} --algorithm decor --sigma 2 --sigma-pair 20 --rounds 3"
    document = json.loads(sotto(f"{line} --json")[1])
    said = document["headline"]["epsilon"]
    alone, pairs = (decor_pairs(2.0, 20.0, 3, size) for size in (1, 2))
    assert all(epsilon_reached(mu) <= said for mu in alone.values())
    assert sum(epsilon_reached(mu) > said for mu in pairs.values()) >= NODES  # two neighbours know all secrets
    assert document["covers"] == {"everyone": True, "colluders": 1}
    assert "and every single node; larger coalitions are not covered." in " ".join(sotto(line)[1].split())


def test_no_pair_beats_what_decor_says_about_pairs(decor):
    built, net = decor
    found = account(trace(built, net, rounds=3), "coalition:any-2", kinds=("any-training",))
    assert found.coverage == Coverage(False, 2)
    assert max(decor_pairs(1.0, 20.0, 3, 2).values()) <= found.mu * (1 + 1e-9)
    first, second = found.headline.view.members
    assert (second - first) % NODES in (2, NODES - 2), "the worst coalition has the two neighbours of a node"


@pytest.mark.slow
def test_the_noise_for_pairs_keeps_pairs_to_the_target_and_the_noise_for_single_nodes_does_not(decor):
    built, net = decor
    single, paired = (
        calibrate(built, net, view, rounds=3, epsilon=2.0, delta=DELTA) for view in ("everyone", "coalition:any-2")
    )
    reached = {sigma: decor_pairs(sigma, 20.0, 3, 2).values() for sigma in (single, paired)}
    assert max(map(epsilon_reached, reached[paired])) <= 2.0
    assert sum(epsilon_reached(mu) > 2.0 for mu in reached[single]) >= NODES


@pytest.mark.parametrize(
    ("view", "covers"),
    [
        ("everyone", Coverage(True, 1)),
        pytest.param("coalition:any-2", Coverage(False, 2), marks=pytest.mark.slow),
    ],
)
def test_a_plan_says_how_many_colluders_it_covers(view, covers):
    question = Question(
        graph=graph("ring:5"), rounds=2, epsilon=2.0, delta=DELTA, records=10, dimension=5, view=view, adjacency="user"
    )
    found = {entry.algorithm: entry for entry in plan(question).ranked}
    row = found["decor"]
    assert row.covers == covers
    pair = row.settings["sigma_pair"]
    reached = {size: max(ring_of_five(row.sigma, pair, size)) for size in (1, 2)}
    assert epsilon_reached(reached[covers.colluders]) <= 2.0
    if covers.colluders == 1:
        assert epsilon_reached(reached[2]) > 2.0
        assert found["dp-d-sgd"].covers == Coverage(True, None)


def ring_of_five(sigma: float, pair: float, size: int) -> list[float]:
    """What coalitions learn in one round about a node: its noise is what secrets that they do not know leave of it."""
    out = []
    for members in itertools.combinations(range(5), size):
        honest = [node for node in range(5) if node not in members]
        laplacian = np.zeros((5, 5))
        for one, other in ((node, (node + 1) % 5) for node in range(5)):
            if one in honest and other in honest:
                laplacian[[one, other], [one, other]] += 1
                laplacian[[one, other], [other, one]] -= 1
        covariance = (sigma**2 * np.eye(5) + pair**2 * laplacian)[np.ix_(honest, honest)]
        heard = [i for i, node in enumerate(honest) if any((node - member) % 5 in (1, 4) for member in members)]
        seen = np.linalg.inv(covariance[np.ix_(heard, heard)])
        out.append(math.sqrt(2 * seen.diagonal().max()))  # two rounds
    return out


# --- published models ------------------------------------------------------------------------------------------------


def trained_on_a_ring(n: int, rounds: int, slopes: np.ndarray, published: str) -> tuple[np.ndarray, int]:
    """What node 0 of a ring sees of nodes with linear gradients `slope * x + g`, the final models included."""
    W, width = ring_weights(n), 2 * n
    state, said = np.zeros((n, rounds * width)), []
    for t in range(rounds):
        sent = (1 - slopes)[:, None] * state
        sent[0] = state[0]
        sent[np.arange(n), t * width + np.arange(n)] += 1.0
        sent[np.arange(n), t * width + n + np.arange(n)] += 1.0
        said.append(sent[[1, n - 1]])
        state = W @ sent
    said += {"none": [], "average": [state.mean(axis=0)[None]], "all": [state]}[published]
    return np.concatenate(said), width


def learned(n: int, rounds: int, victim: int, slopes: np.ndarray, published: str) -> float:
    rows, width = trained_on_a_ring(n, rounds, slopes, published)
    unknown = [t * width + n + node for t in range(rounds) for node in range(1, n)]
    return shift_seen(rows, [t * width + victim for t in range(rounds)], unknown)


FAR = {"n": 10, "rounds": 4, "victim": 5}


@pytest.fixture(scope="module")
def ring_of_ten():
    return trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:10"), rounds=4)


def test_a_node_that_sees_the_average_learns_of_nodes_that_no_message_came_from(ring_of_ten):
    """Four rounds are too few for a message over five hops; the average of the models holds every gradient."""
    still = np.zeros(10)
    without = account(ring_of_ten, "node:0", convex=True)
    assert without.of(5).mu == learned(**FAR, slopes=still, published="none") == 0.0
    assert without.of(5).final_models == "none"
    for published in ("average", "all"):
        found = account(ring_of_ten, "node:0", convex=True, final_models=published)
        exact = learned(**FAR, slopes=still, published=published)
        assert exact > 0.3
        assert found.of(5, "fixed-streams").mu == pytest.approx(exact, rel=1e-4)
        assert found.of(5).mu >= exact * (1 - 1e-9)
        assert found.of(5).final_models == published


@pytest.mark.parametrize("published", ["average", "all"])
def test_no_reaction_of_convex_training_shows_more_than_is_said(ring_of_ten, published):
    """Steps `x - (slope x + g)` with slopes from 0 to 2 are non-expansive; fixed streams know only slope 0."""
    found = account(ring_of_ten, "node:0", convex=True, final_models=published)
    rng = np.random.default_rng(0)
    drawn = [rng.uniform(0, 2, 10) for _ in range(20)] + [rng.choice([0.0, 2.0], 10) for _ in range(20)]
    for victim in (2, 3, 5):
        said = found.of(victim, "convex-training").mu
        for slopes in drawn:
            assert learned(10, 4, victim, slopes, published) <= said * (1 + 1e-9)
        assert found.of(victim, "any-training").mu >= said * (1 - 1e-9)


def test_zero_sum_noise_is_gone_from_the_average():
    """ZIP-DL's noises add up to nothing over the network: the average of the models is bare, and no sigma helps."""
    system = trace(algorithm("zip-dl", sigma=1.0), metropolis("ring:6"), rounds=3)
    assert account(system, "node:0").mu < math.inf
    found = account(system, "node:0", final_models="average")
    assert all(guarantee.mu == math.inf for guarantee in found.guarantees)


@pytest.mark.parametrize("place", ["ring:5", "star:4"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_published_average_holds_noise_that_colluders_know(place, rounds):
    """DP2SGD sends no message about its last step. All nodes but one take off their part of the published average, and
    have the last one's noisy gradient of that step: mu^2 is the number of rounds, with sigma 1.
    """
    net = metropolis(place)
    system = trace(algorithm("dp2sgd", sigma=1.0), net, rounds=rounds)
    found = account(system, "everyone", final_models="average")
    others = account(system, f"coalition:{','.join(map(str, range(1, net.n)))}", final_models="average")
    assert others.of(0, "any-training").mu ** 2 == pytest.approx(rounds)
    assert found.mu >= others.mu * (1 - 1e-9)
    assert found.coverage.colluders is None
