"""One run in one, two and three processes: the same files, the same guarantees, whatever happens to a process."""

from __future__ import annotations

import json
import signal
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.processes import measured
from sottovoce import InputError
from sottovoce.algorithms.registry import algorithm_names
from sottovoce.run.build import build_run
from sottovoce.run.checkpoint import load
from sottovoce.run.execute import run_experiment
from sottovoce.run.finished_run import open_run
from sottovoce.run.layout import RunFiles
from sottovoce.support.config import merge, parse_experiment
from tests.distributed.ranked import (
    FAULTS,
    TIMEOUT,
    differing,
    held_data,
    rank_until,
    ranked,
)
from tests.distributed.ranks import environment
from tests.forked import forking
from tests.selection import in_turn

# --- runs in their folders -------------------------------------------------------------------------------------------

PLACES = {
    "undirected": {"graph": "ring:6"},
    "directed": {"graph": "exponential:6"},
    "changing": {"graph": "erdos-renyi:6,p=0.6", "fresh": True},
    "dropout": {"graph": "ring:6", "dropout": 0.3},
}
SETTINGS = {
    "decor": {"sigma": 1.0, "sigma_pair": 2.0}, "d-psgd": {}, "muffliato-sgd": {"sigma": 1.0, "gossip_steps": 2},
    "mf-d-sgd": {"sigma": 1.0, "correlation": "C.npz"},
}  # fmt: skip
ALL_MEET = ("dp-fedavg", "secure-average", "secure-mafalda", "swarm")
COMPRESSED = {f"dp-csgp {spec}": {"sigma": 1.0, "compression": spec} for spec in ("rand:0.5", "gsgd:8", "top:0.2")}


def document(name, where, **sections):
    """A small run of an algorithm; `same_start = false` so that who begins where matters."""
    word = name.partition(" ")[0]
    settings = COMPRESSED.get(name) or SETTINGS.get(name) or ({} if name == "d-psgd" else {"sigma": 1.0})
    if settings.get("correlation"):
        settings = {**settings, "correlation": str(CORRELATION)}
    net = {"graph": "complete:6"} if word in ALL_MEET else PLACES[where]
    if where == "directed" and word not in ("dp-csgp", *ALL_MEET):
        net = {**net, "weights": "uniform"}
    return {
        "name": "try", "noise_key": 16 * "5a", "data": {"rows": 12}, "topology": net,
        "metrics": {"every": 2, "test_rows": 20},
        "algorithm": {"name": word, **settings}, "privacy": {"attackers": "none"},
        "training": {"rounds": 4, "batch": "cycle:2x2", "clip": "per-example", "bound": 1.0,
                     "same_start": word in ("secure-average", "secure-mafalda")},
    } | sections  # fmt: skip


def contents(place):
    """All that a run holds, rows by node: but how long it took, where it lies, and what its processes sent."""
    files = RunFiles(place)
    lines = [{**line, "seconds": 0, "wire_bytes": 0} for line in files.lines()]
    with np.load(files.checkpoint) as stored:
        about = json.loads(stored["about"].tobytes())
    return {
        "lines": lines, "privacy": files.document(files.privacy), "config": files.document(files.config),
        "about": {key: about[key] for key in ("rounds", "sent", "nonfinite", "lines", "fingerprint")},
        "done": files.result.exists(),
    }  # fmt: skip


def models(place):
    """Where every node ended, from the parts of a checkpoint, by hand."""
    with np.load(place / "checkpoint.npz") as stored:
        about = json.loads(stored["about"].tobytes())
        parts = [dict(stored)]
    for name in about["parts"]:
        with np.load(place / name) as stored:
            parts.append(dict(stored))
    if not about["parts"]:
        return parts[0]["0"]
    nodes = np.concatenate([part["nodes"] for part in parts])
    assert sorted(nodes) == list(range(len(nodes)))
    return np.concatenate([part["0"] for part in parts])[np.argsort(nodes)]


def admitted(name, where):
    try:
        build_run(parse_experiment(document(name, where)))
    except InputError:
        return False
    return True


CORRELATION = Path(tempfile.mkdtemp()) / "C.npz"
np.savez(CORRELATION, C=np.eye(4) + 0.5 * np.eye(4, k=-1))
TRAINING = [name for name in algorithm_names() if name not in ("muffliato", "zip-dl-averaging")]


@cache
def runs():
    """Every algorithm that trains, compressed in each way, on every place that it admits."""
    return [(name, where) for name in (*TRAINING, *COMPRESSED) for where in PLACES if admitted(name, where)]


