"""Graphs and weights: what specs build, what is refused, and that nothing becomes dense."""

from __future__ import annotations

import gzip
import re
import tracemalloc

import networkx as nx
import numpy as np
import pytest
from scipy import sparse

from sottovoce import (
    Changing,
    Graph,
    InputError,
    Mixing,
    algorithm,
    dropout,
    fresh_erdos_renyi,
    from_matrix,
    graph,
    max_degree,
    metropolis,
    push,
    random_edges,
    trace,
    train,
    uniform,
    weigh,
)


def edges_of(source):
    pairs = set(zip(*(x.tolist() for x in source.adjacency.nonzero()), strict=True))
    return pairs if source.directed else {(u, v) for u, v in pairs if u < v}


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        ("ring:7", nx.cycle_graph(7)),
        ("path:6", nx.path_graph(6)),
        ("complete:5", nx.complete_graph(5)),
        ("star:9", nx.star_graph(8)),
        ("grid:3x4", nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4))),
        ("torus:3x4", nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4, periodic=True))),
        ("hypercube:4", nx.convert_node_labels_to_integers(nx.hypercube_graph(4))),
        ("erdos-renyi:40,p=0.2,seed=1", nx.erdos_renyi_graph(40, 0.2, seed=1)),
        ("regular:20,d=4,seed=3", nx.random_regular_graph(4, 20, seed=3)),
        ("geometric:50,r=0.3,seed=2", nx.random_geometric_graph(50, 0.3, seed=2)),
        ("florentine", nx.florentine_families_graph()),
        ("karate", nx.karate_club_graph()),
    ],
)
def test_specs_build_what_networkx_builds(spec, reference):
    ours = graph(spec)
    position = {label: i for i, label in enumerate(reference.nodes)}
    theirs = {tuple(sorted((position[u], position[v]))) for u, v in reference.edges}
    assert ours.n == reference.number_of_nodes()
    if spec.startswith(("grid", "torus", "hypercube", "regular")):  # the same graph, nodes in our own order
        assert nx.is_isomorphic(nx.Graph(list(edges_of(ours))), reference)
    else:
        assert edges_of(ours) == theirs


def test_exponential_graph_is_directed_to_powers_of_two():
    assert edges_of(graph("exponential:10")) == {(i, (i + hop) % 10) for i in range(10) for hop in (1, 2, 4, 8)}


def test_weights_by_their_definitions():
    source = graph("florentine")
    A, degree = source.adjacency.toarray(), source.out_degrees
    for i in range(source.n):
        for j in np.flatnonzero(A[i]):
            assert metropolis(source).at(0).weights[i, j] == pytest.approx(1 / (1 + max(degree[i], degree[j])))
            assert max_degree(source).at(0).weights[i, j] == pytest.approx(1 / max(degree[i], degree[j]))
            assert uniform(source).at(0).weights[i, j] == pytest.approx(1 / (1 + degree[i]))
    directed = graph("exponential:6")
    W = push(directed).at(0).weights.toarray()
    np.testing.assert_allclose(W.sum(axis=0), 1)
    np.testing.assert_array_equal(W != 0, (directed.adjacency.toarray().T + np.eye(6)) != 0)


@pytest.mark.parametrize("weights", ["metropolis", "max-degree", "uniform", "push"])
@pytest.mark.parametrize("spec", ["ring:9", "path:5", "florentine", "complete:4", "grid:3x3"])
def test_spectral_gap_is_that_of_the_whole_spectrum(spec, weights):
    net = weigh(spec, weights)
    spectrum = np.sort(abs(np.linalg.eigvals(net.at(0).weights.toarray())))
    assert net.spectral_gap == pytest.approx(1 - spectrum[-2], abs=1e-9)


@pytest.mark.parametrize("weights", ["metropolis", "uniform"])
def test_sparse_and_dense_spectra_agree(weights, monkeypatch):
    spec = "erdos-renyi:300,p=0.05,seed=0"
    dense = weigh(spec, weights).spectral_gap
    monkeypatch.setattr("sottovoce.core.mixing.DENSE_SPECTRUM", 10)
    assert weigh(spec, weights).spectral_gap == pytest.approx(dense, abs=1e-8)
    assert weigh("exponential:40", "push").spectral_gap == pytest.approx(
        1 - np.sort(abs(np.linalg.eigvals(weigh("exponential:40", "push").at(0).weights.toarray())))[-2], abs=1e-8
    )


def test_disconnected_graph_has_no_gap():
    assert metropolis(Graph.from_edges([(0, 1), (2, 3)])).spectral_gap == pytest.approx(0, abs=1e-12)


