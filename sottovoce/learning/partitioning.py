"""Who holds which rows: training rows assigned to nodes, evenly, by skewed labels or by the people they come from.

    >>> from sottovoce.learning.datasets import load
    >>> shards = partition(load("digits"), nodes=16, how="iid", seed=0)
    >>> shards.sizes.min, shards.sizes.max
    (89, 90)

Each shard is in random order, so that its first rows, or a cycle through it, are no particular rows.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.random_streams import check_seed
from sottovoce.errors import InputError
from sottovoce.learning.catalogue import PublicStatistic
from sottovoce.learning.datasets import Dataset

DRAWS = 100
"""How often a Dirichlet draw that leaves a node without rows is repeated before it is refused."""

BY_GROUP = ("user", "writer")
"""Words for a partition in which the rows of a group stay together."""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Sizes:
    """Rows per node. `label_skew` is the mean over nodes of the total variation distance between a node's labels and
    everyone's: 0 when all nodes have the same mix, near 1 when each has labels of its own; None without classes, and
    where nodes have tables of their own.
    """

    min: int
    mean: float
    max: int
    label_skew: float | None


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """Row numbers of the training set, one read-only array per node."""

    indices: tuple[Rows, ...]
    how: str
    seed: int
    label_skew: float | None = None

    @property
    def sizes(self) -> Sizes:
        """How evenly rows are spread."""
        counts = [len(shard) for shard in self.indices]
        return Sizes(min(counts), float(np.mean(counts)), max(counts), self.label_skew)

    @property
    def public_statistics(self) -> tuple[PublicStatistic, ...]:
        """What of the rows decides who holds which; nothing, unless classes are spread unevenly on purpose."""
        return (PublicStatistic.PARTITION_LABELS,) if self.how.startswith("dirichlet") else ()

    def __repr__(self) -> str:
        return f"Partition({self.how!r}, {len(self.indices)} nodes, {self.sizes.min} to {self.sizes.max} rows)"


class NodeData(NamedTuple):
    """A data set, and who holds which of its rows."""

    dataset: Dataset
    shards: Partition


def partition(
    dataset: Dataset,
    nodes: int,
    how: str = "iid",
    seed: int = 0,
    *,
    rows: int | None = None,
    node_names: Sequence[Hashable] | None = None,
) -> Partition:
    """Assign the training rows of a data set to nodes.

    `how` is `iid`, `dirichlet:ALPHA` (each class spread over the nodes in Dirichlet(ALPHA) shares: the smaller ALPHA,
    the more skewed), or `user` or `writer` (either word: rows of one group stay together, groups are spread evenly;
    with `writer:10` each node has ten groups, and others are left out). Every node gets a row, or the partition is
    refused. `rows` limits how many rows a node keeps. `node_names` are the labels of a graph: if its nodes and the
    groups have the same names, each node gets the group of its name.

    Guarantees: no row is assigned twice; every row is assigned, unless a number limits it; the same seed gives the same
    shards; no group is split; `iid` sizes differ by at most one.
    """
    total = len(dataset.targets)
    if not 1 <= nodes <= total:
        raise InputError(
            f"{nodes} nodes", f"{dataset.name} has {total} training rows, and every node needs one", "use fewer"
        )
    if rows is not None and rows < 1:
        raise InputError(f"rows={rows}", "a node keeps at least one row", "give a positive number, or leave it out")
    rng = np.random.default_rng(check_seed(seed))
    kind, _, setting = how.partition(":")
    if how == "iid":
        shards = np.array_split(rng.permutation(total), nodes)
    elif kind == "dirichlet":
        shards = _dirichlet(dataset, nodes, _alpha(how, setting), rng)
    elif kind in BY_GROUP and re.fullmatch("|[1-9][0-9]{0,8}", setting):
        shards = _by_group(dataset, nodes, kind, rng, node_names, int(setting or 0))
    else:
        raise InputError(
            f"partition {how!r}", "known: iid, dirichlet:ALPHA, user, writer, writer:10", "see docs/data.md"
        )
    kept = tuple(_read_only(rng.permutation(shard)[:rows]) for shard in shards)
    return Partition(kept, how, seed, _label_skew(dataset, kept))


def _read_only(rows: NDArray[np.integer]) -> Rows:
    fixed = rows.astype(np.int64)
    fixed.flags.writeable = False
    return fixed


def _alpha(how: str, setting: str) -> float:
    try:
        alpha = float(setting)
    except ValueError:
        alpha = 0.0
    if not 0 < alpha < np.inf:
        raise InputError(f"partition {how!r}", "ALPHA is a positive number", "write dirichlet:0.5, for example")
    return alpha


def _dirichlet(dataset: Dataset, nodes: int, alpha: float, rng: np.random.Generator) -> list[Rows]:
    """Each class is shuffled and cut at cumulated Dirichlet shares; drawn again while a node goes without."""
    if not dataset.classes:
        raise InputError(
            f"dirichlet on {dataset.name}, whose targets are a {dataset.kind}", "label skew needs classes", "use iid"
        )
    classes = [np.flatnonzero(dataset.targets == label) for label in range(len(dataset.classes))]
    for _ in range(DRAWS):
        shares = rng.dirichlet(np.full(nodes, alpha), size=len(classes))
        cuts = [
            np.rint(np.cumsum(share)[:-1] * len(own)).astype(int) for share, own in zip(shares, classes, strict=True)
        ]
        sizes = sum(np.diff(cut, prepend=0, append=len(own)) for cut, own in zip(cuts, classes, strict=True))
        if np.min(sizes) > 0:
            parts = [np.split(rng.permutation(own), cut) for own, cut in zip(classes, cuts, strict=True)]
            return [np.concatenate(mine) for mine in zip(*parts, strict=True)]
    raise InputError(
        f"dirichlet:{alpha:g} left a node of {nodes} without rows in each of {DRAWS} draws",
        "every node needs a row",
        "use a larger ALPHA or fewer nodes",
    )


def _by_group(
    dataset: Dataset,
    nodes: int,
    how: str,
    rng: np.random.Generator,
    node_names: Sequence[Hashable] | None,
    each: int,
) -> list[Rows]:
    """Groups go to the nodes of their names; otherwise to nodes in turn, in random order: all, or `each` as many."""
    if dataset.groups is None:
        raise InputError(
            f"partition by {how} of {dataset.name}",
            "its rows do not say who they come from",
            "use iid, or data with groups",
        )
    node_of_group = nodes_by_name(dataset, node_names)
    if node_of_group is not None:
        return _rows_of_owners(node_of_group[dataset.groups], nodes)
    groups, member = np.unique(dataset.groups, return_inverse=True)
    if len(groups) < nodes * max(each, 1):
        raise InputError(
            f"{nodes} nodes for {len(groups)} groups of {dataset.name}",
            f"by {how}, every node needs {max(each, 1)} of them",
            f"use at most {len(groups) // max(each, 1)} nodes",
        )
    node_of_group = np.empty(len(groups), dtype=np.int64)
    turn = np.arange(len(groups))
    node_of_group[rng.permutation(len(groups))] = np.where(turn < (nodes * each or len(groups)), turn % nodes, nodes)
    return _rows_of_owners(node_of_group[member], nodes)


def _rows_of_owners(owner: Rows, nodes: int) -> list[Rows]:
    """For each node the rows that it owns, whose number is below that of nodes; refuses a node without any."""
    counts = np.bincount(owner, minlength=nodes + 1)[:nodes]
    if not counts.all():
        raise InputError(
            f"node {int(np.argmin(counts))} gets no training rows", "every node needs a row", "give its group more rows"
        )
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(counts))[:nodes]


def nodes_by_name(dataset: Dataset, node_names: Sequence[Hashable] | None) -> Rows | None:
    """For each group the node of the same name; None where names do not say which node is whose.

    Names of which only some agree are refused: whoever reads about a node would take it for the group of its name.
    Labels 0..n-1 are numbers in the first place, and count as names only where the groups are called exactly so.
    """
    if node_names is None or not dataset.group_names:
        return None
    names, groups = [str(name) for name in node_names], dataset.group_names
    shared = set(names) & set(groups)
    if len(shared) == len(names) == len(groups):
        return np.array([names.index(group) for group in groups], dtype=np.int64)
    if not shared or names == [str(number) for number in range(len(names))]:
        return None
    lacking = next((name for name in names if name not in shared), None)
    without = f"there is no group {lacking!r}" if lacking is not None else f"there are {len(groups)} groups"
    raise InputError(
        f"a group and a node called {min(shared)!r}, but {without} for {len(names)} nodes",
        "either all groups and nodes have the same names, or none do",
        "give groups and nodes the same names, or groups names of their own",
    )


def check_names(dataset: Dataset, shards: Partition, node_names: Sequence[Hashable] | None) -> None:
    """Refuse a partition by group in which a node does not hold the rows of the group of its name."""
    if shards.how.partition(":")[0] not in BY_GROUP or dataset.groups is None:
        return
    node_of_group = nodes_by_name(dataset, node_names)
    if node_of_group is None or node_names is None:
        return
    for node, indices in enumerate(shards.indices):
        strangers = np.flatnonzero(node_of_group[dataset.groups[indices]] != node)
        if strangers.size:
            holds = dataset.group_names[dataset.groups[indices[strangers[0]]]]
            raise InputError(
                f"node {node_names[node]!s} holds rows of {holds}", "each node must hold the group of its name",
                "give partition(..., node_names=graph.labels)",
            )  # fmt: skip


def _label_skew(dataset: Dataset, shards: tuple[Rows, ...]) -> float | None:
    if not dataset.classes:
        return None
    labels = np.asarray(dataset.targets, dtype=np.int64)
    held = np.stack([np.bincount(labels[shard], minlength=len(dataset.classes)) for shard in shards])
    everyone = held.sum(axis=0) / held.sum()
    return float(np.mean(np.abs(held / held.sum(axis=1, keepdims=True) - everyone).sum(axis=1) / 2))
