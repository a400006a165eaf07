"""What each node can learn about each other, from the views of single nodes in `privacy.json`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sottovoce.config import Document
from sottovoce.privacy.rounding import round_up
from sottovoce.report.told import guess_of

PROVEN, IDEAL = "proven", "fixed-streams"

PAIRS = 60_000
"""Of more pairs only sums are shown: by distance, and how many have which epsilon."""

BINS = 24


def rounded(value: Any) -> Any:
    """A privacy figure as it is shown: rounded up to four digits; the word inf where it is infinite.

    >>> rounded(0.70710678), rounded("inf")
    (0.7072, 'inf')
    """
    return "inf" if math.isinf(float(value)) else float(round_up(float(value)))


def leaks(privacy: Document, n: int) -> Document | None:
    """All pairs that were accounted for, with the best proven figure and the idealised one; None without attackers.

    Rows are attackers, columns victims; where there is no figure stands None.
    """
    views = {_member(view["view"]): view for view in privacy["views"] if view["view"].startswith("node:")}
    if not views:
        return None
    attackers = sorted(views)
    ways: dict[str, list[list[Document | None]]] = {PROVEN: [], IDEAL: []}
    for attacker in attackers:
        found = views[attacker]["guarantees"]
        ways[PROVEN].append(_row([one for one in found if one["proven_for_training"]], n))
        ways[IDEAL].append(_row([one for one in found if one["kind"] == IDEAL], n))
    ways = {way: rows for way, rows in ways.items() if any(one for row in rows for one in row)}
    small = len(attackers) * n <= PAIRS
    return {
        "attackers": attackers,
        "refusals": sorted({line for view in views.values() for line in view["refusals"]}),
        "ways": {way: _way(rows, privacy["delta"], small) for way, rows in ways.items()},
        "distance": _distances([row for rows in ways.values() for row in rows], len(attackers)) if small else None,
    }


def _member(view: str) -> int:
    return int(view.partition(":")[2])


def _row(guarantees: Sequence[Document], n: int) -> list[Document | None]:
    """For each victim the guarantee with the least epsilon."""
    row: list[Document | None] = [None] * n
    for one in guarantees:
        before = row[one["victim"]]
        if before is None or float(one["epsilon"]) < float(before["epsilon"]):
            row[one["victim"]] = one
    return row


def _way(rows: list[list[Document | None]], delta: float, small: bool) -> Document:
    every = [one for row in rows for one in row if one is not None]
    kinds = sorted({one["kind"] for one in every})
    summed = {
        "kinds": kinds,
        "assumptions": {kind: _first(every, kind)["assumptions"] for kind in kinds},
        "by_distance": _by_distance(every),
        "histogram": None if small else _histogram(every),
    }
    if not small:
        return summed
    return {
        **summed,
        "epsilon": [[one and rounded(one["epsilon"]) for one in row] for row in rows],
        "guess": [[one and percent(guess_of(one, delta)) for one in row] for row in rows],
        "kind": [[one and kinds.index(one["kind"]) for one in row] for row in rows],
    }


def _first(every: Sequence[Document], kind: str) -> Document:
    return next(one for one in every if one["kind"] == kind)


def percent(share: float) -> float:
    """A share in percent, rounded up to one decimal."""
    return math.ceil(share * 1000) / 10


def _distances(rows: list[list[Document | None]], attackers: int) -> list[list[int | None]]:
    return [[None if one is None else one["distance"] for one in row] for row in rows[:attackers]]


def _by_distance(every: Sequence[Document]) -> list[Document]:
    """Least, middle and largest epsilon at each number of hops; nodes that no message joins come last."""
    found: dict[Any, list[float]] = {}
    for one in every:
        found.setdefault(one["distance"], []).append(float(one["epsilon"]))
    return [
        {
            "distance": hops, "pairs": len(figures), "least": rounded(min(figures)),
            "median": rounded(sorted(figures)[len(figures) // 2]), "most": rounded(max(figures)),
        }
        for hops, figures in sorted(found.items(), key=lambda item: math.inf if item[0] is None else item[0])
    ]  # fmt: skip


def _histogram(every: Sequence[Document]) -> Document:
    """How many pairs have which epsilon."""
    figures = np.array([float(one["epsilon"]) for one in every])
    finite = figures[np.isfinite(figures)]
    counts, edges = np.histogram(finite, BINS) if finite.size else (np.zeros(0, int), np.zeros(0))
    return {"edges": edges.tolist(), "counts": counts.tolist(), "infinite": int(figures.size - finite.size)}
