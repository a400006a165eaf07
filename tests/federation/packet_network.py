"""A network of namespaces between which a test carries every packet by hand: late, slowed, lost or cut off.

It does what `tc netem` does, and needs no module of the kernel but tun devices: each namespace has one, and a thread
reads the packets of all of them and hands each on when it is due. So TCP sees real delays, losses and silence.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

TUN, SET_INTERFACE, NEW_NETWORK = "/dev/net/tun", 0x400454CA, 0x40000000
POINT_TO_POINT, NO_HEADER = 0x0001, 0x1000
LARGEST_PACKET, LONGEST_QUEUE = 65536, 1000


@dataclass(frozen=True)
class Line:
    """What happens to a packet on its way: seconds under way, the share that is lost, bits in a second."""

    delay: float = 0.0
    loss: float = 0.0
    rate: float = 1e9


def enter_namespace(name: str) -> None:
    """From now on this thread, and those that it starts, have the network of a namespace."""
    with open(f"/run/netns/{name}") as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class PacketNetwork:
    """Namespaces by number, each with the address `address(number)`. `line` and `apart` may be changed at any time.

    To those that are `closed` nobody can open a connection of TCP, as behind most firewalls.
    """

    def __init__(self, size: int, line: Line, seed: int = 0) -> None:
        self.line, self.apart, self.closed = line, frozenset[int](), frozenset[int]()
        self.lost = self.carried = self.refused = 0
        self.namespaces = [f"sotto-{os.getpid()}-{number}" for number in range(size)]
        self._rng, self._devices, self._stop = np.random.default_rng(seed), [], threading.Event()
        self._carrier = threading.Thread(target=self._carry, daemon=True)

    def address(self, number: int) -> str:
        return f"10.77.0.{number + 1}"

    def open(self) -> None:
        for number, name in enumerate(self.namespaces):
            _ip("netns", "add", name)
            self._devices.append(in_namespace(name, _open_device))
            for words in (f"addr add {self.address(number)}/24 dev sotto0", "link set sotto0 up", "link set lo up"):
                _ip("-n", name, *words.split())
        self._carrier.start()

    def close(self) -> None:
        self._stop.set()
        if self._carrier.is_alive():
            self._carrier.join()
        for device in self._devices:
            os.close(device)
        for name in self.namespaces:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)

    def _carry(self) -> None:
        """Read packets, and write each to its receiver when it is due."""
        due: list[tuple[float, int, int, bytes]] = []
        free = [0.0] * len(self._devices)
        while not self._stop.is_set():
            now = time.monotonic()
            while due and due[0][0] <= now:
                _, _, receiver, packet = heapq.heappop(due)
                os.write(self._devices[receiver], packet)
            pause = min(0.1, due[0][0] - now) if due else 0.1
            for device in select.select(self._devices, [], [], pause)[0]:
                packet = os.read(device, LARGEST_PACKET)
                sender, receiver = self._devices.index(device), self._receiver(packet)
                if receiver is None or self._is_lost(sender, receiver, packet) or len(due) > LONGEST_QUEUE:
                    continue
                self.carried += 1
                start = max(time.monotonic(), free[receiver])
                free[receiver] = start + 8 * len(packet) / self.line.rate
                heapq.heappush(due, (free[receiver] + self.line.delay, self.carried, receiver, packet))

    def _receiver(self, packet: bytes) -> int | None:
        """The number of the namespace that a packet is for; None for what is no IPv4 packet between these."""
        if packet[0] >> 4 != 4 or packet[16:19] != bytes([10, 77, 0]):
            return None
        return packet[19] - 1 if 1 <= packet[19] <= len(self._devices) else None

    def _is_lost(self, sender: int, receiver: int, packet: bytes) -> bool:
        if receiver in self.closed and opens_connection(packet):
            self.refused += 1
            return True
        lost = (sender in self.apart) != (receiver in self.apart) or self._rng.random() < self.line.loss
        self.lost += lost
        return lost


def opens_connection(packet: bytes) -> bool:
    """Whether it is the first of a connection of TCP: SYN without ACK."""
    length = 4 * (packet[0] & 15)
    return packet[9] == 6 and packet[length + 13] & 0x12 == 0x02


@contextmanager
def packet_network(size: int, line: Line) -> Iterator[PacketNetwork]:
    """Such a network, or a skipped test where it cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None or not os.path.exists(TUN):
        pytest.skip("network namespaces need root, the command ip, and tun devices")
    network = PacketNetwork(size, line)
    try:
        network.open()
        yield network
    finally:
        network.close()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def in_namespace(name, act):
    """What a function returns in the network of a namespace."""
    found = []

    def there() -> None:
        enter_namespace(name)
        found.append(act())

    thread = threading.Thread(target=there)
    thread.start()
    thread.join()
    return found[0]


def _open_device() -> int:
    device = os.open(TUN, os.O_RDWR)
    fcntl.ioctl(device, SET_INTERFACE, struct.pack("16sH22x", b"sotto0", POINT_TO_POINT | NO_HEADER))
    return device
