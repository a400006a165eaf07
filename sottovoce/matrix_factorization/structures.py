"""Families of C: dense or banded; and what each participation asks of X = C^T C.

- dense: every lower-triangular C; X is zero between rounds of one class, which loses nothing for vector-valued
  contributions.
- banded: noise looks back fewer rounds; C has b bands exactly when X has, so the same search runs on fewer entries.

In runs longer than K times B the same data shows in any K rounds of a class that follow each other. Patterns are then
overlapping windows of a class: X is zero between two rounds of one window, and the diagonal sums to at most 1 over
each. A dense search takes turns there: entries off the diagonal with the diagonal fixed, then a scale for each round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

from sottovoce.core.participation import Participation
from sottovoce.errors import InputError
from sottovoce.matrix_factorization.certificate import (
    bound_by_classes,
    bound_by_windows,
    bound_in_band,
    certify,
    certify_banded,
)
from sottovoce.matrix_factorization.optimizer import (
    Feasible,
    is_singular,
    lower_factor,
    search,
)

Array = NDArray[np.float64]

TURNS = 8
NORMS = (10.0, 50.0, 200.0, 1000.0, 4000.0)
"""How closely the largest window is followed while scales are chosen."""

STRUCTURES = ("dense", "banded")


@dataclass(frozen=True, eq=False)
class ProvenFactor:
    """A C, unscaled, and the matrix that proves how good any C could be: `Structure.bound_of` says how good."""

    C: Array
    proof: Array


@dataclass(frozen=True)
class Structure:
    """Which C are searched: all of them, or those with so many bands."""

    bands: int | None = None

    @classmethod
    def within(cls, rounds: int, scheme: Participation, name: str, bands: int | None) -> Structure:
        """Of this name, with no more bands than rounds; with B bands unless others are given."""
        if name not in STRUCTURES:
            raise InputError(f"structure {name!r}", f"known: {', '.join(STRUCTURES)}", "choose one of them")
        if bands is not None:
            require_whole("bands", bands, 1)
        if name == "banded":
            own = rounds if scheme.times is None else scheme.apart
            return cls(min(rounds, own if bands is None else bands))
        if bands is not None:
            raise InputError(f"{bands} bands of a dense C", "only a banded one has bands", "choose banded")
        return cls()

    def __str__(self) -> str:
        return "dense" if self.bands is None else f"banded, {self.bands} bands"

    def optimise(self, H: Array, scheme: Participation, gap: float) -> ProvenFactor:
        """The best C of this structure that is found, with its proof."""
        return dense(H, scheme, gap) if self.bands is None else banded(H, scheme, self.bands, gap)

    def bound_of(self, proof: Array, H: Array, scheme: Participation) -> float:
        """No C of those that `among` names is better than this, whatever the matrix is."""
        T = len(H)
        if self.bands is not None:
            return bound_in_band(proof, H, feasible(scheme, T, self.bands)) / patterns_per_class(scheme, T) ** 2
        if overlap(scheme, T):
            return bound_by_windows(proof, H, windows(scheme, T))
        return bound_by_classes(proof, H, classes_of(scheme, T))

    @property
    def among(self) -> str:
        """For which C the bound holds."""
        return "all C" if self.bands is None else f"C with {self.bands} bands"

    def is_provable(self, H: Array, scheme: Participation) -> bool:
        """Whether a search of this structure ends with a bound as close as was asked for.

        Not where patterns overlap, or for a singular H, which wants a C without inverse.
        """
        return not overlap(scheme, len(H)) and not is_singular(H)


def require_whole(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number, or too small."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(
            f"{name} = {value!r}", f"a whole number from {least}", f"give {name}={max(least, 1)}, for example"
        )


def classes_of(scheme: Participation, rounds: int) -> NDArray[np.intp]:
    """The class of each round: rounds in which the same data can show."""
    return np.arange(rounds) % (1 if scheme.times is None else min(scheme.apart, rounds))


def feasible(scheme: Participation, rounds: int, bands: int | None = None) -> Feasible:
    """What X may be under cyclic participation, and within so many bands."""
    classes = classes_of(scheme, rounds)
    free = np.not_equal.outer(classes, classes)
    if bands is not None:
        free &= np.abs(np.subtract.outer(np.arange(rounds), np.arange(rounds))) < bands
    return Feasible(classes, free, np.ones(classes.max() + 1))


def dense(H: Array, scheme: Participation, gap: float) -> ProvenFactor:
    """The best C of all."""
    found = search(H, feasible(scheme, len(H)), certify, gap=gap)
    X, proof = found.X, found.certificate.F
    if overlap(scheme, len(H)):
        X, proof = _refined(X, H, windows(scheme, len(H)), gap)
    return ProvenFactor(lower_factor(X), proof)


def overlap(scheme: Participation, rounds: int) -> bool:
    """Whether patterns are windows of a class."""
    return scheme.times is not None and scheme.times * scheme.apart < rounds


def windows(scheme: Participation, rounds: int) -> Array:
    """Which rounds are in which window: 1 or 0, a row for each round and a column for each window."""
    patterns = scheme.patterns(rounds)
    inside = np.zeros((rounds, len(patterns)))
    for number, pattern in enumerate(patterns):
        inside[pattern, number] = 1.0
    return inside


def _refined(X: Array, H: Array, inside: Array, gap: float) -> tuple[Array, Array]:
    """A better X than one that was found for whole classes, and the G from which `bound_by_windows` bounds it best."""
    free = (inside @ inside.T) == 0
    best, value, lower, proof = X, np.inf, 0.0, _dual(X, H)
    for _ in range(TURNS):
        X = _rescaled(X, H, inside)
        now = float(np.trace(linalg.solve(X, H, assume_a="pos", check_finite=False)))
        G = _dual(X, H)
        bound = bound_by_windows(G, H, inside)
        lower, proof = (bound, G) if bound > lower else (lower, proof)
        before = value
        if now < value:
            best, value = X, now
        if value <= (1 + gap) * lower or value > (1 - gap / 10) * before:
            break
        space = Feasible(np.arange(len(H)), free, np.diag(X).copy())
        X = search(H, space, certify_banded, gap=gap / 4, start=X).X
    return best, proof


def _rescaled(X: Array, H: Array, inside: Array) -> Array:
    """D X D with the best diagonal D for which no window sums to more than 1."""
    error = linalg.inv(X) * H
    diagonal = np.diag(X)

    def value(logarithms: Array, norm: float) -> tuple[float, Array]:
        scale = np.exp(-logarithms)
        total = float(scale @ error @ scale)
        sizes = diagonal / scale**2
        sums = inside.T @ sizes
        shares = sums / sums.max()
        mass = float((shares**norm).sum())
        slope = 2 * sizes * (inside @ shares ** (norm - 1)) / (sums.max() * mass)
        return (
            float(np.log(total) + np.log(sums.max()) + np.log(mass) / norm),
            slope - 2 * scale * (error @ scale) / total,
        )

    logarithms = np.zeros(len(X))
    for norm in NORMS:
        logarithms = optimize.minimize(value, logarithms, (norm,), "L-BFGS-B", jac=True, options={"maxiter": 500}).x
    scaled = X * np.exp(np.add.outer(logarithms, logarithms))
    return np.asarray(scaled / (inside.T @ np.diag(scaled)).max())


def _dual(X: Array, H: Array) -> Array:
    """G = X^-1 H X^-1."""
    half = linalg.solve(X, H, assume_a="pos", check_finite=False)
    return np.asarray(linalg.solve(X, half.T, assume_a="pos", check_finite=False))


def patterns_per_class(scheme: Participation, rounds: int) -> int:
    """How many patterns it takes to cover a class: 1 unless the run is longer than K times B.

    What all rounds of a class cost is at most so many times, squared, what the worst pattern does; a bound for
    classes is one for patterns when divided by that.
    """
    if scheme.times is None:
        return 1
    longest = math.ceil(rounds / scheme.apart)
    return math.ceil(longest / scheme.times)


def banded(H: Array, scheme: Participation, bands: int, gap: float) -> ProvenFactor:
    """The best C with so many bands."""
    space = feasible(scheme, len(H), bands)
    found = search(H, space, certify_banded, gap=gap)
    C = lower_factor(found.X)
    far = np.subtract.outer(np.arange(len(H)), np.arange(len(H)))
    return ProvenFactor(np.where(far < bands, C, 0.0), found.certificate.F)
