"""Some victims under a policy of the absorption bound: what comes of it, forth in time, and its answer, back in time.

Shapes: V victims, T rounds, N nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.arrays import dense_if_small
from sottovoce.privacy.absorption import Coupling
from sottovoce.support.progress import report_work

Array = NDArray[np.float64]

BARE = 1e-6
"""Noise of a heard node that adds none, in units of others': it makes those before it absorb all that they can."""


TOGETHER = 200_000
"""Differences over all rounds that are computed with together: of more, arrays of single rounds stay in the cache."""


class Step(NamedTuple):
    """A coupling made ready for products: `noise` is None where all nodes of all rounds have noise of size one."""

    transfer: sparse.csr_array | Array
    back: sparse.csr_array | Array
    heard: NDArray[np.intp]
    takes: NDArray[np.bool_]
    noise: Array | None
    without: NDArray[np.bool_] | None
    bare: NDArray[np.intp]
    summed: sparse.csr_array | None
    unit: float

    def price(self, absorbed: Array) -> Array:
        """What the next bit costs, half: absorbed over the square of noise."""
        return absorbed if self.noise is None else absorbed / self.noise**2


def ready_steps(rounds: tuple[Coupling, ...]) -> list[Step]:
    """The rounds, in units of the largest noise."""
    different = list(dict.fromkeys(rounds))
    largest = max(float(coupling.fresh.max(initial=0.0)) for coupling in different)
    unit = largest if largest > 0 else 1.0
    even = all(bool(np.all(coupling.fresh == largest)) for coupling in different) and largest > 0
    ready = {coupling: _step(coupling, unit, even) for coupling in different}
    return [ready[coupling] for coupling in rounds]


def _step(coupling: Coupling, unit: float, even: bool) -> Step:
    none, must = coupling.fresh == 0, coupling.must_absorb
    noise = np.where(none, np.where(must, BARE, 1.0), coupling.fresh / unit)[:, None]
    without = none & ~must  # without fresh noise all of it travels on
    # not where sums are seen: differences may grow without bounds there, and 0 times infinity is no number
    form = dense_if_small if coupling.summed is None else _narrow
    return Step(
        form(_narrow(coupling.transfer)),
        form(_narrow(coupling.transfer_back)),
        np.flatnonzero(must),
        coupling.takes,
        None if even else noise,
        without if without.any() else None,
        np.flatnonzero(none & must),
        coupling.summed,
        unit,
    )


def _narrow(matrix: sparse.csr_array) -> sparse.csr_array:
    """The same with short indices, which leaves more of the cache to what is multiplied."""
    if max(matrix.nnz, *matrix.shape) > np.iinfo(np.int32).max:
        return matrix
    parts = (matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32))
    return sparse.csr_array(parts, shape=matrix.shape)


class Followed(NamedTuple):
    """What a policy does: what is carried on, and what is absorbed over the size of noise; T x N x V."""

    carried: Array
    shares: Array


class Room(NamedTuple):
    """Memory for two policies and what a sweep wants, which is never given back: new memory costs most."""

    parts: tuple[Array, ...]

    @classmethod
    def of(cls, size: int) -> Room:
        """Each of so many numbers; 0: taken anew."""
        return cls(tuple(np.empty(size) for _ in range(5)))

    def shaped(self, number: int, shape: tuple[int, ...]) -> Array:
        """One of its parts, as long as the shape needs."""
        size = math.prod(shape)
        return self.parts[number][:size].reshape(shape) if size <= len(self.parts[number]) else np.empty(shape)


