"""`sotto account` on what takes long: which kinds, how far it is, what was done when it is stopped."""

from __future__ import annotations

import itertools
import json
import re
import signal
import threading

from sottovoce.cli import progress
from sottovoce.cli.progress import Activity
from sottovoce.planning import planner
from sottovoce.privacy import absorption_policy, covering_views, kind_bounds
from sottovoce.privacy.exact import routes
from sottovoce.support import limits
from sottovoce.support.progress import expect_work, report_work
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


def test_the_neighbourhood_of_a_node(sotto):
    line = "account --graph ring:9 --rounds 3 --view node:0 --within 2 --json"
    found = json.loads(sotto(line, "--victim", "4", "--victim", "2")[1])["guarantees"]
    assert {guarantee["victim"] for guarantee in found} == {1, 2, 4, 7, 8}
    alone = json.loads(sotto(line.replace("--within 2", "--victim 7"))[1])["guarantees"]
    assert [one for one in found if one["victim"] == 7] == alone
    code, out, err = sotto("account --graph ring:9 --rounds 3 --within 2")
    assert (code, out) == (2, "")
    assert "--view node:0" in err


def test_a_stopped_account_says_what_was_done(sotto, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kind_bounds, "least_cost", stop)
    code, out, err = sotto(LINE)
    assert (code, out) == (130, "")
    assert "done when stopped: any-training, fixed-streams; convex-training 0 of 7 victims." in err
    assert "--kind any-training --kind fixed-streams answers with that" in err

    def stop_halfway(*_):
        expect_work(4.0)
        report_work(2.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(kind_bounds, "least_cost", stop_halfway)
    assert (
        "done when stopped: any-training, fixed-streams; convex-training 50 % of its work. Nothing is kept"
        in sotto(LINE)[2]
    )


def test_pairs_are_not_stored_under_a_name_of_another_format(sotto, tmp_path):
    code, _, err = sotto("account --graph ring:5 --rounds 3 --all-pairs", "--out", str(tmp_path / "p.csv"))
    assert code == 2
    assert "lines of JSON" in err
    assert "p.jsonl" in err
    assert not list(tmp_path.iterdir())


def test_graphs_weights_and_tracing_say_what_is_done_and_how_far_it_is(sotto, monkeypatch, tmp_path):
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
    monkeypatch.setattr("sottovoce.core.graph_files.TOLD", 2)
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n2 3\n3 4\n4 0\n")
    heard.clear()
    assert sotto(f"graph file:{tmp_path / 'edges.txt'}")[0] == 0
    assert [(part, done, total) for part, done, total, _ in heard] == [
        ("reading edges.txt", 0, 0), ("lines", 0, 5), ("lines", 2, 5), ("lines", 4, 5), ("lines", 5, 5),
        ("numbering nodes", 0, 0), ("metropolis weights", 0, 0),
    ]  # fmt: skip


def test_a_search_for_correlated_noise_says_what_is_done(sotto, monkeypatch):
    heard, hear = [], Activity.hear

    def note(work, part, done, total):
        hear(work, part, done, total)
        heard.append((part, done))

    monkeypatch.setattr(Activity, "hear", note)
    assert sotto("account --graph ring:7 --rounds 5 --algorithm mafalda --kind any-training")[0] == 0
    assert ("searching for the best noise correlation over 5 rounds", 0) in heard


def test_the_exact_loss_of_a_single_victim_says_how_far_it_is(sotto, monkeypatch):
    heard, hear = [], Activity.hear

    def note(work, part, done, total):
        hear(work, part, done, total)
        heard.append((part, done))

    monkeypatch.setattr(Activity, "hear", note)
    assert sotto("account --graph regular:80,d=3,seed=0 --rounds 6 --view node:0 --victim 30")[0] == 0
    shares = [done for part, done in heard if part == "fixed-streams"]
    assert len(shares) > 4  # a lag after the other, then what follows from them
    assert (shares[0], shares[-1]) == (0, 1)
    assert shares == sorted(set(shares))


def test_pairs_of_a_sample_say_so(sotto, monkeypatch):
    line = "account --graph ring:8 --rounds 3 --all-pairs --sample 3"
    document = json.loads(sotto(line, "--json")[1])
    assert (document["pairs"], len(document["sampled_attackers"]), len(document["mu"])) == (21, 3, 3)
    assert "A sample: 3 of 8 attackers, drawn with seed 0; others may learn more." in sotto(line)[1]
    monkeypatch.setattr("sottovoce.privacy.all_pairs.pairs_cost", lambda *_, **__: limits.Cost(seconds=1200.0))
    assert "take a --sample, fewer rounds" in sotto(line)[2]


def test_pairs_that_are_stopped_say_what_is_kept(sotto, monkeypatch, tmp_path):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("sottovoce.privacy.all_pairs.all_pairs", stop)
    line = "account --graph ring:8 --rounds 3 --all-pairs"
    assert "stopped before the first of the attackers. Nothing is kept without --out FILE." in sotto(line)[2]
    code, _, err = sotto(line, "--out", str(tmp_path / "pairs"))
    assert code == 130
    assert f"stopped before the first of the attackers. {tmp_path / 'pairs'} has no attacker yet." in err


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
    counted = "[23] of 8 attackers"  # a row is written before it is counted
    assert re.search(rf"sotto: stopped after {counted}\. {tmp_path / 'pairs'} has all attackers that were done;", err)
    assert err.endswith("the same command goes on from there.\nsotto: stopped\n")
    stored = (tmp_path / "pairs").read_text()
    whole = json.loads(sotto(line, "--json")[1])
    assert (tmp_path / "pairs").read_text().startswith(stored)
    (tmp_path / "pairs").unlink()
    assert json.loads(sotto(line, "--json")[1]) == whole


def test_calibrate_takes_kinds_and_says_what_was_done_when_it_is_stopped(sotto, monkeypatch):
    line = "calibrate --graph ring:8 --rounds 4 --view node:0 --victim 4 --convex --epsilon 1 --json"
    both, any_training = (json.loads(sotto(line, *words)[1]) for words in ([], ["--kind", "any-training"]))
    assert both["headline"]["kind"] == "convex-training"
    assert any_training["headline"]["kind"] == "any-training"
    assert both["sigma"] < any_training["sigma"]
    code, out, err = sotto(line, "--kind", "fixed-streams")
    assert (code, out) == (2, "")
    assert "any-training, convex-training" in err

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kind_bounds, "least_cost", stop)
    code, _, err = sotto(line)
    assert code == 130
    assert "done when stopped: any-training; convex-training 0 of 1 victims." in err


