"""Policies of the absorption bound: how much of the difference each node's noise absorbs, for every victim.

With `a` absorbed of `p`, `d` the size of fresh noise and `|W|` what travels, a policy of least cost has

    a_t = p_t  at nodes that are heard,      a_t = min(p_t, d^2 |W|^T (a_{t+1} / d^2))  elsewhere:

a node absorbs until the next bit costs as much as it would further on. A *sweep* goes back in time for this answer to
the differences of the policy at hand, forth for what comes of it, and takes the best point between the two: both are
policies, so every point between is one, and the cost there is a parabola.

- `swept` policies are made of two sweeps, from the one that absorbs only what is heard. Far from the adversary, where
  that is a poor start, many victims at the same distance start from a linear policy that they share, which absorbs the
  same shares of the difference for each of them: it is made for all of them together.
- `optimised` ones go on by accelerated projected gradients until the cost no longer falls.

Every policy gives a valid bound, so it is sound to stop anywhere. Victims are independent of each other, so they are
taken in blocks that fit in the processor's cache.

Shapes: V victims of a block, T rounds, N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.participation import Participation
from sottovoce.privacy.absorption import Coupling
from sottovoce.privacy.absorption_block import Array, Block, Followed, Room, Step, cost_of, dot, exposed, ready_steps
from sottovoce.support.progress import expect_work, report_progress, report_work
from sottovoce.support.threads import WORKERS, chunks

SWEEPS, MOST_SWEEPS = 2, 8
"""Sweeps of a `swept` policy; of one that still falls, and before an `optimised` one goes on by gradients."""

FALLING = 0.1
"""A `swept` policy still falls if its last sweep has lowered the cost by more than this share."""

SHARED_HOPS, SHARED_BY, SHARED_SWEEPS = 3, 100, 4
"""From so many hops before a heard node on, and for so many victims, policies start from a shared one of so many
sweeps; nearer to it a victim's own noise matters, which cannot be shared."""

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


class Policy(StrEnum):
    """How far a policy is searched for."""

    OPTIMISED = "optimised"
    SWEPT = "swept"


