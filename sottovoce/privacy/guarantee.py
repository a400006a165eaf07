"""Guarantees: mu-GDP for a victim, with the kind of proof and its assumptions; and the headline of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from sottovoce.core.final_models import FinalModels
from sottovoce.core.participation import Change
from sottovoce.errors import InputError
from sottovoce.privacy import gaussian_dp
from sottovoce.privacy.assumptions import NOT_ROUNDED_KINDS, Assumption, AssumptionKind
from sottovoce.privacy.views import View, read_view
from sottovoce.support.text import JSON, from_json, to_json

if TYPE_CHECKING:
    from sottovoce.support.config import Document


class Kind(StrEnum):
    """How a figure is proven: see docs/guarantees.md."""

    ANY_TRAINING = "any-training"
    CONVEX_TRAINING = "convex-training"
    FIXED_STREAMS = "fixed-streams"
    AS_PUBLISHED = "as-published"


KINDS = (Kind.ANY_TRAINING, Kind.CONVEX_TRAINING, Kind.FIXED_STREAMS)
"""The kinds that are accounted for; `as-published` comes on request, for comparison only."""


class Figure(StrEnum):
    """What a figure is: the loss itself, a bound on it, or a formula. No smaller figure is wrong for being below a
    bound."""

    EXACT = "exact"
    BOUND = "bound"
    CLOSED_FORM = "closed-form"


def weakest(figures: Iterable[Figure]) -> Figure:
    """What can be said of several figures together: a bound, if one of them is only that."""
    found = set(figures)
    return next(one for one in (Figure.BOUND, Figure.EXACT, Figure.CLOSED_FORM) if one in found)


NO_KIND = "no kind of guarantee that was asked for is proven for what runs"
"""Why nothing is proven, where nothing was refused."""


def parse_kind(spec: str) -> Kind:
    """A kind from its name."""
    try:
        return Kind(spec)
    except ValueError:
        raise InputError(f"kind {spec!r}", f"known: {', '.join(Kind)}", "choose one of them") from None


class TrainingProof(Enum):
    """Whether a figure is proven for training: yes, if local steps are non-expansive, or no. Values are as in JSON."""

    PROVEN = True
    IF_CONVEX = "convex"
    NOT_PROVEN = False

    def __bool__(self) -> bool:
        return self is not TrainingProof.NOT_PROVEN

    def holds(self, *, convex: bool) -> bool:
        """Whether it is proven, where local steps are known to be non-expansive or are not."""
        return self is TrainingProof.PROVEN or (convex and self is TrainingProof.IF_CONVEX)


@dataclass(frozen=True)
class Guarantee:
    """mu-GDP for one victim (None: the worst of a view), with the kind of proof and what it assumes.

    It is against `view`, and covers `final_models`. `distance` counts hops from the view to the victim.
    """

    victim: int | None
    distance: int | None
    kind: Kind
    mu: float
    proven_for_training: TrainingProof
    assumptions: tuple[Assumption, ...]
    view: View
    final_models: FinalModels
    figure: Figure

    @classmethod
    def nothing_proven(cls, view: View, reasons: Sequence[str]) -> Guarantee:
        """The figure where no kind of proof applies: infinite, which holds of anything."""
        why = tuple(AssumptionKind.NOTHING_PROVEN.of(reason=reason) for reason in reasons or [NO_KIND])
        return cls(
            None, None, Kind.ANY_TRAINING, math.inf, TrainingProof.PROVEN, why, view, view.final_models, Figure.BOUND
        )

    @property
    def proves_nothing(self) -> bool:
        """Whether it is infinite because no kind of proof applies."""
        return _prove_nothing(self.assumptions)

    @property
    def observed(self) -> bool:
        """Whether anything of the victim is observed; if not, the figure is 0 whatever the noise."""
        return all(assumption.kind is not AssumptionKind.NOTHING_OBSERVED for assumption in self.assumptions)

    def epsilon(self, delta: float) -> float:
        """Epsilon at this delta, rounded up."""
        return gaussian_dp.epsilon_of(self.mu, delta)

    def rdp(self, alpha: float) -> float:
        """Renyi divergence of order alpha."""
        return gaussian_dp.renyi_of(self.mu, alpha)

    def document(self, delta: float) -> dict[str, JSON]:
        """As JSON."""
        return self._with_epsilon(self.epsilon(delta))

    def _with_epsilon(self, epsilon: float) -> dict[str, JSON]:
        """Without the change, which is the same in all of an account."""
        return {key: value for key, value in PrivacyFigure.at(self, epsilon).document().items() if key != "change"}


def _prove_nothing(assumptions: Sequence[Assumption]) -> bool:
    return any(assumption.kind is AssumptionKind.NOTHING_PROVEN for assumption in assumptions)


@dataclass(frozen=True, kw_only=True)
class PrivacyFigure:
    """A guarantee at one delta: epsilon against a view, for a change of data, with the kind of its proof.

    What a run promises, stores and shows is made of these; its headline is one. `mu` is None where epsilon comes from
    sampling, which is not Gaussian; `victim` and `distance` are None where it is about every node. `final_models` are
    those that it covers.
    """

    view: View
    change: Change
    victim: int | None
    distance: int | None
    kind: Kind
    mu: float | None
    epsilon: float
    proven_for_training: TrainingProof
    assumptions: tuple[Assumption, ...]
    final_models: FinalModels
    figure: Figure

    @classmethod
    def of(cls, guarantee: Guarantee, delta: float) -> PrivacyFigure:
        """A guarantee of an account: data is replaced by other data."""
        return cls.at(guarantee, guarantee.epsilon(delta))

    @classmethod
    def at(cls, guarantee: Guarantee, epsilon: float) -> PrivacyFigure:
        """The same, where epsilon is known."""
        known = {field.name: getattr(guarantee, field.name) for field in fields(guarantee)}
        return cls(change=Change.REPLACE, epsilon=epsilon, **known)

    @classmethod
    def nothing_proven(cls, view: View, reasons: Sequence[str]) -> PrivacyFigure:
        """The figure where no kind of proof applies: infinite, which holds of anything."""
        return cls.of(Guarantee.nothing_proven(view, reasons), 0.5)

    @property
    def proves_nothing(self) -> bool:
        """Whether it is infinite because no kind of proof applies."""
        return _prove_nothing(self.assumptions)

    @property
    def covers_final_models(self) -> bool:
        """Whether it holds for models that are published at the end, too."""
        return self.final_models is FinalModels.ALL

    @property
    def covers_rounding(self) -> bool:
        """Whether it holds for what computers send, rather than for real numbers."""
        return all(assumption.kind not in NOT_ROUNDED_KINDS for assumption in self.assumptions)

    def guessing_accuracy(self, delta: float) -> float:
        """An upper bound on how often the adversary guesses right which of two data sets was used."""
        return gaussian_dp.guessing_accuracy_bound(self.mu, self.epsilon, delta)

    def document(self) -> dict[str, JSON]:
        """As JSON."""
        return {
            "view": str(self.view),
            "change": self.change.value,
            "victim": self.victim,
            "distance": self.distance,
            "kind": self.kind.value,
            "figure": self.figure.value,
            "mu": to_json(self.mu),
            "epsilon": to_json(self.epsilon),
            "proven_for_training": self.proven_for_training.value,
            "final_models": self.final_models.value,
            "assumptions": [assumption.sentence for assumption in self.assumptions],
        }

    @classmethod
    def read(cls, document: Document) -> PrivacyFigure:
        """The figure that `document` wrote; guarantees inside an account name no change: data is replaced.

        What says nothing else is a bound.
        """
        return cls(
            view=read_view(document["view"]),
            change=Change(document.get("change", Change.REPLACE)),
            victim=document["victim"],
            distance=document["distance"],
            kind=Kind(document["kind"]),
            mu=None if document["mu"] is None else from_json(document["mu"]),
            epsilon=from_json(document["epsilon"]),
            proven_for_training=TrainingProof(document["proven_for_training"]),
            assumptions=tuple(Assumption.read(sentence) for sentence in document["assumptions"]),
            final_models=FinalModels(document["final_models"]),
            figure=Figure(document.get("figure", Figure.BOUND)),
        )


def guarantee_documents(guarantees: Sequence[Guarantee], delta: float) -> list[dict[str, JSON]]:
    """Guarantees as JSON; their epsilons at this delta are sought together."""
    return [one._with_epsilon(epsilon) for one, epsilon in _with_epsilons(guarantees, delta)]


def figures_at(guarantees: Sequence[Guarantee], delta: float) -> list[PrivacyFigure]:
    """Guarantees at one delta; their epsilons are sought together."""
    return [PrivacyFigure.at(one, epsilon) for one, epsilon in _with_epsilons(guarantees, delta)]


def _with_epsilons(guarantees: Sequence[Guarantee], delta: float) -> Iterator[tuple[Guarantee, float]]:
    epsilons = gaussian_dp.epsilons_of([guarantee.mu for guarantee in guarantees], delta)
    return zip(guarantees, epsilons.tolist(), strict=True)
