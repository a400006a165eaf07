"""Members with keys, ledgers and gRPC that learn nothing but sums: what is stored, what is asked for, and kills."""

from __future__ import annotations

import shutil
import threading

import numpy as np
import pytest

from sottovoce.errors import InputError
from sottovoce.federation.identity import load_identity, mask_keys
from sottovoce.federation.member_folder import CONFIRMED, LEDGER, MemberSettings, confirm
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.steps import MaskKeys, Steps
from tests.federation.clinics import NAMES, Clinics
from tests.federation.grpc_members import until
from tests.federation.kills import COINS, MOMENTS, RECEIVED, STORED, UNSTORED, Kills
from tests.federation.memory_links import Killed
from tests.federation.real_members import RealMembers
from tests.federation.test_real_kills import Killer
from tests.ledger.verified import masked_places, verify

AVERAGE = 'name = "secure-average"\nstep_size = 0.5'
ENCODED = 'name = "secure-mafalda"\nstep_size = 0.5'
GOSSIP = 'name = "secure-gossip"\nstep_size = 0.5'


class Sums(Clinics):
    """Clinics that have compared their fingerprints."""

    def agree(self, algorithm=AVERAGE, *, graph=None, **more):
        agreement = super().agree(algorithm, graph=graph or f"complete:{len(self.names)}", **more)
        for name in self.names:
            confirm(self.folder / name, agreement)
        return agreement

    def check_masks(self, agreement):
        """No place occurs twice in a ledger, all that was recorded for sending is among them, and keys are gone."""
        for name in self.names:
            with self.ledger(name) as database:
                keys, steps = MaskKeys(database, agreement.hash), Steps(database, agreement.hash)
                verify(steps)
                places = masked_places(database, keys.label)
                assert len(places) == len(set(places)) == steps.count()
                assert keys.keys() == {}


def final_models(clinics, agreement):
    return np.stack([
        np.load(clinics.run_folder(agreement, name) / "model.npz")["model"] for name in clinics.names
    ])  # fmt: skip


def test_members_hold_one_model_and_their_ledgers_show_every_mask(tmp_path):
    clinics = Sums(tmp_path)
    agreement = clinics.agree()
    results = clinics.run(agreement)
    assert [result for result in results.values() if isinstance(result, BaseException)] == []
    found = final_models(clinics, agreement)
    assert (found == found[0]).all()
    assert (results["Hill"]["algorithm"], results["Hill"]["sums_known"]) == ("secure-average", 4)
    clinics.check_masks(agreement)
    with clinics.ledger("Mercy") as database:
        label = MaskKeys(database, agreement.hash).label
        assert masked_places(database, label) == [Place(round, 0) for round in range(4)]


def test_fingerprints_are_confirmed_before_sums(tmp_path):
    clinics = Sums(tmp_path)
    agreement = clinics.agree()
    (tmp_path / "Mercy" / CONFIRMED).unlink()
    with pytest.raises(InputError, match="fingerprints of clinics were not confirmed; with secure sums every member"):
        clinics.join(agreement, "Mercy")
    assert not (tmp_path / "Mercy" / LEDGER).exists()
    without = Clinics.agree(clinics)
    results = clinics.run(without)
    assert [result for result in results.values() if isinstance(result, BaseException)] == []


def test_a_lost_ledger_is_not_begun_again(tmp_path):
    clinics = Sums(tmp_path)
    agreement = clinics.agree()
    clinics.run(agreement)
    (clinics.run_folder(agreement, "Mercy") / "result.json").unlink()
    (tmp_path / "Mercy" / LEDGER).unlink()
    with pytest.raises(
        InputError, match=r"knows of no masks; with a ledger that was lost or restored, masks could be used a"
    ):
        clinics.join(agreement, "Mercy", resume=True)


def test_keys_of_masks_are_those_of_one_agreement_and_the_same_at_both(tmp_path):
    clinics = Sums(tmp_path)
    one, other = clinics.agree(), clinics.agree()
    hill, mercy = (load_identity(tmp_path / name) for name in ("Hill", "Mercy"))
    assert mask_keys(hill, one, ["Mercy"])["Mercy"] == mask_keys(mercy, one, ["Hill"])["Hill"]
    keys = {mask_keys(hill, agreement, [name])[name] for agreement in (one, other) for name in ("Mercy", "North")}
    assert len(keys) == 4


