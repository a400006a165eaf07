"""Links of members in a ring against the same exchange written by hand with grpcio: `python -m benchmarks.peers`.

A process for each member, on loopback, with mutual TLS. In every round each member sends one message to both neighbours
while it reads theirs. Links are given messages with their hashes, as a ledger hands them over that has recorded them.
What that hash takes is measured apart.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.loop import peak_gigabytes, settings
from sottovoce.federation.grpc_links import GrpcLinks
from sottovoce.federation.identity import Identity, create_identity, load_identity
from sottovoce.federation.link_rules import LinkRules, PayloadRule
from sottovoce.federation.member import Member
from sottovoce.federation.rehearsal import free_ports
from sottovoce.federation.secure_grpc import (
    CHUNK,
    acceptor_credentials,
    dialler_credentials,
    dials,
    grpc,
    name_option,
    recognise,
)
from sottovoce.ledger.payloads import Payloads, Place

PATIENCE, MANY = 120.0, 10**6
LARGEST = [("grpc.max_receive_message_length", 2 * CHUNK)]
GOAL = 1.5


class Stopwatch:
    """Seconds of rounds, and processor time of all of them."""

    def __init__(self) -> None:
        self._rounds: list[float] = []
        self._began, self._processor = 0.0, time.process_time()

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._rounds.append(time.perf_counter() - self._began)

    def read(self) -> dict[str, float]:
        """The median of a round, and the mean of its processor time."""
        processor = (time.process_time() - self._processor) / len(self._rounds)
        return {"round": statistics.median(self._rounds), "processor": processor, "memory": peak_gigabytes()}


@dataclass(frozen=True)
class Exchange:
    """One member's part: its neighbours by number, the numbers that it sends, and for how many rounds in a turn.

    A turn begins with a line from whoever started this process, and ends with one to it.
    """

    own: Identity
    address: str
    number: int
    neighbours: Mapping[int, Member]
    numbers: np.ndarray
    rounds: int

    # --- by hand ---------------------------------------------------------------------------------------------------

    async def by_hand(self) -> None:
        """A coroutine that writes and one that reads for each neighbour, and nothing else."""
        loop = asyncio.get_running_loop()
        streams: dict[str, asyncio.Future] = {one.name: loop.create_future() for one in self.neighbours.values()}
        done = asyncio.Event()

        async def answer(_: object, context: grpc.aio.ServicerContext) -> None:
            await context.send_initial_metadata(())
            member = recognise(context.auth_context(), self.neighbours.values())
            streams[member.name].set_result((context.read, context.write))
            await done.wait()

        server = grpc.aio.server(options=LARGEST)
        handler = {"hand": grpc.stream_stream_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("by", handler),))
        server.add_secure_port(self.address, acceptor_credentials(self.own, self.neighbours.values()))
        await server.start()
        async with AsyncExitStack() as channels:
            for member in self.neighbours.values():
                if dials(self.own.member, member):
                    options = [*LARGEST, name_option(member)]
                    credentials = dialler_credentials(self.own, member)
                    channel = grpc.aio.secure_channel(member.address, credentials, options)
                    call = (await channels.enter_async_context(channel)).stream_stream("/by/hand")(wait_for_ready=True)
                    await call.wait_for_connection()
                    streams[member.name].set_result((call.read, call.write))
            pairs = [await one for one in streams.values()]
            while await loop.run_in_executor(None, sys.stdin.readline):
                _tell(await self._turn_by_hand(pairs))
            done.set()
            await server.stop(5)

    async def _turn_by_hand(self, streams: list[tuple[Callable, Callable]]) -> dict[str, float]:
        watch, message = Stopwatch(), self.numbers.tobytes()
        for _ in range(self.rounds):
            with watch:
                await asyncio.gather(*(_both_ways(read, write, message) for read, write in streams))
        return watch.read()

    # --- links -----------------------------------------------------------------------------------------------------

    def over_links(self) -> None:
        """The links of a member, with all that these check."""
        others = frozenset(self.neighbours)
        rule = PayloadRule(self.numbers.nbytes, self.numbers.dtype)
        rules = LinkRules(bytes(32), self.number, others, others, MANY, 1, rule)
        with GrpcLinks(rules, self.own, self.neighbours, report=lambda event: None, bind=self.address) as links:
            assert not links.meet(PATIENCE)
            first = 0
            while sys.stdin.readline():
                _tell(self._turn_of_links(links, others, first))
                first += self.rounds

    def _turn_of_links(self, links: GrpcLinks, others: frozenset[int], first: int) -> dict[str, float]:
        start, before = time.process_time(), links.wire_bytes
        messages = Payloads(dict.fromkeys(others, self.numbers.tobytes()))
        recording, watch = time.process_time() - start, Stopwatch()
        for round in range(first, first + self.rounds):
            with watch:
                place = Place(round, 0)
                links.send(place, messages)
                assert links.receive(place, others, PATIENCE).keys() == others
                links.forget(place)
        assert not links.unacknowledged(Place(round + 1, 0), others, PATIENCE)
        sent = self.rounds * len(others) * self.numbers.nbytes
        return {**watch.read(), "bytes": (links.wire_bytes - before) / sent, "hash": recording}


def _tell(found: dict[str, float]) -> None:
    print(json.dumps(found), flush=True)


async def _both_ways(
    read: Callable[[], Awaitable[bytes]], write: Callable[[bytes], Awaitable[None]], message: bytes
) -> bytes:
    async def send() -> None:
        for start in range(0, len(message), CHUNK):
            await write(message[start : start + CHUNK])

    async def receive() -> bytes:
        chunks: list[bytes] = []
        while sum(map(len, chunks)) < len(message):
            chunks.append(await read())
        return b"".join(chunks)

    return (await asyncio.gather(send(), receive()))[1]


WAYS: dict[str, Callable[[Exchange], None]] = {
    "by hand": lambda exchange: asyncio.run(exchange.by_hand()),
    "links": Exchange.over_links,
}


def member(how: str, folder: str, address: str, number: str, neighbours: str, parameters: str, rounds: str) -> None:
    """In a process of its own: one member."""
    known = {int(one): Member.model_validate(public) for one, public in json.loads(neighbours).items()}
    numbers = np.random.default_rng(int(number)).standard_normal(int(parameters)).astype(np.float32)
    WAYS[how](Exchange(load_identity(Path(folder)), address, int(number), known, numbers, int(rounds)))


class Ring:
    """Members in a ring, each in a process of its own, that exchange messages in one way."""

    def __init__(self, how: str, folder: Path, members: int, parameters: int, rounds: int, stack: ExitStack) -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(members)]
        made = [create_identity(f"M{i}", folder / str(i), address=address) for i, address in enumerate(addresses)]
        self._processes = []
        for number, own in enumerate(made):
            around = {(number - 1) % members, (number + 1) % members}
            known = json.dumps({other: made[other].member.model_dump() for other in around})
            words = [how, str(own.folder), addresses[number], str(number), known, str(parameters), str(rounds)]
            self._processes.append(stack.enter_context(_start(words)))

    def turn(self) -> dict[str, float]:
        """The median over members of their rounds, processor time and bytes; the largest memory."""
        for process in self._processes:
            process.stdin.write("\n")
            process.stdin.flush()
        found = [json.loads(process.stdout.readline()) for process in self._processes]
        middle = {key: statistics.median(one[key] for one in found) for key in found[0]}
        return {**middle, "memory": max(one["memory"] for one in found)}


def _start(words: list[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", "benchmarks.peers", "member", *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def speed(members: int = 8, parameters: int = 1_000_000, rounds: int = 40, repeat: int = 7) -> None:
    """Both ways in turn, so that a slow moment of the machine hits both alike; a first turn of each warms up."""
    print(f"ring of {members}, {parameters:,} parameters, turns of {rounds} rounds; milliseconds a round and member")
    ratios = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        rings = {how: Ring(how, Path(folder) / how, members, parameters, rounds, stack) for how in WAYS}
        for ring in rings.values():
            ring.turn()
        for _ in range(repeat):
            found = {how: ring.turn() for how, ring in rings.items()}
            ratios.append({key: found["links"][key] / found["by hand"][key] for key in ("round", "processor")})
            ratios[-1]["processor, with the ledger's hash"] = (
                found["links"]["processor"] + found["links"]["hash"]
            ) / found["by hand"]["processor"]
            for how, one in found.items():
                print(
                    f"  {how:8} {1e3 * one['round']:6.1f}, of processor time {1e3 * one['processor']:6.1f}, "
                    f"memory {one['memory']:.2f} GB; load {os.getloadavg()[0]:.1f}", flush=True,
                )  # fmt: skip
    for key in ratios[0]:
        seen = [one[key] for one in ratios]
        print(f"  links against by hand, {key}: {statistics.median(seen):.2f} ({min(seen):.2f} to {max(seen):.2f})")
    print(f"  goal {GOAL}; bytes of frames over bytes of messages {found['links']['bytes']:.4f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        member(*sys.argv[2:])
    else:
        speed(**settings(sys.argv[1:]))
