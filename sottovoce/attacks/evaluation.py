"""How well an attack tells members from non-members: figures with confidence intervals.

- `auc`: the mean over attacked pairs of the area under the ROC curve, 0.5 for random guessing;
- `tpr`: the share of members found when at most 0.1 % or 1 % of non-members are taken for members, all victims
  together;
- `roc`: true positive rates over false ones, all victims together, at no more than 200 thresholds;
- `advantage`: true less false positive rate at the best threshold; half of the scores choose it for the other half, so
  that chance alone gives 0 on average.

From eight victims on, intervals are by bootstrap over victims (percentiles, expanded for few as Hesterberg does, 2015):
they say what another draw of victims would give. With fewer, victims are taken as they are and intervals are over
examples: DeLong's for AUCs, Clopper's and Pearson's for rates, which allow for the choice of the threshold.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = [Scores(victim, rng.normal(1, 1, 200), rng.normal(0, 1, 200)) for victim in range(20)]
    >>> found = evaluate_scores("example", scores)
    >>> print(found.auc, found.interval)
    0.750 (0.741 to 0.760) over victims
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, betaincinv, ndtr, ndtri, stdtrit

from sottovoce.errors import InputError
from sottovoce.learning.prediction_scores import roc_auc, roc_auc_variance
from sottovoce.support.config import Document

Array = NDArray[np.float64]

VICTIMS = 8
"""From so many victims on, intervals are over victims."""

RESAMPLES = 1000

RATES = (0.001, 0.01)

POINTS = 200
"""Thresholds of a ROC curve that are stored, at most."""


class Scores(NamedTuple):
    """Scores of one attacked pair, larger for members. Pairs with the same `victim` are resampled together."""

    victim: Hashable
    members: Array
    nonmembers: Array


@dataclass(frozen=True)
class Estimate:
    """A figure and its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, kw_only=True)
