"""`sotto account` on what takes long: which kinds, how far it is, what was done when it is stopped, what is quick."""

from __future__ import annotations

import json

import pytest

from sottovoce.cli.progress_lines import Activity
from sottovoce.core import limits
from sottovoce.privacy import account_cost, account_estimate, kind_bounds

LINE = "account --graph ring:8 --rounds 4 --view node:0"


def test_only_the_kinds_that_are_named(sotto):
    for kinds in (["any-training"], ["fixed-streams", "any-training"]):
        code, out, _ = sotto(LINE, *(word for kind in kinds for word in ("--kind", kind)), "--json")
        assert code == 0
        assert {guarantee["kind"] for guarantee in json.loads(out)["guarantees"]} == set(kinds)
    code, out, err = sotto(LINE, "--kind", "certain")
    assert (code, out) == (2, "")
    assert "any-training, convex-training, fixed-streams" in err


def test_kinds_that_prove_nothing_by_themselves_are_shown_without_a_headline(sotto):
    code, out, err = sotto(LINE, "--kind", "convex-training")
    assert (code, err) == (0, "")
    assert "No headline: nothing here is proven for what runs; add --kind any-training" in out
    assert "Headline: epsilon" in sotto(LINE, "--kind", "convex-training", "--convex")[1]


def test_the_answer_says_which_absorption_policy_was_used(sotto, monkeypatch):
    assert json.loads(sotto(LINE, "--json")[1])["absorption_policy"] == "optimised"
    assert "Absorption policies" not in sotto(LINE)[1]
    monkeypatch.setattr(account_cost, "OPTIMISED_SECONDS", 0.0)
    assert json.loads(sotto(LINE, "--json")[1])["absorption_policy"] == "swept"
    assert "Absorption policies of convex-training: two sweeps" in sotto(LINE)[1]
    assert json.loads(sotto(LINE, "--json", "--optimised")[1])["absorption_policy"] == "optimised"
    assert json.loads(sotto(LINE, "--kind", "any-training", "--json")[1])["absorption_policy"] is None


def test_a_stopped_account_says_what_was_done(sotto, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kind_bounds, "least_cost", stop)
    code, out, err = sotto(LINE)
    assert (code, out) == (130, "")
    assert "done when stopped: any-training; convex-training 0 of 7 victims." in err
    assert "--kind any-training answers with that" in err


def test_work_of_minutes_is_announced_with_what_is_quick(sotto, monkeypatch):
    monkeypatch.setattr(account_estimate, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(account_estimate, "QUICK_SECONDS", 0.0005)
    code, _, err = sotto(LINE)
    assert code == 0
    assert "takes about 0 seconds of one core; --kind any-training --kind fixed-streams takes seconds" in err
    monkeypatch.setattr(limits, "SECONDS", 0.0005)
    code, _, err = sotto(LINE)
    assert code == 2
    assert "take --kind any-training --kind fixed-streams, fewer rounds, a smaller graph or one --victim, or" in err


def test_remaining_time_follows_the_pace_of_the_part_at_hand(monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("sottovoce.cli.progress_lines.time.monotonic", lambda: next(clock))
    work = Activity("accounting", begun=0.0)
    assert work.left is None
    work.hear("any-training", 0, 100)
    assert work.left is None
    work.hear("any-training", 25, 100)
    assert work.left == pytest.approx(30)
    work.hear("any-training", 100, 100)
    assert (work.left, work.finished) == (None, ["any-training"])
    work.hear("convex-training", 0, 50)
    assert work.left is None


def test_pairs_of_a_sample_say_so(sotto, monkeypatch):
    line = "account --graph ring:8 --rounds 3 --all-pairs --sample 3"
    document = json.loads(sotto(line, "--json")[1])
    assert (document["pairs"], len(document["sampled_attackers"]), len(document["mu"])) == (21, 3, 3)
    assert "A sample: 3 of 8 attackers, drawn with seed 0; others may learn more." in sotto(line)[1]
    monkeypatch.setattr(limits, "SECONDS", 6e-4)
    assert "take --sample" in sotto(line)[2]


def test_pairs_that_are_stopped_say_what_is_kept(sotto, monkeypatch, tmp_path):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("sottovoce.privacy.all_pairs.all_pairs", stop)
    line = "account --graph ring:8 --rounds 3 --all-pairs"
    assert "nothing is kept without --out" in sotto(line)[2]
    code, _, err = sotto(line, "--out", str(tmp_path / "pairs"))
    assert code == 130
    assert "has all attackers that were done; the same command goes on from there" in err
