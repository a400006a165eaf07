"""Checkpoints: a run that is stopped at any moment, and killed at any moment, ends with the same bits."""

from __future__ import annotations

import fcntl
import json
import random
import shutil
import signal
import stat
import time

import numpy as np
import pytest
import torch

from sottovoce import InputError
from sottovoce.core.random_streams import NoiseKey
from sottovoce.learning.datasets import load as load_data
from sottovoce.run import build, checkpoint, execute, fingerprint, protocol
from sottovoce.run.checkpoint import Checkpoint, load, save
from sottovoce.run.execute import run_experiment
from sottovoce.run.layout import RunFiles
from sottovoce.run.training_run import measured_rounds, prepare_run
from sottovoce.support.npz import write_npz
from sottovoce.support.threads import threads
from tests.cases import cases
from tests.forked import forking
from tests.run.killed import MOMENTS, experiment, run_for, run_until
from tests.run.test_simulation import job
from tests.selection import rest_slow

EXAMPLES = [
    case
    for case in cases()
    if not case.algorithm.averaging
    and case.place in (("star:5",) if "classes" in case.example.settings else ("complete:4", "fresh", "dropout"))
]
"""Classes of nodes by degree are on a star, where there are two."""
ROUNDS = 4


@pytest.fixture(autouse=True)
def _one_thread():
    with threads():
        yield


# --- every algorithm, every round ----------------------------------------------------------------------------------


def played(began, state, stop=None):
    """Stages and figures but the time from a stage on, up to `stop` rounds."""
    found, last = [], state
    for now, measured in measured_rounds(began, state, every=2, test_rows=10, start=state.rounds == 0):
        if stop is not None and now.rounds > stop:
            break
        last = now
        found += [] if measured is None else [{**measured.document(), "seconds": 0}]
    return last, found


@pytest.mark.parametrize("case", rest_slow(EXAMPLES))
def test_stopped_after_any_round_and_taken_up_by_others_it_ends_the_same(case, tmp_path):
    def fresh():
        what = job(case.topology.n, rows=6).gradients("poisson:0.5", "per-example", 1.0, noise_key=NoiseKey.of_seed(2))
        return prepare_run(case.algorithm, case.topology, what, rounds=ROUNDS, seed=3, noise_key=NoiseKey.of_seed(3))

    began = fresh()
    end, figures = played(began, began.before())
    for stop in range(ROUNDS + 1):
        first = fresh()
        half, before = played(first, first.before(), stop)
        save(tmp_path / "stage", Checkpoint(half, len(before), 1.5), "mark", first.transport)
        second = fresh()
        saved = load(tmp_path / "stage", second, "mark")
        assert (saved.state.rounds, saved.lines, saved.seconds) == (stop, len(before), 1.5)
        assert type(saved.state.loop_state.state) is type(half.loop_state.state)
        again, after = played(second, saved.state) if stop else played(second, second.before())
        assert torch.equal(second.models(again), began.models(end))
        assert (again.sent, again.nonfinite) == (end.sent, end.nonfinite)
        assert (before if stop else []) + after == figures


# --- runs in their folders -----------------------------------------------------------------------------------------


