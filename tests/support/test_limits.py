"""Limits: what is too large is refused in one line before work begins, and carried out when asked for."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc

import pytest

from sottovoce import InputError, algorithm, metropolis, trace
from sottovoce.core.graphs import graph
from sottovoce.core.participation import Participation
from sottovoce.privacy.exact.routes import loss_cost
from sottovoce.privacy.observation import observe
from sottovoce.privacy.views import parse_view
from sottovoce.support import limits
from sottovoce.support.limits import Cost, check_cost, free_memory, limits_lifted
from sottovoce.support.threads import physical_memory
from sottovoce.tracing.policy import trace_cost

TOO_LARGE = [
    "graph geometric:20000,r=2",
    "graph geometric:9000,r=1e200",
    "account --graph ring:6 --rounds 10000000",
    "account --graph ring:6 --rounds 100000 --view node:0",
    "account --graph ring:6 --rounds 100000 --algorithm anti-pgd",
    "account --graph complete:500 --rounds 5 --algorithm zip-dl",
    "calibrate --graph ring:6 --rounds 10000000 --epsilon 1",
    "plan --graph ring:6 --rounds 10000000 --epsilon 1 --records 10",
    "noise --graph ring:6 --rounds 10000000",
    "noise --graph ring:6 --rounds 5000",
    "noise --graph ring:8 --rounds 10000000 --sampled 0.1 --epsilon 20",
    "noise --graph ring:8 --rounds 20000 --sampled 1e-9 --epsilon 20",
    "account --graph ring:3000 --rounds 100 --all-pairs",
    "plan --graph ring:8 --rounds 10000000 --epsilon 4 --records 1000 --adjacency record --participation poisson:0.01",
]


@pytest.fixture
def small_machine(monkeypatch):
    """One with 8 GB free, wherever the tests run."""
    monkeypatch.setattr(limits, "free_memory", lambda: 8e9)


@pytest.mark.parametrize("line", TOO_LARGE)
def test_what_is_too_large_is_refused_in_one_line(line, sotto, small_machine):
    begun = time.process_time()
    code, out, err = sotto(line)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert time.process_time() - begun < 10


def test_it_is_carried_out_when_asked_for(sotto, monkeypatch):
    line = "account --graph ring:6 --rounds 4 --view node:0 --json"
    whole = sotto(line)
    monkeypatch.setattr(limits, "SECONDS", 1e-9)
    code, out, err = sotto(line)
    assert (code, out) == (2, "")
    assert "takes about 1 second of one core; without --yes at most 1 second are used; " in err
    assert err.endswith(", or add --yes\n")
    assert sotto(line, "--yes") == whole
    assert sotto(line)[0] == 2, "the next command asks again"


def test_a_run_and_its_sweep_are_refused_before_anything_is_written(sotto, tmp_path, monkeypatch):
    from tests.support.test_config import SMALL

    monkeypatch.chdir(tmp_path)
    (tmp_path / "try.toml").write_text(SMALL)
    monkeypatch.setattr(limits, "free_memory", lambda: 1e4)
    monkeypatch.setattr(limits, "LITTLE_SHARE", 0.0)
    code, _, err = sotto("run try.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert "parameters each takes about" in err
    assert not (tmp_path / "runs" / "try").exists()
    assert sotto("run try.toml --yes --json")[0] == 0
    assert json.loads((tmp_path / "runs" / "try" / "result.json").read_text())["rounds"] == 3


def test_a_small_file_that_unpacks_to_much_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "free_memory", lambda: 2e9)
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(20):
            file.write(b"1 2\n" * 2**20)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"bomb\.gz, 67\.1 MB and more unpacked, takes about 1\.3 GB of memory"):
        graph(f"file:{path}")
    assert tracemalloc.get_traced_memory()[1] < 3e8
    tracemalloc.stop()


def test_free_memory_is_a_part_of_all():
    assert 1e6 < free_memory() <= physical_memory()


def test_limits_are_lifted_where_that_is_said_and_only_there():
    far = Cost(seconds=1e9)
    with limits_lifted(), limits_lifted(False):
        check_cost("it", far, "take less")
    with pytest.raises(InputError, match="it takes about 11,574 days"):
        check_cost("it", far, "take less")


def test_the_estimate_of_noise_on_messages_counts_its_entries():
    """On a complete graph every message carries all draws of its sender."""
    net = metropolis("complete:12")
    noise = algorithm("zip-dl", sigma=1.0).noise.edge(net.at(0))
    for term in noise:
        assert term.matrix.whole().nnz <= term.matrix.entries <= term.matrix.whole().nnz + term.matrix.plain.nnz
    assert trace_cost(algorithm("zip-dl", sigma=1.0), net, rounds=3).memory > 12**3 * 200


def test_a_hub_is_refused_by_what_is_left_of_its_view_when_known_messages_are_taken_off():
    """A star's hub hears all leaves, and a leaf says nothing that does not follow from what was said before."""
    star = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("star:400"), rounds=60)
    hub, leaf = (loss_cost(observe(star, parse_view(f"node:{node}")), Participation()) for node in (0, 1))
    assert hub.seconds <= 2 * leaf.seconds


@pytest.mark.parametrize(
    ("kind", "speed"),
    [("convex-training", "absorption_policy.WEIGHTS"), ("fixed-streams", "exact.routes.MULTIPLICATIONS")],
)
def test_a_kind_that_is_too_large_is_refused_with_what_to_type_instead(kind, speed, sotto, monkeypatch):
    monkeypatch.setattr(f"sottovoce.privacy.{speed}", 1e-3)
    code, out, err = sotto(f"account --graph ring:40 --rounds 4 --view node:0 --kind {kind}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    for option in ("--kind any-training", "--yes"):
        assert option in err
    assert sotto("account --graph ring:40 --rounds 4 --view node:0 --kind any-training")[0] == 0
