"""Addresses on this machine for members that are tried out."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

LOOPBACK = "127.0.0.1"
BELOW_EPHEMERAL = range(10_000, 32_000)
"""A system takes ports for connections that are opened from above these: what is free now is not lost to one later."""


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens at."""
    ports: list[int] = []
    with ExitStack() as until:
        for port in random.sample(BELOW_EPHEMERAL, len(BELOW_EPHEMERAL)):
            if len(ports) == count:
                break
            with suppress(OSError):
                until.enter_context(socket.create_server((LOOPBACK, port)))
                ports.append(port)
    return ports
