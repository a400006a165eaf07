"""A run's model, written into a folder that can be handed on, with its card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from sottovoce.errors import InputError
from sottovoce.learning.exported_model import CARD, DESCRIPTION, PARAMETERS, STATE_DICT, write_exported_model
from sottovoce.report.model_card import model_card
from sottovoce.run.final_model import FinalModel, open_final_model
from sottovoce.run.layout import EXPORT
from sottovoce.support.config import Document
from sottovoce.support.files import check_folder, explaining, new_folder
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
