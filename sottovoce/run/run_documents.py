"""What finished runs left behind, read from their folders: settings, guarantees, measurements, attacks and audits.

Reading needs no torch. `finished_run` opens a run again to work with its data and its algorithm.

What a run came to are its figures after the last round, the same in every table, plot and comparison.
`metrics.final_rounds` asks for the mean over several last rounds instead; then words beside the figures say so.

>>> lines = [{"round": at, "loss": at / 100} for at in (0, 80, 90, 100)]
>>> final_mean(lines, None, lambda line: line["loss"]), final_mean(lines, 20, lambda line: line["loss"])
(1.0, 0.95)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sottovoce.core.graphs import MOST_NODES, Graph
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.learning.tables import is_folder_of_tables
from sottovoce.run.folder_check import FolderCheck, only_read
from sottovoce.run.layout import RunFiles
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.support.config import Document, Experiment, merge, parse_experiment
from sottovoce.support.files import write_text

FILE = "file:"
"""How settings name a file of the user's own."""

LESS_IS_BETTER = ("rmse", "log_loss")
METRICS = ("accuracy", *LESS_IS_BETTER)


@dataclass(frozen=True, eq=False)
class RunDocuments:
    """The files of one finished run that may be handed on, and what attacks and audits found, where there were any.

    `stated` is its `privacy.json`, `privacy` what that says. `check` is what speaks against them, and what nothing was
    compared with: all of it, unless whoever has them has computed it.
    """

    folder: Path
    experiment: Experiment
    stated: Document
    privacy: PrivacyDocument
    result: Document
    lines: Sequence[Document]
    attacks: Document
    audit: Document
    graph: Graph | None = None
    baselines: Document | None = None
    check: FolderCheck = field(default_factory=only_read)

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.experiment.name

    @property
    def member(self) -> str | None:
        """Whose part of a federation this is, by the settings; None where all nodes were simulated."""
        return self.experiment.member

    @property
    def metric(self) -> str:
        """One of METRICS."""
        return metric_of(self.lines[-1])

    def final_metric(self, figure: str) -> float:
        """The run's metric as `final_mean` has it: of the `average` model, or `mean`, `min` or `max` over nodes."""
        final_rounds, metric = self.experiment.metrics.final_rounds, self.metric
        return final_mean(self.lines, final_rounds, lambda line: line[metric][figure])

    def with_contact(self, contact: str) -> RunDocuments:
        """The same run, with somebody whom its readers can ask."""
        settings = merge(self.experiment.document(), {"about": {"contact": contact}})
        return replace(self, experiment=parse_experiment(settings, "--contact"))


def metric_of(line: Document) -> str:
    """The name of the metric in a line of metrics."""
    return next(name for name in METRICS if name in line)


def read_runs(paths: Iterable[Path]) -> list[RunDocuments]:
    """The runs in some folders, each a run's own or that of a sweep; all must be measured by the same metric."""
    found = [
        read_doubted_run(folder) for folder in dict.fromkeys(folder for path in paths for folder in _runs_in(path))
    ]
    for one in found:
        _check_lines(one)
    if not found:
        raise InputError("no run", "at least one run is needed", "give runs/NAME of sotto run")
    other = next((one for one in found if one.metric != found[0].metric), None)
    if other is not None:
        raise InputError(
            f"{found[0].name} is measured in {found[0].metric}, {other.name} in {other.metric}",
            "one scale cannot show both", "compare runs on the same task",
        )  # fmt: skip
    return found


def unfinished_runs(paths: Iterable[Path]) -> list[Path]:
    """Runs without a result in folders of sweeps, because they were stopped or diverged: `read_runs` skips them."""
    found = dict.fromkeys(folder for path in paths if not RunFiles(path).config.exists() for folder in _inside(path))
    return [folder for folder in found if not RunFiles(folder).result.exists()]


def damaged_run(folder: Path) -> InputError:
    """What is wrong where files of a run do not have what they should."""
    return InputError(
        f"{folder}: damaged, or of another version", "the files of a run must belong together", "run it again"
    )


def _runs_in(path: Path) -> list[Path]:
    if not path.is_dir():
        raise InputError(f"{path}: no such folder", "a run or a sweep has one", "give runs/NAME of sotto run")
    if RunFiles(path).config.exists():
        return [path]
    inside = _inside(path)
    finished = [folder for folder in inside if RunFiles(folder).result.exists()]
    if not finished:
        what = "only unfinished runs in it" if inside else "no run"
        raise InputError(f"{path}: {what}", "a finished run has a result.json", "give runs/NAME of sotto run")
    return finished


def _inside(path: Path) -> list[Path]:
    return sorted((part.parent for part in path.glob("**/config.json")), key=_natural_order)


def _natural_order(path: Path) -> list[tuple[float, str]]:
    """So that 2 comes before 16."""
    parts = re.split(r"([0-9]+(?:\.[0-9]+)?)", str(path))
    return [(float(part), "") if part[:1].isdigit() else (math.inf, part) for part in parts]


class BegunRun(NamedTuple):
    """What a run states before its first round; `stated` is its `privacy.json`, `privacy` what that says."""

    files: RunFiles
    experiment: Experiment
    stated: Document
    privacy: PrivacyDocument


