"""A run's model, written into a folder that can be handed on, with its card."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from sottovoce.auditing.folder_check import MEASURED_TOLERANCE, FolderCheck, Given, as_read
from sottovoce.errors import InputError
from sottovoce.learning.exported_model import (
    CARD,
    DESCRIPTION,
    FORMAT,
    PARAMETERS,
    STATE_DICT,
    read_description,
    write_exported_model,
)
from sottovoce.report.model_card import model_card
from sottovoce.run.finished_run import FinalModel, FinishedRun, open_final_model
from sottovoce.run.layout import EXPORT
from sottovoce.support.config import Document
from sottovoce.support.files import check_folder, check_no_link, explaining, new_folder, read_bytes
from sottovoce.support.json_numbers import to_json


@dataclass(frozen=True)
class Export:
    """Where a model was written, and whether the run's figure covers it."""

    folder: Path
    node: str | None
    parameters: int
    covered: bool
    epsilon: float | None

    def document(self) -> Document:
        """As JSON."""
        epsilon = None if self.epsilon is None else to_json(self.epsilon)
        return {
            "folder": str(self.folder), "files": [CARD, DESCRIPTION, PARAMETERS, STATE_DICT], "node": self.node,
            "parameters": self.parameters, "covered": self.covered, "epsilon": epsilon,
        }  # fmt: skip


def export_model(
    run: str | Path,
    out: str | Path | None = None,
    *,
    node: str | None = None,
    data: str | Path | None = None,
    uncovered: bool = False,
) -> Export:
    """Write the average model of a run, or that of a node, into a new folder: `RUN/export` unless named.

    A model that the run's figure does not cover is refused, unless it is wanted `uncovered`: then the card says so, and
    its owner alone can read the files. `data` is the folder of files that the run was made from.
    """
    place = Path(run) / EXPORT.name if out is None else Path(out)
    if place.exists():
        raise InputError(f"{place} exists", "a model that was handed on is not overwritten", "name another with --out")
    check_folder(place)
    found = open_final_model(Path(run), node=node, data=None if data is None else Path(data), uncovered=uncovered)
    with explaining(place, "a model is written into it", "name another with --out"), new_folder(place):
        write_exported_model(
            place, _state_dict(found), _description(found), model_card(found), private=not found.is_covered
        )
    headline = found.run.privacy.headline
    epsilon = headline.epsilon if found.is_covered else None
    return Export(place, found.node, len(found.parameters), found.is_covered, epsilon)


def _state_dict(found: FinalModel) -> dict[str, Tensor]:
    """All parameters and buffers of the module, those that were trained with their final values."""
    model = found.training_run.task.model
    return {**model.module.state_dict(), **model.layout.views(found.parameters)}


def _description(found: FinalModel) -> Document:
    task, experiment, privacy = found.training_run.task, found.run.experiment, found.run.privacy
    columns, headline = experiment.data.columns, privacy.headline
    return {
        "run": experiment.name,
        "node": found.node,
        "data": experiment.data.name,
        "model": {
            "name": experiment.model.name, "settings": experiment.model.settings, "loss": task.model.loss.name,
        },
        "inputs": list(task.dataset.shape),
        "classes": list(task.dataset.classes),
        "columns": columns if isinstance(columns, dict) else None,
        "privacy": {
            "covered": found.is_covered, "headline": headline.document(),
            "delta": privacy.delta, "adjacency": privacy.adjacency,
        },
    }  # fmt: skip


def check_export(run: FinishedRun) -> FolderCheck:
    """The model that was exported into the run's folder, if there is one: whether it is the run's, and its card too."""
    check, place = FolderCheck(), run.folder / EXPORT.name
    if not check_no_link(place).exists():
        return check
    try:
        stated = read_description(place / DESCRIPTION)
        found = open_final_model(run.folder, node=stated["node"], data=run.data, uncovered=True)
        card = read_bytes(place / CARD).decode()
        stored = {
            PARAMETERS: safetensors.torch.load(read_bytes(place / PARAMETERS)),
            STATE_DICT: torch.load(io.BytesIO(read_bytes(place / STATE_DICT)), weights_only=True),
        }
    except (InputError, OSError, ValueError, KeyError, RuntimeError, pickle.UnpicklingError, SafetensorError) as error:
        check.findings.append(f"{EXPORT.name}: it is not a model of this run: {error}")
        return check
    given = as_read({"format": FORMAT, **_description(found)})
    check.compare(f"{EXPORT.name}/{DESCRIPTION}", stated, [Given("what the run gives", given)])
    if card != model_card(found):
        check.findings.append(f"{EXPORT.name}/{CARD}: it is not the card that belongs to this run")
    for name, parameters in stored.items():
        if not _same_parameters(parameters, _state_dict(found)):
            check.findings.append(f"{EXPORT.name}/{name}: its parameters are not those of the models in checkpoint.npz")
    for path in sorted(place.iterdir()):
        if path.name not in (CARD, DESCRIPTION, PARAMETERS, STATE_DICT):
            check.leave_out(f"{EXPORT.name}/{path.name}", (), "it is not compared with anything")
    return check


def _same_parameters(stored: object, given: dict[str, Tensor]) -> bool:
    if not isinstance(stored, dict) or stored.keys() != given.keys():
        return False
    pairs = [(stored[name], value) for name, value in given.items()]
    return all(
        isinstance(one, Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)
        and torch.allclose(one, other, rtol=MEASURED_TOLERANCE, atol=1e-9)
        for one, other in pairs
    )  # fmt: skip
