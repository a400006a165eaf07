"""Policies of the absorption bound: how much of the difference each node's noise absorbs, for every victim.

With `a` absorbed of `p`, `d` the size of fresh noise and `|W|` what travels, a policy of least cost has

    a_t = p_t  at nodes that are heard,      a_t = min(p_t, d^2 |W|^T (a_{t+1} / d^2))  elsewhere:

a node absorbs until the next bit costs as much as it would further on. A *sweep* goes back in time for this answer to
the differences of the policy at hand, forth for what comes of it, and takes the best point between the two: both are
policies, so every point between is one, and the cost there is a parabola.

- `swept` policies are made of two sweeps, from the one that absorbs only what is heard; of up to eight where the cost
  still falls.
- `optimised` ones go on by accelerated projected gradients until the cost no longer falls.

Every policy gives a valid bound, so it is sound to stop anywhere. Victims are independent of each other, so they are
taken in blocks that fit in the processor's cache.

For training that is clipped but not convex, models that are apart may drift by a clipped gradient a round
(`late_cost`).

Shapes: V victims of a block, T rounds, N nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.arrays import dense_if_small
from sottovoce.core.participation import Participation
from sottovoce.privacy.absorption import Array, Coupling
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.progress import report_progress
from sottovoce.support.threads import WORKERS
from sottovoce.tracing.linear_system import LinearSystem, map_equal_steps

SWEEPS, MOST_SWEEPS = 2, 8
"""Sweeps of a `swept` policy; of one that still falls, and before an `optimised` one goes on by gradients."""

FALLING = 0.1
"""A `swept` policy still falls if its last sweep has lowered the cost by more than this share."""

ITERATIONS, CHECKED = 400, 10
PROGRESS = 1e-5
"""At most so many iterations; stop when so many of them lower no victim's cost by more than this share."""

IN_CACHE = 100_000
"""Differences, of nodes and victims, that are carried together: more of them fall out of the processor's cache."""

BLOCKS = 4
"""Victims that fit in the cache together are divided into so many blocks, however many cores there are: a search goes
on as long as the cost of any victim of its block falls."""

ALONE = 200_000
"""Up to so many differences over all rounds, threads would wait for each other longer than they compute."""

BARE = 1e-6
"""Noise of a heard node that adds none, in units of others': it makes those before it absorb all that they can."""

OPTIMISED_WEIGHTS = 6.25e7
"""Policies are optimised where a pass through all rounds goes through no more weights than this."""

NODE, ROUND = 15, 37_500
"""How many weights a node of a victim, and a round by itself, are worth."""

WEIGHTS = 1.25e9
"""Weights in a second, for limits."""


class Policy(StrEnum):
    """How far a policy is searched for."""

    OPTIMISED = "optimised"
    SWEPT = "swept"


PASSES = {Policy.OPTIMISED: 60.0, Policy.SWEPT: 2.5}
"""How often a search usually goes forth and back through all rounds."""


def policy_for(system: LinearSystem, victims: int, scheme: Participation, *, optimised: bool) -> Policy:
    """Which policies are affordable for so many victims."""
    affordable = _weights(system, victims, scheme) <= OPTIMISED_WEIGHTS
    return Policy.OPTIMISED if optimised or affordable else Policy.SWEPT


