"""Garbage is collected late, and then as always."""

from __future__ import annotations

import gc
import subprocess
import sys

from sottovoce.cli.app import FIRST_COLLECTION as FIRST
from sottovoce.cli.app import defer_collection


def test_the_first_collection_waits_and_later_ones_do_not():
    gc.collect()  # commands of other tests may have deferred theirs
    usual, known = gc.get_threshold(), list(gc.callbacks)
    assert usual[0] < FIRST
    defer_collection()
    defer_collection()  # a second command in the same process
    assert gc.get_threshold() == (FIRST, *usual[1:])
    kept = [[] for _ in range(FIRST + 1)]
    assert gc.get_threshold() == usual
    assert gc.callbacks == known
    assert len(kept) == FIRST + 1


ENDING = """
import gc
from sottovoce.cli.app import defer_collection
class Last:
    def __del__(self):
        print("collected")
one = Last()
one.itself = one
gc.collect()
{}
del one
print("done")
"""


def test_the_interpreter_ends_without_a_collection():
    def said(line: str) -> str:
        return subprocess.run([sys.executable, "-c", ENDING.format(line)], capture_output=True, text=True).stdout

    assert said("") == "done\ncollected\n"
    assert said("defer_collection()") == "done\n"
