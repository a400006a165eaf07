"""Small runs and accounts give the figures that `golden.json` stores.

Here figures may differ by rounding, because processors and BLAS libraries round differently. That a refactoring changes
no bit on one machine is checked with `record` and `compare`, before and after it: see README.md in this folder.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from sottovoce.privacy.guarantee import Kind
from sottovoce.privacy.worst_case import GAP
from tests.golden import cases
from tests.golden.record import brief_answer, brief_run, workplace

STORED = json.loads((Path(__file__).parent / "golden.json").read_text())
TRAINED, PROVEN, SEARCHED = 1e-4, 1e-9, 2 * GAP
"""Relative tolerances: of what was trained in float32, of privacy figures, and of those that a search bounds, which may
end a step sooner or later on another processor."""

FLIPPED = 0.02
"""Accuracies may differ by two of 120 test rows, whose two largest outputs are all but equal."""


@pytest.fixture(scope="module", autouse=True)
def folder():
    with workplace() as place:
        yield place


@pytest.mark.parametrize("name", STORED["runs"])
def test_a_run_ends_where_it_did(name):
    found, stored = brief_run(name), STORED["runs"][name]
    assert found["models"].keys() == stored["models"].keys()
    for number, model in stored["models"].items():
        for key, values in model.items():
            np.testing.assert_allclose(found["models"][number][key], values, rtol=TRAINED, atol=1e-6)
    assert len(found["metrics"]) == len(stored["metrics"])
    for line, before in zip(found["metrics"], stored["metrics"], strict=True):
        _same_metrics(line, before)
    _same_figures(found["privacy"], stored["privacy"])


def _same_metrics(found, stored):
    assert found.keys() == stored.keys()
    for key in ("round", "messages", "bytes"):
        assert found[key] == stored[key], key
    assert found["loss"] == pytest.approx(stored["loss"], rel=TRAINED)
    assert found["consensus"] == pytest.approx(stored["consensus"], rel=TRAINED, abs=1e-6)
    if "rmse" in stored:
        assert found["rmse"] == pytest.approx(stored["rmse"], rel=TRAINED)
    else:
        assert found["accuracy"] == pytest.approx(stored["accuracy"], abs=FLIPPED)


@pytest.mark.parametrize("line", STORED["documents"], ids=list(STORED["documents"]))
def test_a_guarantee_is_what_it_was(line):
    found, stored = brief_answer(line), STORED["documents"][line]
    every, before = found.pop("guarantees"), stored["guarantees"]
    _same_figures(found, {key: value for key, value in stored.items() if key != "guarantees"})
    assert every.keys() == before.keys()
    for name, values in before.items():
        within = SEARCHED if Kind.FIXED_STREAMS in name else PROVEN
        _same_figures(dict(enumerate(every[name])), dict(enumerate(values)), within)


def _same_figures(found, stored, within=PROVEN):
    """Numbers to rounding; `"inf"`, and None where nothing is proven, as they are."""
    assert found.keys() == stored.keys()
    for key, value in stored.items():
        exact = value is None or isinstance(value, str)
        assert found[key] == (value if exact else pytest.approx(value, rel=within, abs=1e-12)), key


def test_what_is_stored_is_what_the_cases_name():
    assert tuple(STORED["runs"]) == cases.STORED_RUNS
    assert tuple(STORED["documents"]) == cases.STORED_DOCUMENTS


def test_every_documented_algorithm_is_recorded():
    table = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall("`([a-z0-9-]+)`", row)}
    averaging = {"muffliato", "zip-dl-averaging"}
    assert documented == {name.split()[0] for name in cases.PLAIN}
    assert documented - averaging == {run["algorithm"]["name"] for run in cases.RUNS.values()}
