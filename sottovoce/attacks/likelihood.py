"""Likelihood-ratio attacks: how much better does a victim's model do on a candidate than models without it?

Shadow runs answer (`shadow_models`). The attacker knows everything but who is a member: a strong one.

- LiRA, offline: with mean and deviation of a candidate's confidence over shadow models without it, the score is how
  many deviations higher the confidence is on what was received.
- RMIA: the ratio of `p = e^-loss` on what was received to its mean over shadow models, as the share of unrelated rows
  whose ratio is smaller. It does with few shadow runs.

References: Carlini et al., Membership inference attacks from first principles, 2022; Zarifzadeh, Liu and Shokri,
Low-cost high-power membership inference attacks, 2024. Both attack one model; here statistics are means over the later
half of the models received.

Shapes: B candidates (members first), K shadow runs, Z unrelated rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.candidate_losses import attacked_pairs_of
from sottovoce.attacks.evaluation import MembershipResult, Scores, evaluate_scores
from sottovoce.attacks.registry import AttackOptions
from sottovoce.attacks.shadow_models import ShadowedPair, run_shadow_models
from sottovoce.errors import InputError
from sottovoce.run.finished_run import FinishedRun

Array = NDArray[np.float64]

METHODS = ("lira", "rmia")

ENOUGH = 16
"""From so many shadow runs on LiRA is used unless `method` is given, below RMIA."""

OWN_DEVIATION = 32
"""With fewer shadow models without a candidate, all candidates of a victim share one deviation."""


def likelihood(
    found: Sequence[Sequence[ShadowedPair]], *, method: str | None = None, confidence: float = 0.95, seed: int = 0
) -> MembershipResult:
    """The attack on all pairs of one or several runs."""
    shadows = min(len(one.shadow) for run in found for one in run)
    method = method or ("lira" if shadows >= ENOUGH else "rmia")
    if method not in METHODS:
        raise InputError(f"method {method!r}", f"known: {', '.join(METHODS)}", "choose one of them")
    scores = []
    for number, run in enumerate(found):
        for one in run:
            values = _lira_of(one) if method == "lira" else _rmia_of(one)
            half = len(values) // 2
            scores.append(Scores((number, one.victim), values[:half], values[half:]))
    return evaluate_scores(f"{method}, {shadows} shadow runs", scores, confidence=confidence, seed=seed)


def attack_runs(finished_runs: Sequence[FinishedRun], options: AttackOptions) -> MembershipResult:
    """The attack on finished runs; it carries out the shadow runs first."""
    pairs = [attacked_pairs_of(run, options.attacker) for run in finished_runs]
    found = [
        run_shadow_models(
            run, own, shadows=options.shadows, samples=options.samples, seed=options.seed, jobs=options.jobs,
            progress=options.progress, note=options.note,
        )
        for run, own in zip(finished_runs, pairs, strict=True)
    ]  # fmt: skip
    return likelihood(found, method=options.method, confidence=options.confidence, seed=options.seed)


def _lira_of(one: ShadowedPair) -> Array:
    return lira(one.own.confidence_B, np.stack([each.confidence_B for each in one.shadow]), one.inside_KB)


def _rmia_of(one: ShadowedPair) -> Array:
    shadow_B = np.mean([each.chance_B for each in one.shadow], axis=0)
    shadow_Z = np.mean([each.chance_Z for each in one.shadow], axis=0)
    return rmia(one.own.chance_B, shadow_B, one.own.chance_Z, shadow_Z)


def lira(own_B: Array, shadow_KB: Array, inside_KB: NDArray[np.bool_]) -> Array:
    """How many deviations the confidence is above that of models without the candidate.

    >>> shadow = np.array([[1.0, 5.0], [3.0, 9.0], [9.0, 1.0], [9.0, 3.0]])
    >>> inside = np.array([[False, True], [False, True], [True, False], [True, False]])
    >>> lira(np.array([4.0, 2.0]), shadow, inside).round(6).tolist()
    [2.0, 0.0]
    """
    out = np.where(inside_KB, np.nan, shadow_KB)
    mean, spread = np.nanmean(out, axis=0), np.nanvar(out, axis=0)
    if (~inside_KB).sum(axis=0).min() < OWN_DEVIATION:
        spread = np.full_like(spread, spread.mean())
    return (own_B - mean) / np.sqrt(spread + 1e-12)


def rmia(own_B: Array, shadow_B: Array, own_Z: Array, shadow_Z: Array) -> Array:
    """The share of unrelated rows whose ratio is below the candidate's; among equals the ratio itself decides.

    >>> rmia(np.array([0.8, 0.1]), np.array([0.4, 0.4]), np.array([0.4, 0.4]), np.array([0.4, 0.4])).round(2).tolist()
    [1.22, 0.07]
    """
    ratio_B, ratio_Z = own_B / (shadow_B + 1e-12), np.sort(own_Z / (shadow_Z + 1e-12))
    beaten = np.searchsorted(ratio_Z, ratio_B, "right") / max(len(ratio_Z), 1)
    return beaten + ratio_B / (1 + ratio_B) / (len(ratio_Z) + 1)
