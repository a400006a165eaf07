"""Arrays whose rows are nodes: plain ones of numpy or torch, and structured ones, with the same few operations.

`Rows` says what the loop does with them. Only what plain operators cannot do alike on all of them lives here. torch is
never imported: a torch tensor brings its own module along.

Shapes: N nodes, D parameters.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, TypeVar, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from sottovoce.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Reals: TypeAlias = NDArray[np.floating]
"""Numbers in the precision of a run: float32 or float64."""

Precision: TypeAlias = np.dtype[np.floating]
"""float32 or float64."""

Plain: TypeAlias = "Reals | Tensor"
"""An array of numbers: numpy's or torch's."""

Operand: TypeAlias = Any
"""Rows of the same kind, a number, or public numbers per node (N x 1) or parameter (numpy or torch, see `convert`).

Not written as a union: the operators of numpy and torch are typed for their own arrays only.
"""


RowsKind = TypeVar("RowsKind")

SMALL = 64
"""Up to this size a sparse matrix is faster as a dense one."""

IN_CACHE = 1 << 18
"""So many numbers of each array are in use at once, where several passes are made over them."""


class Rows(Protocol):
    """An N x D array, one row for each node, with all operations that the loop and an algorithm's maps may use.

    numpy arrays, torch tensors, the tracer's linear forms and the rows of a shard of the nodes are such arrays.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Nodes and parameters."""

    def __add__(self, other: Operand, /) -> Rows: ...

    def __radd__(self, other: Operand, /) -> Rows: ...

    def __sub__(self, other: Operand, /) -> Rows: ...

    def __rsub__(self, other: Operand, /) -> Rows: ...

    def __mul__(self, other: Operand, /) -> Rows: ...

    def __rmul__(self, other: Operand, /) -> Rows: ...

    def __truediv__(self, other: Operand, /) -> Rows: ...

    def __pow__(self, power: float, /) -> Rows: ...

    def __neg__(self) -> Rows: ...


class Operator(Protocol):
    """A sparse matrix, scipy's or torch's, ready to multiply rows of one kind and precision."""

    def __matmul__(self, rows: Operand, /) -> Rows: ...


class StructuredRows(Rows, Protocol):
    """Rows that are no plain array, and know themselves how to do what arrays do."""

    def converted(self, values: Reals) -> Plain:
        """Public numbers, N x 1, ready to multiply or divide these rows."""

    def taken(self, index: NDArray[np.intp]) -> Rows:
        """The rows of some nodes."""

    def in_precision_of(self, like: Rows) -> Rows:
        """The same rows, in the precision of others of their kind."""

    def doubled(self) -> Rows:
        """The same rows in float64."""

    def where(self, chosen_N: NDArray[np.bool_], others: Rows) -> Rows:
        """These rows for the nodes that are chosen, others for the rest."""


def structured(rows: Rows) -> StructuredRows:
    """`rows`, of which it is known that they are no plain array."""
    return cast("StructuredRows", rows)


def is_torch(rows: object) -> TypeGuard[Tensor]:
    """Whether `rows` is a torch tensor."""
    return type(rows).__module__.partition(".")[0] == "torch"


def convert(values: Plain, like: Rows) -> Rows:
    """Public numbers, numpy's or torch's, as an array of the kind, precision and device of `like`."""
    values = to_numpy(values)
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.from_numpy(np.ascontiguousarray(values)).to(dtype=like.dtype, device=like.device)
    if isinstance(like, np.ndarray):
        return values.astype(like.dtype, copy=False)
    return structured(like).converted(values)


def add_(rows: Rows, factor: float, others: Rows) -> None:
    """`rows += factor * others` in one pass, in place."""
    if is_torch(rows):
        rows.add_(cast("Tensor", others), alpha=factor)
    else:
        rows += factor * others


def column(values: ArrayLike, like: Rows) -> Rows:
    """One public number per node, N x 1, ready to multiply or divide `like`."""
    return convert(np.asarray(values, dtype=float).reshape(-1, 1), like)


def numpy_dtype(rows: Rows) -> Precision:
    """The numpy precision that matches `rows`; traced rows are float64."""
    if is_torch(rows):
        return np.dtype(str(rows.dtype).removeprefix("torch."))
    return np.dtype(rows.dtype) if isinstance(rows, np.ndarray) else np.dtype(np.float64)


@overload
def operator(matrix: sparse.csr_array, like: Tensor) -> Tensor: ...


@overload
def operator(matrix: sparse.csr_array, like: Rows) -> Operator: ...


def operator(matrix: sparse.csr_array, like: Rows) -> Operator:
    """A sparse matrix in the form whose product with `like` is fast and keeps its precision."""
    if is_torch(like):
        torch = sys.modules["torch"]
        with warnings.catch_warnings():  # torch calls its CSR support beta; the products are checked against scipy's
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_csr_tensor(
                torch.from_numpy(matrix.indptr.astype(np.int64)),
                torch.from_numpy(matrix.indices.astype(np.int64)),
                torch.from_numpy(matrix.data),
                size=matrix.shape,
            ).to(dtype=like.dtype, device=like.device)
    return matrix.astype(numpy_dtype(like), copy=False)