def contents(place):
    """All that a finished run holds, but how long it took and where it lies."""
    files = RunFiles(place)
    with np.load(files.checkpoint) as stored:
        about = json.loads(stored["about"].tobytes())
        arrays = {name: stored[name].tobytes() for name in stored.files if name not in ("about", "checksum")}
    lines = [{**line, "seconds": 0} for line in files.lines()]
    result = {**files.document(files.result), "seconds": 0, "folder": "", "metrics": lines[-1]}
    return {
        "arrays": arrays, "about": {**about, "seconds": 0}, "lines": lines, "result": result,
        "privacy": files.document(files.privacy), "config": files.document(files.config),
        "private": files.document(files.private),
    }  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing disturbed."""
    place = tmp_path_factory.mktemp("whole")
    run_experiment(experiment(), place)
    return contents(place)


def die(moment, place):
    process = forking().Process(target=run_until, args=(moment, str(place)))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_it_ends_the_same(moment, whole, tmp_path):
    place = tmp_path / "try"
    die(moment, place)
    assert not RunFiles(place).result.exists()
    half = [part for part in place.glob("*.part") if "written" in moment or "name" in moment]
    assert len(half) == ("written" in moment or "name" in moment)
    run_experiment(experiment(), place, resume=True)
    assert contents(place) == whole
    assert not list(place.glob("*.part"))


def test_killed_again_and_again_it_ends_the_same(whole, tmp_path):
    for moment in ("before the promise", "while a checkpoint is written", "after the checkpoint of the start"):
        die(moment, tmp_path / "try")
    run_experiment(experiment(), tmp_path / "try", resume=True)
    assert contents(tmp_path / "try") == whole


CALLS = 40_000
"""About as many calls of functions, and returns from them, as a run has once its folder is locked."""


@pytest.mark.parametrize("kills", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_the_same(kills, whole, tmp_path):
    """After calls drawn at random; a run that ends before its kill is compared, and another one begins."""
    draw, number, killed = random.Random(kills), 0, 0
    while killed < kills:
        place = tmp_path / str(number)
        process = forking().Process(target=run_for, args=(draw.randrange(1, CALLS), str(place)))
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        killed += process.exitcode == -signal.SIGKILL
        if process.exitcode == 0 or killed % 5 == 0:
            run_experiment(experiment(), place, resume=True)
            assert contents(place) == whole
            assert not list(place.glob("*.part"))
            number += 1


@pytest.mark.parametrize("seconds", [0.0, 1e6])
@pytest.mark.parametrize("stop", [1, 3, 6])
def test_an_interrupt_saves_where_the_run_is(stop, seconds, whole, tmp_path):
    def interrupt(_, state):
        if state.rounds == stop:
            raise KeyboardInterrupt

    settings = experiment(machine={"checkpoint_seconds": seconds})
    with pytest.raises(KeyboardInterrupt):
        run_experiment(settings, tmp_path, on_round=interrupt)
    with np.load(tmp_path / "checkpoint.npz") as stored:
        assert json.loads(stored["about"].tobytes())["rounds"] == stop - 1
    rounds = []
    run_experiment(settings, tmp_path, resume=True, on_round=lambda _, state: rounds.append(state.rounds))
    assert rounds == list(range(stop, 7))
    assert contents(tmp_path) | {"config": whole["config"]} == whole


# --- folders that hold something else ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    place = tmp_path_factory.mktemp("stopped")

    def interrupt(_, state):
        if state.rounds == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment(), place, on_round=interrupt)
    return place


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy of a run that was interrupted after three rounds, two lines of metrics written."""
    return shutil.copytree(stopped_once, tmp_path, dirs_exist_ok=True)


def resumed(place, **sections):
    return run_experiment(experiment(**sections), place, resume=True)


def test_an_unfinished_run_is_not_overwritten(stopped, whole):
    with pytest.raises(InputError, match="unfinished run; nothing is overwritten; go on with --resume"):
        run_experiment(experiment(), stopped)
    resumed(stopped)
    assert contents(stopped) == whole
    before = {path.name: path.stat().st_mtime_ns for path in stopped.iterdir()}
    resumed(stopped)
    run_experiment(experiment(), stopped)
    assert {path.name: path.stat().st_mtime_ns for path in stopped.iterdir()} == before


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"algorithm": {"sigma": 2.0}}, "algorithm.sigma"),
        ({"training": {"rounds": 5}}, "training.rounds"),
        ({"machine": {"precision": "float64"}}, "machine.precision"),
        ({"privacy": {"delta": 1e-6}}, "privacy.delta"),
        ({"model": {"bias": False}}, "model.bias"),
    ],
)
def test_a_folder_holds_one_run(sections, key, stopped):
    with pytest.raises(InputError, match=f"holds a run with another {key}"):
        run_experiment(experiment(**sections), stopped)


