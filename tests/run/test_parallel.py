"""Processes of a sweep, and how they end."""

from __future__ import annotations

import subprocess
import sys

import pytest

EARLY_STOP = """
import signal, time
from sottovoce.run.parallel import map_in_processes

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
