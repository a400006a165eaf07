"""What decides the numbers of a run: a digest of settings, data, graph, noise and version."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch

from sottovoce import __version__
from sottovoce.config import Document, Experiment
from sottovoce.core.topologies import Topology
from sottovoce.learning.datasets import Dataset
from sottovoce.run.training_run import TrainingRun


def versions() -> Document:
    """What has to be the same wherever a run is carried out."""
    return {"sottovoce": __version__, "torch": torch.__version__, "numpy": np.__version__}


def comparable(document: Document) -> Document:
    """What decides the numbers of a run, and what it records if it does."""
    silent = document.get("record", {}).get("attackers") == "none"
    kept = {key: value for key, value in document.items() if key != "about" and not (silent and key == "record")}
    return {**kept, "machine": {**document.get("machine", {}), "checkpoint_seconds": None}}


def fingerprint(experiment: Experiment, training_run: TrainingRun) -> str:
    """A digest of all that decides the numbers: settings, data, graph, noise and this version."""
    digest = hashlib.sha256(json.dumps([__version__, comparable(experiment.document())], sort_keys=True).encode())
    digest.update(_of_data(training_run.task.dataset))
    digest.update(_of_graph(training_run.topology))
    noise = training_run.algorithm.noise
    digest.update(repr(noise).encode())
    if noise.correlation is not None:
        digest.update(noise.correlation.matrix(training_run.rounds).tobytes())
    return digest.hexdigest()


def _of_data(dataset: Dataset) -> bytes:
    digest = hashlib.blake2b()
    rest = (dataset.targets, dataset.test_inputs, dataset.test_targets, dataset.groups)
    for part in (*dataset.examples.chunks(), *rest):
        digest.update(b"" if part is None else part.tobytes())
    return digest.digest()


def _of_graph(topology: Topology) -> bytes:
    """Of the graph that may come from a file, and of the first round's weights; how they change is in the settings."""
    digest = hashlib.blake2b()
    for matrix in (topology.at(0).weights, *([] if topology.graph is None else [topology.graph.adjacency])):
        for part in (matrix.data, matrix.indices, matrix.indptr):
            digest.update(part.tobytes())
    return digest.digest()
