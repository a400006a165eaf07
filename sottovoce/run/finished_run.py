"""A finished run, opened again: the training run that its settings build, its guarantees, recordings and final model.

No file is opened only because the settings name it: whoever sends a folder writes its settings, and could name any file
of the reader's. So a graph that came from a file is read from `graph.json`, and data and other files of the user's own
are looked for in the folder that the user names, and nowhere else.

Publishing a model tells about its training rows whatever its messages tell. It follows from messages where a figure
says that it covers the final models: all of them, or their average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor, from_numpy

from sottovoce.core.compression import Identity
from sottovoce.core.final_models import FinalModels
from sottovoce.core.random_streams import NoiseKey
from sottovoce.errors import InputError, Unaccountable
from sottovoce.learning.datasets import NAMES_A_TABLE, OF_ITS_OWN, folder_of
from sottovoce.learning.tables import Table, is_folder_of_tables
from sottovoce.learning.tasks import CPU
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.views import View, node_number
from sottovoce.run.build import build_accountant, build_run
from sottovoce.run.checkpoint import load
from sottovoce.run.fingerprint import check_own_code, fingerprint, public_fingerprint
from sottovoce.run.layout import IN_FILE, REMEDY, RULE, RunFiles, read_noise_key, read_private_facts
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.public_check import check_privacy
from sottovoce.run.recording import Messages, read_recording
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.run_documents import FILE, RunDocuments, read_begun_run, read_runs, recorded_graph
from sottovoce.run.training_run import TrainingRun, average_model
from sottovoce.support.config import Document, Experiment
from sottovoce.support.files import explaining, inside
from sottovoce.support.npz import read_checked_npz
from sottovoce.tracing.tracer import trace

STEADY_AFTER = 3
"""After so many rounds as many messages reach a view in a round as in any later one."""


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run's folder and all that follows from its settings. `data` is the folder of data sets, where one is named.

    `stored_privacy` is what `privacy.json` says; `fingerprint` is that of the run with its data, and private. Noise and
    batches are those of the run if the folder still `has_key`, and others if the key was taken out. `foreign` says
    which files are not of the run that its settings build; `open_run` gives no run that has any.
    """

    folder: Path
    data: Path | None
    own: bool
    experiment: Experiment
    training_run: TrainingRun
    stored_privacy: Document
    fingerprint: str
    has_key: bool
    foreign: tuple[InputError, ...] = ()

    @cached_property
    def privacy(self) -> PrivacyDocument:
        """The guarantees that the run's folder states."""
        return PrivacyDocument.read(self.stored_privacy)

    @cached_property
    def messages(self) -> Messages:
        """What attackers received; refuses a run that recorded nothing."""
        return read_recording(self.folder, self.training_run, self.experiment.record)

    def node(self, name: str) -> int:
        """The number of a node that is given by its number or by its name in the run's graph."""
        return node_number(name, self.training_run.topology.names)

    def beginning(self, view: View, victims: Sequence[int] | None = None) -> Observation:
        """The first rounds as a view sees them, which tell how much there is of every round."""
        operator, rounds = self.training_run.algorithm.compression, min(self.training_run.rounds, STEADY_AFTER)
        if not isinstance(operator, Identity):
            raise Unaccountable(
                f"{operator.name}: coordinates are not all sent in the same way, so what is received is not one "
                "linear system; "
                "take a run with identity compression"
            )
        return observe(
            trace(self.training_run.algorithm, self.training_run.topology, rounds=rounds), view, victims=victims
        )


def open_run(folder: Path, data: Path | None = None, *, own: bool = False) -> FinishedRun:
    """Open a finished run. Its checkpoint must fit what its settings build: the same data, noise and version.

    Files that its settings name are opened only if the settings are known to be the user's `own`; else they are looked
    for in the folder `data`.
    """
    found = open_doubted_run(folder, data, own=own)
    for problem in found.foreign:
        raise problem
    return found


