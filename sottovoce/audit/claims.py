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

from sottovoce.audit.mechanism import ENTRIES, audit
from sottovoce.audit.result import Audit
from sottovoce.config import Document
from sottovoce.errors import Unaccountable
from sottovoce.privacy.views import view
from sottovoce.run.reopen import Opened
from sottovoce.trace import trace

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
    opened: Opened, *, repetitions: int = 10_000, confidence: float = 0.999, seed: int = 0
) -> tuple[list[Checked], list[str]]:
    """Audit the mechanism of a run for its views; also says which could not be audited, and why."""
    trial, found, refused = opened.trial, [], []
    delta = opened.experiment.privacy.delta
    for name, victim in views_of(opened.privacy, opened.experiment.privacy.view) or [("everyone", 0)]:
        try:
            rounds = _affordable(opened, name, victim)
            shown = audit(
                trace(trial.algorithm, trial.topology, rounds=rounds), name, victim=victim,
                participation=trial.participation.within(rounds), repetitions=repetitions, delta=delta,
                confidence=confidence, seed=seed,
            )  # fmt: skip
        except Unaccountable as refusal:
            refused.append(f"{name}: {refusal}")
            continue
        claims = claims_of(opened.privacy, name, victim)
        found.append(Checked(canaries="gradients", audit=shown, claims=claims, rounds=rounds))
    return found, refused


def _affordable(opened: Opened, name: str, victim: int) -> int:
    seen = opened.beginning(view(name), [victim])
    rows = max(1, *(step.seen.state.shape[0] for step in seen.steps))
    columns = 1 + len(seen.steps[-1].noise_columns)
    return min(opened.trial.rounds, max(1, math.isqrt(int(ENTRIES / (rows * columns)))))


def any_exceeded(checked: Sequence[Checked]) -> bool:
    """Whether any claim of a run is refuted."""
    return any(one.exceeded for one in checked)
