"""Claims about a finished run, its own guarantees and those of others, checked by audits of it.

Gradient canaries: the run's own algorithm, topology, participation and noise, with a canary at a victim, in thousands
of repetitions of the loop (`mechanism`). Long runs are audited in as many first rounds as fit: what the first rounds
leak, the run leaks.

A claim of others is compared with the lower bounds that are about it. A lower bound for a view is one for whoever sees
more, and one about a record is one about a user's data. Canaries in gradients show themselves in rounds that are known;
where batches follow from a secret key they prove nothing about a mechanism that counts on that, and only input canaries
and the exact figure of sampled batches do. Canaries in gradients take what clipping lets through, whatever the data
are: they are about the mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from sottovoce.attacks.evaluation import upper_limit
from sottovoce.auditing.lower_bound import Audit, Guesses, as_json, audit_guesses, epsilon_of_rates, round_down
from sottovoce.auditing.mechanism import ENTRIES, audit
from sottovoce.auditing.outside_claims import (
    REFUTED,
    Judgement,
    LowerBound,
    Outcome,
    OutsideClaim,
    attained,
    epsilon_at_least,
    judged,
)
from sottovoce.core.final_models import FinalModels
from sottovoce.core.participation import Adjacency, Change
from sottovoce.errors import Unaccountable
from sottovoce.learning.batches import Cycle
from sottovoce.privacy import views
from sottovoce.privacy.covering_views import covering_views, insiders_know_more
from sottovoce.privacy.exact import routes
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.privacy.guarantee import Kind
from sottovoce.privacy.observation import observe
from sottovoce.privacy.rounding import round_up
from sottovoce.privacy.views import View, parse_view, read_view
from sottovoce.run.finished_run import FinishedRun
from sottovoce.run.folder_check import FolderCheck
from sottovoce.run.privacy_document import PrivacyDocument, StoredView
from sottovoce.run.privacy_report import report_wanted
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.support.config import Document
from sottovoce.tracing.tracer import trace

GRADIENTS = "gradients"

SAMPLED_ROUNDS, SAMPLED_ENTRIES = 500, 1e6
"""Of longer runs with sampled batches, and of larger graphs, the first rounds are taken."""


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

    `folder` says where the files of the run contradict each other, or are not what the settings give, and which of
    their fields nothing was compared with. All lower bounds hold together with this
    `confidence`. `outside` is a claim of others.
    """

    checks: tuple[ClaimCheck, ...]
    refused: tuple[str, ...]
    folder: FolderCheck = field(default_factory=FolderCheck)
    confidence: float = 0.999
    outside: Judgement | None = None

    @property
    def exceeded(self) -> bool:
        """Whether any claim of the run is refuted."""
        return any(check.exceeded for check in self.checks)

    @property
    def consistent(self) -> bool:
        """Whether nothing speaks against the run: no finding, and no claim that is refuted."""
        return not self.folder.findings and not self.exceeded

    @property
    def exit_code(self) -> int:
        """0 where nothing is wrong, 1 for a folder that contradicts itself, else 4 for a claim that is refuted."""
        refuted = self.exceeded or (self.outside is not None and self.outside.outcome is Outcome.REFUTED)
        return 1 if self.folder.findings else REFUTED if refuted else 0

    def document(self) -> Document:
        """As JSON, for `audit.json`."""
        audits = [check.document() for check in self.checks]
        return {
            "claim": None if self.outside is None else self.outside.document(), "confidence": self.confidence,
            "consistent": self.consistent, "findings": list(self.folder.findings),
            "not_checked": dict(self.folder.not_checked),
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
        not_audited = (f"Not audited: {line}" for line in self.refused)
        return [conclusion, *not_audited, *(f"Not checked: {line}" for line in self.folder.lines())]


def claims_about(privacy: PrivacyDocument, view: str, victim: int) -> tuple[Claim, ...]:
    """All kinds of guarantee that a run gives to a victim against a view, with final models or without."""
    return tuple(
        Claim(view=str(guarantee.view), victim=victim, kind=guarantee.kind, mu=guarantee.mu, epsilon=guarantee.epsilon)
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
        found.append(ClaimCheck(canaries=GRADIENTS, audit=bounds, claims=claims, rounds=rounds, view=name))
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


# --- claims of others -------------------------------------------------------------------------------------------------


def judge(finished_run: FinishedRun, checks: Sequence[ClaimCheck], claim: OutsideClaim) -> Judgement:
    """A claim about a run beside everything that is known about it."""
    accountant = RunAccountant(finished_run.training_run)
    wanted = parse_view(claim.view, labels=finished_run.training_run.topology.names)
    wanted.check(finished_run.training_run.topology.n)
    lower: list[LowerBound] = []
    if _is_about(finished_run.training_run.adjacency, claim.adjacency):
        if claim.change == Change.REPLACE:
            inside = [check for check in checks if _sees(accountant, wanted, check)]
            lower = [bound for check in inside for bound in _bounds(finished_run, check, claim.delta)]
        if wanted == views.everyone():
            lower += _of_sampled_batches(finished_run, claim.delta)
    most = None
    if _is_about(claim.adjacency, finished_run.training_run.adjacency):
        most = _proven(finished_run, accountant, wanted, claim)
    return judged(claim, lower, most)


def _is_about(one: str, other: str) -> bool:
    """Whether a change of the first kind is one of the second: a record's is one of a user's data."""
    return one == other or (one == Adjacency.RECORD and other == Adjacency.USER)


def _sees(accountant: RunAccountant, wanted: View, check: ClaimCheck) -> bool:
    """Whether what an audited view sees is within what the claim's adversary sees."""
    within = read_view(check.view)
    return within == wanted or (wanted == views.everyone() and not insiders_know_more(accountant.system))


def _bounds(finished_run: FinishedRun, check: ClaimCheck, delta: float) -> Iterator[LowerBound]:
    """What one attack proves at this delta, and the exact figure of its canary."""
    about = f"with canaries in {check.canaries}, victim {check.audit.victim}, first {check.rounds} rounds"
    if check.canaries == GRADIENTS:
        if not batches_are_public(finished_run):
            return
        if check.audit.traced is not None:
            yield attained(check.audit.traced, delta, f"which the canary of {check.audit.view} attains, {about}")
    yield LowerBound(epsilon_at(check.audit, delta), f"shown by an attack {about}", check.audit.confidence)


def batches_are_public(finished_run: FinishedRun) -> bool:
    """Whether it is known in which rounds a record takes part: batches follow from no key."""
    batches = finished_run.training_run.gradients.batches
    return batches.full or isinstance(batches, Cycle)


def epsilon_at(found: Audit, delta: float) -> float:
    """The lower bound of an audit at another delta, from its counts."""
    if delta == found.delta:
        return found.epsilon
    counts, error = found.counts, 1 - found.confidence
    if isinstance(counts, Guesses):
        return audit_guesses(
            canaries=counts.canaries, guesses=counts.guesses, correct=counts.correct, delta=delta,
            confidence=found.confidence,
        ).epsilon  # fmt: skip
    alarms = upper_limit(np.array(counts.false_alarms), counts.without, error / 2)
    misses = upper_limit(np.array(counts.misses), counts.with_canary, error / 2)
    return float(epsilon_of_rates(alarms, misses, delta))


def _of_sampled_batches(finished_run: FinishedRun, delta: float) -> list[LowerBound]:
    """The exact figure of batches drawn by chance, where whoever hears everything has each noisy gradient of a node."""
    run, nodes = finished_run.training_run, finished_run.training_run.sampled_nodes
    if nodes is None or any(how.apart * how.among > 1 or how.certain for how in nodes.samplings):
        return []
    rounds = min(run.rounds, SAMPLED_ROUNDS)
    try:
        seen = finished_run.beginning(views.everyone(), [0])
        observation = observe(
            trace(run.algorithm, run.topology, rounds=rounds), views.everyone(), victims=[0]
        ) if seen.rows * rounds**2 <= SAMPLED_ENTRIES else seen  # fmt: skip
    except Unaccountable:
        return []
    white = routes.whitened(observation)
    if white.uncovered_V[0]:
        return []
    gram = np.einsum("ks,kt->st", white.signal_KTV[:, :, 0], white.signal_KTV[:, :, 0])
    if not np.allclose(gram, gram[0, 0] * np.eye(len(gram)), rtol=0, atol=1e-9 * gram[0, 0]):
        return []
    replaced, alone = (
        np.broadcast_to(run.gradients.sensitivities(Adjacency.RECORD, change), run.topology.n)[0]
        for change in (Change.REPLACE, Change.ZERO_OUT)
    )
    noise = float(replaced / alone / math.sqrt(gram[0, 0]))
    least = epsilon_at_least(noise=noise, share=nodes.samplings[0].share, rounds=len(gram), delta=delta)
    return [LowerBound(least, f"attained by a record of node 0 with sampled batches, in {len(gram)} rounds")]


def _proven(finished_run: FinishedRun, accountant: RunAccountant, wanted: View, claim: OutsideClaim) -> float | None:
    """Epsilon against a view at the delta of the claim, where it is finite: about replaced data, or the claim's change.

    Whoever replaces a record by one that counts as nothing makes it count as nothing.
    """
    experiment, found = finished_run.experiment, []
    privacy = experiment.privacy.model_copy(update={"delta": claim.delta, "attackers": "none"})
    report = report_wanted(accountant, experiment.model_copy(update={"privacy": privacy}))
    headline, coverage = report.headline, report.coverage
    if headline is not None and coverage is not None and headline.change in (Change.REPLACE, claim.change):
        few = coverage.colluders is not None and coverage.colluders < max(len(wanted.members), wanted.size)
        if coverage.everyone if wanted == views.everyone() else not few:
            found.append(headline.epsilon)
    if covering_views(wanted, accountant.system) == (wanted,):
        found.append(epsilon_of(accountant.account(wanted).headline.mu, claim.delta))
    return min((one for one in found if math.isfinite(one)), default=None)
