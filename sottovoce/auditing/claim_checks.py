"""What a finished run promised beside what audits of it show.

Gradient canaries: the run's own algorithm, topology, participation and noise, with a canary at a victim, in thousands
of repetitions of the loop (`mechanism`). Long runs are audited in as many first rounds as fit: what the first rounds
leak, the run leaks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.auditing.lower_bound import Audit
from sottovoce.auditing.mechanism import ENTRIES, audit
from sottovoce.config import Document
from sottovoce.errors import Unaccountable
from sottovoce.privacy.views import parse_view
from sottovoce.run.finished_run import FinishedRun
from sottovoce.tracing.tracer import trace

VERDICTS = ("consistent", "exceeded")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A guarantee of `privacy.json`, infinite where nothing is promised; `mu` is None for what is no Gaussian loss."""

    view: str
    victim: int | None
    kind: str
    mu: float | None
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class Checked:
    """An audit and the claims that cover it. `rounds` of the run were audited."""

    canaries: str
    audit: Audit
    claims: tuple[Claim, ...]
    rounds: int

    def verdict(self, claim: Claim) -> str:
        """Whether a claim survives; one that does not is refuted, with the audit's confidence."""
        if claim.mu is not None:
            return VERDICTS[self.audit.mu > claim.mu]
        return VERDICTS[self.audit.epsilon > claim.epsilon]

    @property
    def exceeded(self) -> bool:
        """Whether any claim is refuted."""
        return any(self.verdict(claim) == "exceeded" for claim in self.claims)

    def document(self) -> Document:
        """As JSON."""
        claims = [{**_plain(vars(claim)), "verdict": self.verdict(claim)} for claim in self.claims]
        return {"canaries": self.canaries, "rounds": self.rounds, "audit": self.audit.document(), "claims": claims}


def _plain(values: Document) -> Document:
    return {key: "inf" if value == math.inf else value for key, value in values.items()}


def claims_of(privacy: Document, adversary: str, victim: int) -> tuple[Claim, ...]:
    """All kinds of guarantee that a run gives to a victim against a view."""
    return tuple(
        Claim(view=adversary, victim=victim, kind=one["kind"], mu=float(one["mu"]), epsilon=float(one["epsilon"]))
        for found in privacy.get("views", [])
        if found["view"] == adversary
        for one in found["guarantees"]
        if one["victim"] == victim
    )


def views_of(privacy: Document, wanted: str) -> list[tuple[str, int]]:
    """Views to audit, each with its worst victim: the one the run was meant for, and the node that learns most."""
    worst: dict[str, tuple[float, int]] = {}
    for found in privacy.get("views", []):
        for one in found["guarantees"]:
            if one["kind"] == "fixed-streams":
                worst[found["view"]] = max(worst.get(found["view"], (-1.0, 0)), (float(one["mu"]), -one["victim"]))
    nodes = [name for name in worst if name.startswith("node:")]
    chosen = dict.fromkeys([*(name for name in (wanted,) if name in worst), *sorted(nodes, key=_by(worst))[:1]])
    return [(name, -worst[name][1]) for name in chosen]


def _by(worst: dict[str, tuple[float, int]]) -> Any:
    return lambda name: (-worst[name][0], int(name.partition(":")[2]))


def check_gradients(
    finished_run: FinishedRun, *, repetitions: int = 10_000, confidence: float = 0.999, seed: int = 0
) -> tuple[list[Checked], list[str]]:
    """Audit the mechanism of a run for its views; also says which could not be audited, and why."""
    training_run, found, refused = finished_run.training_run, [], []
    delta = finished_run.experiment.privacy.delta
    for name, victim in views_of(finished_run.privacy, finished_run.experiment.privacy.view) or [("everyone", 0)]:
        try:
            rounds = _affordable(finished_run, name, victim)
            shown = audit(
                trace(training_run.algorithm, training_run.topology, rounds=rounds), name, victim=victim,
                participation=training_run.participation.within(rounds), repetitions=repetitions, delta=delta,
                confidence=confidence, seed=seed,
            )  # fmt: skip
        except Unaccountable as refusal:
            refused.append(f"{name}: {refusal}")
            continue
        claims = claims_of(finished_run.privacy, name, victim)
        found.append(Checked(canaries="gradients", audit=shown, claims=claims, rounds=rounds))
    return found, refused


def _affordable(finished_run: FinishedRun, name: str, victim: int) -> int:
    observation = finished_run.beginning(parse_view(name), [victim])
    rows = max(1, *(step.observed.state.shape[0] for step in observation.steps))
    columns = 1 + len(observation.steps[-1].noise_columns)
    return min(finished_run.training_run.rounds, max(1, math.isqrt(int(ENTRIES / (rows * columns)))))


def any_exceeded(checked: Sequence[Checked]) -> bool:
    """Whether any claim of a run is refuted."""
    return any(one.exceeded for one in checked)