def test_edge_list_files(tmp_path):
    text = "# comment\n10 20\n20,30 0.5\n% more\n\n40\t50\n"
    (tmp_path / "edges.txt").write_text(text)
    (tmp_path / "edges.txt.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("edges.txt", "edges.txt.gz"):
        built = graph(f"file:{tmp_path / name}")
        assert (built.n, built.edges, built.labels) == (5, 3, (10, 20, 30, 40, 50))
        giant = graph(f"file:{tmp_path / name},component=giant")
        assert (giant.n, giant.edges, giant.labels) == (3, 2, (10, 20, 30))
        assert graph(f"file:{tmp_path / name},directed=true").directed


def test_ego_graph_of_the_papers(data):
    ego = graph(f"file:{data('facebook_ego/414.edges.gz')},component=giant")
    assert (ego.n, ego.edges, ego.connected) == (148, 1692, True)


def test_facebook_graph(data):
    combined = graph(f"file:{data('facebook_ego/facebook_combined.txt.gz')}")
    assert (combined.n, combined.edges, combined.connected) == (4039, 88234, True)
    assert 0 < metropolis(combined).spectral_gap < 0.01


def test_repeated_edges_count_once():
    assert Graph.from_edges([(0, 1)] * 256 + [(1, 2)]).edges == 2
    again = sparse.csr_array((np.full(4, 0.5), np.array([0, 0, 1, 1]), np.array([0, 2, 4])), shape=(2, 2))
    assert from_matrix(again).at(0).edges.sender.tolist() == [0, 1]


def test_gap_of_a_long_ring():
    assert metropolis("ring:1000").spectral_gap == pytest.approx(2 / 3 * (1 - np.cos(2 * np.pi / 1000)), rel=1e-4)


def test_names_of_several_words_need_a_comma(tmp_path):
    edges = tmp_path / "edges.csv"
    edges.write_text("St Mary, Mercy\nMercy, North 5\n")
    assert graph(f"file:{edges}").labels == ("St Mary", "Mercy", "North 5")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("source,target\n0,1\n1,2\n", "a heading is not an edge"),
        ("St Mary Mercy\n", "an edge has two ends"),
        ("a,\n", "an edge has two ends"),
        ("a\n", "an edge has two ends"),
    ],
)
def test_edge_lists_that_are_likely_mistakes(tmp_path, text, said):
    edges = tmp_path / "edges.txt"
    edges.write_text(text)
    with pytest.raises(InputError, match=said):
        graph(f"file:{edges}")


