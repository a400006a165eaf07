"""What `privacy.json` of a run says, as types: the one reader of its keys; and whether it contradicts itself.

`contradictions` compares every figure with those that it follows from: it needs neither data nor torch.
`privacy_report.unlike_settings` computes guarantees anew, by the code that made them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from sottovoce.privacy.gaussian_dp import epsilon_of, is_epsilon_of
from sottovoce.privacy.guarantee import Kind, PrivacyFigure
from sottovoce.privacy.views import View, read_view
from sottovoce.support.config import Document, Experiment
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


# --- whether it agrees with itself -----------------------------------------------------------------------------------

RELATIVE_TOLERANCE = 1e-9
"""Figures that lie closer together are the same: another machine may round differently."""


def agree(one: float, other: float) -> bool:
    """Whether two figures are the same but for rounding."""
    return one == other or math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE)


def contradictions(experiment: Experiment, privacy: PrivacyDocument) -> list[str]:
    """What in `privacy.json` contradicts itself or the settings, each in a sentence."""
    return [
        f"privacy.json: {sentence}"
        for part in (_unlike_settings(experiment, privacy), _wrong_epsilons(privacy), _wrong_headlines(privacy))
        for sentence in part
    ]


def result_contradictions(
    experiment: Experiment, privacy: PrivacyDocument, result: Document, lines: Sequence[Document]
) -> list[str]:
    """What in `result.json` and in lines of metrics contradicts `privacy.json`, the settings or the last line."""
    given = {
        "name": experiment.name, "seed": experiment.seed, "algorithm": privacy.algorithm, "topology": privacy.topology,
        "rounds": privacy.rounds, "sigma": privacy.sigma, "adjacency": privacy.adjacency, "delta": privacy.delta,
        "headline": _shown(privacy.headline), "metrics": lines[-1],
    }  # fmt: skip
    stated = {**result, "headline": _shown(PrivacyFigure.read(result["headline"]))}
    found = [
        f"result.json: {key} is {stated[key]}, but the run's other files say {theirs}"
        for key, theirs in given.items()
        if stated[key] != theirs
    ]
    return found + [
        f"metrics.jsonl: epsilon after round {line['round']} is {line['epsilon']}, but privacy.json gives {expected}"
        for line in lines
        if line["epsilon"] != (expected := epsilon_in_line(privacy, line["round"]))
    ]


def epsilon_in_line(privacy: PrivacyDocument, round: int) -> Document | None:
    """What a line of metrics says of epsilon: what has been spent by then, and what will have been at the end."""
    spent, planned = (privacy.epsilon_after(at) for at in (round, privacy.rounds))
    return None if spent is None else {"spent": to_json(spent), "planned": to_json(planned)}


def _shown(figure: PrivacyFigure) -> str:
    return f"epsilon {figure.epsilon:g} with mu {figure.mu} against {figure.view}"


def _unlike_settings(experiment: Experiment, privacy: PrivacyDocument) -> Iterator[str]:
    wanted = experiment.privacy
    pairs = {
        "rounds": (privacy.rounds, experiment.training.rounds),
        "delta": (privacy.delta, wanted.delta),
        "adjacency": (privacy.adjacency, wanted.adjacency),
        "clipping": (privacy.clipping, experiment.training.clip),
    }
    for key, (stated, setting) in pairs.items():
        if stated != setting:
            yield f"{key} is {stated}, but the settings say {setting}"
    target = wanted.epsilon if wanted.view == "everyone" and wanted.epsilon is not None else math.inf
    if not privacy.headline.proves_nothing and privacy.headline.epsilon > target * (1 + RELATIVE_TOLERANCE):
        yield f"the headline is epsilon {privacy.headline.epsilon:g}, but the settings ask for {target:g} at most"


def _wrong_epsilons(privacy: PrivacyDocument) -> Iterator[str]:
    """Figures whose epsilon is not that of their mu at the delta of the run."""
    for where, figure in _figures(privacy):
        if figure.mu is None or is_epsilon_of(figure.mu, figure.epsilon, privacy.delta, tolerance=RELATIVE_TOLERANCE):
            continue
        epsilon = epsilon_of(figure.mu, privacy.delta)
        yield f"{where} says epsilon {figure.epsilon:g}, but its mu of {figure.mu:g} gives epsilon {epsilon:.6g}"
    headline, epsilons = privacy.headline, [one.epsilon for one in privacy.over_rounds]
    if epsilons:
        is_last = privacy.over_rounds[-1].round == privacy.rounds and agree(epsilons[-1], headline.epsilon)
        if headline.proves_nothing or not is_last:
            yield f"epsilon over rounds ends with {epsilons[-1]:g}, which is not the headline's"
    if epsilons != sorted(epsilons):
        yield "epsilon over rounds decreases"


def _figures(privacy: PrivacyDocument) -> Iterator[tuple[str, PrivacyFigure]]:
    """Every figure, with where it stands."""
    for where, figure in (("the headline", privacy.headline), ("the sampled figure", privacy.sampled)):
        if figure is not None:
            yield where, figure
    for view in privacy.views:
        yield f"the headline of {view.view}", view.headline
        for figure in view.guarantees:
            yield f"{view.view} about node {figure.victim}, {figure.kind},", figure


def _wrong_headlines(privacy: PrivacyDocument) -> Iterator[str]:
    """Headlines that are not the worst of the best proven figures, and a run's headline that is nobody's."""
    for view in privacy.views:
        expected, stated = _headline_mu(view), None if view.headline.proves_nothing else view.headline.mu
        if stated != expected and (stated is None or expected is None or not agree(stated, expected)):
            yield f"the headline of {view.view} has mu {stated}, but its figures give {expected}"
    headline = privacy.headline
    others = [*(view.headline for view in privacy.views), *([] if privacy.sampled is None else [privacy.sampled])]
    if not headline.proves_nothing and not any(
        one.view == headline.view and agree(one.epsilon, headline.epsilon) for one in others
    ):
        yield f"the headline, epsilon {headline.epsilon:g} against {headline.view}, is none of its other figures"


def _headline_mu(view: StoredView) -> float | None:
    """For each victim the least mu that is proven; of those the largest."""
    best: dict[int | None, float] = {}
    for figure in view.guarantees:
        if figure.proven_for_training and figure.kind is not Kind.AS_PUBLISHED and figure.mu is not None:
            best[figure.victim] = min(best.get(figure.victim, math.inf), figure.mu)
    return max(best.values(), default=None)


def same_value(stated: object, given: object, tolerance: float = RELATIVE_TOLERANCE) -> bool:
    """Whether two values are the same but for rounding; true is no number, and no number is a text."""
    if isinstance(stated, bool) or isinstance(given, bool):
        return stated is given
    if isinstance(stated, int | float) and isinstance(given, int | float):
        return stated == given or math.isclose(stated, given, rel_tol=tolerance)
    return type(stated) is type(given) and stated == given