def test_how_often_is_saved_may_change(stopped, whole):
    resumed(stopped, machine={"checkpoint_seconds": 5.0})
    assert contents(stopped) == whole


DAMAGED = {
    "cut": lambda data: data[: len(data) // 2],
    "cut at the end": lambda data: data[:-1],
    "a bit flipped": lambda data: data[:3000] + bytes([data[3000] ^ 1]) + data[3001:],
    "empty": lambda _: b"",
    "text": lambda _: b"hello\n",
}


@pytest.mark.parametrize("how", DAMAGED)
def test_damaged_checkpoints_are_refused_and_left_alone(how, stopped):
    path = stopped / "checkpoint.npz"
    damaged = DAMAGED[how](path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"checkpoint\.npz: "):
        resumed(stopped)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"about": np.frombuffer(b"{}", dtype=np.uint8)},
        {"about": np.frombuffer(b"[1]", dtype=np.uint8)},
        {"about": np.frombuffer(b"\xff", dtype=np.uint8)},
        {"about": np.array([1.5])},
        {"x": np.zeros(3)},
    ],
)
def test_foreign_checkpoints_are_refused(arrays, stopped):
    with (stopped / "checkpoint.npz").open("wb") as file:
        write_npz(file, arrays)
    with pytest.raises(InputError, match="no checkpoint of this run: "):
        resumed(stopped)
    np.savez(stopped / "checkpoint.npz", **arrays)
    with pytest.raises(InputError, match="carries no checksum"):
        resumed(stopped)


