"""One run in one, two and three processes: the same models, the same guarantees, and only what must cross crosses."""

from __future__ import annotations

import json
import multiprocessing
import signal
import tempfile
import time
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce import InputError, final
from sottovoce.algorithms import names
from sottovoce.config import from_document
from sottovoce.loop import rounds_of
from sottovoce.placement import blocks
from sottovoce.run.build import build
from sottovoce.run.checkpoint import load
from sottovoce.run.folder import Files, carry_out
from sottovoce.run.hosted import Hosted
from sottovoce.run.hosting import Halo, Host, HostedRows
from tests.cases import DIMENSION, ROUNDS, cases, task
from tests.ranked import FAULTS, TIMEOUT, rank_until, ranked
from tests.ranks import Pool, environment

CASES = {str(case): case for case in cases() if case.place not in ("path:4", "star:5")}
SEED = 9


@pytest.fixture(scope="module")
def pools():
    """Ranks by their number, started when they are asked for."""
    found = {}

    def of(size):
        if size not in found:
            found[size] = Pool(size)
        return found[size]

    yield of
    for each in found.values():
        each.close()


@pytest.fixture(params=[2, 3])
def pool(request, pools):
    return pools(request.param)


# --- the law: any number of processes, one run ---------------------------------------------------------------------


def start(case, dtype=torch.float32):
    """A public starting point of all nodes; averaging begins at zero."""
    rows = torch.from_numpy(np.random.default_rng(4).standard_normal((case.topology.n, DIMENSION))).to(dtype)
    return 0 * rows if case.algorithm.once else rows


def hosted_end(ranks, names):
    """The nodes here and where they end, of each case."""
    found = {}
    for name in names:
        case = CASES[name]
        net = case.topology
        host = Host(blocks(net, ranks.size), ranks.wire)
        x0, away = start(case), host.plan(net.at(0)).strangers
        compressed = case.algorithm.compression.name != "identity"
        halo = Halo(away, x0[torch.from_numpy(away)]) if compressed else None
        everyone = task(net.n)

        def gradient(round, points, host=host, net=net, everyone=everyone):
            whole = np.zeros((net.n, DIMENSION), dtype=np.float32)
            whole[host.nodes] = points.numpy()
            return torch.from_numpy(everyone(round, whole)[host.nodes])

        played = rounds_of(
            case.algorithm, net, HostedRows(host, host.share(x0), halo), gradient, rounds=ROUNDS, seed=SEED,
            make=partial(Hosted, first=net.at(0)),
        )  # fmt: skip
        for now in played:
            last = now
        found[name] = host.nodes, last.models.own.numpy(), last.traffic
    return found


@cache
def alone_end(name):
    case = CASES[name]
    everyone = task(case.topology.n)
    return final(
        case.algorithm, case.topology, start(case), lambda t, x: torch.from_numpy(everyone(t, x.numpy())),
        rounds=ROUNDS, seed=SEED,
    ).numpy()  # fmt: skip