def in_float64(values: Reals, like: Rows) -> Plain:
    """A numpy array of float64 as one of the kind and device of `like`."""
    if not is_torch(like):
        return values
    return sys.modules["torch"].from_numpy(np.ascontiguousarray(values)).to(device=like.device)


def doubled(rows: Rows) -> Rows:
    """The same rows in float64."""
    if is_torch(rows):
        return rows.double()
    return structured(rows).doubled() if not is_plain(rows) else np.asarray(rows).astype(np.float64, copy=False)


def in_precision_of(like: Rows, rows: Rows) -> Rows:
    """The same rows, in the precision of others: integers of secure sums take float64, whatever models have."""
    if not is_plain(rows):
        return structured(rows).in_precision_of(like)
    if is_torch(rows):
        return rows.to(cast("Tensor", like).dtype)
    return np.asarray(rows).astype(numpy_dtype(like), copy=False)


def is_plain(rows: object) -> TypeGuard[Plain]:
    """Whether `rows` is a plain array of numbers: numpy or torch."""
    return isinstance(rows, np.ndarray) or is_torch(rows)


def checked_kind(rows: RowsKind) -> RowsKind:
    """The same rows; refused if they are of a kind of one's own, derived from numpy's or torch's.

    Such rows may answer with other numbers when they are sent than when they were compared.
    """
    torch = sys.modules.get("torch")
    kinds = (np.ndarray,) if torch is None else (np.ndarray, torch.Tensor)
    if isinstance(rows, kinds) and type(rows) not in kinds:
        raise InputError(
            f"values of kind {type(rows).__name__}", "what nodes hold and send are plain arrays of numpy or torch",
            "convert them",
        )  # fmt: skip
    return rows


def to_numpy(rows: Rows) -> Reals:
    """A plain array as one of numpy's."""
    return rows.detach().cpu().numpy() if is_torch(rows) else np.asarray(rows)


def all_finite(rows: Plain) -> bool:
    """Whether there is no nan and no infinity."""
    return bool((rows - rows == 0).all())


def take(rows: Rows, index: NDArray[np.intp]) -> Rows:
    """The rows of some nodes."""
    return rows[index] if is_plain(rows) else structured(rows).taken(index)


def where(chosen_N: NDArray[np.bool_], rows: Rows, others: Rows) -> Rows:
    """Of every node its row of one array or the other: a choice, not a product, so that no infinity gets across."""
    if not is_plain(rows):
        return structured(rows).where(chosen_N, others)
    if is_torch(rows):
        torch = sys.modules["torch"]
        return torch.where(torch.from_numpy(chosen_N).to(rows.device)[:, None], rows, others)
    return np.where(chosen_N[:, None], rows, to_numpy(others))


def read_only(rows: Rows) -> Rows:
    """The same numbers, protected from changes where the kind of array can be (numpy's)."""
    if not isinstance(rows, np.ndarray):
        return rows
    shown = rows.view()
    shown.flags.writeable = False
    return shown


def check_start(x0: object, n: int) -> None:
    """Refuse a starting point that is not one row of floats per node."""
    if is_plain(x0) and str(x0.dtype).removeprefix("torch.") not in ("float32", "float64"):
        raise InputError(f"x0 of type {x0.dtype}", "it must be float32 or float64", "convert it")
    if not hasattr(x0, "shape") or len(x0.shape) != 2:
        found = f"of shape {tuple(x0.shape)}" if hasattr(x0, "shape") else f"of type {type(x0).__name__}"
        raise InputError(f"x0 {found}", "it must be a numpy or torch array, nodes x parameters", "reshape it")
    if x0.shape[0] != n:
        raise InputError(f"x0 has {x0.shape[0]} rows", f"the topology has {n} nodes", "give one row for each node")
    if is_plain(x0) and not x0.shape[1]:
        raise InputError("x0 has 0 columns", "a model has at least one parameter", "give one column for each parameter")


def dense_if_small(matrix: sparse.csr_array) -> sparse.csr_array | NDArray[np.float64]:
    """The same matrix, in the form whose products with dense ones take less time."""
    return matrix.toarray() if max(matrix.shape) <= SMALL else matrix


def given_array(values: object, what: str) -> NDArray[Any]:
    """What a caller gives as a numpy array; refuses what is none, and masked entries, which nobody meant to be used."""
    if np.ma.is_masked(values):
        raise InputError(f"{what} with masked entries", "every entry is used", "fill them, or drop their rows")
    try:
        return np.asarray(list(values) if isinstance(values, Iterable) and not hasattr(values, "__len__") else values)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise InputError(
            f"{what} of uneven lengths or kinds", "they must form one array", "give rows of the same length"
        ) from None
