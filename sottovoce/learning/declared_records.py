"""Records that nodes declare before anybody's rows are there: how many, how they come into batches, what one changes.

    >>> held = declare_records("poisson:0.1", nodes=2, records=[50, 200])
    >>> held.sensitivity, str(held.participation)
    ((0.4, 0.1), 'every')
    >>> held.sampled_nodes.samplings[0].share
    0.1

Numbers of records are public. Gradients are clipped per example, to norm one.

The least noise for a target, whatever the batches; those that are drawn by chance count where that is proven:

    >>> from sottovoce import algorithm, metropolis
    >>> plain, ring = algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:8")
    >>> target = {"rounds": 100, "epsilon": 1.0, "delta": 1e-5, "adjacency": "record"}
    >>> batches = ("every", "shuffle:10", "poisson:0.1")
    >>> [round(calibrate(plain, ring, participation=how, **target), 2) for how in batches]
    [37.31, 11.8, 1.97]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.algorithm import Algorithm
from sottovoce.core.noise import PerNode
from sottovoce.core.participation import (
    SAMPLED,
    SHUFFLED,
    Adjacency,
    Participation,
    draws_by_chance,
    parse_adjacency,
    parse_participation,
)
from sottovoce.core.sensitivity import per_node
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.learning.batches import Batches, parse_batches
from sottovoce.learning.clipping import parse_clipping
from sottovoce.privacy import calibration
from sottovoce.privacy.accountant import AccountSettings
from sottovoce.privacy.amplification import SampledNodes, calibrate_sampled
from sottovoce.privacy.calibration import Target, calibrated_system, with_sigma
from sottovoce.privacy.views import View, parse_view
from sottovoce.tracing.policy import trace_possible

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

    `every`, `KxB`, `shuffle:B`, or the batches that are drawn by chance: `poisson:SHARE`, `fixed:SIZE`, `allocate:KxB`,
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


# --- the least noise for a target ----------------------------------------------------------------------------------


def calibrate(
    algorithm: Algorithm,
    topology: Topology,
    adversary: str | View = "everyone",
    *,
    rounds: int,
    epsilon: float,
    delta: float,
    records: int | Sequence[int] | None = None,
    **settings: Unpack[AccountSettings],
) -> PerNode:
    """The smallest sigma that is proven to give (epsilon, delta)-DP, rounded up; `settings` are those of `account`.

    The algorithm's own sigma is replaced. `participation` may also be `poisson:SHARE`, `fixed:SIZE`, `allocate:KxB` or
    `cyclic-poisson:SHARExB`, with `adjacency="record"`: then sampling is counted if that is proven. `fixed` needs
    `records`, one number or one for each node, and gives a sigma for each node if they differ.
    """
    how = settings.get("participation", "every")
    if isinstance(how, Participation) or not draws_by_chance(how):
        if records is not None:
            raise InputError(
                f"records with participation {how}", "the number of records has no effect there", "leave it out"
            )
        return calibration.calibrate(
            algorithm, topology, adversary, rounds=rounds, epsilon=epsilon, delta=delta, **settings
        )
    declared = _declared(how, topology.n, records, settings)
    built = replace(with_sigma(algorithm, 1.0), sensitivity=declared.sensitivity)  # type: ignore[type-var]
    reference, target = trace_possible(built, topology, rounds=rounds), Target(epsilon, delta)
    settings["participation"] = declared.participation.within(rounds)
    plain = calibrated_system(reference, adversary, target, **settings).sigma
    view = parse_view(adversary, labels=topology.names)
    chance = calibrate_sampled(reference, view, declared.sampled_nodes, target, plain)
    return plain if chance is None else chance.sigma


def _declared(how: str, nodes: int, records: int | Sequence[int] | None, settings: AccountSettings) -> DeclaredRecords:
    if settings.get("adjacency") != "record":
        raise InputError(
            f"participation {how} with adjacency {settings.get('adjacency', 'user')!r}",
            "if all data of a node changes, it shows in every round", 'give adjacency="record"',
        )  # fmt: skip
    held = [fewest_records(how)] if records is None else [records] if isinstance(records, int) else list(records)
    return declare_records(how, nodes=nodes, records=held)
