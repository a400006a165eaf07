"""Guarantees as a table, by kind and by distance from the adversary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sottovoce.privacy.gaussian_dp import epsilons_of
from sottovoce.privacy.guarantee import Guarantee, Kind, weakest
from sottovoce.privacy.rounding import round_up


def table_by_distance(
    guarantees: Iterable[Guarantee], delta: float, headline: Guarantee | None = None
) -> list[list[str]]:
    """Epsilon by kind and by distance from the view: least, mean and largest over victims.

    A `headline` that is about another adversary has a row of its own, the last one, which names that adversary.
    """
    table = [["kind", "figure", "distance", "victims", "mu min", "mean", "max", "epsilon min", "mean", "max"]]
    groups: dict[tuple[str, int | None], list[Guarantee]] = {}
    for guarantee in guarantees:
        if guarantee.kind is not Kind.AS_PUBLISHED:
            groups.setdefault((guarantee.kind, guarantee.distance), []).append(guarantee)
    for (kind, distance), found in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        table.append(_row(kind, distance, found, delta))
    if headline is not None:
        name = f"headline: {headline.kind} against {headline.view}"
        table.append(_row(name, headline.distance, [headline], delta))
    return table


def _row(name: str, distance: int | None, found: Sequence[Guarantee], delta: float) -> list[str]:
    columns = []
    mus = [guarantee.mu for guarantee in found]
    for values in (mus, epsilons_of(mus, delta).tolist()):
        columns += [round_up(x) for x in (min(values), sum(values) / len(values), max(values))]
    far = ("out of reach" if found[0].view.members else "-") if distance is None else str(distance)
    return [name, weakest(one.figure for one in found).value, far, str(len(found)), *columns]
