"""Likelihood-ratio attacks: how much better does a victim's model do on a candidate than models without it?

Shadow runs answer: the same run again from other seeds, with every victim on a random half of its candidates, members
and non-members alike, and the next one with the other half. All other nodes hold what they held. So a candidate is in
at half of the shadow victims and out at the others, whether it was a member or not. The attacker knows everything but
who is a member: a strong one.

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
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.candidate_losses import (
    LARGEST_LOSS,
    Candidates,
    LossSeries,
    attacked_pairs_of,
    candidates_of,
    loss_series,
)
from sottovoce.attacks.evaluation import MembershipResult, Scores, evaluate_scores
from sottovoce.attacks.registry import AttackOptions
from sottovoce.errors import InputError
from sottovoce.run.finished_run import FinishedRun
from sottovoce.run.layout import RunFiles
from sottovoce.run.recording import Messages
from sottovoce.run.rerun import load_or_compute, open_run_once, record_rerun, with_other_rows
from sottovoce.support.npz import Arrays
from sottovoce.support.text import JSON

Array = NDArray[np.float64]

METHODS = ("lira", "rmia")

ENOUGH = 16
"""From so many shadow runs on LiRA is used unless `method` is given, below RMIA."""

OWN_DEVIATION = 32
"""With fewer shadow models without a candidate, all candidates of a victim share one deviation."""

UNRELATED = 200
"""At most so many test rows, a quarter of them, are no candidates but what candidates are compared with."""


class Statistics(NamedTuple):
    """How well a pair's models do on candidates and on unrelated rows, over the later half of those received.

    `confidence_B` is the mean of `log p / (1 - p)` with `p = e^-loss` (of minus the error, for values); `chance_B` and
    `chance_Z` are means of p.
    """

    confidence_B: Array
    chance_B: Array
    chance_Z: Array


class ShadowedPair(NamedTuple):
    """One attacked pair: its own statistics, those of all shadow runs, and which candidates were in, K x B."""

    attacker: int
    victim: int
    own: Statistics
    shadow: list[Statistics]
    inside_KB: NDArray[np.bool_]


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
    found = [run_shadow_models(run, attacked_pairs_of(run, options.attacker), options) for run in finished_runs]
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


# --- shadow runs ----------------------------------------------------------------------------------------------------


class ShadowSettings(NamedTuple):
    """What a shadow run needs to know, in whichever process it runs."""

    folder: Path
    data: Path | None
    own: bool
    pairs: tuple[tuple[int, int], ...]
    samples: int
    seed: int


def run_shadow_models(
    finished_run: FinishedRun, pairs: Sequence[tuple[int, int]], options: AttackOptions
) -> list[ShadowedPair]:
    """Carry out the shadow runs that the run's folder does not have yet, and gather their statistics by pair."""
    shadows, samples, seed = options.shadows, options.samples, options.seed
    if shadows < 2 or shadows % 2:
        raise InputError(
            f"{shadows} shadow runs", "each candidate must be left out of exactly half of them", "give an even number"
        )
    if any(victim < 0 for _, victim in pairs):
        raise InputError("shadow runs of a secure sum", "shadow runs need a single victim", "use the threshold attack")
    settings = ShadowSettings(finished_run.folder, finished_run.data, finished_run.own, tuple(pairs), samples, seed)
    chosen = _candidates(finished_run, settings)
    about: JSON = {"pairs": [list(pair) for pair in pairs], "samples": samples, "seed": seed}
    found = load_or_compute(
        finished_run, RunFiles(finished_run.folder).shadows, partial(_shadow, settings), shadows, about=about,
        jobs=options.jobs, progress=options.progress, note=options.note,
    )  # fmt: skip
    own = _statistics(finished_run, finished_run.messages, settings, chosen)
    inside = [_inside(chosen, seed, number) for number in range(shadows)]
    return [
        ShadowedPair(
            *pair,
            _statistics_of(own, pair),
            [_statistics_of(one, pair) for one in found],
            np.stack([i[pair[1]] for i in inside]),
        )
        for pair in pairs
        if pair[1] in chosen
    ]