class MembershipResult:
    """What membership inference achieved; `method` names the attack with what decides it.

    `by_round` is the mean AUC for models of single rounds, `by_distance` the AUC by hops between attacker and
    victim, where the attack has them.
    """

    method: str
    auc: Estimate
    tpr_at_0_1_percent: Estimate
    tpr_at_1_percent: Estimate
    advantage: Estimate
    confidence: float
    interval: str
    victims: int
    pairs: int
    members: int
    nonmembers: int
    by_round: tuple[tuple[int, float], ...] = ()
    roc: tuple[tuple[float, float], ...] = ()
    by_distance: tuple[tuple[int, Estimate], ...] = ()

    def document(self) -> Document:
        """As JSON."""
        found = {("others" if key == "nonmembers" else key): value for key, value in asdict(self).items()}
        found["by_round"] = [{"round": round, "auc": auc} for round, auc in self.by_round]
        found["by_distance"] = [{"distance": hops, "auc": asdict(auc)} for hops, auc in self.by_distance]
        found["roc"] = {key: [point[at] for point in self.roc] for at, key in enumerate(("fpr", "tpr"))}
        return found

    def table(self) -> list[list[str]]:
        """The figures with their confidence intervals."""
        figures = {
            "ROC-AUC": self.auc,
            "true positives at 0.1 % false ones": self.tpr_at_0_1_percent,
            "true positives at 1 % false ones": self.tpr_at_1_percent,
            "advantage": self.advantage,
        }
        rows = [[name, *(f"{part:.4f}" for part in (one.value, one.low, one.high))] for name, one in figures.items()]
        return [[self.method, "", "from", "to"], *rows]

    def notes(self) -> list[str]:
        """What the figures are over, and how the AUC develops over rounds and hops."""
        found = (
            f"{self.pairs} pairs of attacker and victim, {self.victims} victims, {self.members:,} members and "
            f"{self.nonmembers:,} non-members; {self.confidence:.0%} intervals {self.interval}."
        )
        if self.by_round:
            few = self.by_round[:: max(1, len(self.by_round) // 6)]
            found += f" AUC by round: {', '.join(f'{auc:.2f}' for _, auc in few)}."
        if self.by_distance:
            found += f" AUC by hops: {', '.join(f'{hops}: {auc}' for hops, auc in self.by_distance)}."
        return [found]


def evaluate_scores(
    method: str,
    scores: Sequence[Scores],
    *,
    confidence: float = 0.95,
    seed: int = 0,
    by_round: Sequence[tuple[int, float]] = (),
) -> MembershipResult:
    """The figures of an attack from its scores."""
    error, rng = check_confidence(confidence), np.random.default_rng(seed)
    names = list(dict.fromkeys(one.victim for one in scores))
    cluster = np.array([names.index(one.victim) for one in scores])
    few = len(names) < VICTIMS
    times = None if few else rng.multinomial(len(names), np.full(len(names), 1 / len(names)), RESAMPLES)
    pool = _pool(scores, cluster)
    tpr = _tpr_estimates(pool, times, error, len(scores))
    return MembershipResult(
        method=method,
        auc=_auc_estimate(scores, cluster, times, error),
        tpr_at_0_1_percent=tpr[0],
        tpr_at_1_percent=tpr[1],
        advantage=_advantage(pool, rng, times, error, len(scores)),
        confidence=confidence,
        interval="over examples" if few else "over victims",
        victims=len(names),
        pairs=len(scores),
        members=sum(len(one.members) for one in scores),
        nonmembers=sum(len(one.nonmembers) for one in scores),
        by_round=tuple(by_round),
        roc=_roc(pool),
    )


# --- AUCs ----------------------------------------------------------------------------------------------------------


def _auc_estimate(
    scores: Sequence[Scores], cluster: NDArray[np.intp], times: NDArray[np.int64] | None, error: float
) -> Estimate:
    aucs = np.array([roc_auc(one.members, one.nonmembers) for one in scores])
    count = np.bincount(cluster)
    value = float(aucs.mean())
    if times is not None:
        sums = np.bincount(cluster, weights=aucs)
        return _between(value, (times @ sums) / (times @ count), len(count), error)
    variance = np.array([roc_auc_variance(one.members, one.nonmembers) for one in scores])
    share = np.bincount(cluster, weights=variance) / count  # pairs of one victim may share everything
    deviation = float(np.sqrt(np.sum(share * (count / len(scores)) ** 2)))
    wide = -float(ndtri(error / 2)) * deviation
    return Estimate(value, max(0.0, value - wide), min(1.0, value + wide))


def _between(value: float, resampled: Array, victims: int, error: float) -> Estimate:
    tail = float(ndtr(np.sqrt(victims / (victims - 1)) * stdtrit(victims - 1, error / 2)))
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Estimate(value, min(value, float(low)), max(value, float(high)))


# --- rates ---------------------------------------------------------------------------------------------------------


class Pool(NamedTuple):
    """The scores of all pairs, the largest first: whose they are, whether a member's, and where groups of ties end.

    `example` numbers rows: what several attackers received about one row of a victim has one number.
    """

    values: Array
    cluster: NDArray[np.intp]
    example: NDArray[np.intp]
    member: NDArray[np.bool_]
    ends: NDArray[np.intp]


def _pool(scores: Sequence[Scores], cluster: NDArray[np.intp]) -> Pool:
    values = np.concatenate([np.concatenate([one.members, one.nonmembers]) for one in scores])
    member = np.concatenate([np.repeat([True, False], [len(one.members), len(one.nonmembers)]) for one in scores])
    whose = np.repeat(cluster, [len(one.members) + len(one.nonmembers) for one in scores])
    place = np.concatenate([np.arange(len(part)) for one in scores for part in (one.members, one.nonmembers)])
    example = np.unique(np.stack([whose, member, place]), axis=1, return_inverse=True)[1].reshape(-1)
    order = np.argsort(-values, kind="stable")
    values = values[order]
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], True))
    return Pool(values, whose[order], example[order], member[order], ends)


def _curve(pool: Pool, weight: Array) -> tuple[Array, Array]:
    """True and false positive rates at each threshold."""
    found = [np.cumsum(weight * part)[pool.ends] for part in (pool.member, ~pool.member)]
    true, false = (part / max(part[-1], 1e-300) for part in found)
    return true, false