def open_doubted_run(folder: Path, data: Path | None = None, *, own: bool = False) -> FinishedRun:
    """The same, whatever its files say: what does not fit its settings is in `foreign`."""
    files, experiment, stated, _ = read_begun_run(folder, finished=True)
    has_key = files.noise_key.exists()
    training_run = build_run(buildable(experiment, data, own=own), data, recorded_graph(files, experiment))
    digest = fingerprint(experiment, training_run)
    foreign = []
    for check in (
        lambda: check_own_code(stated, experiment, folder),
        lambda: load(files.checkpoint, training_run, digest),
        lambda: _check_public(files, stated, public_fingerprint(experiment, training_run)),
        lambda: read_noise_key(files, experiment, digest) if has_key else None,
    ):
        try:
            check()
        except InputError as problem:
            foreign.append(problem)
    if has_key and not foreign:
        training_run = training_run.keyed(read_noise_key(files, experiment, digest))
    return FinishedRun(
        folder, data, own, experiment, training_run, stated, digest, has_key and not foreign, tuple(foreign)
    )


def _check_public(files: RunFiles, stated: Document, public: str) -> None:
    if stated["fingerprint"] != public:
        raise InputError(f"{files.privacy}: of another run", "it holds the guarantees of the run", "run again")


def accountant_of(files: RunFiles, experiment: Experiment, data: Path | None) -> RunAccountant:
    """The accountant that the settings and the graph of a run's folder give.

    Where nodes have tables of their own, settings say how many rows each has, and no table is looked for.
    """
    tables: dict[str, Table] | None = {} if experiment.data.partition == OF_ITS_OWN else None
    wanted = buildable(experiment, data, with_rows=tables is None)
    return build_accountant(wanted, data, recorded_graph(files, experiment), tables=tables)


def buildable(experiment: Experiment, data: Path | None, *, own: bool = False, with_rows: bool = True) -> Experiment:
    """The settings with files that the user names, and for a key in a file some other key: it may have been taken out.

    A run whose settings name a key stays one that can be repeated, which its guarantees say. Without rows, tables of
    nodes are not looked for. Whoever looks at a run needs no device that it was trained on.
    """
    found = experiment if own else _with_named_files(experiment, data, with_rows=with_rows)
    at_home = {"machine": found.machine.model_copy(update={"device": CPU.type})}
    key = {"noise_key": NoiseKey.fresh().hexadecimal} if found.noise_key == IN_FILE else {}
    return found.model_copy(update={**at_home, **key})


def _with_named_files(experiment: Experiment, data: Path | None, *, with_rows: bool) -> Experiment:
    """Settings whose files are those of their names in the folder that the user gives, or SOTTOVOCE_DATA.

    Refuses settings with files where no folder has them. Without rows, no table is looked for.
    """
    settings, correlation = experiment.data, experiment.algorithm.settings.get("correlation")
    named, algorithm = {}, experiment.algorithm
    for kind, is_looked_for in ((FILE, True), (NAMES_A_TABLE, with_rows)):
        if settings.name.startswith(kind) and is_looked_for:
            is_folder = is_folder_of_tables(settings)
            place = _named_file(settings.name.removeprefix(kind), "data.name", data, is_folder=is_folder)
            named["name"] = kind + str(place)
    if settings.name.startswith(NAMES_A_TABLE) and isinstance(settings.columns, str):
        named["columns"] = str(_named_file(settings.columns, "data.columns", data).absolute())
    if isinstance(correlation, str):
        path = str(_named_file(correlation, "algorithm.correlation", data))
        algorithm = type(algorithm)(name=algorithm.name, **(algorithm.settings | {"correlation": path}))
    return experiment.model_copy(update={"data": settings.model_copy(update=named), "algorithm": algorithm})


