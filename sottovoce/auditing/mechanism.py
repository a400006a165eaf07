"""Auditing the mechanism that runs: a canary in the gradients of a victim, scored from what a view really received.

The loop runs on arrays of many columns. Columns do not touch each other: each is a repetition of the scalar mechanism
with noise of its own, and one run gives thousands of repetitions. In half of them the victim's gradients carry a canary
of size Delta; the view's messages, less what it knows, are scored, and the scores are audited.

    >>> from sottovoce import account, algorithm, metropolis, trace
    >>> system = trace(algorithm("muffliato", sigma=1.0), metropolis("grid:3x3"), rounds=3)
    >>> found = audit(system, "node:0", victim=4, repetitions=20_000)
    >>> claim = account(system, "node:0").of(4)
    >>> round(found.mu, 2), round(claim.mu, 2), found.consistent_with(claim)
    (0.73, 0.79, True)

Shapes: R observations, T gradient rounds, K columns of one repetition, N repetitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from sottovoce.attacks.evaluation import check_confidence
from sottovoce.attacks.received_messages import MakeFeed, need_messages, receive
from sottovoce.auditing.lower_bound import Audit, audit_scores, check_delta
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.participation import Participation, parse_participation
from sottovoce.core.release import Gradient
from sottovoce.core.sensitivity import largest, relative
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.exact import routes
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.views import View, parse_view
from sottovoce.privacy.worst_case import worst_change
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import LinearSystem

Array = NDArray[np.float64]

CANARIES = ("worst", "equal")
DISTINGUISHERS = ("likelihood-ratio", "trained")

ENTRIES = 2e7
"""Largest size of the matrices of a view, in entries, that is whitened whole."""

AT_ONCE = 1 << 22
"""About how many values of a run are alive at once."""

LEARNT = 5e7
"""Largest number of received values that a trained distinguisher is given."""

RIDGE = 1e-9


@one_thread()
def audit(
    system: LinearSystem,
    adversary: str | View = "everyone",
    *,
    victim: int,
    canary: str | Array = "worst",
    participation: str | Participation = "every",
    gradient: Gradient | None = None,
    distinguisher: str = "likelihood-ratio",
    repetitions: int = 10_000,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
    feed: MakeFeed = NoiseFeed,
) -> Audit:
    """A lower bound on what a view learns about a victim, from runs of the loop with and without a canary.

    - `canary`: what the victim's gradient moves by in each round, in units of Delta: the `worst` change for the traced
      system, `equal` ones, or an array (rounds, or rounds x K) whose rows have norm at most one;
    - `gradient`: what nodes do besides, column by column (None: nothing); it may depend on what they received;
    - `distinguisher`: the `likelihood-ratio` of the traced system, which is best if what runs is what was traced and
      streams are fixed; or a linear one `trained` on half of the repetitions, which does not rely on that;
    - `feed`: what draws the noise; to audit a suspect implementation, give one that draws as it does.
    """
    observation = observe(system, parse_view(adversary, labels=system.topology.names), victims=[victim])
    need_messages(observation)
    if system.classes > 1:
        raise Unaccountable(
            f"{system.algorithm.name} scales coordinates differently, and repetitions are coordinates that are alike"
        )
    _check(observation, repetitions, distinguisher)
    check_confidence(confidence), check_delta(delta)
    white = routes.whitened(observation)
    shape = _canary(white, canary, participation)
    trial = CanaryTrial(observation, shape, gradient or _no_gradient, repetitions, seed, feed)
    if distinguisher == "trained":
        found = _trained(trial, delta, confidence)
    else:
        ratio = _likelihood_ratio(white, shape)
        found = audit_scores(
            *(np.concatenate([_scores(part, ratio.weights) for part in trial.parts(into)]) for into in (False, True)),
            threshold=ratio.threshold if gradient is None else None,
            delta=delta,
            confidence=confidence,
            seed=seed,
        )
    return replace(found, victim=victim, view=str(observation.view), traced=_traced(white, shape, observation))


# --- runs ----------------------------------------------------------------------------------------------------------


class CanaryTrial(NamedTuple):
    """All that repetitions have in common."""

    observation: Observation
    canary_TK: Array
    gradient: Gradient
    repetitions: int
    seed: int
    feed: MakeFeed

    def once(self, into: bool, repetitions: int, seed: int) -> Array:
        """What was received in one run, R x N x K, with or without the canary in all its repetitions."""
        K = self.canary_TK.shape[1]
        system, victim = self.observation.system, int(self.observation.victims[0])
        own = relative(system.algorithm.sensitivity)
        unit = largest(system.algorithm.sensitivity)
        size = unit if own is None else unit * float(own[victim])
        added = np.tile(into * size * self.canary_TK, (1, repetitions))

        def gradient(round: int, point: Array) -> Array:
            grad = np.array(self.gradient(round, point), dtype=float)
            grad[victim] += added[round]
            return grad

        x0 = np.zeros((system.n, repetitions * K))
        rows = receive(self.observation, gradient, x0, seed=seed, feed=self.feed)
        return (rows / (system.algorithm.step_size * unit)).reshape(len(rows), repetitions, K)

    def parts(self, into: bool) -> Iterator[Array]:
        """All repetitions with, or without, the canary: run after run, each with a seed of its own."""
        K = self.canary_TK.shape[1]
        rows = self.observation.rows
        most = max(1, AT_ONCE // (K * max(self.observation.system.n, rows, 1)))
        sizes = [most] * (self.repetitions // most) + [self.repetitions % most] * (self.repetitions % most > 0)
        seeds = np.random.SeedSequence([self.seed, int(into)]).generate_state(len(sizes), np.uint64)
        for size, seed in zip(sizes, seeds.tolist(), strict=True):
            yield self.once(into, size, seed)


def _scores(received_RNK: Array, weights_RK: Array) -> Array:
    return np.einsum("rnk,rk->n", received_RNK, weights_RK, optimize=True)


def _no_gradient(round: int, point: Array) -> Array:
    return np.zeros_like(point)


# --- canaries ------------------------------------------------------------------------------------------------------


def _canary(white: routes.Whitened, canary: str | Array, scheme: str | Participation) -> Array:
    """T x K: what the victim's gradients move by."""
    T, taking = white.signal_KTV.shape[1], parse_participation(scheme)
    taking.check(T)
    if not isinstance(canary, str):
        return _given(np.asarray(canary, dtype=float), T)
    if canary not in CANARIES:
        raise InputError(f"canary {canary!r}", f"known: {', '.join(CANARIES)}, or an array", "choose one of them")
    if canary == "worst" and not white.uncovered_V[0]:
        signal_KT = white.signal_KTV[:, :, 0]
        return worst_change(signal_KT.T @ signal_KT, taking)
    rounds = taking.possible(T)[0]
    shape = np.zeros((T, 1))
    shape[rounds, 0] = 1.0
    return shape