def _candidates(finished_run: FinishedRun, settings: ShadowSettings) -> dict[int, Candidates]:
    return candidates_of(
        finished_run.training_run.task,
        settings.pairs,
        samples=settings.samples,
        spare=_unrelated(finished_run).size,
        seed=settings.seed,
    )


def _unrelated(finished_run: FinishedRun) -> NDArray[np.int64]:
    """The last test rows."""
    tests = len(finished_run.training_run.task.test_inputs)
    return np.arange(tests - min(UNRELATED, tests // 4), tests)


def _inside(chosen: dict[int, Candidates], seed: int, number: int) -> dict[int, NDArray[np.bool_]]:
    """Which candidates are in at each victim of a shadow run: a random half, and in the next run the other half."""
    found = {}
    for victim, (members, _) in chosen.items():
        put = np.zeros(2 * len(members), dtype=bool)
        put[np.random.default_rng([seed, number // 2, victim]).permutation(len(put))[: len(members)]] = True
        found[victim] = ~put if number % 2 else put
    return found


def _shadow(settings: ShadowSettings, number: int) -> Arrays:
    """One shadow run: statistics of all candidates at every attacked pair."""
    finished_run = open_run_once(settings.folder, settings.data, settings.own)
    chosen, held = _candidates(finished_run, settings), finished_run.training_run.task.shards.indices
    first = len(finished_run.training_run.task.inputs)
    rows = {}
    for victim, put in _inside(chosen, settings.seed, number).items():
        members, nonmembers = chosen[victim]
        new = np.random.default_rng([settings.seed, number, victim, 1]).permutation(
            np.append(members, first + nonmembers)[put]
        )
        rows[victim] = held[victim].copy()
        rows[victim][np.isin(held[victim], members)] = new
    seed = int(np.random.SeedSequence([finished_run.training_run.seed, settings.seed, number]).generate_state(1)[0])
    attackers = sorted({attacker for attacker, _ in settings.pairs})
    messages = record_rerun(with_other_rows(finished_run, seed, rows), finished_run.experiment.record, attackers)
    return _statistics(finished_run, messages, settings, chosen)


def _statistics(
    finished_run: FinishedRun, messages: Messages, settings: ShadowSettings, chosen: dict[int, Candidates]
) -> Arrays:
    task, unrelated = finished_run.training_run.task, _unrelated(finished_run)
    wider = {victim: Candidates(own.members, np.append(own.nonmembers, unrelated)) for victim, own in chosen.items()}
    found: Arrays = {}
    for one in loss_series(task, messages, settings.pairs, wider):
        losses = _later(one)
        B = losses.shape[1] - len(unrelated)
        chance = np.exp(-losses).mean(axis=0)
        confidence = _confidence(losses[:, :B], task.model.loss.name).mean(axis=0)
        for key, values in zip(Statistics._fields, (confidence, chance[:B], chance[B:]), strict=True):
            found[f"{key}-{one.attacker}-{one.victim}"] = values
    return found


def _statistics_of(found: Arrays, pair: tuple[int, int]) -> Statistics:
    return Statistics(*(found[f"{key}-{pair[0]}-{pair[1]}"] for key in Statistics._fields))


def _later(one: LossSeries) -> Array:
    """Losses on the later half of the models received: their noise is fresh, what they know is not."""
    received = np.flatnonzero(one.received())
    return np.concatenate([one.members, one.nonmembers], axis=1)[received[len(received) // 2 :]]


def _confidence(losses: Array, kind: str) -> Array:
    """Nearly Gaussian where losses are not: the logit of p, or minus the error."""
    if kind == "squared":
        return -np.sqrt(2 * losses)
    small = np.clip(losses, 1e-12, LARGEST_LOSS)
    return -small - np.log(-np.expm1(-small))
