"""What `privacy.json` of a run says, as types: the one reader of its keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sottovoce.config import Document
from sottovoce.privacy.final_models import KEPT
from sottovoce.privacy.gaussian_dp import guessing_accuracy_bound

FIXED_STREAMS = "fixed-streams"
"""The kind of guarantee that is no proof for training."""


@dataclass(frozen=True, kw_only=True)
class StoredGuarantee:
    """A guarantee against one view. `mu` is None where the loss is not Gaussian, `victim` where it is about any node.

    >>> found = StoredGuarantee.read(
    ...     {"victim": 3, "distance": 1, "kind": "any-training", "mu": "inf", "epsilon": "inf",
    ...      "proven_for_training": True, "assumptions": []}, view="node:0")
    >>> found.epsilon, found.epsilon_document, found.guessing_accuracy(1e-5)
    (inf, 'inf', 1.0)
    """

    view: str
    change: str
    victim: int | None
    distance: int | None
    kind: str
    mu: float | None
    epsilon: float
    proven: bool
    assumptions: tuple[str, ...]

    @classmethod
    def read(cls, document: Document, view: str = "", change: str = "replace") -> StoredGuarantee:
        """From JSON; a headline has its own view and change."""
        mu = document["mu"]
        return cls(
            view=document.get("view", view),
            change=document.get("change", change),
            victim=document["victim"],
            distance=document["distance"],
            kind=document["kind"],
            mu=None if mu is None else float(mu),
            epsilon=float(document["epsilon"]),
            proven=bool(document["proven_for_training"]),
            assumptions=tuple(document["assumptions"]),
        )

    @property
    def epsilon_document(self) -> float | str:
        """Epsilon as JSON: the word "inf" where it is infinite."""
        return "inf" if math.isinf(self.epsilon) else self.epsilon

    @property
    def final_models_covered(self) -> bool:
        """Whether the guarantee also holds if the models are published at the end."""
        return KEPT not in self.assumptions

    def guessing_accuracy(self, delta: float) -> float:
        """An upper bound on how often the adversary guesses right which of two data sets was used."""
        return guessing_accuracy_bound(self.mu, self.epsilon, delta)


@dataclass(frozen=True, kw_only=True)
class StoredView:
    """All guarantees against one view, the one that is reported first, and why other kinds do not apply."""

    view: str
    headline: StoredGuarantee | None
    guarantees: tuple[StoredGuarantee, ...]
    refusals: tuple[str, ...]

    @classmethod
    def read(cls, document: Document) -> StoredView:
        """From JSON."""
        view, headline = document["view"], document["headline"]
        return cls(
            view=view,
            headline=None if headline is None else StoredGuarantee.read(headline, view),
            guarantees=tuple(StoredGuarantee.read(one, view) for one in document["guarantees"]),
            refusals=tuple(document["refusals"]),
        )

    @property
    def node(self) -> int | None:
        """The single node that is the adversary; None for other views."""
        kind, _, members = self.view.partition(":")
        return int(members) if kind == "node" else None


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivacyDocument:
    """The guarantees of a run, and the algorithm, topology and noise that they are about.

    `sigma` is a list where it differs from node to node, None without noise; `over_rounds` has pairs (round, epsilon).
    """

    algorithm: str
    topology: str
    rounds: int
    sigma: float | list[float] | None
    sensitivity: float
    clipping: str
    adjacency: str
    participation: str
    delta: float
    headline: StoredGuarantee | None
    sampled: StoredGuarantee | None
    convexity: str
    refusals: tuple[str, ...]
    over_rounds: tuple[tuple[int, float], ...]
    stored_views: Sequence[Document]

    @classmethod
    def read(cls, document: Document) -> PrivacyDocument:
        """From JSON; a key that is missing is a `KeyError`."""
        plain = (
            "algorithm", "topology", "rounds", "sigma", "clipping", "adjacency", "participation", "delta", "convexity"
        )  # fmt: skip
        headline, sampled = (
            None if document[key] is None else StoredGuarantee.read(document[key]) for key in ("headline", "sampled")
        )
        return cls(
            **{key: document[key] for key in plain},
            sensitivity=float(document["sensitivity"]),
            headline=headline,
            sampled=sampled,
            refusals=tuple(document["refusals"]),
            over_rounds=tuple((one["round"], float(one["epsilon"])) for one in document.get("over_rounds", [])),
            stored_views=document["views"],
        )

    @cached_property
    def views(self) -> tuple[StoredView, ...]:
        """Every view that was accounted for; read when first asked for, because there can be many."""
        return tuple(StoredView.read(view) for view in self.stored_views)

    @property
    def node_views(self) -> dict[int, StoredView]:
        """The views of single nodes, by node."""
        return {view.node: view for view in self.views if view.node is not None}
