"""`sotto account` on what takes long: which kinds, how far it is, what was done when it is stopped."""

from __future__ import annotations

import itertools
import json
import signal
import threading

from sottovoce.cli.progress import Activity
from sottovoce.privacy import absorption_policy, covering_views
from sottovoce.privacy.exact import routes
from sottovoce.support import limits
from tests.forked import Command
from tests.run.test_checkpoint import until

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
    assert "mu inf" in out
    assert "--kind any-training" in out
    assert "Headline: epsilon" in sotto(LINE, "--kind", "convex-training", "--convex")[1]


def test_the_answer_says_which_absorption_policy_was_used(sotto, monkeypatch):
    assert json.loads(sotto(LINE, "--json")[1])["absorption_policy"] == "optimised"
    assert "Absorption policies" not in sotto(LINE)[1]
    monkeypatch.setattr(absorption_policy, "OPTIMISED_WEIGHTS", 0.0)
    assert json.loads(sotto(LINE, "--json")[1])["absorption_policy"] == "swept"
    assert "Absorption policies of convex-training: two to eight sweeps" in sotto(LINE)[1]
    assert json.loads(sotto(LINE, "--json", "--optimised")[1])["absorption_policy"] == "optimised"
    assert json.loads(sotto(LINE, "--kind", "any-training", "--json")[1])["absorption_policy"] is None


def test_pairs_are_not_stored_under_a_name_of_another_format(sotto, tmp_path):
    code, _, err = sotto("account --graph ring:5 --rounds 3 --all-pairs", "--out", str(tmp_path / "p.csv"))
    assert code == 2
    assert "lines of JSON" in err
    assert "p.jsonl" in err
    assert not list(tmp_path.iterdir())


def test_graphs_weights_and_tracing_say_what_is_done_and_how_far_it_is(sotto, monkeypatch):
    heard, hear = [], Activity.hear

    def note(work, part, done, total):
        hear(work, part, done, total)
        heard.append((part, done, total, work.line().partition(": ")[2].rpartition(", ")[0]))

    monkeypatch.setattr(Activity, "hear", note)
    what = "tracing dp-d-sgd on regular:80,d=3,seed=0"
    assert sotto("account --graph regular:80,d=3,seed=0 --rounds 6 --view node:0 --kind any-training")[0] == 0
    assert [line for _, _, total, line in heard if total == 0] == [
        f"{what}: drawing about 120 edges", f"{what}: metropolis weights",
    ]  # fmt: skip
    traced = [done for part, done, _, _ in heard if part == "traced rounds"]
    assert (traced[0], traced[-1], len(traced)) == (0, 6, 7)
    assert traced == sorted(set(traced))
    assert any(line.startswith(f"{what}: traced rounds ") for *_, line in heard), heard[-5:]


def test_a_search_for_correlated_noise_says_what_is_done(sotto, monkeypatch):
    heard, hear = [], Activity.hear

    def note(work, part, done, total):
        hear(work, part, done, total)
        heard.append((part, done))

    monkeypatch.setattr(Activity, "hear", note)
    assert sotto("account --graph ring:7 --rounds 5 --algorithm mafalda --kind any-training")[0] == 0
    assert ("searching for the best noise correlation over 5 rounds", 0) in heard


def test_pairs_of_a_sample_say_so(sotto, monkeypatch):
    line = "account --graph ring:8 --rounds 3 --all-pairs --sample 3"
    document = json.loads(sotto(line, "--json")[1])
    assert (document["pairs"], len(document["sampled_attackers"]), len(document["mu"])) == (21, 3, 3)
    assert "A sample: 3 of 8 attackers, drawn with seed 0; others may learn more." in sotto(line)[1]
    monkeypatch.setattr("sottovoce.privacy.all_pairs.pairs_cost", lambda *_, **__: limits.Cost(seconds=1200.0))
    assert "take a --sample, fewer rounds" in sotto(line)[2]


def only_three_attackers_are_quick():
    exact_loss, begun = routes.exact_loss, itertools.count()

    def three_then_never(*given, **named):
        if next(begun) >= 3:
            threading.Event().wait()
        return exact_loss(*given, **named)

    routes.exact_loss = three_then_never


def test_stopped_pairs_do_not_wait_for_those_at_work_and_keep_what_is_done(tmp_path, sotto):
    line = f"account --graph ring:8 --rounds 3 --all-pairs --out {tmp_path / 'pairs'}"
    process = Command(tmp_path, tmp_path, *line.split(), before=only_three_attackers_are_quick)
    try:
        until(process, lambda: (tmp_path / "pairs").exists() and (tmp_path / "pairs").read_text().count("\n") == 4)
        process.send_signal(signal.SIGINT)
        assert process.wait(30)
        _, err = process.communicate()
    finally:
        process.end()
    assert process.returncode == 130
    assert err.endswith("sotto: stopped\n")
    stored = (tmp_path / "pairs").read_text()
    whole = json.loads(sotto(line, "--json")[1])
    assert (tmp_path / "pairs").read_text().startswith(stored)
    (tmp_path / "pairs").unlink()
    assert json.loads(sotto(line, "--json")[1]) == whole


def test_calibrate_takes_kinds(sotto):
    line = "calibrate --graph ring:8 --rounds 4 --view node:0 --victim 4 --convex --epsilon 1 --json"
    both, any_training = (json.loads(sotto(line, *words)[1]) for words in ([], ["--kind", "any-training"]))
    assert both["headline"]["kind"] == "convex-training"
    assert any_training["headline"]["kind"] == "any-training"
    assert both["sigma"] < any_training["sigma"]
    code, out, err = sotto(line, "--kind", "fixed-streams")
    assert (code, out) == (2, "")
    assert "any-training, convex-training" in err


PLAN = "plan --graph regular:20,d=4,seed=0 --records 10 --rounds 6 --epsilon 4"


def test_a_plan_says_why_more_colluders_are_covered_than_were_asked_about(sotto, monkeypatch):
    asked = f"{PLAN} --algorithm secure-gossip"
    assert "too many to account for one by one" not in sotto(asked)[1]
    monkeypatch.setattr(covering_views, "COALITION_ROUNDS", 100)
    out = sotto(asked)[1]
    assert "20 single nodes over 6 rounds are too many to account for one by one" in out
    assert "any number" in out


def test_a_plan_says_so_too_where_single_nodes_know_secrets(sotto, monkeypatch):
    asked = f"{PLAN} --algorithm decor"
    assert "too many to account for one by one" not in sotto(asked)[1]
    for limit in ("NODE_ROUNDS", "ALIKE_NODE_ROUNDS"):
        monkeypatch.setattr(covering_views, limit, 100)
    out = sotto(asked)[1]
    assert "20 single nodes over 6 rounds are too many to account for one by one" in out
    assert "any number" in out
