"""What a ledger takes for a round of a member, beyond the disk's own flushes: `python -m benchmarks.ledger`."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.loop import settings
from sottovoce.core.adjacency import Adjacency
from sottovoce.federation.ledger_journal import LedgerJournal
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import PlannedRun, Stage
from sottovoce.ledger.places import Place
from sottovoce.ledger.spending import Spending
from sottovoce.ledger.steps import Steps
from sottovoce.privacy.composition import GaussianLoss

RUN = "a" * 64


class Flushes:
    """Counts the bytes and flushes of a ledger by the growth of its log, and repeats them in a file beside it."""

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / "flushes", "wb")  # noqa: SIM115
        self._bytes = os.urandom(1 << 22)

    def repeat(self, size: int, times: int) -> float:
        """Seconds for so many flushes of so many bytes in all."""
        self._file.seek(0)
        start = time.perf_counter()
        for _ in range(times):
            left = size // times
            while left > 0:
                left -= self._file.write(self._bytes[: min(left, len(self._bytes))])
            self._file.flush()
            os.fdatasync(self._file.fileno())
        return time.perf_counter() - start


def planned(rounds: int) -> PlannedRun:
    """A Gaussian run with twenty stages, as runs have them."""
    stages = (Stage(-(-at * rounds // 20), GaussianLoss((at / 20) ** 0.5)) for at in range(1, 21))
    return PlannedRun(
        run=RUN, name="bench", rounds=rounds, loss=GaussianLoss(1.0), stages=tuple(stages), refundable=True,
        adjacency=Adjacency.RECORD, data="rows",
    )  # fmt: skip


def writes(parameters: int = 25_450, neighbours: int = 4, rounds: int = 60) -> None:
    """Rounds of one member: coins, the step, and what was received; then the same bytes flushed to the same disk."""
    rng = np.random.default_rng(0)
    row = rng.standard_normal((1, parameters)).astype(np.float32)
    payloads = {member: row.tobytes() for member in range(1, neighbours + 1)}
    with tempfile.TemporaryDirectory(dir=".") as place, open_ledger(Path(place) / "ledger") as database:
        spending, flushes = Spending(database), Flushes(Path(place))
        spending.reserve(planned(rounds))
        journal = LedgerJournal(
            Steps(database, RUN), [str(one) for one in range(neighbours + 1)], lambda at: _spent(spending, at)
        )
        whole, own, beyond = [], [], []
        for round in range(rounds):
            at, cpu, start = Place(round, 0), time.thread_time(), time.perf_counter()
            journal.coins(_Coins(round), bytes(32))
            journal.state = row.tobytes()
            journal.note(at, "released", row)
            journal.before_send(at, payloads)
            journal.received(at, payloads)
            whole.append(time.perf_counter() - start)
            own.append(time.thread_time() - cpu)
            beyond.append(whole[-1] - flushes.repeat((2 * neighbours + 2) * row.nbytes, 4))
    middle = [1e3 * statistics.median(times) for times in (whole, own, beyond)]
    print(
        f"{parameters:,} parameters, {neighbours} neighbours, {rounds} rounds: {middle[0]:.2f} ms a round by the clock,"
        f" {middle[2]:.2f} ms beyond flushes of the same bytes, {middle[1]:.2f} ms of processor time"
    )


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
