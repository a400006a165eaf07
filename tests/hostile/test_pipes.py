"""Pipes and devices in the place of every file that a user can name: refused in a line, and never waited for."""

from __future__ import annotations

import os
import re
import signal
import tomllib
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.federation.federation import agreement_in, write_tables
from tests.hostile.mutations import SETTINGS

PATIENCE = 60
"""Seconds for what should take none: nobody writes into these pipes, so that whoever opens one waits for good."""

NPZ = "{place}.npz"
"""Arrays are recognised by how their names end."""

LINES = {
    "settings": "run {place}",
    "settings, JSON": "run {place}.json",
    "a noise key": "run keyed/config.json",
    "a graph": "graph file:{place}",
    "a graph of a run": "run try.toml --set topology.graph=file:{place}",
    "rows": f"run try.toml --set data.name=file:{NPZ}",
    "a table": "run try.toml --set data.name=table:{place}.csv --set data.columns=patients.columns.toml",
    "columns": "run try.toml --set data.name=table:Hill.csv --set data.columns=../{place} --data tables",
    "a ledger": "run try.toml --ledger {place}",
    "the lock of a ledger": "run try.toml --ledger locked.ledger",
    "a ledger that is read": "ledger {place}",
    "a correlation": f"account --graph ring:4 --algorithm mf-d-sgd --correlation {NPZ} --rounds 2",
    "a correlation of a run": f"run try.toml --set algorithm.name=mf-d-sgd --set algorithm.correlation={NPZ}",
    "a store of figures": "account --graph ring:4 --rounds 2 --all-pairs --out {place}",
    "a file of noise": f"noise --graph ring:4 --participation 1x2 --out {NPZ}",
    "a page": "compare finished --out {place}",
    "a table to look at": "data inspect {place}.csv",
    "a Parquet table": "data inspect {place}.parquet",
    "an array to look at": f"data inspect {NPZ}",
    "settings of tables": "data split breast-cancer {place} --out new",
    "settings of a federation": "peer agree {place} Hill.member.toml Mercy.member.toml --out new",
    "the file of a member": "peer agree settings.toml {place} Mercy.member.toml --out new",
    "an agreement": "run {place}.toml",
    "an agreement to check": "peer check {place} --folder Hill",
    "an agreement to compare": "peer check agreement.toml --folder Hill --against {place}",
    "an agreement to join": "peer join {place} --data tables/Hill.csv --folder Hill",
    "a table to join with": "peer join agreement.toml --data {place}.csv --folder Hill",
    "an agreement to rehearse": "peer rehearse {place} --data tables",
    "keys": "peer check agreement.toml --folder keys",
}


@contextmanager
def interrupted_after(seconds: float):
    """Where a command waits, the test fails."""

    def fail(*_: object) -> None:
        raise AssertionError(f"nothing was said for {seconds} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(int(seconds))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def places(tmp_path_factory, trained):
    """A folder with all that commands need, and a pipe and a device under every name that `LINES` has."""
    folder = tmp_path_factory.mktemp("places")
    agreed = agreement_in(folder)
    (folder / "agreement.toml").write_text(agreed.toml())
    write_tables(folder).rename(folder / "tables")
    (folder / "finished").symlink_to(trained(tomllib.loads(SETTINGS)))
    (folder / "try.toml").write_text(SETTINGS)
    for name in ("keyed", "keys"):
        (folder / name).mkdir(mode=0o700)
    (folder / "keyed" / "config.json").write_text('{"noise_key": "noise.key"}')
    for end in ("", ".json", ".npz", ".csv", ".parquet", ".toml"):
        os.mkfifo(folder / f"pipe{end}")
        (folder / f"device{end}").symlink_to("/dev/zero")
    os.mkfifo(folder / "locked.ledger.lock")
    os.mkfifo(folder / "keyed" / "noise.key")
    os.mkfifo(folder / "keys" / "identity.json", 0o600)
    return folder


@pytest.mark.parametrize("what", LINES)
def test_no_command_waits_for_a_pipe_or_reads_a_device(what, sotto, places, monkeypatch):
    monkeypatch.chdir(places)
    for kind in ("pipe", "device"):
        with interrupted_after(PATIENCE):
            code, out, err = sotto(LINES[what].format(place=kind))
        assert (code, out) == (2, ""), (kind, err)
        assert err.startswith("sotto: "), kind
        assert err.count("\n") == 1, err
        assert re.search(
            r" is a pipe or a device; | is not a file; | no identity; |: No such device or address; ", err
        ), err
    assert Path("pipe").is_fifo()


def test_a_file_that_is_too_long_is_not_read(sotto, tmp_path):
    """It takes no room on the disk, and would take all of the memory."""
    path = tmp_path / "long.toml"
    path.touch()
    os.truncate(path, 1 << 40)
    tracemalloc.start()
    try:
        code, out, err = sotto(f"run {path}")
        assert tracemalloc.get_traced_memory()[1] < 1 << 28
    finally:
        tracemalloc.stop()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "longer than 1,073,741,824 bytes" in err
