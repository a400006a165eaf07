"""How much of a run is traced, and that the first rounds of a system are the system of a shorter run."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import Unaccountable, account, algorithm, dropout, metropolis, push
from sottovoce.tracing import policy
from sottovoce.tracing.linear_system import map_equal_steps
from sottovoce.tracing.policy import Extent, affordable_extent, trace_affordable, trace_coordinates, trace_possible
from sottovoce.tracing.tracer import trace
from tests.cases import cases

LINEAR = [
    case for case in cases() if case.algorithm.compression.name == "identity" and case.place in ("ring:5", "fresh")
]


@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_the_first_rounds_of_a_system_are_a_shorter_run(case):
    system = trace(case.algorithm, case.topology, rounds=4)
    for rounds in (1, 3):
        shorter = trace(case.algorithm, case.topology, rounds=rounds)
        for ours, theirs in zip(system.first_rounds(rounds).dense(), shorter.dense(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert account(system.first_rounds(rounds)).guarantees == account(shorter).guarantees


def test_large_runs_are_traced_as_far_as_is_affordable(monkeypatch):
    ring, noisy = metropolis("ring:5"), algorithm("dp-d-sgd", sigma=1.0)
    compressed = algorithm("dp-csgp", sigma=1.0, compression="gsgd:8")
    assert affordable_extent(noisy, ring, rounds=9) is Extent.EVERY_MESSAGE
    assert affordable_extent(compressed, push("ring:5"), rounds=9) is Extent.NOISY_GRADIENTS
    monkeypatch.setattr(policy, "CUBES", 8 * 5**3)
    changing = dropout("ring:5", rate=0.5)
    assert affordable_extent(noisy, changing, rounds=8) is Extent.EVERY_MESSAGE
    assert affordable_extent(noisy, changing, rounds=9) is Extent.NOISY_GRADIENTS
    assert affordable_extent(noisy, ring, rounds=9) is Extent.EVERY_MESSAGE
    assert affordable_extent(algorithm("d-psgd"), changing, rounds=9) is Extent.FIRST_GOSSIP_STEP
    assert affordable_extent(algorithm("zip-dl", sigma=1.0), changing, rounds=9) is Extent.EVERY_MESSAGE
    assert "too many messages" in trace_affordable(noisy, changing, rounds=9).only_gradients
    assert not trace_possible(noisy, changing, rounds=9).only_gradients


def test_coordinates_are_traced_where_compression_keeps_some_of_them(monkeypatch):
    net = push("exponential:4")

    def traced(compression, dimension=10):
        built = algorithm("dp-csgp", sigma=1.0, compression=compression)
        return list(trace_coordinates(built, net, rounds=2, dimension=dimension))

    assert [len(traced("identity")), len(traced("rand:0.5")), len(traced("rand:0.5", 2))] == [1, 4, 2]
    with pytest.raises(Unaccountable, match="not linear"):
        traced("gsgd:8")
    monkeypatch.setattr(policy, "MASKS", 10)
    with pytest.raises(Unaccountable, match="too many coordinates"):
        traced("rand:0.5")


def test_equal_steps_are_computed_once():
    steps, asked = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:5"), rounds=5).steps, []
    found = map_equal_steps(lambda step: asked.append(step) or object(), steps)
    assert (len(found), len(set(found)), len(asked)) == (5, len(set(steps)), len(set(steps)))
