"""The papers' formulas: by hand on two and three nodes, by their own matrices, and where they are below the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce import (
    Changing,
    Graph,
    InputError,
    Unaccountable,
    account,
    algorithm,
    fresh_erdos_renyi,
    max_degree,
    metropolis,
    random_edges,
    trace,
    uniform,
    views,
    weigh,
)
from sottovoce.core.participation import parse_participation
from sottovoce.privacy import published_formulas
from sottovoce.privacy.assumptions import AssumptionKind
from sottovoce.privacy.exact import routes
from sottovoce.privacy.guarantee import TrainingProof
from sottovoce.privacy.observation import observe
from sottovoce.privacy.published_formulas import (
    mafalda_theorem_8,
    muffliato_corollary_1,
    muffliato_theorem_1,
    muffliato_theorem_4,
    muffliato_theorem_6,
    muffliato_theorem_11,
    published,
    threat_local_bound,
    threat_theorem_8,
    threat_theorem_9,
    threat_theorem_10,
    zip_dl_theorem_5_9,
    zip_dl_theorem_5_12,
)
from sottovoce.privacy.worst_case import worst_case

PAIR = metropolis("path:2")  # W = 1/2 everywhere
THREE = metropolis("path:3")  # W = [[2, 1, 0], [1, 1, 1], [0, 1, 2]] / 3
EVERY = parse_participation("every")
AVERAGING = ["muffliato Theorem 1", "muffliato Corollary 1", "muffliato Theorem 4"]


def exact_losses(name, net, view, rounds, **settings):
    """M of every victim, as the accountant has it."""
    return routes.losses(observe(trace(algorithm(name, **({"sigma": 1.0} | settings)), net, rounds=rounds), view))


def figures(name, net, view, rounds, lipschitz=None, **settings):
    """Everything published for a system, by name."""
    system = trace(algorithm(name, **({"sigma": 1.0} | settings)), net, rounds=rounds)
    return {figure.name: figure for figure in published(system, view, lipschitz=lipschitz)}


def powers(net, count):
    W = net.at(0).weights.toarray()
    return [np.linalg.matrix_power(W, k) for k in range(count)]


def heard(net, attacker):
    W = net.at(0).weights.toarray()
    return [w for w in range(net.n) if W[attacker, w] and w != attacker]


def averaging_rows(net, attacker, rounds):
    """B of the paper's own view of averaging: the attacker's own noise counts as unknown."""
    return np.concatenate([power[heard(net, attacker)] for power in powers(net, rounds)])


def leverages(rows):
    """`diag(B^+ B)`: the exact loss of every node when all noise is unknown."""
    _, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    return np.square(basis[sizes > 1e-11 * sizes[0]]).sum(axis=0)


def same(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-13)


# --- by hand -------------------------------------------------------------------------------------------------------


def test_muffliato_theorem_1_by_hand():
    """Node 0 hears (0, 1), then (1/2, 1/2): shares 1 + 1/2 for node 1, 1/2 for itself."""
    same(muffliato_theorem_1(PAIR, 0, 2, 1.0), [0.5, 1.5])
    same(muffliato_theorem_1(PAIR, 0, 2, 2.0), [0.125, 0.375])
    # node 0 of three hears (0, 1, 0), then (1, 1, 1) / 3
    same(muffliato_theorem_1(THREE, 0, 2, 1.0), [1 / 3, 4 / 3, 1 / 3])


def test_muffliato_theorem_1_reads_products_of_changing_weights_in_the_order_of_time():
    """Edges 0-1, 1-2, 2-3 wake in turn: node 3 hears (1, 1, 2, 0) / 4 once, node 0 hears (0, 1, 0, 0)."""
    woken = [metropolis(Graph.from_edges([(k, k + 1)], nodes=4)).at(0) for k in range(3)]
    net = Changing(lambda round, step: woken[round], n=4)
    same(muffliato_theorem_1(net, 3, 3, 1.0), [1 / 6, 1 / 6, 2 / 3, 0.0])
    same(muffliato_theorem_1(net, 0, 3, 1.0), [0.0, 1.0, 0.0, 0.0])


def test_muffliato_corollary_1_by_hand():
    """n = 2, W_vw^-2 = 4, and the walk is back with probability 1/2 after each of two steps."""
    same(muffliato_corollary_1(PAIR, 0, 2, 1.0), [4.0, 4.0])
    # three nodes, W_01^-2 = 9; from 2 to 0 in one step 0, in two steps 1/9
    assert muffliato_corollary_1(THREE, 0, 2, 3.0)[2] == pytest.approx(3 * 9 / 81 / 9)


def test_muffliato_theorem_4_by_hand():
    """One neighbour of three nodes: 2 T d / (n - d) = T for the far node."""
    same(muffliato_theorem_4(THREE, 0, 5, 1.0)[1:], [1.0, 5.0])
    same(muffliato_theorem_4(THREE, 0, 5, 2.0)[1:], [0.25, 1.25])


def test_muffliato_theorem_6_by_hand():
    """T times Theorem 1 with K steps; at K = 1 only neighbours are said to lose anything."""
    same(muffliato_theorem_6(PAIR, 0, 3, 1.0, gossip_steps=2), [1.5, 4.5])
    same(muffliato_theorem_6(THREE, 0, 7, 1.0), [0.0, 7.0, 0.0])


def test_muffliato_theorem_11_by_hand():
    """Path of three, node 0 hears node 1: of node 1 (T - k) (1/3) / (1/3) but for k = 0, where it hears all of it."""
    same(muffliato_theorem_11(THREE, 0, 2, 1.0), [1.0, 2.0, 1.0])
    same(muffliato_theorem_11(metropolis("ring:9"), 0, 2, 2.0)[[2, 3]], [0.25, 0.0])
    found = figures("dp-d-sgd", metropolis("erdos-renyi:30,p=0.15,seed=1"), views.node(0), 10)
    assert not found["muffliato Theorem 11"].below.any()
    assert (found["muffliato Theorem 11"].squares > 5 * found["mafalda Theorem 8, mended"].squares).mean() > 0.5


def test_a_formula_that_is_not_asked_for_is_not_computed(monkeypatch):
    monkeypatch.setattr(published_formulas, "LARGEST", 0.0)
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:6"), rounds=3)
    found = {one.name: one for one in published_formulas.formulas(system, views.node(0))}
    same(found["local bound"].squares(), [3.0] * 6)
    with pytest.raises(Unaccountable, match="dense"):
        found["threat models Theorem 10"].squares()


def test_threat_models_by_hand():
    """Two nodes, W^k = W: v holds half of u's noise of every round so far, so T rounds tell T times one."""
    same(threat_local_bound(PAIR, 3, 2.0), [0.75, 0.75])
    for theorem in (threat_theorem_8, threat_theorem_9):
        assert theorem(PAIR, 0, 1, 1.0)[1] == pytest.approx(1)
        assert theorem(PAIR, 0, 2, 1.0, mended=True)[1] == pytest.approx(2)
        assert theorem(PAIR, 0, 2, 1.0)[1] == pytest.approx(1)  # the last entry of x_T repeats the one before
        assert math.isnan(theorem(PAIR, 0, 1, 1.0)[0])
    assert threat_theorem_10(PAIR, 0, 2, 2.0)[1] == pytest.approx(0.5)
    # node 2 of three says z, then 2/3 z + 1/3 z_1 + z': beyond z an innovation of 1 in variance 10/9
    assert threat_theorem_10(THREE, 0, 2, 1.0)[2] == pytest.approx(1.9)


