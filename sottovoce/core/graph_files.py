"""Graphs in files: edge lists, and what other programs write: GraphML, GML, adjacency tables, edge tables.

Nodes are in the order in which networkx has them when it reads the same file: as they are listed, or as edges first
name them.

Files may come from anybody. XML with a document type, which can hold entities that grow without end or name other
files, is refused; so is what would take more memory than there is.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError, file_error
from sottovoce.support.files import check_name, open_file
from sottovoce.support.limits import Cost, check_cost, size_text
from sottovoce.support.progress import counted, report_progress, report_stage
from sottovoce.support.text import decode_text, visible

ENDS = (("source", "target"), ("from", "to"))
"""What the columns of an edge table are called, in capital letters or not."""

NESTED = 50
"""Brackets inside each other in a GML file; graphs have three."""

CHUNK = 2**24
"""Bytes that are read at once."""

TOLD = 10_000
"""Lines after which it is told how far they are: some hundredths of a second."""

MEMORY_OF_TEXT = 20.0
"""Bytes of memory that a byte of text takes until it is a graph."""


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


def _read_graphml(path: Path) -> ListedGraph:
    def refused(found: str, rule: str, remedy: str = "correct the file") -> InputError:
        return InputError(f"{path}: {found}", rule, remedy)

    def attribute(element: Element, key: str) -> str:
        value = element.get(key, "").strip()
        if not value:
            name = element.tag.rpartition("}")[2]
            raise refused(f"a {name} without {key}", f"every {name} has one")
        return value

    text = read_graph_text(path)
    if "<!DOCTYPE" in text:
        raise refused("a document type", "it can name other files, or grow without end", "remove the DOCTYPE")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise refused(str(error), "it is not valid GraphML", "write it again") from None
    graphs, nodes, edges = (root.findall(f".//{{*}}{name}") for name in ("graph", "node", "edge"))
    if len(graphs) != 1:
        raise refused("a second or nested graph" if graphs else "no graph element", "GraphML has one graph here")
    default = graphs[0].get("edgedefault", "")
    if default not in ("directed", "undirected"):
        raise refused(f"edgedefault {default!r:.40}", "it is directed or undirected")
    directed = default == "directed"
    if any((edge.get("directed") == "true") != directed for edge in edges if "directed" in edge.attrib):
        raise refused("some edges that are directed and some that are not", "all are alike")
    for strange in ("hyperedge", "port"):
        if root.find(f".//{{*}}{strange}") is not None:
            raise refused(f"a {strange}", "an edge joins two nodes")
    ends = tuple((attribute(edge, "source"), attribute(edge, "target")) for edge in edges)
    return ListedGraph(tuple(attribute(node, "id") for node in nodes), ends, directed)


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


# --- plain edge lists ------------------------------------------------------------------------------------------------


def read_edge_list(path: Path) -> NDArray[np.int64 | np.str_]:
    """Two labels a line, separated by blanks or, in names with blanks, a comma; what follows # or % is left out.

    Further columns may hold numbers only, which are left out: words there are more likely a mistake. So is a heading;
    see `_check_heading`.
    """
    lines = read_graph_text(path).splitlines()
    ends: list[str] = []
    first_line = 0
    with counted("lines", len(lines)):
        for number, line in enumerate(lines, start=1):
            fields = _fields(re.split(r"[#%]", line, maxsplit=1)[0])
            _check_fields(fields, line, f"edge list {path}, line {number}")
            first_line = first_line or (number if fields else 0)
            ends += fields[:2]
            if not number % TOLD:
                report_progress(TOLD)
    report_stage("numbering nodes")
    if not ends:
        raise InputError(f"edge list {path}: no edges", "there must be at least one", "check the file")
    _check_heading(ends, f"edge list {path}, line {first_line}")
    return _pairs(ends)


def _check_fields(fields: Sequence[str], line: str, where: str) -> None:
    check_labels(fields, where)
    if len(fields) == 1 or any(not _is_number(field) for field in fields[2:]) or "" in fields[:2]:
        raise InputError(
            f"{where}: {line.strip()[:40]!r}",
            "an edge has two ends, followed by numbers at most",
            "write two labels on each line, with a comma between names of several words",
        )


def parse_edges(text: str) -> tuple[NDArray[np.int64 | np.str_], bool]:
    """Pairs of labels, and whether they are directed: `A--B,B--C` are edges both ways, `A->B,B->C` lead one way.

    >>> parse_edges("Hill--Mercy,Mercy--Charite")[0].tolist()
    [['Hill', 'Mercy'], ['Mercy', 'Charite']]
    """
    between = "->" if "->" in text else "--"
    edges = [[end.strip() for end in edge.split(between)] for edge in text.split(",")]
    wrong = next((edge for edge in edges if len(edge) != 2 or "" in edge), None)
    if wrong is not None:
        raise InputError(
            f"edge {between.join(wrong)!r:.60} in a graph", "an edge is written A--B, or A->B if it is directed",
            "write edges:Hill--Mercy,Mercy--Charite, for example",
        )  # fmt: skip
    return _pairs([end for edge in edges for end in edge]), between == "->"


def _pairs(ends: list[str]) -> NDArray[np.int64 | np.str_]:
    """Labels two by two: numbers where all of them are."""
    try:
        flat = np.array(ends, dtype=np.int64)
    except (ValueError, OverflowError):
        flat = np.array(ends)
    return flat.reshape(-1, 2)


def read_graph_text(path: Path) -> str:
    """The text of a file, unpacked; not more of it than there is memory for."""
    rule, remedy = "an edge list is a text file, or gzip", "check the path"
    check_name(path)
    try:
        return decode_text(_unpacked(path))
    except UnicodeDecodeError:
        raise InputError(f"edge list {path}: not readable as text", rule, remedy) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(
            f"edge list {path}: damaged or cut off", "a gzip file is unpacked to its end", "get the file again"
        ) from None
    except OSError as error:
        raise file_error(f"edge list {path}", error, rule, remedy) from None


def _unpacked(path: Path) -> bytes:
    content = bytearray()
    with open_file(path, follow_links=True) as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file = gzip.GzipFile(fileobj=raw) if packed else raw
        while part := file.read(CHUNK):
            content += part
            check_cost(
                f"edge list {path}, {size_text(len(content))} and more unpacked,",
                Cost(memory=MEMORY_OF_TEXT * len(content)),
                "take a smaller graph",
            )
    return bytes(content)


def check_labels(labels: Sequence[str], where: str) -> None:
    """Refuse characters that nobody sees: with a byte-order mark inside a file, one node would become two."""
    hidden = next((label for label in labels if visible(label) != label), None)
    if hidden is not None:
        raise InputError(
            f"{where}: {visible(hidden)!r:.60} has characters that cannot be seen",
            "labels that look the same must be the same node",
            "remove them; in a file that was assembled from others it may be a byte-order mark",
        )


def _check_heading(ends: list[str], where: str) -> None:
    """Refuse a first line that looks like the heading of a table: two words that stand on no other line.

    An edge between two nodes without other neighbours looks the same, so nothing is left out: the line is refused, and
    an edge that stands on two lines is taken.
    """
    heading, others = set(ends[:2]), set(ends[2:])
    if others and not heading & others and not any(map(_is_number, heading)):
        raise InputError(
            f"{where}: {ends[0]!r} and {ends[1]!r} are on no other line",
            "a heading is not an edge",
            "remove it, or begin it with #; if it is an edge, write it twice",
        )


def _fields(line: str) -> list[str]:
    if "," not in line:
        return line.split()
    out: list[str] = []
    for part in line.split(","):
        words = part.split()
        out += words if words and all(map(_is_number, words)) else [part.strip()]
    return out


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