def some_runs():
    """Every algorithm once, compressed in each way, at one of its places: they take turns."""
    for number, name in enumerate((*TRAINING, *COMPRESSED)):
        own = [where for other, where in runs() if other == name]
        yield name, own[number % len(own)]


@pytest.fixture(scope="module")
def alone(trained):
    """`alone(name, where)` is the folder of that run in one process."""
    return cache(lambda name, where: trained(document(name, where)))


@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_algorithm_trains_the_same_with_the_same_guarantees(rest, pool, alone, tmp_path):
    """Each run in two processes or in three: an algorithm's places take turns. Slow: at its other places."""
    assert {name.partition(" ")[0] for name, _ in runs()} == set(TRAINING)
    fast = set(some_runs())
    assert {where for _, where in fast} == set(PLACES)
    for name, where in runs()[pool.size % 2 :: 2]:
        if ((name, where) in fast) is rest:
            continue
        place = tmp_path / f"{name} {where}".replace(":", "")
        assert pool(ranked, document(name, where), place) == [None] * pool.size, (name, where)
        exact = name not in ("zip-dl", "rss-lb", "dp-fedavg")
        wanted, found = models(alone(name, where)), models(place)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0 if exact else 1e-6, err_msg=f"{name} {where}")
        if exact:
            assert contents(place) == contents(alone(name, where)), (name, where)
        assert (place / "privacy.json").read_bytes() == (alone(name, where) / "privacy.json").read_bytes()
        wired = [line["wire_bytes"] for line in RunFiles(place).lines()]
        assert wired[0] == 0 < wired[2], (name, where)
        assert wired == sorted(wired)


@pytest.mark.parametrize(
    "change",
    [
        {
            "training": {"batch": "poisson:0.4"},
            "model": {"name": "mlp", "hidden": [16]},
            "privacy": {"adjacency": "user"},
        },
        {"training": {"batch": "fixed:3", "clip": "whole-gradient", "local_steps": 3}},
        pytest.param({"training": {"batch": "poisson:0.4"}}, marks=pytest.mark.slow),
        pytest.param({"model": {"name": "cnn"}}, marks=pytest.mark.slow),
        {"machine": {"precision": "float64"}},
        {"algorithm": {"name": "anti-pgd"}, "privacy": {"exact_noise": True}},
        {
            "algorithm": {"name": "zip-dl"},
            "privacy": {"exact_noise": True, "adjacency": "user"},
            "machine": {"precision": "float64"},
        },
        {
            "algorithm": {"name": "mafalda", "classes": 2},
            "topology": {"graph": "star:6"},
            "privacy": {"exact_noise": True},
        },
        {"privacy": {"exact_noise": False}},
    ],
    ids=str,
)
def test_batches_local_steps_models_and_precision_are_the_same(change, pools, tmp_path):
    wanted = merge(document("dp-d-sgd", "undirected"), change)
    run_experiment(parse_experiment(wanted), tmp_path / "alone")
    assert pools(3)(ranked, wanted, tmp_path / "ranks") == [None] * 3
    np.testing.assert_allclose(models(tmp_path / "ranks"), models(tmp_path / "alone"), rtol=0, atol=1e-6)
    assert contents(tmp_path / "ranks")["privacy"] == contents(tmp_path / "alone")["privacy"]


def test_ranks_share_the_key_that_their_run_made_for_itself(pools, tmp_path):
    wanted = document("dp-d-sgd", "undirected", noise_key=None)
    assert pools(2)(ranked, wanted, tmp_path / "ranks", False, 2) == ["stopped"] * 2
    assert pools(3)(ranked, wanted, tmp_path / "ranks", True) == [None] * 3
    key = json.loads((tmp_path / "ranks" / "noise.key").read_text())["noise_key"]
    run_experiment(parse_experiment(wanted | {"noise_key": key}), tmp_path / "alone")
    np.testing.assert_array_equal(models(tmp_path / "ranks"), models(tmp_path / "alone"))


def test_each_rank_makes_numbers_of_the_rows_of_its_own_nodes_alone(pool):
    wanted = document("dp-d-sgd", "undirected")
    whole = build_run(parse_experiment(wanted)).task
    for nodes, rows, kept, all_of_them in pool(held_data, wanted):
        assert (kept, all_of_them) == (12 * len(nodes), False)
        for node, held in zip(nodes, rows, strict=True):
            np.testing.assert_array_equal(held, whole.dataset.inputs[whole.shards.indices[node]])


