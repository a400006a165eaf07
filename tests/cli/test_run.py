"""`sotto run`: what it prints, sweeps in several processes, and how failures in them come out."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from pathlib import Path

import pytest

from sottovoce import InputError, Unaccountable
from sottovoce.cli.run import _spent_text
from sottovoce.run.sweep import SweepRun, expand_sweep, run_experiments
from tests.distributed.test_launch import children
from tests.run.killed import experiment
from tests.run.test_checkpoint import contents
from tests.support.test_config import SMALL

SWEEP = (
    f'''
seeds = [0, 1]
noise_key = "{16 * "5a"}"
variants = [{{name = "plain", algorithm.sigma = 0.0}}, {{name = "noisy"}}]
'''
    + SMALL
)


TARGET = SMALL.replace("sigma = 1.0\n", "").replace("[privacy]", "[privacy]\nepsilon = 1.0")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "try.toml").write_text(SMALL)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path


def test_a_run_prints_and_a_second_one_only_reads(sotto, here, monkeypatch):
    code, out, err = sotto("run try.toml")
    assert (code, err) == (0, "")
    assert "test accuracy of the average model" in out
    assert "dp-d-sgd on ring:4 metropolis, 3 rounds" in out
    assert "at delta 1e-05, everyone as adversary, one record replaced, any-training" in out
    assert sorted(os.listdir(here / "runs" / "try")) == [
        "checkpoint.npz", "config.json", "lock", "metrics.jsonl", "noise.key", "privacy.json", "private.json",
        "report.html", "result.json",
    ]  # fmt: skip
    monkeypatch.setattr("sottovoce.run.execute.measured_rounds", lambda *_, **__: pytest.fail("ran again"))
    for line in ("run try.toml", "run runs/try/config.json"):
        code, again, err = sotto(line)
        assert (code, again, err.count("\n")) == (0, out, 1)
        assert err.startswith("Finished before, and only read: runs/try. ")
        assert sotto(f"--quiet {line}") == (0, out, "")
    document = json.loads(sotto("run try.toml --json")[1])
    stored = json.loads((here / "runs" / "try" / "result.json").read_text())
    assert document == stored
    assert document["headline"] == json.loads((here / "runs" / "try" / "privacy.json").read_text())["headline"]
    assert document["metrics"]["round"] == 3


@pytest.mark.parametrize("changes", ["privacy.epsilon=none", "algorithm.name=d-psgd"])
def test_a_target_can_be_taken_back_to_train_without_noise(sotto, here, changes):
    (here / "target.toml").write_text(TARGET)
    code, out, err = sotto(f"run target.toml --set {changes} --json")
    assert (code, err) == (0, "")
    assert json.loads(out)["headline"]["epsilon"] == "inf"
    assert not json.loads(out)["sigma"]
    settings = json.loads((here / "runs" / "try" / "config.json").read_text())
    assert settings["privacy"]["epsilon"] is None
    shown = dict(line.split("  ", 1) for line in sotto("run target.toml --set " + changes)[1].splitlines())
    assert shown["noise"].strip() == "none"
    assert shown["epsilon"].strip().startswith("inf")
    assert sotto("run runs/try/config.json")[0] == 0


def test_only_a_target_of_the_file_gives_way_to_an_algorithm_without_noise(sotto, here):
    (here / "target.toml").write_text(TARGET)
    assert sotto("run target.toml --set algorithm.name=d-psgd --set privacy.epsilon=2.0")[0] == 2
    assert sotto("run target.toml --set algorithm.sigma=1.0")[0] == 2
    assert sotto("run target.toml --set algorithm=5")[0] == 2
    assert sotto("run target.toml --set privacy=3 --set algorithm.name=d-psgd")[0] == 2
    assert sotto("run target.toml --set algorithm.sigma=1.0 --set privacy.epsilon=none")[0] == 0


def test_a_run_that_is_stopped_says_what_is_saved_and_goes_on(sotto, here, monkeypatch):
    from sottovoce.run.execute import CheckpointSchedule

    after, stop_at = CheckpointSchedule.after, [2]

    def stopping(schedule, round):
        if round in stop_at:
            raise KeyboardInterrupt
        return after(schedule, round)

    monkeypatch.setattr(CheckpointSchedule, "after", stopping)
    code, out, err = sotto("run try.toml")
    assert (code, out) == (130, "")
    assert "the rounds until now are saved in runs/try: go on with --resume." in err
    stop_at.clear()
    assert sotto("run try.toml --resume")[0] == 0


def test_what_is_spent_is_told_for_the_end_where_it_is_known_for_no_other_round(sotto, here, monkeypatch):
    monkeypatch.setattr("sottovoce.run.privacy_report.NODE_ROUNDS", 1)
    for name, largest in (("told", 10_000), ("untold", 1)):
        monkeypatch.setattr("sottovoce.run.privacy_report.LARGEST", largest)
        assert sotto(f"run try.toml --set name={name}")[0] == 0
    first, last, at_the_end = (
        _spent_text(here / "runs" / name)(rounds) for name, rounds in (("told", 1), ("told", 3), ("untold", 1))
    )
    epsilon = last.split()[-1]
    assert last == f"epsilon {epsilon} of {epsilon}"
    assert (first.endswith(f" of {epsilon}"), first < last) == (True, True)
    assert at_the_end == f"epsilon {epsilon} at the end"


def test_settings_that_are_kept_repeat_the_run(sotto, here):
    key = ("--set", "noise_key='5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a'")
    assert sotto("run try.toml", *key)[0] == 0
    assert sotto("run runs/try/config.json --out again")[0] == 0
    assert contents(here / "runs" / "try") == contents(here / "again" / "try")


def test_nothing_proven_and_no_noise_are_said(sotto, here):
    unclipped = ["training={rounds = 3, batch = 'full'}", "name=unclipped"]
    code, out, _ = sotto("run try.toml", *(part for setting in unclipped for part in ("--set", setting)))
    assert (code, "inf: nothing is proven" in out) == (0, True)
    code, out, _ = sotto("run try.toml --set algorithm.sigma=0.0 --set name=silent")
    assert (code, "inf" in out) == (0, True)
    zip_dl = "algorithm={name = 'zip-dl', message_sigma = 2.0}"
    code, out, _ = sotto("run try.toml --json --set name=zip --set privacy.adjacency=user --set", zip_dl)
    assert (code, json.loads(out)["sigma"]) == (0, 2.0)


def test_a_sweep_in_two_processes_is_the_sweep_in_one(sotto, here):
    code, out, err = sotto("run sweep.toml --jobs 2 --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [(row["run"], row["seeds"]) for row in found["runs"]] == [("plain", 2), ("noisy", 2)]
    assert found["runs"][0]["epsilon"] in (None, "inf")
    code, out, _ = sotto("run sweep.toml --jobs 1 --out alone --only noisy")
    assert (code, "plain" in out, "±" in out) == (0, False, True)
    names = ["noisy,seed=0", "noisy,seed=1"]
    assert sorted(path.name for path in (here / "alone" / "try").iterdir() if path.is_dir()) == names
    assert "| noisy | 2 |" in (here / "alone" / "try" / "results.md").read_text()
    for name in names:
        assert contents(here / "alone" / "try" / name) == contents(here / "runs" / "try" / name)
    code, _, err = sotto("run sweep.toml --only nobody")
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("broken", "code", "message"),
    [
        ("data.name = 'mnist'", 2, "data set 'mnist' and no folder"),
        ("algorithm.name = 'anti-pgd', privacy.epsilon = 1.0, training.clip = 'none'", 3, "not clipped"),
    ],
)
def test_failures_in_other_processes_are_one_line_with_their_code(broken, code, message, sotto, here, monkeypatch):
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
    text = SWEEP.replace("algorithm.sigma = 0.0", broken)
    if code == 3:
        text = text.replace("sigma = 1.0\n", "").replace("bound = 1.0\n", "").replace('{name = "noisy"}', BOUNDED)
    (here / "sweep.toml").write_text(text)
    found, out, err = sotto("run sweep.toml --jobs 2")
    assert (found, out, err.count("\n")) == (code, "", 1), err
    assert message in err
    assert not (here / "runs" / "try" / "plain,seed=0").exists()


BOUNDED = '{name = "noisy", algorithm.sigma = 1.0, training.bound = 1.0}'


def test_errors_survive_the_way_between_processes():
    error = pickle.loads(pickle.dumps(InputError("found", "rule", "remedy")))
    assert (str(error), error.exit_code, error.remedy) == ("found; rule; remedy", 2, "remedy")
    refusal = pickle.loads(pickle.dumps(Unaccountable("because")))
    assert (type(refusal), str(refusal), refusal.exit_code) == (Unaccountable, "because", 3)


def test_the_first_failure_in_one_process_leaves_the_finished_runs(tmp_path):
    fine, wrong = experiment(), experiment(data={"name": "mnist"}).model_copy(update={"name": "wrong"})
    with pytest.raises(InputError):
        run_experiments([SweepRun(one, "") for one in (fine, wrong)], tmp_path, jobs=1)
    assert (tmp_path / "try" / "result.json").exists()
    assert not (tmp_path / "wrong").exists()


ENDINGS = {
    "interrupted": (os.killpg, signal.SIGINT, 130, "sotto: stopped\n"),
    "terminated": (os.kill, signal.SIGTERM, 143, "sotto: stopped\n"),
    "killed": (os.kill, signal.SIGKILL, -signal.SIGKILL, ""),
}


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_sweep_that_is_ended_leaves_no_process_behind(ending, here, command):
    """Without clipping nothing is promised, so that a run that never ends begins at once."""
    send, kind, code, said = ENDINGS[ending]
    endless = "training = {rounds = 1000000}\n" + SWEEP[: SWEEP.index("[training]")]
    (here / "sweep.toml").write_text(endless.replace("rows = 12", "rows = 2"))
    process = command(here, "run", "sweep.toml", "--jobs", "2")
    begun = [here / "runs" / "try" / f"plain,seed={seed}" for seed in (0, 1)]
    while not all(
        len(lines_of(place / "metrics.jsonl")) > 1 for place in begun
    ):  # before a round is over, none is saved
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    workers = [pid for pid in children(process) if "resource_tracker" not in command_line(pid)]
    assert len(workers) == 2
    send(process.pid, kind)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (code, "", said)
    if kind is not signal.SIGKILL:
        assert [sorted(path.name for path in place.glob("checkpoint*")) for place in begun] == [["checkpoint.npz"]] * 2
    deadline = time.monotonic() + 10
    while any(map(command_line, workers)):
        assert time.monotonic() < deadline, "workers outlive the sweep"
        time.sleep(0.01)
    assert {path.name for path in (here / "runs" / "try").iterdir()} == {place.name for place in begun}


def command_line(pid):
    """The command of a process; empty when it has ended, whether or not somebody has asked for its code."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_text() if path.exists() else ""


