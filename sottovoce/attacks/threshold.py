"""The threshold attack: a low loss on the last model received of a victim speaks for one of its members.

As in zip-dl section 6.1 and A.7, with the AUC for each recorded round besides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sottovoce.attacks.candidate_losses import LossSeries, losses_on_runs
from sottovoce.attacks.evaluation import MembershipResult, Scores, evaluate_scores
from sottovoce.attacks.registry import AttackOptions
from sottovoce.learning.prediction_scores import roc_auc
from sottovoce.run.finished_run import FinishedRun


def threshold(found: Sequence[LossSeries], *, confidence: float = 0.95, seed: int = 0) -> MembershipResult:
    """The attack on every pair of attacker and victim; it needs no training, and only a threshold."""
    scores = []
    for one in found:
        last = int(np.flatnonzero(one.received())[-1])
        scores.append(Scores((one.run, one.victim), -one.members[last], -one.nonmembers[last]))
    return evaluate_scores("threshold", scores, confidence=confidence, seed=seed, by_round=by_round(found))


def attack_runs(finished_runs: Sequence[FinishedRun], options: AttackOptions) -> MembershipResult:
    """The attack on finished runs."""
    return threshold(losses_on_runs(finished_runs, options), confidence=options.confidence, seed=options.seed)


def by_round(found: Sequence[LossSeries]) -> list[tuple[int, float]]:
    """For each recorded round the mean AUC over the pairs whose attacker received a model in it."""
    aucs: dict[int, list[float]] = {}
    for one in found:
        for at in np.flatnonzero(one.received()):
            aucs.setdefault(one.rounds[at], []).append(roc_auc(-one.members[at], -one.nonmembers[at]))
    return [(round, float(np.mean(aucs[round]))) for round in sorted(aucs)]
