"""Fingerprints of a run: a digest of all that decides its numbers, and one of all of it that is public."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch

from sottovoce._version import __version__
from sottovoce.algorithms.registry import algorithm_code
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.learning.datasets import Dataset, dataset_code
from sottovoce.learning.features import features_code
from sottovoce.learning.models import model_code
from sottovoce.learning.starts import start_digest
from sottovoce.run.layout import public_settings
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.config import Document, Experiment, first_difference


def versions() -> Document:
    """Versions of the packages that decide numbers: the same in all processes of a run, and when it goes on."""
    return {"sottovoce": __version__, "torch": torch.__version__, "numpy": np.__version__}


def check_versions(privacy: Document, folder: object) -> None:
    """Refuse a run that began with other versions: its numbers, its noise among them, may come out differently now.

    `privacy` is what the run wrote before its first round.
    """
    other = first_difference(privacy.get("versions", {}), versions())
    if other is not None:
        package, before, now = other
        raise InputError(
            f"{folder}: the run began with {package} {before or 'of an unknown version'}, and {now} is installed",
            "another version may compute other numbers",
            f"install {package} {before}, or start a new run in another folder"
            if before
            else "start a new run in another folder",
        )


def comparable(document: Document) -> Document:
    """The settings that decide the numbers of a run, and what it records if it does; of a member, that it is one."""
    unrecorded = document.get("record", {}).get("attackers") == "none"
    left_out = {"about", "record"} if unrecorded else {"about"}
    compared = {key: value for key, value in document.items() if key not in left_out}
    if "member" in compared:
        compared["member"] = True
    return {**compared, "machine": {**document.get("machine", {}), "checkpoint_seconds": None}}


def fingerprint(experiment: Experiment, training_run: TrainingRun) -> str:
    """All that decides the numbers: the public fingerprint, then a digest of the data.

    It is private, because it tells data sets apart. Whoever has no data can tell whether it is of some settings.
    """
    digest = hashlib.sha256(_data_digest(training_run.task.dataset))
    digest.update((dataset_code(experiment.data.name) or "").encode())
    return f"{public_fingerprint(experiment, training_run)}-{digest.hexdigest()}"


def public_fingerprint(experiment: Experiment, training_run: TrainingRun) -> str:
    """A digest of settings, graph, noise and this version of sottovoce; equal for any two data sets."""
    digest = hashlib.sha256(json.dumps([__version__, comparable(public_settings(experiment))], sort_keys=True).encode())
    digest.update(_graph_digest(training_run.topology))
    noise = training_run.algorithm.noise
    digest.update(repr((noise, training_run.algorithm.exact_noise)).encode())
    if noise.correlation is not None:
        digest.update(noise.correlation.numbers(training_run.rounds).tobytes())
    if code := own_code(experiment):
        digest.update(json.dumps(code, sort_keys=True).encode())
    return digest.hexdigest()


def origin(experiment: Experiment, training_run: TrainingRun) -> Document:
    """What `privacy.json` says of where its figures are from: versions, the public fingerprint, and own code."""
    code = own_code(experiment)
    public = {"versions": versions(), "fingerprint": public_fingerprint(experiment, training_run)}
    return public | ({"code": code} if code else {})


def own_code(experiment: Experiment) -> dict[str, str]:
    """Digests of the user's own code and weights that decide what nodes send, by the setting that names them.

    The code that reads the data is not among it: what is public says nothing about the data.
    """
    model = experiment.model
    found = {
        "algorithm": algorithm_code(experiment.algorithm.name),
        "model": model_code(model.name),
        "features": features_code(model.settings.get("features")),
        "start": start_digest(model.settings),
    }
    return {setting: digest for setting, digest in found.items() if digest is not None}


def check_own_code(stated: Document, experiment: Experiment, folder: object) -> None:
    """Refuse a run whose code is not what it was; `stated` is its `privacy.json`."""
    other = first_difference(stated.get("code", {}), own_code(experiment))
    if other is not None:
        raise InputError(
            f"{folder}: the code of {other[0]} has changed since the run began", "a run can go on only as it began",
            "restore the code, or start a new run in another folder",
        )  # fmt: skip


def _data_digest(dataset: Dataset) -> bytes:
    digest = hashlib.blake2b()
    others = (dataset.targets, dataset.test_inputs, dataset.test_targets, dataset.groups)
    for part in (*dataset.examples.chunks(), *others):
        digest.update(b"" if part is None else part.tobytes())
    return digest.digest()


def _graph_digest(topology: Topology) -> bytes:
    """Of the graph that may come from a file, and of the first round's weights; how they change is in the settings."""
    digest = hashlib.blake2b()
    for matrix in (topology.at(0).weights, *([] if topology.graph is None else [topology.graph.adjacency])):
        for part in (matrix.data, matrix.indices, matrix.indptr):
            digest.update(part.tobytes())
    return digest.digest()
