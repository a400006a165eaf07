"""The guarantees of a finished run, checked by audits of it.

Gradient canaries: the run's own algorithm, topology, participation and noise, with a canary at a victim, in thousands
of repetitions of the loop (`mechanism`). Long runs are audited in as many first rounds as fit: what the first rounds
leak, the run leaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sottovoce.auditing.lower_bound import Audit, as_json, round_down
from sottovoce.auditing.mechanism import ENTRIES, audit
from sottovoce.auditing.outside_claims import Judgement, Outcome
from sottovoce.core.final_models import FinalModels
from sottovoce.errors import Unaccountable
from sottovoce.privacy.guarantee import Kind, PrivacyFigure
from sottovoce.privacy.rounding import round_up
from sottovoce.privacy.views import View, parse_view, read_view
from sottovoce.run.finished_run import FinishedRun
from sottovoce.run.privacy_document import PrivacyDocument, StoredView
from sottovoce.support.config import Document
from sottovoce.tracing.tracer import trace

REFUTED = 4
"""The exit code of a command that refutes a claim."""


class Verdict(StrEnum):
    """Whether a claim survives an audit; one that does not is refuted, with the audit's confidence."""

    CONSISTENT = "consistent"
    EXCEEDED = "exceeded"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A guarantee of `privacy.json`; `mu` is None where the loss is not Gaussian."""

    view: str
    victim: int | None
    kind: str
    mu: float | None
    epsilon: float

    @classmethod
    def of(cls, guarantee: PrivacyFigure) -> Claim:
        """What a stored guarantee claims."""
        return cls(
            view=str(guarantee.view), victim=guarantee.victim, kind=guarantee.kind, mu=guarantee.mu,
            epsilon=guarantee.epsilon,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ClaimCheck:
    """An audit of a view and the claims that cover it. `rounds` of the run were audited, with these canaries."""

    canaries: str
    audit: Audit
    claims: tuple[Claim, ...]
    rounds: int
    view: str

    def verdict(self, claim: Claim) -> Verdict:
        """Compares mu, or epsilon where the claim has no mu."""
        by_mu = claim.mu is not None and self.audit.mu > claim.mu
        exceeded = by_mu or (claim.mu is None and self.audit.epsilon > claim.epsilon)
        return Verdict.EXCEEDED if exceeded else Verdict.CONSISTENT

    @property
    def exceeded(self) -> bool:
        """Whether any claim is refuted."""
        return any(self.verdict(claim) is Verdict.EXCEEDED for claim in self.claims)

    def document(self) -> Document:
        """As JSON."""
        claims = [{**as_json(vars(claim)), "verdict": self.verdict(claim).value} for claim in self.claims]
        return {"canaries": self.canaries, "rounds": self.rounds, "audit": self.audit.document(), "claims": claims}

    def rows(self) -> list[list[str]]:
        """A row of the table for each claim; one without a verdict where there is none."""
        mu, epsilon, rounds = round_down(self.audit.mu), round_down(self.audit.epsilon), str(self.rounds)
        if not self.claims:
            return [[self.canaries, "", "", rounds, "none", mu, "", epsilon, "", "no claim"]]
        return [
            [
                self.canaries, claim.view, "any" if claim.victim is None else str(claim.victim), rounds, claim.kind, mu,
                "" if claim.mu is None else round_up(claim.mu), epsilon, round_up(claim.epsilon), self.verdict(claim),
            ]
            for claim in self.claims
        ]  # fmt: skip


@dataclass(frozen=True)
class RunAudit:
    """All audits of a run, and what could not be audited, with the reasons.

    `findings` say where the files of the run contradict each other, or are not what the settings give; `not_checked`
    which of their fields nothing was compared with, each with the reason. All lower bounds hold together with this
    `confidence`. `outside` is a claim of others.
    """

    checks: tuple[ClaimCheck, ...]
    refused: tuple[str, ...]
    findings: tuple[str, ...] = ()
    not_checked: Mapping[str, str] = field(default_factory=dict)
    confidence: float = 0.999
    outside: Judgement | None = None

    @property
    def exceeded(self) -> bool:
        """Whether any claim of the run is refuted."""
        return any(check.exceeded for check in self.checks)

    @property
    def consistent(self) -> bool:
        """Whether nothing speaks against the run: no finding, and no claim that is refuted."""
        return not self.findings and not self.exceeded

    @property
    def exit_code(self) -> int:
        """0 where nothing is wrong, 1 for a folder that contradicts itself, else 4 for a claim that is refuted."""
        refuted = self.exceeded or (self.outside is not None and self.outside.outcome is Outcome.REFUTED)
        return 1 if self.findings else REFUTED if refuted else 0

    def document(self) -> Document:
        """As JSON, for `audit.json`."""
        audits = [check.document() for check in self.checks]
        return {
            "claim": None if self.outside is None else self.outside.document(), "confidence": self.confidence,
            "consistent": self.consistent, "findings": list(self.findings), "not_checked": dict(self.not_checked),
            "refused": list(self.refused), "audits": audits,
        }  # fmt: skip

    def table(self) -> list[list[str]]:
        """Lower bounds beside the claims; the first row is the heading."""
        heading = [
            "canaries",
            "view",
            "victim",
            "rounds",
            "kind",
            "mu >=",
            "claimed",
            "epsilon >=",
            "claimed",
            "verdict",
        ]
        return [heading, *(row for check in self.checks for row in check.rows())]

    def notes(self) -> list[str]:
        """What follows from the audits, and what was not audited."""
        conclusion = "No claim is exceeded."
        if self.exceeded:
            conclusion = "A claim is exceeded: either it is wrong, or it is not about what ran."
        elif not any(check.claims for check in self.checks):
            conclusion = "There is no claim to compare with."
        return [conclusion, *(f"Not audited: {line}" for line in self.refused), *self._not_checked()]

    def _not_checked(self) -> Iterator[str]:
        """What was not checked, a line for each file and reason."""
        found: dict[tuple[str, str], list[str]] = {}
        for place, reason in self.not_checked.items():
            file, _, fields = place.partition(": ")
            found.setdefault((file, reason), []).append(fields)
        for (file, reason), each in found.items():
            yield f"Not checked: {file}{': ' if each[0] else ''}{', '.join(each)} ({reason})"


def claims_about(privacy: PrivacyDocument, view: str, victim: int) -> tuple[Claim, ...]:
    """All kinds of guarantee that a run gives to a victim against a view, with final models or without."""
    return tuple(
        Claim.of(guarantee)
        for found in privacy.views
        for guarantee in found.guarantees
        if guarantee.victim == victim and str(_without_models(guarantee.view)) == view
    )


@dataclass(frozen=True)
class WorstVictim:
    """The victim about whom a view learns most, by its idealised loss; of several the first."""

    view: str
    node: int | None
    victim: int
    mu: float


def attacks_made(finished_run: FinishedRun, *, reruns: int) -> int:
    """How many attacks share the probability of error of an audit."""
    return len(_audited(finished_run)) + (reruns > 0)


def audited_views(privacy: PrivacyDocument, wanted: View) -> list[tuple[str, int]]:
    """Views to audit, each with its worst victim: the one the run was meant for, and the node that learns most.

    Of any coalition of a size it is the one that learns most. Audits are about messages: whoever sees final models as
    well learns no less from these.
    """
    found = [(_without_models(view.view), _worst_victim(view)) for view in privacy.views]
    worst = {view: one for view, one in reversed(found) if one is not None}
    nodes = [one for one in worst.values() if one.node is not None]
    chosen = [worst[wanted]] if wanted in worst else []
    chosen += sorted(nodes, key=lambda one: (-one.mu, one.node))[:1]
    return list(dict.fromkeys((one.view, one.victim) for one in chosen))


def _worst_victim(view: StoredView) -> WorstVictim | None:
    found = [
        WorstVictim(str(_without_models(guarantee.view)), view.node, guarantee.victim, guarantee.mu)
        for guarantee in view.guarantees
        if guarantee.kind == Kind.FIXED_STREAMS and guarantee.mu is not None and guarantee.victim is not None
    ]
    return max(found, key=lambda one: (one.mu, -one.victim), default=None)


def _without_models(view: View) -> View:
    return replace(view, final_models=FinalModels.NONE)


def audit_gradients(
    finished_run: FinishedRun, *, repetitions: int = 10_000, confidence: float = 0.999, seed: int = 0
) -> tuple[list[ClaimCheck], list[str]]:
    """Audit the mechanism of a run for its views; also says which could not be audited, and why."""
    training_run, found, refused = finished_run.training_run, [], []
    delta = finished_run.experiment.privacy.delta
    for name, victim in _audited(finished_run):
        try:
            rounds = _affordable_rounds(finished_run, name, victim)
            bounds = audit(
                trace(training_run.algorithm, training_run.topology, rounds=rounds), name, victim=victim,
                participation=training_run.participation.within(rounds), repetitions=repetitions, delta=delta,
                confidence=confidence, seed=seed,
            )  # fmt: skip
        except Unaccountable as refusal:
            refused.append(f"{name}: {refusal}")
            continue
        claims = claims_about(finished_run.privacy, name, victim)
        found.append(ClaimCheck(canaries="gradients", audit=bounds, claims=claims, rounds=rounds, view=name))
    return found, refused


def _audited(finished_run: FinishedRun) -> list[tuple[str, int]]:
    """Views with a victim each: those with claims, or everyone where there is none."""
    names = finished_run.training_run.topology.names
    wanted = parse_view(finished_run.experiment.privacy.view, labels=names)
    return audited_views(finished_run.privacy, wanted) or [("everyone", 0)]


def _affordable_rounds(finished_run: FinishedRun, name: str, victim: int) -> int:
    observation = finished_run.beginning(read_view(name), [victim])
    rows = max(1, *(step.observed.state.shape[0] for step in observation.distinct_steps))
    columns = 1 + len(observation.steps[-1].noise_columns)
    return min(finished_run.training_run.rounds, max(1, math.isqrt(int(ENTRIES / (rows * columns)))))
