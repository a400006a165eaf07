"""The threshold attack: a low loss on the last model received of a victim speaks for one of its members.

As in zip-dl section 6.1 and A.7, with the area for each recorded round besides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sottovoce.attacks.candidate_losses import Series
from sottovoce.attacks.evaluation import Scores, Success, area, success


def threshold(found: Sequence[Series], *, confidence: float = 0.95, seed: int = 0) -> Success:
    """The attack on every pair of attacker and victim; it needs no training, and no knowledge but a threshold."""
    scores = []
    for one in found:
        last = int(np.flatnonzero(one.came())[-1])
        scores.append(Scores((one.run, one.victim), -one.members[last], -one.others[last]))
    return success("threshold", scores, confidence=confidence, seed=seed, by_round=by_round(found))


def by_round(found: Sequence[Series]) -> list[tuple[int, float]]:
    """For each recorded round the mean area over the pairs that something came for."""
    areas: dict[int, list[float]] = {}
    for one in found:
        for at in np.flatnonzero(one.came()):
            areas.setdefault(one.rounds[at], []).append(area(-one.members[at], -one.others[at]))
    return [(round, float(np.mean(areas[round]))) for round in sorted(areas)]
