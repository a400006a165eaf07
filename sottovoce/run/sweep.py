"""Sweeps: one file, several runs: variants, a grid of values, seeds; and the table that compares them.

    >>> document = {
    ...     "name": "study", "topology": {"graph": "ring:8"}, "training": {"rounds": 5}, "seeds": [0, 1],
    ...     "variants": [{"name": "plain", "algorithm": {"name": "d-psgd"}, "grid": False}, {"name": "noisy"}],
    ...     "grid": {"algorithm.sigma": [1.0]},
    ... }
    >>> [run.name for run in expand(document)][1:3]
    ['study/plain,seed=1', 'study/noisy,sigma=1.0,seed=0']

A variant with `grid = false` runs once per seed, whatever the grid.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from sottovoce.config import Document, Experiment, from_document, put
from sottovoce.errors import InputError

LAST = 50
"""Figures at the end are means over this many last rounds, as far as they were measured."""


def expand(document: Document, where: str = "") -> list[Experiment]:
    """All runs of a document; one, under its plain name, where nothing varies."""
    base = {key: value for key, value in document.items() if key not in ("variants", "grid", "seeds")}
    variants, grid, seeds = _variants(document), _grid(document), _seeds(document)
    if not any(key in document for key in ("variants", "grid", "seeds")):
        return [from_document(base, where)]
    runs = []
    for variant in variants:
        axes = grid if variant.get("grid", True) else {}
        for values in itertools.product(*axes.values()):
            for seed in seeds:
                runs.append(from_document(_one(base, variant, dict(zip(axes, values, strict=True)), seed), where))
    names = [run.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two runs named {twice}", "names of variants and values differ", "rename one")
    return runs


def _one(base: Document, variant: Document, values: Document, seed: int) -> Document:
    merged = _merged(base, {key: value for key, value in variant.items() if key not in ("name", "grid")})
    for key, value in values.items():
        merged = put(merged, key, value)
    words = [variant["name"], *(f"{key.rpartition('.')[2]}={value}" for key, value in values.items()), f"seed={seed}"]
    label = ",".join(re.sub(r"[^A-Za-z0-9._=+-]", "-", str(word)) for word in words if word != "")
    return {**merged, "seed": seed, "name": f"{base.get('name', '')}/{label}"}


def _merged(one: Document, other: Document) -> Document:
    """`other` over `one`, table by table."""
    out = dict(one)
    for key, value in other.items():
        old = out.get(key)
        out[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def _variants(document: Document) -> list[Document]:
    found = document.get("variants", [{"name": ""}])
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) and "name" in one for one in found):
        raise InputError("variants", "each is a table with a name", "write [[variants]] and name = ...")
    for one in found:
        if "seed" in one:
            raise InputError(f"seed of variant {one['name']}", "variants share their seeds", "write seeds = [0, 1]")
        if not isinstance(one.get("grid", True), bool):
            raise InputError(f"grid = {one['grid']!r} of variant {one['name']}", "it is true or false", "correct it")
    return found


def _grid(document: Document) -> dict[str, list[Any]]:
    found = document.get("grid", {})
    if not isinstance(found, dict) or not all(isinstance(values, list) and values for values in found.values()):
        raise InputError("grid", "each key has a list of values", 'write "privacy.epsilon" = [0.5, 1.0]')
    for key in ("name", "seed"):
        if key in found:
            raise InputError(f"grid over {key}", "it is not for that", "write seeds = [0, 1], or [[variants]]")
    return found


def _seeds(document: Document) -> list[int]:
    if "seeds" not in document:
        return [document.get("seed", 0)]
    found = document["seeds"]
    if not isinstance(found, list) or not found or not all(isinstance(seed, int) for seed in found):
        raise InputError(f"seeds = {found}", "it is a list of whole numbers", "write seeds = [0, 1, 2]")
    return found


def group_of(name: str) -> str:
    """A run's name without its seed: runs that are averaged.

    >>> group_of("study/noisy,sigma=1.0,seed=0"), group_of("study/seed=0"), group_of("study")
    ('noisy,sigma=1.0', 'study', 'study')
    """
    folder, _, label = name.rpartition("/")
    return re.sub(r"(^|,)seed=\d+$", "", label) or folder


def summary(results: Iterable[tuple[Document, list[Document]]]) -> list[Document]:
    """For each variant and value: figures at the end over seeds. Takes results with their lines of metrics."""
    groups: dict[str, list[Document]] = {}
    for result, lines in results:
        groups.setdefault(group_of(result["name"]), []).append(_ending(result, lines))
    return [{"run": name, "seeds": len(found), **_over_seeds(found)} for name, found in groups.items()]


def _ending(result: Document, lines: list[Document]) -> Document:
    last = [line for line in lines if line["round"] > lines[-1]["round"] - LAST and line["round"] > 0] or lines[-1:]
    metric = next(key for key in ("accuracy", "rmse") if key in lines[-1])
    headline = result["headline"]
    return {
        "metric": metric,
        "average_model": _mean(line[metric]["average"] for line in last),
        "mean_node": _mean(line[metric]["mean"] for line in last),
        "loss": _mean(line["loss"]["average"] for line in last),
        "node_loss": _mean(line["loss"]["mean"] for line in last),
        "consensus": last[-1]["consensus"],
        "megabytes": lines[-1]["bytes"] / 1e6,
        "epsilon": None if headline is None else float(headline["epsilon"]),
        "sigma": result["sigma"],
        "seconds": result["seconds"],
    }


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _over_seeds(found: list[Document]) -> Document:
    """Means and sample deviations of figures, and the largest epsilon."""
    out: Document = {"metric": found[0]["metric"]}
    for key in ("average_model", "mean_node", "loss", "node_loss"):
        values = [one[key] for one in found]
        out[key] = float(np.mean(values))
        out[f"{key}_deviation"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    for key in ("consensus", "megabytes", "seconds"):
        out[key] = _mean(one[key] for one in found)
    epsilons = [one["epsilon"] for one in found]
    worst = None if None in epsilons else max(epsilons)
    out["epsilon"] = "inf" if worst == math.inf else worst
    sigmas = [one["sigma"] for one in found if one["sigma"] is not None]
    out["sigma"] = sigmas[0] if sigmas else None
    return out
