"""The exact loss of a view: `M = A_u^T (B B^T)^+ A_u` for every victim u, without forming A and B where they are large.

Routes to the same numbers:

- `gram`: covariance of all observations by lags, one Cholesky factor, one triangular solve for all victims;
- `kalman`: a whitening filter over rounds, for many observations a round and for topologies that change;
- `orthogonal`: an orthonormal basis of the noise that reaches the view, where noise is poorer than what is said
  (averaging, several gossip steps per gradient, masks); the only one that decides about rank;
- `dense`: the pseudo-inverse, the oracle of the tests.

Shapes: V victims, T gradient rounds, R observations, P observations of one round, S noise sources, X state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from sottovoce.errors import SottovoceError, Unaccountable
from sottovoce.privacy.closedness import open_by_steps
from sottovoce.privacy.released import loss_given_noisy_gradients
from sottovoce.privacy.sensitivity import Participation, worst_case
from sottovoce.privacy.views import Seen, SeenStep

Array = NDArray[np.float64]

CONDITION = 1e-6
"""A covariance with a pivot below this share of its diagonal is left to the orthogonal route."""

ORTHOGONAL = 1e8
"""Largest number of entries of B for which averaging, whose noise is always poor, takes the orthogonal route."""

GRAM_ROWS = 12_000
"""Up to this many observations the Gram route is taken."""

RANK = 1e-13
"""Directions of noise below this share of the largest are rounding."""

UNCOVERED = 1e-7
"""Share of a signal that may lie outside the noise, as rounding, before the loss is infinite."""

AT_ONCE = 1.2e7
"""About how many numbers a block of victims may take."""


STILL = 1e-11
"""Relative change of the filter's covariance below which rounds count as repeating."""

SETTLED = 1e-11
"""Relative change below which the factor counts as one that only shifts."""


class Singular(SottovoceError):
    """The covariance of the observations is too close to singular for this route."""


def squared(seen: Seen, scheme: Participation) -> Array:
    """mu^2 of every victim: the worst direction and pattern; infinite where a signal is not covered by noise."""
    if tells_all_noisy_gradients(seen):
        return loss_given_noisy_gradients(seen.system, seen.view, seen.victims, scheme)
    M_VTT = losses(seen)
    covered = np.isfinite(M_VTT).all(axis=(1, 2))
    out = np.full(len(M_VTT), np.inf)
    if covered.any():
        out[covered] = worst_case(M_VTT[covered], scheme, M_VTT.shape[1])
    return out


def tells_all_noisy_gradients(seen: Seen) -> bool:
    """Whether the view is exactly that of all noisy gradients, which has a closed form.

    It is when all hear everything, the state after each round follows from what was just said, noise travels with its
    gradient, and every gradient stands alone in some message.
    """
    if seen.view.kind != "everyone" or seen.view.secure_sum or seen.system.algorithm.once:
        return False
    for step in dict.fromkeys(seen.steps):
        gradient = step.seen.gradient
        alone = gradient[np.flatnonzero(np.diff(gradient.indptr) == 1)]
        if step.takes_gradients and len(np.unique(alone.indices)) < gradient.shape[1]:
            return False
    if open_by_steps(seen) is not None:
        return False
    try:
        loss_given_noisy_gradients(seen.system, seen.view, seen.victims[:1], Participation(1))
    except Unaccountable:
        return False
    return True


def losses(seen: Seen) -> Array:
    """M of every victim, V x T x T; infinite throughout where a signal is not covered by noise."""
    rows = sum(step.seen.state.shape[0] for step in seen.steps)
    if not rows or not seen.gradient_rounds:
        return np.zeros((len(seen.victims), seen.gradient_rounds, seen.gradient_rounds))
    sources = sum(step.seen.noise.shape[1] for step in seen.steps)
    if seen.system.algorithm.once and rows * sources <= ORTHOGONAL:
        return orthogonal(seen)
    try:
        return kalman(seen) if _filter_is_cheaper(seen, rows) else gram(seen)
    except Singular:
        return orthogonal(seen)