def test_mafalda_theorem_8_by_hand():
    """Node 0 hears node 1: z_1, then z_1 / 3 + z_2 / 3 + z_1': 1/9 in variance 10/9 for node 2; the root is missing."""
    same(mafalda_theorem_8(THREE, 0, 2, 1.0, mended=True)[2], 0.1)
    same(mafalda_theorem_8(THREE, 0, 2, 1.0)[2], 0.01)
    # everyone, noise z, z' - z: C = [[1, 0], [1, 1]], C^T C = [[2, 1], [1, 1]]
    C = np.tril(np.ones((2, 2)))
    same(mafalda_theorem_8(THREE, None, 2, 2.0, correlation=C, mended=True), [5 / 4] * 3)
    same(mafalda_theorem_8(THREE, None, 2, 2.0, correlation=C), [25 / 4] * 3)


def test_zip_dl_by_hand():
    """Three nodes: one round leaves noise 19/54 in the middle model and 23/108 in an end's, for zeta = 1."""
    same(zip_dl_theorem_5_12(THREE, 0, 2, 1.0)[2], (1 / 3) / (19 / 54))
    same(zip_dl_theorem_5_12(THREE, 0, 2, 1.0, mended=True)[2], (1 / 9) / (19 / 54))
    same(zip_dl_theorem_5_12(THREE, 0, 2, 2.0)[2], (1 / 3) / (19 / 54) / 4)
    same(zip_dl_theorem_5_12(THREE, 0, 2, 2.0, mended=True)[2], (1 / 9) / (19 / 54) / 4)
    assert zip_dl_theorem_5_12(THREE, 0, 2, 1.0, mended=True)[1] == math.inf  # a neighbour's first message is bare

    constants = {"lipschitz": 1.0, "step_size": 0.5}  # 4 g^2 = 1, (1 - g L)^2 = 1/4, growth (2 + 1)^1 - 1 = 2
    wanted = 0.5 * 2 * (4 / (23 / 108) + 4 / (19 / 54))
    same(zip_dl_theorem_5_9(THREE, 0, 2, 1.0, **constants), [wanted] * 3)
    same(zip_dl_theorem_5_9(THREE, 0, 2, 2.0, **constants), [wanted / 4] * 3)
    same(zip_dl_theorem_5_9(THREE, 0, 2, 1.0, **constants, mended=True), [4 * wanted] * 3)
    same(zip_dl_theorem_5_9(THREE, 0, 1, 1.0, **constants), [0.0] * 3)


