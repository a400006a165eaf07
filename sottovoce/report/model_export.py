"""A run's model, written into a folder that can be handed on, with its card.

The card says what the model is for, on whom it was trained, and what protects them.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

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
from sottovoce.learning.starts import SETTINGS, merged
from sottovoce.report.quality import decision_table, quality_rows
from sottovoce.report.sweep_report import markdown_table
from sottovoce.report.wording import headline_sentence, not_covered, spent_text
from sottovoce.run.finished_run import FinalModel, FinishedRun, open_final_model
from sottovoce.run.folder_check import MEASURED_TOLERANCE, FolderCheck, Given, as_read
from sottovoce.run.layout import EXPORT
from sottovoce.support.config import Document
from sottovoce.support.files import check_folder, check_no_link, explaining, new_folder, read_bytes
from sottovoce.support.text import to_json


@dataclass(frozen=True)
class Export:
    """Where a model was written, and whether the run's figure covers it."""

    folder: Path
    node: str | None
    parameters: int
    covered: bool
    epsilon: float | None
    scores: Document | None

    def document(self) -> Document:
        """As JSON."""
        epsilon = None if self.epsilon is None else to_json(self.epsilon)
        return {
            "folder": str(self.folder), "files": [CARD, DESCRIPTION, PARAMETERS, STATE_DICT], "node": self.node,
            "parameters": self.parameters, "covered": self.covered, "epsilon": epsilon, "held_out": self.scores,
        }  # fmt: skip


def export_model(
    run: str | Path,
    out: str | Path | None = None,
    *,
    node: str | None = None,
    data: str | Path | None = None,
    uncovered: bool = False,
    scores: bool = False,
) -> Export:
    """Write the average model of a run, or that of a node, into a new folder: `RUN/export` unless named.

    A model that the run's figure does not cover is refused, unless it is wanted `uncovered`: then the card says so, and
    its owner alone can read the files. With `scores` the card has figures on held-out rows. `data` is the folder of
    files that the run was made from.
    """
    place = Path(run) / EXPORT.name if out is None else Path(out)
    if place.exists():
        raise InputError(f"{place} exists", "a model that was handed on is not overwritten", "name another with --out")
    check_folder(place)
    found = open_final_model(Path(run), node=node, data=None if data is None else Path(data), uncovered=uncovered)
    with explaining(place, "a model is written into it", "name another with --out"), new_folder(place):
        write_exported_model(
            place, _state_dict(found), _description(found), model_card(found, scores=scores),
            private=not found.is_covered,
        )  # fmt: skip
    headline = found.run.privacy.headline
    epsilon = headline.epsilon if found.is_covered else None
    return Export(place, found.node, len(found.parameters), found.is_covered, epsilon, found.scores)


def _state_dict(found: FinalModel) -> dict[str, Tensor]:
    """All parameters and buffers of the module, those that were trained with their final values."""
    model = found.training_run.task.model
    return merged(model.module, {**model.module.state_dict(), **model.layout.views(found.parameters)})