def _given(canary: Array, T: int) -> Array:
    shape = canary[:, None] if canary.ndim == 1 else canary
    if shape.ndim != 2 or len(shape) != T or not shape.size or not np.isfinite(shape).all():
        raise InputError(
            f"a canary of shape {canary.shape}", f"there are gradients in {T} rounds", "give a row for each round"
        )
    longest = float(np.linalg.norm(shape, axis=1).max())
    if longest > 1 + 1e-9:
        raise InputError(
            f"a canary of norm {longest:g}", "the guarantee is about a change of norm at most one", "scale it"
        )
    return shape


# --- distinguishers ------------------------------------------------------------------------------------------------


class Ratio(NamedTuple):
    """Weights of the log-likelihood ratio, R x K, and the threshold half way between its two means."""

    weights: Array
    threshold: float


def _likelihood_ratio(white: routes.Whitened, canary_TK: Array) -> Ratio:
    """`(B B^T)^+ A_u c`, by the whitening of the accountant; where no noise covers the signal, the signal itself."""
    if white.uncovered_V[0]:
        bare = np.einsum("rt,tk->rk", white.bare_RTV[:, :, 0], canary_TK)
        return Ratio(bare, float(np.sum(bare**2)) / 2)
    signal = np.einsum("mt,tk->mk", white.signal_KTV[:, :, 0], canary_TK)
    return Ratio(white.matrix_KR.T @ signal, float(np.sum(signal**2)) / 2)


def _traced(white: routes.Whitened, canary_TK: Array, observation: Observation) -> float | None:
    """mu of the canary itself; None where a part of it lies in noise that is too small to be told from none."""
    if not white.uncovered_V[0]:
        return math.sqrt(2 * _likelihood_ratio(white, canary_TK).threshold)
    return None if any(len(step.noise_columns) for step in observation.steps) else math.inf


def _trained(trial: CanaryTrial, delta: float, confidence: float) -> Audit:
    """Fisher's discriminant from half of the repetitions, which also choose the threshold; the others are audited."""
    negatives, positives = (
        np.concatenate([part.transpose(1, 0, 2).reshape(part.shape[1], -1) for part in trial.parts(into)])
        for into in (False, True)
    )
    half = len(negatives) // 2
    features = negatives.shape[1]
    spread = np.atleast_2d(np.cov(negatives[:half], rowvar=False) + np.cov(positives[:half], rowvar=False))
    spread = spread + RIDGE * np.trace(spread) / features * np.eye(features)
    shift = positives[:half].mean(axis=0) - negatives[:half].mean(axis=0)
    direction = linalg.solve(spread, shift, assume_a="pos") if spread.any() else shift
    level = float(np.median(np.concatenate([negatives[:half], positives[:half]]) @ direction))
    return audit_scores(
        negatives[half:] @ direction, positives[half:] @ direction, threshold=level, delta=delta, confidence=confidence
    )


def _check(observation: Observation, repetitions: int, distinguisher: str) -> None:
    if not isinstance(repetitions, int | np.integer) or repetitions < 1:
        raise InputError(
            f"{repetitions!r} repetitions", "it must be a whole number, 1 or more", "give 10000, for example"
        )
    if distinguisher not in DISTINGUISHERS:
        raise InputError(
            f"distinguisher {distinguisher!r}", f"known: {', '.join(DISTINGUISHERS)}", "choose one of them"
        )
    rows = observation.rows
    columns = observation.gradient_rounds + sum(len(step.noise_columns) for step in observation.steps)
    if rows * columns > ENTRIES:
        raise InputError(
            f"{rows} messages with {columns} inputs",
            f"audits handle at most {ENTRIES:g} products of messages and inputs",
            "audit fewer rounds, or a view that receives less",
        )
    if distinguisher == "trained" and rows * repetitions > LEARNT:
        raise InputError(
            f"{rows} messages in each of {repetitions} repetitions",
            f"a trained distinguisher takes at most {LEARNT:g} numbers",
            "ask for fewer repetitions",
        )
