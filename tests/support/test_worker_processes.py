"""Processes of a sweep, and how they end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.support.processes import map_in_processes
from tests.forked import forking

LONG = 600.0
"""Seconds that no test waits."""

EARLY_STOP = """
import signal, time
from sottovoce.support.processes import map_in_processes

def stop(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 1.0)
try:
    list(map_in_processes(time.sleep, [60.0] * 4, 2))
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.slow
def test_processes_that_have_only_begun_end_without_a_word():
    """They need what they were handed until they have read it: without it each ended with a traceback."""
    found = subprocess.run([sys.executable, "-c", EARLY_STOP], capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout, found.stderr) == (0, "stopped\n", "")


@pytest.fixture
def started(monkeypatch):
    """The processes that were started, as forks; `started.then()` is called after each.

    SIGINT is heeded here even where it is ignored, as it is by tests that a shell has started in the background.
    """

    class Started(list):
        def then(self):
            pass

    context, processes = forking(), Started()
    start = context.Process.start

    def noted(process):
        start(process)
        processes.append(process)
        processes.then()

    monkeypatch.setattr(context.Process, "start", noted)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield processes
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("heard_by", ["this thread", "another thread"])
def test_a_stop_while_processes_start_stops_all_of_them(heard_by, started):
    """Another thread takes a signal that this one blocks, and its handler would be called in the middle of a start."""

    def stop_after_the_first():
        if len(started) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    started.then, done = stop_after_the_first, threading.Event()
    if heard_by == "another thread":
        threading.Thread(target=done.wait).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(map_in_processes(time.sleep, [LONG] * 4, 2))
    finally:
        done.set()
    assert [process.is_alive() for process in started] == [False, False]


def sleep_and_name_this_process(seconds):
    time.sleep(seconds)
    return os.getpid()


def test_the_rest_ends_when_a_process_is_killed_that_has_nothing_to_do(started):
    """It holds no lock that others wait for."""
    answers = map_in_processes(sleep_and_name_this_process, [0.0, LONG], 2)
    _, idle = next(answers)
    os.kill(idle, signal.SIGKILL)
    answers.close()
    assert [process.is_alive() for process in started] == [False, False]


def end_abruptly(seconds):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_ends_the_rest(started):
    with pytest.raises(SottovoceError, match=r"a process of the sweep was ended from outside.* --resume"):
        list(map_in_processes(end_abruptly, [0.0, LONG], 2))
    assert [process.is_alive() for process in started] == [False, False]


def unsendable(_):
    return lambda: None


def test_an_answer_that_cannot_be_sent_is_an_error(started):
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        list(map_in_processes(unsendable, [0, 1], 2))


KILLED = """
import os, signal, time
from sottovoce.support.processes import map_in_processes

for _ in map_in_processes(time.sleep, [0.0, 600.0, 600.0], 2):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_what_is_left_of_a_sweep_that_is_killed_says_nothing():
    """Locks that a process leaves behind are warned of; the pipe of stderr ends when nobody is left."""
    found = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout, found.stderr) == (-signal.SIGKILL, "", "")
