"""Clipping: how far one record, or one node's whole data, can move what the node releases.

    >>> from sottovoce.learning.batches import parse_batches
    >>> clip = parse_clipping("per-example", 1.0)
    >>> clip.sensitivity(parse_batches("full", [50, 40]))                     # one record of 40 replaced: 2 x 1 / 40
    0.05
    >>> clip.sensitivity(parse_batches("full", [50, 40]), change="zero-out")
    0.025
    >>> parse_clipping("whole-gradient", 1.0).sensitivity(parse_batches("full", [50, 40]), adjacency="user")
    2.0

A node releases `sum_i clip(g_i) / d` over its batch, with a divisor d that depends on no data (`Batches.divisors`).

`bounded` clips each example's gradient to the largest norm that its model can give for rows of the declared norm, so
that clipping never acts: it only keeps rounding within the bound.

Guarantees: no clipped gradient is longer than the bound, in the arithmetic that is used. A gradient is left out and
counted, never passed on, if it is not finite, or so long that what it is multiplied with leaves the range in which
rounding is relative. Examples of weight zero are padding: they count for nothing, whatever is in them. What is not
covered is the rounding of the sum itself.

What a change of data can do is asked of this module without torch; only clipping itself loads it.

Shapes: N nodes, B examples, F inputs, D parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.participation import Adjacency, Change, parse_adjacency, parse_change
from sottovoce.errors import InputError
from sottovoce.learning.batches import Batches
from sottovoce.privacy.convexity import CLIPPING

if TYPE_CHECKING:
    from torch import Tensor

SLACK = 32
"""Clipped norms stay this many units of rounding below the bound: norms are right to about 3 of them."""

NEVER_REACHED = 1 + 2.0**-16
"""A bound for gradients that cannot be longer is rounded up by this factor: more than rounding and SLACK in float32."""

SMALLEST, LARGEST = 1e-30, 1e30


class Clipped(NamedTuple):
    """Sums of weighted clipped gradients, N x D, and how many gradients were not finite, or too long, and left out."""

    rows: Tensor
    nonfinite: int


class Factors(NamedTuple):
    """What each gradient is multiplied with, and which ones to leave out. Of padding, those may be marked or not."""

    factor: Tensor
    unfit: Tensor


@dataclass(frozen=True)
class Clipping:
    """Which gradients are clipped, and to which norm: those of examples, a node's whole one, or none."""

    kind: str
    bound: float = math.inf

    @property
    def by_example(self) -> bool:
        """Whether the gradient of each example is clipped by itself."""
        return self.kind in ("per-example", "bounded")

    def factors(self, lengths: Tensor, reach: Tensor | float, weights: Tensor) -> Factors:
        """Weights times 1 or less, so that no gradient of these norms (float64) is longer than its weight times bound.

        A factor below the normal range of its precision is not exact enough. Nor is its product with the errors of a
        layer, if rounding there grows too much when these are multiplied with the layer's inputs: by up to `reach`.
        """
        import torch

        limits = torch.finfo(weights.dtype)
        scale = (self.bound * (1 - SLACK * limits.eps) / lengths).clamp(max=1.0)
        factor = scale.to(weights.dtype) * weights
        coarse = (scale < limits.tiny) | (factor < limits.tiny) | (reach * limits.tiny > self.bound * weights.double())
        unfit = ~lengths.isfinite() | (coarse & (weights > 0))
        return Factors(factor.masked_fill(unfit, 0.0), unfit)

    def sensitivities(self, drawn: Batches, adjacency: str = "record", change: str = "replace") -> NDArray[np.float64]:
        """For each node, how far what it releases in one round moves: exact, reached by gradients at the bound.

        `record`: one record is replaced, or zeroed out (it counts as nothing, the divisor stays). `user`: all of a
        node's data is. A whole gradient turns as far for one record as for all of them.
        """
        by_record = parse_adjacency(adjacency) is Adjacency.RECORD
        sides = 2 if parse_change(change) is Change.REPLACE else 1
        if self.kind == "whole-gradient":
            return np.full(drawn.nodes, self.bound * (2 if by_record else sides))
        changed = np.ones(drawn.nodes) if by_record else drawn.largest
        return sides * self.bound * changed / drawn.divisors

    def sensitivity(self, drawn: Batches, adjacency: str = "record", change: str = "replace") -> float:
        """The largest over nodes: what the algorithm's `sensitivity` is set to. Infinite without clipping."""
        return float(self.sensitivities(drawn, adjacency, change).max())