def test_a_stolen_folder_that_is_restored_is_refused(tmp_path):
    """A member is killed, and its folder put back as it was before it sent anything."""
    clinics = Sums(tmp_path)
    agreement, kills = clinics.agree(rounds=6), Kills({("Mercy", "stored", Place(3, 0))})
    with pytest.MonkeyPatch.context() as patched:
        kills.watch(patched)
        real = Kills.pass_by

        def passing(self, moment, place):
            here = threading.current_thread().name, moment, Place(*place)
            if here == ("Mercy", "stored", Place(1, 0)):
                shutil.copytree(tmp_path / "Mercy", tmp_path / "copy")
            real(self, moment, place)

        patched.setattr(Kills, "pass_by", passing)

        def dies_and_is_put_back():
            with pytest.raises(Killed):
                clinics.join(agreement, "Mercy")
            shutil.rmtree(tmp_path / "Mercy")
            shutil.copytree(tmp_path / "copy", tmp_path / "Mercy")
            return clinics.join(agreement, "Mercy", resume=True)

        quick = MemberSettings(gather=20.0, patience=1.0)
        others = {name: lambda name=name: clinics.join(agreement, name, settings=quick) for name in ("Hill", "North")}
        results = clinics.play(others | {"Mercy": dies_and_is_put_back})
    assert "a member would send different noise" in str(results["Mercy"])
    assert all(len(digests) == 1 for digests in kills.seen.values())


@pytest.mark.parametrize("moment", [None, STORED, RECEIVED])
def test_encoded_sums_go_on_after_a_kill_and_remember_what_they_need(tmp_path, monkeypatch, moment):
    """Gradients of earlier rounds enter later sums: a member that was killed goes on from those that it committed."""
    kills = Kills()
    kills.watch(monkeypatch)
    clinics = Sums(tmp_path)
    agreement = clinics.agree(ENCODED, rounds=12, batches='batch = "cycle:3x4"', privacy="epsilon = 3.0")
    if moment is not None:
        kills.planned.add(("Mercy", moment, Place(5, 0)))

    def join(name):
        return lambda: kills.survived(lambda resume: clinics.join(agreement, name, resume=resume))

    results = clinics.run(agreement, {name: join(name) for name in clinics.names})
    assert [result for result in results.values() if isinstance(result, BaseException)] == []
    assert kills.deaths == (moment is not None)
    assert {len(digests) for digests in kills.seen.values()} == {1}
    clinics.check_masks(agreement)
    known, found = [results[name]["sums_known"] for name in clinics.names], final_models(clinics, agreement)
    assert min(known) >= (12 if moment is None else 8)
    assert min(known) < 12 or (found == found[0]).all()


@pytest.mark.parametrize("graph", ["complete:3", pytest.param("ring:4", marks=pytest.mark.slow)])
def test_killed_at_every_moment_of_a_round_and_joined_again(tmp_path, monkeypatch, graph):
    """Rounds may be lost. No mask is used twice, nobody sees two messages for a place, and the run ends."""
    kills = Kills()
    kills.watch(monkeypatch)
    moments = [moment for moment in MOMENTS if moment != COINS]
    clinics = Sums(tmp_path, NAMES[: int(graph[-1])])
    rounds = 3 * len(moments)
    algorithm = AVERAGE if graph.startswith("complete") else GOSSIP
    agreement = clinics.agree(algorithm, graph=graph, rounds=rounds)
    for number, moment in enumerate(moments):
        kills.planned.add(("Mercy", moment, Place(3 * number, 0)))
    last = Place(rounds - 1, 0)
    kills.planned.add(("Mercy", UNSTORED, last))  # so that it is absent from the last round

    def join(name):
        def take_part(resume):
            if name == "Mercy" and ("Mercy", UNSTORED, last) not in kills.planned:
                until(lambda: {sender for _, sender, place in list(kills.seen) if place == last} >= {0, 2})
            return clinics.join(agreement, name, resume=resume)

        return lambda: kills.survived(take_part)

    results = clinics.run(agreement, {name: join(name) for name in clinics.names})
    assert [result for result in results.values() if isinstance(result, BaseException)] == []
    assert kills.deaths >= len(moments) - 2, kills.planned
    assert {len(digests) for digests in kills.seen.values()} == {1}
    clinics.check_masks(agreement)
    assert {clinics.lines(agreement, name, "metrics.jsonl")[-1]["round"] for name in clinics.names} == {rounds}
    known = [line["sum_known"] for line in clinics.lines(agreement, "Hill", "attendance.jsonl")]
    assert sum(known) == results["Hill"]["sums_known"] < rounds
    over = "all members" if algorithm == AVERAGE else "this member's neighbours"
    failed = [facts for event, facts in clinics.events["Hill"] if event == "sum_failed"]
    assert {(*facts["members"], facts["over"], known[facts["round"]]) for facts in failed} == {("Mercy", over, False)}
    assert rounds - 1 in [facts["last"] for event, facts in clinics.events["Mercy"] if event == "absent"]


@pytest.mark.slow
def test_kill_9_of_processes_at_random_moments(tmp_path):
    """Real processes, some killed while they start; every run ends, and no mask is used twice."""
    rng, killed, clinics = np.random.default_rng(5), 0, Sums(tmp_path)
    while killed < 30:
        agreement = clinics.agree(rounds=30)
        members = RealMembers(clinics, agreement)
        try:
            members.start_all()
            killer = Killer(members, rng)
            killed += killer.kill(min(6, 30 - killed))
            members.check_fine()
        finally:
            members.end()
        clinics.check_masks(agreement)
