"""Signals that end a process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

BUSY = """
import hashlib, signal
from concurrent.futures import ThreadPoolExecutor
from sottovoce.support.processes import STOPPING_SIGNALS, ends_when_stopped

def work():
    print("at work", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**30)  # minutes, in which Python hears no signal

for kind in STOPPING_SIGNALS:
    signal.signal(kind, lambda *_: None)
with ends_when_stopped(0.2):
    if {threads}:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()
    else:
        work()
"""


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("threads", [False, True])
def test_a_process_that_leaves_nothing_half_done_ends_in_the_middle_of_a_computation(kind, threads):
    command = [sys.executable, "-c", BUSY.format(threads=threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as busy:
        assert busy.stdout.readline() == "at work\n"
        busy.send_signal(kind)
        _, err = busy.communicate(timeout=60)
    assert (busy.returncode, err) == (128 + kind, "sotto: stopped\n")


WAITS = """
import signal
from sottovoce.support.processes import ends_when_stopped

caught = []
signal.signal(signal.SIGTERM, lambda kind, _: caught.append(kind))
with ends_when_stopped(60):
    signal.raise_signal(signal.SIGTERM)
signal.raise_signal(signal.SIGTERM)
print(len(caught))
"""


def test_what_ends_in_time_goes_on_as_its_own_handler_says():
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
