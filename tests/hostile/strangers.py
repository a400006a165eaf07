"""Strangers at a port: what they send, and what ranks do meanwhile. Ranks import this module."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

LISTENING = "0A"
"""The state of a socket that listens, as /proc/net/tcp has it."""

IDLE = 100


def _client_hello() -> bytes:
    """The first message of TLS."""
    inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(inside, outside, server_hostname="localhost").do_handshake()
    return outside.read()


SENT = {
    "random bytes": random.Random(0).randbytes(1 << 16),
    "a request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS hello": _client_hello(),
    "zeros": bytes(1 << 12),
    "nothing": b"",
    "a pickle": b"cos\nsystem\n(S'exit 1'\ntR.",
}
"""What one stranger each sends, who then stays."""


@contextmanager
def strangers_at(port: int) -> Iterator[list[socket.socket]]:
    """One of each kind, and a hundred that are silent, until the end of the block."""
    with ExitStack() as until:

        def connect() -> socket.socket:
            return until.enter_context(socket.create_connection(("127.0.0.1", port), 60))

        connections = [connect() for _ in range(IDLE)]
        for sent in SENT.values():
            connections.append(connect())
            with contextlib.suppress(OSError):  # hung up on already
                connections[-1].sendall(sent)
        yield connections


def listening_ports(_: object = None) -> list[int]:
    """The TCP ports at which this process listens."""
    inodes = set()
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(handle).removeprefix("socket:[").removesuffix("]"))
    tables = [Path(f"/proc/self/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table.splitlines()]
    return [int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == LISTENING and line[9] in inodes]


def exchange(ranks: object, times: int) -> list[float]:
    """What ranks do in rounds and before them: sums, gatherings, and outcomes through the store."""
    found = []
    for number in range(times):
        found.append(float(ranks.sum(torch.tensor([ranks.rank + 1.0]))[0]))
        found += [float(part[0]) for part in ranks.gather(torch.tensor([float(ranks.rank)]))]
        found.append(ranks.on_rank_zero(lambda number=number: number))
    return found
