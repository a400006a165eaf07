"""What a guarantee assumes. Each assumption has a kind, which decides, and a sentence, which is for reading.

>>> assumption = AssumptionKind.NON_EXPANSIVE_STEPS.of(largest_step="2/L")
>>> Assumption.read(str(assumption)).kind
<AssumptionKind.NON_EXPANSIVE_STEPS>
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cached_property

from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.grid import grid_step, message_grid
from sottovoce.core.integer_sums import sum_grid
from sottovoce.core.participation import Change
from sottovoce.privacy.absorption import rounding_cost, rounding_is_bounded
from sottovoce.privacy.discrete_noise import factor_of_sums
from sottovoce.privacy.rounding import round_up
from sottovoce.tracing.linear_system import LinearSystem

FINAL_MODELS = "the final models: whoever sees them, once they are published, can learn more"
"""What is not covered where figures are about messages only and models do not follow from these."""

CHANGED_RECORD = {
    Change.REPLACE: "replaced by another",
    Change.ZERO_OUT: "made to count as nothing (how many there are is public)",
}


class AssumptionKind(Enum):
    """What is assumed; the value is its sentence, with places for what differs from run to run."""

    BOUNDED_GRADIENTS = "a change of data moves a node's gradient by at most Delta in each round of its participation"
    BOUNDED_VALUES = "a change of data moves a node's value by at most Delta"
    NON_EXPANSIVE_STEPS = (
        "local steps are non-expansive: convex losses, L-smooth, with step size at most {largest_step}; clipping, if "
        "any, never acts, or is per example and of scalar-output linear models; no momentum"
    )
    FIXED_STREAMS = (
        "what a node contributes does not depend on what it heard (averaging, statistics); an idealisation for training"
    )
    NO_SHARED_SECRETS = "whoever hears everything shares no secret with a node; a neighbour, who does, can learn more"
    OUTSIDE_OF_SUMS = "whoever sees the sums added no noise to them; a node, which knows its own, can learn more"
    DISCRETE_SUMS = (
        "secure sums of multiples of {step} with discrete Gaussian noise: all that is not Gaussian about them, and "
        "rounding, is covered, and adds {extra} to mu; masks hide everything but the sums"
    )
    ROUNDING_COVERED = "exact noise: nodes release multiples of {step}, so that rounding is covered"
    ROUNDED_MESSAGES = (
        "exact noise: messages are multiples of {step} and models of {model_step}; rounding is covered, and adds "
        "{extra} to mu"
    )
    ROUNDING_NOT_COVERED = "messages are real numbers: rounding of floating-point numbers is not covered"
    ROUNDED_MODELS_NOT_COVERED = (
        "messages are real numbers: rounding is not covered; a proof that covers it adds {extra} times the square root "
        "of the number of parameters to mu, for models that are rounded to the same grid"
    )
    MEANT_WEIGHTS = "weights are the simple fractions that they are stored next to, and arithmetic is exact"
    STORED_WEIGHTS = "weights are the binary fractions that are stored, and arithmetic is exact"
    SAMPLED_BATCHES = "one record is {changed}; batches are drawn at random, and nobody learns which records were drawn"
    NOTHING_OBSERVED = (
        "no message that the adversary observes depends on this node's data: nothing of it is observed; its model, if "
        "it is published, is not covered"
    )
    REPRODUCIBLE_RUN = "reproducible run: whoever knows the key knows the noise"
    SECRET_NOISE = "secret noise: drawn from the operating system's random bytes, and erased after use"
    PUBLIC_STATISTICS = "assumed to be public, so not covered: {statistics}"
    BELOW_EXACT_LOSS = "BELOW the exact loss{by}: not a bound"
    NOTHING_PROVEN = "nothing is proven, so that nothing limits the loss: {reason}"
    PAPER = "{source}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}>"

    def of(self, **places: str) -> Assumption:
        """The assumption with its sentence filled in."""
        return Assumption(self, self.value.format(**places))

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What sentences of this kind look like."""
        return re.compile(re.sub(r"\\{\w+\\}", ".*", re.escape(self.value)), re.DOTALL)


NOT_ROUNDED_KINDS = (AssumptionKind.ROUNDING_NOT_COVERED, AssumptionKind.ROUNDED_MODELS_NOT_COVERED)
"""They say that rounding is not covered."""


@dataclass(frozen=True)
class Assumption:
    """One assumption of a guarantee; as text it is its sentence."""

    kind: AssumptionKind
    sentence: str

    def __str__(self) -> str:
        return self.sentence

    @classmethod
    def read(cls, sentence: str) -> Assumption:
        """The assumption that a document states; what is none of ours is a remark about a paper's formula."""
        return cls(next(kind for kind in AssumptionKind if kind.pattern.fullmatch(sentence)), sentence)


def rounding(system: LinearSystem, *, covered: bool, by_absorption: bool = False) -> Assumption:
    """What a figure of a system says about rounding; `covered`: it is about values on the system's grid.

    Of figures by absorption it is known what covering it would add, where single messages are seen.
    """
    if not covered and by_absorption and rounding_is_bounded(system):
        return AssumptionKind.ROUNDED_MODELS_NOT_COVERED.of(extra=round_up(rounding_cost(system)))
    if not covered:
        return AssumptionKind.ROUNDING_NOT_COVERED.of()
    if sums_over_all(system.algorithm):
        grid = sum_grid(system.algorithm, system.topology.at(0))
        extra = f"{round_up(100 * (factor_of_sums(system) - 1), 2)} %"
        return AssumptionKind.DISCRETE_SUMS.of(step=f"{grid.step:g}", extra=extra)
    messages = message_grid(system.algorithm, system.topology.at(0))
    if messages is not None:
        return AssumptionKind.ROUNDED_MESSAGES.of(
            step=f"{messages.step:g}", model_step=f"{messages.model_step:g}",
            extra=f"{round_up(100 * messages.extra(system.rounds), 2)} %",
        )  # fmt: skip
    return AssumptionKind.ROUNDING_COVERED.of(step=f"{grid_step(system.algorithm, system.topology.at(0)):g}")


def at_other_noise(assumption: Assumption, system: LinearSystem) -> Assumption:
    """The assumption for a system that differs in the size of its noise: steps of grids follow from that."""
    if assumption.kind in (AssumptionKind.ROUNDING_COVERED, AssumptionKind.ROUNDED_MESSAGES):
        return rounding(system, covered=True)
    if assumption.kind is AssumptionKind.ROUNDED_MODELS_NOT_COVERED:
        return rounding(system, covered=False, by_absorption=True)
    return assumption


class NotCovered(StrEnum):
    """What no figure covers; the value is its sentence."""

    HELD_OUT_ROWS = (
        "Held-out rows, on which models are tested: figures are about training rows, and nothing protects the others."
    )
    METRICS = "Metrics on held-out rows: they are computed without noise, and tell their readers about those rows."
    TUNING = (
        "Tuning: settings, or a run among several, that were chosen by such metrics carry what these tell into the "
        "models."
    )