# --- checkpoints, whoever wrote them ---------------------------------------------------------------------------------

LONG = {"machine": {"checkpoint_seconds": 0.0}, "training": {"rounds": 6, "batch": "cycle:3x2", "clip": "per-example",
        "bound": 1.0, "same_start": False}}  # fmt: skip
CARRIED = [("dp-csgp rand:0.5", "directed"), ("muffliato-sgd", "undirected"), ("anti-pgd", "changing")]
"""States of all kinds: push-sum weights and copies that strangers hold, earlier models, noise that looks back."""


def go_on(pools, size, wanted, place, stop=None):
    """Carry on in so many processes, up to some round or to the end."""
    if size > 1:
        assert set(pools(size)(ranked, wanted, place, True, stop)) == {None if stop is None else "stopped"}
        return

    def interrupt(_, state):
        if state.rounds == stop:
            raise KeyboardInterrupt

    with nullcontext() if stop is None else pytest.raises(KeyboardInterrupt):
        run_experiment(parse_experiment(wanted), place, resume=True, on_round=interrupt)


@pytest.mark.parametrize(
    ("name", "where", "sizes"),
    [
        pytest.param(*run, sizes, marks=() if run == CARRIED[number] else pytest.mark.slow)
        for run in CARRIED for number, sizes in enumerate([(1, 2, 3), (3, 1, 2), (2, 3, 1)])
    ],
)  # fmt: skip
def test_a_run_goes_on_in_any_number_of_processes(name, where, sizes, trained, pools, tmp_path):
    wanted = document(name, where, **LONG)
    whole = trained(wanted)
    for size, stop in zip(sizes, (3, 5, None), strict=True):
        go_on(pools, size, wanted, tmp_path, stop)
        parts = list(tmp_path.glob("checkpoint*.npz"))
        assert len(parts) == size, "its own part, those it names, and no others"
    assert contents(tmp_path) == contents(whole)
    np.testing.assert_array_equal(models(tmp_path), models(whole))
    load(tmp_path / "checkpoint.npz", build_run(parse_experiment(wanted)), contents(tmp_path)["about"]["fingerprint"])


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unhurt(trained):
    return trained(document("dp-d-sgd", "undirected", **LONG))


ENDS_WITHIN = 300.0
"""Seconds after which a rank that should have ended by itself is killed, and the test fails: only a hang is so long."""


@pytest.fixture(scope="module")
def started():
    """`started(fault, victim, place, timeout)`: exit codes of two ranks of which one meets a fault, by rank."""

    def start(fault, victim, place, timeout):
        with tempfile.TemporaryDirectory() as shared:
            wanted = document("dp-d-sgd", "undirected", **LONG)
            told = [environment(rank, 2, f"{shared}/meeting") for rank in range(2)]
            ranks = [
                forking().Process(target=rank_until, args=(fault, victim, env, wanted, str(place), timeout))
                for env in told
            ]
            for rank in ranks:
                rank.start()
            ranks[1 - victim].join(ENDS_WITHIN)
            for rank in ranks if "astray" not in fault else []:
                rank.kill()
            for rank in ranks:
                rank.join()
            return [rank.exitcode for rank in ranks]

    return start


@pytest.mark.parametrize(("fault", "victim"), in_turn((fault for fault in FAULTS if "astray" not in fault), (0, 1)))
def test_a_rank_that_is_lost_stops_the_others_and_the_run_goes_on(fault, victim, started, unhurt, pools, tmp_path):
    """The one that is left ends by itself, saying so; nothing half-written is taken up; in the end nothing shows."""
    codes = started(fault, victim, tmp_path, 3.0 if "answer" in fault else TIMEOUT)
    assert codes == ([-signal.SIGKILL, 1] if victim == 0 else [1, -signal.SIGKILL])
    about = contents(tmp_path)
    assert 1 <= about["about"]["rounds"] <= 4
    assert not about["done"]
    for size in (2, 1) if victim else (1,):
        go_on(pools, size, document("dp-d-sgd", "undirected", **LONG), tmp_path, 5 if size == 2 else None)
    assert contents(tmp_path) == contents(unhurt)
    np.testing.assert_array_equal(models(tmp_path), models(unhurt))
    assert not list(tmp_path.glob("*.part"))