def test_every_algorithm_on_every_topology_ends_the_same(pool):
    """Bit for bit, but where noise on single messages or a secure sum is added up in another order."""
    ends = pool(hosted_end, list(CASES))
    for name, case in CASES.items():
        alone = alone_end(name)
        whole = np.full_like(alone, np.nan)
        for nodes, rows, _ in (end[name] for end in ends):
            whole[nodes] = rows
        if case.algorithm.noise.edge(case.topology.at(0)) or case.algorithm.secure_sum:
            np.testing.assert_allclose(whole, alone, rtol=1e-6, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(whole, alone, err_msg=name)


# --- runs in their folders -----------------------------------------------------------------------------------------

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
COMPRESSED = {f"dp-csgp {spec}": {"sigma": 1.0, "compression": spec} for spec in ("rand:0.5", "gsgd:8", "top:0.2")}


def document(name, where, **sections):
    """A small run of an algorithm; `same_start = false` so that who begins where matters."""
    word = name.partition(" ")[0]
    settings = COMPRESSED.get(name) or SETTINGS.get(name) or ({} if name == "d-psgd" else {"sigma": 1.0})
    if settings.get("correlation"):
        settings = {**settings, "correlation": str(CORRELATION)}
    net = {"graph": "complete:6"} if word == "dp-fedavg" else PLACES[where]
    if where == "directed" and word not in ("dp-csgp", "dp-fedavg"):
        net = {**net, "weights": "uniform"}
    return {
        "name": "try", "data": {"rows": 12}, "topology": net, "metrics": {"every": 2, "test_rows": 20},
        "algorithm": {"name": word, **settings}, "privacy": {"attackers": "none"},
        "training": {"rounds": 4, "batch": "cycle:2x2", "clip": "per-example", "bound": 1.0, "same_start": False},
    } | sections  # fmt: skip


def contents(place):
    """All that a run holds, rows by node: but how long it took, where it lies, and what its processes sent."""
    files = Files(place)
    lines = [{**line, "seconds": 0, "wire_bytes": 0} for line in files.lines()]
    with np.load(files.checkpoint) as stored:
        about = json.loads(stored["about"].tobytes())
    return {
        "lines": lines, "privacy": files.document(files.privacy), "config": files.document(files.config),
        "about": {key: about[key] for key in ("rounds", "sent", "broken", "lines", "fingerprint")},
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
        build(from_document(document(name, where)))
    except InputError:
        return False
    return True


CORRELATION = Path(tempfile.mkdtemp()) / "C.npz"
np.savez(CORRELATION, C=np.eye(4) + 0.5 * np.eye(4, k=-1))
TRAINING = [name for name in names() if name not in ("muffliato", "zip-dl-averaging")]
RUNS = [(name, where) for name in (*TRAINING, *COMPRESSED) for where in PLACES if admitted(name, where)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """`alone(name, where)` is the folder of that run in one process."""
    place = tmp_path_factory.mktemp("alone")

    @cache
    def run(name, where):
        folder = place / f"{name} {where}".replace(":", "")
        carry_out(from_document(document(name, where)), folder)
        return folder

    return run


def test_every_algorithm_trains_the_same_with_the_same_guarantees(pool, alone, tmp_path):
    places = {where for _, where in RUNS}
    assert places == set(PLACES)
    assert {name.partition(" ")[0] for name, _ in RUNS} == set(TRAINING)
    for name, where in RUNS if pool.size == 2 else RUNS[::3]:
        place = tmp_path / f"{name} {where}".replace(":", "")
        assert pool(ranked, document(name, where), place) == [None] * pool.size, (name, where)
        exact = name not in ("zip-dl", "rss-lb", "dp-fedavg")
        wanted, found = models(alone(name, where)), models(place)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0 if exact else 1e-6, err_msg=f"{name} {where}")
        if exact:
            assert contents(place) == contents(alone(name, where)), (name, where)
        assert (place / "privacy.json").read_bytes() == (alone(name, where) / "privacy.json").read_bytes()
        wired = [line["wire_bytes"] for line in Files(place).lines()]
        assert wired[0] == 0 < wired[2], (name, where)
        assert wired == sorted(wired)


# --- checkpoints, whoever wrote them -------------------------------------------------------------------------------

LONG = {"machine": {"checkpoint_seconds": 0.0}, "training": {"rounds": 6, "batch": "cycle:3x2", "clip": "per-example",
        "bound": 1.0, "same_start": False}}  # fmt: skip
CARRIED = [("dp-csgp rand:0.5", "directed"), ("muffliato-sgd", "undirected"), ("anti-pgd", "changing")]
"""States of all kinds: push-sum weights and copies that strangers hold, earlier models, noise that looks back."""


def go_on(pools, size, wanted, place, stop=None):
    """Carry on in so many processes, up to some round or to the end."""
    if size > 1:
        assert set(pools(size)(ranked, wanted, place, True, stop)) == {None if stop is None else "stopped"}
        return

    def interrupt(_, stage):
        if stage.rounds == stop:
            raise KeyboardInterrupt

    with nullcontext() if stop is None else pytest.raises(KeyboardInterrupt):
        carry_out(from_document(wanted), place, resume=True, watch=interrupt)


@pytest.mark.parametrize(("name", "where"), CARRIED)
def test_a_run_goes_on_in_any_number_of_processes(name, where, pools, tmp_path):
    wanted = document(name, where, **LONG)
    carry_out(from_document(wanted), tmp_path / "whole")
    for number, sizes in enumerate([(1, 2, 3), (3, 1, 2), (2, 3, 1)]):
        place = tmp_path / str(number)
        for size, stop in zip(sizes, (3, 5, None), strict=True):
            go_on(pools, size, wanted, place, stop)
            parts = list(place.glob("checkpoint*.npz"))
            assert len(parts) == size, "its own part, those it names, and no others"
        assert contents(place) == contents(tmp_path / "whole")
        np.testing.assert_array_equal(models(place), models(tmp_path / "whole"))
        load(place / "checkpoint.npz", build(from_document(wanted)).before(), contents(place)["about"]["fingerprint"])


# --- faults --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unhurt(tmp_path_factory):
    place = tmp_path_factory.mktemp("unhurt")
    carry_out(from_document(document("dp-d-sgd", "undirected", **LONG)), place)
    return place


@pytest.fixture(scope="module")
def started():
    """`started(fault, victim, place, timeout)`: exit codes of two ranks of which one meets a fault, by rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.ranked"])

    def start(fault, victim, place, timeout):
        with tempfile.TemporaryDirectory() as folder:
            wanted = document("dp-d-sgd", "undirected", **LONG)
            told = [environment(rank, 2, f"{folder}/meeting") for rank in range(2)]
            ranks = [
                context.Process(target=rank_until, args=(fault, victim, env, wanted, str(place), timeout))
                for env in told
            ]
            for rank in ranks:
                rank.start()
            ranks[1 - victim].join(60)
            ranks[victim].kill()
            for rank in ranks:
                rank.join()
            return [rank.exitcode for rank in ranks]

    return start


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_is_lost_stops_the_others_and_the_run_goes_on(fault, victim, started, unhurt, pools, tmp_path):
    """The one that is left ends by itself, saying so; nothing half-written is taken up; in the end nothing shows."""
    begun = time.monotonic()
    codes = started(fault, victim, tmp_path, 3.0 if "answer" in fault else TIMEOUT)
    assert codes == ([-signal.SIGKILL, 1] if victim == 0 else [1, -signal.SIGKILL])
    assert time.monotonic() - begun < 60
    about = contents(tmp_path)
    assert 1 <= about["about"]["rounds"] <= 4
    assert not about["done"]
    for size in (2, 1) if victim else (1,):
        go_on(pools, size, document("dp-d-sgd", "undirected", **LONG), tmp_path, 5 if size == 2 else None)
    assert contents(tmp_path) == contents(unhurt)
    np.testing.assert_array_equal(models(tmp_path), models(unhurt))
    assert not list(tmp_path.glob("*.part"))
