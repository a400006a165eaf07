"""Runs of ranks in their folders, as tests ask for them; and ranks that die as `kill -9` would have it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sottovoce.config import from_document
from sottovoce.draws import Draws
from sottovoce.errors import Diverged, SottovoceError
from sottovoce.run import checkpoint, pace
from sottovoce.run.folder import carry_out
from sottovoce.run.processes import joined
from sottovoce.run.wire import Flight, Wire
from tests.killed import Count, half_written

TIMEOUT = 20.0


def ranked(ranks, document, place, resume=False, stop=None):
    """Carry out an experiment at each rank, or its first rounds; what it raises is returned."""

    def interrupt(_, stage):
        if stage.rounds == stop:
            raise KeyboardInterrupt

    try:
        carry_out(from_document(document), Path(place), resume=resume, team=ranks, watch=interrupt)
    except SottovoceError as error:
        return f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        return "stopped"
    return None


class After(Count):
    """Ends this process when the right call has been made."""

    def __call__(self, *arguments, **more):
        self.left -= 1
        answer = self.inner(*arguments, **more)
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def bound(act):
    """A callable object as a method."""
    return lambda *arguments, **more: act(*arguments, **more)


FAULTS = {
    "before sending in round 3": lambda: setattr(Wire, "swap", bound(Count(Wire.swap, 4))),
    "after sending in round 3": lambda: setattr(Wire, "swap", bound(After(Wire.swap, 4))),
    "after hearing in round 3": lambda: setattr(Flight, "land", bound(After(Flight.land, 4))),
    "while writing its part": lambda: setattr(checkpoint.np, "savez", half_written(4)),
    "before its part has its name": lambda: setattr(checkpoint, "write", Count(checkpoint.write, 4)),
    "when its part is written": lambda: setattr(checkpoint, "write", After(checkpoint.write, 4)),
    "goes astray in round 3": lambda: setattr(Draws, "gradient", bound(Astray(Draws.gradient, 4))),
    "does not answer in round 3": lambda: setattr(Wire, "swap", bound(Hang(Wire.swap, 4))),
}
"""What befalls a rank. Of rank 0, its part is the one that names the others."""


class Astray(Count):
    """Refuses at the right call."""

    def __call__(self, *arguments, **more):
        self.left -= 1
        if not self.left:
            raise Diverged("gradient with nan", "it would spread", "clip it")
        return self.inner(*arguments, **more)


class Hang(Count):
    """Stops this process, without ending it, at the right call."""

    def __call__(self, *arguments, **more):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.inner(*arguments, **more)


def rank_until(fault, victim, told, document, place, timeout):
    """One rank of a run of which the victim meets a fault; exits 1 where a rank is lost to it, 2 where one refused."""
    os.environ |= told
    pace.PATIENCE = 0
    if int(told["RANK"]) == victim:
        FAULTS[fault]()
    with joined(timeout) as ranks:
        said = ranked(ranks, document, place, True)
        os._exit({"Lost": 1, "Diverged": 2}.get((said or "").partition(":")[0], 9))
