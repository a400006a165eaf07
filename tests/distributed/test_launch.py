"""`sotto run --processes` and torchrun: started, interrupted, hurt, restarted; one line for what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.cli.app import explained
from sottovoce.distributed import launch
from sottovoce.run.checkpoint import Action, CheckpointSchedule
from sottovoce.support.processes import Terminated
from tests.distributed.test_ranks import contents, models
from tests.run.test_checkpoint import LONG, saved_at, until

SHORT = f'noise_key = "{16 * "5a"}"' + (LONG % 60).replace("anti-pgd", "dp-d-sgd")
LASTING = f'noise_key = "{16 * "5a"}"' + (LONG % 4000).replace("anti-pgd", "dp-d-sgd")


def children(process):
    """Processes that a process has started, by rank."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        found += [int(path.name)] if parent == process.pid else []
    return sorted(found)


@pytest.fixture
def whole(tmp_path, sotto, monkeypatch):
    """The folder of the short run in one process; the test begins beside its TOML file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.toml").write_text(SHORT)
    assert sotto("run long.toml --out whole")[0] == 0
    return tmp_path / "whole" / "long"


def test_the_command_spreads_a_run_over_processes(whole, tmp_path, command):
    process = command(tmp_path, "--quiet", "run", "long.toml", "--processes", "2", "--json")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    result = json.loads(out)
    assert result["metrics"]["wire_bytes"] == 60 * 2 * 2 * 4 * 650, "two rows each way in each round, of 650 float32"
    assert contents(tmp_path / "runs" / "long") == contents(whole)
    assert (models(tmp_path / "runs" / "long") == models(whole)).all()


@pytest.mark.slow
def test_a_wrong_setting_is_one_line(tmp_path, command):
    (tmp_path / "long.toml").write_text(SHORT)
    process = command(tmp_path, "--quiet", "run", "long.toml", "--processes", "2", "--set", "topology.graph=path:1")
    assert process.communicate() == (
        "",
        "sotto: 2 processes for 1 nodes; each hosts at least one node; use at most 1\n",
    )
    assert process.returncode == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("arguments", [["--set", "seeds=[0,1]"], ["--set", 'grid."algorithm.sigma"=[1.0, 2.0]']])
def test_sweeps_are_refused(arguments, tmp_path, sotto, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.toml").write_text(SHORT)
    code, out, err = sotto("run long.toml --processes 2", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("sotto: long.toml: a sweep over processes; ")


@pytest.mark.slow
def test_interrupted_killed_and_left_alone_it_ends_the_same(tmp_path, sotto, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.toml").write_text(LASTING)
    place = tmp_path / "runs" / "long"
    lost = "a process was ended or its connection is gone; go on from the last checkpoint with --resume\n"
    stopped = {
        "interrupt": (130, "sotto: stopped\n"), "terminate": (143, "sotto: stopped\n"), "rank 1": (1, lost),
        "rank 0": (1, lost), "parent": (-signal.SIGKILL, ""),
    }  # fmt: skip
    for number, (whom, (code, said)) in enumerate(stopped.items()):
        process = command(tmp_path, "--quiet", "run", "long.toml", "--resume", "--processes", str(2 + number % 2))
        before = saved_at(place / "checkpoint.npz")
        until(process, lambda before=before: saved_at(place / "checkpoint.npz") > before)
        if whom == "interrupt":
            process.send_signal(signal.SIGINT)
        elif whom == "terminate":
            process.send_signal(signal.SIGTERM)
        elif whom == "parent":
            process.send_signal(signal.SIGKILL)
        else:
            os.kill(children(process)[int(whom[-1])], signal.SIGKILL)
        out, err = process.communicate()
        assert (process.returncode, out) == (code, ""), (whom, err)
        assert err.endswith(said)
        assert err.count("\n") == bool(said)
    code, err = 2, "another process uses it"
    while "another process uses it" in err:  # ranks whose parent was killed leave within a second
        code, _, err = sotto("run long.toml --resume")
    assert code == 0, err
    assert sotto("run long.toml --out whole")[0] == 0
    assert contents(place) == contents(tmp_path / "whole" / "long")
    assert (models(place) == models(tmp_path / "whole" / "long")).all()


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_the_signal_that_one_rank_gets_stops_all_in_its_own_way(kind):
    class Two:
        rank, size = 0, 2

        def maximum(self, *numbers):
            return list(numbers)

    schedule = CheckpointSchedule(Two(), seconds=1e6, rounds=10)
    with schedule.interrupts_deferred():
        assert schedule.after(1) == Action.CONTINUE
        signal.raise_signal(kind)
        assert schedule.after(2) == (Action.STOP if kind == signal.SIGINT else Action.TERMINATE)
    assert explained(Terminated())[1] == 143
    assert explained(KeyboardInterrupt())[1] == 130


@pytest.mark.parametrize("codes", [(None, 1), (1, None)])
def test_one_that_failed_is_noticed_while_another_hangs(codes, monkeypatch):
    """Whichever of them hangs."""

    class Rank:
        def __init__(self, code):
            self.code, self.returncode = code, None

        def poll(self):
            self.returncode = self.code
            return self.code

    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.0)
    launch._wait([Rank(code) for code in codes])


def test_a_run_that_rank_0_has_finished_ended_well():
    assert launch._exit_code([0, 130]) == launch._exit_code([0, -signal.SIGKILL]) == 0
    assert launch._exit_code([-signal.SIGKILL, 1]) == 1


@pytest.mark.slow
def test_torchrun_restarts_a_run_whose_rank_was_killed(whole, tmp_path, sotto):
    (tmp_path / "long.toml").write_text(SHORT.replace("rounds = 60", "rounds = 600"))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1",
        "-m", "sottovoce", "run", "long.toml", "--resume", "--json",
    ]  # fmt: skip
    told = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, **told}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    place = tmp_path / "runs" / "long"
    until(process, (place / "checkpoint.npz").exists)
    os.kill(children(process)[-1], signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["metrics"]["round"] == 600
    assert "go on from the last checkpoint" in err
    assert sotto("run long.toml --out again")[0] == 0
    assert contents(place) == contents(tmp_path / "again" / "long")
    assert (models(place) == models(tmp_path / "again" / "long")).all()
