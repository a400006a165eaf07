"""What a run came to: means over its last rounds, the same in every table, plot and comparison.

>>> lines = [{"round": at, "loss": at / 100} for at in (0, 80, 90, 100)]
>>> final_mean(lines, None, lambda line: line["loss"]), final_mean(lines, 20, lambda line: line["loss"])
(1.0, 0.95)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from sottovoce.config import Document

FINAL_SHARE = 10
"""Unless `metrics.final_rounds` says otherwise, final figures are about one in so many of a run's rounds, the last."""


def final_mean(lines: Sequence[Document], final_rounds: int | None, pick: Callable[[Document], float]) -> float:
    """The mean of a figure over the measurements in the last rounds of a run; at least that of the last one."""
    return float(np.mean([pick(line) for line in final_lines(lines, final_rounds)]))


def final_lines(lines: Sequence[Document], final_rounds: int | None) -> list[Document]:
    """The lines of metrics of the last `final_rounds` rounds, by default of the last tenth; never that of the start."""
    end = lines[-1]["round"]
    window = end // FINAL_SHARE if final_rounds is None else final_rounds
    return [line for line in lines if line["round"] > max(0, end - window)] or [lines[-1]]


def final_rounds_text(settings: Iterable[int | None]) -> str:
    """Over which rounds final figures are means, for runs with these values of `metrics.final_rounds`.

    >>> final_rounds_text([50, 50]), final_rounds_text([None])
    ('the last 50 rounds', 'the last tenth of the rounds')
    """
    texts = {None: "the last tenth of the rounds", 1: "the last round"}
    found = [texts.get(rounds, f"the last {rounds} rounds") for rounds in settings]
    return " or ".join(dict.fromkeys(found))
