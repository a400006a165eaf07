"""What a ledger takes for a round of a member, beyond the disk's own flushes: `python -m benchmarks.ledger`."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.loop import settings
from sottovoce.core.adjacency import Adjacency
from sottovoce.federation.ledger_journal import LedgerJournal
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import PlannedRun, Stage
from sottovoce.ledger.payloads import Payloads
from sottovoce.ledger.places import Place
from sottovoce.ledger.spending import Spending
from sottovoce.ledger.steps import Steps
from sottovoce.privacy.composition import GaussianLoss

RUN = "a" * 64


class ByHand:
    """The same bytes in a file on the same disk, with nothing but writes and flushes."""

    def __init__(self, folder: Path, *records: int) -> None:
        self._file = os.open(folder / "by-hand", os.O_CREAT | os.O_WRONLY)
        self._records = [os.urandom(size) for size in records]
        self._all = b"".join(self._records)

    def seconds(self, records: Sequence[bytes]) -> float:
        """For a write and a flush of each record."""
        start = time.perf_counter()
        for record in records:
            os.pwrite(self._file, record, 0)
            os.fdatasync(self._file)
        return time.perf_counter() - start

    def one_flush(self) -> float:
        """Seconds for all bytes of a round in one write with one flush."""
        return self.seconds([self._all])

    def each_flushed(self) -> float:
        """Seconds for a write and a flush of each record of a round."""
        return self.seconds(self._records)


def planned(rounds: int) -> PlannedRun:
    """A Gaussian run with twenty stages, as runs have them."""
    stages = (Stage(-(-at * rounds // 20), GaussianLoss((at / 20) ** 0.5)) for at in range(1, 21))
    return PlannedRun(
        run=RUN, name="bench", rounds=rounds, loss=GaussianLoss(1.0), stages=tuple(stages), refundable=True,
        adjacency=Adjacency.RECORD, data="rows",
    )  # fmt: skip


def writes(parameters: int = 25_450, neighbours: int = 4, rounds: int = 60) -> None:
    """Rounds of one member: coins, the step, and what was received; each followed by the same bytes by hand.

    A step stores the message, which is the same for all neighbours, the noisy gradient, and the model.
    """
    rng = np.random.default_rng(0)
    row = rng.standard_normal((1, parameters)).astype(np.float32)
    payloads = Payloads({member: row.tobytes() for member in range(1, neighbours + 1)})
    sent = Payloads(dict.fromkeys(range(1, neighbours + 1), row.tobytes()))
    with tempfile.TemporaryDirectory(dir=".") as place, open_ledger(Path(place) / "ledger") as database:
        spending = Spending(database)
        by_hand = ByHand(Path(place), 32, 3 * row.nbytes, neighbours * row.nbytes)
        spending.reserve(planned(rounds))
        journal = LedgerJournal(
            Steps(database, RUN), [str(one) for one in range(neighbours + 1)], lambda at: _spent(spending, at)
        )
        taken: dict[str, list[float]] = defaultdict(list)
        for round in range(rounds):
            at, cpu, start = Place(round, 0), time.process_time(), time.perf_counter()
            journal.coins(_Coins(round), bytes(32))
            journal.state = row.tobytes()
            journal.note(at, "released", row)
            journal.before_send(at, sent)
            journal.received(at, payloads)
            taken["by the clock"].append(clock := time.perf_counter() - start)
            taken["of processor time"].append(time.process_time() - cpu)
            cpu = time.process_time()
            taken["beyond the same bytes in one write with one flush"].append(clock - by_hand.one_flush())
            taken["of processor time for that write and flush"].append(time.process_time() - cpu)
            taken["beyond a write and a flush for each of three records"].append(clock - by_hand.each_flushed())
    print(f"{parameters:,} parameters, {neighbours} neighbours, {rounds} rounds; ms a round, median and quartiles")
    for what, seconds in taken.items():
        low, middle, high = (1e3 * one for one in statistics.quantiles(seconds, n=4))
        print(f"  {middle:7.2f} ({low:.2f} to {high:.2f}) {what}")


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
