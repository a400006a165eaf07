"""Runs that die as `kill -9` would have it, at scripted moments. Light to import: each has a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sottovoce.run import checkpoint, execute
from sottovoce.run.layout import RunFiles
from sottovoce.support.config import merge, parse_experiment

SMALL = {
    "name": "try", "noise_key": 16 * "5a", "data": {"rows": 12}, "topology": {"graph": "ring:4"},
    "metrics": {"every": 2, "test_rows": 20},
    "algorithm": {"name": "dp-d-sgd", "sigma": 1.0}, "privacy": {"attackers": "none"},
    "training": {"rounds": 6, "batch": "cycle:3x2", "clip": "per-example", "bound": 1.0},
    "machine": {"checkpoint_seconds": 0.0},
}  # fmt: skip


def experiment(**sections):
    return parse_experiment(merge(SMALL, sections))


class Count:
    """Counts calls, and ends this process at the right one."""

    def __init__(self, inner, number, wanted=lambda *_: True):
        self.inner, self.left, self.wanted = inner, number, wanted

    def __call__(self, *arguments, **more):
        if self.wanted(*arguments):
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(*arguments, **more)


def half_written(number):
    """A writer of checkpoints that dies in the middle of one."""
    inner = checkpoint.write_npz

    def write(file, named):
        nonlocal number
        number -= 1
        if number:
            inner(file, named)
            return
        file.write(b"PK" + bytes(5000))
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    return write


def die_before_writing(name):
    """Before a document of the run is written."""
    inner = RunFiles.write_document

    def write(files, path, document):
        if path.name == name:
            os.kill(os.getpid(), signal.SIGKILL)
        inner(files, path, document)

    RunFiles.write_document = write


def is_checkpoint(_, target):
    return Path(target).name == "checkpoint.npz"


MOMENTS = {
    "before the settings": lambda: die_before_writing("config.json"),
    "before the promise": lambda: die_before_writing("privacy.json"),
    "before the first checkpoint": lambda: setattr(execute, "save", Count(execute.save, 1)),
    "while the first checkpoint is written": lambda: setattr(checkpoint, "write_npz", half_written(1)),
    "after the checkpoint of the start": lambda: setattr(execute, "save", Count(execute.save, 2)),
    "after a line, before its checkpoint": lambda: setattr(os, "fsync", Count(os.fsync, 9)),
    "before a checkpoint gets its name": lambda: setattr(os, "replace", Count(os.replace, 3, is_checkpoint)),
    "while a checkpoint is written": lambda: setattr(checkpoint, "write_npz", half_written(5)),
    "before the last checkpoint": lambda: setattr(execute, "save", Count(execute.save, 7)),
    "before the result": lambda: die_before_writing("result.json"),
}


def run_until(moment, place):
    """A run, or the rest of one, that dies at a moment."""
    checkpoint.WRITING_TIMES = 0
    MOMENTS[moment]()
    execute.run_experiment(experiment(), Path(place), resume=True)


def run_for(calls, place):
    """A run, or the rest of one, that dies so many calls and returns after it has locked its folder, or ends before."""

    def count(*_):
        nonlocal calls
        calls -= 1
        if not calls:
            os.kill(os.getpid(), signal.SIGKILL)

    def lock_folder(*arguments):
        sys.setprofile(count)
        return inner(*arguments)

    inner, execute._lock_folder = execute._lock_folder, lock_folder
    checkpoint.WRITING_TIMES = 0
    execute.run_experiment(experiment(), Path(place), resume=True)
    sys.setprofile(None)
