"""Garbage collection that no command waits for when it starts and ends: modules are never garbage."""

from __future__ import annotations

import atexit
import gc

FIRST = 400_000
"""Objects until the first collection: a run's modules, with those of torch, are 340,000. Python's own rule is 700."""


def defer_collection() -> None:
    """Let the first collection of this process wait for `FIRST` objects, and leave out the one at its end.

    After the first, all is as before. At the end files are closed already, and the system takes back all memory.
    """
    usual = gc.get_threshold()
    if usual[0] == FIRST:
        return

    def return_to_usual(_phase: str, _info: dict[str, int]) -> None:
        gc.set_threshold(*usual)
        gc.callbacks.remove(return_to_usual)

    gc.callbacks.append(return_to_usual)
    gc.set_threshold(FIRST, *usual[1:])
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
