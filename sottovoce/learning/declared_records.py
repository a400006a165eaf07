"""Records that nodes declare before anybody's rows are there: how many, how they come into batches, what one changes.

    >>> held = declare_records("poisson:0.1", nodes=2, records=[50, 200])
    >>> held.sensitivity, str(held.participation)
    ((0.4, 0.1), 'every')
    >>> held.sampled_nodes.samplings[0]
    Sampling(share=0.1, size=None, apart=1)

Numbers of records are public. Gradients are clipped per example, to norm one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.adjacency import Adjacency, parse_adjacency
from sottovoce.core.noise import PerNode
from sottovoce.core.participation import SAMPLED, SHUFFLED, Participation, draws_by_chance, parse_participation
from sottovoce.core.sensitivity import per_node
from sottovoce.errors import InputError
from sottovoce.learning.batches import Batches, parse_batches
from sottovoce.learning.clipping import parse_clipping
from sottovoce.privacy.sampled_batches import SampledNodes

MOST = 10**7
"""Records that a node can declare."""

CLIP = parse_clipping("per-example", 1.0)


@dataclass(frozen=True, eq=False)
class DeclaredRecords:
    """How many records nodes hold, how these are drawn, and which change is protected: one record or all of a node.

    Nodes count alike, or by their records, as `weigh_nodes` says.
    """

    batches: Batches
    adjacency: Adjacency
    weigh_nodes: str = "equal"

    @property
    def records(self) -> list[int]:
        """Of each node."""
        return [len(shard) for shard in self.batches.shards]

    @property
    def participation(self) -> Participation:
        """In which rounds a change can show, whatever chance does."""
        return self.batches.participation(self.adjacency)

    @property
    def sensitivity(self) -> PerNode:
        """How far a change moves what a node releases, alike or one for each."""
        return self._weighed(CLIP.sensitivities(self.batches, self.adjacency))

    @property
    def sampled_nodes(self) -> SampledNodes | None:
        """How nodes draw their records, where all do so by chance and one record is what may change."""
        found = [self.batches.sampling(node) for node in range(self.batches.nodes)]
        samplings = tuple(how for how in found if how is not None)
        if self.adjacency is not Adjacency.RECORD or len(samplings) < len(found):
            return None
        return SampledNodes(samplings, self._weighed(CLIP.sensitivities(self.batches, "record", samplings[0].change)))

    def _weighed(self, sensitivities: NDArray[np.float64]) -> PerNode:
        return per_node(self.batches.node_weights(self.weigh_nodes) * sensitivities)


def declare_records(
    participation: str, *, nodes: int, records: Sequence[int], adjacency: str = "record", weigh_nodes: str = "equal"
) -> DeclaredRecords:
    """Records of each node, or as many of all, that take part as `participation` says.

    `every`, `KxB`, `shuffle:B`, or the batches that are drawn by chance: `poisson:SHARE`, `fixed:SIZE`,
    `cyclic-poisson:SHARExB`.
    """
    wrong = next((count for count in records if not 1 <= count <= MOST), None)
    if wrong is not None:
        raise InputError(f"{wrong} records", f"a node holds from 1 to {MOST:,}", "correct it")
    if len(records) not in (1, nodes):
        raise InputError(
            f"records of {len(records)} nodes",
            f"the graph has {nodes}",
            "give one number, or one for each",
        )
    held = list(records) * (nodes if len(records) == 1 else 1)
    return DeclaredRecords(parse_batches(_batches(participation), held), parse_adjacency(adjacency), weigh_nodes)


def fewest_records(participation: str) -> int:
    """With how many records each node can take part so, where nothing depends on their number."""
    if participation.startswith("fixed:"):
        raise InputError(
            f"participation {participation} without records",
            "how often a record is drawn depends on how many there are",
            "add --records 200, for example",
        )  # fmt: skip
    if not participation.startswith(f"{SAMPLED}:"):
        return 1
    parts = parse_participation(participation).apart
    if parts > MOST:
        raise InputError(
            participation, f"every part needs a record, and a node holds at most {MOST:,}", "use fewer parts"
        )
    return parts


def parse_records(text: str) -> list[int]:
    """One number for all nodes, or one for each: `80`, or `17,24,126`.

    >>> parse_records("17,24,126")
    [17, 24, 126]
    """
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise InputError(
            f"records {text!r:.60}",
            f"they must be whole numbers from 1 to {MOST:,}",
            "give 80, or 17,24,126 for three nodes",
        )
    return [int(part) for part in text.split(",")]


def _batches(participation: str) -> str:
    """The batches in which records take part so."""
    if draws_by_chance(participation) or participation.startswith(f"{SHUFFLED}:"):
        return participation
    scheme = parse_participation(participation)
    return "full" if scheme.times is None else f"cycle:{scheme}"
