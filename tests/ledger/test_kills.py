"""Killed at any moment, with a full disk or without: one message for each place, and no more sent than spent."""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.spending import Spending
from tests.forked import forking
from tests.ledger.writer import FULL, RECEIVERS, ROUNDS, take_part


def play(folder, moment=None, room=None):
    process = forking().Process(target=take_part, args=(folder, moment, room))
    process.start()
    process.join()
    return process.exitcode


def messages_seen(folder):
    """What each receiver got for each place."""
    found = defaultdict(set)
    for line in (folder / "seen").read_text().splitlines():
        round, step, receiver, digest = line.split()
        found[int(round), int(step), receiver].add(digest)
    return found


def check(folder):
    """Whatever happened, receivers saw one message for each place, and the ledger has counted it."""
    seen = messages_seen(folder)
    assert all(len(digests) == 1 for digests in seen.values())
    with open_ledger(folder / "ledger", read_only=True) as database:
        database.verify()
        runs = Spending(database).lineage("data").runs
    assert (runs[0].round if runs else 0) >= max((round for round, _, _ in seen), default=0)


@pytest.mark.parametrize("kills", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_kill_at_random_moments(tmp_path, kills):
    rng, ends = np.random.default_rng(5), []
    (tmp_path / "whole").mkdir()
    assert play(tmp_path / "whole") == 0
    moments = int((tmp_path / "whole" / "moments").read_text())
    while len(ends) < kills:
        folder = Path(mkdtemp(dir=tmp_path))
        while ends[-1:] != [0] and len(ends) < kills:
            room = int(rng.integers(130_000, 500_000)) if len(ends) % 3 == 0 else None
            ends.append(play(folder, moment=int(rng.integers(1, moments // 2)), room=room))
            check(folder)
        ends = [end for end in ends if end]
        assert play(folder) == 0
        check(folder)
        assert len(messages_seen(folder)) == ROUNDS * 2 * len(RECEIVERS)
    assert set(ends) == {-signal.SIGKILL, FULL}


def test_a_full_disk_ends_the_member(tmp_path):
    assert play(tmp_path, room=150_000) == FULL
    check(tmp_path)
    assert play(tmp_path) == 0
    check(tmp_path)