def _filter_is_cheaper(seen: Seen, rows: int) -> bool:
    """By the number of multiplications for all victims; the filter does not take correlated noise."""
    if seen.system.correlation is not None:
        return False
    T, X = len(seen.steps), max(max(step.out.state.shape) for step in seen.steps)
    each = rows / T
    by_gram = 2 / 3 * T * each**2 + (rows**2 / max(1, len(seen.victims)))
    by_filter = X**2 + X * each + T * each
    return rows > GRAM_ROWS or by_filter < by_gram


# --- what inputs of one round do to the observations of another ----------------------------------------------------


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


# --- Gram by lags --------------------------------------------------------------------------------------------------


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
    factor = _cholesky(G_RR)
    return _whitened_products(factor, effects, alive, len(seen.victims)) * (1 + _rounding(factor))


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
    size = max(1, int(AT_ONCE / (R * T)))
    for first in range(0, S, size):
        group = slice(first, min(S, first + size))
        plain = np.zeros((T, group.stop - first, R))
        for s in range(T):
            plain[s, :, effects.starts[s] :] = effects.column(effects.noise, s)[:, group].T
        mixed = np.tensordot(inverse_TT, plain, axes=(0, 0)).reshape(-1, R)
        G_RR += mixed.T @ mixed
    return G_RR


def _cholesky(G_RR: Array) -> Array:
    try:
        factor = linalg.cholesky(G_RR, lower=True, check_finite=False)
    except linalg.LinAlgError:
        raise Singular("no Cholesky factor") from None
    if np.any(np.diag(factor) ** 2 < CONDITION * np.diag(G_RR)):
        raise Singular("nearly singular")
    return factor


def _rounding(factor: Array) -> float:
    """A bound on the relative error that rounding leaves in quantities whitened by this factor."""
    sizes = np.diag(factor) ** 2
    return 4 * len(factor) * np.finfo(float).eps * float(np.max(np.einsum("ij,ij->i", factor, factor) / sizes))


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
    size = min(V, max(1, int(AT_ONCE / (R * T))))
    blocks = _blocks(starts)
    inverses = [_inverse(factor[starts[begin] : starts[end], starts[begin] : starts[end]]) for begin, end in blocks]
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