# --- by the papers' own matrices -----------------------------------------------------------------------------------


def virtual(W):
    """M, W and C of zip-dl, section 5.2: n^2 virtual nodes, written out entry by entry."""
    n = len(W)
    M, V, C = (np.zeros((n * n, n * n)) for _ in range(3))
    for i in range(n):
        degree = np.count_nonzero(W[i])
        for j in range(n):
            M[n * i : n * i + n, n * i + j] = 1
            V[n * i + j, n * j + i] = W[i, j]
            for v in np.flatnonzero(W[i]):
                C[n * i + v, n * i + j] = (degree - 1) / degree if j == v else -W[i, j] / (degree * W[i, v])
    return M, V, C


@pytest.mark.parametrize("net", [metropolis("path:4"), metropolis("star:4"), metropolis("ring:4")], ids=str)
@pytest.mark.parametrize("mended", [False, True])
def test_zip_dl_formulas_are_those_of_the_virtual_network(net, mended):
    W, n, T, attacker, g, L = net.at(0).weights.toarray(), net.n, 4, 1, 0.3, 0.7
    zeta = np.linspace(0.5, 2.0, n)
    M, V, C = virtual(W)
    trained = averaged = 0.0
    for t in range(1, T):
        steps = [np.linalg.matrix_power(M @ V, k) for k in range(1, t + 1)]
        sizes = np.repeat(zeta, n)
        carried = sum(x @ C @ np.diag(sizes**2) @ C.T @ x.T for x in steps)
        drawn = np.diag(((g if mended else 1) * sizes) ** 2)
        shrunk = sum((1 - g * L) ** (2 * k) * x @ C @ drawn @ C.T @ x.T for k, x in enumerate(steps, start=1))
        for w in np.flatnonzero(W[attacker]):
            told = n * w + attacker
            trained += ((2 + 4 * g**2 * L) ** t - 1) / shrunk[told, told]
            share = np.array([steps[-1][told, n * a : n * a + n].sum() for a in range(n)])
            averaged += share ** (1 + mended) / carried[told, told]
    factor = 4 * g**2 / (L + 4 * g**2 * L**2)
    found = zip_dl_theorem_5_9(net, attacker, T, zeta, lipschitz=L, step_size=g, mended=mended)
    same(found, np.full(n, factor * trained))
    far = np.flatnonzero(W[attacker] == 0)
    same(zip_dl_theorem_5_12(net, attacker, T, zeta, mended=mended)[far], np.array(averaged)[far])


