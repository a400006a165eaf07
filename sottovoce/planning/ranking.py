"""What a plan finds: the algorithms that meet its target, least noise in models first, and why others do not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sottovoce.algorithms.registry import algorithm_spec
from sottovoce.core.noise import PerNode
from sottovoce.planning.question import Question
from sottovoce.privacy.covering_views import Coverage, StandIn
from sottovoce.privacy.guarantee import Guarantee, PrivacyFigure
from sottovoce.privacy.rounding import round_up, sigma_text
from sottovoce.support.limits import size_text
from sottovoce.tracing.linear_system import LinearSystem


@dataclass(frozen=True)
class Entry:
    """An algorithm that meets the target: the sigma it takes, the proof, whom that covers, and what it costs.

    Where `sampled` is there, the target is met by counting on chance, and `guarantee` is what holds without. Where all
    nodes together stand for coalitions that are too many to account for, `stand_in` says so.
    Errors are expected squared distances by which noise moves a model until the end, for steps of size one: of the
    average over all nodes' models, and of a node's own, on average over nodes. None, with `unpredicted` saying why,
    where messages are not linear.
    """

    algorithm: str
    settings: Mapping[str, object]
    weights: str
    sigma: PerNode
    guarantee: Guarantee
    sampled: PrivacyFigure | None
    covers: Coverage
    stand_in: StandIn | None
    error_average: float | None
    error_node: float | None
    unpredicted: str
    bytes_per_node: float

    def epsilon(self, delta: float) -> float:
        """What is proven."""
        return self.guarantee.epsilon(delta) if self.sampled is None else self.sampled.epsilon

    @property
    def label(self) -> str:
        """Its name and settings."""
        shown = ",".join(f"{key}={_short(value)}" for key, value in self.settings.items())
        return f"{self.algorithm}({shown})" if shown else self.algorithm


def noise_text(square: float | None) -> str:
    """The root of an expected squared distance, for reading."""
    return "not predicted" if square is None else f"{math.sqrt(square):.4g}"


class PlannedSystem(NamedTuple):
    """An algorithm that meets the target, and what it sends at that sigma."""

    entry: Entry
    system: LinearSystem

    @property
    def error(self) -> float:
        """Of a node's model; infinite where it is not predicted."""
        return math.inf if self.entry.error_node is None else self.entry.error_node


class Refused(NamedTuple):
    """An algorithm that does not apply, and why."""

    algorithm: str
    settings: Mapping[str, object]
    reason: str


@dataclass(frozen=True, repr=False)
class Plan:
    """All algorithms: those that meet the target, least error of a node first, and those that do not apply."""

    question: Question
    ranked: tuple[Entry, ...]
    refused: tuple[Refused, ...]

    def __repr__(self) -> str:
        best = "none is recommended" if self.recommended is None else f"{self.recommended.label} is recommended"
        return f"Plan({self.question.graph.name}, epsilon {self.question.epsilon:g}, {len(self.ranked)} ranked, {best})"

    def table(self) -> list[list[str]]:
        """All that are ranked, with what they take and give, for reading."""
        table = [
            [
                "algorithm",
                "sigma",
                "noise in average model",
                "in a node",
                "sent per node",
                "epsilon",
                "kind",
                "colluders",
            ]
        ]
        for entry in self.ranked:
            errors = (entry.error_average, entry.error_node)
            noise = [noise_text(square) for square in errors]
            epsilon = round_up(entry.epsilon(self.question.delta))
            table.append([
                entry.label, sigma_text(entry.sigma, 4), *noise, size_text(entry.bytes_per_node), epsilon,
                entry.guarantee.kind, entry.covers.count,
            ])  # fmt: skip
        return table

    @property
    def recommended(self) -> Entry | None:
        """The first of them that needs no party whom all trust, if its error is predicted."""
        found = next((one for one in self.ranked if not algorithm_spec(one.algorithm).needs_trust), None)
        return None if found is None or found.error_node is None else found

    @property
    def reason(self) -> str:
        """Why that one, in a sentence."""
        best = self.recommended
        if best is None or best.error_node is None or best.error_average is None:
            return "no algorithm meets the target with an error that can be predicted"
        sentence = f"{best.label} has the least predicted error of a typical node"
        if best is not self.ranked[0]:
            sentence += f" without a party whom all trust, which {self.ranked[0].label} needs"
        plain = next((one for one in self.ranked if one.algorithm == "dp-d-sgd"), None)
        if plain is not None and plain is not best and plain.error_node and best.error_node > 0:
            sentence += (
                f", {math.sqrt(plain.error_node / best.error_node):.3g} times less (root mean square) than dp-d-sgd"
            )
        other = min((one for one in self.ranked if one.error_average is not None), key=_of_average)
        if _of_average(other) < 0.95 * best.error_average:
            sentence += f"; for the average model {other.label} has less"
        return sentence


def rank(entry: Entry) -> tuple[float, float]:
    """Least error first; where errors differ by rounding alone, fewest bytes."""
    return math.inf if entry.error_node is None else float(f"{entry.error_node:.9g}"), entry.bytes_per_node


def _of_average(entry: Entry) -> float:
    return math.inf if entry.error_average is None else entry.error_average


def _short(value: object) -> str:
    """Sizes of noise are rounded up, as sigma is: with less of it the target is missed."""
    return round_up(value) if isinstance(value, float) else str(value)
