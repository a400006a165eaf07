"""What a finished run tells about a claim of others: lower bounds that are about this claim, and what is proven.

A lower bound for a view is one for whoever sees more, and one about a record is one about a user's data. Canaries in
gradients show themselves in rounds that are known; where batches follow from a secret key they prove nothing about a
mechanism that counts on that, and only input canaries and the exact figure of sampled batches do. Canaries in gradients
take what clipping lets through, whatever the data are: they are about the mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from sottovoce.attacks.evaluation import upper_limit
from sottovoce.auditing.claim_checks import ClaimCheck
from sottovoce.auditing.lower_bound import Audit, Guesses
from sottovoce.auditing.one_run import audit_guesses
from sottovoce.auditing.outside_claims import Judgement, LowerBound, OutsideClaim, attained, judged
from sottovoce.auditing.sampled_lower_bound import epsilon_at_least
from sottovoce.auditing.scores import epsilon_of_rates
from sottovoce.core.adjacency import Adjacency, Change
from sottovoce.errors import Unaccountable
from sottovoce.learning.batches import Cycle
from sottovoce.privacy import views
from sottovoce.privacy.covering_views import insiders_know_more
from sottovoce.privacy.exact import routes
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.privacy.observation import observe
from sottovoce.privacy.views import View, parse_view, read_view
from sottovoce.run.finished_run import FinishedRun
from sottovoce.run.privacy_report import report_wanted
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.tracing.tracer import trace

GRADIENTS = "gradients"


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
    if nodes is None or any(how.apart > 1 or how.certain for how in nodes.samplings):
        return []
    rounds = min(run.rounds, MOST_ROUNDS)
    try:
        seen = finished_run.beginning(views.everyone(), [0])
        observation = observe(
            trace(run.algorithm, run.topology, rounds=rounds), views.everyone(), victims=[0]
        ) if seen.rows * rounds**2 <= ENTRIES else seen  # fmt: skip
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


MOST_ROUNDS, ENTRIES = 500, 1e6
"""Of longer runs, and of larger graphs, the first rounds are taken."""


def _proven(finished_run: FinishedRun, accountant: RunAccountant, wanted: View, claim: OutsideClaim) -> float | None:
    """Epsilon against a view at the delta of the claim, where it is finite: about replaced data, or the claim's change.

    Whoever replaces a record by one that counts as nothing makes it count as nothing.
    """
    experiment, found = finished_run.experiment, []
    privacy = experiment.privacy.model_copy(update={"delta": claim.delta, "attackers": "none"})
    report = report_wanted(accountant, experiment.model_copy(update={"privacy": privacy}))
    headline, coverage = report.headline, report.coverage
    if headline is not None and coverage is not None and headline.change in (Change.REPLACE, claim.change):
        few = coverage.colluders is not None and coverage.colluders < len(wanted.members)
        if coverage.everyone if wanted == views.everyone() else not few:
            found.append(headline.epsilon)
    own = accountant.account(wanted).headline
    found += [] if own is None else [epsilon_of(own.mu, claim.delta)]
    return min((one for one in found if math.isfinite(one)), default=None)
