"""What each node can learn about each other node, from the views of single nodes in `privacy.json`.

Figures come in two kinds, `FigureKind`: the best that is proven for training, and the idealised one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np

from sottovoce.privacy.guarantee import Kind, PrivacyFigure
from sottovoce.report.wording import percent, rounded
from sottovoce.run.privacy_document import PrivacyDocument, StoredView
from sottovoce.support.config import Document

PAIRS = 16_000
"""So many of a page are shown one by one, at about 80 bytes each, so that it stays below 1.5 MB. Of a run with more
only summaries are shown: by distance, and how many have which epsilon."""

BINS = 24

Row = list[PrivacyFigure | None]
"""For one attacker the guarantee of each victim; None where there is none."""


class FigureKind(StrEnum):
    """Which of the figures for single nodes are shown; the values are keys of the page's data."""

    PROVEN = "proven"
    IDEALISED = Kind.FIXED_STREAMS

    def includes(self, guarantee: PrivacyFigure) -> bool:
        """Whether a guarantee is a figure of this kind."""
        return (
            bool(guarantee.proven_for_training) if self is FigureKind.PROVEN else guarantee.kind == Kind.FIXED_STREAMS
        )


def pairs_shown(privacy: PrivacyDocument) -> int:
    """How many pairs of a run a page would show one by one."""
    views = privacy.node_views
    victims = {one.victim for view in views.values() for one in view.guarantees if one.victim is not None}
    pairs = len(views) * len(victims | views.keys())
    return pairs if pairs <= PAIRS else 0


def pairwise_leakage(privacy: PrivacyDocument, n: int) -> Document | None:
    """All pairs that were accounted for, by kind of figure; None where no single node was accounted for.

    Rows are attackers, columns victims; where there is no figure stands None. `with_models` is the same for attackers
    that also see final models.
    """
    views, published = privacy.node_views, privacy.node_views_with_models
    if not views:
        return None
    attackers = sorted(views)
    rows_of = _rows_of(views, attackers, n)
    small = len(attackers) * n <= PAIRS
    with_models = _rows_of(published, attackers, n) if published.keys() >= views.keys() else {}
    return {
        "attackers": attackers,
        "refusals": sorted({line for view in views.values() for line in view.refusals}),
        "ways": {kind.value: _figures(rows, privacy.delta, small) for kind, rows in rows_of.items()},
        "with_models": {kind.value: _figures(rows, privacy.delta, small) for kind, rows in with_models.items()},
        "distance": _distances([row for rows in rows_of.values() for row in rows][: len(attackers)]) if small else None,
    }


def _rows_of(views: Mapping[int, StoredView], attackers: Sequence[int], n: int) -> dict[FigureKind, list[Row]]:
    """Of each attacker the row of figures, by those kinds that there are."""
    every = {
        kind: [_best([one for one in views[node].guarantees if kind.includes(one)], n) for node in attackers]
        for kind in FigureKind
    }
    return {kind: rows for kind, rows in every.items() if any(one for row in rows for one in row)}


def _best(guarantees: Sequence[PrivacyFigure], n: int) -> Row:
    """For each victim the guarantee with the least epsilon."""
    row: Row = [None] * n
    for one in guarantees:
        assert one.victim is not None, "guarantees against single nodes are about single nodes"
        before = row[one.victim]
        if before is None or one.epsilon < before.epsilon:
            row[one.victim] = one
    return row


def _figures(rows: list[Row], delta: float, small: bool) -> Document:
    every = [one for row in rows for one in row if one is not None]
    kinds = sorted({one.kind for one in every})
    assumptions = {
        kind: next([each.sentence for each in one.assumptions] for one in every if one.kind == kind) for kind in kinds
    }
    summaries = {
        "kinds": kinds,
        "assumptions": assumptions,
        "models": [every[0].final_models.noun, every[0].final_models.sentence],
        "by_distance": _by_distance(every),
        "histogram": None if small else _histogram(every),
    }
    if not small:
        return summaries
    return {
        **summaries,
        "epsilon": [[one and rounded(one.epsilon) for one in row] for row in rows],
        "guess": [[one and percent(one.guessing_accuracy(delta)) for one in row] for row in rows],
        "kind": [[one and kinds.index(one.kind) for one in row] for row in rows],
        "figure": [[one and one.figure for one in row] for row in rows],
    }


def _distances(rows: list[Row]) -> list[list[int | None]]:
    return [[None if one is None else one.distance for one in row] for row in rows]


def _by_distance(every: Sequence[PrivacyFigure]) -> list[Document]:
    """Least, median and largest epsilon at each number of hops; nodes that no path of messages joins come last."""
    found: dict[int | None, list[float]] = {}
    for one in every:
        found.setdefault(one.distance, []).append(one.epsilon)
    return [
        {
            "distance": hops, "pairs": len(figures), "least": rounded(min(figures)),
            "median": rounded(sorted(figures)[len(figures) // 2]), "most": rounded(max(figures)),
        }
        for hops, figures in sorted(found.items(), key=lambda item: math.inf if item[0] is None else item[0])
    ]  # fmt: skip


def _histogram(every: Sequence[PrivacyFigure]) -> Document:
    """How many pairs have which epsilon."""
    figures = np.array([one.epsilon for one in every])
    finite = figures[np.isfinite(figures)]
    counts, edges = np.histogram(finite, BINS) if finite.size else (np.zeros(0, int), np.zeros(0))
    return {"edges": edges.tolist(), "counts": counts.tolist(), "infinite": int(figures.size - finite.size)}