def check_policy_cost(system: LinearSystem, victims: int, scheme: Participation, *, optimised: bool) -> None:
    """Refuse a search that takes too much memory or work."""
    policy = policy_for(system, victims, scheme, optimised=optimised)
    at_once = min(victims, max(1, IN_CACHE // system.n)) * WORKERS
    cost = Cost(
        memory=72.0 * at_once * system.rounds * system.n,
        seconds=PASSES[policy] * _weights(system, victims, scheme) / WEIGHTS,
    )
    less = (
        "ask for other kinds, as with --kind any-training, about fewer nodes, as with --victim 1, or take fewer rounds"
    )
    check_cost(f"convex-training for {victims:,} victims over {system.rounds:,} rounds", cost, less)


def _weights(system: LinearSystem, victims: int, scheme: Participation) -> float:
    """Through how many weights a pass through all rounds goes, for all victims and patterns of participation."""
    links = max(int(step.split(step.state_out)[0].nnz) for step in dict.fromkeys(system.steps))
    return scheme.count(system.rounds) * system.rounds * float(ROUND + victims * (links + NODE * system.n))


# --- convex training -----------------------------------------------------------------------------------------------


def least_cost(
    rounds: tuple[Coupling, ...], victims: NDArray[np.intp], scheme: Participation, policy: Policy = Policy.OPTIMISED
) -> Array:
    """mu^2 of each victim: the least cost found, the largest over participation patterns.

    Policies are for a change that moves steps by their `scale`; a victim's own `jump` is a multiple of it, and costs
    grow with its square.
    """
    T, N, V = len(rounds), len(rounds[0].fresh), len(victims)
    size = max(1, min(IN_CACHE // N, V if T * N * V <= ALONE else -(-V // BLOCKS)))
    ready, parts = _ready(rounds), [_taking_part(pattern, T) for pattern in scheme.patterns(T)]
    out, falling = np.full(V, np.inf), np.ones(V, dtype=bool)
    rooms: SimpleQueue[Array] = SimpleQueue()
    for _ in range(min(WORKERS, -(-V // size))):
        rooms.put(np.empty((5, T * N * size)))

    def solve(sweeps: int, some: NDArray[np.intp]) -> int:
        room = rooms.get()
        try:
            found = [_Search(ready, part, victims[some], room).least(policy, sweeps) for part in parts]
        finally:
            rooms.put(room)  # or other threads would wait for it
        out[some] = np.minimum(out[some], np.max([cost for cost, _ in found], axis=0))
        falling[some] = np.any([falls for _, falls in found], axis=0) & (sweeps < MOST_SWEEPS)
        return int(np.count_nonzero(~falling[some]))

    with ThreadPoolExecutor(WORKERS) as pool:
        for sweeps in (SWEEPS, MOST_SWEEPS)[policy is Policy.OPTIMISED :]:
            left = np.flatnonzero(falling)
            blocks = [left[first : first + size] for first in range(0, len(left), size)]
            spread = pool.map if len(blocks) > 1 else map
            for done in spread(partial(solve, sweeps), blocks):
                report_progress(done)
    jump = np.max([coupling.jump[victims] / coupling.scale for coupling in dict.fromkeys(rounds)], axis=0)
    return np.asarray(out * jump**2)


def _taking_part(pattern: NDArray[np.intp], rounds: int) -> NDArray[np.bool_]:
    part = np.zeros(rounds, dtype=bool)
    part[pattern] = True
    return part


class _Step(NamedTuple):
    """A coupling made ready for products, in units of the largest noise."""

    transfer: sparse.csr_array | Array
    back: sparse.csr_array | Array
    heard: NDArray[np.intp]
    enters: Array
    noise: Array
    without: NDArray[np.bool_]
    bare: NDArray[np.intp]
    summed: sparse.csr_array | None

    def price(self, absorbed: Array) -> Array:
        """What the next bit costs, half: absorbed over the square of noise."""
        return absorbed / self.noise**2


class _Ready(NamedTuple):
    """All rounds, and the largest noise."""

    steps: list[_Step]
    unit: float


def _ready(rounds: tuple[Coupling, ...]) -> _Ready:
    largest = max(float(coupling.fresh.max(initial=0.0)) for coupling in dict.fromkeys(rounds))
    unit = largest if largest > 0 else 1.0
    return _Ready(list(map_equal_steps(partial(_step, unit=unit), rounds)), unit)


def _step(coupling: Coupling, unit: float) -> _Step:
    none, must = coupling.fresh == 0, coupling.must_absorb
    # not where sums are seen: differences may grow without bounds there, and 0 times infinity is no number
    sees_sums = coupling.summed is not None
    return _Step(
        transfer=coupling.transfer if sees_sums else dense_if_small(coupling.transfer),
        back=coupling.transfer_back if sees_sums else dense_if_small(coupling.transfer_back),
        heard=np.flatnonzero(must),
        enters=np.where(coupling.takes, coupling.scale, 0.0),
        noise=np.where(none, np.where(must, BARE, 1.0), coupling.fresh / unit)[:, None],
        without=(none & ~must)[:, None],  # without fresh noise all of it travels on
        bare=np.flatnonzero(none & must),
        summed=coupling.summed,
    )


class _Followed(NamedTuple):
    """What a policy does: what is carried on, and what is absorbed over the size of noise; T x N x V."""

    carried: Array
    shares: Array


class _Search:
    """Policies for some victims who take part in some rounds.

    `room` is memory for two policies and an answer, which is never given back: new memory costs most.
    """

    def __init__(self, ready: _Ready, part: NDArray[np.bool_], victims: NDArray[np.intp], room: Array) -> None:
        (self.steps, self.unit), self.part, self.victims = ready, part, victims
        self.shape = len(self.steps), self.steps[0].transfer.shape[0], len(victims)
        self._room = [one[: math.prod(self.shape)].reshape(self.shape) for one in room]

    def least(self, policy: Policy, sweeps: int) -> tuple[Array, NDArray[np.bool_]]:
        """The least cost found for each victim, rounded up, and whose still falls; never above that of absorbing at
        once."""
        with np.errstate(over="ignore", invalid="ignore"):
            at_once = self._at_once()
            cost, falls = self._swept_down(policy, sweeps, at_once)
            return np.minimum(_rounded_up(cost), at_once), falls

    def _swept_down(self, policy: Policy, sweeps: int, at_once: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Differences grow without bounds where sums are seen for thousands of rounds; what is no number is passed
        over."""
        now = self.follow(lambda t, p: 0.0, 0)  # nothing is absorbed but what is heard
        before = best = np.fmin(at_once, self.cost(now))
        for sweep in range(sweeps):
            other = self.swept(now)
            way, cost = self._between(now, other)
            before, best = best, np.fmin(best, cost)
            if policy is Policy.SWEPT and sweep == sweeps - 1:
                break
            _move_(now, other, way)
            if not _falls(before, best):
                break
        falls = before - best > FALLING * before
        return (best if policy is Policy.SWEPT else self._descend(now.carried, best)), falls

    def follow(self, absorb: Callable[[int, Array], Array | float], place: int) -> _Followed:
        """What comes of a policy: `absorb(t, p)` is what it absorbs of p in round t; 0 in the last round.

        Nodes that are heard absorb all, whatever it says. There is place for two of them.
        """
        now, p = _Followed(*self._room[2 * place : 2 * place + 2]), np.zeros(self.shape[1:])
        for t, step in enumerate(self.steps):
            self._enter_(p, t)
            q, absorbed = now.carried[t], now.shares[t]
            absorbed[:] = absorb(t, p) if t < len(self.steps) - 1 else 0.0
            np.copyto(absorbed, 0.0, where=step.without)
            absorbed[step.heard] = p[step.heard]
            np.subtract(p, absorbed, out=q)
            if step.summed is not None:
                absorbed += step.summed @ q
            absorbed /= step.noise
            p = step.transfer @ q
        return now

    def _enter_(self, p: Array, t: int) -> None:
        """Add what the victims' own changes make of the difference."""
        if self.part[t]:
            p[self.victims, np.arange(len(self.victims))] += self.steps[t].enters[self.victims]

    def swept(self, now: _Followed) -> _Followed:
        """What comes of the answer to a policy."""
        wanted = self._answer(now)
        return self.follow(lambda t, p: np.minimum(wanted[t], p), 1)

    def _answer(self, now: _Followed) -> Array:
        """What to absorb in every round if the differences stay as they are: a sweep back in time."""
        out, later = self._room[4], np.zeros(self.shape[1:])
        for t in range(len(self.steps) - 1, -1, -1):
            step, carried, wanted = self.steps[t], now.carried[t], out[t]
            further = step.back @ later
            absorbed = now.shares[t] * step.noise
            there = absorbed + carried
            if step.summed is not None:
                further += step.summed.T @ step.price(absorbed)
            most = further * step.noise**2
            if step.summed is not None:
                there -= step.summed @ carried
                most = np.maximum(most - step.summed @ carried, 0.0)
            np.minimum(most, there, out=wanted)
            wanted[step.heard] = there[step.heard]
            price = step.price(wanted if step.summed is None else wanted + step.summed @ (there - wanted))
            later = np.where(step.without, further, price)
        return out

    def _slope(self, carried: Array) -> Array:
        """Gradient of half the cost with respect to what is carried; where nothing can absorb, that follows."""
        prices, out = np.empty(self.shape), np.empty(self.shape)
        p, later = np.zeros(self.shape[1:]), np.zeros(self.shape[1:])
        for t, step in enumerate(self.steps):
            self._enter_(p, t)
            q = np.where(step.without, p, carried[t])
            prices[t] = step.price(p - q if step.summed is None else p - q + step.summed @ q)
            p = step.transfer @ q
        for t in range(len(self.steps) - 1, -1, -1):
            step, price = self.steps[t], prices[t]
            further = step.back @ later
            if step.summed is not None:
                further += step.summed.T @ price
            out[t] = further - price
            later = np.where(step.without, further, price)
        return out

    def _at_once(self) -> Array:
        """The cost where every difference is absorbed as soon as there is noise to do so."""
        if any(step.without.any() for step in self.steps):
            return self.cost(self.follow(lambda _, p: p, 0))
        cost = np.zeros(len(self.victims))
        for step in (self.steps[t] for t in np.flatnonzero(self.part).tolist()):
            price = np.where(np.isin(self.victims, step.bare), np.inf, step.noise[self.victims, 0] ** -2.0)
            enters = step.enters[self.victims]
            cost += np.where(enters > 0, enters**2 * price, 0.0)
        return cost / self.unit**2

    def cost(self, now: _Followed) -> Array:
        """mu^2: infinite where a heard node without noise has to absorb anything."""
        return np.where(self._exposed(now), np.inf, _dot(now.shares, now.shares) / self.unit**2)

    def _exposed(self, now: _Followed) -> NDArray[np.bool_]:
        """For which victims anything reaches a heard node without noise."""
        found = np.zeros(self.shape[2], dtype=bool)
        for step, share in zip(self.steps, now.shares, strict=True):
            found |= share[step.bare].any(axis=0)
        return found

    def _between(self, now: _Followed, other: _Followed) -> tuple[Array, Array]:
        """How far from one policy towards another the cost is least, for each victim, and that cost."""
        along = _dot(now.shares, other.shares)
        here, there = _dot(now.shares, now.shares), _dot(other.shares, other.shares)
        way = np.clip((here - along) / np.maximum(here - 2 * along + there, 1e-300), 0.0, 1.0)
        bare, other_bare = self._exposed(now), self._exposed(other)
        way = np.where(bare, 1.0, np.where(other_bare, 0.0, way))
        cost = ((1 - way) ** 2 * here + 2 * way * (1 - way) * along + way**2 * there) / self.unit**2
        return way, np.where(bare & other_bare, np.inf, cost)

    def _descend(self, carried: Array, best: Array) -> Array:
        """Accelerated projected gradients on what is carried, from a policy on; the best cost of each victim."""
        bound, momentum, last = _steepest(self.steps), 1.0, best
        before = ahead = carried
        for iteration in range(ITERATIONS):
            carried = np.maximum(ahead - self._slope(ahead) / bound, 0.0)
            for t, step in enumerate(self.steps):
                carried[t, step.heard] = 0.0
            following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            ahead = carried + (momentum - 1) / following * (carried - before)
            before, momentum = carried, following
            if iteration % CHECKED == CHECKED - 1:
                best = np.fmin(best, self.cost(self.follow(partial(_absorb_rest, carried), 1)))
                if not _falls(last, best):
                    break
                last = best
        return best


def _absorb_rest(carried: Array, t: int, p: Array) -> Array:
    """The policy that carries at most so much in each round."""
    return np.maximum(p - carried[t], 0.0)


def _rounded_up(cost: Array) -> Array:
    """The next multiple of 2^-40 of its power of two: the last bits of a search depend on where arrays are in memory,
    and figures must be repeatable.
    """
    mantissa, exponent = np.frexp(cost)
    return np.asarray(np.ldexp(np.ceil(mantissa * 2.0**40) / 2.0**40, exponent))


def _falls(before: Array, best: Array) -> bool:
    """Whether a cost fell by enough to go on."""
    return bool(np.any(before - best > PROGRESS * before))


def _dot(one: Array, other: Array) -> Array:
    """For each victim the sum of products."""
    return np.asarray(np.einsum("tnv,tnv->tv", one, other).sum(axis=0))


def _move_(now: _Followed, other: _Followed, way: Array) -> None:
    """Take the policy so far towards another, which is overwritten too.

    As a sum of positive terms: in a difference the smaller of two policies would be lost in rounding.
    """
    for mine, theirs in zip(now, other, strict=True):
        theirs *= way
        mine *= 1 - way
        mine += theirs


def _steepest(steps: Sequence[_Step]) -> float:
    """A bound on the largest eigenvalue of the cost's second derivative."""
    different = {id(step): step for step in steps}.values()
    least = min(float(step.noise.min()) for step in different)
    travels = max(_norm(step.transfer) for step in different)
    summed = max((_norm(step.summed) for step in different if step.summed is not None), default=0.0)
    return (1 + travels + summed) ** 2 / least**2


def _norm(matrix: sparse.csr_array | Array) -> float:
    """A bound on the largest singular value: sqrt(||.||_1 ||.||_inf)."""
    rows = np.asarray(abs(matrix).sum(axis=1)).ravel().max(initial=0.0)
    columns = np.asarray(abs(matrix).sum(axis=0)).ravel().max(initial=0.0)
    return float(np.sqrt(rows * columns))


# --- any clipped training ------------------------------------------------------------------------------------------

LATE = 24
"""How many last rounds are tried without absorbing; all of them are tried too, for those whom nobody ever hears."""

AT_ONCE = 4e6
"""Differences, of nodes and victims, up to which clipped growth is tried: it takes hundreds of passes over them."""

UNBOUNDED = 1e100
"""Clipped growth in units of a record's sensitivity, which is smaller than Clip by the unknown size of a batch.

A difference then costs what its victim could have absorbed at once, where it is heard in its own round; without bound,
where it is heard later, from nodes that step; and nothing, where it is never heard, as in the figure of the gradients
that reach the view.
"""


def may_gain(rounds: tuple[Coupling, ...], victims: int, growth: float) -> bool:
    """Whether `late_cost` can be below the figure of the gradients that reach the view, and is affordable.

    It helps where a heard node has more noise than the victim, or takes no step. With noise alike everywhere, rounds
    alike and every node stepping, each difference that arrives has drifted by more than what its victim could have
    absorbed; where growth is unbounded, it is enough that all who are heard step.
    """
    first, different = rounds[0], set(rounds)
    if len(first.fresh) * victims > AT_ONCE:
        return False
    if growth >= UNBOUNDED:
        return not all(bool((one.takes | ~one.must_absorb).all() and one.fresh.all()) for one in different)
    alike = len(different) == 1 and bool(np.all(first.fresh == first.fresh[0]))
    if not alike or growth < 1:
        return True
    idle = first.honest & ~first.takes
    return bool(idle.any() and np.diff(first.transfer.indptr)[idle].any())


def late_cost(rounds: tuple[Coupling, ...], victims: NDArray[np.intp], scheme: Participation, growth: float) -> Array:
    """mu^2 for any clipped training: a victim absorbs at once, except in last rounds whose traces come too late.

    Models that are apart may then drift by `growth` a round each (p[k] += growth wherever p[k] > 0): the largest
    difference of two clipped gradients, 2 Clip, in units of the largest sensitivity. Whatever reaches a heard node is
    absorbed there. Sound for neural networks too, and not convex in what is absorbed.
    """
    T, worst = len(rounds), np.zeros(len(victims))
    for pattern in scheme.patterns(T):
        part = _taking_part(pattern, T)
        saved = _absorbed_at_once(rounds, victims, part)
        tried = [
            saved[T - late] + _late(rounds[T - late :], victims, part[T - late :], growth)
            for late in (*range(min(LATE, T)), T)
        ]
        worst = np.maximum(worst, np.min(tried, axis=0))
    return worst


def _absorbed_at_once(rounds: tuple[Coupling, ...], victims: NDArray[np.intp], part: NDArray[np.bool_]) -> Array:
    """What it costs victims to absorb at once, in no round, in the first, in the first two, and so on; T + 1 x V."""

    def share(coupling: Coupling) -> Array:
        jump = coupling.jump[victims]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(jump > 0, jump / coupling.fresh[victims], 0.0) ** 2

    each_TV = np.where(part[:, None], np.array(map_equal_steps(share, rounds)), 0.0)
    return np.concatenate([np.zeros((1, len(victims))), np.cumsum(each_TV, axis=0)])


def _late(rounds: Sequence[Coupling], victims: NDArray[np.intp], part: NDArray[np.bool_], growth: float) -> Array:
    """What rounds cost in which nobody absorbs but those who are heard, if nothing has travelled before."""
    cost, p = np.zeros(len(victims)), np.zeros((len(rounds[0].fresh) if rounds else 0, len(victims)))
    for coupling, takes_part in zip(rounds, part.tolist(), strict=True):
        drift = growth * coupling.scale * ((p > 0) & coupling.takes[:, None])
        if takes_part:
            own = victims, np.arange(len(victims))
            drift[own] = np.maximum(drift[own], coupling.jump[victims])
        p = p + drift
        absorbed = np.where(coupling.must_absorb[:, None], p, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(absorbed > 0, absorbed / coupling.fresh[:, None], 0.0)
        cost = cost + (share**2).sum(axis=0)
        p = coupling.transfer @ (p - absorbed)
    return cost
