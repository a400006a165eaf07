"""What a run came to: its figures after the last round, the same in every table, plot and comparison.

`metrics.final_rounds` asks for the mean over several last rounds instead; then words beside the figures say so.

>>> lines = [{"round": at, "loss": at / 100} for at in (0, 80, 90, 100)]
>>> final_mean(lines, None, lambda line: line["loss"]), final_mean(lines, 20, lambda line: line["loss"])
(1.0, 0.95)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from sottovoce.support.config import Document


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