NOTES = {
    "a result of its own": {"noisy": {"name": "wild", "headline": {"epsilon": 0.01}}},
    "a finished run": {"noisy": "no number"},
    "no run of the part": {"other": "no number"},
    "a list": [{"name": "wild", "diverged": "no number"}],
    "nothing": None,
}


@pytest.mark.parametrize("how", NOTES)
def test_notes_of_parts_decide_no_epsilon(how, sotto, here):
    (here / "sweep.toml").write_text(SWEEP.replace("[0, 1]", "[0]"))
    assert sotto("run sweep.toml --jobs 1")[0] == 0
    shards = here / "runs/try/shards"
    shards.mkdir()
    found = NOTES[how]
    if isinstance(found, dict):
        found = {f"try/{name},seed=0": reason for name, reason in found.items()}
    (shards / "2-of-2.json").write_text(json.dumps({} if found is None else {"diverged": found}))
    code, _, err = sotto("run sweep.toml --jobs 1 --shard 1/2")
    assert (code, "2-of-2.json" in err) == (2, True), err


def test_what_is_proven_of_runs_that_diverged_elsewhere_follows_from_the_settings(sotto, here):
    wild = '{name = "wild", algorithm = {sigma = 2.0, step_size = 1e39}}'
    text = SWEEP.replace("[0, 1]", "[0]").replace('{name = "plain", algorithm.sigma = 0.0}', wild)
    (here / "sweep.toml").write_text(text)
    _, whole, _ = sotto("run sweep.toml --jobs 1 --json")
    wanted = json.loads(whole)["runs"][0]
    assert wanted["average_model"]["mean"] is None
    folder = here / "runs/try/wild,seed=0"
    stated = json.loads((folder / "privacy.json").read_text())
    stated["headline"]["epsilon"] = 0.01
    shards = here / "runs/try/shards"
    shards.mkdir()
    (shards / "1-of-2.json").write_text(json.dumps({"diverged": {"try/wild,seed=0": "no number"}}))
    (folder / "privacy.json").write_text(json.dumps(stated))
    code, out, err = sotto("run sweep.toml --jobs 1 --json --shard 2/2")
    assert (code, json.loads(out)["runs"][0]["epsilon"]) == (0, wanted["epsilon"]), err


