"""The store that ranks share: values under keys, and heartbeats of ranks that are busy.

Ranks use it where they may be busy for long, each with something else: they wait for each other as long as the others
show that they are alive. Values are JSON: whoever reaches the store of torchrun can put anything there, and
nothing that comes from it is ever run.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from sottovoce.distributed.communication import backend_errors
from sottovoce.distributed.environment import whole_number
from sottovoce.distributed.launch import MEETING
from sottovoce.errors import InputError, PeerLost

POLL_SECONDS = 0.02
"""Seconds between two looks at whether others are done."""


FIRST_LINE_SECONDS, LINE_SECONDS = 3.0, 8.0
"""A rank that has to wait for the store says so after the first, and then again each time the second has passed."""

MEETING_TIMEOUTS = 2
"""A rank gives up the store after so many times the timeout: torch waits so long for the store, then for the ranks."""


def open_store(rank: int, size: int, timeout: timedelta, tell: Callable[[str], None]) -> Store:
    """The store of torch: a file, or the address of torchrun, for each attempt another; `tell` hears of long waits."""
    if MEETING in os.environ:
        return FileStore(os.environ[MEETING], size)
    host = os.environ.get("MASTER_ADDR")
    if host is None or "MASTER_PORT" not in os.environ:
        raise InputError("RANK without MASTER_ADDR and MASTER_PORT", "ranks meet at an address", "start with torchrun")
    is_master = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    port = whole_number("MASTER_PORT", most=65535)

    def connect() -> Store:
        return TCPStore(host, port, size, is_master=is_master, timeout=timeout)

    store = _met(connect, f"rank {rank}", f"{host}:{port}", MEETING_TIMEOUTS * timeout.total_seconds(), tell)
    return PrefixStore(f"sottovoce/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _met(connect: Callable[[], Store], who: str, where: str, seconds: float, tell: Callable[[str], None]) -> Store:
    """What `connect` returns, in a thread of its own: torch waits without end for one who listens and never answers.

    Says now and then what is waited for, and what may be in the way: torch takes connections one after the other.
    """
    store: Future[Store] = Future()

    def fill() -> None:
        try:
            store.set_result(connect())
        except BaseException as error:
            store.set_exception(error)

    threading.Thread(target=fill, daemon=True).start()
    begun, pause = time.monotonic(), FIRST_LINE_SECONDS
    while True:
        left = begun + seconds - time.monotonic()
        if wait([store], min(pause, max(0.0, left))).done:
            return store.result()
        waited, pause = f"{time.monotonic() - begun:.0f} s", LINE_SECONDS
        if time.monotonic() - begun >= seconds:
            raise PeerLost(
                f"{who} gave up after {waited}: not all ranks came to {where}, or the program that listens there is "
                "another one; start all ranks with a MASTER_ADDR and MASTER_PORT that no other program uses"
            )
        tell(
            f"{who} waits for all ranks to meet at {where}: {waited}; some have not come, or other programs hold "
            "connections to this port"
        )


def strange_value(key: str) -> PeerLost:
    """What is wrong where the store holds something that no rank has put there."""
    return PeerLost(
        f"what the ranks share has something under {key} that no rank wrote; another program uses the same port: "
        "use another one, and let nobody else reach it"
    )


class RankStore:
    """What ranks leave for each other. A rank that sends no heartbeat for `timeout` seconds is given up."""

    def __init__(self, store: Store, rank: int, timeout: float) -> None:
        self._store, self.rank, self.timeout = store, rank, timeout

    def put(self, key: str, value: object) -> None:
        """Leave a value that JSON has for the others."""
        self._store.set(key, json.dumps(value, allow_nan=False))

    def has(self, key: str) -> bool:
        """Whether a value was left under a key."""
        return bool(self._store.check([key]))

    def get(self, key: str) -> Any:
        """A value that was left; refuses what no rank can have left."""
        try:
            return json.loads(self._store.get(key))
        except (ValueError, RecursionError):
            raise strange_value(key) from None

    def count(self, key: str) -> int:
        """How many ranks have called this for the key, this call among them."""
        return int(self._store.add(key, 1))

    def wait_for(self, key: str, rank: int) -> Any:
        """The value that a rank leaves under a key, when it has; `PeerLost` if its heartbeats stop."""
        beats, seen, looked = -1, time.monotonic(), 0.0
        with backend_errors(f"waiting for rank {rank}"):
            while not self.has(key):
                now = time.monotonic()
                if now - looked > 0.5:
                    looked, before, beats = now, beats, int(self._store.add(f"alive/{rank}", 0))
                    seen = now if beats != before else seen
                if now - seen > self.timeout:
                    raise PeerLost(f"rank {rank} shows no sign of life; start again, or go on with --resume")
                time.sleep(POLL_SECONDS)
            return self.get(key)

    @contextmanager
    def heartbeats(self) -> Iterator[None]:
        """Show the others that this rank is alive while it is busy."""
        done = threading.Event()
        thread = threading.Thread(target=self._beat, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _beat(self, done: threading.Event) -> None:
        with contextlib.suppress(RuntimeError):
            while not done.wait(min(1.0, self.timeout / 5)):
                self._store.add(f"alive/{self.rank}", 1)
