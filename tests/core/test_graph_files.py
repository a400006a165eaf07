"""Graphs in files of other programs: the same nodes, numbers and edges as networkx finds there."""

from __future__ import annotations

import gzip

import networkx as nx
import numpy as np
import pytest

from sottovoce import Graph, account, algorithm, graph, metropolis, trace
from sottovoce.errors import InputError

CLINICS = [
    ("Mercy", "Saint Anne"),
    ("Mercy", "North"),
    ("Saint Anne", "Harbour"),
    ("North", "Harbour"),
    ("Quay", "Mercy"),
]


def clinics(directed: bool = False, blanks: bool = True) -> nx.Graph:
    found = (nx.DiGraph if directed else nx.Graph)(name="clinics")
    found.add_edges_from([tuple(end if blanks else end.replace(" ", "-") for end in edge) for edge in CLINICS])
    nx.set_edge_attributes(found, 0.5, "weight")
    return found


def write_plain_edges(source, path):
    nx.write_edgelist(source, path, data=False)


def write_numbers(source, path):
    """Numbers in no order, some left out."""
    numbers = dict(zip(source.nodes, (10, 9, 200, 3, 7), strict=True))
    nx.write_edgelist(nx.relabel_nodes(source, numbers), path, data=False)


FORMATS = [
    ("plain.edgelist", write_plain_edges, nx.read_edgelist),
    ("numbers.edgelist", write_numbers, nx.read_edgelist),
    ("whole-numbers.edgelist", write_numbers, lambda path: nx.read_edgelist(path, nodetype=int)),
]


@pytest.mark.parametrize(("name", "write", "read"), FORMATS, ids=[name for name, _, _ in FORMATS])
def test_numbers_are_those_of_networkx(tmp_path, name, write, read):
    path = tmp_path / name
    write(clinics(blanks=not name.endswith(".edgelist")), path)
    found, wanted = graph(f"file:{path}"), Graph.from_networkx(read(path))
    assert found.names == tuple(map(str, wanted.labels))
    np.testing.assert_array_equal(found.adjacency.toarray(), wanted.adjacency.toarray())
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert graph(f"file:{path}.gz").names == found.names


def test_names_are_numbered_as_they_come_and_numbers_by_their_size(tmp_path):
    (tmp_path / "names.txt").write_text("Mercy Hill\nHill Charite\n")
    (tmp_path / "numbers.txt").write_text("10 9\n9 200\n")
    assert graph(f"file:{tmp_path}/names.txt").names == ("Mercy", "Hill", "Charite")
    assert graph(f"file:{tmp_path}/numbers.txt").names == ("9", "10", "200")


def test_names_ask_in_python_too(tmp_path):
    write_plain_edges(clinics(blanks=False), tmp_path / "g.edgelist")
    net = metropolis(f"file:{tmp_path}/g.edgelist")
    system = trace(algorithm("dp-d-sgd", sigma=4.0), net, rounds=5)
    by_name, by_number = account(system, "node:Quay"), account(system, f"node:{net.names.index('Quay')}")
    assert by_name.mu == by_number.mu


WRONG = [
    ("x.csv", "0,1,0\n1,0,1\n0,1,0\n", "line 1: '0,1,0'"),
    ("x.csv", "0,1,1\n1,0,1\n1,1,0\n", "line 3: '1,1,0'"),
    ("x.csv", "0,1,0,0\n1,0,1,0\n0,1,0,1\n0,0,1,1\n", "line 1: '0,1,0,0'"),
    ("x.csv", "a,\n", "line 1: 'a,'"),
    ("x.csv", "clinic,partner\na,b\nb,c\n", "a heading is not an edge"),
    ("x.txt", "a b {'weight': 1}\n", "line 1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "reason"), WRONG, ids=[reason for _, _, reason in WRONG])
def test_what_is_wrong_is_said_in_a_line(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=reason):
        graph(f"file:{tmp_path}/{name}")
