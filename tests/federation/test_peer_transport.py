"""The round loop on one member's row: the bits of the simulation, over links in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sottovoce import InputError
from tests.cases import FIXED, cases
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
