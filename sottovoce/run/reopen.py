"""A finished run, opened again: its settings, the trial they build, what it promised and what it recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sottovoce.compression import Identity
from sottovoce.config import Document, Experiment, from_document
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.views import Seen, View, see
from sottovoce.run.build import build
from sottovoce.run.checkpoint import load
from sottovoce.run.files import Files
from sottovoce.run.folder import fingerprint
from sottovoce.run.record import Messages, recorded
from sottovoce.run.trial import Trial
from sottovoce.trace import trace

SETTLED = 3
"""After so many rounds as many messages reach a view in a round as in any later one."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A run's folder and all that follows from its settings. `data` is the folder of data sets, where one is named."""

    folder: Path
    data: Path | None
    experiment: Experiment
    trial: Trial
    privacy: Document

    @cached_property
    def messages(self) -> Messages:
        """What attackers received; refuses a run that recorded nothing."""
        return recorded(self.folder, self.trial, self.experiment.record)

    def beginning(self, view: View, victims: Sequence[int] | None = None) -> Seen:
        """The first rounds as a view sees them, which tell how much there is of every round."""
        operator, rounds = self.trial.algorithm.compression, min(self.trial.rounds, SETTLED)
        if not isinstance(operator, Identity):
            raise Unaccountable(
                f"{operator.name}: coordinates do not travel alike, so what is received is no one linear system; "
                "take a run with identity compression"
            )
        return see(trace(self.trial.algorithm, self.trial.topology, rounds=rounds), view, victims=victims)


def reopen(folder: Path, data: Path | None = None) -> Opened:
    """Open a finished run. Its checkpoint must fit what its settings build: the same data, noise and version."""
    files = Files(folder)
    settings = files.document(files.config) if folder.is_dir() else None
    if settings is None:
        raise InputError(f"{folder}: no run", "the folder of a run has a config.json", "give runs/NAME of sotto run")
    if not files.result.exists():
        raise InputError(f"{folder}: an unfinished run", "only finished ones are looked at", "go on with --resume")
    experiment = from_document(settings, str(files.config))
    trial = build(experiment, data)
    mark = fingerprint(experiment, trial)
    load(files.checkpoint, trial.before(), mark)
    privacy = files.document(files.privacy)
    if privacy is None or privacy.get("fingerprint") != mark:
        what = "not there" if privacy is None else "of another run"
        raise InputError(f"{files.privacy}: {what}", "it holds what the run promised", "run again")
    return Opened(folder, data, experiment, trial, privacy)