def _description(found: FinalModel) -> Document:
    task, experiment, privacy = found.training_run.task, found.run.experiment, found.run.privacy
    columns, headline = experiment.data.columns, privacy.headline
    return {
        "run": experiment.name,
        "node": found.node,
        "data": experiment.data.name,
        "model": {
            "name": experiment.model.name, "loss": task.model.loss.name,
            "settings": {key: value for key, value in experiment.model.settings.items() if key not in SETTINGS},
        },
        "inputs": list(task.dataset.shape),
        "classes": list(task.dataset.classes),
        **({"threshold": task.threshold} if len(task.dataset.classes) == 2 else {}),
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
    if card not in (model_card(found), model_card(found, scores=True)):
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


# --- the card --------------------------------------------------------------------------------------------------------

UNCOVERED = (
    "**No privacy figure covers this model.** Whoever has it may learn about the rows that it was trained on. Do not "
    "hand it on where these are private."
)


def model_card(found: FinalModel, *, scores: bool = False) -> str:
    """The card, in Markdown. It says nothing that depends on rows but what is computed from them with noise, and
    figures on held-out rows if `scores` are wanted there."""
    whose = "the average of all nodes' models" if found.node is None else f"the model of {found.node}"
    name = found.run.experiment.name
    parts = [
        f"# {name}", f"This is {whose} at the end of the run `{name}`, trained with Sottovoce.",
        "## What it is", *_model(found),
        "## On whose data", *_data(found),
        "## Privacy", *_privacy(found),
        "## How well it does", *_scores(found, told=scores),
        "## How to use it", *_use(found),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _model(found: FinalModel) -> list[str]:
    task, settings, privacy = found.training_run.task, found.run.experiment, found.run.privacy
    columns, classes = settings.data.columns, task.dataset.classes
    target = f"`{columns['target']}`" if isinstance(columns, dict) else f"the targets of {task.dataset.name}"
    kinds = f"one of {len(classes)} classes: {', '.join(classes)}" if classes else "a number"
    if task.dataset.periods:
        kinds = f"the probability of no event until {', '.join(f'{end:g}' for end in task.dataset.periods)}"
    lines = [
        f"- it predicts {target}: {kinds}",
        f"- model `{settings.model.name}`, {task.model.layout.size:,} parameters, {task.model.loss.name} loss",
        f"- trained by {privacy.algorithm} on {privacy.topology}, {privacy.rounds} rounds",
    ]
    return [
        "\n".join(lines),
        *(["Its inputs are these columns of a table:", _columns(columns)] if isinstance(columns, dict) else []),
    ]


def _columns(columns: Document) -> str:
    rows = []
    for one in columns["columns"]:
        if one["name"] not in (columns["target"], columns.get("event")):
            limits = one.get("range")
            values = f"numbers from {limits[0]:g} to {limits[1]:g}" if limits else ", ".join(one["categories"])
            rows.append([cell.replace("|", "\\|") for cell in (one["name"], values)])
    return "\n".join(markdown_table(["column", "values"], rows))


def _data(found: FinalModel) -> list[str]:
    """Numbers of records are public in every run; rows are not looked at."""
    sizes, names = [len(rows) for rows in found.training_run.task.shards.indices], found.training_run.topology.names
    total = f"{sum(sizes):,} records of {len(sizes)} nodes, from {min(sizes):,} to {max(sizes):,} each, as declared."
    if names is None or len(sizes) > 50:
        return [total]
    return [total, "\n".join(f"- {name}: {size:,}" for name, size in zip(names, sizes, strict=True))]


def _privacy(found: FinalModel) -> list[str]:
    privacy, names = found.run.privacy, found.training_run.topology.names
    left_out = "\n".join(f"- {sentence}" for sentence in not_covered(privacy, of_member=found.run.member is not None))
    if not found.is_covered:
        stated = (
            []
            if privacy.headline.proves_nothing
            else ["What the run promises without it:", headline_sentence(privacy, names)]
        )
        return [UNCOVERED, *stated, "Not covered in any case:", left_out]
    return [
        headline_sentence(privacy, names),
        *(f"Of all runs, as `result.json` of the run states, {name}: {text}. That was not checked."
          for name, text in spent_text(found.run.result).items()),
        f"{privacy.headline.final_models.sentence}: the figure counts this model as handed on.",
        "It assumes:", "\n".join(f"- {one.sentence}" for one in privacy.headline.assumptions),
        "Not covered:", left_out,
    ]  # fmt: skip


def _scores(found: FinalModel, *, told: bool) -> list[str]:
    """Figures on held-out rows are computed from these without noise, so they travel with the model only if `told`."""
    if found.scores is None:
        return ["It was not measured on held-out rows."]
    if not told:
        return [
            "It was measured on held-out rows. No figure covers these, so what was found is not here: it is in "
            "`result.json` of the run, for whoever may see the rows."
        ]
    rows = [[name, text.replace("|", "\\|")] for name, text in quality_rows(found.scores).items()]
    tables = [[["figure", "value"], *rows], decision_table(found.scores)]
    return [
        *("\n".join(markdown_table(heads, lines)) for heads, *lines in filter(None, tables)),
        "The run's `result.json` states these; the export did not compute them again. They are computed from held-out "
        "rows without noise, and no privacy figure covers them.",
    ]


def _use(found: FinalModel) -> list[str]:
    predict = []
    if isinstance(found.run.experiment.data.columns, dict):
        predict = ["```console\n$ sotto predict FOLDER --data ROWS.csv --out PREDICTIONS.csv\n```"]
    return [
        *predict,
        f"`{STATE_DICT}` and `{PARAMETERS}` hold the same parameters, by their names in torch: "
        f'`torch.load("{STATE_DICT}", weights_only=True)`. `model.json` says how inputs are scaled.',
    ]
