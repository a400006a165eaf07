"""The round loop on one member's row: the bits of the simulation, over links in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sottovoce import InputError, algorithm, dropout, metropolis
from sottovoce._version import __version__
from sottovoce.core.grid import with_exact_noise
from sottovoce.errors import Diverged
from sottovoce.federation.frames import DIGEST, HEADER, RECEIPT
from sottovoce.federation.peer_transport import KEPT
from tests.cases import DIMENSION, FIXED, cases
from tests.federation.members import Federation
from tests.selection import rest_slow

CASES = [case for case in cases() if case.place in FIXED and not case.algorithm.secure_sum]


@pytest.mark.parametrize("case", rest_slow(CASES))
def test_members_play_the_run_of_the_simulation(case):
    """Bit for bit, but where noise on single messages is added up in another order."""
    members = Federation(case.algorithm, case.topology)
    ends = members.run()
    apart = torch.cat([ends[member] for member in sorted(ends)])
    exact = not case.algorithm.noise.edge(case.topology.at(0))
    np.testing.assert_allclose(apart, members.simulated(), rtol=0, atol=0 if exact else 1e-12)
    assert not any(step.missing for steps in members.steps.values() for step in steps)
    assert members.network.refused == {}


@pytest.mark.parametrize(
    ("method", "exact", "dtype"),
    [
        (algorithm("dp-d-sgd", sigma=1.0, step_size=0.1), True, torch.float32),
        (algorithm("mafalda", sigma=1.0, rounds=12, participation="2x6", classes=2), True, torch.float32),
        (algorithm("zip-dl", sigma=1.0, step_size=0.1), True, torch.float64),
    ],
    ids=lambda found: getattr(found, "name", None),
)
def test_float32_and_noise_on_a_grid_are_the_same_bits_too(method, exact, dtype):
    net = metropolis("star:5")
    method = with_exact_noise(method.on(net), net, exact)
    members = Federation(method, net, dtype=dtype)
    ends = members.run()
    assert torch.equal(torch.cat([ends[member] for member in range(5)]), members.simulated())


def test_bytes_on_the_wire_are_messages_headers_and_acknowledgements():
    members = Federation(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:5"), rounds=40)
    members.run()
    message, acknowledgement = HEADER.size + 8 * DIMENSION, HEADER.size + DIGEST
    hello = HEADER.size + RECEIPT.size + len(__version__)
    assert set(members.wire.values()) == {4 * hello + 40 * 2 * (message + acknowledgement)}
    assert max(members.kept.values()) <= KEPT + 1


def test_what_cannot_be_played_by_members_is_refused():
    with pytest.raises(InputError, match="members must have the same neighbours in every round"):
        Federation(algorithm("dp-d-sgd", sigma=1.0), dropout("ring:6", rate=0.3)).rules(0)


def test_a_member_does_not_send_what_its_neighbours_would_refuse():
    members = Federation(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:5"), largest=1e-3)
    with pytest.raises(Diverged, match=r"^neighbours would refuse the message of round 0: it has values"):
        members.run()
    assert members.network.refused == {}