def _inverse(triangle: Array) -> Array:
    return np.asarray(linalg.solve_triangular(triangle, np.eye(len(triangle)), lower=True, check_finite=False))


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
    """From which round on the factor only shifts, and a bound on the relative change of M by treating it so.

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
    inverse = 1.0 / np.abs(np.diag(factor)).min()
    errors = rest * np.sqrt(p * (T - tail)) * inverse * T
    small = np.flatnonzero(errors < SETTLED)
    if not small.size or tail + small[0] + 2 >= T:
        return T, 0.0
    error = float(errors[small[0]])
    return int(tail + small[0] + 1), T * (2 * error + error**2)


# --- whitening filter ----------------------------------------------------------------------------------------------


class Filter(NamedTuple):
    """One round of the whitening filter, the same for all victims: what a shift of the state and a new signal become.

    `told @ shift` and `told_new` are whitened innovations; `kept @ shift` and `kept_new` what the state's shift is
    after the round, given what was seen.
    """

    told: Array
    told_new: Array
    kept: Array
    kept_new: Array


def kalman(seen: Seen) -> Array:
    """M from the innovations: what each round tells that was not known before."""
    filters, rounding = _filters(seen)
    own = _settled_filters(filters, seen)
    V, T = len(seen.victims), seen.gradient_rounds
    M_VTT = np.zeros((V, T, T))
    widest = max(max(f.kept.shape[0], f.kept.shape[1]) for f in filters)
    size = min(V, max(1, int(AT_ONCE / (max(widest, 256) * T))))
    for first in range(0, V, size):
        _filter_group(filters, seen, own, M_VTT, slice(first, min(V, first + size)))
    return M_VTT * (1 + rounding)


def _filters(seen: Seen) -> tuple[list[Filter], float]:
    """The filter of every round, and a bound on the relative rounding error; settled rounds share one object."""
    P_XX = np.zeros((seen.steps[0].seen.state.shape[1],) * 2)
    filters: list[Filter] = []
    rounding, begun = 0.0, False
    parts = {id(step): _dense_parts(step) for step in dict.fromkeys(seen.steps)}
    for t, step in enumerate(seen.steps):
        H, F, seen_noise, cross, out_noise = parts[id(step)]
        S_PP = H @ P_XX @ H.T + seen_noise
        alive = np.diag(S_PP) > 0
        if not alive.all() and (begun or step.seen.gradient[np.flatnonzero(~alive)].nnz):
            raise Singular("a signal without noise")
        factor = _cholesky(S_PP[np.ix_(alive, alive)])
        inverse = _inverse(factor) if len(factor) else factor
        gain_PX = inverse @ (H @ P_XX @ F.T + cross)[alive]
        told, told_new = inverse @ H[alive], inverse @ step.seen.gradient.toarray()[alive]
        rounding = max(rounding, _rounding(factor) if len(factor) else 0.0)
        filters.append(Filter(told, told_new, F - gain_PX.T @ told, step.out.gradient.toarray() - gain_PX.T @ told_new))
        following = F @ P_XX @ F.T + out_noise - gain_PX.T @ gain_PX
        if begun and t + 1 < len(seen.steps) and _repeats(P_XX, following, seen.steps[t:]):
            return filters + [filters[-1]] * (len(seen.steps) - t - 1), len(seen.steps) * rounding + 30 * STILL
        P_XX = (following + following.T) / 2
        begun = begun or step.takes_gradients
    return filters, len(seen.steps) * rounding


def _dense_parts(step: SeenStep) -> tuple[Array, Array, Array, Array, Array]:
    """Observation and transition, and the covariances of new noise: in what is seen, across, and in the state."""
    Ez, Kz = step.seen.noise, step.out.noise
    covariances = (Ez @ Ez.T, Ez @ Kz.T, Kz @ Kz.T)
    H, F, *rest = (matrix.toarray() for matrix in (step.seen.state, step.out.state, *covariances))
    return H, F, rest[0], rest[1], rest[2]


def _repeats(before: Array, after: Array, rest: tuple[SeenStep, ...]) -> bool:
    same = before.shape == after.shape and all(step is rest[0] for step in rest)
    return same and float(np.abs(after - before).max(initial=0.0)) <= STILL * float(np.abs(after).max(initial=0.0))


def _settled_filters(filters: list[Filter], seen: Seen) -> int:
    """How many impulses have a response of their own: from the first settled round on they repeat."""
    last = len(filters) - 1
    while last > 0 and filters[last - 1] is filters[-1]:
        last -= 1
    return sum(step.takes_gradients for step in seen.steps[: last + 1])


def _filter_group(filters: list[Filter], seen: Seen, own: int, M_VTT: Array, group: slice) -> None:
    """Carry the shifts of some victims through all rounds and add their products to M."""
    c, T = group.stop - group.start, M_VTT.shape[1]
    shift = np.zeros((filters[0].kept.shape[1], own * c))
    history: list[Array] = []
    pending: list[Array] = []
    number = 0
    for step, (told, told_new, kept, kept_new) in zip(seen.steps, filters, strict=True):
        k = min(number, own)
        white = np.zeros((len(told), T * c))
        np.matmul(told, shift[:, : k * c], out=white[:, : k * c])
        moved = np.zeros((len(kept), own * c))
        np.matmul(kept, shift[:, : k * c], out=moved[:, : k * c])
        if step.takes_gradients:
            if number < own:
                white[:, number * c : (number + 1) * c] = told_new[:, group]
                moved[:, number * c : (number + 1) * c] = kept_new[:, group]
            number += 1
        shift = moved
        if number >= own:
            history.append(white[:, (own - 1) * c : own * c].copy())
            for late in range(own, number):
                white[:, late * c : (late + 1) * c] = history[len(history) - 1 - (late - own + 1)]
        pending.append(white[:, : number * c].reshape(-1, number, c) if number else white[:0].reshape(0, 0, c))
        if sum(len(block) for block in pending) >= 128:
            _add_pending_(M_VTT, group, pending)
    _add_pending_(M_VTT, group, pending)


def _add_pending_(M_VTT: Array, group: slice, pending: list[Array]) -> None:
    """Add the products of whitened blocks, padded to the most impulses among them."""
    most = max((block.shape[1] for block in pending), default=0)
    if most:
        rows = np.zeros((group.stop - group.start, most, sum(len(block) for block in pending)))
        at = 0
        for block in pending:
            rows[:, : block.shape[1], at : at + len(block)] = block.transpose(2, 1, 0)
            at += len(block)
        M_VTT[group, :most, :most] += rows @ rows.transpose(0, 2, 1)
    pending.clear()


# --- orthogonal basis ----------------------------------------------------------------------------------------------


def orthogonal(seen: Seen) -> Array:
    """M from an orthonormal basis of the noise that reaches the view, by pivoted QR of B^T.

    Where each gradient enters exactly as one noise source does, `A = B C` is known and M is read off the basis: its
    condition does not matter. Elsewhere signals are solved for, and those outside the noise have infinite loss.
    """
    A_RTV, B_RZ = seen.dense()
    if not B_RZ.any():
        bare = np.where(A_RTV.any(axis=(0, 1)), np.inf, 0.0)
        return np.broadcast_to(bare[:, None, None], (len(bare), A_RTV.shape[1], A_RTV.shape[1])).copy()
    Q_ZK, R_KR, pivots = linalg.qr(B_RZ.T, mode="economic", pivoting=True, check_finite=False)
    sizes = np.abs(np.diag(R_KR))
    K = int(np.sum(sizes > RANK * max(B_RZ.shape) ** 0.5 * (sizes[0] if sizes.size else 0.0)))
    R, T, V = A_RTV.shape
    matched = _matched_columns(A_RTV, B_RZ)
    if matched is not None:
        column_TV, share_TV = matched
        basis = Q_ZK[column_TV][..., :K] * share_TV[..., None]
        return np.einsum("svk,tvk->vst", basis, basis)
    first, others = pivots[:K], pivots[K:]
    flat = A_RTV.reshape(R, T * V)
    white = linalg.solve_triangular(R_KR[:K, :K].T, flat[first], lower=True, check_finite=False)
    missed = flat[others] - R_KR[:K, K:].T @ white
    scale = np.maximum(np.abs(flat).max(axis=0), 1e-300)
    uncovered = (np.abs(missed).max(axis=0, initial=0.0) > UNCOVERED * scale).reshape(T, V).any(axis=0)
    white_KTV = white.reshape(K, T, V)
    M_VTT = np.einsum("ksv,ktv->vst", white_KTV, white_KTV)
    M_VTT[uncovered] = np.inf
    return M_VTT


def _matched_columns(A_RTV: Array, B_RZ: Array) -> tuple[NDArray[np.intp], Array] | None:
    """For each gradient column the noise column it is a multiple of, and the factor; None where one has none."""
    R, T, V = A_RTV.shape
    flat = A_RTV.reshape(R, T * V)
    sizes_B = np.linalg.norm(B_RZ, axis=0)
    sizes_A = np.linalg.norm(flat, axis=0)
    units = B_RZ / np.where(sizes_B > 0, sizes_B, 1.0)
    column = np.argmax(np.abs(units.T @ flat), axis=0)
    share = np.where(
        sizes_A > 0, (units[:, column] * flat).sum(axis=0) / np.where(sizes_B > 0, sizes_B, 1.0)[column], 0
    )
    rest = flat - B_RZ[:, column] * share
    if np.any(np.linalg.norm(rest, axis=0) > 1e-13 * np.maximum(sizes_A, 1e-300)):
        return None
    return column.reshape(T, V), share.reshape(T, V)


# --- oracle --------------------------------------------------------------------------------------------------------


def dense(seen: Seen, *, rank: float = 1e-11) -> Array:
    """M by the pseudo-inverse of B B^T: the definition itself."""
    A_RTV, B_RZ = seen.dense()
    R, T, V = A_RTV.shape
    left, sizes, _ = np.linalg.svd(B_RZ, full_matrices=False)
    keep = sizes > rank * (sizes[0] if sizes.size else 0.0)
    coordinates = (left[:, keep].T @ A_RTV.reshape(R, T * V)).reshape(-1, T, V)
    rest = A_RTV - np.einsum("rk,ktv->rtv", left[:, keep], coordinates)
    white = coordinates / sizes[keep][:, None, None]
    M_VTT = np.einsum("ksv,ktv->vst", white, white)
    M_VTT[(np.abs(rest).max(axis=(0, 1)) > UNCOVERED * np.abs(A_RTV).max(axis=(0, 1), initial=1e-300))] = np.inf
    return M_VTT
