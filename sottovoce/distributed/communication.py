"""The wire between ranks: tensors point to point, sums over all, small things from everyone to everyone.

Everything that is handed to the backend is counted, and every wait ends: with what was waited for, or with `PeerLost`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sottovoce.errors import PeerLost


class Communicator:
    """What one rank sends and receives. `sent` counts bytes of messages; `packing` and `waiting` are seconds."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sent = 0
        self.packing = self.waiting = 0.0

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> PendingExchange:
        """Start to send a tensor to each of some ranks, and to receive into one from each of others."""
        flying = [dist.P2POp(dist.irecv, tensor, peer) for peer, tensor in incoming.items() if tensor.numel()]
        flying += [dist.P2POp(dist.isend, tensor, peer) for peer, tensor in outgoing.items() if tensor.numel()]
        self.sent += sum(tensor.numel() * tensor.element_size() for tensor in outgoing.values())
        with backend_errors("speaking to others"):
            works = dist.batch_isend_irecv(flying) if flying else []
        return PendingExchange(self, flying, works)

    def sum_(self, values: Tensor, *, counted: bool = True) -> None:
        """Add up over all ranks, in place; the same bits everywhere. What only measures is not `counted`."""
        self.sent += values.numel() * values.element_size() if counted else 0
        with self.waited(), backend_errors("adding up"):
            dist.all_reduce(values)

    def gathered(self, thing: Any) -> list[Any]:
        """Something small of every rank, at every rank."""
        found: list[Any] = [None] * self.size
        with backend_errors("gathering"):
            dist.all_gather_object(found, thing)
        return found

    def most(self, *numbers: int) -> list[int]:
        """The largest over ranks of each number."""
        found = torch.tensor(numbers, dtype=torch.int64)
        with backend_errors("asking the others"):
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return [int(number) for number in found]

    @contextmanager
    def packed(self) -> Iterator[None]:
        """Time that goes into making messages and taking them apart."""
        begun = time.perf_counter()
        yield
        self.packing += time.perf_counter() - begun

    @contextmanager
    def waited(self) -> Iterator[None]:
        """Time that goes into waiting."""
        begun = time.perf_counter()
        yield
        self.waiting += time.perf_counter() - begun


class PendingExchange:
    """Messages under way; their tensors must not change before `land`."""

    def __init__(self, communicator: Communicator, kept: list[Any], works: list[Any]) -> None:
        self._communicator, self._kept, self._works = communicator, kept, works

    def land(self) -> None:
        """Wait until all have come, and all have gone."""
        with self._communicator.waited():
            for work, kept in zip(self._works, self._kept, strict=True):
                with backend_errors(f"waiting for rank {kept.peer}"):
                    work.wait()
        self._kept = self._works = []


@contextmanager
def backend_errors(what: str) -> Iterator[None]:
    """What the backend raises, as one line."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        late = "imed out" in text or "imeout" in text
        reason = "there was no answer within --timeout" if late else "a process was ended or its connection is gone"
        raise PeerLost(f"stopped while {what}: {reason}; go on from the last checkpoint with --resume") from None
