"""A run that goes on: whether its folder is of this run, how far it came, and what a process that died left there.

A folder holds one run. It goes on only with the settings, data, code and versions that it began with, and only while
its files agree with each other and with the settings: rounds may have been played without a checkpoint to show for it,
and their noise must not be drawn again with other data. Who saw both would see the difference without noise.
"""

from __future__ import annotations

from pathlib import Path

from sottovoce.core.topologies import Topology
from sottovoce.distributed.coordinator import Coordinator
from sottovoce.errors import InputError
from sottovoce.run.checkpoint import Checkpoint, load
from sottovoce.run.fingerprint import check_own_code, check_versions, comparable, public_fingerprint
from sottovoce.run.layout import (
    PrivateFacts,
    RunFiles,
    public_settings,
    read_private_facts,
    write_private_facts,
    writing_into_run,
)
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.recording import remove_recordings_after
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.run_documents import record_graph
from sottovoce.run.stated_guarantees import contradictions, result_contradictions, unlike_settings
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.config import Document, Experiment, first_difference, parse_experiment
from sottovoce.support.files import read_bytes, sweep_parts, write


def finished_result(files: RunFiles, experiment: Experiment, resume: bool) -> Document | None:
    """The result of a finished run of these settings, if there is one; refuses a folder that holds something else."""
    folder = files.folder
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "a run needs one", "move that file away")
    before = files.document(files.config)
    if before is None:
        if files.checkpoint.exists():
            raise InputError(f"{folder}: a checkpoint without settings", "a run has both", "remove the folder")
        return None
    stored = parse_experiment(before, str(files.config)).document()
    other = first_difference(comparable(stored), comparable(public_settings(experiment)))
    if other is not None:
        raise InputError(
            f"{folder} holds a run with another {other[0]}", "a folder holds one run", "use another --out, or remove it"
        )
    result = files.document(files.result)
    if result is None and not resume:
        raise InputError(f"{folder} holds an unfinished run", "nothing is overwritten", "go on with --resume")
    if result is not None:
        _check_result(files, experiment, result)
    return result


def _check_result(files: RunFiles, experiment: Experiment, result: Document) -> None:
    """Refuse the result of a finished run that its other files contradict."""
    stated = files.document(files.privacy)
    if stated is None:
        raise InputError(f"{files.privacy}: not there", "a finished run has guarantees", "remove the run's folder")
    check_own_code(stated, experiment, files.folder)
    privacy = PrivacyDocument.read(stated)
    found = contradictions(experiment, privacy)
    _refuse(files, found or result_contradictions(experiment, privacy, result, files.lines()))


def _refuse(files: RunFiles, found: list[str]) -> None:
    if found:
        raise InputError(
            f"{files.folder}: {found[0]}", "guarantees follow from the settings",
            "restore the file, or start a new run in another folder",
        )  # fmt: skip


def stated_privacy(files: RunFiles, experiment: Experiment, accountant: RunAccountant, digest: str) -> Document | None:
    """`privacy.json` of a run that has begun; `private.json` has to say that it began with the data of this one."""
    stated, begun = files.document(files.privacy), read_private_facts(files)
    if stated is not None:
        check_versions(stated, files.folder)
        check_own_code(stated, experiment, files.folder)
    if stated is None and begun is None:
        return None
    public = public_fingerprint(experiment, accountant.training_run)
    if begun is None or begun.fingerprint != digest or (stated is not None and stated.get("fingerprint") != public):
        raise InputError(
            f"{files.privacy}: guarantees for other settings, data or code", "a run can go on only as it began",
            "restore them, or start a new run in another folder",
        )  # fmt: skip
    if stated is not None:
        found = contradictions(experiment, PrivacyDocument.read(stated))
        _refuse(files, found or unlike_settings(stated, accountant, experiment))
    return stated


def last_checkpoint(files: RunFiles, part: TrainingRun, digest: str, coordinator: Coordinator) -> Checkpoint:
    """Where the run goes on: at its checkpoint, or at its start."""
    if files.checkpoint.exists():
        return load(files.checkpoint, part, digest, coordinator)
    return Checkpoint(part.before(), 0, 0.0)


def prepare_folder(
    files: RunFiles,
    experiment: Experiment,
    topology: Topology,
    privacy: Document,
    checkpoint: Checkpoint,
    begun: PrivateFacts,
) -> None:
    """Write what is known before the first round; remove what is half-written, or later than the checkpoint.

    `private.json` comes before `privacy.json`: where there are guarantees, it is known for which data.
    """
    with writing_into_run(files.folder):
        _truncate_metrics(files.metrics, checkpoint.lines)
        remove_recordings_after(files.folder, checkpoint.state.rounds)
        for folder in (files.folder, files.messages):
            sweep_parts(folder)
    record_graph(files, experiment, topology)
    if not files.config.exists():
        files.write_document(files.config, public_settings(experiment))
    if read_private_facts(files) != begun:
        write_private_facts(files, begun)
    if files.document(files.privacy) != privacy:
        files.write_document(files.privacy, privacy)


def _truncate_metrics(path: Path, count: int) -> None:
    """Leave the metrics up to a checkpoint; what came after it will be measured again."""
    content = read_bytes(path) if path.exists() else b""
    lines = content.splitlines(keepends=True)[: content.count(b"\n")]
    if len(lines) < count:
        raise InputError(f"{path}: {len(lines)} lines", f"the checkpoint has {count}", "remove the run's folder")
    if b"".join(lines[:count]) != content:
        write(path, lambda file: file.writelines(lines[:count]), private=True)
