"""The exact loss from the covariance of all observations, by lags: best while they are few.

With fixed W what is said in a round is a sum of lagged responses to earlier inputs; one sparse product per lag gives
them all, products of repeated rounds are shifts of each other, and one Cholesky factor serves all victims.

Shapes: V victims, T rounds, R observations, P observations of one round, S noise sources, X state.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from sottovoce.privacy import whiten
from sottovoce.privacy.views import Seen
from sottovoce.privacy.whiten import Array, Singular, cholesky, inverse_of, rounding_error

SETTLED = 1e-11
"""Relative change below which the factor counts as one that only shifts."""


class Effects:
    """`gradient(t, s)` and `noise(t, s)`: the effect of round s's inputs on round t's observations, P x V and P x S.

    Built from the observations' side: `H F^j` needs one sparse product per lag once rounds repeat.
    """

    def __init__(self, seen: Seen) -> None:
        self.steps = seen.steps
        self.tail = len(self.steps) - 1
        while self.tail > 0 and self.steps[self.tail - 1] is self.steps[-1]:
            self.tail -= 1
        self._rows: dict[tuple[int, int], Array] = {}
        self._blocks: dict[tuple[str, int, int], Array] = {}
        sizes = [step.seen.state.shape[0] for step in self.steps]
        self.starts = np.concatenate([[0], np.cumsum(sizes)])

    def _key(self, t: int, s: int) -> tuple[int, int]:
        return (self.tail + t - s, self.tail) if s >= self.tail else (t, s)

    def _of_state(self, t: int, s: int) -> Array:
        """The effect of the state after round s on round t, P x X."""
        t, s = self._key(t, s) if s + 1 >= self.tail and t >= self.tail else (t, s)
        if (t, s) not in self._rows:
            if t == s + 1:
                self._rows[t, s] = self.steps[t].seen.state.toarray()
            else:
                self._rows[t, s] = _times(self._of_state(t, s + 1), self.steps[s + 1].out.state)
        return self._rows[t, s]

    def _block(self, part: str, t: int, s: int) -> Array:
        t, s = self._key(t, s)
        if (part, t, s) not in self._blocks:
            step = self.steps[s]
            if t == s:
                block = getattr(step.seen, part).toarray()
            else:
                block = _times(self._of_state(t, s), getattr(step.out, part))
            self._blocks[part, t, s] = block
        return self._blocks[part, t, s]

    def gradient(self, t: int, s: int) -> Array:
        """Effect of gradients."""
        return self._block("gradient", t, s)

    def noise(self, t: int, s: int) -> Array:
        """Effect of noise."""
        return self._block("noise", t, s)

    def column(self, effect: Callable[[int, int], Array], s: int, group: slice = slice(None)) -> Array:
        """The effect of round s (of some of its inputs) on all observations from round s on."""
        return np.concatenate([effect(t, s)[:, group] for t in range(s, len(self.steps))])

    def signals(self) -> NDArray[np.bool_]:
        """Which observations any gradient reaches."""
        reached = np.zeros(self.starts[-1], dtype=bool)
        for s, step in enumerate(self.steps):
            if step.takes_gradients:
                reached[self.starts[s] :] |= self.column(self.gradient, s).any(axis=1)
        return reached


def _times(dense: Array, matrix: sparse.csr_array) -> Array:
    return np.asarray((matrix.T @ dense.T).T)


def gram(seen: Seen) -> Array:
    """M from the covariance of all observations."""
    effects = Effects(seen)
    correlation = seen.system.correlation
    if correlation is None:
        G_RR = _covariance(effects)
    else:
        G_RR = _correlated_covariance(effects, correlation.inverse(len(seen.steps)))
    alive = np.diag(G_RR) > 0
    if not alive.all():  # what is said without noise tells nothing as long as it holds no data either
        if np.any(effects.signals() & ~alive):
            raise Singular("a signal without noise")
        G_RR = G_RR[np.ix_(alive, alive)]
    factor = cholesky(G_RR)
    return _whitened_products(factor, effects, alive, len(seen.victims)) * (1 + rounding_error(factor))


def _covariance(effects: Effects) -> Array:
    """`B B^T`: rounds that repeat add the same products, shifted by one round."""
    starts, tail, T = effects.starts, effects.tail, len(effects.steps)
    G_RR = np.zeros((starts[-1], starts[-1]))
    lags = effects.column(effects.noise, tail)
    if lags.shape[1]:
        at, width = starts[tail], starts[tail + 1] - starts[tail]
        G_RR[at:, at:] = lags @ lags.T
        for t in range(tail + 1, T):
            here, before = slice(starts[t], starts[t + 1]), slice(starts[t - 1], starts[t])
            G_RR[here, at + width :] += G_RR[before, at:-width]
    for s in range(tail):
        column = effects.column(effects.noise, s)
        G_RR[starts[s] :, starts[s] :] += column @ column.T
    return G_RR


def _correlated_covariance(effects: Effects, inverse_TT: Array) -> Array:
    """`B B^T` for noise correlated over rounds, one group of sources at a time."""
    R, T = effects.starts[-1], len(effects.steps)
    S = effects.steps[0].seen.noise.shape[1]
    G_RR = np.zeros((R, R))
    size = max(1, int(whiten.AT_ONCE / (R * T)))
    for first in range(0, S, size):
        group = slice(first, min(S, first + size))
        plain = np.zeros((T, group.stop - first, R))
        for s in range(T):
            plain[s, :, effects.starts[s] :] = effects.column(effects.noise, s)[:, group].T
        mixed = np.tensordot(inverse_TT, plain, axes=(0, 0)).reshape(-1, R)
        G_RR += mixed.T @ mixed
    return G_RR


def _whitened_products(factor: Array, effects: Effects, alive: NDArray[np.bool_], V: int) -> Array:
    """`A_u^T G^-1 A_u` for all victims: forward substitution by blocks of rounds, products added as blocks are done.

    Once rounds repeat, the factor soon does too: from there on the whitened response to an impulse is the same,
    shifted, and is not computed again. What the factor still changes by is bounded and added: the figure can only grow.
    """
    starts = np.concatenate([[0], np.cumsum(alive)])[effects.starts]
    rounds = [s for s, step in enumerate(effects.steps) if step.takes_gradients]
    settled, drift = _settled(factor, starts, effects.tail if alive.all() else len(effects.steps))
    own = sum(s < settled for s in rounds)
    R, T = len(factor), len(rounds)
    M_VTT = np.zeros((V, T, T))
    size = min(V, max(1, int(whiten.AT_ONCE / (R * T))))
    blocks = _blocks(starts)
    inverses = [inverse_of(factor[starts[begin] : starts[end], starts[begin] : starts[end]]) for begin, end in blocks]
    room = np.zeros((R, T * size))  # what a block leaves out stays zero from one group of victims to the next
    for first in range(0, V, size):
        group = slice(first, min(V, first + size))
        c = group.stop - first
        signals = _Signals(effects, alive, starts, rounds, group)
        white = room if c == size else np.zeros((R, T * c))
        for (begin, end), inverse in zip(blocks, inverses, strict=True):
            r, begun = slice(starts[begin], starts[end]), sum(s < end for s in rounds)
            k = min(own, begun)
            rest = signals.block(range(begin, end), k)
            if r.start:
                rest -= factor[r, : r.start] @ white[: r.start, : k * c]
            np.matmul(inverse, rest, out=white[r, : k * c])
            for number in range(own, begun):
                shift = starts[rounds[number]] - starts[rounds[own - 1]]
                rows = slice(max(r.start, starts[rounds[number]]), r.stop)
                settled_response = white[rows.start - shift : rows.stop - shift, (own - 1) * c : own * c]
                white[rows, number * c : (number + 1) * c] = settled_response
            done_CTR = np.ascontiguousarray(white[r, : begun * c].reshape(-1, begun, c).transpose(2, 1, 0))
            M_VTT[group, :begun, :begun] += done_CTR @ done_CTR.transpose(0, 2, 1)
    if own < T:
        scale = np.einsum("vtt->v", M_VTT) * drift
        M_VTT += (scale / T)[:, None, None] * np.eye(T)
    return M_VTT


def _blocks(starts: NDArray[np.intp], rows: int = 128) -> list[tuple[int, int]]:
    """Consecutive rounds of about so many observations."""
    out, begin = [], 0
    for end in range(1, len(starts)):
        if starts[end] - starts[begin] >= rows or end == len(starts) - 1:
            out.append((begin, end))
            begin = end
    return [(begin, end) for begin, end in out if starts[end] > starts[begin]]


class _Signals:
    """What the gradients of some victims do to the observations, a block of rounds at a time."""

    def __init__(
        self,
        effects: Effects,
        alive: NDArray[np.bool_],
        starts: NDArray[np.intp],
        impulses: list[int],
        group: slice,
    ) -> None:
        self.effects, self.alive, self.starts, self.impulses, self.group = effects, alive, starts, impulses, group
        self._lags: Array | None = None
        if effects.tail == 0 and alive.all() and len(impulses) == len(effects.steps):
            stack = effects.column(effects.gradient, 0, group)
            self._lags = stack.reshape(len(effects.steps), -1, stack.shape[1])

    def block(self, rounds: range, count: int) -> Array:
        """Rows of these rounds, columns (impulse, victim) for the first `count` impulses."""
        width = self.group.stop - self.group.start
        base = self.starts[rounds.start]
        out = np.zeros((self.starts[rounds.stop] - base, count, width))
        for t in rounds:
            rows = slice(self.starts[t] - base, self.starts[t + 1] - base)
            if self._lags is not None:
                upto = min(t + 1, count)
                out[rows, :upto] = self._lags[t - np.arange(upto)].transpose(1, 0, 2)
                continue
            here = self.alive[self.effects.starts[t] : self.effects.starts[t + 1]]
            for number, s in enumerate(self.impulses[:count]):
                if s <= t:
                    out[rows, number] = self.effects.gradient(t, s)[here, self.group]
        return out.reshape(len(out), count * width)


def _settled(factor: Array, starts: NDArray[np.intp], tail: int) -> tuple[int, float]:
    """From which round on the factor only shifts, and how far, relatively, M can be off by treating it so.

    With `L w = a` and `L' w' = a`, `||w' - w|| <= ||L^-1|| ||L' - L|| ||w||`; over T rounds M moves by at most
    `(2 e + e^2)` of its trace times T, with e the sum of those changes.
    """
    T = len(starts) - 1
    sizes = np.diff(starts)
    if T - tail < 4 or np.any(sizes[tail:] != sizes[-1]):
        return T, 0.0
    p, at = int(sizes[-1]), int(starts[tail])
    change = np.abs(factor[at:-p, at:-p] - factor[at + p :, at + p :])
    by_round = change.reshape(T - tail - 1, p, T - tail - 1, p).max(axis=(1, 3))
    rest = np.maximum.accumulate(np.maximum.accumulate(by_round[::-1, ::-1], axis=0), axis=1)[::-1, ::-1].diagonal()
    inverse = _inverse_norm(factor)
    errors = rest * np.sqrt(p * (T - tail)) * inverse * T
    small = np.flatnonzero(errors < SETTLED)
    if not small.size or tail + small[0] + 2 >= T:
        return T, 0.0
    error = float(errors[small[0]])
    return int(tail + small[0] + 1), T * (2 * error + error**2)


def _inverse_norm(factor: Array) -> float:
    """`||L^-1||` from LAPACK's estimates of its 1- and infinity-norms, ten times over: they can be somewhat low."""
    reciprocals = [lapack.dtrcon(factor, norm=norm, uplo="L")[0] for norm in ("1", "I")]
    sizes = [np.abs(factor).sum(axis=axis).max() for axis in (0, 1)]
    return 10 * float(np.sqrt(np.prod([1 / max(r * size, 1e-300) for r, size in zip(reciprocals, sizes, strict=True)])))