def parse_clipping(kind: str, bound: float | None = None, largest_gradient: float | None = None) -> Clipping:
    """`none`, `per-example` (for record-level privacy) or `whole-gradient` (for user-level privacy), with its bound.

    `bounded` is clipping per example with the bound that follows from the `largest_gradient` of one example:
    `Task.largest_gradient`.
    """
    if kind not in CLIPPING:
        raise InputError(f"clipping {kind!r}", f"known: {', '.join(CLIPPING)}", "choose one of them")
    if kind == "none":
        if bound is not None:
            raise InputError(f"clipping none with bound {bound}", "nothing is clipped", "leave the bound out")
        return Clipping(kind)
    if kind == "bounded":
        return Clipping(kind, _never_reached(bound, largest_gradient))
    if bound is None or not SMALLEST <= bound <= LARGEST:
        raise InputError(
            f"clipping bound {bound}", f"it must lie between {SMALLEST:g} and {LARGEST:g}", "give 1.0, for example"
        )
    return Clipping(kind, float(bound))


def _never_reached(bound: float | None, largest_gradient: float | None) -> float:
    if bound is not None:
        raise InputError(
            f"clipping bounded with bound {bound}", "its bound follows from the model and the norm of rows",
            "leave the bound out",
        )  # fmt: skip
    if largest_gradient is None:
        raise InputError(
            "clipping bounded without a largest gradient", "its bound follows from the model and the norm of rows",
            'use task.gradients(batch, "bounded")',
        )  # fmt: skip
    return largest_gradient * NEVER_REACHED


def norms(rows: Tensor) -> Tensor:
    """Euclidean norms over the last dimension in float64, safe from overflow and underflow; nan where a number is.

    torch's own `vector_norm` adds up in float32 without pairing and was found 0.8 % short for 11 million numbers.
    """
    import torch

    squares = rows.square().sum(-1).double()
    limits = torch.finfo(rows.dtype)
    doubtful = ~((squares > limits.tiny / limits.eps) & (squares < limits.max))
    lengths = squares.sqrt()
    if doubtful.any():
        lengths[doubtful] = _scaled_norms(rows[doubtful].double())
    return lengths


def _scaled_norms(rows: Tensor) -> Tensor:
    import torch

    largest = rows.abs().amax(-1, keepdim=True)
    safe = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return (safe * (rows / safe).square().sum(-1, keepdim=True).sqrt()).squeeze(-1)


def sum_clipped(gradients_NBD: Tensor, weights_NB: Tensor, clip: Clipping) -> Clipped:
    """`sum_i weight_i clip(g_i)` from gradients that are all there."""
    import torch

    factor, unfit = clip.factors(norms(gradients_NBD), 1.0, weights_NB)
    rows = torch.bmm(factor.unsqueeze(1), without(unfit, gradients_NBD)).squeeze(1)
    return Clipped(rows, count(unfit, weights_NB))


def clip_rows(rows_ND: Tensor, clip: Clipping) -> Clipped:
    """Each node's whole gradient clipped."""
    factor, unfit = clip.factors(norms(rows_ND), 1.0, rows_ND.new_ones(len(rows_ND)))
    return Clipped(without(unfit, rows_ND) * factor.unsqueeze(-1), int(unfit.sum()))


def without(unfit: Tensor, parts: Tensor) -> Tensor:
    """Zeros in place of what is left out: zero times infinity is not zero."""
    if not unfit.any():
        return parts
    return parts.masked_fill(unfit.view(*unfit.shape, *[1] * (parts.dim() - unfit.dim())), 0)


def count(unfit: Tensor, weights: Tensor) -> int:
    """How many gradients are left out; padding is none."""
    return int((unfit & (weights > 0)).sum())