def threat_by_definition(net, attacker, rounds, members_of, first):
    """`||H_T^+ x_T||^2` of eq (3.2), block by block, with x_T summed up from powers of W."""
    W_k, n = powers(net, rounds + first), net.n
    out = np.full(n, np.nan)
    for u in set(range(n)) - {attacker}:
        S = np.eye(n)[members_of(u)]
        blocks = [
            [S @ W_k[t - s + first] if s <= t else np.zeros((len(S), n)) for s in range(rounds)] for t in range(rounds)
        ]
        for row in blocks:
            for block in row:
                block[:, attacker] = 0
        signal = np.concatenate([(S @ sum(W_k[first : t + first + 1]))[:, u] for t in range(rounds)])
        out[u] = np.sum((np.linalg.pinv(np.block(blocks), rcond=1e-12) @ signal) ** 2)
    return out


@pytest.mark.parametrize("net", [THREE, uniform("star:5"), max_degree("grid:2x3"), metropolis("complete:4")], ids=str)
def test_threat_models_are_their_state_space_matrices(net):
    T, v = 4, 1
    closed = {u: sorted({u, *heard(net, u)}) for u in range(net.n)}
    wanted = threat_by_definition(net, v, T, lambda u: [v], first=1)
    same(threat_theorem_8(net, v, T, 2.0, mended=True), wanted / 4)
    wanted = threat_by_definition(net, v, T, lambda u: closed[u], first=1)
    same(threat_theorem_9(net, v, T, 1.0, mended=True), wanted)
    same(threat_theorem_10(net, v, T, 1.0), threat_by_definition(net, v, T, lambda u: [u], first=0))


@pytest.mark.parametrize("net", [THREE, metropolis("florentine"), uniform("karate")], ids=str)
def test_mended_figures_agree_with_the_traced_system(net):
    """Theorem 8 of the threat models is all-ones of M, MAFALDA's is the sum of its absolute entries."""
    M = exact_losses("dp-d-sgd", net, views.node(2, secure_sum=True), 5)
    same(np.delete(threat_theorem_8(net, 2, 5, 1.0, mended=True), 2), M.sum(axis=(1, 2)))
    M = exact_losses("dp-d-sgd", net, views.node(2), 5)
    same(np.delete(mafalda_theorem_8(net, 2, 5, 1.0, mended=True), 2), np.abs(M).sum(axis=(1, 2)))
    C = np.tril(np.random.default_rng(1).uniform(-1, 1, (5, 5)), -1) + np.diag([1, 2, 1, 3, 1.0])  # not Toeplitz
    M = exact_losses("mf-d-sgd", net, views.node(2), 5, sigma=1.5, correlation=C)
    same(np.delete(mafalda_theorem_8(net, 2, 5, 1.5, correlation=C, mended=True), 2), np.abs(M).sum(axis=(1, 2)))


# --- where they fail -----------------------------------------------------------------------------------------------


def test_muffliato_theorem_1_misses_what_messages_tell_together():
    """Erdos-Renyi(100, 0.1), T = 5, distance 3: 0.025 against 0.580, the attacker's own noise counted as protection."""
    net = metropolis("erdos-renyi:100,p=0.1,seed=1")
    formula, rows = muffliato_theorem_1(net, 0, 5, 1.0)[62], averaging_rows(net, 0, 5)
    assert formula == pytest.approx(0.025, abs=5e-4)
    assert leverages(rows)[62] == pytest.approx(0.580, abs=5e-4)

    found = figures("muffliato", net, views.node(0), 5)["muffliato Theorem 1"]
    at = found.victims.tolist().index(62)
    assert found.guarantees[at].distance == 3
    assert found.squares[at] == formula
    assert found.exact[at] == pytest.approx(0.586, abs=5e-4)  # own noise known: a little more
    assert found.below[at]
    assert found.guarantees[at].assumptions[-1].sentence == "BELOW the exact loss by a factor 23 in mu^2: not a bound"