def read_begun_run(folder: Path, *, finished: bool = False) -> BegunRun:
    """One run, finished or not; one that is not may be refused."""
    files = RunFiles(folder)
    settings = files.document(files.config) if folder.is_dir() else None
    if finished and settings is not None and not files.result.exists():
        raise InputError(f"{folder}: an unfinished run", "only finished runs can be read", "go on with --resume")
    stated = None if settings is None else files.document(files.privacy)
    if settings is None or stated is None:
        raise InputError(
            f"{folder}: no run", "the folder of a run has a config.json and a privacy.json",
            "give runs/NAME of sotto run",
        )  # fmt: skip
    try:
        return BegunRun(files, parse_experiment(settings, str(files.config)), stated, PrivacyDocument.read(stated))
    except (KeyError, TypeError) as error:
        raise damaged_run(folder) from error


def read_doubted_run(folder: Path) -> RunDocuments:
    """One finished run, whatever its lines of metrics are."""
    files, experiment, stated, privacy = read_begun_run(folder, finished=True)
    result, attacks, audit = (files.document(path) or {} for path in (files.result, files.attack, files.audit))
    graph, baselines = recorded_graph(files, experiment), files.document(files.baselines)
    return RunDocuments(folder, experiment, stated, privacy, result, files.lines(), attacks, audit, graph, baselines)


def record_graph(files: RunFiles, experiment: Experiment, topology: Topology) -> None:
    """Write `graph.json` of a run whose graph comes from a file, or whose nodes are called like their tables."""
    graph = topology.graph
    if not _is_recorded(experiment) or graph is None or files.graph.exists():
        return
    senders, receivers = graph.adjacency.nonzero()
    pairs = zip(senders.tolist(), receivers.tolist(), strict=True)
    document = {
        "name": graph.name, "nodes": graph.n, "directed": graph.directed,
        "labels": None if graph.labels is None else list(graph.labels),
        "edges": [list(pair) for pair in pairs if graph.directed or pair[0] < pair[1]],
    }  # fmt: skip
    write_text(files.graph, json.dumps(document) + "\n", private=True)


def _is_recorded(experiment: Experiment) -> bool:
    return experiment.topology.graph.startswith(FILE) or is_folder_of_tables(experiment.data)


def recorded_graph(files: RunFiles, experiment: Experiment) -> Graph | None:
    """The graph that a run recorded; None where its settings describe one that needs no file."""
    if not _is_recorded(experiment):
        return None
    stored = files.document(files.graph)
    if stored is None and not experiment.topology.graph.startswith(FILE):
        return None
    if stored is None:
        raise InputError(f"{files.graph}: not there", "it holds the graph, which came from a file", "run it again")
    nodes, labels = stored["nodes"], stored["labels"]
    if nodes > MOST_NODES or (labels is not None and not len(set(labels)) == len(labels) == nodes):
        raise InputError(f"{files.graph}: damaged: {nodes} nodes", "each has one name", "restore it, or run it again")
    edges = np.array(stored["edges"], dtype=np.int64).reshape(-1, 2)
    built = Graph.from_edges(edges, name=stored["name"], directed=stored["directed"], nodes=nodes)
    return replace(built, labels=None if labels is None else tuple(labels))


def _check_lines(run: RunDocuments) -> None:
    """Refuse lines of metrics that are not of one metric, or not in the order of a run's rounds up to its end."""
    measured, rounds = [line["round"] for line in run.lines], run.experiment.training.rounds
    metrics = [[metric for metric in METRICS if metric in line] for line in run.lines]
    if len(metrics[0]) != 1 or any(found != metrics[0] for found in metrics):
        raise damaged_run(run.folder)
    if measured[-1] != rounds or any(later <= earlier for earlier, later in pairwise(measured)):
        raise InputError(
            f"{RunFiles(run.folder).metrics}: rounds {measured[0]} to {measured[-1]}",
            f"the run has {rounds}, measured one by one", "restore the file, or run it again",
        )  # fmt: skip


def final_mean(lines: Sequence[Document], final_rounds: int | None, pick: Callable[[Document], float]) -> float:
    """A figure after the last round of a run, or its mean over the measurements in the last `final_rounds`."""
    return float(np.mean([pick(line) for line in final_lines(lines, final_rounds)]))


def final_lines(lines: Sequence[Document], final_rounds: int | None) -> list[Document]:
    """The lines of metrics of the last round, or of the last `final_rounds`; never that of the start."""
    end = lines[-1]["round"]
    return [line for line in lines if line["round"] > max(0, end - (final_rounds or 1))] or [lines[-1]]


AFTER_THE_LAST = "after the last round"


def final_rounds_text(settings: Iterable[int | None]) -> str:
    """When final figures are taken, for runs with these values of `metrics.final_rounds`.

    >>> final_rounds_text([50, 50]), final_rounds_text([None, 1])
    ('mean over the last 50 rounds', 'after the last round')
    """
    found = [AFTER_THE_LAST if (rounds or 1) == 1 else f"mean over the last {rounds} rounds" for rounds in settings]
    return " or ".join(dict.fromkeys(found))


def final_average_text(settings: Iterable[int | None]) -> str:
    """`final_rounds_text` where a figure is a mean over rounds; empty where all are simply after the last round."""
    text = final_rounds_text(settings)
    return "" if text == AFTER_THE_LAST else text