def test_pages_of_sweeps_say_what_was_only_read_and_what_each_epsilon_is_about(sotto, here):
    other = '{name = "loose", privacy.delta = 0.1}'
    (here / "sweep.toml").write_text(
        SWEEP.replace("[0, 1]", "[0]").replace('{name = "plain", algorithm.sigma = 0.0}', other)
    )
    page = here / "runs/try/results.md"
    assert sotto("run sweep.toml --jobs 1")[0] == 0
    first = page.read_text()
    assert ("at delta 0.1, about" in first, "at delta 1e-05, about" in first, "only read" in first) == (
        True,
        True,
        False,
    )
    assert sotto("run sweep.toml --jobs 1")[0] == 0
    assert "not checked" in page.read_text()
    out = sotto("compare runs/try")[1]
    assert ("delta 0.1," in out, "delta 1e-05," in out) == (True, True)


def test_recipes_are_valid():
    from sottovoce.attacks.registry import check_attacks
    from sottovoce.support.config import read_settings_file

    recipes = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
    recipes = [path for path in recipes if not path.name.startswith("hospitals")]  # settings of a federation
    assert recipes
    for path in recipes:
        document = read_settings_file(path)
        runs = expand_sweep(document, path.name)
        assert runs
        check_attacks(document, runs)