def test_muffliato_theorem_1_at_the_far_end_of_a_path():
    """Path of 10, T = 10: the last message gives the far value away, 1; the formula says 1.5e-6."""
    net = metropolis("path:10")
    assert muffliato_theorem_1(net, 0, 10, 1.0)[9] == pytest.approx(1.5e-6, abs=0.05e-6)
    assert leverages(averaging_rows(net, 0, 10))[9] == pytest.approx(1, abs=1e-9)
    found = figures("muffliato", net, views.node(0), 10)["muffliato Theorem 1"]
    assert found.exact[-1] == pytest.approx(1, abs=1e-6)
    assert found.below.tolist() == (found.squares < 1).tolist()
    assert found.below.sum() >= 5


@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize(
    "net", [metropolis("erdos-renyi:100,p=0.1,seed=1"), max_degree("grid:4x4"), uniform("florentine")], ids=str
)
def test_muffliato_theorem_1_is_right_on_average_only(net, rounds):
    """Over all nodes the formula adds up to the number of messages, the truth to the rank of the view."""
    rows = averaging_rows(net, 0, rounds)
    assert muffliato_theorem_1(net, 0, rounds, 1.0).sum() == pytest.approx(rounds * len(heard(net, 0)))
    assert leverages(rows).sum() == pytest.approx(np.linalg.matrix_rank(rows, tol=1e-11))
    own_known = np.delete(rows, 0, axis=1)
    losses = exact_losses("muffliato", net, views.node(0), rounds)
    assert losses.sum() == pytest.approx(np.linalg.matrix_rank(own_known, tol=1e-11), abs=1e-6)


def test_muffliato_theorem_1_counts_messages_on_changing_graphs():
    net = fresh_erdos_renyi(12, 0.3, seed=3)
    messages = sum(len([w for w in net.at(t).weights[[4]].indices if w != 4]) for t in range(6))
    assert muffliato_theorem_1(net, 4, 6, 1.0).sum() == pytest.approx(messages)
    assert list(figures("muffliato", net, views.node(4), 6)) == ["muffliato Theorem 1"]


def test_muffliato_theorem_6_forgets_what_stays_in_the_network():
    """DP-D-SGD, K = 1: nothing at all for whoever is no neighbour; the exact loss is not nothing."""
    found = figures("dp-d-sgd", metropolis("ring:6"), views.node(0), 5)["muffliato Theorem 6"]
    same(found.squares, [5, 0, 0, 0, 5])
    assert found.below.tolist() == [False, True, True, True, False]
    assert found.guarantees[2].assumptions[-1].sentence == "BELOW the exact loss, 0 against mu = 0.407: not a bound"
    assert found.exact[2] == pytest.approx(0.407**2, rel=2e-3)


def test_threat_models_theorem_10_on_the_complete_graph():
    """Complete graph of 5, T = 10: the truth is T, the formula 1.96 times less."""
    found = figures("dp-d-sgd", metropolis("complete:5"), views.node(0), 10)["threat models Theorem 10"]
    np.testing.assert_allclose(found.exact, 10, rtol=1e-8)  # rounded up, never down
    assert (found.exact >= 10 * (1 - 1e-12)).all()
    np.testing.assert_allclose(found.exact / found.squares, 1.96, atol=0.005)
    assert found.below.all()


def test_threat_models_theorem_10_on_an_erdos_renyi_graph():
    """Erdos-Renyi(50, 0.2), T = 24: below for 7 of 49 victims, all neighbours, by up to 2.6."""
    net = metropolis("erdos-renyi:50,p=0.2,seed=3")
    found = figures("dp-d-sgd", net, views.node(0), 24)["threat models Theorem 10"]
    assert len(found.victims) == 49
    assert found.victims[found.below].tolist() == heard(net, 0)
    assert found.below.sum() == 7
    assert (found.exact / found.squares).max() == pytest.approx(2.6, abs=0.05)