# --- recordings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "where"),
    [("dp-d-sgd", "dropout"), ("zip-dl", "undirected"), ("dp-csgp rand:0.5", "directed"), ("dp-fedavg", "undirected"),
     pytest.param("dp-d-sgd", "undirected", marks=pytest.mark.slow),
     pytest.param("muffliato-sgd", "changing", marks=pytest.mark.slow)],
)  # fmt: skip
def test_attackers_record_the_same(name, where, pools, tmp_path):
    wanted = document(name, where, record={"attackers": [0, 1, 4, 5], "every": 2})
    run_experiment(parse_experiment(wanted), tmp_path / "alone")
    assert pools(3)(ranked, wanted, tmp_path / "ranks", False, 3) == ["stopped"] * 3
    assert pools(2)(ranked, wanted, tmp_path / "ranks", True) == [None] * 2
    one, other = (open_run(tmp_path / place).messages for place in ("alone", "ranks"))
    assert one.rounds == other.rounds == (0, 2, 3)
    assert one.pairs == other.pairs
    for attacker, sender in one.pairs:
        np.testing.assert_allclose(other.of(attacker, sender), one.of(attacker, sender), rtol=0, atol=1e-6)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "version", "said"),
    [
        ({"training": {"rounds": 2}}, None, "rank 1 has another settings.training.rounds: 2, rank 0 has 4"),
        ({"seed": 3}, None, "rank 1 has another settings.seed: 3, rank 0 has 0"),
        ({}, "99.0", "rank 1 has another sottovoce: '99.0', rank 0 has"),
    ],
)
def test_ranks_that_differ_refuse_to_begin(change, version, said, pool, tmp_path):
    one = document("dp-d-sgd", "undirected")
    answers = pool(differing, one, merge(one, change), tmp_path / "try", version)
    assert len(set(answers)) == 1
    assert answers[0].startswith("InputError")
    assert said in answers[0]
    assert not (tmp_path / "try").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topology": {"graph": "path:2"}}, "3 processes for 2 nodes"),
        ({"algorithm": {"sigma": -1.0}}, "sigma = -1"),
        ({"record": {"attackers": [9]}}, "record.attackers: node 9"),
        ({"privacy": {"epsilon": 1.0}}, "both algorithm.sigma and privacy.epsilon"),
    ],
)
def test_what_is_wrong_is_refused_by_all_and_nothing_is_written(change, said, pools, tmp_path):
    wanted = merge(document("dp-d-sgd", "undirected"), change)
    answers = pools(3)(ranked, wanted, tmp_path / "try")
    assert len(set(answers)) == 1
    assert said in answers[0]
    assert not (tmp_path / "try").exists()


def test_a_finished_run_is_only_read_and_an_unfinished_one_not_overwritten(pools, tmp_path):
    wanted = document("dp-d-sgd", "undirected")
    assert pools(2)(ranked, wanted, tmp_path, False, 3) == ["stopped"] * 2
    assert all("unfinished run" in said for said in pools(2)(ranked, wanted, tmp_path))
    assert pools(3)(ranked, wanted, tmp_path, True) == [None] * 3
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert pools(2)(ranked, wanted, tmp_path) == [None] * 2
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("how", ["missing", "cut", "of another run"])
def test_a_damaged_part_is_refused_by_all(how, pools, tmp_path):
    wanted = document("dp-d-sgd", "undirected")
    assert pools(2)(ranked, wanted, tmp_path, False, 3) == ["stopped"] * 2
    (part,) = tmp_path.glob("checkpoint.*.npz")
    if how == "missing":
        part.unlink()
    elif how == "cut":
        part.write_bytes(part.read_bytes()[:-20])
    else:
        np.savez(part, nodes=np.array([0, 1]), **{"0": np.zeros((2, 3))})
    for size in (2, 3):
        answers = pools(size)(ranked, wanted, tmp_path, True)
        assert len(set(answers)) == 1
        assert "InputError" in answers[0]
        assert "checkpoint" in answers[0]


def test_what_one_rank_raises_in_a_round_all_raise(started, tmp_path):
    """Gradients that are not finite at one rank: the other learns why it is left alone."""
    assert started("goes astray in round 3", 1, tmp_path, TIMEOUT) == [2, 2]


@pytest.mark.slow
def test_memory_of_a_rank_falls_with_their_number():
    """64 nets of 600,000 parameters, 150 MB for each copy of all: ranks in processes of their own.

    What does not fall, the interpreter and the libraries of each rank, is the more of it the fewer copies there are.
    """
    what = ("ring:64", "none", 64, 4, "mlp", (750,))
    most = [max(rank["memory"] for rank in measured(size, 1, *what)) for size in (1, 2, 4)]
    assert most[1] < 0.8 * most[0]
    assert most[2] < 0.75 * most[1]
