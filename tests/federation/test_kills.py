"""Members that are killed at any moment of a round, and join again: nothing is drawn twice, and the run ends."""

from __future__ import annotations

import pytest

from sottovoce.ledger.payloads import Place
from sottovoce.ledger.steps import Steps
from tests.federation.clinics import DP_D_SGD, Clinics
from tests.federation.kills import COINS, MOMENTS, Kills
from tests.ledger.verified import verify

ROUNDS = len(MOMENTS)
"""In the last one somebody is killed too: its neighbours keep their last messages for it until it has ended."""

ALGORITHMS = {
    "dp-d-sgd": {"algorithm": DP_D_SGD},
    "poisson": {"algorithm": DP_D_SGD, "batches": 'batch = "poisson:0.5"'},
    "allocate": {"algorithm": DP_D_SGD, "batches": 'batch = "allocate:2x4"'},
    "muffliato-sgd": {"algorithm": 'name = "muffliato-sgd"\nstep_size = 0.5\ngossip_steps = 3'},
    "dp-csgp": {"algorithm": 'name = "dp-csgp"\nstep_size = 0.5'},
    "anti-pgd": {"algorithm": 'name = "anti-pgd"\nstep_size = 0.5'},
    "zip-dl": {
        "algorithm": 'name = "zip-dl"\nstep_size = 0.5',
        "privacy": 'epsilon = 100.0\nadjacency = "user"',
        "precision": "float64",
    },
    "decor": {"algorithm": 'name = "decor"\nstep_size = 0.5\nsigma_pair = 2.0'},
}


@pytest.fixture
def kills(monkeypatch):
    watched = Kills()
    watched.watch(monkeypatch)
    return watched


@pytest.mark.parametrize(
    "case", ["dp-d-sgd", *(pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS if name != "dp-d-sgd")]
)
def test_killed_at_every_moment_of_a_round_and_joined_again(tmp_path, kills, case):
    """One member dies at another moment of each round, a neighbour in between: the run is whole all the same."""
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(**ALGORITHMS[case], rounds=ROUNDS)
    new_coins = {"poisson": range(ROUNDS), "allocate": range(0, ROUNDS, 4)}.get(case, ())
    steps = 3 if case == "muffliato-sgd" else 1
    for round, moment in enumerate(MOMENTS):
        for name, at in (("Mercy", round), ("Hill", ROUNDS - 1 - round)):
            if moment != COINS or at in new_coins:
                kills.planned.add((name, moment, Place(at, 0)))
    planned = len(kills.planned)

    def join(name):
        return lambda: kills.survived(lambda resume: clinics.join(agreement, name, resume=resume))

    results = clinics.run(agreement, {name: join(name) for name in clinics.names})
    assert [result for result in results.values() if isinstance(result, BaseException)] == []
    assert kills.deaths == planned, kills.planned
    assert {len(digests) for digests in kills.seen.values()} == {1}
    assert len(kills.seen) == ROUNDS * steps * 4
    assert all(len(keys) == 1 for keys in kills.coins.values())
    assert all(len(set(values)) == 1 for values in kills.released.values())
    for name in clinics.names:
        attendance = clinics.lines(agreement, name, "attendance.jsonl")
        assert [line["missing"] for line in attendance if line["missing"]] == []
        assert [line["round"] for line in attendance] == [round for round in range(ROUNDS) for _ in range(steps)]
        with clinics.ledger(name) as database:
            verify(Steps(database, agreement.hash))
