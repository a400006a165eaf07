"""Graphs in files of other programs: the same nodes, numbers and edges as networkx finds there."""

from __future__ import annotations

import gzip

import networkx as nx
import numpy as np
import pandas
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


def write_adjacency(source, path):
    nx.to_pandas_adjacency(source).to_csv(path)


def write_edges(source, path):
    nx.to_pandas_edgelist(source).to_csv(path, index=False)


def write_edges_with_index(source, path):
    nx.to_pandas_edgelist(source).to_csv(path)


def write_plain_edges(source, path):
    nx.write_edgelist(source, path, data=False)


def write_numbers(source, path):
    """Numbers in no order, some left out."""
    numbers = dict(zip(source.nodes, (10, 9, 200, 3, 7), strict=True))
    nx.write_edgelist(nx.relabel_nodes(source, numbers), path, data=False)


FORMATS = [
    ("g.graphml", nx.write_graphml, nx.read_graphml),
    ("g.gml", nx.write_gml, nx.read_gml),
    ("a.csv", write_adjacency, lambda path: nx.from_pandas_adjacency(pandas.read_csv(path, index_col=0))),
    ("e.csv", write_edges, lambda path: nx.from_pandas_edgelist(pandas.read_csv(path))),
    ("i.csv", write_edges_with_index, lambda path: nx.from_pandas_edgelist(pandas.read_csv(path))),
    ("e.edgelist", nx.write_edgelist, nx.read_edgelist),
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


@pytest.mark.parametrize("name", ["g.graphml", "g.gml"])
def test_files_that_say_so_are_directed(tmp_path, name):
    path = tmp_path / name
    (nx.write_graphml if name == "g.graphml" else nx.write_gml)(clinics(directed=True), path)
    found = graph(f"file:{path}")
    assert (found.directed, found.edges) == (True, 5)
    with pytest.raises(InputError, match="the file itself says"):
        graph(f"file:{path},directed=false")


def test_an_adjacency_table_that_leads_one_way(tmp_path):
    path = tmp_path / "a.csv"
    write_adjacency(clinics(directed=True), path)
    with pytest.raises(InputError, match="an edge from 'Mercy' to 'Saint Anne' and none back"):
        graph(f"file:{path}")
    found = graph(f"file:{path},directed=true")
    at = found.names.index
    assert found.adjacency[at("Quay"), at("Mercy")] == 1
    assert found.adjacency[at("Mercy"), at("Quay")] == 0


def test_nodes_without_edges_are_nodes(tmp_path):
    source = clinics()
    source.add_node("Alone")
    nx.write_graphml(source, tmp_path / "g.graphml")
    assert graph(f"file:{tmp_path}/g.graphml").n == 6


def test_names_ask_in_python_too(tmp_path):
    nx.write_graphml(clinics(), tmp_path / "g.graphml")
    net = metropolis(f"file:{tmp_path}/g.graphml")
    system = trace(algorithm("dp-d-sgd", sigma=4.0), net, rounds=5)
    by_name, by_number = account(system, "node:Quay"), account(system, f"node:{net.names.index('Quay')}")
    assert by_name.mu == by_number.mu


HEAD = '<?xml version="1.0"?>'
NODE, EDGE = '<node id="a"/>', '<edge source="a" target="b"/>'


def xml(inside: str, default: str = "undirected", head: str = HEAD) -> str:
    return f'{head}<graphml><graph edgedefault="{default}">{inside}</graph></graphml>'


WRONG = [
    ("x.graphml", xml("&b;", head=f'{HEAD}<!DOCTYPE g [<!ENTITY b "aa">]>'), "a document type"),
    ("x.graphml", xml("", head=f'{HEAD}<!DOCTYPE g SYSTEM "file:///etc/passwd">'), "document type; it can name"),
    ("x.graphml", f"{HEAD}<graphml><graph", "not valid GraphML"),
    ("x.graphml", f"{HEAD}<graphml/>", "no graph element"),
    ("x.graphml", xml("", "both"), "edgedefault 'both'"),
    ("x.graphml", xml("<node/>"), "a node without id"),
    ("x.graphml", xml("<hyperedge/>"), "a hyperedge"),
    ("x.graphml", xml('<node id="a"><graph edgedefault="undirected"/></node>'), "a second or nested"),
    ("x.graphml", xml(NODE + NODE), "two nodes of one name"),
    ("x.graphml", xml(NODE + EDGE), "an edge of 'b'"),
    ("x.graphml", xml(NODE + EDGE.replace("<edge", '<edge directed="true"')), "some edges that are directed"),
    ("x.gml", "graph [ node [ id 0", "not valid GML"),
    ("x.gml", "graph " + "[ a " * 5000, "brackets in 50 others"),
    ("x.gml", "", "not valid GML"),
    ("x.csv", ",a,b\na,0,1\nb,1,x\n", "row 'b': 'x'"),
    ("x.csv", ",a,b\nb,0,1\na,1,0\n", "rows and columns with different names"),
    ("x.csv", "0,1,0\n1,0,1\n0,1,0\n", "a square of 3 x 3 cells"),
    ("x.csv", "0,1,0,0\n1,0,1,0\n0,1,0,1\n0,0,1,1\n", "a square of 4 x 4 cells"),
    ("x.csv", "source,target\na,\n", "line 2: 'a,'"),
    ("x.csv", "clinic,partner\na,b\nb,c\n", "a heading is not an edge"),
    ("x.txt", "a b {'weight': 1}\na b c {}\n", "line 2: 'a b c {}'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "reason"), WRONG, ids=[reason for _, _, reason in WRONG])
def test_what_is_wrong_is_said_in_a_line(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=reason):
        graph(f"file:{tmp_path}/{name}")
