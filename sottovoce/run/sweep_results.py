"""What a sweep came to: figures at the end over seeds, the best of what was tuned, as a table and as a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.config import Document
from sottovoce.run.sweep import Planned

LAST = 50
"""Figures at the end are means over this many last rounds, as far as they were measured."""

LESS_IS_BETTER = ("rmse",)


@dataclass(frozen=True)
class Finished:
    """A run of a sweep with its result and its lines of metrics."""

    run: Planned
    result: Document
    lines: Sequence[Document]


@dataclass(frozen=True)
class Row:
    """One variant at one point of the grid, at the tuned values that did best: all its seeds."""

    variant: str
    values: tuple[tuple[str, Any], ...]
    tuned: tuple[tuple[str, Any], ...]
    runs: tuple[Finished, ...]

    @property
    def label(self) -> str:
        """Variant and grid values."""
        words = (f"{key.rpartition('.')[2]} {value}" for key, value in self.values)
        return ", ".join(word for word in (self.variant, *words) if word) or "all seeds"

    @property
    def metric(self) -> str:
        """accuracy or rmse."""
        return metric_of(self.runs[0].lines[-1])

    def ending(self, pick: Callable[[Document], float]) -> list[float]:
        """For each seed, the mean over the last rounds of a figure; not a number for runs that went astray."""
        return [
            math.nan if "diverged" in run.result else float(np.mean([pick(line) for line in _last(run.lines)]))
            for run in self.runs
        ]

    def quality(self, of: str = "average") -> float:
        """The metric of the average model, or the `mean` over nodes; larger is better, what is not finite worst."""
        value = float(np.mean(self.ending(lambda line: float(line[self.metric][of]))))
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
            "average_model": self.ending(lambda line: line[metric]["average"]),
            "mean_node": self.ending(lambda line: line[metric]["mean"]),
            "worst_node": self.ending(lambda line: line[metric]["max" if metric in LESS_IS_BETTER else "min"]),
            "loss": self.ending(lambda line: line["loss"]["average"]),
            "node_loss": self.ending(lambda line: line["loss"]["mean"]),
        }
        return {
            "run": self.label, "seeds": len(self.runs), "tuned": dict(self.tuned), "metric": metric,
            **{key: _spread(values) for key, values in figures.items()},
            "consensus": float(np.mean([run.lines[-1]["consensus"] for run in self.runs])),
            "megabytes": float(np.mean([run.lines[-1]["bytes"] / 1e6 for run in self.runs])),
            "epsilon": "inf" if self.epsilon == math.inf else self.epsilon,
            "sigma": first["sigma"], "delta": first["delta"],
            "seconds": float(np.mean([run.result["seconds"] for run in self.runs])),
        }  # fmt: skip


def metric_of(line: Document) -> str:
    """The name of the metric in a line of metrics."""
    return next(key for key in ("accuracy", "rmse") if key in line)


def rows(finished: Iterable[Finished], best: str = "average") -> list[Row]:
    """One row for each variant and point of the grid, in their order: the tuned values that did best.

    `best` says for whom: for the `average` of all models, or for the `mean` over nodes.
    """
    groups: dict[tuple[Any, Any], dict[Any, list[Finished]]] = {}
    for one in finished:
        at = groups.setdefault((one.run.variant, one.run.values), {})
        at.setdefault(one.run.tuned, []).append(one)
    found = []
    for (variant, values), options in groups.items():
        tried = [Row(variant, values, tuned, tuple(runs)) for tuned, runs in options.items()]
        found.append(max(tried, key=lambda row: row.quality(best)))
    return found


def _last(lines: Sequence[Document]) -> list[Document]:
    end = lines[-1]["round"]
    return [line for line in lines if line["round"] > max(0, end - LAST)] or [lines[-1]]


def _spread(values: list[float]) -> Document:
    """Mean and sample deviation; None where they are no finite numbers."""
    figures = {"mean": float(np.mean(values)), "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None}
    return {key: value if value is not None and math.isfinite(value) else None for key, value in figures.items()}
