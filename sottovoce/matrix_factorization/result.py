"""What `factorize` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from sottovoce.core.correlation import Triangular
from sottovoce.core.participation import Participation
from sottovoce.privacy.worst_case import worst_case
from sottovoce.support.text import JSON, to_json

Array = NDArray[np.float64]

FACTS = (
    "objective", "lower_bound", "gap", "independent", "antipgd", "graph_blind", "seconds", "rounds", "participation",
    "goal", "structure", "cached",
)  # fmt: skip
"""What a document has, besides that for which the bound holds."""

WRITTEN = (
    "C", "proof", "objective", "lower_bound", "independent", "antipgd", "seconds", "participation", "goal", "structure",
    "among",
)  # fmt: skip
"""What a file has."""


@dataclass(frozen=True, eq=False)
class Factorization:
    """A correlation matrix with its proof.

    Guarantees: C is lower triangular; its sensitivity under the participation scheme is at most 1; `objective` is
    that of this very C; no C of the family that `among` names is better than `lower_bound`, which `proof` proves.
    `refused_file` is a file of the cache that did not hold such a C.
    """

    C: Array = field(repr=False)
    objective: float
    lower_bound: float
    independent: float
    antipgd: float
    graph_blind: float
    seconds: float
    rounds: int
    participation: str
    goal: str
    structure: str
    among: str
    proof: Array = field(repr=False)
    cached: bool = False
    refused_file: Path | None = None

    @property
    def gap(self) -> float:
        """How far, relatively, the objective may be above the optimum."""
        return max(0.0, self.objective / self.lower_bound - 1.0) if self.lower_bound > 0 else float("inf")

    @property
    def correlation(self) -> Triangular:
        """C as the noise takes it."""
        return Triangular(self.C)

    @property
    def over_independent(self) -> float:
        """How many times less error than independent noise at the same privacy."""
        return self.independent / self.objective

    @property
    def over_graph_blind(self) -> float:
        """How many times less error than the correlation for training without a graph, at the same privacy."""
        return self.graph_blind / self.objective

    @property
    def over_antipgd(self) -> float:
        """How many times less error than AntiPGD at the same privacy."""
        return self.antipgd / self.objective

    def document(self) -> dict[str, JSON]:
        """As JSON."""
        facts: dict[str, JSON] = {name: getattr(self, name) for name in FACTS}
        return {**facts, "gap": to_json(self.gap), "bound_holds_for": self.among}

    def write(self, file: BinaryIO) -> None:
        """As npz: C under that name, so that `--correlation FILE` reads it, and the figures beside it."""
        parts: dict[str, Any] = {name: np.array(getattr(self, name)) for name in WRITTEN}
        np.savez_compressed(file, **parts)


def normalised(C: Array, scheme: Participation) -> Array:
    """C scaled to sensitivity 1; where rounding leaves a doubt, below."""
    for _ in range(10):
        C = C / (np.sqrt(sensitivity_squared(C, scheme)) * (1 + 2 * np.finfo(float).eps))
        if sensitivity_squared(C, scheme) <= 1.0:
            break
    assert sensitivity_squared(C, scheme) <= 1.0, "C could not be scaled to sensitivity 1"
    return C


def sensitivity_squared(C: Array, scheme: Participation) -> float:
    """`max over patterns, max { ||C delta||_F^2 : ||delta_t|| <= 1 }`, as an upper bound."""
    return float(worst_case((C.T @ C)[None], scheme, len(C))[0])


def error_of(C: Array, H: Array) -> float:
    """`||L C^-1||_F^2` with L^T L = H."""
    inverse = linalg.solve_triangular(C, np.eye(len(C)), lower=True, check_finite=False)
    return float(np.vdot(inverse, H @ inverse))


def independent_objective(H: Array, scheme: Participation) -> float:
    """The objective of C = I: the number of participations times the trace of H."""
    return max(len(pattern) for pattern in scheme.patterns(len(H))) * float(np.trace(H))


def graph_blind_objective(H: Array, scheme: Participation) -> float:
    """The objective of the square root of prefix sums, with a band for each round until a record may come again.

    It is near the best for training without a graph, where one model adds all steps up.
    """
    lag = np.arange(1, min(scheme.apart, len(H)))
    column = np.zeros(len(H))
    column[: len(lag) + 1] = np.cumprod([1.0, *(2 * lag - 1) / (2 * lag)])
    root = linalg.toeplitz(column, np.zeros(len(H)))
    return error_of(normalised(root, scheme), H)


def antipgd_objective(H: Array, scheme: Participation) -> float:
    """The objective of AntiPGD: `(C^T C)[s,t] = T - max(s,t)`, and noise `z_t - z_(t-1)`."""
    T = len(H)
    loss = max(float((T - np.maximum.outer(pattern, pattern)).sum()) for pattern in scheme.patterns(T))
    return loss * float(2 * np.trace(H) - H[0, 0] - 2 * np.trace(H, offset=1))
