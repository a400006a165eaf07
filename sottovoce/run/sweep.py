"""Sweeps: one file, several runs: variants, a grid of values, values to tune, seeds; and their results.

    >>> document = {
    ...     "name": "study", "topology": {"graph": "ring:8"}, "training": {"rounds": 5}, "seeds": [0, 1],
    ...     "variants": [{"name": "plain", "algorithm": {"name": "d-psgd"}, "grid": False}, {"name": "noisy"}],
    ...     "grid": {"algorithm.sigma": [1.0]}, "tune": {"algorithm.step_size": [0.1, 0.2]},
    ... }
    >>> [run.experiment.name for run in expand_sweep(document)][1::3]
    ['study/plain,step_size=0.1,seed=1', 'study/noisy,sigma=1.0,step_size=0.1,seed=0', ...]

A variant with `grid = false` runs once per seed, whatever the grid; a table there is a grid of its own. Of the values
to tune, the one that does best over all seeds is reported, for every variant and grid value by itself. The names in
`attacks` are checked by `attacks.registry`; `attacks.run_attacks` attacks all reported runs once they are finished.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.errors import Diverged, InputError
from sottovoce.run.layout import RunFiles
from sottovoce.run.protocol import parse_run
from sottovoce.run.run_documents import LESS_IS_BETTER, final_mean, metric_of
from sottovoce.support.config import Document, Experiment, check_document, merge, set_key
from sottovoce.support.files import read_text, write_text
from sottovoce.support.processes import map_in_processes
from sottovoce.support.progress import Progress
from sottovoce.support.text import json_text, parse_json

Point = tuple[tuple[str, Any], ...]
"""Settings by their dotted keys, with one value each."""

VARYING = ("variants", "grid", "tune", "seeds", "attacks")
"""Keys that make a sweep of a document."""


MOST_RUNS = 10_000

SHARDS = "shards"
"""Folder of a sweep in which every part says that it has ended."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: its variant, and its values of the grid and of the settings to tune."""

    experiment: Experiment
    variant: str
    values: Point = ()
    tuned: Point = ()


def expand_sweep(document: Document, where: str = "") -> list[SweepRun]:
    """All runs of a document; one, under its plain name, where nothing varies. `where` names it in errors."""
    check_document(document, where)
    base = {key: value for key, value in document.items() if key not in VARYING}
    if len(base) == len(document):
        return [SweepRun(parse_run(base, where), "")]
    seeds = document.get("seeds", [document.get("seed", 0)])
    if not isinstance(seeds, list) or not seeds or not all(isinstance(seed, int) for seed in seeds):
        raise InputError(f"seeds = {seeds}", "it must be a list of whole numbers", "write seeds = [0, 1, 2]")
    axes = [
        (variant, *(_axes_of(document, variant, key) for key in ("grid", "tune"))) for variant in _variants(document)
    ]
    count = len(seeds) * sum(math.prod(map(len, (*grid.values(), *tune.values()))) for _, grid, tune in axes)
    if count > MOST_RUNS:  # before they are all listed
        raise InputError(f"a sweep of {count:,} runs", f"it has at most {MOST_RUNS:,}", "use fewer values")
    runs = [
        _sweep_run(base, variant, values, tuned, seed, where)
        for variant, grid, tune in axes
        for values in _points(grid)
        for tuned in _points(tune)
        for seed in seeds
    ]
    twice, times = Counter(run.experiment.name for run in runs).most_common(1)[0]
    if times > 1:
        raise InputError(f"two runs named {twice}", "names of variants and values must differ", "rename one")
    return runs


def _variants(document: Document) -> list[Document]:
    found = document.get("variants", [{"name": ""}])
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) and "name" in one for one in found):
        raise InputError("variants", "each is a table with a name", "write [[variants]] and name = ...")
    for one in found:
        if "seed" in one:
            raise InputError(f"seed of variant {one['name']}", "variants share their seeds", "write seeds = [0, 1]")
    return found


