"""What `privacy.json` of a run says, as types: the one reader of its keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from sottovoce.algorithms.registry import has_independent_noise
from sottovoce.core.final_models import FinalModels
from sottovoce.errors import InputError
from sottovoce.privacy.assumptions import NotCovered
from sottovoce.privacy.composition import Loss, loss_document, read_loss
from sottovoce.privacy.covering_views import Coverage
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.privacy.views import View, read_view
from sottovoce.support.config import Document
from sottovoce.support.text import JSON, from_json, to_json


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
        view, guarantees = read_view(document["view"]), tuple(map(PrivacyFigure.read, document["guarantees"]))
        if any(one.victim is None for one in guarantees):
            raise _unknown(f"a guarantee against {view} about no node")
        headline, refusals = PrivacyFigure.read(document["headline"]), tuple(document["refusals"])
        return cls(view=view, headline=headline, guarantees=guarantees, refusals=refusals)

    def document(self) -> dict[str, JSON]:
        """As JSON. Figures name no change, for data is replaced."""
        *guarantees, headline = (
            {key: value for key, value in one.document().items() if key != "change"}
            for one in (*self.guarantees, self.headline)
        )
        return {
            "view": str(self.view), "headline": headline, "guarantees": guarantees, "refusals": list(self.refusals),
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


def _as_json(value: Any) -> JSON:
    if hasattr(value, "document"):
        found: JSON = value.document()
        return found
    if isinstance(value, EarlierEnd):
        return {key: to_json(number) for key, number in value._asdict().items()}
    if isinstance(value, tuple):
        return [_as_json(one) for one in value]
    return value.value if isinstance(value, Enum) else to_json(value)


def _unknown(what: str) -> InputError:
    return InputError(f"privacy.json has {what}", "it is written by sotto run", "restore it, or run again")


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivacyDocument:
    """The guarantees of a run, and the algorithm, topology and noise that they are about.

    `sigma` and `sensitivity` are lists where they differ from node to node; `sigma` is None without noise. `grid_step`
    is None where released values are on no grid; `loss` is what the headline is made of. `covers` says whom the
    headline covers, `and_final_models` which of these its adversaries see beside messages, `attackers` which single
    nodes are accounted for, and `certificate` what every round of the run is compared with.
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
    grid_step: float | None
    not_covered: tuple[NotCovered, ...]
    covers: Coverage | None
    and_final_models: FinalModels
    loss: Loss | None
    over_rounds: tuple[EarlierEnd, ...]
    sampled: PrivacyFigure | None
    convexity: str
    certificate: str
    refusals: tuple[str, ...]
    attackers: str
    stored_views: Sequence[Document | StoredView]

    def document(self) -> dict[str, JSON]:
        """As JSON."""
        found = {field.name: _as_json(getattr(self, field.name)) for field in fields(self)}
        found["loss"] = None if self.loss is None else loss_document(self.loss)
        found["views"] = found.pop("stored_views")
        return found

    @classmethod
    def read(cls, document: Document) -> PrivacyDocument:
        """From JSON; a key that is missing is a `KeyError`."""
        plain = (
            "algorithm", "topology", "rounds", "sigma", "clipping", "adjacency", "participation", "delta", "convexity",
            "certificate", "grid_step", "attackers",
        )  # fmt: skip
        sensitivity, covers, sampled, loss = (document[key] for key in ("sensitivity", "covers", "sampled", "loss"))
        try:
            not_covered = tuple(map(NotCovered, document["not_covered"]))
        except ValueError:
            raise _unknown("an entry in not_covered that no run writes") from None
        return cls(
            **{key: document[key] for key in plain},
            sensitivity=sensitivity if isinstance(sensitivity, list) else from_json(sensitivity),
            headline=PrivacyFigure.read(document["headline"]),
            covers=None if covers is None else Coverage.read(covers),
            and_final_models=FinalModels(document["and_final_models"]),
            sampled=None if sampled is None else PrivacyFigure.read(sampled),
            not_covered=not_covered,
            refusals=tuple(document["refusals"]),
            loss=None if loss is None else read_loss(loss),
            over_rounds=tuple(
                EarlierEnd(one["round"], from_json(one["epsilon"]), None if one["mu"] is None else from_json(one["mu"]))
                for one in document["over_rounds"]
            ),
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

    @property
    def is_silent(self) -> bool:
        """Whether no noise is added at all. Where neighbours share secrets, those are noise besides."""
        sigma = self.sigma if isinstance(self.sigma, list) else [self.sigma]
        return sigma == [None] or (not any(sigma) and has_independent_noise(self.algorithm))

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


def epsilon_in_line(privacy: PrivacyDocument, round: int) -> Document | None:
    """What a line of metrics says of epsilon: what has been spent by then, and what will have been at the end."""
    spent, planned = (privacy.epsilon_after(at) for at in (round, privacy.rounds))
    return None if spent is None else {"spent": to_json(spent), "planned": to_json(planned)}
