"""Runs beside each other: what they are called, which of them are one but for their seed, what each came to.

>>> names = ["study/mafalda,epsilon=10.0,seed=0", "study/mafalda,epsilon=3.0,seed=0", "study/d-psgd,seed=0"]
>>> labels = run_labels(names, ["mafalda", "mafalda", "d-psgd"])
>>> [str(label) for label in labels]
['MAFALDA, ε = 10', 'MAFALDA, ε = 3', 'D-PSGD']
>>> labels[0].without("epsilon")
'MAFALDA'
>>> [str(label) for label in run_labels(["mine", "yours"], ["mafalda", "dp-d-sgd"])]
['mine', 'yours']

Runs that differ only by their seed are one line or point in figures: the mean, with the deviation between seeds; of
epsilon, and of the success of attacks, the worst seed. Points that differ only in how much noise there is are joined.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import numpy as np

from sottovoce.algorithms.registry import algorithm_specs
from sottovoce.attacks.registry import PageFigure, page_attacks
from sottovoce.errors import InputError
from sottovoce.report.figures import Figure, Line, over_seeds, panels
from sottovoce.report.wording import finite
from sottovoce.run.run_documents import LESS_IS_BETTER, RunDocuments, damaged_run
from sottovoce.run.sweep import last_word
from sottovoce.support.config import Document, leaves
from sottovoce.support.text import to_json

NOISE = ("privacy.epsilon", "algorithm.sigma", "algorithm.message_sigma")
"""Settings that tell apart runs with more or less noise."""

NOISE_KEYS = tuple(map(last_word, NOISE))

SYMBOLS = {"epsilon": "ε", "sigma": "σ", "delta": "δ"}
SWEPT = re.compile(r"(?:[^=,]+,)?[a-z_]+=[^=,]+(?:,[a-z_]+=[^=,]+)*")
"""How a sweep names its runs: a variant, if there are any, then settings with their values."""


@dataclass(frozen=True)
class RunLabel:
    """A run by its variant and by those settings that tell it from others; a run of no sweep by its name."""

    variant: str
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return self.without()

    def without(self, *keys: str) -> str:
        """The label with some settings left out; the variant stays, or the first setting where there is none."""
        words = [self.variant, *(_setting(key, value) for key, value in self.settings if key not in keys)]
        return ", ".join(word for word in words if word) or _setting(*self.settings[0])


def run_labels(names: Sequence[str], algorithms: Sequence[str]) -> list[RunLabel]:
    """The labels of runs with these names, each with its algorithm; a folder that all share is not said."""
    parts = [name.rpartition("/") for name in names]
    shared = len(names) > 1 and len({folder for folder, _, _ in parts}) == 1
    if not shared or not all(SWEPT.fullmatch(last) for _, _, last in parts):
        return [RunLabel(last if shared else name) for name, (_, _, last) in zip(names, parts, strict=True)]
    words = [[word.partition("=") for word in last.split(",")] for _, _, last in parts]
    every = [{key: value for key, equals, value in one if equals} for one in words]
    told = {key for one in every for key in one if key == "epsilon" or len({other.get(key) for other in every}) > 1}
    told -= {"seed"} if len({one.get("seed") for one in every}) == 1 else set()
    return [
        RunLabel(_variant(one, algorithm), tuple((key, value) for key, value in settings.items() if key in told))
        for one, settings, algorithm in zip(words, every, algorithms, strict=True)
    ]


def _variant(words: Sequence[tuple[str, str, str]], algorithm: str) -> str:
    """The name that the sweep gave a variant; that of the algorithm as papers write it."""
    name = next((key for key, equals, _ in words if not equals), "")
    known = algorithm_specs().get(algorithm)
    return known.title if known is not None and name == algorithm else name


def _setting(key: str, value: str) -> str:
    shown = f"{float(value):g}" if re.fullmatch(r"[0-9]+\.[0-9]+", value) else value
    return f"seed {shown}" if key == "seed" else f"{SYMBOLS.get(key, key.replace('_', ' '))} = {shown}"


def labels_of(runs: Sequence[RunDocuments]) -> list[RunLabel]:
    """The labels of finished runs."""
    return run_labels([run.name for run in runs], [run.privacy.algorithm for run in runs])


def deciding_settings(run: RunDocuments) -> dict[str, object]:
    """The settings that decide a run but for its seed, by dotted key."""
    settings = run.experiment.document()
    for key in ("name", "seed", "noise", "noise_key", "record", "machine", "about", "metrics"):
        settings.pop(key)
    settings["privacy"].pop("attackers")
    return dict(leaves(settings))


def settings_key(run: RunDocuments, *without: str) -> str:
    """The same as one word, without some of them."""
    settings = deciding_settings(run)
    return json.dumps({key: value for key, value in settings.items() if key not in without}, sort_keys=True)


@dataclass(frozen=True)
class AttackSuccess:
    """The AUC of a membership attack with its confidence interval."""

    attack: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f}) {self.attack}"


def strongest_attack(runs: Sequence[RunDocuments]) -> AttackSuccess | None:
    """The membership attack with the largest AUC on any of some runs, of those that the page draws ROC curves of."""
    found = []
    for run in runs:
        names = [attack.name for attack in page_attacks(PageFigure.ROC_CURVE) if attack.name in run.attacks]
        try:
            found += [AttackSuccess(name, **run.attacks[name]["auc"]) for name in names]
        except (KeyError, TypeError):
            raise damaged_run(run.folder) from None
    return max(found, key=lambda success: success.value, default=None)


def trade_off(run: RunDocuments) -> Document:
    """How well a run learned, what is proven about it, and how well the strongest attack did.

    Figures are None where training diverged.
    """
    privacy, headline, attack = run.privacy, run.privacy.headline, strongest_attack([run])
    worst = "max" if run.metric in LESS_IS_BETTER else "min"
    return {
        "run": run.name, "folder": str(run.folder), "seed": run.experiment.seed, "algorithm": privacy.algorithm,
        "topology": privacy.topology, "rounds": privacy.rounds, "metric": run.metric,
        "average_model": finite(run.final_metric("average")), "mean_node": finite(run.final_metric("mean")),
        "worst_node": finite(run.final_metric(worst)), "epsilon": to_json(headline.epsilon), "delta": privacy.delta,
        "kind": headline.kind, "adversary": str(headline.view), "adjacency": privacy.adjacency,
        "change": headline.change, "attack": None if attack is None else asdict(attack),
        "bytes": run.lines[-1]["bytes"],
    }  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Runs that differ only by their seed, by their numbers; `curve` is shared with runs of more or less noise."""

    numbers: list[int]
    seeds: list[RunDocuments]
    label: RunLabel
    curve: str

    @property
    def name(self) -> str:
        """The label, without the seed where there are several."""
        return self.label.without("seed") if len(self.seeds) > 1 else str(self.label)

    @property
    def curve_name(self) -> str:
        """The label, without what tells apart runs of more or less noise."""
        return self.label.without("seed", *NOISE_KEYS)

    @property
    def final(self) -> tuple[float, float]:
        """The metric of the average model at the end, and its deviation."""
        found = [run.final_metric("average") for run in self.seeds]
        return float(np.mean(found)), float(np.std(found, ddof=1)) if len(found) > 1 else 0.0

    @property
    def epsilon(self) -> float:
        """That of the worst seed."""
        return max(run.privacy.headline.epsilon for run in self.seeds)


