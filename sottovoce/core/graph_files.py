"""Graphs in files that other programs write: GraphML, GML, adjacency tables, edge tables, networkx's edge lists.

Nodes are in the order in which networkx has them when it reads the same file: as they are listed, or as edges first
name them.

Files may come from anybody. XML with a document type, which can hold entities that grow without end or name other
files, is refused; so is what would take more memory than there is.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from sottovoce.core.edge_lists import check_labels, read_graph_text
from sottovoce.errors import InputError

ENDS = (("source", "target"), ("from", "to"))
"""What the columns of an edge table are called, in capital letters or not."""

NESTED = 50
"""Brackets inside each other in a GML file; graphs have three."""


@dataclass(frozen=True)
class ListedGraph:
    """Nodes by name, in their order, and edges between them; `directed` is None where the file does not say."""

    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    directed: bool | None


def read_listed_graph(path: Path, *, directed: bool = False) -> ListedGraph | None:
    """The graph of a file in one of these formats; None where it is a plain edge list.

    An adjacency table whose entries differ from those across its diagonal is refused unless it is said to be directed.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in (".graphml", ".xml"):
        return _checked(_read_graphml(path), path)
    if suffix == ".gml":
        return _checked(_read_gml(path), path)
    text = read_graph_text(path)
    found = _csv_graph(path, text, directed) if suffix == ".csv" else _networkx_edges(path, text)
    return None if found is None else _checked(found, path)


def _checked(found: ListedGraph, path: Path) -> ListedGraph:
    if not found.nodes:
        raise InputError(f"{path}: no nodes", "a graph has at least one node", "check the file")
    check_labels(found.nodes, str(path))
    known = frozenset(found.nodes)
    if len(known) < len(found.nodes):
        raise InputError(f"{path}: two nodes of one name", "every node needs a name of its own", "rename one of them")
    strange = next((end for edge in found.edges for end in edge if end not in known), None)
    if strange is not None:
        raise InputError(f"{path}: an edge of {strange!r:.60}", "the file lists no such node", "correct it")
    return found


# --- GraphML ---------------------------------------------------------------------------------------------------------


@dataclass
class _GraphMLReader:
    """What elements of a GraphML file say, one after the other."""

    path: Path
    nodes: list[str] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    directed: bool | None = None

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        name = tag.rpartition("}")[2]
        if name == "graph":
            if self.directed is not None:
                raise self._refused("a second or nested graph", "a file has one graph")
            default = attributes.get("edgedefault", "")
            if default not in ("directed", "undirected"):
                raise self._refused(f"edgedefault {default!r:.40}", "it is directed or undirected")
            self.directed = default == "directed"
        elif name == "node":
            self.nodes.append(self._attribute(attributes, "id", "node"))
        elif name == "edge":
            own = attributes.get("directed")
            if own is not None and (own == "true") != self.directed:
                raise self._refused("some edges that are directed and some that are not", "all are alike")
            source, target = (self._attribute(attributes, key, "edge") for key in ("source", "target"))
            self.edges.append((source, target))
        elif name in ("hyperedge", "port"):
            raise self._refused(f"a {name}", "an edge joins two nodes")

    def _attribute(self, attributes: Mapping[str, str], key: str, element: str) -> str:
        if not attributes.get(key, "").strip():
            raise self._refused(f"a {element} without {key}", f"every {element} has one")
        return attributes[key].strip()

    def refuse_document_type(self, *_: object) -> None:
        raise self._refused("a document type", "it can name other files, or grow without end", "remove the DOCTYPE")

    def _refused(self, what: str, rule: str, remedy: str = "correct the file") -> InputError:
        return InputError(f"{self.path}: {what}", rule, remedy)


def _read_graphml(path: Path) -> ListedGraph:
    found, parser = _GraphMLReader(path), expat.ParserCreate(namespace_separator="}")
    parser.StartElementHandler = found.start
    parser.StartDoctypeDeclHandler = found.refuse_document_type
    try:
        parser.Parse(read_graph_text(path), True)
    except expat.ExpatError as error:
        raise InputError(f"{path}: {error}", "it is not valid GraphML", "write it again") from None
    if found.directed is None:
        raise InputError(f"{path}: no graph element", "GraphML has one", "check the file")
    return ListedGraph(tuple(found.nodes), tuple(found.edges), found.directed)


# --- GML -------------------------------------------------------------------------------------------------------------


