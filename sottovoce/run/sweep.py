"""Sweeps: one file, several runs: variants, a grid of values, values to tune, seeds.

    >>> document = {
    ...     "name": "study", "topology": {"graph": "ring:8"}, "training": {"rounds": 5}, "seeds": [0, 1],
    ...     "variants": [{"name": "plain", "algorithm": {"name": "d-psgd"}, "grid": False}, {"name": "noisy"}],
    ...     "grid": {"algorithm.sigma": [1.0]}, "tune": {"algorithm.step_size": [0.1, 0.2]},
    ... }
    >>> [run.experiment.name for run in planned(document)][1::3]
    ['study/plain,step_size=0.1,seed=1', 'study/noisy,sigma=1.0,step_size=0.1,seed=0', ...]

A variant with `grid = false` runs once per seed, whatever the grid; a table there is a grid of its own. Of the values
to tune, the one that does best over all seeds is reported, for every variant and grid value by itself. `attacks` are
carried out on all runs that are reported, once they are finished.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from sottovoce.attacks.registry import MEMBERSHIP
from sottovoce.config import Document, Experiment, merge, parse_experiment, set_key
from sottovoce.errors import InputError
from sottovoce.run.build_algorithm import check_algorithm

Point = tuple[tuple[str, Any], ...]
"""Keys with their values."""

VARYING = ("variants", "grid", "tune", "seeds", "attacks")
"""Keys that make a sweep of a document."""


@dataclass(frozen=True)
class Planned:
    """One run of a sweep: which variant, at which values of the grid and of what is tuned."""

    experiment: Experiment
    variant: str
    values: Point = ()
    tuned: Point = ()


def planned(document: Document, where: str = "") -> list[Planned]:
    """All runs of a document; one, under its plain name, where nothing varies. Algorithms are checked, not built."""
    base = {key: value for key, value in document.items() if key not in VARYING}
    if len(base) == len(document):
        return [Planned(_experiment(base, where), "")]
    seeds = _seeds(document)
    attacks_of(document)
    runs = [
        _one(base, variant, values, tuned, seed, where)
        for variant in _variants(document)
        for values in _points(document, variant, "grid")
        for tuned in _points(document, variant, "tune")
        for seed in seeds
    ]
    deaf = next((run.experiment for run in runs if run.experiment.record.attackers in ("none", [])), None)
    if attacks_of(document) and deaf is not None:
        raise InputError(f"attacks on {deaf.name}, which records nothing", "attacks need what attackers received",
                         'write record.attackers = "all"')  # fmt: skip
    names = [run.experiment.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two runs named {twice}", "names of variants and values differ", "rename one")
    return runs


def attacks_of(document: Document) -> list[str]:
    """The attacks on membership that a sweep ends with."""
    found = document.get("attacks", [])
    if not isinstance(found, list) or not all(kind in MEMBERSHIP for kind in found):
        raise InputError(f"attacks = {found}", f"known: {', '.join(MEMBERSHIP)}", 'write attacks = ["threshold"]')
    return found


def _points(document: Document, variant: Document, key: str) -> list[Point]:
    """All combinations of the values of a variant's axes: its own, the document's, or none."""
    own = variant.get(key, True)
    if not isinstance(own, bool | dict):
        raise InputError(f"{key} = {own!r} of variant {variant['name']}", "it is true, false or a table", "correct it")
    axes = _axes(document if own is True else {key: own or {}}, key)
    return [tuple(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _one(base: Document, variant: Document, values: Point, tuned: Point, seed: int, where: str) -> Planned:
    whole = merge(base, {key: value for key, value in variant.items() if key not in ("name", "grid", "tune")})
    for key, value in (*values, *tuned):
        whole = set_key(whole, key.split("."), value)
    words = [str(variant["name"]), *(f"{_last(key)}={value}" for key, value in (*values, *tuned)), f"seed={seed}"]
    label = ",".join(re.sub(r"[^A-Za-z0-9._=+-]", "-", word) for word in words if word)
    whole = {**whole, "seed": seed, "name": f"{base.get('name', '')}/{label}"}
    return Planned(_experiment(whole, where), str(variant["name"]), values, tuned)


def _experiment(document: Document, where: str) -> Experiment:
    experiment = parse_experiment(document, where)
    check_algorithm(experiment)
    return experiment


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _variants(document: Document) -> list[Document]:
    found = document.get("variants", [{"name": ""}])
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) and "name" in one for one in found):
        raise InputError("variants", "each is a table with a name", "write [[variants]] and name = ...")
    for one in found:
        if "seed" in one:
            raise InputError(f"seed of variant {one['name']}", "variants share their seeds", "write seeds = [0, 1]")
    return found


def _axes(document: Document, key: str) -> dict[str, list[Any]]:
    found = document.get(key, {})
    if not isinstance(found, dict) or not all(isinstance(values, list) and values for values in found.values()):
        raise InputError(key, "each of its keys has a list of values", 'write "privacy.epsilon" = [0.5, 1.0]')
    for word in ("name", "seed"):
        if word in found:
            raise InputError(f"{key} over {word}", "it is not for that", "write seeds = [0, 1], or [[variants]]")
    return found


def _seeds(document: Document) -> list[int]:
    if "seeds" not in document:
        return [document.get("seed", 0)]
    found = document["seeds"]
    if not isinstance(found, list) or not found or not all(isinstance(seed, int) for seed in found):
        raise InputError(f"seeds = {found}", "it is a list of whole numbers", "write seeds = [0, 1, 2]")
    return found