class Block(NamedTuple):
    """Some victims who take part in some rounds, each in its own column unless they are told to share one."""

    steps: Sequence[Step]
    part: NDArray[np.bool_]
    victims: NDArray[np.intp]
    room: Room
    columns: NDArray[np.intp] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """T x N x V."""
        wide = len(self.victims) if self.columns is None else int(self.columns.max()) + 1
        return len(self.steps), self.steps[0].transfer.shape[0], wide

    def follow(self, absorb: Callable[[int, Array, Array], object], place: int) -> Followed:
        """What comes of a policy: `absorb(t, p, out)` writes what it absorbs of p in round t; 0 in the last round.

        Nodes that are heard absorb all, whatever it says. There is place for two of them.
        """
        now = Followed(self.room.shaped(2 * place, self.shape), self.room.shaped(2 * place + 1, self.shape))
        p = np.zeros(self.shape[1:])
        for t, step in enumerate(self.steps):
            self._enter_(p, t)
            q, absorbed = now.carried[t], now.shares[t]
            absorb(t, p, absorbed) if t < len(self.steps) - 1 else absorbed.fill(0.0)
            if step.without is not None:
                absorbed[step.without] = 0.0
            absorbed[step.heard] = p[step.heard]
            np.subtract(p, absorbed, out=q)
            if step.summed is not None:
                absorbed += step.summed @ q
            if step.noise is not None:
                absorbed /= step.noise
            p = step.transfer @ q
            report_work(1)
        return now

    def _enter_(self, p: Array, t: int) -> None:
        """Add what the victims' own changes make of the difference."""
        if not self.part[t]:
            return
        if self.columns is None:
            p[self.victims, np.arange(len(self.victims))] += self.steps[t].takes[self.victims]
        else:
            np.add.at(p, (self.victims, self.columns), self.steps[t].takes[self.victims])

    def answer(self, now: Followed) -> Array:
        """What to absorb in every round if the differences stay as they are: a sweep back in time."""
        out = self.room.shaped(4, self.shape)
        later, there = np.zeros(self.shape[1:]), np.empty(self.shape[1:])
        for t in range(len(self.steps) - 1, -1, -1):
            step, carried, wanted = self.steps[t], now.carried[t], out[t]
            further = step.back @ later
            absorbed = now.shares[t] if step.noise is None else now.shares[t] * step.noise
            np.add(absorbed, carried, out=there)
            if step.summed is not None:
                further += step.summed.T @ step.price(absorbed)
            most = further if step.noise is None else further * step.noise**2
            if step.summed is not None:
                there -= step.summed @ carried
                most = np.maximum(most - step.summed @ carried, 0.0)
            np.minimum(most, there, out=wanted)
            wanted[step.heard] = there[step.heard]
            price = step.price(wanted if step.summed is None else wanted + step.summed @ (there - wanted))
            later = price if step.without is None else np.where(step.without[:, None], further, price)
            report_work(1)
        return out

    @property
    def together(self) -> bool:
        """Whether a search takes all rounds in one array: where they are alike, and few nodes carry anything."""
        first = self.steps[0]
        alike = all(step is first for step in self.steps) and first.without is None and first.summed is None
        return alike and isinstance(first.transfer, np.ndarray) and math.prod(self.shape) <= TOGETHER

    def slope(self, carried: Sequence[Array]) -> list[Array]:
        """Gradient of half the cost with respect to what is carried, in as many arrays as that."""
        return [self._slope_together(carried[0])] if carried[0].ndim == 3 else self._slope_of_rounds(carried)

    def _slope_together(self, carried_TNV: Array) -> Array:
        """What is carried decides all differences, so that no round has to wait for another."""
        step, p_TNV = self.steps[0], np.zeros_like(carried_TNV)
        np.matmul(step.transfer, carried_TNV[:-1], out=p_TNV[1:])
        taking = np.flatnonzero(self.part)[:, None]
        p_TNV[taking, self.victims, np.arange(len(self.victims))] += step.takes[self.victims]
        price_TNV = step.price(p_TNV - carried_TNV)
        slope_TNV = -price_TNV
        slope_TNV[:-1] += np.matmul(step.back, price_TNV[1:])
        return slope_TNV

    def _slope_of_rounds(self, carried: Sequence[Array]) -> list[Array]:
        """Round by round; where nothing can absorb, what is carried follows."""
        prices, p = [], np.zeros_like(carried[0])
        for t, step in enumerate(self.steps):
            self._enter_(p, t)
            q = carried[t] if step.without is None else np.where(step.without[:, None], p, carried[t])
            absorbed = p - q if step.summed is None else p - q + step.summed @ q
            prices.append(step.price(absorbed))
            p = step.transfer @ q
        out: list[Array] = []
        later = np.zeros_like(carried[0])
        for step, price in zip(reversed(self.steps), reversed(prices), strict=True):
            further = step.back @ later
            if step.summed is not None:
                further += step.summed.T @ price
            out.append(further - price)
            later = price if step.without is None else np.where(step.without[:, None], further, price)
        return out[::-1]

    def at_once(self) -> Array:
        """The cost where every difference is absorbed as soon as there is noise to do so."""
        if any(step.without is not None for step in self.steps):
            return cost_of(self.steps, self.follow(lambda _, p, out: np.copyto(out, p), 0))
        cost = np.zeros(len(self.victims))
        for step in (self.steps[t] for t in np.flatnonzero(self.part).tolist()):
            noise = 1.0 if step.noise is None else step.noise[self.victims, 0]
            price = np.where(np.isin(self.victims, step.bare), np.inf, noise**-2.0)
            cost += np.where(step.takes[self.victims], price, 0.0)
        return cost / self.steps[0].unit ** 2


def dot(one: Array, other: Array) -> Array:
    """For each victim the sum of products."""
    return np.asarray(np.einsum("tnv,tnv->tv", one, other).sum(axis=0))


def cost_of(steps: Sequence[Step], followed: Followed) -> Array:
    """mu^2: infinite where a heard node without noise has to absorb anything."""
    return np.where(exposed(steps, followed), np.inf, dot(followed.shares, followed.shares) / steps[0].unit ** 2)


def exposed(steps: Sequence[Step], followed: Followed) -> NDArray[np.bool_]:
    """For which victims anything reaches a heard node without noise."""
    found = np.zeros(followed.shares[0].shape[1], dtype=bool)
    if not any(step.bare.size for step in steps):
        return found
    for step, share in zip(steps, followed.shares, strict=True):
        if step.bare.size:
            found |= share[step.bare].any(axis=0)
    return found
