"""What is asked of a plan: what is to be trained, and the target that it has to meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sottovoce.core.final_models import parse_final_models
from sottovoce.core.graphs import Graph
from sottovoce.core.noise import PerNode
from sottovoce.core.participation import Participation, draws_by_chance, parse_participation
from sottovoce.core.topologies import Topology, weigh
from sottovoce.errors import InputError
from sottovoce.learning.declared_records import DeclaredRecords, declare_records
from sottovoce.privacy.accountant import AccountSettings
from sottovoce.privacy.gaussian_dp import mu_of
from sottovoce.privacy.guarantee import Kind
from sottovoce.privacy.views import View, parse_view

MOST = {"rounds": 10**7, "dimension": 10**12}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be trained, and the target: epsilon and delta against a view.

    `records` of all nodes or of each, `dimension` parameters of the model; gradients are clipped per example. They take
    part `every` round, `KxB`, or in batches that are drawn by chance: `poisson:SHARE`, `fixed:SIZE`. `weights` is what
    each algorithm needs unless given; `convex` says that local steps are non-expansive. With `final_models`, the
    adversary sees these models after the last round as well. `colluders` nodes may work together where algorithms have
    secure sums. Nodes count alike in the average, or with `weigh_nodes="size"` by their records. `local_rule` has
    settings such as the optimizer, for all algorithms that train.
    """

    graph: Graph
    rounds: int
    epsilon: float
    delta: float
    records: int | tuple[int, ...]
    dimension: int
    view: str = "everyone"
    final_models: str = "none"
    adjacency: str = "record"
    participation: str = "every"
    weights: str | None = None
    convex: bool = False
    colluders: int = 1
    weigh_nodes: str = "equal"
    local_rule: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses what is wrong for every algorithm."""
        for name in ("rounds", "dimension"):
            if not 1 <= getattr(self, name) <= MOST[name]:
                raise InputError(
                    f"{name} {getattr(self, name)}", f"it lies between 1 and {MOST[name]:,}", "give 100, say"
                )
        mu_of(self.epsilon, self.delta)
        self.adversary.check(self.graph.n)
        object.__setattr__(self, "view", str(self.adversary))
        object.__setattr__(self, "final_models", parse_final_models(self.final_models))
        if not draws_by_chance(self.participation):
            parse_participation(self.participation).check(self.rounds)
        self.declared.batches.check(self.rounds)
        if self.weights is not None:
            weigh(self.graph, self.weights)

    @cached_property
    def adversary(self) -> View:
        """Whom the plan protects against: the view, parsed."""
        return parse_view(self.view, labels=self.graph.names)

    @cached_property
    def declared(self) -> DeclaredRecords:
        """The records of nodes, and how they take part."""
        records = self.records if isinstance(self.records, tuple) else (self.records,)
        return declare_records(
            self.participation, nodes=self.graph.n, records=records, adjacency=self.adjacency,
            weigh_nodes=self.weigh_nodes,
        )  # fmt: skip

    @property
    def sensitivity(self) -> PerNode:
        """How far a change of data moves a node's gradient, where gradients are clipped per example to norm one."""
        return self.declared.sensitivity

    @property
    def share(self) -> float | None:
        """The share of Poisson batches that protect single records, where chance may count; else None."""
        nodes = self.declared.sampled_nodes
        by_chance = self.participation.startswith("poisson:") and nodes is not None and self.view == "everyone"
        return nodes.samplings[0].share if by_chance and nodes is not None else None

    def scheme(self, rounds: int) -> Participation:
        """In which of so many rounds a change can show, whatever chance does."""
        return self.declared.participation.within(rounds)

    def terms(self, rounds: int) -> AccountSettings:
        """What is proven of so many rounds: settings of `account`."""
        kinds = (Kind.ANY_TRAINING, Kind.CONVEX_TRAINING) if self.convex else (Kind.ANY_TRAINING,)
        return {
            "adjacency": self.adjacency, "participation": self.scheme(rounds), "convex": self.convex, "kinds": kinds,
            "final_models": self.final_models,
        }  # fmt: skip

    @cached_property
    def _nets(self) -> dict[str, Topology]:
        return {}

    def topology(self, kind: str) -> Topology:
        """The graph with weights of this kind, connected; made once."""
        if kind not in self._nets:
            self._nets[kind] = weigh(self.graph, kind)
            self._nets[kind].require_connected()
        return self._nets[kind]
