"""Communication between ranks: tensors point to point, sums over all ranks, and a store of values and heartbeats.

Every byte of a message that is handed to the backend is counted, and every wait ends: with what was waited for, or with
`PeerLost`.

By the store ranks wait for each other where they may be busy for long, each with something else: as long as the others
show that they are alive. Values are JSON: whoever reaches the store of torchrun can put anything there, and nothing
that comes from it is ever run.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from sottovoce.distributed.launch import MEETING, whole_number
from sottovoce.errors import InputError, PeerLost

LONGEST = 1 << 24
"""No rank gathers more numbers than this."""


class Communicator:
    """What one rank sends to the others and receives from them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sent_bytes = 0

    def exchange(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> PendingExchange:
        """Start to send a tensor to each of some ranks, and to receive into one from each of others."""
        operations = [dist.P2POp(dist.irecv, tensor, peer) for peer, tensor in incoming.items() if tensor.numel()]
        operations += [dist.P2POp(dist.isend, tensor, peer) for peer, tensor in outgoing.items() if tensor.numel()]
        self.sent_bytes += sum(tensor.numel() * tensor.element_size() for tensor in outgoing.values())
        with backend_errors("sending to other ranks"):
            works = dist.batch_isend_irecv(operations) if operations else []
        return PendingExchange(operations, works)

    def sum_(self, values: Tensor, *, counted: bool = True) -> None:
        """Add up over all ranks, in place; the same bits at every rank. What only measures is not `counted`."""
        self.sent_bytes += values.numel() * values.element_size() if counted else 0
        with backend_errors("adding up over all ranks"):
            dist.all_reduce(values)

    def gather(self, values: Tensor) -> list[Tensor]:
        """The numbers of every rank, at every rank: one dimension, of one type, as many as each rank has."""
        own = torch.tensor([len(values)])
        lengths = [torch.zeros_like(own) for _ in range(self.size)]
        with backend_errors("gathering from all ranks"):
            dist.all_gather(lengths, own)
            counts = [int(length) for length in lengths]
            if not 0 <= min(counts) <= max(counts) <= LONGEST:
                raise PeerLost(f"a rank has {max(counts)} numbers to gather, more than {LONGEST}; start again")
            padded = values.new_zeros(max(counts))
            padded[: len(values)] = values
            found = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(found, padded)
        return [numbers[:count] for numbers, count in zip(found, counts, strict=True)]

    def maximum(self, *numbers: int) -> list[int]:
        """The largest over all ranks of each number."""
        largest = torch.tensor(numbers, dtype=torch.int64)
        with backend_errors("comparing with all ranks"):
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return [int(number) for number in largest]


class PendingExchange:
    """Messages under way; their tensors must not change before `wait` returns."""

    def __init__(self, operations: list[dist.P2POp], works: list[dist.Work]) -> None:
        self._operations, self._works = operations, works

    def wait(self) -> None:
        """Wait until all messages have arrived, and all have left."""
        for work, operation in zip(self._works, self._operations, strict=True):
            with backend_errors(f"waiting for rank {operation.peer}"):
                work.wait()
        self._operations, self._works = [], []


@contextmanager
def backend_errors(activity: str) -> Iterator[None]:
    """What the backend raises, as one line that says during which activity."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        late = "imed out" in text or "imeout" in text
        reason = "there was no answer within --timeout" if late else "a process was ended or its connection is gone"
        raise PeerLost(f"stopped while {activity}: {reason}; go on from the last checkpoint with --resume") from None


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
