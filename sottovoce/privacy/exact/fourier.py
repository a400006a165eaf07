"""Products of lagged responses by discrete Fourier transforms, which for so few rounds are matrix products.

With a_j the response of the observations to a gradient after j rounds, `w = C a` is a convolution and `l = Y^T C a` a
correlation, for impulses in all rounds at once: both follow from one transform of a. l is small beside w, and is found
in single precision; what that may change is added.

Shapes: V victims, T rounds, P observations of one round, K directions, Q either of them, F frequencies, X state.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.privacy.exact.gram import columns_in_use, common_factor
from sottovoce.privacy.exact.whitening import Array, Groups
from sottovoce.privacy.exact.workspace import WORKSPACE
from sottovoce.privacy.observation import ObservedStep

AT_ONCE, IN_CACHE = 2e6, 1.5e6
"""About how many entries of M, and of transforms, are alive at once."""

SLACK = 2e-4
"""Share by which `l^T l` is enlarged for the rounding of l in single precision: `(l + e)^T (l + e)` is at most `(1 +
SLACK) l^T l + (1 + 1 / SLACK) ||e||^2 I`."""

ADDED = 4e-4
"""Share of the loss that this may add; where it may be more, as in long runs, l is found in double precision."""

EPSILON, SINGLE = float(np.finfo(float).eps) / 2, float(np.finfo(np.float32).eps) / 2
"""Unit roundoffs."""

Single = NDArray[np.float32]


class _Transform(NamedTuple):
    """Real and imaginary parts below each other, 2F x T, of twice as many rounds; and back."""

    forth: Array
    back: Array

    @classmethod
    def of(cls, T: int) -> _Transform:
        angles = np.pi * np.outer(np.arange(T + 1), np.arange(T)) / T
        twice = np.full((T + 1, 1), 2.0)
        twice[[0, -1]] = 1
        forth = np.concatenate([np.cos(angles), -np.sin(angles)])
        return cls(forth, (forth * np.concatenate([twice, twice])).T / (2 * T))

    def parts(self, values_T: Array) -> tuple[Array, Array]:
        """Real and imaginary parts of the transform of an array along its first axis."""
        T = len(values_T)
        both = (self.forth @ values_T.reshape(T, math.prod(values_T.shape[1:]))).reshape(2, T + 1, *values_T.shape[1:])
        return both[0], both[1]

    def values(self, real_F: Array, imaginary_F: Array) -> Array:
        """The first T values of what has this transform."""
        both = np.concatenate([real_F, imaginary_F])
        return (self.back @ both.reshape(len(both), math.prod(real_F.shape[1:]))).reshape(
            len(self.back), *real_F.shape[1:]
        )


class _Maps(NamedTuple):
    """What takes the transform of a, F x 2P, to the real and to the imaginary parts of w, and of l; that also in single
    precision."""

    white: tuple[Array, Array]
    lacks: tuple[Array, Array]
    single: tuple[Single, Single]

    @classmethod
    def of(cls, transform: _Transform, filter_TPP: Array, Y_TPK: Array) -> _Maps:
        real, imaginary = transform.parts(np.ascontiguousarray(filter_TPP.transpose(0, 2, 1)))
        y_real, y_imaginary = transform.parts(Y_TPK)
        back_TPK = transform.values(real @ y_real + imaginary @ y_imaginary, real @ y_imaginary - imaginary @ y_real)
        y_real, y_imaginary = transform.parts(back_TPK)
        white = _below(real, -imaginary), _below(imaginary, real)
        lacks = _below(y_real, y_imaginary), _below(y_imaginary, -y_real)
        return cls(white, lacks, (lacks[0].astype(np.float32), lacks[1].astype(np.float32)))

    def sizes(self) -> tuple[Array, Array]:
        """For each frequency the Frobenius norm squared of the map to l, and a bound on its largest eigenvalue squared.

        The latter is at most the root of the sum of all their fourth powers.
        """
        squares_FPP = sum(part @ part.transpose(0, 2, 1) for part in self.lacks)
        return np.einsum("fpp->f", squares_FPP), np.linalg.norm(squares_FPP, axis=(1, 2))


def _below(upper: Array, lower: Array) -> Array:
    return np.concatenate([upper, lower], axis=1)


def lagged_products(
    step: ObservedStep, state_TXP: Array, filter_TPP: Array, Y_TPK: Array, scale: float, largest: float, every: bool
) -> Groups:
    """`scale (C a)^T (I + Y Y^T) (C a)` of some victims after others, in an array they share, rounded up.

    `state_TXP` holds the effects of the state after 0, 1, ... rounds and ends with a component that has none; no
    eigenvalue of the covariance of the observations exceeds `largest`. If data changes in `every` round, a loss is at
    least the sum of M; in some of them, at least the sum of its diagonal there.
    """
    T, X, P = state_TXP.shape
    V = step.out.gradient.shape[1]
    factor = common_factor(step.out.state, step.out.gradient)
    assert factor is not None
    place_V = np.full(V, X - 1)
    place_V[columns_in_use(step.out.gradient)] = columns_in_use(step.out.state)
    fresh_VP = step.observed.gradient.T.toarray() / factor
    transform = _Transform.of(T)
    maps = _Maps.of(transform, filter_TPP, Y_TPK)
    sizes = maps.sizes()
    wide = max(float(np.linalg.norm(part, axis=(1, 2)).max()) for part in maps.white)
    scale *= factor**2 * (1 + 8 * EPSILON * T**1.5 * (T + P) * wide * float(np.sqrt(largest)))
    size = max(1, int(AT_ONCE / T**2))
    chunk = max(1, int(IN_CACHE / (T * (P + Y_TPK.shape[2]))))
    for first in range(0, V, size):
        group = slice(first, min(V, first + size))
        M_VTT = WORKSPACE.take("losses", (group.stop - first, T, T))
        for begin in range(first, group.stop, chunk):
            some = slice(begin, min(group.stop, begin + chunk))
            response_TVP = WORKSPACE.take("responses", (T, some.stop - begin, P))
            np.take(state_TXP, place_V[some], axis=1, out=response_TVP, mode="clip")
            response_TVP[0] = fresh_VP[some]
            _products_(M_VTT[begin - first : some.stop - first], response_TVP, transform, maps, sizes, every)
        M_VTT *= scale
        yield group, M_VTT


def _products_(
    M_VTT: Array, response_TVP: Array, transform: _Transform, maps: _Maps, sizes: tuple[Array, Array], every: bool
) -> None:
    """Write `w^T w + l^T l` of some victims, rounded up; the former sums products along diagonals."""
    T, V, P = response_TVP.shape
    flat = WORKSPACE.take("transforms", (2 * (T + 1), V * P))
    np.matmul(transform.forth, response_TVP.reshape(T, V * P), out=flat)
    both_FVP = WORKSPACE.take("both", (T + 1, V, 2 * P))
    both_FVP[:, :, :P], both_FVP[:, :, P:] = flat.reshape(2, T + 1, V, P)
    w_TVP = _mapped(both_FVP, maps.white, transform.back)[::-1]
    np.matmul(w_TVP.transpose(1, 0, 2), w_TVP.transpose(1, 2, 0), out=M_VTT)
    for s in range(T - 2, -1, -1):
        M_VTT[:, s, :-1] += M_VTT[:, s + 1, 1:]
    single = WORKSPACE.take("both", both_FVP.shape, np.float32)
    single[:] = both_FVP
    lacks_VTT, added_V = _lacking(single, maps.single, transform, sizes, SINGLE)
    least_V = M_VTT.sum(axis=(1, 2)) / T if every else np.einsum("vtt->vt", M_VTT).min(axis=1)
    if (added_V > ADDED * least_V).any():
        lacks_VTT, added_V = _lacking(both_FVP, maps.lacks, transform, sizes, EPSILON)
    M_VTT += lacks_VTT
    np.einsum("vtt->vt", M_VTT)[:] += added_V[:, None]


def _lacking(
    both_FVP: NDArray[Any],
    maps: tuple[NDArray[Any], NDArray[Any]],
    transform: _Transform,
    sizes: tuple[Array, Array],
    unit: float,
) -> tuple[NDArray[Any], Array]:
    """`l^T l` of some victims, and what is to be added to its diagonal, in a precision with this unit roundoff."""
    l_TVK = _mapped(both_FVP, maps, transform.back.astype(both_FVP.dtype, copy=False))
    lacks_VTT = l_TVK.transpose(1, 0, 2) @ l_TVK.transpose(1, 2, 0)
    summed_V = np.einsum("vtt->v", lacks_VTT, dtype=float) * unit * (l_TVK.shape[2] + 4)
    lacks_VTT *= 1 + SLACK
    changed_V = rounding(both_FVP, sizes, unit) ** 2
    return lacks_VTT, (1 + 2 * SLACK) * summed_V + (1 + 1 / SLACK) * changed_V


def rounding(both_FVP: NDArray[Any], sizes: tuple[Array, Array], unit: float = SINGLE) -> Array:
    """A bound on the norm of what rounding changes in l, for each victim.

    Products with a map add up 2P terms each, and the way back 2F, with a matrix whose norm is at most 1 / sqrt(T), and
    that of its absolute values at most sqrt(2F / T).
    """
    F, _, twice = both_FVP.shape
    energy_VF = np.einsum("fvp,fvp->vf", both_FVP, both_FVP).astype(float)
    by_map, largest = (np.sqrt(energy_VF @ size) for size in sizes)
    T = F - 1
    return 1.01 * unit * ((twice + 3) / math.sqrt(T) * by_map + (2 * F + 3) * math.sqrt(2 * F / T) * largest)


def _mapped(both_FVP: NDArray[Any], maps: tuple[NDArray[Any], NDArray[Any]], back: NDArray[Any]) -> NDArray[Any]:
    """Transforms taken on by these maps, and transformed back, T x V x Q."""
    F, V, _ = both_FVP.shape
    mapped = WORKSPACE.take("mapped", (2, F, V, maps[0].shape[2]), both_FVP.dtype)
    for part, taken in zip(maps, mapped, strict=True):
        np.matmul(both_FVP, part, out=taken)
    values = WORKSPACE.take("values", (len(back), V * maps[0].shape[2]), both_FVP.dtype)
    np.matmul(back, mapped.reshape(2 * F, values.shape[1]), out=values)
    return values.reshape(len(back), V, maps[0].shape[2])
