"""A run over several processes, on one machine or on many: the nodes of the graph spread over ranks.

`torchrun -m sottovoce run FILE.toml` starts the ranks, whose environment says how to find each other; `sotto run
--processes` does the same on one machine. Before the first round they compare versions and settings, and whatever one
of them refuses, all refuse: rank 0 reports it. Then each hosts a block of nodes and exchanges messages
with the others by torch.distributed: gloo for tensors on processors, NCCL for tensors on GPUs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from scipy import sparse
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from sottovoce.core import arrays
from sottovoce.core.integer_sums import ModelGrid, SumGrid, encoded
from sottovoce.core.release import GossipStep
from sottovoce.core.topologies import Topology
from sottovoce.distributed.communication import (
    POLL_SECONDS,
    Communicator,
    PendingExchange,
    RankStore,
    backend_errors,
    open_store,
    strange_value,
)
from sottovoce.distributed.coordinator import Coordinator
from sottovoce.distributed.launch import Place, leave_with_launcher, place_among_ranks
from sottovoce.distributed.shard_transport import ShardTransport
from sottovoce.distributed.sharded_rows import NodeShard, ShardedRows, as_tensor, parts_of, place_nodes
from sottovoce.errors import Diverged, InputError, PeerLost, SottovoceError, Unaccountable, Uncertified
from sottovoce.support.config import first_difference
from sottovoce.support.own_code import raised_in_own_code

Value = TypeVar("Value")


@contextmanager
def join_ranks(timeout: float, tell: Callable[[str], None] = lambda _: None) -> Iterator[Ranks]:
    """Join the ranks that the environment names, and leave them at the end; `tell` hears of what is waited for."""
    rank, size = place_among_ranks() or Place(0, 1)
    deadline = timedelta(seconds=timeout)
    leave_with_launcher()
    with backend_errors("joining the other ranks"):
        store = open_store(rank, size, deadline, tell)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        group_store = PrefixStore("group", store)
        dist.init_process_group(backend, store=group_store, rank=rank, world_size=size, timeout=deadline)
    yield Ranks(Communicator(rank, size), RankStore(store, rank, timeout))
    dist.destroy_process_group()


ERRORS: dict[str, type[SottovoceError]] = {
    kind.__name__: kind for kind in (SottovoceError, InputError, Diverged, PeerLost, Unaccountable, Uncertified)
}
"""The errors that one rank can raise for all."""


def error_document(error: SottovoceError) -> dict[str, object]:
    """An error as JSON: its kind, and the parts of its message."""
    if type(error).__name__ not in ERRORS:
        error = SottovoceError(str(error))
    return {"kind": type(error).__name__, "parts": error.parts}


def read_error(document: object, key: str) -> SottovoceError:
    """The error that another rank has left under a key of the store."""
    if not isinstance(document, dict):
        return strange_value(key)
    try:
        return ERRORS[document["kind"]](*map(str, document["parts"]))
    except (KeyError, TypeError):
        return strange_value(key)


class Ranks(Coordinator):
    """One of several processes that carry out a run together.

    Before the first round they wait for each other by the store, for as long as the others show that they are alive;
    while rounds are played, by the communicator, for `timeout` seconds.
    """

    def __init__(self, communicator: Communicator, store: RankStore) -> None:
        self.communicator, self._store = communicator, store
        self._calls = 0

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def size(self) -> int:
        return self.communicator.size

    def require_equal(self, facts: Mapping[str, object]) -> None:
        """Every rank compares all ranks with rank 0."""
        key = self._next_key()
        self._store.put(f"{key}/{self.rank}", dict(facts))
        facts_by_rank = [self._store.wait_for(f"{key}/{rank}", rank) for rank in range(self.size)]
        if not all(isinstance(facts, dict) for facts in facts_by_rank):
            raise strange_value(key)
        for rank, other in enumerate(facts_by_rank):
            found = first_difference(facts_by_rank[0], other)
            if found is not None:
                name, at_zero, at_rank = found
                raise InputError(
                    f"rank {rank} has another {name}: {at_rank!r}, rank 0 has {at_zero!r}",
                    "all ranks must carry out the same run",
                    "start them with the same file, settings and version",
                )

    def on_rank_zero(self, act: Callable[[], Value]) -> Value:
        """Rank 0 acts, the others wait for the outcome."""
        key = self._next_key()
        return cast("Value", self._outcome(key, 0)) if self.rank else self._attempt(key, act, share=True)

    def on_every_rank(self, act: Callable[[], Value]) -> Value:
        """All act and wait for each other; the error of the lowest rank that has one is everyone's."""
        key, own_error = self._next_key(), None
        try:
            own = self._attempt(f"{key}/{self.rank}", act, share=False)
        except SottovoceError as error:
            own_error = error
        for rank in range(self.size):
            if rank != self.rank:
                self._outcome(f"{key}/{rank}", rank)
            elif own_error is not None:
                raise own_error
        return own

    def transport(self, topology: Topology, *, keep_received: bool = False) -> RankTransport:
        """As many nodes at each rank as at every other."""
        return RankTransport(NodeShard(place_nodes(topology.n, self.size), self.rank), self.communicator, keep_received)

    def sum(self, values: Tensor) -> Tensor:
        """In place; a measurement, which does not count as a message."""
        self.communicator.sum_(values, counted=False)
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        return self.communicator.gather(values)

    def maximum(self, *numbers: int) -> list[int]:
        return self.communicator.maximum(*numbers)

    def report_once(self, error: BaseException, report: Callable[[], object]) -> None:
        """One rank reports what went wrong, before any of them ends: rank 0, or the first to miss another."""
        with contextlib.suppress(RuntimeError):
            if self.rank == 0 or isinstance(error, PeerLost):
                if self._store.count("reports") == 1:
                    report()
                self._store.put("reported", None)
            else:
                until = time.monotonic() + min(5.0, self._store.timeout)
                while not self._store.has("reported") and time.monotonic() < until:
                    time.sleep(POLL_SECONDS)
            return
        report()

    @contextmanager
    def propagate_errors(self) -> Iterator[None]:
        """While rounds are played: what one rank raises, the others learn when they miss it."""
        try:
            yield
        except PeerLost as lost:
            raise (self._error_of_another() or lost) from None
        except Exception as error:
            unexpected = SottovoceError(f"rank {self.rank}: unexpected {type(error).__name__}: {error}")
            own = raised_in_own_code(error) or error
            known = own if isinstance(own, SottovoceError) else unexpected
            self._store.put("failed", error_document(known))
            dist.destroy_process_group()  # so that the others need not wait
            raise

    def _error_of_another(self) -> SottovoceError | None:
        """What another rank raised, if it could leave it in the store."""
        with contextlib.suppress(RuntimeError):
            if self._store.has("failed"):
                return read_error(self._store.get("failed"), "failed")
        return None

    def _next_key(self) -> str:
        """All ranks make the same calls, so the number of a call names it."""
        self._calls += 1
        return f"call/{self._calls}"

    def _attempt(self, key: str, act: Callable[[], Value], *, share: bool) -> Value:
        """Act, and leave for the others what came of it: an error, and the value where it is shared."""
        left: dict[str, object] = {"value": None, "error": None}
        try:
            with self._store.heartbeats():
                value = act()
            left["value"] = value if share else None
            return value
        except SottovoceError as error:
            left["error"] = error_document(error)
            raise
        except BaseException as error:
            stopped = PeerLost(f"rank {self.rank} was stopped by {type(error).__name__}: {error}")
            left["error"] = error_document(stopped)
            raise
        finally:
            self._store.put(key, left)

    def _outcome(self, key: str, rank: int) -> object:
        """The value that another rank left of a call; raises its error, if it left one."""
        found = self._store.wait_for(key, rank)
        if not isinstance(found, dict) or found.keys() != {"value", "error"}:
            raise strange_value(key)
        if found["error"] is not None:
            raise read_error(found["error"], key)
        return found["value"]