def _read_gml(path: Path) -> ListedGraph:
    """By networkx, which knows the format's corners; nodes are called by their labels, as there."""
    import networkx as nx

    text = read_graph_text(path)
    if _deepest_bracket(text) > NESTED:
        raise InputError(
            f"{path}: brackets in {NESTED} others", "the GML of a graph has at most three levels", "check the file"
        )
    try:
        found = nx.parse_gml(text.splitlines())
    except (nx.NetworkXError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise InputError(f"{path}: {reason}", "it is not valid GML", "write it again") from None
    return ListedGraph(*_listed(found.nodes, found.edges()), found.is_directed())


def _deepest_bracket(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]]", re.sub(r'"[^"]*"', "", text)):
        depth += 1 if bracket == "[" else -1
        deepest = max(deepest, depth)
    return deepest


def _listed(
    nodes: Iterable[Hashable], edges: Iterable[tuple[Hashable, ...]]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    return tuple(map(str, nodes)), tuple((str(edge[0]), str(edge[1])) for edge in edges)


# --- tables ----------------------------------------------------------------------------------------------------------


def _csv_graph(path: Path, text: str, directed: bool) -> ListedGraph | None:
    """An adjacency table, or a table of edges with a heading; None without one, where edges are listed plainly."""
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error as error:
        raise InputError(f"{path}: {error}", "a .csv file is needed here", "write it again") from None
    if not rows:
        return None
    heading = [cell.lower() for cell in rows[0]]
    ends = next((pair for pair in ENDS if all(heading.count(word) == 1 for word in pair)), None)
    if ends is not None:
        return _edge_table(path, rows, [heading.index(word) for word in ends])
    if len(rows) > 2 and len(rows) == len(rows[0]) and rows[0][0] == "":
        return _adjacency_table(path, rows, directed)
    _refuse_bare_matrix(path, rows)
    return None


def _edge_table(path: Path, rows: list[list[str]], places: list[int]) -> ListedGraph:
    edges = []
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(rows[0]) or not all(row[at] for at in places):
            raise InputError(
                f"{path}, line {number}: {','.join(row)[:60]!r}",
                "every edge has both ends, and as many cells as the heading", "correct that line",
            )  # fmt: skip
        edges.append((row[places[0]], row[places[1]]))
    return ListedGraph(tuple(dict.fromkeys(end for edge in edges for end in edge)), tuple(edges), None)


def _adjacency_table(path: Path, rows: list[list[str]], directed: bool) -> ListedGraph:
    names = rows[0][1:]
    if [row[0] for row in rows[1:]] != names or any(len(row) != len(rows[0]) for row in rows):
        raise InputError(
            f"{path}: rows and columns with different names",
            "an adjacency table has the same names, in the same order", "write it again",
        )  # fmt: skip
    entries = [[_is_edge(path, names[at], cell) for cell in row[1:]] for at, row in enumerate(rows[1:])]
    pairs = [(i, j) for i, row in enumerate(entries) for j, joined in enumerate(row) if joined]
    one_way = next(((i, j) for i, j in pairs if not entries[j][i]), None)
    if one_way is not None and not directed:
        i, j = one_way
        raise InputError(
            f"{path}: an edge from {names[i]!r} to {names[j]!r} and none back",
            "edges go both ways unless you declare them directed",
            "add ,directed=true, or correct the table",
        )  # fmt: skip
    return ListedGraph(tuple(names), tuple((names[i], names[j]) for i, j in pairs), None)


def _is_edge(path: Path, row: str, cell: str) -> bool:
    try:
        return cell != "" and float(cell) != 0
    except ValueError:
        raise InputError(
            f"{path}, row {row!r:.60}: {cell!r:.40}",
            "entries of an adjacency table are numbers, 0 for no edge",
            "correct it",
        ) from None


def _refuse_bare_matrix(path: Path, rows: list[list[str]]) -> None:
    """Refuse a square of numbers: read as a list of edges it would be another graph."""
    if len(rows) < 3 or any(len(row) != len(rows) for row in rows):
        return
    mirrored = all(rows[i][j] == rows[j][i] for i in range(len(rows)) for j in range(i))
    if len(rows) > 3 or mirrored:
        raise InputError(
            f"{path}: a square of {len(rows)} x {len(rows)} cells",
            "a list of edges has two columns and perhaps a weight",
            "write the names of nodes as first row and first column, if it is an adjacency table",
        )  # fmt: skip


# --- networkx's edge lists -------------------------------------------------------------------------------------------


def _networkx_edges(path: Path, text: str) -> ListedGraph | None:
    """Lines `a b {'weight': 1}`, as `networkx.write_edgelist` writes them; None where no line ends in braces."""
    if "}" not in text:
        return None
    lines = [(number, line.split("#", 1)[0].strip()) for number, line in enumerate(text.splitlines(), 1)]
    if not any(line.endswith("}") for _, line in lines):
        return None
    edges = []
    for number, line in lines:
        found = re.fullmatch(r"(\S+)\s+(\S+)\s*(\{.*\})?", line)
        if line and found is None:
            raise InputError(
                f"{path}, line {number}: {line[:60]!r}",
                "an edge has two ends without blanks, followed by braces at most",
                "write GraphML, which keeps names of several words",
            )  # fmt: skip
        if found is not None:
            edges.append((found[1], found[2]))
    return ListedGraph(tuple(dict.fromkeys(end for edge in edges for end in edge)), tuple(edges), None)