def series_of(runs: Sequence[RunDocuments]) -> list[Series]:
    """Runs, those together that differ only by their seed."""
    labels, found = labels_of(runs), dict[str, list[int]]()
    for number, run in enumerate(runs):
        found.setdefault(settings_key(run), []).append(number)
    return [
        Series(numbers, [runs[at] for at in numbers], labels[numbers[0]], settings_key(runs[numbers[0]], *NOISE))
        for numbers in found.values()
    ]


def run_figures(runs: Sequence[RunDocuments]) -> list[Figure]:
    """All figures that some runs give: those of which at least one has the numbers."""
    series, named = series_of(runs), f"test {runs[0].metric}"
    learned = f"Test {runs[0].metric} of the average model over rounds"
    spent = [line for one in series if (line := _spent(one)).x]
    return [
        *panels("learning", learned, [_learned(one) for one in series], x="round", y=named),
        *panels("epsilon", "Epsilon, had the run ended earlier", spent, x="round", y="epsilon"),
        *_trade_offs(series, named),
    ]


def _learned(one: Series) -> Line:
    metric, lines = one.seeds[0].metric, [run.lines for run in one.seeds]
    y, spread = over_seeds(lines, lambda line: math.nan if line[metric]["average"] is None else line[metric]["average"])
    return Line(_name(one), [line["round"] for line in lines[0][: len(y)]], y, spread)


