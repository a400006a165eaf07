"""The model that a finished run ended with: the average, or that of one node, and whether its figure covers it.

Publishing a model tells about its training rows whatever its messages tell. It follows from messages where a figure
says that it covers the final models: all of them, or their average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, from_numpy

from sottovoce.core.final_models import FinalModels
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.views import node_number
from sottovoce.run.checkpoint import load
from sottovoce.run.finished_run import accountant_of
from sottovoce.run.layout import MEMBER_MODEL, REMEDY, RULE, RunFiles, read_private_facts
from sottovoce.run.metrics import average_model
from sottovoce.run.run_documents import RunDocuments, read_runs
from sottovoce.run.stated_guarantees import headline_unlike_settings
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.files import explaining, read_npz


@dataclass(frozen=True, eq=False)
class FinalModel:
    """Parameters in one row, of the run that they are from; `node` is whose they are, None for the average."""

    run: RunDocuments
    training_run: TrainingRun
    parameters: Tensor
    node: str | None

    @property
    def is_covered(self) -> bool:
        """Whether the headline of the run still holds if this model is published."""
        headline = self.run.privacy.headline
        if math.isinf(headline.epsilon):
            return False
        enough = (FinalModels.ALL,) if self.node is not None else (FinalModels.ALL, FinalModels.AVERAGE)
        return headline.final_models in enough


def open_final_model(
    folder: Path, *, node: str | None = None, data: Path | None = None, uncovered: bool = False
) -> FinalModel:
    """The average model of a run, or that of a node by its name or number; of a member's run, its own.

    The run's headline is computed anew. A model that it does not cover is refused, unless `uncovered` says that it is
    wanted all the same. `data` has the files that settings name.
    """
    if not RunFiles(folder).config.exists():
        raise InputError(f"{folder}: no run", "the folder of a run has a config.json", "give runs/NAME of sotto run")
    run, files = read_runs([folder])[0], RunFiles(folder)
    accountant = accountant_of(files, run.experiment, data)
    different = headline_unlike_settings(files.document(files.privacy) or {}, accountant, run.experiment)
    if different:
        raise InputError(f"{folder}: {different[0]}", "guarantees follow from the settings", "run it again")
    training_run = accountant.training_run
    member = run.result.get("member")
    if member is not None:
        found = FinalModel(run, training_run, _member_model(files, training_run, member, node), member)
    else:
        found = _simulated(run, files, training_run, node)
    if not found.is_covered and not uncovered:
        raise Unaccountable(_why_uncovered(found))
    return found


def _simulated(run: RunDocuments, files: RunFiles, training_run: TrainingRun, node: str | None) -> FinalModel:
    facts = read_private_facts(files)
    if facts is None or not files.checkpoint.exists():
        raise InputError(
            f"{files.folder}: no checkpoint with its private.json", "models are in these private files of a run",
            "export where the run was made",
        )  # fmt: skip
    state = load(files.checkpoint, training_run, facts.fingerprint).state
    if node is None:
        return FinalModel(run, training_run, average_model(training_run, state), None)
    names = training_run.topology.names
    number = node_number(node, names)
    if not 0 <= number < training_run.topology.n:
        raise InputError(f"--node {node}", f"nodes are 0 to {training_run.topology.n - 1}", "name one of them")
    return FinalModel(run, training_run, training_run.models(state)[number], names[number] if names else str(number))


def _member_model(files: RunFiles, training_run: TrainingRun, member: str, node: str | None) -> Tensor:
    """What a member ended with; it has no other model."""
    if node not in (None, member):
        raise InputError(f"--node {node}", f"this is the folder of {member}, which has its own model", "leave it out")
    path = files.folder / MEMBER_MODEL.name
    with explaining(path, RULE, REMEDY):
        stored = read_npz(path).get("model")
    if stored is None or stored.shape != (training_run.task.model.layout.size,) or stored.dtype.kind != "f":
        raise InputError(f"{path}: not the model of this run", RULE, REMEDY)
    return from_numpy(stored)


def _why_uncovered(found: FinalModel) -> str:
    whose = "the average model" if found.node is None else f"the model of {found.node}"
    headline = found.run.privacy.headline
    if math.isinf(headline.epsilon):
        return f"no privacy figure is proven for this run, so none covers {whose}; add --uncovered to export it anyway"
    wanted = "average" if found.node is None else "all"
    return (
        f"{found.run.privacy.algorithm}: the figure of this run does not cover {whose} once it is published; run again "
        f'with privacy.and_final_models = "{wanted}", or add --uncovered to export it anyway'
    )
