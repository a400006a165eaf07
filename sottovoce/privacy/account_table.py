"""Guarantees as a table, by kind and by distance from the adversary."""

from __future__ import annotations

from collections.abc import Iterable

from sottovoce.privacy.gaussian_dp import epsilons_of
from sottovoce.privacy.guarantee import Guarantee, Kind
from sottovoce.privacy.rounding import round_up


def table_by_distance(guarantees: Iterable[Guarantee], delta: float) -> list[list[str]]:
    """Epsilon by kind and by distance from the view: least, mean and largest over victims."""
    table = [["kind", "distance", "victims", "mu min", "mean", "max", "epsilon min", "mean", "max"]]
    groups: dict[tuple[str, int | None], list[Guarantee]] = {}
    for guarantee in guarantees:
        if guarantee.kind is not Kind.AS_PUBLISHED:
            groups.setdefault((guarantee.kind, guarantee.distance), []).append(guarantee)
    for (kind, distance), found in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        columns = []
        mus = [guarantee.mu for guarantee in found]
        for values in (mus, epsilons_of(mus, delta).tolist()):
            columns += [round_up(x) for x in (min(values), sum(values) / len(values), max(values))]
        far = ("out of reach" if found[0].view.members else "-") if distance is None else str(distance)
        table.append([kind, far, str(len(found)), *columns])
    return table