def _spent(one: Series) -> Line:
    """Of each round that all seeds have a figure of, that of the worst seed."""
    each = [{end.round: end.epsilon for end in run.privacy.over_rounds} for run in one.seeds]
    rounds = sorted(set.intersection(*map(set, each)))
    worst = {at: max(ends[at] for ends in each) for at in rounds}
    shown = [at for at in rounds if math.isfinite(worst[at])]
    return Line(_name(one), shown, [worst[at] for at in shown])


def _trade_offs(series: Sequence[Series], named: str) -> list[Figure]:
    """The metric over epsilon, and the success of attacks over the metric."""
    private, attacked = list[Line](), list[Line]()
    for name, members in _curves(series):
        finite = [one for one in members if math.isfinite(one.final[0])]
        proven = sorted((one.epsilon, *one.final) for one in finite if math.isfinite(one.epsilon))
        measured = sorted(
            (one.final[0], found.value, (found.high - found.low) / 2)
            for one in finite
            if (found := strongest_attack(one.seeds))
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


def figures_over(runs: Sequence[RunDocuments], key: str) -> list[Figure]:
    """The metric and epsilon over any setting that is a number: a line for all that differs else, a mean over seeds."""
    series = series_of(runs)
    settings = [deciding_settings(one.seeds[0]) for one in series]
    differing = [name for name in dict.fromkeys(chain(*settings)) if len({str(one.get(name)) for one in settings}) > 1]
    values = [one.get(key) for one in settings]
    at = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(at) < len(series) or key not in differing:
        raise InputError(
            f"--over {key}", "figures are over a setting that is a number in each run, and not the same in all",
            f"settings that differ here: {', '.join(differing) or 'none'}",
        )  # fmt: skip
    told = [name for name in differing if name != key]
    points: dict[str, list[tuple[float, ...]]] = {}
    for x, one, own in zip(at, series, settings, strict=True):
        name = ", ".join(f"{last_word(word)} {own.get(word)}" for word in told)
        points.setdefault(name or "all runs", []).append((x, *one.final, one.epsilon))
    learned, proven, named, short = list[Line](), list[Line](), f"test {runs[0].metric}", last_word(key)
    for name, unsorted in points.items():
        xs, means, spreads, epsilons = map(list, zip(*sorted(unsorted), strict=True))
        learned.append(Line(name, xs, means, spreads))
        proven += [Line(name, xs, epsilons)] if any(map(math.isfinite, epsilons)) else []
    wide = min(at) > 0 and max(at) / min(at) >= 8
    what = f"{named.capitalize()} of the average model over {key}"
    return [
        *panels(f"over-{short}", what, learned, x=key, y=named, log_x=wide),
        *panels(f"epsilon-over-{short}", f"Epsilon over {key}", proven, x=key, y="epsilon", log_x=wide),
    ]


def _curves(series: Sequence[Series]) -> list[tuple[str, list[Series]]]:
    """Series that differ only in how much noise there is, under a name that no other curve has."""
    groups: dict[str, list[Series]] = {}
    for one in series:
        groups.setdefault(one.curve, []).append(one)
    times = Counter(members[0].curve_name for members in groups.values())
    return [
        (members[0].curve_name if times[members[0].curve_name] == 1 else _name(members[0]), members)
        for members in groups.values()
    ]


def _name(one: Series) -> str:
    count = len(one.seeds)
    return f"{one.name} ({count} seeds)" if count > 1 else one.name
