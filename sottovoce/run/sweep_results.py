"""The results of a sweep: final figures averaged over seeds, at the tuned values that did best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.run.final_figures import final_mean
from sottovoce.run.sweep import Point, SweepRun, last_word
from sottovoce.support.config import Document

LESS_IS_BETTER = ("rmse",)
METRICS = ("accuracy", *LESS_IS_BETTER)


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
        """A figure of the run as `final_figures` has it; NaN where it diverged."""
        return math.nan if self.diverged else final_mean(self.lines, self.run.experiment.metrics.final_rounds, pick)


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
        """accuracy or rmse."""
        return metric_of(self.runs[0].lines[-1])

    @property
    def diverged(self) -> bool:
        """Whether any of its runs diverged."""
        return any(run.diverged for run in self.runs)

    def final_figures(self, pick: Callable[[Document], float]) -> list[float]:
        """A figure of each seed, as `final_figures` has it; NaN for runs that diverged."""
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
        metric, first = self.metric, self.runs[0].result
        figures = {
            "average_model": self.final_figures(lambda line: line[metric]["average"]),
            "mean_node": self.final_figures(lambda line: line[metric]["mean"]),
            "worst_node": self.final_figures(lambda line: line[metric]["max" if metric in LESS_IS_BETTER else "min"]),
            "loss": self.final_figures(lambda line: line["loss"]["average"]),
            "node_loss": self.final_figures(lambda line: line["loss"]["mean"]),
        }
        return {
            "run": self.label, "seeds": len(self.runs), "tuned": dict(self.tuned), "metric": metric,
            **{key: _mean_and_deviation(values) for key, values in figures.items()},
            "consensus": float(np.mean([run.lines[-1]["consensus"] for run in self.runs])),
            "megabytes": float(np.mean([run.lines[-1]["bytes"] / 1e6 for run in self.runs])),
            "epsilon": "inf" if self.epsilon == math.inf else self.epsilon,
            "sigma": first["sigma"], "delta": first["delta"],
            "seconds": float(np.mean([run.result["seconds"] for run in self.runs])),
        }  # fmt: skip


def metric_of(line: Document) -> str:
    """The name of the metric in a line of metrics."""
    return "accuracy" if "accuracy" in line else "rmse"


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
