"""A member that only writes its ledger and sends, and that dies as `kill -9` would have it, at a scripted moment."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

from sottovoce.core.participation import Adjacency
from sottovoce.errors import SottovoceError
from sottovoce.ledger import database as database_module
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import PlannedRun, Stage
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.spending import Spending
from sottovoce.ledger.steps import Steps, digest_of
from sottovoce.privacy.composition import GaussianLoss

RUN, ROUNDS, RECEIVERS, SIZE = "a" * 64, 6, ("anna", "berta", "carla"), 3000
FULL = 3
"""The exit code where the ledger could not be written."""

LEDGER = Path(database_module.__file__).parent


def planned(rounds: int = ROUNDS, mu: float = 1.0, run: str = RUN, **more: object) -> PlannedRun:
    """A Gaussian run whose mu squared grows evenly to that of its end."""
    earlier = (Stage(at, GaussianLoss(mu * (at / rounds) ** 0.5)) for at in range(1, rounds))
    stages = (*earlier, Stage(rounds, GaussianLoss(mu)))
    facts = {"name": "try", "refundable": True, "adjacency": Adjacency.RECORD, "data": "rows", **more}
    return PlannedRun(run=run, rounds=rounds, loss=GaussianLoss(mu), stages=stages, **facts)


def take_part(folder: Path, moment: int | None, room: int | None) -> None:
    """All rounds that are left; killed at the so-many-th moment, with room for so many bytes in a file."""
    if room is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    seen = os.open(folder / "seen", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    count = _Moments(moment)
    try:
        with open_ledger(folder / "ledger") as database:
            database._connection.set_progress_handler(count, 20)
            sys.settrace(count.trace)
            _play(Steps(database, RUN), Spending(database), seen)
            sys.settrace(None)
            (folder / "moments").write_text(str(count.passed))
    except SottovoceError:
        sys.settrace(None)
        os._exit(FULL)
    os._exit(0)


class _Moments:
    """Counts lines of the ledger's code and pieces of SQL, and kills the process at one of them."""

    def __init__(self, last: int | None) -> None:
        self.passed, self._last = 0, last

    def __call__(self) -> int:
        self.passed += 1
        if self.passed == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def trace(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith((str(LEDGER), __file__)):
            return None
        self()
        return self.trace


def _play(steps: Steps, spending: Spending, seen: int) -> None:
    spending.reserve(planned())
    for place, payloads in steps.pending().items():
        for receiver, payload in payloads.items():
            _send(seen, place, receiver, payload)
    newest = steps.newest() or Place(0, 1)
    for place in (Place(round, step) for round in range(1, ROUNDS + 1) for step in (0, 1)):
        if place > newest:
            spending.spend(RUN, place.round)
            state = {name: os.urandom(SIZE) for name in ("released", "model")}
            steps.record_step(place, {name: os.urandom(SIZE) for name in RECEIVERS}, **state)
            for receiver, payload in steps.step(place).outgoing.items():
                _send(seen, place, receiver, payload)
        steps.record_received(place, {name: bytes([place.round, place.step]) * 50 for name in RECEIVERS})
        steps.forget(Place(max(0, place.round - 1), 0))
    spending.settle(RUN)


def _send(seen: int, place: Place, receiver: str, payload: bytes) -> None:
    os.write(seen, f"{place.round} {place.step} {receiver} {digest_of(payload)}\n".encode())
