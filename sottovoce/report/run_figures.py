"""Figures of finished runs, for papers and slides: learning, epsilon, trade-offs, and how well attacks did.

Runs that differ only by their seed are one line or point: the mean, with the deviation between seeds; of epsilon, and
of the success of attacks, the worst seed. Points that differ only in how much noise there is are joined.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.report.figures import Figure, Line, over_seeds, panels
from sottovoce.report.run_labels import NOISE_KEYS, RunLabel, labels_of, series_of, settings_key
from sottovoce.report.trade_off import AttackSuccess, strongest_attack
from sottovoce.run.run_documents import RunDocuments


@dataclass(frozen=True)
class _Series:
    """Runs that differ only by their seed; `curve` is what they share with runs that have more or less noise."""

    seeds: list[RunDocuments]
    label: RunLabel

    @property
    def name(self) -> str:
        count = len(self.seeds)
        return f"{self.label.without('seed')} ({count} seeds)" if count > 1 else str(self.label)

    @property
    def curve(self) -> str:
        return settings_key(self.seeds[0], noise=False)

    @property
    def final(self) -> tuple[float, float]:
        """The metric of the average model at the end, and its deviation."""
        found = [run.final_metric("average") for run in self.seeds]
        return float(np.mean(found)), float(np.std(found, ddof=1)) if len(found) > 1 else 0.0

    @property
    def epsilon(self) -> float:
        """That of the worst seed; infinite where one is not proven."""
        found = [run.privacy.headline for run in self.seeds]
        return max(math.inf if one is None else one.epsilon for one in found)

    @property
    def attack(self) -> AttackSuccess | None:
        """The strongest attack on any seed."""
        found = [one for run in self.seeds if (one := strongest_attack(run)) is not None]
        return max(found, key=lambda one: one.value, default=None)


def run_figures(runs: Sequence[RunDocuments]) -> list[Figure]:
    """All figures that some runs give: those of which at least one has the numbers."""
    labels, named = labels_of(runs), f"test {runs[0].metric}"
    series = [_Series([runs[number] for number in members], labels[members[0]]) for members in series_of(runs)]
    learned = f"Test {runs[0].metric} of the average model over rounds"
    spent = [line for one in series if (line := _spent(one)).x]
    return [
        *panels("learning", learned, [_learned(one) for one in series], x="round", y=named),
        *panels("epsilon", "Epsilon, had the run ended earlier", spent, x="round", y="epsilon"),
        *_trade_offs(series, named),
    ]


def _learned(one: _Series) -> Line:
    metric, lines = one.seeds[0].metric, [run.lines for run in one.seeds]
    y, spread = over_seeds(lines, lambda line: math.nan if line[metric]["average"] is None else line[metric]["average"])
    return Line(one.name, [line["round"] for line in lines[0][: len(y)]], y, spread)


def _spent(one: _Series) -> Line:
    """Of each round that all seeds have a figure of, that of the worst seed."""
    each = [{end.round: end.epsilon for end in run.privacy.over_rounds} for run in one.seeds]
    rounds = sorted(set.intersection(*map(set, each)))
    worst = {at: max(ends[at] for ends in each) for at in rounds}
    shown = [at for at in rounds if math.isfinite(worst[at])]
    return Line(one.name, shown, [worst[at] for at in shown])


def _trade_offs(series: Sequence[_Series], named: str) -> list[Figure]:
    """The metric over epsilon, and the success of attacks over the metric."""
    private, attacked = list[Line](), list[Line]()
    for name, members in _curves(series):
        finite = [one for one in members if math.isfinite(one.final[0])]
        proven = sorted((one.epsilon, *one.final) for one in finite if math.isfinite(one.epsilon))
        measured = sorted(
            (one.final[0], found.value, (found.high - found.low) / 2) for one in finite if (found := one.attack)
        )
        private += [Line(name, *map(list, zip(*proven, strict=True)))] if proven else []
        attacked += [Line(name, *map(list, zip(*measured, strict=True)))] if measured else []
    epsilons = [epsilon for line in private for epsilon in line.x]
    wide = bool(epsilons) and min(epsilons) > 0 and max(epsilons) / min(epsilons) >= 8
    learned, hidden = f"{named.capitalize()} of the average model over epsilon", f"Strongest attack against {named}"
    return [
        *panels("trade-off", learned, private, x="epsilon", y=named, log_x=wide),
        *panels("attacks", hidden, attacked, x=named, y="attack's AUC"),
    ]


def _curves(series: Sequence[_Series]) -> list[tuple[str, list[_Series]]]:
    """Series that differ only in how much noise there is, under a name that no other curve has."""
    groups: dict[str, list[_Series]] = {}
    for one in series:
        groups.setdefault(one.curve, []).append(one)
    names = [members[0].label.without("seed", *NOISE_KEYS) for members in groups.values()]
    times = Counter(names)
    return [
        (name if times[name] == 1 else members[0].name, members)
        for name, members in zip(names, groups.values(), strict=True)
    ]
