"""Tables of a federation to try things with: a data set that comes with scikit-learn, dealt out to its members."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from sottovoce.core.noise_key import public_seed
from sottovoce.errors import InputError
from sottovoce.learning.columns import Columns

Cells = dict[str, list[float] | list[str]]
"""The columns of a table, by name."""


class MemberTable(NamedTuple):
    """A member's table as CSV: `rows` to train on, as declared, and some more to hold out."""

    rows: int
    held_out: int
    text: str


def split_table(name: str, columns: Columns, rows: Mapping[str, int], seed: int) -> dict[str, MemberTable]:
    """Deal all rows of a data set out to members, in an order that follows from the seed.

    Each gets the rows that it trains on, and of those that are left a share in proportion, at least one.
    """
    if name not in READERS:
        raise InputError(f"data set {name!r:.60}", f"tables can be made from {', '.join(READERS)}", "name one of these")
    cells = READERS[name]()
    wanted = [column.name for column in columns.columns]
    strange = next((one for one in wanted if one not in cells), None)
    if strange is not None:
        raise InputError(f"column {strange!r:.60}", f"{name} has {', '.join(cells)}", "correct the columns")
    total, declared = len(cells[wanted[0]]), sum(rows.values())
    if declared + len(rows) > total:
        raise InputError(
            f"{declared:,} rows for {len(rows)} members", f"{name} has {total:,}, and each holds out at least one",
            "declare fewer under [rows]",
        )  # fmt: skip
    order = np.random.default_rng(public_seed(seed, "split")).permutation(total).tolist()
    found, start, spare = {}, 0, total - declared - len(rows)
    for member, count in rows.items():
        held_out = 1 + spare * count // declared
        stop = start + count + held_out
        found[member] = MemberTable(count, held_out, _csv(cells, wanted, order[start:stop]))
        start = stop
    return found


def _csv(cells: Cells, names: list[str], rows: list[int]) -> str:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(names)
    table.writerows([cells[name][row] for name in names] for row in rows)
    return out.getvalue()


def _breast_cancer() -> Cells:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    features = {str(name): found.data[:, at].tolist() for at, name in enumerate(found.feature_names)}
    return {**features, "diagnosis": [str(found.target_names[target]) for target in found.target]}


def _digits() -> Cells:
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = {str(name): found.data[:, at].tolist() for at, name in enumerate(found.feature_names)}
    return {**pixels, "digit": [str(target) for target in found.target]}


READERS: dict[str, Callable[[], Cells]] = {"breast-cancer": _breast_cancer, "digits": _digits}