def _axes_of(document: Document, variant: Document, key: str) -> dict[str, list[Any]]:
    """The axes of a variant with their values: its own, the document's, or none."""
    own = variant.get(key, True)
    if not isinstance(own, bool | dict):
        raise InputError(
            f"{key} = {own!r} of variant {variant['name']}", "it must be true, false or a table", "correct it"
        )
    found = document.get(key, {}) if own is True else own or {}
    if not isinstance(found, dict) or not all(isinstance(values, list) and values for values in found.values()):
        raise InputError(key, "each of its keys needs a list of values", 'write "privacy.epsilon" = [0.5, 1.0]')
    for word in ("name", "seed", "noise_key"):
        if word in found:
            raise InputError(
                f"{key} over {word}", "the names of runs would contain it", "write seeds = [0, 1], or [[variants]]"
            )
    return found


def _points(axes: dict[str, list[Any]]) -> list[Point]:
    """All combinations of the values of some axes."""
    return [tuple(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _sweep_run(base: Document, variant: Document, values: Point, tuned: Point, seed: int, where: str) -> SweepRun:
    settings = merge(base, {key: value for key, value in variant.items() if key not in ("name", "grid", "tune")})
    for key, value in (*values, *tuned):
        settings = set_key(settings, key.split("."), value)
    words = [str(variant["name"]), *(f"{last_word(key)}={value}" for key, value in (*values, *tuned)), f"seed={seed}"]
    label = ",".join(re.sub(r"[^A-Za-z0-9._=+-]", "-", word) for word in words if word)
    settings = {**settings, "seed": seed, "name": f"{base.get('name', '')}/{label}"}
    return SweepRun(parse_run(settings, where), str(variant["name"]), values, tuned)


def last_word(key: str) -> str:
    """The last part of a dotted key, by which labels name a setting."""
    return key.rpartition(".")[2]


@dataclass(frozen=True)
class FinishedSweepRun:
    """A run of a sweep with its result and its lines of metrics, and with baselines where they were computed."""

    run: SweepRun
    result: Document
    lines: Sequence[Document]
    baselines: Document | None = None

    @property
    def diverged(self) -> bool:
        """Whether training stopped at a gradient that is not finite."""
        return "diverged" in self.result

    def final_mean(self, pick: Callable[[Document], float]) -> float:
        """A figure of the run as `run_documents.final_mean` has it; NaN where it diverged."""
        return math.nan if self.diverged else final_mean(self.lines, self.run.experiment.metrics.final_rounds, pick)


def run_experiments(
    runs: Sequence[SweepRun],
    out: Path,
    *,
    data: Path | None = None,
    resume: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[FinishedSweepRun]:
    """Carry out all runs of a sweep. Finished ones are only read; one that diverges is noted, any other failure
    stops the rest. Runs that are stopped save where they are, and go on with `resume`.
    """
    results: dict[str, Document] = {}
    act = partial(_attempt, out=out, data=data, resume=resume)
    experiments = [run.experiment for run in runs]
    with closing(map_in_processes(act, experiments, jobs)) as answers:
        for experiment, result in answers:
            results[experiment.name] = result
            if progress is not None:
                progress(len(results), len(runs))
    return [
        FinishedSweepRun(run, results[run.experiment.name], RunFiles(out / run.experiment.name).lines()) for run in runs
    ]


def _attempt(experiment: Experiment, out: Path, data: Path | None, resume: bool) -> Document:
    """The result of a run, or of one that diverged the reason and its guarantee."""
    from sottovoce.run.execute import run_experiment  # what a sweep asks for is known without loading torch

    folder = out / experiment.name
    try:
        return run_experiment(experiment, folder, data=data, resume=resume)
    except Diverged as error:
        return _diverged(experiment, error.found, RunFiles(folder).document(RunFiles(folder).privacy) or {})


def _diverged(experiment: Experiment, why: str, privacy: Document) -> Document:
    return {
        "name": experiment.name, "diverged": why, "headline": privacy.get("headline"),
        "sigma": privacy.get("sigma"), "delta": experiment.privacy.delta, "seconds": 0.0,
    }  # fmt: skip


def _noted(experiment: Experiment, why: str, data: Path | None) -> Document:
    """The result of a run that diverged elsewhere: what its settings prove, and why it did, as a note says."""
    from sottovoce.run.build import build_accountant, with_table_facts
    from sottovoce.run.privacy_report import stated_again

    experiment = with_table_facts(experiment, data)
    return _diverged(experiment, why, stated_again(build_accountant(experiment, data), experiment))


def _has_stopped(folder: Path) -> bool:
    """Whether a run has begun and has no result."""
    return RunFiles(folder).metrics.exists() and not RunFiles(folder).result.exists()


def finished_before(runs: Sequence[SweepRun], out: Path) -> list[Path]:
    """The folders of those runs that are finished, and will only be read."""
    folders = [out / run.experiment.name for run in runs]
    return [folder for folder in folders if RunFiles(folder).result.is_file()]


def only_read(folders: Sequence[Path]) -> list[str]:
    """How far figures of a sweep that were read were checked: a folder may be from somebody else."""
    if not folders:
        return []
    which = str(folders[0]) if len(folders) == 1 else f"{len(folders)} runs"
    return [
        f"Finished before, and only read: {which}. Guarantees were computed again where the data is here; what "
        "models decide was not checked: sotto audit does that."
    ]


@dataclass(frozen=True)
class Shard:
    """One of `count` parts of a sweep, from 1 on, which processes on any machines with one folder carry out."""

    number: int
    count: int

    def of(self, runs: Sequence[SweepRun]) -> list[SweepRun]:
        """The runs of this part: every `count`-th, so that seeds and values are spread over parts."""
        return list(runs[self.number - 1 :: self.count])

    def end(self, sweep: Path, finished: Sequence[FinishedSweepRun]) -> list[int]:
        """Note that this part has ended, and which of its runs diverged; returns the parts that have not ended."""
        diverged = {one.run.experiment.name: one.result["diverged"] for one in finished if one.diverged}
        self._file(sweep, self.number).parent.mkdir(parents=True, exist_ok=True)
        write_text(self._file(sweep, self.number), json_text({"diverged": diverged}), private=True)
        return [number for number in range(1, self.count + 1) if not self._file(sweep, number).exists()]

    def merged(self, runs: Sequence[SweepRun], out: Path, sweep: Path, data: Path | None) -> list[FinishedSweepRun]:
        """All runs of a sweep whose parts have ended: finished ones are read, those that diverged stand in notes.

        A note says only why they did: what is proven of them follows from the settings.
        """
        diverged: dict[str, str] = {}
        for number in range(1, self.count + 1):
            names = {run.experiment.name for run in Shard(number, self.count).of(runs)}
            diverged |= self._note(self._file(sweep, number), {name for name in names if _has_stopped(out / name)})
        rest = run_experiments([run for run in runs if run.experiment.name not in diverged], out, data=data, jobs=1)
        read = {one.run.experiment.name: one for one in rest}
        return [
            read.get(name)
            or FinishedSweepRun(run, _noted(run.experiment, diverged[name], data), RunFiles(out / name).lines())
            for run in runs if (name := run.experiment.name)
        ]  # fmt: skip

    def _note(self, file: Path, stopped: Set[str]) -> dict[str, str]:
        """Which runs of a part diverged, and why; only those that have `stopped` can have."""
        rule, remedy = "sotto run --shard writes there which of its runs diverged", "remove it, and run that part again"
        try:
            found = parse_json(read_text(file, rule, remedy))["diverged"]
            damaged = not (found.keys() <= stopped and all(isinstance(reason, str) for reason in found.values()))
        except (ValueError, LookupError, TypeError, AttributeError):
            damaged = True
        if damaged:
            raise InputError(f"{file}: damaged, or about other runs", rule, remedy)
        return dict(found)

    def _file(self, sweep: Path, number: int) -> Path:
        return sweep / SHARDS / f"{number}-of-{self.count}.json"


def parse_shard(text: str) -> Shard:
    """A part of a sweep, such as 7/50.

    >>> parse_shard("7/50")
    Shard(number=7, count=50)
    """
    found = re.fullmatch(r"([1-9][0-9]*)/([1-9][0-9]*)", text)
    if found is None or int(found[1]) > int(found[2]) or int(found[2]) > MOST_RUNS:
        raise InputError(
            f"--shard {text}", "it is a part of all parts, from 1 on", "write --shard 1/50 to --shard 50/50"
        )
    return Shard(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class SweepRow:
    """One variant at one point of the grid, at the tuned values that did best: all its seeds."""

    variant: str
    values: Point
    tuned: Point
    runs: tuple[FinishedSweepRun, ...]

    @property
    def label(self) -> str:
        """Variant and grid values."""
        words = (f"{last_word(key)} {value}" for key, value in self.values)
        return ", ".join(word for word in (self.variant, *words) if word) or "all seeds"

    @property
    def metric(self) -> str:
        """One of METRICS."""
        return metric_of(self.runs[0].lines[-1])

    @property
    def diverged(self) -> bool:
        """Whether any of its runs diverged."""
        return any(run.diverged for run in self.runs)

    def final_figures(self, pick: Callable[[Document], float]) -> list[float]:
        """A figure of each seed, as `run_documents.final_mean` has it; NaN for runs that diverged."""
        return [run.final_mean(pick) for run in self.runs]

    def quality(self, of: str = "average") -> float:
        """The metric of the average model, or the `mean` over nodes; larger is better, what is not finite worst."""
        value = float(np.mean(self.final_figures(lambda line: float(line[self.metric][of]))))
        value = -value if self.metric in LESS_IS_BETTER else value
        return value if np.isfinite(value) else -np.inf

    @property
    def epsilon(self) -> float | None:
        """The largest over seeds; None where nothing is proven."""
        found = [run.result["headline"] for run in self.runs]
        return None if None in found else max(float(one["epsilon"]) for one in found)

    def document(self) -> Document:
        """As JSON: means over seeds, and sample deviations."""
        metric, first, worst = self.metric, self.runs[0].result, "max" if self.metric in LESS_IS_BETTER else "min"

        def spread(of: str, which: str) -> Document:
            return _mean_and_deviation(self.final_figures(lambda line: line[of][which]))

        return {
            "run": self.label, "seeds": len(self.runs), "tuned": dict(self.tuned), "metric": metric,
            "average_model": spread(metric, "average"), "mean_node": spread(metric, "mean"),
            "worst_node": spread(metric, worst), "loss": spread("loss", "average"), "node_loss": spread("loss", "mean"),
            "consensus": float(np.mean([run.lines[-1]["consensus"] for run in self.runs])),
            "megabytes": float(np.mean([run.lines[-1]["bytes"] / 1e6 for run in self.runs])),
            "epsilon": "inf" if self.epsilon == math.inf else self.epsilon,
            "sigma": first["sigma"], "delta": first["delta"],
            "seconds": float(np.mean([run.result["seconds"] for run in self.runs])),
        }  # fmt: skip


def sweep_rows(finished: Iterable[FinishedSweepRun], tuned_for: str = "average") -> list[SweepRow]:
    """One row for each variant and point of the grid, in their order: the tuned values that did best.

    They are the best for the `average` of all models, or for the `mean` over nodes.
    """
    groups: dict[tuple[str, Point], dict[Point, list[FinishedSweepRun]]] = {}
    for one in finished:
        at = groups.setdefault((one.run.variant, one.run.values), {})
        at.setdefault(one.run.tuned, []).append(one)
    found = []
    for (variant, values), options in groups.items():
        tried = [SweepRow(variant, values, tuned, tuple(runs)) for tuned, runs in options.items()]
        found.append(max(tried, key=lambda row: row.quality(tuned_for)))
    return found


def _mean_and_deviation(values: list[float]) -> Document:
    """Mean and sample deviation; None where they are no finite numbers."""
    figures = {"mean": float(np.mean(values)), "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None}
    return {key: value if value is not None and math.isfinite(value) else None for key, value in figures.items()}