def test_all_ones_is_not_the_worst_change():
    """Florentine families, secure summation, T = 12: the worst change costs up to 4.6 times all-ones (Lemma 7)."""
    net = metropolis("florentine")
    ratios = np.zeros((15, 15))
    for v in range(15):
        ones = np.delete(threat_theorem_8(net, v, 12, 1.0, mended=True), v)
        worst = worst_case(exact_losses("dp-d-sgd", net, views.node(v, secure_sum=True), 12), EVERY, 12)
        ratios[v, np.arange(15) != v] = worst / ones
    assert ratios.max() == pytest.approx(4.6, abs=0.05)
    assert np.unravel_index(ratios.argmax(), ratios.shape) == (9, 1)
    assert np.median(ratios[ratios > 0]) == pytest.approx(1, abs=1e-4)

    found = figures("dp-d-sgd", net, views.node(9, secure_sum=True), 12)
    assert found["threat models Theorem 8, mended"].below[1]
    assert (found["threat models Theorem 8"].squares < found["threat models Theorem 8, mended"].squares).all()
    assert found["threat models Theorem 9, mended"].below.any()  # said to hold for every node


def test_threat_models_appendix_e_has_products_of_changing_weights_in_the_wrong_order():
    """H_T is printed with `e_i W_0 W_1 ... W_t`; what was said in round 0 meets W_0 first, so it is `e_i W_t ... W_0`.

    x_T is printed with the right order in its second entry, but sums products that begin with W_0; later inputs do not.
    """
    edges = [[(0, 1), (1, 2), (2, 3)], [(0, 2), (1, 3), (0, 3)], [(0, 1), (1, 3), (2, 3)]]
    mixings = [metropolis(Graph.from_edges(each, nodes=4)).at(0) for each in edges]
    net, weights = Changing(lambda round, step: mixings[round], n=4), [mixing.weights.toarray() for mixing in mixings]
    attacker, T = 0, len(edges)

    def squares(product):
        H = np.block([[product(s, t)[[attacker]] if s <= t else np.zeros((1, 4)) for s in range(T)] for t in range(T)])
        signals = np.stack([H[:, u::4].sum(axis=1) for u in range(4)], axis=1)
        H[:, attacker::4] = 0
        return np.square(np.linalg.pinv(H) @ signals).sum(axis=0)[1:]

    in_time = squares(lambda s, t: np.linalg.multi_dot([*weights[s : t + 1][::-1], np.eye(4)]))
    printed = squares(lambda s, t: np.linalg.multi_dot([*weights[s : t + 1], np.eye(4)]))
    M = exact_losses("dp-d-sgd", net, views.node(attacker, secure_sum=True), T)
    same(M.sum(axis=(1, 2)), in_time)
    assert printed[0] < 0.997 * in_time[0]


def test_threat_models_figure_1_tends_to_one_over_n_for_nodes_that_are_not_neighbours_only():
    """Erdos-Renyi(100, 0.2), max-degree weights, secure sums, T = 60: mu^2 / T in units of 1 / n."""
    net, T = max_degree("erdos-renyi:100,p=0.2,seed=1"), 60
    observation = observe(trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=T), views.node(0, secure_sum=True))
    near = np.array(observation.distances()) == 1
    ones = net.n / T * routes.losses(observation).sum(axis=(1, 2))
    worst = net.n / T * routes.squared(observation, EVERY)
    np.testing.assert_allclose(worst[~near], ones[~near], rtol=1e-4)
    assert 0.9 < worst[~near].mean() < 1
    assert 1.3 < ones[near].mean() < 1.5
    assert 6 < worst[near].mean() < 7
    assert worst[near].max() > 9


def test_mafalda_without_its_root_is_no_bound_below_one():
    found = figures("dp-d-sgd", metropolis("ring:6"), views.node(0), 5)
    printed, mended = found["mafalda Theorem 8"], found["mafalda Theorem 8, mended"]
    same(printed.squares, mended.squares**2)
    assert printed.below.tolist() == (mended.squares < 1).tolist() == [False, True, True, True, False]
    assert not mended.below.any()


