"""Runs of the round loop over gRPC on loopback: the bits of the simulation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from sottovoce import algorithm, uniform
from sottovoce.core.correlation import Triangular
from sottovoce.core.grid import with_exact_noise
from sottovoce.federation.events import Connected, Left, Lost
from sottovoce.federation.grpc_links import GrpcLinks
from sottovoce.federation.links import Clock
from sottovoce.federation.peer_transport import PeerTransport
from tests.federation import members
from tests.federation.certificates import at_port, new_member
from tests.federation.grpc_members import PATIENCE, QUICK
from tests.federation.journals import MemoryJournal
from tests.federation.test_peer_transport import CASES

KINDS = ("dp-d-sgd", "muffliato-sgd", "decor", "zip-dl", "dp-csgp")
FAST = [next(case for case in CASES if case.algorithm.name == name) for name in KINDS]
REST = [pytest.param(case, marks=pytest.mark.slow) for case in CASES if case not in FAST]


def over_grpc(federation, folder):
    """Where each member ends; they find each other by their ports on loopback."""
    size, events = federation.topology.n, []
    identities = [new_member(folder, f"M{number}") for number in range(size)]
    identities.sort(key=lambda identity: identity.member.fingerprint, reverse=True)
    known = [identity.member for identity in identities]
    with ExitStack() as stack:
        links = []
        for number, identity in enumerate(identities):
            rules = federation.rules(number)
            neighbours = {one: known[one] for one in rules.neighbours}
            made = GrpcLinks(rules, identity, neighbours, report=events.append, bind="127.0.0.1:0", settings=QUICK)
            links.append(stack.enter_context(made))
            known[number] = at_port(known[number], made.port)
        with ThreadPoolExecutor(size) as threads:
            ends = list(threads.map(lambda one: join(federation, one), links))
    return torch.cat(ends), events


def join(federation, links):
    transport = PeerTransport(
        federation.algorithm, federation.topology, links, seconds=PATIENCE, journal=MemoryJournal(),
        clock=Clock(), tell=members.Noted(federation, links.rules.member), gather=PATIENCE,
        enough=federation.enough, masks=federation.masks(links.rules.member),
    )  # fmt: skip
    *_, last = federation.played(transport)
    return transport.local(last.models)


@pytest.mark.parametrize("case", [*FAST, *REST], ids=str)
def test_members_over_grpc_play_the_run_of_the_simulation(tmp_path, case):
    """Bit for bit, but where noise on single messages is added up in another order."""
    federation = members.Federation(case.algorithm, case.topology)
    exact = not case.algorithm.noise.edge(case.topology.at(0))
    ends, events = over_grpc(federation, tmp_path)
    np.testing.assert_allclose(ends, federation.simulated(), rtol=0, atol=0 if exact else 1e-12)
    assert federation.missed() == set()
    assert {type(event) for event in events} <= {Connected, Lost, Left}, "nothing was refused"


SUMS = {
    "secure-average": ("complete:4", {}),
    "secure-mafalda": ("complete:4", {"correlation": Triangular(np.eye(99) + 0.4 * np.eye(99, k=-1))}),
    "secure-gossip": ("ring:5", {}),
}


@pytest.mark.parametrize("name", SUMS)
def test_secure_sums_over_grpc_are_those_of_the_simulation(tmp_path, name):
    """To the last integer, under masks."""
    place, settings = SUMS[name]
    net = uniform(place)
    federation = members.Federation(with_exact_noise(algorithm(name, sigma=1.0, **settings), net), net)
    ends, events = over_grpc(federation, tmp_path)
    assert torch.equal(ends, federation.simulated())
    assert federation.missed() == set()
    assert {type(event) for event in events} <= {Connected, Lost, Left}, "nothing was refused"