def _roc(pool: Pool) -> tuple[tuple[float, float], ...]:
    """From (0, 0) to (1, 1): as many true positives as evenly spread false positive rates allow, and small ones."""
    true, false = (np.append(0.0, part) for part in _curve(pool, np.ones(len(pool.values))))
    rates = np.concatenate([np.linspace(0, 1, POINTS // 2), np.geomspace(1e-4, 1, POINTS // 2 - 1)])
    few = len(false) <= POINTS
    chosen = np.arange(len(false)) if few else np.unique(np.append(0, np.searchsorted(false, rates, "right") - 1))
    return tuple(zip(false[chosen].tolist(), true[chosen].tolist(), strict=True))


def _tpr(pool: Pool, weight: Array) -> list[float]:
    """At each of RATES."""
    true, false = _curve(pool, weight)
    last = np.searchsorted(false, np.array(RATES) + 1e-12, "right")
    return [float(true[at - 1]) if at else 0.0 for at in last]


def _tpr_estimates(pool: Pool, times: NDArray[np.int64] | None, error: float, pairs: int) -> list[Estimate]:
    values = _tpr(pool, np.ones(len(pool.values)))
    if times is None:
        return [
            Estimate(value, *_tpr_limits(value, rate, pool, error, pairs))
            for value, rate in zip(values, RATES, strict=True)
        ]
    again = np.array([_tpr(pool, counts[pool.cluster].astype(float)) for counts in times])
    return [_between(value, found, times.shape[1], error) for value, found in zip(values, again.T, strict=True)]


def _tpr_limits(value: float, rate: float, pool: Pool, error: float, pairs: int) -> tuple[float, float]:
    """For another draw of examples, which would choose another threshold.

    Low: at the last threshold whose false positives surely stay within the rate; high: at the last that may do so. Half
    of the error is for that choice, half for the true positives there.
    """
    true, false = _curve(pool, np.ones(len(pool.values)))
    nonmembers = _once(int((~pool.member).sum()), pool, pairs)
    count = np.round(false * nonmembers).astype(np.intp)
    sure = int(np.searchsorted(upper_limit(count, nonmembers, error / 4), rate, "right"))
    may = int(np.searchsorted(lower_limit(count, nonmembers, error / 4), rate, "right"))
    members = int(pool.member.sum())
    low = _limits(float(true[sure - 1]), members, pool, error / 2, pairs)[0] if sure else 0.0
    high = _limits(float(true[may - 1]) if may else 0.0, members, pool, error / 2, pairs)[1]
    return min(value, low), max(value, high)


def _once(of: int, pool: Pool, pairs: int) -> int:
    """How many examples there are, counting what several attackers received of one victim once."""
    return max(1, round(of * (int(pool.cluster.max()) + 1) / pairs))


def _limits(rate: float, of: int, pool: Pool, error: float, pairs: int) -> tuple[float, float]:
    """Clopper and Pearson."""
    of = _once(of, pool, pairs)
    count = np.array(round(rate * of))
    return float(lower_limit(count, of, error / 2)), float(upper_limit(count, of, error / 2))


def _advantage(
    pool: Pool, rng: np.random.Generator, times: NDArray[np.int64] | None, error: float, pairs: int
) -> Estimate:
    # by rows: a row that several attackers score must not choose the threshold that it is tried with
    half = rng.integers(0, 2, int(pool.example.max()) + 1).astype(bool)[pool.example]
    called = np.zeros(len(pool.values), dtype=bool)
    for choosing in (half, ~half):
        true, false = _curve(pool, choosing.astype(float))
        level = pool.values[pool.ends[int(np.argmax(true - false))]]
        called |= ~choosing & (pool.values >= level)
    size = int(pool.cluster.max()) + 1
    found = [
        [np.bincount(pool.cluster[part & which], minlength=size) for which in (called, np.ones_like(called))]
        for part in (pool.member, ~pool.member)
    ]
    (hits, members), (alarms, nonmembers) = found
    true, false = hits.sum() / members.sum(), alarms.sum() / nonmembers.sum()
    if times is not None:
        again = (times @ hits) / (times @ members) - (times @ alarms) / (times @ nonmembers)
        return _between(float(true - false), again, size, error)
    least, most = _limits(true, int(members.sum()), pool, error / 2, pairs)
    fewest, largest = _limits(false, int(nonmembers.sum()), pool, error / 2, pairs)
    return Estimate(float(true - false), least - largest, most - fewest)


# --- confidence limits of counts, for audits as well ----------------------------------------------------------------


def check_confidence(confidence: float) -> float:
    """The probability of error that a confidence level leaves; refuses levels outside (0, 1)."""
    if not isinstance(confidence, int | float) or not 0 < confidence < 1:
        raise InputError(f"confidence {confidence!r}", "it must lie between 0 and 1", "give 0.95, for example")
    return 1 - confidence


def upper_limit(count: NDArray[np.intp], of: int, error: float) -> Array:
    """Clopper and Pearson: the rate is below this, except with a probability of `error`.

    >>> [round(float(limit(np.array(3), 100, 0.025)), 3) for limit in (lower_limit, upper_limit)]
    [0.006, 0.085]
    """
    inside = count < of
    return np.where(inside, betainccinv(count + 1, np.where(inside, of - count, 1), error), 1.0)


def lower_limit(count: NDArray[np.intp], of: int, error: float) -> Array:
    """Clopper and Pearson: the rate is above this, except with a probability of `error`."""
    inside = count > 0
    return np.where(inside, betaincinv(np.where(inside, count, 1), of - count + 1, error), 0.0)