@dataclass(frozen=True)
class RankTransport(ShardTransport):
    """The nodes of one rank. `PeerLost` is raised after the timeout of the group of ranks.

    Secure sums of floating-point numbers are added up in another order than in one process.
    """

    shard: NodeShard
    communicator: Communicator
    keep_received: bool = False

    @property
    def wire_bytes(self) -> int:
        return self.communicator.sent_bytes

    def exchange(
        self, gossip_step: GossipStep, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor], absent: Tensor
    ) -> PendingExchange:
        """All ranks make the same exchanges in turn, and none may be missing."""
        return self.communicator.exchange(outgoing, incoming)

    def secure_sum(self, gossip_step: GossipStep, sent: ShardedRows) -> ShardedRows:
        """Only the sum over a rank's nodes leaves it; of integers it is the same in any number of processes."""
        grid, own = gossip_step.grid, sent.own
        if isinstance(grid, SumGrid):
            total = torch.from_numpy(encoded(arrays.to_numpy(own), grid.step)).sum(dim=0)
            self.communicator.sum_(total)
            total = torch.from_numpy(grid.average(arrays.to_numpy(total).view(np.uint64), 0))
        else:
            total = arrays.operator(sparse.csr_array(gossip_step.mixing.weights[[0]][:, self.nodes]), own) @ own
            self.communicator.sum_(total)
        return ShardedRows(self.shard, total.expand(len(own), -1).clone())

    def neighbour_sums(self, gossip_step: GossipStep, grid: ModelGrid, sent: ShardedRows) -> ShardedRows:
        """Of neighbours here, one sum of integers leaves for each receiver elsewhere: what it gets adds up exactly."""
        plan, integers = self.shard.plan(gossip_step.mixing), encoded(arrays.to_numpy(sent.own), grid.step)
        weights = grid.weights.numerators[:, self.nodes]
        receivers = {peer: np.unique(edges.receiver) for peer, edges in plan.incoming.items()}
        outgoing = {
            peer: torch.from_numpy(weights[np.unique(edges.receiver)] @ integers)
            for peer, edges in plan.outgoing.items()
        }
        sums = torch.empty((sum(map(len, receivers.values())), integers.shape[1]), dtype=torch.int64)
        incoming = parts_of(sums, receivers)
        self.exchange(gossip_step, outgoing, incoming, sent.own).wait()
        totals = weights[self.nodes] @ integers
        for peer, arrived in incoming.items():
            totals[self.shard.position[receivers[peer]]] += arrived.numpy()
        rows = [grid.average(total, int(v)) for v, total in zip(self.nodes, totals.view(np.uint64), strict=True)]
        return ShardedRows(self.shard, as_tensor(arrays.convert(np.stack(rows), sent.own)))
