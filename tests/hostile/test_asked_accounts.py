"""What `sotto account` and `sotto noise` are handed: run folders with edited figures, and numbers that no run has."""

from __future__ import annotations

import json
import shutil

import pytest

from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.support.files import is_signed, sign
from tests.hostile.test_run_folders import DOCUMENT

FORGED = 0.01


@pytest.fixture
def sent(trained, tmp_path):
    """A copy of a run to change."""
    return shutil.copytree(trained(DOCUMENT | {"record": {}}), tmp_path / "sent")


def edit(path, **changes):
    """Put other figures into every guarantee of a file."""

    def edited(part):
        if isinstance(part, list):
            return [edited(one) for one in part]
        if not isinstance(part, dict):
            return part
        return {key: changes.get(key, edited(value)) for key, value in part.items()}

    path.write_text(json.dumps(edited(json.loads(path.read_text()))))


@pytest.mark.parametrize(
    "changes",
    [{"mu": FORGED}, {"epsilon": FORGED}, {"mu": FORGED, "epsilon": epsilon_of(FORGED, 1e-5)}],
    ids=["mu", "epsilon", "both"],
)
def test_forged_figures_are_not_joined(sotto, sent, changes):
    assert sotto(f"account {sent}")[0] == 0
    edit(sent / "privacy.json", **changes)
    code, out, err = sotto(f"account {sent}")
    assert (code, out) == (2, "")
    assert "privacy.json" in err
    assert "guarantees follow from the settings" in err


def test_forged_figures_of_a_view_are_not_joined(sotto, sent):
    """Nothing else in the file contradicts them."""
    path = sent / "privacy.json"
    document = json.loads(path.read_text())
    views = document["views"]
    for view in (one for one in views if one["view"] == "node:0"):
        path.write_text(json.dumps(view))
        edit(path, mu=FORGED, epsilon=epsilon_of(FORGED, 1e-5))
        views[views.index(view)] = json.loads(path.read_text())
    path.write_text(json.dumps(document))
    code, out, err = sotto(f"account {sent}")
    assert (code, out) == (2, "")
    assert "views" in err


def test_runs_with_the_same_noise_are_not_joined(sotto, sent, tmp_path, trained):
    """Learning rates differ: what both sent, subtracted, has no noise. A copy of a run is no other run."""
    code, _, _ = sotto(f"account {sent} {shutil.copytree(sent, tmp_path / 'copy')}")
    assert code == 0
    other = trained(DOCUMENT | {"record": {}, "algorithm": DOCUMENT["algorithm"] | {"step_size": 0.03}})
    code, out, err = sotto(f"account {sent} {other}")
    assert (code, out) == (3, "")
    assert "same noise" in err


@pytest.mark.parametrize("option", ["--sigma 9", "--all-pairs", "--kind any-training", "--out x", "--published"])
def test_no_option_of_graphs_is_passed_over_with_runs(sotto, sent, option):
    """Whoever asks for another noise gets no figure of the run's own."""
    code, out, err = sotto(f"account {sent} {option}")
    assert (code, out) == (2, "")
    assert err.startswith(f"sotto: {option.split()[0]} with runs; ")


def test_a_delta_that_is_typed_counts_though_it_is_the_usual_one(sotto, trained):
    folder = trained(DOCUMENT | {"record": {}, "privacy": DOCUMENT.get("privacy", {}) | {"delta": 1e-6}})
    for option, delta in (("", 1e-6), ("--delta 1e-5", 1e-5)):
        code, out, _ = sotto(f"account {folder} --view node:0 {option} --json")
        assert (code, json.loads(out)["delta"]) == (0, delta)


def test_a_budget_that_is_refused_is_not_set(sotto, tmp_path):
    ledger = tmp_path / "my.ledger"
    assert sotto(f"ledger {ledger} --budget 2")[0] == 0
    for refused in ("1e308", "nan", "-1"):
        assert sotto(f"ledger {ledger} --budget {refused}")[0] == 2
    assert sotto(f"ledger {ledger} --new-lineage", 300 * "x")[0] == 2
    code, out, _ = sotto(f"ledger {ledger} --json")
    assert code == 0
    assert [one["budget"] for one in json.loads(out)["lineages"]] == [2.0]


def test_no_text_is_a_signature():
    assert is_signed(b"content", sign(b"content"))
    assert not any(is_signed(b"content", text) for text in ("", "\ud800", "é", "\0", 64 * "0"))


@pytest.mark.parametrize(
    "line",
    [
        "account --graph ring:4 --rounds 4 --adjacency record --records 10 --participation poisson:1e-320",
        "account --graph ring:4 --rounds 4 --adjacency record --records 10 --participation cyclic-poisson:1e-320x2",
        "noise --graph complete:4 --rounds 8 --epsilon 2 --sampled 1e-320",
        "noise --graph complete:4 --rounds 99999999999999999999 --epsilon 2 --sampled 0.1",
        "account --graph ring:4 --rounds 4 --view node:" + 5000 * "9",
        "account --graph ring:4 --rounds 4 --view coalition:any-" + 5000 * "9",
    ],
)
def test_numbers_that_no_run_has(sotto, line):
    code, out, err = sotto(line)
    assert (code, out) == (2, "")
    assert err.startswith("sotto: ")
    assert err.count("\n") == 1
    assert "unexpected" not in err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("poisson:0.01 --records 1000000000000000", "they must be whole numbers from 1 to 10,000,000; give 80"),
        ("cyclic-poisson:0.01x100000000", "every part needs a record, and a node holds at most 10,000,000; use fewer"),
    ],
)
def test_more_records_than_a_node_holds_are_named_as_what_they_are(asked, said, sotto):
    line = f"account --graph ring:3 --rounds 10 --sigma 5 --adjacency record --participation {asked}"
    code, out, err = sotto(line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
