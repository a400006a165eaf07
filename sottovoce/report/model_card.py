"""The card of a model that is handed on: what it is for, on whom it was trained, and what protects them."""

from __future__ import annotations

from sottovoce.learning.exported_model import PARAMETERS, STATE_DICT
from sottovoce.report.wording import headline_sentence, not_covered
from sottovoce.run.finished_run import FinalModel
from sottovoce.support.config import Document

UNCOVERED = (
    "**No privacy figure covers this model.** Whoever has it may learn about the rows that it was trained on. Do not "
    "hand it on where these are private."
)


def model_card(found: FinalModel) -> str:
    """The card, in Markdown. It says nothing that depends on rows but what is computed from them with noise, and
    figures on held-out rows, which it names as such."""
    whose = "the average of all nodes' models" if found.node is None else f"the model of {found.node}"
    name = found.run.experiment.name
    parts = [
        f"# {name}", f"This is {whose} at the end of the run `{name}`, trained with Sottovoce.",
        "## What it is", *_model(found),
        "## On whose data", *_data(found),
        "## Privacy", *_privacy(found),
        "## How well it does", *_scores(found),
        "## How to use it", *_use(found),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _model(found: FinalModel) -> list[str]:
    task, settings, privacy = found.training_run.task, found.run.experiment, found.run.privacy
    columns, classes = settings.data.columns, task.dataset.classes
    target = f"`{columns['target']}`" if isinstance(columns, dict) else f"the targets of {task.dataset.name}"
    kinds = f"one of {len(classes)} classes: {', '.join(classes)}" if classes else "a number"
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
    rows = ["| column | values |", "|---|---|"]
    for one in columns["columns"]:
        if one["name"] != columns["target"]:
            limits = one.get("range")
            values = f"numbers from {limits[0]:g} to {limits[1]:g}" if limits else ", ".join(one["categories"])
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in (one["name"], values)) + " |")
    return "\n".join(rows)


def _data(found: FinalModel) -> list[str]:
    """Numbers of records are public in every run; rows are not looked at."""
    sizes, names = [len(rows) for rows in found.training_run.task.shards.indices], found.training_run.topology.names
    total = f"{sum(sizes):,} records of {len(sizes)} nodes, from {min(sizes):,} to {max(sizes):,} each, as declared."
    if names is None or len(sizes) > 50:
        return [total]
    return [total, "\n".join(f"- {name}: {size:,}" for name, size in zip(names, sizes, strict=True))]


def _privacy(found: FinalModel) -> list[str]:
    privacy, names = found.run.privacy, found.training_run.topology.names
    left_out = "\n".join(f"- {sentence}" for sentence in not_covered(privacy, of_member="member" in found.run.result))
    if not found.is_covered:
        stated = (
            []
            if privacy.headline.proves_nothing
            else ["What the run promises without it:", headline_sentence(privacy, names)]
        )
        return [UNCOVERED, *stated, "Not covered in any case:", left_out]
    return [
        headline_sentence(privacy, names),
        f"{privacy.headline.final_models.sentence}: the figure counts this model as handed on.",
        "It assumes:", "\n".join(f"- {one.sentence}" for one in privacy.headline.assumptions),
        "Not covered:", left_out,
    ]  # fmt: skip


def _scores(found: FinalModel) -> list[str]:
    """Figures on held-out rows are computed from these without noise, so they do not travel with the model."""
    if found.run.result.get("held_out") is None:
        return ["It was not measured on held-out rows."]
    return [
        "It was measured on held-out rows. No figure covers these, so what was found is not here: it is in "
        "`result.json` of the run, for whoever may see the rows."
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
