"""Rows that are linear forms: what flows through the loop while it is traced. What is not linear refuses, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.algorithm import State, leaves, map_leaves
from sottovoce.core.arrays import Operand, Reals, Rows, is_torch, to_numpy
from sottovoce.core.mixing import Mixing
from sottovoce.errors import Unaccountable

OTHER_ROUND = (
    "values of another round are used, which the state does not hold; an algorithm's memory is its state: "
    "keep them in the state"
)


ONLY_FACTORS = "multiplying by anything but a number for each node, or for each parameter,"


class InputBasis(Protocol):
    """What the columns of linear forms are of."""

    def at_coordinate(self, factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of factors that differ by parameter, in their second dimension, those of the coordinate that is traced."""


class LinearRows:
    """Rows that are linear forms in the inputs: row u is what node u holds, column j its coefficient of input j.

    Adding, scaling by public numbers (one for all, for each node or for each parameter) and mixing are all it can do.
    Anything else is not linear, and refuses. Columns mean something only beside those of the same `basis`, which is of
    one round: rows that an algorithm kept to itself from another round do not add to them. Zeros without a basis go
    with every other.
    """

    __slots__ = ("basis", "matrix")

    def __init__(self, matrix: sparse.sparray | tuple[int, int], basis: InputBasis | None = None) -> None:
        known = isinstance(matrix, sparse.csr_array)
        self.matrix: sparse.csr_array = matrix if known else sparse.csr_array(matrix)
        self.basis = basis

    def wide(self, width: int) -> sparse.csr_array:
        """The matrix with inputs added that it does not depend on."""
        rows, known = self.matrix.shape
        parts = (self.matrix.data, self.matrix.indices, self.matrix.indptr)
        return self.matrix if known == width else sparse.csr_array(parts, shape=(rows, width))

    @property
    def shape(self) -> tuple[int, Any]:
        """Number of nodes; how many parameters they have is not known while tracing."""
        return self.matrix.shape[0], UNKNOWN

    def __add__(self, other: Operand) -> LinearRows:
        if isinstance(other, LinearRows):
            if self.basis is not other.basis and None not in (self.basis, other.basis):
                raise Unaccountable(OTHER_ROUND)
            width = max(self.matrix.shape[1], other.matrix.shape[1])
            return LinearRows(self.wide(width) + other.wide(width), self.basis or other.basis)
        return self if isinstance(other, int | float) and other == 0 else self._refuse("adding a constant")

    def __sub__(self, other: Operand) -> LinearRows:
        return self + (-other)

    def __rsub__(self, other: Operand) -> LinearRows:
        return -self + other

    def __neg__(self) -> LinearRows:
        return LinearRows(-self.matrix, self.basis)

    def __mul__(self, factor: Operand) -> LinearRows:
        if isinstance(factor, int | float | np.integer | np.floating) and np.isfinite(factor):
            return LinearRows(self.matrix * float(factor) if factor else self.matrix.shape, self.basis)
        if is_torch(factor):
            factor = to_numpy(factor)
        if isinstance(factor, np.ndarray) and factor.dtype.kind in "fiub" and np.isfinite(factor).all():
            rows = self.matrix.copy()
            rows.data *= np.repeat(self._each_node(factor.astype(float)), np.diff(rows.indptr))
            rows.eliminate_zeros()  # an entry is one that counts
            return LinearRows(rows, self.basis)
        return self._refuse(ONLY_FACTORS)

    def _each_node(self, factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """The factor of every node, from one for each node or parameter: at the coordinate that is traced."""
        n = self.matrix.shape[0]
        if factors.size == 1 or factors.shape == (n, 1):
            return np.broadcast_to(factors.ravel(), n)
        if factors.ndim not in (1, 2) or np.atleast_2d(factors).shape[0] not in (1, n):
            self._refuse(ONLY_FACTORS)
        if self.basis is None:  # zeros
            return np.zeros(n)
        return np.broadcast_to(self.basis.at_coordinate(np.atleast_2d(factors)), n)

    def __truediv__(self, divisor: Operand) -> LinearRows:
        return self * (1.0 / divisor) if not isinstance(divisor, LinearRows) else self._refuse("dividing by itself")

    def mixed_by(self, mixing: Mixing) -> LinearRows:
        """`W @ rows`: what nodes hold after a gossip step. Only a `Mixing` moves values from node to node."""
        return LinearRows(mixing.weights @ self.matrix, self.basis)

    def converted(self, values: Reals) -> Reals:
        """Public numbers beside traced rows stay as they are."""
        return values

    def in_precision_of(self, like: Rows) -> LinearRows:
        """Linear forms have one precision."""
        return self

    def where(self, chosen_N: NDArray[np.bool_], others: Rows) -> LinearRows:
        """Coefficients are finite, so that the product with zero is a choice."""
        return self * chosen_N[:, None] + others * ~chosen_N[:, None]

    def taken(self, index: NDArray[np.intp]) -> LinearRows:
        """The rows of some nodes."""
        return LinearRows(self.matrix[index], self.basis)

    __radd__, __rmul__ = __add__, __mul__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Operand, **_: object) -> LinearRows:
        """`array * rows` and the like come here first; any other function of numpy's is not linear."""
        reflected = {np.add: self.__radd__, np.subtract: self.__rsub__, np.multiply: self.__rmul__}
        if method == "__call__" and ufunc in reflected and inputs[-1] is self:
            return reflected[ufunc](inputs[0])
        return self._refuse(f"{ufunc.__name__} of a node's values")

    def _refuse(self, what: str) -> NoReturn:
        raise Unaccountable(f"{what} is not linear, so what is sent cannot be traced; use linear maps only")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f"{name!r} of a node's values")


def as_linear(rows: Rows) -> LinearRows:
    """Loop rows, of which it is known that they are traced."""
    assert isinstance(rows, LinearRows)
    return rows


def slots(tree: State) -> list[LinearRows]:
    """The linear forms in a state."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, LinearRows)]


def with_slots(tree: State, slot: Callable[[LinearRows], LinearRows]) -> State:
    """The same state with other rows in its slots."""
    return map_leaves(lambda leaf: slot(leaf) if isinstance(leaf, LinearRows) else leaf, tree)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def method(self: LinearRows, *_: object) -> NoReturn:
        self._refuse(f"{name} of a node's values")

    return method


OTHER_OPERATORS = (
    "abs array array_function bool complex contains eq float floordiv ge getitem gt iadd imul index int isub iter le "
    "len lt itruediv matmul mod ne pow rfloordiv rmatmul rmod round rpow rtruediv setitem"
)
for _name in OTHER_OPERATORS.split(" "):
    setattr(LinearRows, f"__{_name}__", _refusing(_name))


class _Unknown:
    """A number that is not known while tracing; asking for it is refused."""


for _name in f"{OTHER_OPERATORS} add mul neg radd rmul rsub sub truediv".split(" "):
    setattr(_Unknown, f"__{_name}__", lambda *_: _refuse_unknown())


def _refuse_unknown() -> NoReturn:
    raise Unaccountable("the number of parameters is not known during tracing; do not scale by it")


UNKNOWN = _Unknown()
