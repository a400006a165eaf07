"""What runs are called on pages and in figures, what they differ in, and which of them are one but for their seed.

>>> names = ["study/mafalda,epsilon=10.0,seed=0", "study/mafalda,epsilon=3.0,seed=0", "study/d-psgd,seed=0"]
>>> labels = run_labels(names, ["mafalda", "mafalda", "d-psgd"])
>>> [str(label) for label in labels]
['MAFALDA, ε = 10', 'MAFALDA, ε = 3', 'D-PSGD']
>>> labels[0].without("epsilon")
'MAFALDA'
>>> [str(label) for label in run_labels(["mine", "yours"], ["mafalda", "dp-d-sgd"])]
['mine', 'yours']
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce.algorithms.registry import algorithm_specs
from sottovoce.run.run_documents import RunDocuments

NOISE_KEYS = ("epsilon", "sigma", "message_sigma")
"""Settings that tell apart runs with more or less noise."""

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


def series_of(runs: Sequence[RunDocuments]) -> list[list[int]]:
    """Runs by their numbers, those together that differ only by their seed."""
    found: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        found.setdefault(settings_key(run, noise=True), []).append(number)
    return list(found.values())


def settings_key(run: RunDocuments, *, noise: bool) -> str:
    """The settings that decide a run but for its seed, and without `noise` but for how much noise there is."""
    settings = run.experiment.document()
    for key in ("name", "seed", "noise", "noise_key", "record", "machine", "about", "metrics"):
        settings.pop(key)
    settings["privacy"].pop("attackers")
    if not noise:
        settings["privacy"].pop("epsilon")
        for key in ("sigma", "message_sigma"):
            settings["algorithm"].pop(key, None)
    return json.dumps(settings, sort_keys=True)
