"""The command line: what a wrong input gets, and what is printed is safe to quote."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest

from sottovoce.privacy.rounding import round_up

WRONG = [
    "account --graph nothing:3",
    "account --graph ring:6 --weights odd",
    "account --graph ring:6 --sigma -1",
    "account --graph ring:6 --sigma nan",
    "account --graph ring:6 --rounds 0",
    "account --graph ring:6 --rounds 99999999999999999999999",
    "account --graph ring:6 --view node:9",
    "account --graph ring:6 --view node:Mercy",
    "account --graph ring:6 --view nonsense",
    "account --graph ring:6 --view eavesdropper:0>3",
    "account --graph ring:6 --view eavesdropper:0>0",
    "account --graph ring:6 --victim 12",
    "account --graph ring:6 --view node:0 --victim 0",
    "account --graph ring:6 --delta 5",
    "account --graph ring:6 --adjacency record --participation poisson:2",
    "account --graph ring:6 --adjacency record --participation fixed:3",
    "account --graph ring:6 --adjacency record --participation fixed:3 --records 2",
    "account --graph ring:6 --adjacency user --participation poisson:0.1",
    "account --graph ring:6 --records 5,6",
    "account --graph ring:6 --records many",
    "account --graph ring:6 --records 0",
    "account --graph ring:6 --data somewhere",
    "account --graph ring:6 --seed -1",
    "account --graph ring:6 --participation 5x5 --rounds 3",
    "account --graph ring:6 --participation 1x99999999999999999999",
    "account --graph ring:6 --adjacency bogus",
    "account --graph ring:6 --gossip-steps 0",
    "account --graph ring:6 --gossip-steps 2",
    "account --graph ring:6 --algorithm decor",
    "account --graph ring:6 --algorithm nothing",
    "account --graph ring:6 --out somewhere",
    "account --graph ring:6 --sample 3",
    "account --graph ring:6 --all-pairs --sample 7",
    "account --graph ring:6 --all-pairs --kind any-training",
    "account --graph ring:6 --all-pairs --view node:1",
    "account --graph ring:6 --all-pairs --victim 1",
    "account --graph ring:6 --all-pairs --published",
    "account --graph ring:6 --all-pairs --adjacency bogus",
    "account --graph ring:6 --all-pairs --participation 5x5 --rounds 3",
    "account --graph ring:6 --all-pairs --out /dev/full",
    "account --graph ring:6 --algorithm mf-d-sgd --correlation missing.npz",
    "calibrate --graph ring:6 --epsilon 0",
    "calibrate --graph ring:6 --epsilon 1e20",
    "calibrate --graph ring:6 --epsilon 1 --view eavesdropper:0>3",
    "noise --graph ring:6 --participation 3",
    "noise --graph ring:6 --participation 2x3 --structure odd",
    "noise --graph ring:6 --participation 2x3 --out .",
    "noise --graph ring:6 --participation 2x3 --out /",
    "noise --graph ring:6 --participation 2x3 --out nowhere/c.npz",
    "noise --graph ring:6 --participation 1x60000",
    "noise --graph ring:6 --participation 1x99999999999999999999",
    "noise --graph ring:6 --participation every --rounds 1000000",
    "graph file:missing.txt",
    "data --data missing-folder",
    "nonsense",
]


@pytest.mark.parametrize("line", WRONG)
def test_wrong_input_is_one_line_and_writes_nothing(line, sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = sotto(line)
    assert code in (2, 3)
    assert out == ""
    assert err.startswith("sotto: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["nowhere/x", "."])
def test_a_store_that_cannot_be_written_is_one_line(place, sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = sotto("account --graph ring:4 --all-pairs --out", place)
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"[1, 2]\n", b"{}\n", b"words\n"])
def test_a_strange_store_is_refused(text, sotto, tmp_path):
    store = tmp_path / "store"
    store.write_bytes(text)
    code, _, err = sotto("account --graph ring:4 --all-pairs --out", str(store))
    assert (code, err.count("\n")) == (2, 1)
    assert store.read_bytes() == text


def test_damaged_rows_of_a_store_are_computed_again(sotto, tmp_path):
    store = tmp_path / "store"
    first = sotto("account --graph ring:4 --all-pairs --json --out", str(store))[1]
    lines = store.read_text().splitlines()
    damaged = [lines[0], "[1, 2]", '{"mu": [0, 0, 0, 0]}', '{"attacker": 1, "mu": [0, "x", 0, 0]}', lines[1]]
    store.write_text("\n".join(damaged) + "\n")
    assert sotto("account --graph ring:4 --all-pairs --json --out", str(store))[1] == first


FINE = [
    "account --graph path:3 --algorithm dp2sgd --rounds 1",
    "account --graph path:3 --algorithm dp2sgd --rounds 3 --randomized --view node:0",
    "account --graph path:3 --algorithm dp2sgd --rounds 3 --randomized --seed 6 --view node:0",
    "account --graph erdos-renyi:6,p=0 --rounds 4",
    "account --graph path:1 --rounds 3 --algorithm zip-dl",
    "account --graph path:1 --rounds 3 --algorithm decor --sigma-pair 1",
    "account --graph ring:6 --sigma 1e-12",
    "account --graph ring:6 --sigma 0",
    "account --graph ring:6 --algorithm decor --sigma-pair 0",
    "account --graph ring:6 --algorithm zip-dl --view node:0 --rounds 3 --published",
    "account --graph ring:6 --algorithm mafalda --rounds 6 --participation 2x3",
    "calibrate --graph ring:6 --epsilon 1e-13 --delta 1e-15",
    "calibrate --graph ring:6 --epsilon 2 --view node:0 --victim 3 --rounds 4",
]


@pytest.mark.parametrize("line", FINE)
def test_unusual_input_is_answered(line, sotto):
    code, out, err = sotto(line + " --json")
    assert (code, err) == (0, "")
    assert json.loads(out)["headline"]
    code, out, err = sotto(line)
    assert (code, err) == (0, "")
    assert "Headline: epsilon" in out
    assert "It assumes: " in out


@pytest.mark.parametrize("value", [0.70710678, 2.00001315, 1e-7 / 3, 123456.7, 1.0, 14.0983 + 1e-9])
def test_printed_figures_are_rounded_up(value):
    assert value <= float(round_up(value)) <= value * 1.001


def test_tables_are_never_cut(sotto):
    _, out, _ = sotto("account --graph ring:12 --rounds 8 --view node:0 --algorithm zip-dl --sigma 1e-4")
    assert "…" not in out


def test_names_of_a_file_are_understood_and_printed(sotto, tmp_path):
    edges = tmp_path / "edges.txt"
    edges.write_text("Mercy Saint\nSaint North\nNorth Mercy\nNorth East\n")
    code, out, _ = sotto(f"account --graph file:{edges} --rounds 3 --view node:Mercy --victim East --json")
    document = json.loads(out)
    assert (code, document["view"], document["labels"]) == (0, "node:0", ["Mercy", "Saint", "North", "East"])
    assert {guarantee["victim"] for guarantee in document["guarantees"]} == {3}
    assert "3 (East)" in sotto(f"account --graph file:{edges} --rounds 3 --view node:Mercy --victim East")[1]
    code, _, err = sotto(f"account --graph file:{edges} --view node:West")
    assert code == 2
    assert "Mercy, Saint, North, East" in err


def test_what_is_printed_can_be_repeated(sotto):
    document = json.loads(sotto("account --graph ring:6 --sigma 3 --rounds 4 --participation 2x2 --json")[1])
    assert [document[key] for key in ("sigma", "participation", "adjacency")] == [3.0, "2x2", "user"]
    found = json.loads(sotto("calibrate --graph ring:6 --rounds 4 --epsilon 1 --json")[1])
    again = json.loads(sotto("account --graph ring:6 --rounds 4 --json --sigma", repr(found["sigma"]))[1])
    for figure in ("mu", "epsilon"):  # in closed form, calibration rounds up
        ours, theirs = (document["headline"].pop(figure) for document in (found, again))
        assert theirs <= ours <= theirs * (1 + 1e-12)
    assert again["headline"] == found["headline"]
    assert ours <= 1


def test_all_pairs_say_what_is_proven(sotto):
    document = json.loads(sotto("account --graph ring:6 --rounds 4 --all-pairs --json")[1])
    assert document["proven_for_training"] is False
    assert document["proven_for_everyone"]["mu"] == pytest.approx(2.0)
    assert np.max(document["mu"]) == document["mu_max"]
    assert document["mu_max"] < 2.0
    out = sotto("account --graph ring:6 --rounds 4 --all-pairs")[1]
    assert "do not promise them" in out
    assert "Proven for any pair: epsilon 9.9" in out


def test_only_files_are_replaced_and_links_are_followed(sotto, tmp_path):
    pipe, link, target, part = (tmp_path / name for name in ("pipe", "link.npz", "target.npz", "link.npz.part"))
    os.mkfifo(pipe)
    line = "noise --graph ring:5 --participation 2x3 --out"
    code, _, err = sotto(line, str(pipe))
    assert (code, err.count("\n")) == (2, 1)
    assert pipe.is_fifo()
    target.write_text("old")
    part.write_text("mine")
    link.symlink_to(target)
    assert sotto(line, str(link))[0] == 0
    assert link.is_symlink()
    assert np.load(target)["C"].shape == (6, 6)
    assert part.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.npz", "link.npz.part", "pipe", "target.npz"]
    assert json.loads(sotto(f"account --graph ring:5 --algorithm mf-d-sgd --rounds 6 --correlation {link} --json")[1])
    damaged = bytearray(target.read_bytes())
    damaged[133] ^= 0xFF
    target.write_bytes(damaged)
    code, _, err = sotto(f"account --graph ring:5 --algorithm mf-d-sgd --rounds 6 --correlation {link}")
    assert (code, err.count("\n")) == (2, 1)


def test_the_kind_of_the_papers_shows_their_formulas_and_is_never_a_headline(sotto):
    line = "account --graph ring:6 --rounds 3"
    code, out, _ = sotto(f"{line} --kind as-published")
    assert (code, "gossip threat models, Lemma 4" in out, "mu inf" in out) == (0, True, True)
    assert json.loads(sotto(f"{line} --kind as-published --json")[1])["headline"]["mu"] == "inf"
    both = "--kind any-training --kind convex-training --kind fixed-streams --kind as-published"
    assert sotto(f"{line} {both}")[1] == sotto(f"{line} --published")[1]


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("account --graph ring:6 --kind convex-training", "take the view node:0, for example"),
        ("account --graph ring:6 --rounds 3 --algorithm zip-dl --adjacency record", "take adjacency user"),
    ],
)
def test_what_is_not_proven_is_infinite_with_each_reason_once_and_what_to_do(line, remedy, sotto):
    code, out, _ = sotto(line)
    assert code == 0
    assert "mu inf" in out
    assert remedy in out
    headline = json.loads(sotto(f"{line} --json")[1])["headline"]
    assert (headline["mu"], headline["epsilon"], headline["figure"]) == ("inf", "inf", "bound")
    for kind in re.findall(r"Does not apply: (.*)\.", out):
        reasons = kind.strip().split("; ")
        assert len(set(reasons)) == len(reasons) >= 2, "found, rule and remedy, none of them twice"


def test_distances_with_the_same_figures_are_one_row_for_reading_and_many_as_csv(sotto):
    line = "account --graph ring:40 --rounds 2 --view node:0 --kind fixed-streams"
    assert "3 to 20" in sotto(line)[1]
    assert len(sotto(f"--csv {line}")[1].splitlines()) == 21


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("account ring:5", "ring:5: no run; graphs are named by an option; write --graph ring:5"),
        ("account --graph ring:6 --rounds 1e3", "--rounds 1e3; "),
        ("account --graph ring:6 --sigma x", "'x' is not a number. Try 'sotto account --help'."),
        ("account --sigma", "requires an argument. Try 'sotto account --help'."),
        ("account --graph ring:6 --algorithm decor", "decor without --sigma-pair; it needs that setting; add --sigma-"),
        ("account --graph ring:6 --algorithm mf-d-sgd", "it needs that setting; add --correlation FILE"),
        ("account --graph ring:6 --participation 3by7", "commands and plans also take poisson:SHARE and fixed:SIZE"),
    ],
)
def test_wrong_options_are_named_as_they_are_typed(line, message, sotto):
    code, out, err = sotto(line)
    assert (code, out) == (2, "")
    assert message in err


def test_the_remedy_for_a_cycle_that_ends_is_a_participation(sotto):
    line = "plan --graph ring:8 --rounds 20 --records 100 --epsilon 4 --algorithm dp-d-sgd --adjacency record"
    code, _, err = sotto(f"{line} --participation 2x7")
    assert (code, "use 3x7 in place of 2x7" in err) == (2, True)
    assert sotto(f"{line} --participation 3x7")[0] == 0
