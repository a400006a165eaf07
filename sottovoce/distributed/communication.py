"""Communication between ranks: tensors point to point, sums over all ranks, and numbers of every rank at every rank.

Every byte of a message that is handed to the backend is counted, and every wait ends: with what was waited for, or with
`PeerLost`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from sottovoce.errors import PeerLost

LONGEST = 1 << 24
"""No rank gathers more numbers than this."""


class Communicator:
    """What one rank sends to the others and receives from them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sent_bytes = 0
        self.packing_seconds = self.waiting_seconds = 0.0

    def exchange(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> PendingExchange:
        """Start to send a tensor to each of some ranks, and to receive into one from each of others."""
        operations = [dist.P2POp(dist.irecv, tensor, peer) for peer, tensor in incoming.items() if tensor.numel()]
        operations += [dist.P2POp(dist.isend, tensor, peer) for peer, tensor in outgoing.items() if tensor.numel()]
        self.sent_bytes += sum(tensor.numel() * tensor.element_size() for tensor in outgoing.values())
        with backend_errors("sending to other ranks"):
            works = dist.batch_isend_irecv(operations) if operations else []
        return PendingExchange(self, operations, works)

    def sum_(self, values: Tensor, *, counted: bool = True) -> None:
        """Add up over all ranks, in place; the same bits at every rank. What only measures is not `counted`."""
        self.sent_bytes += values.numel() * values.element_size() if counted else 0
        with self.waiting(), backend_errors("adding up over all ranks"):
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

    @contextmanager
    def packing(self) -> Iterator[None]:
        """Counts the time that goes into making messages and taking them apart."""
        begun = time.perf_counter()
        yield
        self.packing_seconds += time.perf_counter() - begun

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time that goes into waiting for other ranks."""
        begun = time.perf_counter()
        yield
        self.waiting_seconds += time.perf_counter() - begun


class PendingExchange:
    """Messages under way; their tensors must not change before `wait` returns."""

    def __init__(self, communicator: Communicator, operations: list[dist.P2POp], works: list[dist.Work]) -> None:
        self._communicator, self._operations, self._works = communicator, operations, works

    def wait(self) -> None:
        """Wait until all messages have arrived, and all have left."""
        with self._communicator.waiting():
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
