"""What a ledger takes for a round of a member, beyond the disk's own flushes: `python -m benchmarks.ledger`."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.loop import settings
from sottovoce.core.participation import Adjacency
from sottovoce.federation.journal import Journal
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import PlannedRun, Stage
from sottovoce.ledger.payloads import Payloads, Place
from sottovoce.ledger.spending import Spending
from sottovoce.ledger.steps import Steps
from sottovoce.privacy.composition import GaussianLoss

RUN = "a" * 64


class ByHand:
    """The same bytes in a file on the same disk, with nothing but writes and flushes."""

    def __init__(self, folder: Path, coins: int, step: int) -> None:
        self._file = os.open(folder / "by-hand", os.O_CREAT | os.O_WRONLY)
        self._coins, self._step = os.urandom(coins), os.urandom(step)

    def flushed(self, *records: bytes) -> Taken:
        """A write and a flush of each record."""
        start = Taken.now()
        for record in records:
            os.pwrite(self._file, record, 0)
            os.fdatasync(self._file)
        return start.until_now()

    def one_flush(self) -> Taken:
        """All bytes of a round in one write with one flush."""
        return self.flushed(self._coins + self._step)

    def needed_flushes(self) -> Taken:
        """Coins are on the disk before the gradient is computed, and the step before it is sent."""
        return self.flushed(self._coins, self._step)


class Taken(NamedTuple):
    """Seconds by the clock, and of processor time of all threads."""

    clock: float
    processor: float

    @classmethod
    def now(cls) -> Taken:
        """Since the process began, or whenever clocks do."""
        return cls(time.perf_counter(), time.process_time())

    def until_now(self) -> Taken:
        """Since then."""
        now = Taken.now()
        return Taken(now.clock - self.clock, now.processor - self.processor)


def planned(rounds: int) -> PlannedRun:
    """A Gaussian run with twenty stages, as runs have them."""
    stages = (Stage(-(-at * rounds // 20), GaussianLoss((at / 20) ** 0.5)) for at in range(1, 21))
    return PlannedRun(
        run=RUN, name="bench", rounds=rounds, loss=GaussianLoss(1.0), stages=tuple(stages), refundable=True,
        adjacency=Adjacency.RECORD, data="rows",
    )  # fmt: skip


def writes(parameters: int = 25_450, neighbours: int = 4, rounds: int = 60, repeats: int = 5) -> None:
    """Rounds of one member, with what they take beyond the same bytes by hand after each; several ledgers in turn."""
    turns = [_rounds(parameters, neighbours, rounds) for _ in range(repeats)]
    print(
        f"{parameters:,} parameters, {neighbours} neighbours, {repeats} ledgers of {rounds} rounds; ms a round, "
        f"median (least and largest of each ledger's); load {os.getloadavg()[0]:.1f}"
    )
    for what in turns[0]:
        middles = [1e3 * statistics.median(turn[what]) for turn in turns]
        print(f"  {statistics.median(middles):7.2f} ({min(middles):.2f} to {max(middles):.2f}) {what}")


def _rounds(parameters: int, neighbours: int, rounds: int) -> dict[str, list[float]]:
    """Coins, the step, and what was received.

    A step stores the message, which is the same for all neighbours, the noisy gradient, and the model.
    """
    rng = np.random.default_rng(0)
    row = rng.standard_normal((1, parameters)).astype(np.float32)
    payloads = Payloads({member: row.tobytes() for member in range(1, neighbours + 1)})
    sent = Payloads(dict.fromkeys(range(1, neighbours + 1), row.tobytes()))
    taken: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=".") as place, open_ledger(Path(place) / "ledger") as database:
        spending = Spending(database)
        by_hand = ByHand(Path(place), 32, (3 + neighbours) * row.nbytes)
        spending.reserve(planned(rounds))
        journal = Journal(
            Steps(database, RUN), [str(one) for one in range(neighbours + 1)], lambda at: _spent(spending, at)
        )
        for round in range(rounds):
            at, start = Place(round, 0), Taken.now()
            journal.coins(_Coins(round), bytes(32))
            journal.state = row.tobytes()
            journal.note(at, "released", row)
            journal.before_send(at, sent)
            journal.received(at, payloads)
            ledger, one, needed = start.until_now(), by_hand.one_flush(), by_hand.needed_flushes()
            taken["by the clock"].append(ledger.clock)
            taken["by the clock beyond the same bytes with one flush"].append(ledger.clock - one.clock)
            taken["by the clock beyond them with the two flushes that are needed"].append(ledger.clock - needed.clock)
            taken["of processor time"].append(ledger.processor)
            taken["of processor time beyond the same bytes with one flush"].append(ledger.processor - one.processor)
    return taken


class _Coins:
    def __init__(self, round: int) -> None:
        self.round = round


def _spent(spending: Spending, round: int) -> None:
    spending.spend(RUN, round)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        writes(**settings(sys.argv[1:]))  # type: ignore[arg-type]
    else:
        for parameters in (1_000, 25_450, 1_000_000):
            writes(parameters)
