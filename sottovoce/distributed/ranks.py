"""A run over several processes, on one machine or on many: the nodes of the graph spread over ranks.

`torchrun -m sottovoce run FILE.toml` starts the ranks and tells them of each other by its environment; `sotto run
--processes` does the same on one machine. Before the first round they compare versions and settings, and whatever one
of them refuses, all refuse: rank 0 says it. Then each hosts a block of nodes (placement.py) and speaks to the others by
torch.distributed: gloo for tensors on processors, NCCL for tensors on GPUs.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

from sottovoce.config import first_difference
from sottovoce.distributed.communication import Communicator, backend_errors
from sottovoce.distributed.coordinator import Placed
from sottovoce.distributed.exchange_plan import NodeShard
from sottovoce.distributed.launch import MEETING, leave_with_parent
from sottovoce.distributed.placement import blocks
from sottovoce.errors import InputError, PeerLost, SottovoceError
from sottovoce.run.build import forget_data
from sottovoce.run.training_run import TrainingRun

Answer = TypeVar("Answer")

LOOK = 0.02
"""Seconds between two looks at whether others are done."""


@contextmanager
def join_ranks(timeout: float) -> Iterator[Ranks]:
    """Join the ranks that the environment names, and leave them at the end."""
    rank, size, within = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timedelta(seconds=timeout)
    with backend_errors("joining the others"):
        store = _store(rank, size, within)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        apart = PrefixStore("group", store)
        dist.init_process_group(backend, store=apart, rank=rank, world_size=size, timeout=within)
    if MEETING in os.environ:
        leave_with_parent()
    yield Ranks(Communicator(rank, size), store, timeout)
    dist.destroy_process_group()


def _store(rank: int, size: int, within: timedelta) -> Any:
    """Where ranks leave word for each other: in a file, or at the address of torchrun, for each attempt another."""
    if MEETING in os.environ:
        return FileStore(os.environ[MEETING], size)
    shard, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if shard is None or port is None:
        raise InputError("RANK without MASTER_ADDR and MASTER_PORT", "ranks meet at an address", "start with torchrun")
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    met = TCPStore(shard, int(port), size, is_master=serves, timeout=within)
    return PrefixStore(f"sottovoce/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", met)


@dataclass
class Outcome:
    """What came of something: a value, or what it raised."""

    value: Any = None
    error: SottovoceError | None = None


class Ranks:
    """One of several processes that carry out a run together. `wire` is what it speaks by once all have begun.

    Until then they may be busy for long, each with something else: they wait for as long as the others show that they
    are alive, and `timeout` seconds longer.
    """

    def __init__(self, communicator: Communicator, store: Any, timeout: float) -> None:
        self.communicator, self._store, self._timeout = communicator, store, timeout
        self._calls = 0

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def size(self) -> int:
        return self.communicator.size

    def agree(self, about: dict[str, Any]) -> None:
        """Compare with rank 0."""
        key = self._key()
        self._store.set(f"{key}/{self.rank}", pickle.dumps(about))
        others = [pickle.loads(self._awaited(f"{key}/{rank}", rank)) for rank in range(self.size)]
        for rank, other in enumerate(others):
            found = first_difference(others[0], other)
            if found is not None:
                key, one, two = found
                raise InputError(
                    f"rank {rank} has another {key}: {two!r}, rank 0 has {one!r}",
                    "all ranks carry out the same run",
                    "start them with the same file, settings and version",
                )

    def first(self, act: Callable[[], Answer]) -> Answer:
        """Rank 0 acts, the others wait for what comes of it."""
        key = self._key()
        if self.rank == 0:
            with self._settled(key) as outcome:
                outcome.value = act()
        else:
            outcome = pickle.loads(self._awaited(key, 0))
        if outcome.error is not None:
            raise outcome.error
        found: Answer = outcome.value
        return found

    def each(self, act: Callable[[], Answer]) -> Answer:
        """All act and wait for each other; the error of the lowest rank that has one is everyone's."""
        key = self._key()
        with self._settled(f"{key}/{self.rank}", tell=False) as outcome:
            outcome.value = act()
        for rank in range(self.size):
            other = outcome if rank == self.rank else pickle.loads(self._awaited(f"{key}/{rank}", rank))
            if other.error is not None:
                raise other.error
        found: Answer = outcome.value
        return found

    def place(self, training_run: TrainingRun) -> Placed:
        """As rank 0 places them: eigenvectors may differ in sign from machine to machine."""
        return self.first(lambda: blocks(training_run.topology, self.size, training_run.seed))

    def share(self, training_run: TrainingRun, placed: Placed) -> TrainingRun:
        """The nodes of this rank, with their data alone."""
        shard = NodeShard(placed, self.communicator)
        mine = replace(training_run, shard=shard, gradients=training_run.gradients.hosted(shard.nodes))
        forget_data()
        return mine

    def gathered(self, thing: Any) -> list[Any]:
        """Over the wire."""
        return self.communicator.gathered(thing)

    def most(self, *numbers: int) -> list[int]:
        """Over the wire."""
        return self.communicator.most(*numbers)

    def say(self, error: BaseException, act: Callable[[], Any]) -> None:
        """One rank says what went wrong, before any of them ends: rank 0, or the first to miss another."""
        with contextlib.suppress(RuntimeError):
            if self.rank == 0 or isinstance(error, PeerLost):
                if int(self._store.add("said", 1)) == 1:
                    act()
                self._store.set("heard", "")
            else:
                until = time.monotonic() + min(5.0, self._timeout)
                while not self._store.check(["heard"]) and time.monotonic() < until:
                    time.sleep(LOOK)
            return
        act()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """While rounds are played: what one rank raises, the others learn when they miss it."""
        try:
            yield
        except PeerLost as lost:
            error = self._reason()
            raise (error or lost) from None
        except Exception as error:
            known = isinstance(error, SottovoceError)
            told = error if known else SottovoceError(f"rank {self.rank}: unexpected {type(error).__name__}: {error}")
            self._store.set("failed", pickle.dumps(told))
            dist.destroy_process_group()  # so that the others need not wait
            raise

    def _reason(self) -> SottovoceError | None:
        """What another rank raised, if it said so."""
        with contextlib.suppress(RuntimeError):
            if self._store.check(["failed"]):
                found: SottovoceError = pickle.loads(self._store.get("failed"))
                return found
        return None

    # --- leaving word ----------------------------------------------------------------------------------------------

    def _key(self) -> str:
        self._calls += 1
        return f"call/{self._calls}"

    @contextmanager
    def _settled(self, key: str, *, tell: bool = True) -> Iterator[Outcome]:
        """Leave word of what comes of something, and signs of life until then; unless `tell` only of what it raised."""
        outcome, done = Outcome(), threading.Event()
        beats = threading.Thread(target=self._beat, args=(done,), daemon=True)
        beats.start()
        try:
            yield outcome
        except SottovoceError as error:
            outcome.error = error
        except BaseException as error:
            outcome.error = PeerLost(f"rank {self.rank} was stopped by {type(error).__name__}: {error}")
            raise
        finally:
            done.set()
            beats.join()
            told = outcome if tell or outcome.error is not None else Outcome()
            self._store.set(key, pickle.dumps(told))

    def _beat(self, done: threading.Event) -> None:
        with contextlib.suppress(RuntimeError):
            while not done.wait(min(1.0, self._timeout / 5)):
                self._store.add(f"alive/{self.rank}", 1)

    def _awaited(self, key: str, rank: int) -> bytes:
        """What a rank left, when it has; given up when it shows no sign of life."""
        beats, seen, looked = -1, time.monotonic(), 0.0
        with backend_errors(f"waiting for rank {rank}"):
            while not self._store.check([key]):
                now = time.monotonic()
                if now - looked > 0.5:
                    looked, before, beats = now, beats, int(self._store.add(f"alive/{rank}", 0))
                    seen = now if beats != before else seen
                if now - seen > self._timeout:
                    raise PeerLost(f"rank {rank} shows no sign of life; start again, or go on with --resume")
                time.sleep(LOOK)
            return bytes(self._store.get(key))