def test_checkpoints_of_other_formats_are_refused(stopped, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    with pytest.raises(InputError, match=r"format \d+; this version reads"):
        resumed(stopped)


def test_a_checkpoint_of_another_run_is_refused(stopped, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    run_experiment(experiment(algorithm={"sigma": 2.0}), other)
    (stopped / "checkpoint.npz").write_bytes((other / "checkpoint.npz").read_bytes())
    before = (stopped / "privacy.json").read_bytes()
    with pytest.raises(InputError, match="a checkpoint of other settings, data or code"):
        resumed(stopped)
    assert (stopped / "privacy.json").read_bytes() == before


def changed_data(*_):
    digits = load_data("digits")
    targets = digits.targets.copy()
    targets[-1] = (targets[-1] + 1) % 10
    return type(digits)(**{**vars(digits), "targets": targets})


def test_other_data_or_another_version_is_refused(stopped, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(build, "_dataset", changed_data)
        with pytest.raises(InputError, match="other settings, data or code"):
            resumed(stopped)
    for package, module in (("sottovoce", fingerprint), ("torch", fingerprint.torch), ("numpy", fingerprint.np)):
        with monkeypatch.context() as patch:
            patch.setattr(module, "__version__", "99")
            with pytest.raises(InputError, match=f"began with {package} .*, and 99 is installed"):
                resumed(stopped)


def test_a_graph_file_that_changed_is_refused(tmp_path, monkeypatch):
    edges = tmp_path / "edges.txt"

    def loop_state(interrupted):
        def on_round(_, state):
            if interrupted and state.rounds == 3:
                raise KeyboardInterrupt

        protocol._topology.cache_clear()
        where = experiment(topology={"graph": f"file:{edges}"})
        return run_experiment(where, tmp_path / "run", resume=True, on_round=on_round)

    edges.write_text("0 1\n1 2\n2 3\n3 0\n")
    with pytest.raises(KeyboardInterrupt):
        loop_state(True)
    edges.write_text("0 1\n1 2\n2 3\n")
    with pytest.raises(InputError, match="other settings, data or code"):
        loop_state(False)
    edges.write_text("0 1\n1 2\n2 3\n3 0\n")
    loop_state(False)


def test_a_promise_made_for_other_data_is_refused(tmp_path):
    """Killed before its first checkpoint, a run has a promise and nothing that ties it to its data but the promise.

    Its first rounds were played: their noise is not drawn again with other data.
    """
    die("before the first checkpoint", tmp_path)
    before = RunFiles(tmp_path).document(tmp_path / "privacy.json")
    for name in ("privacy.json", "private.json"):
        kept = (tmp_path / name).read_text()
        (tmp_path / name).write_text(json.dumps({**json.loads(kept), "fingerprint": "of another run"}))
        with pytest.raises(InputError, match="other settings, data or code"):
            resumed(tmp_path)
        (tmp_path / name).write_text(kept)
    (tmp_path / "private.json").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="other settings, data or code"):
        resumed(tmp_path)
    (tmp_path / "elsewhere").rename(tmp_path / "private.json")
    resumed(tmp_path)
    assert RunFiles(tmp_path).document(tmp_path / "privacy.json") == before
    assert RunFiles(tmp_path).document(tmp_path / "result.json")["headline"] == before["headline"]


def test_what_depends_on_the_data_is_in_one_file_for_its_owner(tmp_path):
    run_experiment(experiment(), tmp_path)
    private = tmp_path / "private.json"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    found = json.loads(private.read_text())
    assert [*found] == ["private", "fingerprint", "nonfinite", "in_ledger"]
    assert found["private"].startswith("Do not hand this file on")
    assert found["nonfinite"] == 0
    for path in tmp_path.glob("*.json*"):
        text = path.read_text()
        assert (found["fingerprint"] in text or "nonfinite" in text) is (path == private)
    private.write_text("{}")
    (tmp_path / "result.json").unlink()
    with pytest.raises(InputError, match=r"private\.json: damaged"):
        resumed(tmp_path)


@pytest.mark.parametrize("tail", [b"", b'{"round": 4, "lo', b'{"round": 4}\n{"round": 6}\n'])
def test_metrics_after_the_checkpoint_are_measured_again(tail, stopped, whole):
    with (stopped / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    resumed(stopped)
    assert contents(stopped) == whole


@pytest.mark.parametrize("cut", [1, 200])
def test_metrics_that_the_checkpoint_knows_must_be_there(cut, stopped):
    path = stopped / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match=r"metrics\.jsonl: 1 lines; the checkpoint has 2"):
        resumed(stopped)
    path.unlink()
    with pytest.raises(InputError, match=r"metrics\.jsonl: 0 lines"):
        resumed(stopped)


def test_damaged_documents_are_refused(stopped):
    for name in ("config.json", "privacy.json"):
        before = (stopped / name).read_text()
        for text in ("{", "[1]", ""):
            (stopped / name).write_text(text)
            with pytest.raises(InputError, match=f"{name}: damaged"):
                resumed(stopped)
        (stopped / name).write_text(before)
    (stopped / "config.json").unlink()
    with pytest.raises(InputError, match="a checkpoint without settings"):
        resumed(stopped)


def test_two_processes_do_not_share_a_folder(stopped, whole, monkeypatch):
    with (stopped / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with monkeypatch.context() as patch:
            patch.setattr(execute, "build_accountant", lambda *_: pytest.fail("worked for nothing"))
            with pytest.raises(InputError, match="another process uses it"):
                resumed(stopped)
    resumed(stopped)
    assert contents(stopped) == whole


def test_who_comes_second_does_not_take_over_the_promise_of_the_first(tmp_path, monkeypatch):
    """Another process writes its settings into the folder while this one still builds."""
    building = execute.build_accountant

    def slow(*arguments):
        monkeypatch.setattr(execute, "build_accountant", building)
        run_experiment(experiment(algorithm={"sigma": 9.0}), tmp_path)
        return building(*arguments)

    monkeypatch.setattr(execute, "build_accountant", slow)
    with pytest.raises(InputError, match="guarantees for other settings, data or code"):
        run_experiment(experiment(), tmp_path)


# --- the command itself --------------------------------------------------------------------------------------------

# nothing is clipped, so nothing is promised, and runs begin at once
LONG = """
name = "long"
data.rows = 12
topology.graph = "ring:4"
algorithm = {name = "anti-pgd", sigma = 0.1}
training.rounds = %d
metrics = {every = 50, test_rows = 10}
machine.checkpoint_seconds = 0
"""


def until(process, condition):
    """Look until something holds; the process must not end before."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)


def saved_at(path):
    return path.stat().st_mtime_ns if path.exists() else 0


def assert_repeats(place, sotto):
    """An undisturbed run with the noise key that the disturbed one made for itself has the same numbers."""
    key = json.loads((place / "noise.key").read_text())["noise_key"]
    assert sotto(f"run long.toml --out whole --set noise_key='{key}'")[0] == 0
    disturbed, undisturbed = contents(place), contents(place.parents[1] / "whole" / "long")
    for part in ("arrays", "lines"):
        assert disturbed[part] == undisturbed[part]


STOPPED = "sotto: the rounds until now are saved in runs/long: go on with --resume.\nsotto: stopped\n"


def test_the_command_stopped_and_killed_ends_the_same(tmp_path, sotto, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.toml").write_text(LONG % 800)
    place, before = tmp_path / "runs" / "long", 0
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
    for kind, code in codes.items():
        process = command(tmp_path, "run", "long.toml", "--resume")
        until(process, lambda before=before: saved_at(place / "checkpoint.npz") > before)
        process.send_signal(kind)
        assert process.communicate() == ("", "" if kind is signal.SIGKILL else STOPPED)
        assert process.returncode == code
        before = saved_at(place / "checkpoint.npz")
    code, out, err = sotto("run long.toml --resume --json")
    assert (code, err) == (0, "")
    assert json.loads(out)["metrics"]["round"] == 800
    assert_repeats(place, sotto)


def test_a_termination_saves_what_was_not_saved_yet(tmp_path, command):
    """Checkpoints are an hour apart: the one that is there was written because of the signal. A second signal, as
    some send it, does not disturb.
    """
    endless = (LONG % 10**6).replace("anti-pgd", "dp-d-sgd").replace("seconds = 0", "seconds = 3600")
    (tmp_path / "long.toml").write_text(endless)
    place = tmp_path / "runs" / "long"
    process = command(tmp_path, "run", "long.toml")
    until(process, lambda: saved_at(place / "metrics.jsonl") and len((place / "metrics.jsonl").read_text()) > 0)
    assert not (place / "checkpoint.npz").exists()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.communicate() == ("", STOPPED)
    assert process.returncode == 143
    assert (place / "checkpoint.npz").exists()


@pytest.mark.slow
def test_the_command_killed_at_random_moments_ends_the_same(tmp_path, sotto, command, monkeypatch):
    """A model large enough that kills meet half-written checkpoints: they are waited for, stopped, seen and killed."""
    monkeypatch.chdir(tmp_path)
    large = (LONG % 1000).replace("anti-pgd", "dp-d-sgd") + 'model = {name = "mlp", hidden = [600]}\n'
    (tmp_path / "long.toml").write_text(large)
    place, draw, halves = tmp_path / "runs" / "long", random.Random(1), 0
    for attempt in range(5):
        process = command(tmp_path, "run", "long.toml", "--resume")
        changes, before = draw.randrange(3), saved_at(place / "checkpoint.npz")
        for _ in range(changes):
            until(process, lambda before=before: saved_at(place / "checkpoint.npz") > before)
            before = saved_at(place / "checkpoint.npz")
        if attempt % 2:
            until(process, lambda: any(place.glob("checkpoint.npz.*.part")))
            process.send_signal(signal.SIGSTOP)
            halves += any(place.glob("checkpoint.npz.*.part"))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert halves
    assert sotto("run long.toml --resume")[0] == 0
    assert_repeats(place, sotto)