def test_large_graph_stays_sparse():
    pairs = np.random.default_rng(0).integers(0, 50_000, size=(500_000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    tracemalloc.start()
    net = metropolis(Graph.from_edges(pairs, nodes=50_000))
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert net.graph.edges > 499_000
    assert sparse.issparse(system.steps[0].state_out)
    assert system.steps[1] is system.steps[2]
    assert peak < 1e9, "50,000 rows of as many numbers are 20 GB"


def ask(spec):
    return lambda: graph(spec)


BAD = {
    "unknown graph": (ask("mesh:3"), "graph 'mesh:3'; known: complete"),
    "no size": (ask("ring"), "graph 'ring'; .*write ring:30"),
    "no nodes": (ask("complete:0"), "complete:0: 0 nodes"),
    "empty star": (ask("star:0"), "star:0: 0 nodes"),
    "empty grid": (ask("grid:0x3"), "grid:0x3: 0 nodes"),
    "negative": (ask("ring:-3"), "graph 'ring:-3'; ring needs a size"),
    "small ring": (ask("ring:2"), "ring:2: 2 nodes; .*at least 3"),
    "unknown option": (ask("ring:5,seed=1"), "option 'seed=1' in graph 'ring:5,seed=1'; options here: none"),
    "option of another type": (ask("regular:10,d=x"), "d='x' in graph .*; it must be a whole number"),
    "no probability": (ask("erdos-renyi:10"), "p=None; the probability of an edge"),
    "nan probability": (ask("erdos-renyi:10,p=nan"), "p=nan; the probability of an edge"),
    "odd regular": (ask("regular:5,d=3"), "d=3; the degree must satisfy"),
    "no radius": (ask("geometric:5"), "r=None; the radius must be positive"),
    "size for a named graph": (ask("karate:3"), "karate takes no size"),
    "huge hypercube": (ask("hypercube:40"), "the dimension is at most 20"),
    "no file": (ask("file:/no/such/file"), "edge list /no/such/file: No such file or directory"),
    "component": (ask("file:x,component=small"), "component='small' .*; it must be 'all' or 'giant'"),
    "directed flag": (ask("file:x,directed=maybe"), "directed='maybe'"),
    "self-loop": (lambda: Graph.from_edges([(0, 1), (1, 1)]), "self-loop at node 1"),
    "outside": (lambda: Graph.from_edges([(0, 7)], nodes=3), r"edge end 7; nodes are 0\.\.2"),
    "no edges at all": (lambda: Graph.from_edges([]), "0 nodes"),
    "row sum": (lambda: from_matrix([[0.5, 0.5], [0.2, 0.7]]), "row 1 of W sums to 0.9; expected 1; use metropolis"),
    "nan": (lambda: from_matrix([[np.nan, 1], [0, 1]]), r"W\[0,0\] = nan; weights are finite"),
    "infinite": (lambda: from_matrix([[np.inf, 1], [0, 1]]), r"W\[0,0\] = inf"),
    "negative weight": (lambda: from_matrix([[1.5, -0.5], [0, 1]]), r"W\[0,1\] = -0.5; weights are not negative"),
    "not square": (lambda: from_matrix([[0.5, 0.5]]), r"W has shape \(1, 2\)"),
    "words": (lambda: from_matrix([["a", "b"], ["c", "d"]]), "weights are not a matrix of numbers"),
    "triples": (lambda: Graph.from_edges([(0, 1, 5), (1, 2, 7)]), r"edges of shape \(2, 3\); an edge is a pair"),
    "huge": (ask("ring:999999999999"), "a graph has at most 20,000,000 nodes"),
    "seed": (lambda: random_edges("ring:5", seed=-1).at(0), "seed -1; it must be a whole number, 0 or more"),
    "no seed": (lambda: dropout("ring:5", rate=0.1, seed=None).at(0), "seed None"),
    "active": (lambda: Mixing(np.eye(3), active=np.array([0, 2, 1])), "active of type int64"),
    "not planned": (
        lambda: Mixing(np.full((2, 2), 0.5), planned=sparse.csr_array(np.eye(2))),
        "an edge that was not planned",
    ),
    "a topology for a graph": (lambda: metropolis(metropolis("ring:5")), "a Topology instead of a graph"),
    "a topology for a mixing": (
        lambda: Changing(lambda round, step: metropolis("ring:5"), n=5).at(0),
        "changing gave a Topology for round 0; every step must be a Mixing",
    ),
    "no rows": (lambda: from_matrix(np.zeros((0, 0))), "W has 0 nodes"),
    "lazy without a share": (lambda: weigh("ring:5", "push,lazy"), "lazy='' in weights 'push,lazy'"),
    "wholly lazy": (lambda: weigh("ring:5", "push,lazy=1"), "lazy='1' in weights 'push,lazy=1'"),
    "unknown weights": (lambda: weigh("ring:5", "lazy"), "weights 'lazy'; known: metropolis"),
    "directed metropolis": (lambda: metropolis("exponential:6"), "exponential:6 is directed; metropolis weights"),
    "dropout rate": (lambda: dropout("ring:5", rate=1.5), "dropout rate 1.5"),
    "dropout nan": (lambda: dropout("ring:5", rate=float("nan")), "dropout rate nan"),
    "dropout correlation": (lambda: dropout("ring:5", rate=0.1, correlation=1), "dropout correlation 1"),
    "random edges of nothing": (lambda: random_edges("path:1"), "no edges; randomised gossip"),
    "gap of many": (lambda: fresh_erdos_renyi(5, 0.5).spectral_gap, "each of its rounds has its own spectral gap"),
    "changing size": (
        lambda: Changing(lambda round, step: Mixing(np.eye(3)), n=4).at(0),
        "changing has 3 nodes in round 0; every round has 4",
    ),
    "directed for zip-dl": (
        lambda: trace(algorithm("zip-dl", sigma=1.0), uniform("exponential:6"), rounds=1),
        "directed edge between . and . without its reverse; this algorithm sends both ways",
    ),
    "uneven for zip-dl": (
        lambda: trace(algorithm("zip-dl", sigma=1.0), uniform("path:4"), rounds=1),
        r"W\[\d,\d\] = .* but W\[\d,\d\] = .*; this algorithm needs symmetric weights",
    ),
    "push for dp-d-sgd": (
        lambda: trace(algorithm("dp-d-sgd", sigma=1.0), push("path:4"), rounds=1),
        "row . of W sums to .*; expected 1",
    ),
    "uniform for dp-csgp": (
        lambda: trace(algorithm("dp-csgp", sigma=1.0), uniform("path:4"), rounds=1),
        "column . of W sums to .*; expected 1; use push",
    ),
    "ring for dp-fedavg": (
        lambda: trace(algorithm("dp-fedavg", sigma=1.0), uniform("ring:5"), rounds=1),
        "weights are not the average over all nodes",
    ),
    "training in two parts": (
        lambda: train(
            algorithm("d-psgd"), metropolis(Graph.from_edges([(0, 1), (2, 3)])), np.zeros((4, 1)), None, rounds=1
        ),
        "edges metropolis: 2 components; the graph must be connected; take its giant component",
    ),
    "chebyshev in two parts": (
        lambda: trace(
            algorithm("muffliato", sigma=1.0, chebyshev=True),
            metropolis(Graph.from_edges([(0, 1), (2, 3)])),
            rounds=1,
        ),
        "2 components",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_gets_one_line_with_found_rule_and_remedy(call, message):
    with pytest.raises(InputError) as caught:
        call()
    line = str(caught.value)
    assert re.search(message, line), line
    assert "\n" not in line
    assert line.count("; ") >= 2


@pytest.mark.parametrize("content", ["", "# nothing\n", "1 2\n3\n", "\x00\x01\xff"])
def test_bad_edge_lists(tmp_path, content):
    (tmp_path / "bad").write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=r"^edge list "):
        graph(f"file:{tmp_path / 'bad'}")


def test_truncated_gzip(tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"1 2\n" * 1000)[:-12])
    with pytest.raises(InputError, match=r"damaged or cut off; .*; get the file again"):
        graph(f"file:{tmp_path / 'cut.gz'}")


def test_fresh_graphs_change_by_round_not_by_gossip_step():
    net = fresh_erdos_renyi(20, 0.3, seed=0)
    assert net.at(0, 0) is net.at(0, 2)
    assert (net.at(0).weights != net.at(1).weights).nnz
    assert (fresh_erdos_renyi(20, 0.3, seed=0).at(1).weights != net.at(1).weights).nnz == 0
    assert (fresh_erdos_renyi(20, 0.3, seed=1).at(1).weights != net.at(1).weights).nnz


def test_random_edges_average_one_pair_in_proportion_to_weights():
    source = from_matrix([[0.5, 0.4, 0.1], [0.4, 0.6, 0.0], [0.1, 0.0, 0.9]])
    net = random_edges(source, seed=0)
    counts = {(0, 1): 0, (0, 2): 0}
    for t in range(2000):
        W = net.at(t).weights.toarray()
        u, v = np.argwhere(np.triu(W, 1))[0]
        expected = np.eye(3)
        expected[np.ix_([u, v], [u, v])] = 0.5
        np.testing.assert_array_equal(W, expected)
        counts[u, v] += 1
    assert 0.77 < counts[0, 1] / 2000 < 0.83


def test_dropout_has_its_rate_and_correlation():
    net = dropout("complete:200", rate=0.3, correlation=0.5, seed=1)
    absent = np.array([~net.at(t).active for t in range(400)], dtype=float)
    assert absent.mean() == pytest.approx(0.3, abs=0.01)
    pairs = np.corrcoef(absent[:-1].ravel(), absent[1:].ravel())[0, 1]
    assert pairs == pytest.approx(0.5, abs=0.02)


def test_absent_nodes_neither_step_nor_speak_nor_listen():
    net = dropout("ring:6", rate=0.4, seed=5)
    away = np.flatnonzero(~net.at(0).active)
    assert away.size
    x0 = np.arange(6.0)[:, None]
    end = train(algorithm("dp-d-sgd", sigma=1.0), net, x0, lambda t, x: np.ones_like(x), rounds=1)
    np.testing.assert_array_equal(end[away], x0[away])
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=1)
    assert not set(system.steps[0].sent[0].sender) & set(away)


def test_messages_to_absent_nodes_have_left_their_sender():
    net = dropout("ring:6", rate=0.3, seed=2)
    away = np.flatnonzero(~net.at(0).active)
    _, _, labels = trace(algorithm("zip-dl", sigma=1.0), net, rounds=1).dense()
    there = np.setdiff1d(np.arange(6), away)
    assert away.size
    assert np.isin(labels.receiver, away).any()
    assert sorted(labels.sender.tolist()) == sorted(np.repeat(there, 2).tolist())
    announced = dropout("ring:6", rate=0.3, seed=2, announced=True)
    _, _, labels = trace(algorithm("zip-dl", sigma=1.0), announced, rounds=1).dense()
    assert not np.isin(labels.receiver, away).any()


def test_nothing_is_received_from_a_node_that_takes_no_part():
    """It would reach models, and no view would have it: an account of such a topology said mu 0."""
    active = np.array([True, True, False])
    weights = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    with pytest.raises(InputError, match="node 2"):
        Mixing(weights, active)
    Mixing(weights, np.array([True, True, True]))
    Mixing(weights.T / weights.T.sum(axis=1, keepdims=True), active)  # what is sent to it is lost, and seen