def test_parts_of_a_sweep_go_on_and_the_last_writes_what_one_process_writes(sotto, here):
    wild = '{name = "wild", algorithm = {sigma = 0.0, step_size = 1e39}},'
    (here / "sweep.toml").write_text(SWEEP.replace("variants = [", f"variants = [{wild} "))
    code, whole, err = sotto("run sweep.toml --json --out whole --jobs 1")
    assert code == 0, err
    assert (code, "diverged" in (here / "whole/try/results.md").read_text()) == (0, True), err
    part = "run sweep.toml --out runs --jobs 1 --json --shard {}/4"
    for number, missing in ((3, [1, 2, 4]), (1, [2, 4]), (1, [2, 4]), (4, [2])):
        code, out, err = sotto(part.format(number))
        assert (code, json.loads(out)["missing"]) == (0, missing), err
        assert not (here / "runs/try/results.md").exists()
    (here / "runs/try/plain,seed=0/result.json").unlink()  # as if part 3 had been killed before its end, and ran again
    assert sotto(part.format(3))[0] == 0
    code, out, err = sotto(part.format(2))
    assert code == 0, err
    rows, wanted = (json.loads(text)["runs"] for text in (out, whole))
    assert [{**row, "seconds": 0} for row in rows] == [{**row, "seconds": 0} for row in wanted]
    assert (here / "runs/try/results.md").read_text().startswith((here / "whole/try/results.md").read_text())
    assert sotto("compare runs/try")[0] == 0
    for wrong in ("0/4", "5/4", "half", "1/4 --only plain"):
        assert sotto(f"run sweep.toml --shard {wrong}")[0] == 2
    assert sotto("run try.toml --shard 1/2")[0] == 2