def test_zip_dl_theorem_5_12_without_its_square_is_loose():
    """Entries of powers of W are at most 1, so the share is at least its square; for both, noise pays as it should."""
    net = metropolis("ring:7")
    little, much = (figures("zip-dl-averaging", net, views.node(0), 6, sigma=zeta) for zeta in (1.0, 2.0))
    far = slice(1, -1)
    for name in ("zip-dl Theorem 5.12", "zip-dl Theorem 5.12, mended"):
        same(much[name].squares[far], little[name].squares[far] / 4)
        assert np.isinf(little[name].squares[[0, -1]]).all()
        assert not little[name].below.any()
    printed, mended = (little[name].squares[far] for name in ("zip-dl Theorem 5.12", "zip-dl Theorem 5.12, mended"))
    assert (printed > mended).all()


def test_zip_dl_theorem_5_9_leaves_out_the_step_size_of_the_noise():
    """Section 5.2 has zeta^2 where Algorithm 1 draws (g zeta)^2: at g = 0.01 it says 0.255, and the truth is 27.9."""
    net = metropolis("ring:7")
    found = figures("zip-dl", net, views.node(0), 6, lipschitz=1.0, sigma=1.0, step_size=0.01)
    printed, mended = (found[name] for name in ("zip-dl Theorem 5.9", "zip-dl Theorem 5.9, mended"))
    np.testing.assert_allclose(printed.squares, 0.255, atol=5e-4)
    np.testing.assert_allclose(printed.exact[0], 27.9, atol=0.05)
    assert printed.below.all()
    assert not mended.below.any()
    wide = figures("zip-dl", net, views.node(0), 6, lipschitz=1.0, sigma=1.0, step_size=0.1)
    assert not wide["zip-dl Theorem 5.9"].below.any()


@pytest.mark.parametrize(
    ("spec", "factor"), [("ring:30", 91), ("regular:100,d=6,seed=0", 5.4), ("complete:10", 1.5), ("star:9", 11.5)]
)
def test_zip_dl_theorem_4_5_prints_the_wrong_factor_of_the_noise_and_is_loose_enough_for_it(spec, factor):
    """beta = 3p / (16 - 7p) in Lemma 4.7 gives (16 - 4p) / (6p), where A' has (16 - 4p) / (16 - 7p).

    The proof's distance between models is bounded by 8 A' / p for a step size of one. Noise alone leaves far less,
    by exact variances, since the sum is over all pairs of nodes and not over neighbours.
    """
    net = metropolis(spec)
    W, n = net.at(0).weights.toarray(), net.n
    p = 1 - np.sort(np.abs(np.linalg.eigvalsh(W)))[-2] ** 2
    printed, derived = (16 - 4 * p) / (16 - 7 * p), (16 - 4 * p) / (6 * p)
    assert derived / printed == pytest.approx((16 - 7 * p) / (6 * p)) == pytest.approx(factor, rel=0.01)

    step = trace(algorithm("zip-dl", sigma=1.0, step_size=1.0), net, rounds=2).steps[1]
    by_state, by_noise = np.split(step.models.toarray(), [n, n + step.gradients], axis=1)[::2]
    apart = np.eye(n) - 1 / n
    variances, entering = np.zeros((n, n)), apart @ by_noise @ by_noise.T @ apart
    for _ in range(2_000):
        variances = by_state @ variances @ by_state.T + entering
    distance = np.trace(apart @ variances @ apart) / n
    d = np.count_nonzero(W, axis=1)
    total = (d * (d - 1) ** 2).sum() * (1 / d).sum() / n
    assert 1_000 * distance < 8 / p * printed * total


# --- beside the exact loss -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "view", "settings", "names"),
    [
        ("muffliato", views.node(0), {}, AVERAGING),
        ("muffliato", views.node(0), {"chebyshev": True}, AVERAGING),
        ("muffliato", views.everyone(), {}, []),
        ("muffliato-sgd", views.node(0), {"gossip_steps": 2}, ["local bound", "muffliato Theorem 6"]),
        ("dp-d-sgd", views.coalition(0, 1), {}, []),
        ("dp-d-sgd", views.everyone(), {}, ["local bound", "mafalda Theorem 8", "mafalda Theorem 8, mended"]),
        ("anti-pgd", views.node(0), {}, ["mafalda Theorem 8", "mafalda Theorem 8, mended"]),
        ("zip-dl-averaging", views.node(0), {}, ["zip-dl Theorem 5.12", "zip-dl Theorem 5.12, mended"]),
        ("dp2sgd", views.node(0), {}, []),
        ("decor", views.node(0), {"sigma_pair": 1.0}, []),
    ],
)
def test_each_formula_is_given_where_its_paper_states_it(name, view, settings, names):
    net = metropolis("erdos-renyi:12,p=0.5,seed=2")
    assert list(figures(name, net, view, 3, **settings)) == names


