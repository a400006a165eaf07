"""A member certifies its rounds: what its algorithm or its model does unlike what was traced is not sent."""

from __future__ import annotations

import re
import threading

import pytest

from sottovoce.core.algorithm import Gossip
from sottovoce.distributed.sharded_rows import ShardedRows
from sottovoce.errors import Uncertified
from sottovoce.federation.member_folder import confirm
from sottovoce.learning.tasks import Gradients
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.steps import Steps
from tests.federation.clinics import QUICK, Clinics
from tests.federation.kills import STORED, Kills

CHEAT, HONEST, ROUNDS = "Hill", 3, 6
HURRIED = QUICK.model_copy(update={"patience": 0.3})


def longer_step(honest, algorithm, state, grad, noise):
    return honest(algorithm, state, ShardedRows(grad.shard, 1.5 * grad.own), noise)


def shifted_message(honest, algorithm, state):
    sent = honest(algorithm, state)
    return ShardedRows(sent.shard, sent.own + 0.01)


def writing_into_the_model(honest, gradients, round, points):
    found = honest(gradients, round, points)
    points += found
    return found


CHEATS = {
    "a longer step": (Gossip, "local", longer_step),
    "a shifted message": (Gossip, "message", shifted_message),
    "a gradient in the model itself": (Gradients, "__call__", writing_into_the_model),
}


@pytest.mark.parametrize("algorithm", ["dp-d-sgd", "anti-pgd"])
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_member_whose_own_code_cheats_stops_before_anything_of_it_is_sent(tmp_path, monkeypatch, cheat, algorithm):
    where, name, trick = CHEATS[cheat]
    honest, calls = getattr(where, name), []

    def act(*given):
        """Honest while it is traced, and at first."""
        is_played = where is Gradients or any(isinstance(one, ShardedRows) for one in (*given, *given[1]))
        if threading.current_thread().name != CHEAT or not is_played:
            return honest(*given)
        calls.append(name)
        return trick(honest, *given) if len(calls) > HONEST else honest(*given)

    monkeypatch.setattr(where, name, act)
    seen, clinics = Kills(), Clinics(tmp_path)
    seen.watch(monkeypatch)
    agreement = clinics.agree(
        f'name = "{algorithm}"\nstep_size = 0.5', rounds=ROUNDS, precision="float64", more="longest_pause = 0.3"
    )
    ends = clinics.run(
        agreement, {name: lambda name=name: clinics.join(agreement, name, settings=HURRIED) for name in clinics.names}
    )
    assert isinstance(ends[CHEAT], Uncertified)
    stopped, number = int(re.findall("in round ([0-9]+)", str(ends[CHEAT]))[0]), agreement.names.index(CHEAT)
    assert 0 < stopped < ROUNDS
    assert {place.round for _, sender, place in seen.seen if sender == number} == set(range(stopped))
    with clinics.ledger(CHEAT) as database:
        assert Steps(database, agreement.hash).newest() == Place(stopped - 1, 0)


def test_a_member_with_little_noise_goes_on_after_a_kill(tmp_path, monkeypatch):
    """Of a round that is replayed the gradient is not known any more: it is not taken for noise."""
    kills, clinics = Kills({(CHEAT, STORED, Place(1, 0))}), Clinics(tmp_path)
    kills.watch(monkeypatch)
    agreement = clinics.agree(
        rounds=3, privacy="epsilon = 1000.0", model='name = "mlp"\nhidden = [16]', precision="float64"
    )

    survive(clinics, agreement, kills)


def survive(clinics, agreement, kills):
    """All come to the end, one of them after it was killed."""

    def join(resume):
        return clinics.join(agreement, CHEAT, resume=resume)

    ends = clinics.run(agreement, {CHEAT: lambda: kills.survived(join)})
    assert [end for end in ends.values() if isinstance(end, BaseException)] == []
    assert kills.deaths == 1


@pytest.mark.parametrize("algorithm", ["dp-d-sgd", "secure-average"])
@pytest.mark.parametrize(
    "rule", ['optimizer = "momentum:0.5"\nschedule = "cosine"\naverage = 0.5', 'optimizer = "adam"']
)
def test_members_keep_to_their_rule_also_after_a_kill(tmp_path, monkeypatch, algorithm, rule):
    kills, clinics = Kills({(CHEAT, STORED, Place(1, 0))}), Clinics(tmp_path)
    kills.watch(monkeypatch)
    agreement = clinics.agree(
        f'name = "{algorithm}"\nstep_size = 0.1\n{rule}', rounds=3, precision="float64", graph="complete:3"
    )
    for name in clinics.names:
        confirm(clinics.folder / name, agreement)
    survive(clinics, agreement, kills)
