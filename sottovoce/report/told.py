"""Finished runs as a reader meets them: settings, promises, measurements, attacks and audits, from their folders."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce.config import Document, Experiment, parse_experiment
from sottovoce.errors import InputError
from sottovoce.privacy.gaussian_dp import delta_of
from sottovoce.run.layout import RunFiles
from sottovoce.run.sweep_results import LESS_IS_BETTER, metric_of

MEMBERSHIP = ("likelihood", "classifier", "threshold")
"""Attacks that end in a ROC curve."""

PROMISED = {
    "algorithm", "topology", "rounds", "sigma", "sensitivity", "clipping", "adjacency", "delta", "headline", "sampled",
    "convexity", "refusals", "views",
}  # fmt: skip
"""What is read of `privacy.json`; epsilon over rounds may be missing."""


@dataclass(frozen=True, eq=False)
class Told:
    """One finished run; `attacks` and `audit` are empty where nobody made them."""

    folder: Path
    experiment: Experiment
    privacy: Document
    result: Document
    lines: Sequence[Document]
    attacks: Document
    audit: Document

    @property
    def name(self) -> str:
        """Of the run."""
        return self.experiment.name

    @property
    def metric(self) -> str:
        """accuracy or rmse."""
        return metric_of(self.lines[-1])

    @property
    def strongest(self) -> tuple[str, Document] | None:
        """The membership attack that did best, and what it came to."""
        found = [(kind, self.attacks[kind]) for kind in MEMBERSHIP if kind in self.attacks]
        return max(found, key=lambda one: one[1]["auc"]["value"], default=None)

    def ending(self) -> Document:
        """One line of the table of trade-offs, as JSON."""
        last, headline, best = self.lines[-1], self.privacy["headline"], self.strongest
        found = last[self.metric]
        return {
            "run": self.name, "folder": str(self.folder), "seed": self.experiment.seed,
            "algorithm": self.privacy["algorithm"], "topology": self.privacy["topology"],
            "rounds": self.privacy["rounds"], "metric": self.metric,
            "average_model": finite(found["average"]), "mean_node": finite(found["mean"]),
            "worst_node": finite(found["max" if self.metric in LESS_IS_BETTER else "min"]),
            "epsilon": None if headline is None else headline["epsilon"], "delta": self.privacy["delta"],
            "kind": None if headline is None else headline["kind"],
            "adversary": None if headline is None else headline["view"],
            "adjacency": self.privacy["adjacency"], "change": None if headline is None else headline["change"],
            "attack": None if best is None else {"attack": best[0], **best[1]["auc"]}, "bytes": last["bytes"],
        }  # fmt: skip


def told(paths: Iterable[Path]) -> list[Told]:
    """The runs in some folders, each a run's own or that of a sweep; they must have learned the same kind of thing."""
    found = [_read(folder) for folder in dict.fromkeys(folder for path in paths for folder in _runs_in(path))]
    if not found:
        raise InputError("no run", "at least one is looked at", "give runs/NAME of sotto run")
    other = next((one for one in found if one.metric != found[0].metric), None)
    if other is not None:
        raise InputError(
            f"{found[0].name} is measured in {found[0].metric}, {other.name} in {other.metric}",
            "one scale cannot show both", "compare runs on the same task",
        )  # fmt: skip
    return found


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


def unfinished(paths: Iterable[Path]) -> list[Path]:
    """Runs in folders of sweeps without a result, because they were stopped or went astray: `told` leaves them out."""
    found = dict.fromkeys(folder for path in paths if not RunFiles(path).config.exists() for folder in _inside(path))
    return [folder for folder in found if not RunFiles(folder).result.exists()]


def _inside(path: Path) -> list[Path]:
    return sorted((part.parent for part in path.glob("**/config.json")), key=_counting)


def _counting(path: Path) -> list[tuple[float, str]]:
    """So that 2 comes before 16."""
    parts = re.split(r"([0-9]+(?:\.[0-9]+)?)", str(path))
    return [(float(part), "") if part[:1].isdigit() else (math.inf, part) for part in parts]


def _read(folder: Path) -> Told:
    files = RunFiles(folder)
    result, privacy = files.document(files.result), files.document(files.privacy)
    if result is None or privacy is None:
        raise InputError(f"{folder}: an unfinished run", "only finished ones are looked at", "go on with --resume")
    experiment = parse_experiment(files.document(files.config) or {}, str(files.config))
    lines = files.lines()
    try:
        attacks, audit = (files.document(path) or {} for path in (files.attack, files.audit))
        run = Told(folder, experiment, privacy, result, lines, attacks, audit)
        run.ending()
        if missing := PROMISED - {*privacy}:
            raise KeyError(missing)
    except (KeyError, IndexError, TypeError, StopIteration):
        raise InputError(
            f"{folder}: damaged, or of another version", "a run's files belong together", "run it again"
        ) from None
    return run


def finite(value: float) -> float | None:
    """A measured figure; None where a run went astray."""
    return value if math.isfinite(value) else None


def guess_of(guarantee: Document, delta: float) -> float:
    """How often who sees all that the adversary sees is right about one of two equally likely data sets, at most."""
    mu, epsilon = guarantee["mu"], float(guarantee["epsilon"])
    further_apart = math.tanh(epsilon / 2) + 2 * delta if mu is None else delta_of(float(mu), 0.0)
    return min(1.0, (1 + further_apart) / 2)