def _named_file(path: str, setting: str, data: Path | None, *, is_folder: bool = False) -> Path:
    place = folder_of(data)
    found = None if place is None else inside(place, path, is_folder=is_folder)
    if found is None:
        where = "no folder was named" if place is None else f"there is no such file in {place}"
        raise InputError(
            f"{setting} of the run is the file {path!r}, and {where}",
            "the settings of a finished run never open files on their own",
            "name the folder that holds it with --data",
        )
    return found


# --- the model that it ended with -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FinalModel:
    """Parameters in one row, of the run that they are from; `node` is whose they are, None for the average."""

    run: RunDocuments
    training_run: TrainingRun
    parameters: Tensor
    node: str | None

    @property
    def scores(self) -> Document | None:
        """How well it does on held-out rows, where that was measured: of the average, or of a member's own model."""
        measured = self.node is None or self.node == self.run.member
        return self.run.result.get("held_out") if measured else None

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

    Whose it is follows from the settings, never from the result. The run's headline is computed anew, and the model
    must carry the fingerprint of these settings. One that the headline does not cover is refused, unless `uncovered`
    says that it is wanted all the same. `data` has the files that settings name.
    """
    run = read_runs([folder])[0]
    files, experiment = RunFiles(folder), run.experiment
    accountant = accountant_of(files, experiment, data)
    different = check_privacy(run.stated, accountant, experiment).findings
    if different:
        raise InputError(f"{folder}: {different[0]}", "guarantees follow from the settings", "run it again")
    training_run, public = accountant.training_run, public_fingerprint(experiment, accountant.training_run)
    if run.member is not None:
        found = FinalModel(run, training_run, _member_model(files, training_run, public, run.member, node), run.member)
    else:
        found = _simulated(run, files, training_run, public, node)
    if not found.is_covered and not uncovered:
        raise Unaccountable(_why_uncovered(found))
    return found


def _simulated(
    run: RunDocuments, files: RunFiles, training_run: TrainingRun, public: str, node: str | None
) -> FinalModel:
    facts, n = read_private_facts(files), training_run.topology.n
    if facts is None or not files.checkpoint.exists():
        raise InputError(
            f"{files.folder}: no checkpoint with its private.json", "models are in these private files of a run",
            "export where the run was made",
        )  # fmt: skip
    if not facts.fingerprint.startswith(f"{public}-"):
        raise InputError(f"{files.private}: of another run", "a model is that of its own settings", REMEDY)
    state = load(files.checkpoint, training_run, facts.fingerprint).state
    if node is None:
        return FinalModel(run, training_run, average_model(training_run, state), None)
    names = training_run.topology.names
    number = node_number(node, names)
    if not 0 <= number < n:
        raise InputError(f"--node {node}", f"nodes are 0 to {n - 1}", "name one of them")
    return FinalModel(run, training_run, training_run.models(state)[number], names[number] if names else str(number))


def _member_model(files: RunFiles, training_run: TrainingRun, public: str, member: str, node: str | None) -> Tensor:
    """What a member ended with; it has no other model."""
    if node not in (None, member):
        raise InputError(f"--node {node}", f"this is the folder of {member}, which has its own model", "leave it out")
    path = files.member_model
    with explaining(path, RULE, REMEDY):
        found = read_checked_npz(path)
    stored, size = found.get("model"), training_run.task.model.layout.size
    is_own = found.get("about", np.empty(0)).tobytes() == public.encode()
    if not is_own or stored is None or stored.shape != (size,) or stored.dtype.kind != "f":
        raise InputError(f"{path}: not the model of this run", RULE, REMEDY)
    return from_numpy(stored)


def _why_uncovered(found: FinalModel) -> str:
    whose, wanted = ("the average model", "average") if found.node is None else (f"the model of {found.node}", "all")
    if math.isinf(found.run.privacy.headline.epsilon):
        return f"no privacy figure is proven for this run, so none covers {whose}; add --uncovered to export it anyway"
    return (
        f"{found.run.privacy.algorithm}: the figure of this run does not cover {whose} once it is published; run again "
        f'with privacy.and_final_models = "{wanted}", or add --uncovered to export it anyway'
    )