def test_guarantees_are_marked_as_published_and_never_proven():
    found = figures("dp-d-sgd", metropolis("ring:6"), views.node(0), 5, sigma=2.0)
    assert list(found) == [
        "local bound",
        "muffliato Theorem 6",
        "muffliato Theorem 11",
        "threat models Theorem 10",
        "mafalda Theorem 8",
        "mafalda Theorem 8, mended",
    ]
    for figure in found.values():
        assert [g.victim for g in figure.guarantees] == [1, 2, 3, 4, 5]
        assert [g.distance for g in figure.guarantees] == [1, 2, 3, 2, 1]
        for guarantee, square, below in zip(figure.guarantees, figure.squares, figure.below, strict=True):
            assert guarantee.kind == "as-published"
            assert guarantee.proven_for_training is TrainingProof.NOT_PROVEN
            assert guarantee.rdp(3.0) == pytest.approx(3 * square / 2)
            assert below == any(one.kind is AssumptionKind.BELOW_EXACT_LOSS for one in guarantee.assumptions)
    assert found["local bound"].guarantees[0].mu == pytest.approx(math.sqrt(5 / 4))


def test_formulas_are_asked_for_by_their_kind():
    known = trace(algorithm("muffliato", sigma=1.0), metropolis("ring:5"), rounds=3)
    unknown = trace(algorithm("swarm", sigma=1.0), weigh("complete:4", "rotating"), rounds=3)
    found = account(known, "node:0", kinds=["as-published"])
    assert {one.kind for one in found.guarantees} == {"as-published"}
    assert not found.refusals
    nothing = account(unknown, "node:0", kinds=["as-published"])
    assert not nothing.guarantees
    assert len(nothing.refusals) == 1


def test_what_is_at_its_exact_value_is_not_called_below():
    """Everyone's view: the local bound is the exact loss, which is rounded up."""
    found = figures("dp-d-sgd", metropolis("karate"), views.everyone(), 6)["local bound"]
    np.testing.assert_allclose(found.exact, 6, rtol=1e-5)
    assert not found.below.any()


def test_nobody_is_heard_by_a_node_alone():
    net = metropolis(Graph.from_edges([(1, 2)], nodes=3))
    for name in ("muffliato", "dp-d-sgd"):
        for figure in figures(name, net, views.node(0), 3).values():
            same(figure.exact, [0, 0])
            assert not figure.below.any()


def test_refusals_say_what_is_missing():
    net, sizes = metropolis("ring:4"), (1.0, 2.0, 1.0, 1.0)
    with pytest.raises(Unaccountable, match="needs L of its Assumption"):
        figures("zip-dl", net, views.node(0), 3)
    with pytest.raises(InputError, match="lipschitz = 0"):
        zip_dl_theorem_5_9(net, 0, 3, 1.0, lipschitz=0.0, step_size=0.1)
    with pytest.raises(Unaccountable, match="need one for all"):
        figures("dp-d-sgd", net, views.node(0), 3, sigma=sizes)
    with pytest.raises(Unaccountable, match="without noise"):
        figures("dp-d-sgd", net, views.node(0), 3, sigma=0.0)
    changing = random_edges("ring:4")
    for formula in (muffliato_corollary_1, muffliato_theorem_6, threat_theorem_8, threat_theorem_10):
        with pytest.raises(InputError, match="stated for one W"):
            formula(changing, 0, 3, 1.0)
    with pytest.raises(Unaccountable, match="the published formula is dense"):
        threat_theorem_10(metropolis("ring:1000"), 0, 1000, 1.0)
