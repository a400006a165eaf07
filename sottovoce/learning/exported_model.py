"""A model as it is handed on: its parameters, and all that is needed to predict with it.

    README.md            the model card, for readers
    model.json           what the model is, what it predicts, and the columns of its table
    model.safetensors    its parameters by name
    model.pt             the same as torch stores a state dict; `torch.load(..., weights_only=True)` reads it

A folder may come from anybody: nothing in it is run or unpickled, and parameters are read from `model.safetensors`,
only where names and shapes are those of the model that `model.json` describes.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from sottovoce.errors import InputError
from sottovoce.learning.columns import Columns, parse_columns
from sottovoce.learning.decisions import decided
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.models import BUILDERS, Model, model
from sottovoce.learning.prediction_scores import probabilities
from sottovoce.learning.survival import without_event
from sottovoce.learning.table_cells import GivenTable, category_text, given_cells
from sottovoce.learning.tables import encode_inputs, encode_table, join_tables
from sottovoce.schemas.validation import problem_in
from sottovoce.support.config import Document
from sottovoce.support.files import explaining, read_bytes, write, write_text
from sottovoce.support.npz import Arrays
from sottovoce.support.text import json_text, parse_json

FORMAT = 1
DESCRIPTION, PARAMETERS, STATE_DICT, CARD = "model.json", "model.safetensors", "model.pt", "README.md"
RULE, REMEDY = "sotto export writes a folder with it", "give the folder that sotto export wrote"
UNTIL_HALF = 0.5

LARGEST_DESCRIPTION = 10**7
"""Bytes of `model.json`; columns take a few hundred each."""


class RowNames(NamedTuple):
    """A column that is no input, and whose cells are all different."""

    column: str
    cells: list[str]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of rows: a class and the probability of each, or a value in the target's units; of times, by
    which of the `periods` half of such rows have had the event, and the probability of none until the end of each.

    Of two classes, the second is named above `threshold`. `row_names` are the cells of a column that tells rows apart,
    if the table has one.
    """

    target: str
    classes: tuple[str, ...]
    values: NDArray[np.float64] | None
    probabilities: NDArray[np.float64] | None
    row_names: RowNames | None = None
    threshold: float = 0.5
    periods: tuple[float, ...] = ()

    @property
    def heading(self) -> list[str]:
        """Of its rows."""
        until = (f"no event until {end:g}" for end in self.periods)
        return [self.target, *(f"probability of {name}" for name in (*self.classes, *until))]

    def __len__(self) -> int:
        found = self.values if self.probabilities is None else self.probabilities
        assert found is not None
        return len(found)

    def rows(self) -> list[list[str | float]]:
        """One for each row that was given, in its order."""
        if self.probabilities is None:
            assert self.values is not None
            return [[float(f"{value:.6g}")] for value in self.values]
        if self.periods:
            names = (*(f"until {end:g}" for end in self.periods), f"after {self.periods[-1]:g}")
            chosen = (self.probabilities >= UNTIL_HALF).sum(axis=1)
        else:
            names, chosen = self.classes, decided(self.probabilities, self.threshold)
        likely = np.round(self.probabilities, 6).tolist()
        return [[names[at], *shares] for at, shares in zip(chosen.tolist(), likely, strict=True)]

    def table(self) -> list[list[str | float]]:
        """The same with a heading, and with the names of rows before them."""
        table: list[list[str | float]] = [[*self.heading], *self.rows()]
        if self.row_names is None:
            return table
        names = (self.row_names.column, *self.row_names.cells)
        return [[name, *row] for name, row in zip(names, table, strict=True)]

    def csv(self) -> str:
        """As a table in a file."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(self.table())
        return out.getvalue()


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A model with its parameters, and the columns of the tables that it takes."""

    model: Model
    parameters: Tensor
    columns: Columns
    threshold: float = 0.5

    def predict(self, table: GivenTable, where: str = "table") -> Predictions:
        """What the model says of new rows: a data frame, columns by name, or a file. A column of targets is not used.

        A row that does not fit the columns is refused, as in training.
        """
        cells, row_names = self._read(table, where)
        for name in self.columns.outcome:
            cells = _without(cells, name)
        rows = self.model.inputs(Examples(encode_inputs(cells, self.columns, where)))[:]
        inputs = torch.from_numpy(rows).to(self.parameters.dtype)
        with torch.no_grad():
            outputs = self.model.outputs(self.parameters, inputs).double().numpy()
        target = self.columns.target_column
        if target.range is not None:
            values = self.columns.target_zero + self.columns.target_unit * outputs[:, 0]
            return Predictions(target.name, (), values, None, row_names)
        if self.columns.periods:
            return Predictions(target.name, (), None, without_event(outputs), row_names, periods=self.columns.periods)
        shares = probabilities(self.model.loss.name, outputs)
        return Predictions(target.name, self.columns.classes, None, shares, row_names, self.threshold)

    def losses(self, table: GivenTable, where: str = "table") -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of rows whose targets are known: the loss of each, and the probabilities of classes, or the value."""
        found = encode_table(given_cells(table, self.columns.unread, where), self.columns, where)
        with torch.no_grad():
            outputs = self.model.outputs(self.parameters, torch.from_numpy(found.inputs).to(self.parameters.dtype))
            each = self.model.loss.each(outputs, torch.from_numpy(found.targets)).double().numpy()
        shown = outputs.double().numpy()
        return each, probabilities(
            self.model.loss.name, shown
        ) if self.columns.classes and not self.columns.periods else shown

    def _read(self, table: GivenTable, where: str) -> tuple[Arrays, RowNames | None]:
        """The cells of a table, and what tells its rows apart: the first dropped column whose cells are all different.

        Dropped columns may hold anything, texts of any length say; those that cannot be read name no rows.
        """
        drop = self.columns.unread
        for name in drop:
            with contextlib.suppress(InputError):
                cells = given_cells(table, [one for one in drop if one != name], where)
                names = [category_text(cell) for cell in cells[name].tolist()] if name in cells else []
                if names and len({*names, ""}) == len(names) + 1:
                    return _without(cells, name), RowNames(name, names)
        return given_cells(table, drop, where), None


def _without(cells: Arrays, name: str) -> Arrays:
    return {column: values for column, values in cells.items() if column != name}


def write_exported_model(
    folder: Path, parameters: Mapping[str, Tensor], description: Document, card: str, *, private: bool
) -> None:
    """Write a model into a folder that is there. Where it is `private`, its owner alone can read the files."""
    whole = {name: value.detach().contiguous().clone() for name, value in parameters.items()}
    content = safetensors.torch.save(whole)

    def write_content(file: BinaryIO) -> None:
        file.write(content)

    write(folder / PARAMETERS, write_content, private=private)
    write(folder / STATE_DICT, lambda file: torch.save(whole, file), private=private)
    text = json_text({"format": FORMAT, **description})
    write_text(folder / DESCRIPTION, text, private=private)
    write_text(folder / CARD, card, private=private)


def read_exported_model(given: str | Path) -> ExportedModel:
    """The model that `sotto export` wrote into a folder; or one of its kind with parameters in a file beside it."""
    place, parameters = Path(given), Path(given) / PARAMETERS
    if place.is_file():
        place, parameters = place.parent, place
    described = read_description(place / DESCRIPTION)
    if described["columns"] is None:
        raise InputError(
            f"{place}: a model of {described['data']}", "sotto predict reads tables, and this model has no columns",
            f"load {STATE_DICT} or {PARAMETERS} in torch",
        )  # fmt: skip
    columns, wanted = parse_columns(described["columns"], f"{place / DESCRIPTION}: columns"), described["model"]
    if wanted["name"] not in BUILDERS:
        raise InputError(
            f"{place}: model {wanted['name']!r:.60}",
            "the model is its author's own code, which is not part of an export",
            f"load {STATE_DICT} or {PARAMETERS} in torch",
        )  # fmt: skip
    stands_in = join_tables(columns, {"rows": 1}, {}, 0).dataset
    built = model(wanted["name"], stands_in, **wanted["settings"])
    return ExportedModel(built, _parameters(parameters, built), columns, described.get("threshold", 0.5))


def read_description(path: Path) -> Document:
    """What `model.json` of an export says."""
    with explaining(path, RULE, REMEDY):
        content = read_bytes(path)
    try:
        found = parse_json(content, unique_keys=True) if len(content) <= LARGEST_DESCRIPTION else None
    except ValueError:
        found = None
    problem = "it is not JSON, or too long" if found is None else problem_in(found, DESCRIPTION)
    if problem is not None or not isinstance(found, dict):
        raise InputError(f"{path}: damaged: {problem}", RULE, REMEDY)
    if found["format"] != FORMAT:
        raise InputError(f"{path}: format {found['format']}", f"this version reads {FORMAT}", "export it again")
    return found


def _parameters(path: Path, built: Model) -> Tensor:
    with explaining(path, RULE, REMEDY):
        content = read_bytes(path)
    try:
        stored = safetensors.torch.load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path}: damaged ({type(error).__name__})", RULE, REMEDY) from None
    shapes = dict(zip(built.layout.names, built.layout.shapes, strict=True))
    if {name: tuple(value.shape) for name, value in stored.items()} != shapes:
        raise InputError(f"{path}: parameters of another model than {DESCRIPTION} describes", RULE, REMEDY)
    flat = built.layout.flatten({name: stored[name] for name in shapes})
    if not flat.is_floating_point() or not torch.isfinite(flat).all():
        raise InputError(f"{path}: parameters that are not finite numbers", RULE, REMEDY)
    return flat
