"""A finished run, opened again: its settings, the training run they build, its guarantees and its recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sottovoce.core.compression import Identity
from sottovoce.core.noise_key import NoiseKey
from sottovoce.errors import InputError, Unaccountable
from sottovoce.learning.devices import CPU
from sottovoce.learning.table_data import OF_ITS_OWN
from sottovoce.learning.tables import Table
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.views import View, node_number
from sottovoce.run.build import build_accountant, build_run
from sottovoce.run.checkpoint import load
from sottovoce.run.fingerprint import check_own_code, fingerprint, public_fingerprint
from sottovoce.run.layout import RunFiles
from sottovoce.run.noise_key_file import IN_FILE, read_noise_key
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.recorded_inputs import recorded_graph, with_named_files
from sottovoce.run.recording import Messages, read_recording
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.run_documents import unfinished_run
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.config import Document, Experiment, parse_experiment
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
    files = RunFiles(folder)
    settings = files.document(files.config) if folder.is_dir() else None
    if settings is None:
        raise InputError(f"{folder}: no run", "the folder of a run has a config.json", "give runs/NAME of sotto run")
    if not files.result.exists():
        raise unfinished_run(folder)
    experiment = parse_experiment(settings, str(files.config))
    privacy = files.document(files.privacy)
    has_key = files.noise_key.exists()
    training_run = build_run(buildable(experiment, data, own=own), data, recorded_graph(files, experiment))
    digest = fingerprint(experiment, training_run)
    foreign = []
    for check in (
        lambda: check_own_code(privacy or {}, experiment, folder),
        lambda: load(files.checkpoint, training_run, digest),
        lambda: _check_public(files, privacy, public_fingerprint(experiment, training_run)),
        lambda: read_noise_key(files, experiment, digest) if has_key else None,
    ):
        try:
            check()
        except InputError as problem:
            foreign.append(problem)
    if has_key and not foreign:
        training_run = training_run.keyed(read_noise_key(files, experiment, digest))
    return FinishedRun(
        folder, data, own, experiment, training_run, privacy or {}, digest, has_key and not foreign, tuple(foreign)
    )


def _check_public(files: RunFiles, privacy: Document | None, public: str) -> None:
    if privacy is None or privacy["fingerprint"] != public:
        what = "not there" if privacy is None else "of another run"
        raise InputError(f"{files.privacy}: {what}", "it holds the guarantees of the run", "run again")


def accountant_of(files: RunFiles, experiment: Experiment, data: Path | None) -> RunAccountant:
    """The accountant that the settings and the graph of a run's folder give.

    Where nodes have tables of their own, settings say how many rows each has, and no table is looked for. Members of a
    federation draw secret noise, which figures say.
    """
    tables: dict[str, Table] | None = {} if experiment.data.partition == OF_ITS_OWN else None
    wanted = buildable(experiment, data, with_rows=tables is None)
    if "member" in (files.document(files.result) or {}):
        wanted = wanted.model_copy(update={"noise": "secret", "noise_key": None})
    return build_accountant(wanted, data, recorded_graph(files, experiment), tables=tables)


def buildable(experiment: Experiment, data: Path | None, *, own: bool = False, with_rows: bool = True) -> Experiment:
    """The settings with files that the user names, and for a key in a file some other key: it may have been taken out.

    A run whose settings name a key stays one that can be repeated, which its guarantees say. Without rows, tables of
    nodes are not looked for. Whoever looks at a run needs no device that it was trained on.
    """
    found = experiment if own else with_named_files(experiment, data, with_rows=with_rows)
    at_home = {"machine": found.machine.model_copy(update={"device": CPU.type})}
    key = {"noise_key": NoiseKey.fresh().hexadecimal} if found.noise_key == IN_FILE else {}
    return found.model_copy(update={**at_home, **key})