def least_cost(
    rounds: tuple[Coupling, ...], victims: NDArray[np.intp], scheme: Participation, policy: Policy = Policy.OPTIMISED
) -> Array:
    """mu^2 of each victim: the least cost found, the largest over participation patterns.

    Policies are for a change of size one; a victim's own is `jump`, and costs grow with its square.
    """
    T, N = len(rounds), len(rounds[0].fresh)
    alone = T * N * len(victims) <= ALONE
    size = max(1, min(IN_CACHE // N, len(victims) if alone else -(-len(victims) // BLOCKS)))
    groups = _groups(rounds, victims, policy)
    blocks = _blocks([(group, group.members) for group in groups], size)
    rooms: SimpleQueue[Room] = SimpleQueue()
    for _ in range(min(WORKERS, len(blocks))):
        rooms.put(Room.of(T * N * size))
    steps, out, falling = ready_steps(rounds), np.full(len(victims), np.inf), np.zeros(len(victims), dtype=bool)
    parts = [_taking_part(pattern, T) for pattern in scheme.patterns(T)]

    def solve(sweeps: int, block: _Members) -> NDArray[np.intp]:
        group, some = block
        room, cost = rooms.get(), np.zeros(len(some))
        if not alone:
            expect_work(T * _most_passes(policy, sweeps) * len(parts))
        for part in parts:
            start = group.start(steps, part, victims)
            found = _solve(Block(steps, part, victims[some], room), policy, sweeps, start)
            cost = np.maximum(cost, found.cost)
            falling[some] |= found.falls
        rooms.put(room)
        out[some] = np.minimum(out[some], cost)
        return some

    with ThreadPoolExecutor(WORKERS) as pool:
        spread = map if alone or len(blocks) == 1 else pool.map
        if policy is Policy.SWEPT:
            for some in spread(partial(solve, SWEEPS), blocks):
                report_progress(int(np.count_nonzero(~falling[some])))
            blocks = _blocks([(group, group.members[falling[group.members]]) for group in groups], size)
        for some in spread(partial(solve, MOST_SWEEPS), blocks):
            report_progress(len(some))
    jump = np.max([coupling.jump[victims] for coupling in dict.fromkeys(rounds)], axis=0)
    return np.asarray(out * jump**2)


def _most_passes(policy: Policy, sweeps: int) -> int:
    """How often a search goes through all rounds, forth or back, at most."""
    descent = 2 * ITERATIONS + ITERATIONS // CHECKED if policy is Policy.OPTIMISED else 0
    return 1 + 2 * sweeps + descent


@dataclass(eq=False)
class _Group:
    """Victims, by their place among all, who share a linear policy to start from, or none."""

    members: NDArray[np.intp]
    shared: bool
    _shares: dict[bytes, list[Array]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def start(self, steps: Sequence[Step], part: NDArray[np.bool_], victims: NDArray[np.intp]) -> list[Array] | None:
        """In each round the share of the difference that each node absorbs, N x 1; None: only what is heard."""
        if not self.shared:
            return None
        with self._lock:
            if part.tobytes() not in self._shares:
                together = np.zeros(len(self.members), dtype=np.intp)
                block = Block(steps, part, victims[self.members], Room.of(0), together)
                self._shares[part.tobytes()] = _shared(block)
            return self._shares[part.tobytes()]


_Members: TypeAlias = tuple[_Group, NDArray[np.intp]]
"""Some victims of a group, by their place among all."""


def _blocks(groups: Sequence[_Members], size: int) -> list[_Members]:
    """Victims who are carried together."""
    return [(group, some[first : first + size]) for group, some in groups for first in range(0, len(some), size)]


class _Found(NamedTuple):
    """Costs of some victims, and whose fell by much in the last sweep."""

    cost: Array
    falls: NDArray[np.bool_]


def _groups(rounds: tuple[Coupling, ...], victims: NDArray[np.intp], policy: Policy) -> list[_Group]:
    """Victims by hops to a heard node where there are many of them, far away; then all others."""
    alone = np.ones(len(victims), dtype=bool)
    found = []
    if policy is Policy.SWEPT and len(set(rounds)) == 1 and len(victims) >= SHARED_BY:
        hops = _hops(rounds[0])[victims]
        for count in range(SHARED_HOPS, int(hops.max()) + 1):
            there = hops == count
            if there.sum() >= SHARED_BY:
                found.append(_Group(np.flatnonzero(there), True))
                alone &= ~there
    return [*found, _Group(np.flatnonzero(alone), False)]


def _hops(coupling: Coupling) -> NDArray[np.intp]:
    """Transfers from each node to a heard one; 0 also where none leads there."""
    hops = np.zeros(len(coupling.fresh), dtype=np.intp)
    known, newest, count = coupling.must_absorb.copy(), coupling.must_absorb, 0
    while newest.any():
        hops[newest] = count
        newest = (coupling.transfer_back @ newest.astype(float) > 0) & ~known
        known |= newest
        count += 1
    return hops


def _taking_part(pattern: NDArray[np.intp], rounds: int) -> NDArray[np.bool_]:
    part = np.zeros(rounds, dtype=bool)
    part[pattern] = True
    return part


def _solve(block: Block, policy: Policy, sweeps: int, start: list[Array] | None) -> _Found:
    """The least cost found for some victims who take part in some rounds, rounded up."""
    at_once = block.at_once()
    with np.errstate(over="ignore", invalid="ignore"):
        found = _search(block, policy, sweeps, start, at_once)
        return found._replace(cost=np.minimum(_rounded_up(found.cost), at_once))


def _rounded_up(cost: Array) -> Array:
    """The next multiple of 2^-40 of its power of two: the last bits of a search depend on where arrays are in memory,
    and figures must be repeatable.
    """
    mantissa, exponent = np.frexp(cost)
    return np.asarray(np.ldexp(np.ceil(mantissa * 2.0**40) / 2.0**40, exponent))


def _search(block: Block, policy: Policy, sweeps: int, start: list[Array] | None, at_once: Array) -> _Found:
    """The least cost of the policies on the way, and never above that of absorbing at once.

    Differences grow without bounds where sums are seen for thousands of rounds; what is no number is passed over.
    """
    steps, best = block.steps, at_once
    now = block.follow(_only_heard if start is None else lambda t, p, out: np.multiply(p, start[t], out=out), 0)
    before = best = np.fmin(best, cost_of(steps, now))
    for sweep in range(sweeps):
        other = _swept(block, now)
        way, cost = _between(steps, now, other)
        before, best = best, np.fmin(best, cost)
        if policy is Policy.SWEPT and sweep == sweeps - 1:
            break
        _move_(now, other, way)
        if not _falls(before, best):
            break
    falls = before - best > FALLING * before
    return _Found(best, falls) if policy is Policy.SWEPT else _Found(_descend(block, now, best), falls)


def _only_heard(_: int, p: Array, out: Array) -> None:
    """The policy that absorbs nothing but what is heard."""
    out.fill(0.0)


def _swept(block: Block, now: Followed) -> Followed:
    """What comes of the answer to a policy."""
    wanted = block.answer(now)
    return block.follow(lambda t, p, out: np.minimum(wanted[t], p, out=out), 1)


def _shared(block: Block) -> list[Array]:
    """Which share of the difference each node absorbs in each round, made for all victims of a block together."""
    now = block.follow(_only_heard, 0)
    for _ in range(SHARED_SWEEPS):
        other = _swept(block, now)
        _move_(now, other, _between(block.steps, now, other)[0])
    shares = []
    for step, carried, share in zip(block.steps, *now, strict=True):
        absorbed = share if step.noise is None else share * step.noise
        whole = absorbed + carried
        shares.append(np.divide(absorbed, whole, out=np.zeros_like(whole), where=whole > 0))
    return shares


def _falls(before: Array, best: Array) -> bool:
    """Whether a cost fell by enough to go on."""
    with np.errstate(invalid="ignore"):
        return bool(np.any(before - best > PROGRESS * before))


def _between(steps: Sequence[Step], now: Followed, other: Followed) -> tuple[Array, Array]:
    """How far from one policy towards another the cost is least, for each victim, and that cost."""
    along = dot(now.shares, other.shares)
    here, there = dot(now.shares, now.shares), dot(other.shares, other.shares)
    way = np.clip((here - along) / np.maximum(here - 2 * along + there, 1e-300), 0.0, 1.0)
    bare, other_bare = exposed(steps, now), exposed(steps, other)
    way = np.where(bare, 1.0, np.where(other_bare, 0.0, way))
    cost = ((1 - way) ** 2 * here + 2 * way * (1 - way) * along + way**2 * there) / steps[0].unit ** 2
    return way, np.where(bare & other_bare, np.inf, cost)


def _move_(now: Followed, other: Followed, way: Array) -> None:
    """Take the policy so far towards another, which is overwritten too.

    As a sum of positive terms: in a difference the smaller of two policies would be lost in rounding.
    """
    rest, at_once = 1 - way, max(1, IN_CACHE // now.carried[0].size)
    for some in chunks(len(now.carried), at_once):
        for mine, theirs in ((now.carried[some], other.carried[some]), (now.shares[some], other.shares[some])):
            theirs *= way
            mine *= rest
            mine += theirs


def _descend(block: Block, now: Followed, best: Array) -> Array:
    """Accelerated projected gradients on what is carried, from a policy on; the best cost of each victim."""
    bound, momentum, last = _steepest(block.steps), 1.0, best
    together = block.together
    before = [now.carried] if together else list(now.carried)
    ahead = [carried.copy() for carried in before]
    for iteration in range(ITERATIONS):
        carried = block.slope(ahead)
        for q, g in zip(ahead, carried, strict=True):
            g /= bound
            np.maximum(np.subtract(q, g, out=g), 0.0, out=g)
        rounds = list(carried[0]) if together else carried
        if together:
            carried[0][:, block.steps[0].heard] = 0.0
        else:
            for step, q in zip(block.steps, rounds, strict=True):
                q[step.heard] = 0.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = [q + (momentum - 1) / following * (q - b) for q, b in zip(carried, before, strict=True)]
        before, momentum = carried, following
        report_work(2 * len(block.steps))
        if iteration % CHECKED == CHECKED - 1:
            reached = block.follow(partial(_absorb_rest, rounds), 1)
            best = np.fmin(best, cost_of(block.steps, reached))
            if not _falls(last, best):
                break
            last = best
    return best


def _absorb_rest(carried: list[Array], t: int, p: Array, out: Array) -> None:
    """The policy that carries at most so much in each round."""
    np.maximum(p - carried[t], 0.0, out=out)


def _steepest(steps: Sequence[Step]) -> float:
    """A bound on the largest eigenvalue of the cost's second derivative."""
    different = {id(step): step for step in steps}.values()
    least = min(1.0 if step.noise is None else float(step.noise.min()) for step in different)
    travels = max(_norm(step.transfer) for step in different)
    summed = max((_norm(step.summed) for step in different if step.summed is not None), default=0.0)
    return (1 + travels + summed) ** 2 / least**2


def _norm(matrix: sparse.csr_array | Array) -> float:
    """A bound on the largest singular value: sqrt(||.||_1 ||.||_inf)."""
    rows = np.asarray(abs(matrix).sum(axis=1)).ravel().max(initial=0.0)
    columns = np.asarray(abs(matrix).sum(axis=0)).ravel().max(initial=0.0)
    return float(np.sqrt(rows * columns))