def test_a_stopped_plan_shows_its_rows_and_a_stopped_search_how_far_it_was(sotto, monkeypatch):
    best = planner._best

    def first_only(question, one):
        if one != planner.candidates()[0]:
            raise KeyboardInterrupt
        return best(question, planner.Candidate("dp-d-sgd"))

    def stopped_at(*reached):
        def search(*_, progress, **__):
            progress(*reached)
            raise KeyboardInterrupt

        return search

    monkeypatch.setattr(planner, "_best", first_only)
    code, _, err = sotto("plan --graph ring:4 --records 10 --rounds 3 --epsilon 4")
    assert code == 130
    assert f"stopped after 1 of {len(planner.candidates())} algorithms. Nothing is kept; --algorithm dp-d-sgd" in err
    assert "answers with what was found: dp-d-sgd: sigma" in err
    monkeypatch.setattr("sottovoce.matrix_factorization.sampled_noise.sampled_noise", stopped_at(2, 8))
    err = sotto("noise --graph ring:4 --sampled 0.1 --rounds 8 --epsilon 2")[2]
    assert "stopped after 2 of 8 numbers of parts. What was found is stored; the same command" in err


def test_rows_of_a_plan_are_told_as_soon_as_they_are_there(sotto, monkeypatch):
    best, told = planner._best, []

    def best_after(question, one):
        told.append(progress._activities[-1].line())
        return best(question, one)

    monkeypatch.setattr(planner, "_best", best_after)
    code, out, err = sotto(f"--verbose {PLAN}", "--algorithm", "dp-d-sgd", "--algorithm", "dp2sgd")
    assert (code, "Recommended" in out) == (0, True)
    assert [name in err for name in ("sotto: dp-d-sgd: sigma", "sotto: dp2sgd: sigma")] == [True, True]
    assert ["last dp-d-sgd: sigma" in line for line in told] == [False, True]


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
