"""What `privacy.json` of a run says, as types: the one reader of its keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sottovoce.algorithms.registry import has_independent_noise
from sottovoce.core.final_models import FinalModels
from sottovoce.errors import InputError
from sottovoce.privacy.assumptions import NotCovered
from sottovoce.privacy.composition import Loss, read_loss
from sottovoce.privacy.covering_views import Coverage
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.privacy.views import View, everyone, read_view
from sottovoce.support.config import Document
from sottovoce.support.json_numbers import JSON, from_json


@dataclass(frozen=True, kw_only=True)
class StoredView:
    """All guarantees against one view, the one that is reported first, and why other kinds do not apply."""

    view: View
    headline: PrivacyFigure
    guarantees: tuple[PrivacyFigure, ...]
    refusals: tuple[str, ...]

    @classmethod
    def read(cls, document: Document) -> StoredView:
        """From JSON."""
        view, headline = read_view(document["view"]), document["headline"]
        guarantees = tuple(PrivacyFigure.read(one) for one in document["guarantees"])
        if any(one.victim is None for one in guarantees):
            raise _unknown(f"a guarantee against {view} about no node")
        return cls(
            view=view,
            headline=_headline(headline, view, document["refusals"]),
            guarantees=guarantees,
            refusals=tuple(document["refusals"]),
        )

    def document(self) -> dict[str, JSON]:
        """As JSON. Figures name no change, for data is replaced."""
        figures = [
            {key: value for key, value in one.document().items() if key != "change"}
            for one in (*self.guarantees, *([] if self.headline is None else [self.headline]))
        ]
        return {
            "view": str(self.view), "headline": None if self.headline is None else figures.pop(),
            "guarantees": list(figures), "refusals": list(self.refusals),
        }  # fmt: skip

    @property
    def node(self) -> int | None:
        """The single node that is the adversary; None for other views."""
        return self.view.members[0] if len(self.view.members) == 1 else None


class EarlierEnd(NamedTuple):
    """The headline if the run had ended after a round; mu is None where epsilon comes from sampling."""

    round: int
    epsilon: float
    mu: float | None

    @classmethod
    def read(cls, document: Document) -> EarlierEnd:
        """From JSON."""
        mu = document["mu"]
        return cls(document["round"], from_json(document["epsilon"]), None if mu is None else from_json(mu))


def _alike_or_each(value: float | str | list[float]) -> float | list[float]:
    return value if isinstance(value, list) else from_json(value)


def _not_covered(sentence: str) -> NotCovered:
    try:
        return NotCovered(sentence)
    except ValueError:
        raise _unknown("an entry in not_covered that no run writes") from None


def _headline(stated: Document | None, view: View, refusals: Sequence[str]) -> PrivacyFigure:
    """What is stated; runs of earlier versions state nothing where nothing is proven."""
    return PrivacyFigure.nothing_proven(view, refusals) if stated is None else PrivacyFigure.read(stated)


def _unknown(what: str) -> InputError:
    return InputError(f"privacy.json has {what}", "it is written by sotto run", "restore it, or run again")


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivacyDocument:
    """The guarantees of a run, and the algorithm, topology and noise that they are about.

    `sigma` and `sensitivity` are lists where they differ from node to node; `sigma` is None without noise. `grid_step`
    is None where released values are on no grid; `loss` is what the headline is made of. `covers` says whom the
    headline covers, `final_models` which of these its adversaries see beside messages, `attackers` which single nodes
    are accounted for.
    """

    algorithm: str
    topology: str
    rounds: int
    sigma: float | list[float] | None
    sensitivity: float | list[float]
    clipping: str
    adjacency: str
    participation: str
    delta: float
    headline: PrivacyFigure
    covers: Coverage | None
    final_models: FinalModels
    sampled: PrivacyFigure | None
    grid_step: float | None
    not_covered: tuple[NotCovered, ...]
    attackers: str
    convexity: str
    refusals: tuple[str, ...]
    loss: Loss | None
    over_rounds: tuple[EarlierEnd, ...]
    stored_views: Sequence[Document | StoredView]

    @classmethod
    def read(cls, document: Document) -> PrivacyDocument:
        """From JSON; a key that is missing is a `KeyError`."""
        plain = (
            "algorithm", "topology", "rounds", "sigma", "clipping", "adjacency", "participation", "delta", "convexity",
            "grid_step", "attackers",
        )  # fmt: skip
        return cls(
            **{key: document[key] for key in plain},
            sensitivity=_alike_or_each(document["sensitivity"]),
            headline=_headline(document["headline"], everyone(), document["refusals"]),
            covers=None if document["covers"] is None else Coverage.read(document["covers"]),
            final_models=FinalModels(document["and_final_models"]),
            sampled=None if document["sampled"] is None else PrivacyFigure.read(document["sampled"]),
            not_covered=tuple(map(_not_covered, document["not_covered"])),
            refusals=tuple(document["refusals"]),
            loss=None if document["loss"] is None else read_loss(document["loss"]),
            over_rounds=tuple(EarlierEnd.read(one) for one in document["over_rounds"]),
            stored_views=document["views"],
        )

    @cached_property
    def views(self) -> tuple[StoredView, ...]:
        """Every view that was accounted for; read when first asked for, because there can be many."""
        return tuple(one if isinstance(one, StoredView) else StoredView.read(one) for one in self.stored_views)

    def epsilon_after(self, rounds: int) -> float | None:
        """What has been spent after so many rounds: the headline's epsilon at the next round for which it is known.

        It is that of the planned end where no other is known; None where nothing is proven.
        """
        if self.headline.proves_nothing:
            return None
        if rounds == 0:
            return 0.0
        return next((one.epsilon for one in self.over_rounds if one.round >= rounds), self.headline.epsilon)

    @property
    def largest_sensitivity(self) -> float:
        """That of the node which a change of data moves most; infinite without clipping."""
        return max(self.sensitivity) if isinstance(self.sensitivity, list) else self.sensitivity

    def noise_of(self, node: int) -> float | None:
        """The standard deviation of what a node adds, where its noise is its own: sigma times its own sensitivity."""
        sigma = self.sigma[node] if isinstance(self.sigma, list) else self.sigma
        sensitivity = self.sensitivity[node] if isinstance(self.sensitivity, list) else self.sensitivity
        if sigma is None or not has_independent_noise(self.algorithm) or math.isinf(sensitivity):
            return None
        return sigma * sensitivity

    @property
    def node_views(self) -> dict[int, StoredView]:
        """The views of single nodes that see messages only, by node."""
        return self._of_nodes(with_models=False)

    @property
    def node_views_with_models(self) -> dict[int, StoredView]:
        """The views of single nodes that see final models as well, by node."""
        return self._of_nodes(with_models=True)

    def _of_nodes(self, *, with_models: bool) -> dict[int, StoredView]:
        return {
            view.node: view
            for view in self.views
            if view.node is not None and (view.view.final_models is not FinalModels.NONE) == with_models
        }
