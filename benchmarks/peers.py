"""Links between two members against the same exchange written by hand with grpcio: `python -m benchmarks.peers`.

Two processes on loopback, mutual TLS, and in every round a message each way at the same time.
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
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from benchmarks.loop import peak_gigabytes, settings
from sottovoce.federation.grpc_links import GrpcLinks
from sottovoce.federation.identity import Identity, create_identity, load_identity
from sottovoce.federation.mailbox import LinkRules, PayloadRule
from sottovoce.federation.member import Member
from sottovoce.federation.secure_grpc import grpc
from sottovoce.federation.tls import acceptor_credentials, dialler_credentials, dials, name_option
from sottovoce.ledger.places import Place

PATIENCE, WARM_UP = 60.0, 5
CHUNK = 1 << 20
LARGEST = [("grpc.max_receive_message_length", 2 * CHUNK)]


def hand_written(own: Identity, other: Member, payload: bytes, rounds: int) -> list[float]:
    """Seconds of each round of two coroutines that read and write, and nothing else."""
    if dials(own.member, other):
        return asyncio.run(_hand_dial(own, other, payload, rounds))
    return asyncio.run(_hand_accept(own, other, payload, rounds))


async def _hand_accept(own: Identity, other: Member, payload: bytes, rounds: int) -> list[float]:
    took: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()

    async def answer(_: object, context: grpc.aio.ServicerContext) -> None:
        took.set_result(await _exchange(context.read, context.write, payload, rounds))
        await context.read()  # the other side hangs up

    server = grpc.aio.server(options=LARGEST)
    handler = {"hand": grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("by", handler),))
    print(server.add_secure_port("127.0.0.1:0", acceptor_credentials(own, [other])), flush=True)
    await server.start()
    found = await took
    await server.stop(5)
    return found


async def _hand_dial(own: Identity, other: Member, payload: bytes, rounds: int) -> list[float]:
    credentials = dialler_credentials(own, other)
    async with grpc.aio.secure_channel(other.address, credentials, [*LARGEST, name_option(other)]) as channel:
        call = channel.stream_stream("/by/hand")()
        took = await _exchange(call.read, call.write, payload, rounds)
        await call.done_writing()
        await call.read()
        return took


async def _exchange(
    read: Callable[[], Awaitable[bytes]], write: Callable[[bytes], Awaitable[None]], payload: bytes, rounds: int
) -> list[float]:
    async def send() -> None:
        for start in range(0, len(payload), CHUNK):
            await write(payload[start : start + CHUNK])

    async def receive() -> bytes:
        chunks: list[bytes] = []
        while sum(map(len, chunks)) < len(payload):
            chunks.append(await read())
        return b"".join(chunks)

    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        await asyncio.gather(send(), receive())
        took.append(time.perf_counter() - start)
    return took


def over_links(own: Identity, other: Member, payload: bytes, rounds: int) -> list[float]:
    """Seconds of each round over the links of a member, with all that these check."""
    number = int(dials(own.member, other))
    rule = PayloadRule(len(payload), np.dtype(np.float32))
    both = frozenset({1 - number})
    rules = LinkRules(bytes(32), number, both, both, rounds, 1, rule)
    took = []
    with GrpcLinks(rules, own, {1 - number: other}, report=lambda event: None, bind="127.0.0.1:0") as links:
        if number == 0:
            print(links.port, flush=True)
        assert not links.meet(PATIENCE)
        for round in range(rounds):
            start, place = time.perf_counter(), Place(round, 0)
            links.send(place, {1 - number: payload})
            assert links.receive(place, both, PATIENCE)
            took.append(time.perf_counter() - start)
            links.forget(place)
        assert not links.unacknowledged(Place(rounds, 0), both, PATIENCE)
    return took


WAYS = {"by hand": hand_written, "links": over_links}


def member(how: str, folder: str, other: str, size: str, rounds: str) -> None:
    """In a process of its own: one member's part of an exchange; prints its port, if it has one, and what it took."""
    own, known = load_identity(Path(folder)), Member.model_validate_json(other)
    payload = np.random.default_rng(0).standard_normal(int(size) // 4).astype(np.float32).tobytes()
    processor = time.process_time()
    took = WAYS[how](own, known, payload, int(rounds))
    processor = (time.process_time() - processor) / int(rounds)
    middle = statistics.median(took[WARM_UP:])
    print(json.dumps({"round": middle, "processor": processor, "memory": peak_gigabytes()}))


def exchange(how: str, size: int, rounds: int) -> dict[str, float]:
    """What two members measured: the longer of their rounds, processor time of both, the larger memory."""
    with tempfile.TemporaryDirectory() as folder:
        made = [create_identity(name, Path(folder) / name, address="127.0.0.1:1") for name in ("A", "B")]
        dialler, acceptor = sorted(made, key=lambda identity: identity.member.fingerprint)
        first = _start(how, acceptor, dialler.member, size, rounds)
        port = int(first.stdout.readline())
        there = acceptor.member.model_copy(update={"address": f"127.0.0.1:{port}"})
        second = _start(how, dialler, there, size, rounds)
        found = [json.loads(process.communicate()[0]) for process in (first, second)]
    return {
        "round": max(one["round"] for one in found), "processor": sum(one["processor"] for one in found),
        "memory": max(one["memory"] for one in found),
    }  # fmt: skip


def _start(how: str, own: Identity, other: Member, size: int, rounds: int) -> subprocess.Popen:
    words = ["member", how, str(own.folder), other.model_dump_json(), str(size), str(rounds)]
    return subprocess.Popen([sys.executable, "-m", "benchmarks.peers", *words], stdout=subprocess.PIPE, text=True)


def speed(size: int = 4 << 20, rounds: int = 100, repeat: int = 5) -> None:
    """Both ways in turn, so that a slow moment of the machine hits both alike."""
    print(f"{size:,} bytes both ways, {rounds} rounds; milliseconds a round, and of processor time in both processes")
    ratios = []
    for _ in range(repeat):
        found = {how: exchange(how, size, rounds) for how in WAYS}
        ratios.append(found["links"]["round"] / found["by hand"]["round"])
        for how, one in found.items():
            print(
                f"  {how:8} {1e3 * one['round']:6.1f}, processor {1e3 * one['processor']:6.1f}, "
                f"memory {one['memory']:.2f} GB; load {os.getloadavg()[0]:.1f}", flush=True,
            )  # fmt: skip
    print(
        f"  links against by hand: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), goal 1.5"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        member(*sys.argv[2:])
    else:
        speed(**settings(sys.argv[1:]))
