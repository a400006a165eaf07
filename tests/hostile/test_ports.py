"""Strangers at every port that a command opens, as docs/scaling.md lists them: the honest go on as if they were alone.

What strangers can do who know the protocols is in test_strangers.py, here and in tests/federation.
"""

from __future__ import annotations

import re
import socket
import threading
import time
import urllib.request
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from sottovoce.distributed import communication
from sottovoce.distributed.communication import Communicator, RankStore, open_store
from sottovoce.distributed.launch import MEETING
from sottovoce.distributed.ranks import Ranks
from sottovoce.errors import PeerLost
from sottovoce.federation.metrics import Metrics, exported
from sottovoce.federation.rehearsal import free_ports
from tests.distributed.ranks import Pool
from tests.federation.grpc_members import Federation, play
from tests.federation.test_checking import checked, clinics
from tests.hostile.strangers import exchange, listening_ports, strangers_at

__all__ = ["clinics"]

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
"""Seconds on a busy machine."""

OPENS = {
    "distributed/communication.py": "TCPStore",
    "distributed/ranks.py": "init_process_group",
    "federation/grpc_links.py": "add_secure_port",
    "federation/metrics.py": "ThreadingHTTPServer",
    "federation/rehearsal.py": "create_server",
    "report/plan_server.py": "ThreadingHTTPServer",
}
"""The files that open ports, and by what."""


def test_no_other_code_opens_a_port():
    """Whatever else should listen one day gets a row in the table, and a test here."""
    opening = re.compile(
        r"create_server|add_secure_port|add_insecure_port|TCPStore\(|init_process_group|\.listen\(|\w*HTTPServer\b"
    )
    found = {}
    for path in (ROOT / "sottovoce").rglob("*.py"):
        for word in opening.findall(path.read_text(encoding="utf-8")):
            found[str(path.relative_to(ROOT / "sottovoce"))] = word.rstrip("(")
    assert found == OPENS
    assert "bind((" not in "".join(path.read_text() for path in (ROOT / "sottovoce").rglob("*.py"))


def test_strangers_at_the_metrics_of_a_member():
    (port,), metrics = free_ports(1), Metrics()
    with exported(metrics, f"127.0.0.1:{port}", None), strangers_at(port):
        metrics.set("rounds", 3)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            assert "sottovoce_rounds 3.0" in answer.read().decode()


def test_strangers_at_the_store_of_torchrun():
    """Of ranks that are there. One that joins later waits until torch has taken all connections before it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE))
    stores = [TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=PATIENCE)) for _ in range(2)]
    outcomes = []

    def rank(number):
        ranks = Ranks(Communicator(number, 2), RankStore(stores[number], number, timeout=PATIENCE))
        outcomes.extend(ranks.on_rank_zero(lambda call=call: call) for call in range(5))

    with strangers_at(store.port):
        threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert sorted(outcomes) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


@pytest.fixture
def join(monkeypatch):
    """Opens the store at a port as a rank would."""

    def joined(port, tell, seconds):
        monkeypatch.delenv(MEETING, raising=False)
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
        return open_store(1, 1, timedelta(seconds=seconds), tell)

    return joined


def test_a_rank_that_waits_at_the_store_says_so(join, monkeypatch):
    """At a port where somebody listens and never answers, until that one goes: torch would wait without end."""
    monkeypatch.setattr(communication, "FIRST_LINE_SECONDS", 0.05)
    lines = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]

        def tell(line):
            lines.append(line)
            silent.close()

        with pytest.raises((RuntimeError, PeerLost)):  # torch's error, or the rank's own where torch takes longer
            join(port, tell, seconds=1)
    assert lines[0].startswith(f"rank 1 waits for all ranks to meet at 127.0.0.1:{port}: 0 s; ")
    assert "other programs hold connections to this port" in lines[0]


def test_a_rank_gives_up_a_store_that_never_answers(join):
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(PeerLost, match=r"rank 1 gave up after 0 s: not all ranks came to 127\.0\.0\.1:\d+, or"),
    ):
        join(silent.getsockname()[1], lambda _: None, seconds=0.1)


@pytest.mark.slow
def test_a_rank_that_joins_behind_silent_connections_is_not_silent_itself(join):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE))
    with ExitStack() as until:
        for _ in range(300):
            stranger = until.enter_context(socket.socket())
            stranger.setblocking(False)  # the queue of those who wait to be taken may be full
            stranger.connect_ex(("127.0.0.1", store.port))
        told = [time.monotonic()]
        join(store.port, lambda _: told.append(time.monotonic()), seconds=PATIENCE)
    assert all(after - before < 10 for before, after in pairwise([*told, time.monotonic()]))


@pytest.mark.slow
def test_strangers_at_the_ports_of_ranks():
    """Each rank has one, of gloo, on the interface that GLOO_SOCKET_IFNAME names."""
    pool = Pool(2)
    try:
        ports = pool(listening_ports)
        assert [len(found) for found in ports] == [1, 1]
        alone = pool(exchange, 3)
        with strangers_at(ports[0][0]), strangers_at(ports[1][0]):
            assert pool(exchange, 3) == alone
        assert pool(exchange, 3) == alone
        assert alone[0] == alone[1] == [3.0, 0.0, 1.0, 0, 3.0, 0.0, 1.0, 1, 3.0, 0.0, 1.0, 2]
    finally:
        pool.close()


def test_strangers_at_the_port_of_a_member(tmp_path):
    """`sotto peer join`, and each member of `sotto peer rehearse`."""
    made = Federation(tmp_path, listen=(True, False, False))
    with made.pair() as (first, second), strangers_at(first.port):
        assert play(first, second, range(20)) == 20
        assert [type(event).__name__ for event in made.events[0]] == ["Connected"]


def test_strangers_at_the_port_of_a_member_that_checks(clinics):
    """`sotto peer check` answers its neighbours for as long as it waits for them."""
    identities, agreement = clinics
    port = int(identities[0].member.address.rpartition(":")[2])
    arrived = threading.Event()

    def bother():
        while not arrived.is_set():
            try:
                socket.create_connection(("127.0.0.1", port), PATIENCE).close()
            except ConnectionRefusedError:
                continue
            with strangers_at(port):
                arrived.set()
                done.wait(PATIENCE)

    done, bothering = threading.Event(), threading.Thread(target=bother)
    bothering.start()
    found = checked(identities, dict.fromkeys(range(3), agreement), 20.0)
    done.set()
    arrived.set()
    bothering.join(PATIENCE)
    assert [checks.fine for checks in found.values()] == [True] * 3, found


def test_the_page_about_processes_says_who_listens():
    assert "| port | opened by | listens on |" in (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
