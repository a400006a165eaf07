"""Agreements that are amended in mid-run: who moves, renews its certificate, leaves or comes."""

from __future__ import annotations

import json
import shutil
import threading

import numpy as np
import pytest

from sottovoce.errors import InputError, Unaccountable
from sottovoce.federation.agreement import parse_agreement, read_agreement
from sottovoce.federation.amendments import amend, amended_guarantees, earlier_agreements, sign
from sottovoce.federation.guarantees import agreed_guarantees
from sottovoce.federation.identity import create_identity, load_identity, renew_identity
from sottovoce.federation.joining import leave_federation
from sottovoce.federation.journal import RecordedInputs
from sottovoce.federation.links import Mailbox
from sottovoce.federation.member_folder import confirm, member_status, signed_amendments
from sottovoce.federation.rehearsal import free_ports
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.spending import DEFAULT, Spending
from sottovoce.ledger.steps import Steps
from tests.cli.test_schemas import fits
from tests.federation.clinics import NAMES, Clinics
from tests.federation.kills import KEPT, Kills
from tests.federation.memory_links import Killed
from tests.federation.test_every_write import EveryWrite
from tests.federation.test_kills import ALGORITHMS
from tests.ledger.verified import verify

NOTHING = {"rows": {}, "without": (), "edges": ()}


@pytest.fixture
def kills(monkeypatch):
    watched = Kills()
    watched.watch(monkeypatch)
    return watched


def stopped(clinics, agreement, kills, round, moment=KEPT):
    """All members play up to a round, in which their machines go out."""

    def begun(name):
        confirm(clinics.folder / name, agreement)
        kills.planned.add((name, moment, Place(round, 0)))
        with pytest.raises(Killed):
            clinics.join(agreement, name)

    results = clinics.play({name: lambda name=name: begun(name) for name in agreement.names})
    assert set(results.values()) == {None}


def signed_by_all(clinics, before, after):
    for name in set(before.names) & set(after.names):
        after = sign(clinics.folder / name, after, ())
        confirm(clinics.folder / name, after)
    return after


def with_south(clinics, before, *, round, without):
    """South comes, and everybody who stays signs."""
    Clinics(clinics.folder, ("South",))
    file = clinics.folder / "South.member.toml"
    edges = ["Mercy--South", "Hill--South"]
    return signed_by_all(
        clinics, before, amend(before, [file], round=round, rows={"South": 12}, without=without, edges=edges)
    )


def moved(clinics, name):
    """A member whose address and certificate are others from now on; its public file."""
    renew_identity(clinics.folder / name, address=f"127.0.0.1:{free_ports(1)[0]}", listen=None)
    return clinics.folder / f"{name}.member.toml"


def played_on(clinics, agreement, names=None):
    """All take part under an amendment, to the end."""
    acts = {name: lambda name=name: clinics.join(agreement, name, resume=True) for name in names or agreement.names}
    results = clinics.play(acts)
    assert [one for one in results.values() if isinstance(one, BaseException)] == []
    return results


def rounds_sent(clinics, agreement, name):
    with clinics.ledger(name) as database:
        steps = Steps(database, agreement.run)
        verify(steps)
        return [round for round in range(agreement.training.rounds) if steps._entry("step", Place(round, 0))]


def check_one_message_for_each_place(kills):
    assert {len(digests) for digests in kills.seen.values()} == {1}


CASES = {
    **ALGORITHMS,
    "secure sums": {"more": "secure_sum = true", "graph": "complete:3"},
}


@pytest.mark.parametrize(
    "case", ["dp-d-sgd", "secure sums", *(pytest.param(one, marks=pytest.mark.slow) for one in ("anti-pgd", "zip-dl"))]
)
def test_who_moves_and_renews_its_certificate_goes_on_in_the_same_run(tmp_path, kills, case, monkeypatch):
    restored, restore = [], RecordedInputs._restore
    monkeypatch.setattr(RecordedInputs, "_restore", lambda one, kept: restored.append(kept) or restore(one, kept))
    clinics = Clinics(tmp_path)
    before = clinics.agree(**CASES[case], rounds=6)
    stopped(clinics, before, kills, 2)
    file = moved(clinics, "Mercy")
    after = signed_by_all(clinics, before, amend(before, [file], round=4, **NOTHING))
    assert agreed_guarantees(before).document["headline"] == amended_guarantees(before, after).document["headline"]
    results = played_on(clinics, after)
    figures = {result["headline"]["epsilon"] for result in results.values()}
    assert figures == {agreed_guarantees(before).document["headline"]["epsilon"]}
    for name in after.names:
        assert rounds_sent(clinics, after, name) == list(range(6))
        steps = clinics.lines(after, name, "attendance.jsonl")
        assert [line["round"] for line in steps] == list(range(6))
        assert {tuple(line["missing"]) for line in steps} == {()}
        with clinics.ledger(name) as database:
            (run,) = Spending(database).lineage(DEFAULT).runs
            assert (run.round, run.planned.rounds) == (6, 6)
    check_one_message_for_each_place(kills)
    assert {max(kept) for kept in restored if kept} == ({2, 3} if case == "anti-pgd" else set())
    (clinics.run_folder(after, "Hill") / "result.json").unlink()
    with pytest.raises(InputError, match="was amended by"):
        clinics.join(before, "Hill", resume=True)


def test_one_leaves_and_one_comes_and_the_figures_stay_what_they_were(tmp_path, kills):
    clinics = Clinics(tmp_path, ("Hill", "Mercy", "North"))
    before = clinics.agree(rounds=8, graph="complete:3")
    stopped(clinics, before, kills, 2)
    spent = leave_federation(tmp_path / "North", before)
    assert (spent.round, spent.is_open) == (4, False), "what it costs is recorded for two rounds at a time"
    assert leave_federation(tmp_path / "North", before) == spent
    assert next(run.finished for run in member_status(tmp_path / "North").runs)
    with pytest.raises(InputError, match="this member has left it"):
        clinics.join(before, "North", resume=True)
    after = with_south(clinics, before, round=5, without=["North"])
    results = played_on(clinics, after)
    proven = agreed_guarantees(before).document["headline"]["epsilon"]
    assert {result["headline"]["epsilon"] for result in results.values()} == {proven}
    assert [rounds_sent(clinics, after, name) for name in after.names] == [[*range(8)], [*range(8)], [5, 6, 7]]
    with clinics.ledger("North") as database:
        (run,) = Spending(database).lineage(DEFAULT).runs
        assert 0 < run.counted.mu < run.planned.loss.mu
    heard = clinics.lines(after, "Hill", "attendance.jsonl")
    assert [line["heard"] for line in heard if line["round"] > 4] == [["Mercy", "South"]] * 3
    for name in after.names:
        privacy = json.loads((clinics.run_folder(after, name) / "privacy.json").read_text())
        assert [view["view"] for view in privacy["views"]] == ["everyone"]
    check_one_message_for_each_place(kills)


def test_who_comes_starts_where_the_others_are(tmp_path, kills, monkeypatch):
    """Its first point is the mean of what its neighbours send in that round, not the start of the run."""
    points, gradient = {}, RecordedInputs.gradient

    def noted(inputs, round, point):
        found = gradient(inputs, round, point)
        points.setdefault((threading.current_thread().name, round), point.own.numpy().copy())
        return found

    monkeypatch.setattr(RecordedInputs, "gradient", noted)
    clinics = Clinics(tmp_path, ("Hill", "Mercy"))
    before = clinics.agree(rounds=6, algorithm='name = "dp-d-sgd"\nstep_size = 2.0')
    stopped(clinics, before, kills, 1)
    after = with_south(clinics, before, round=4, without=())
    sent, take = {}, Mailbox.take

    def taken(mailbox, sender, place, payload, *more):
        sent[sender, place.round] = np.frombuffer(payload, "<f4")
        return take(mailbox, sender, place, payload, *more)

    monkeypatch.setattr(Mailbox, "take", taken)
    played_on(clinics, after)
    start = points["South", 4][0]
    np.testing.assert_allclose(start, (sent[0, 4] + sent[1, 4]) / 2, rtol=1e-6)
    assert np.abs(start).max() > 0.1


def test_nobody_signs_an_amendment_from_a_round_that_it_may_have_begun(tmp_path, kills):
    """A process that has passed its last look at what is signed may still begin one round more."""
    clinics = Clinics(tmp_path)
    before = clinics.agree(rounds=9)
    stopped(clinics, before, kills, 3)
    file = moved(clinics, "Mercy")
    for round in (2, 3, 4):
        after = amend(before, [file], round=round, **NOTHING)
        with pytest.raises(InputError, match="Hill has begun 5 rounds; amend from round 5"):
            sign(tmp_path / "Hill", after, ())
    assert signed_amendments(tmp_path / "Hill") == {}
    after = signed_by_all(clinics, before, amend(before, [file], round=5, **NOTHING))
    assert signed_amendments(tmp_path / "Hill") == {before.hash: 5}
    played_on(clinics, after)
    assert [rounds_sent(clinics, after, name) for name in after.names] == [list(range(9))] * 3


def test_who_signed_refuses_the_old_agreement_from_that_round(tmp_path, kills):
    clinics = Clinics(tmp_path, ("Hill", "Mercy"))
    before = clinics.agree(rounds=6)
    stopped(clinics, before, kills, 1)
    after = amend(before, [moved(clinics, "Mercy")], round=3, **NOTHING)
    for name in before.names:
        sign(tmp_path / name, after, ())
    results = clinics.play({name: lambda name=name: clinics.join(before, name, resume=True) for name in before.names})
    assert ["signed an amendment from round 3" in str(one) for one in results.values()] == [True, True]
    assert [rounds_sent(clinics, before, name) for name in before.names] == [[0, 1, 2]] * 2
    with pytest.raises(InputError, match="not signed by Mercy"):
        clinics.join(sign(tmp_path / "Hill", after, ()), "Hill", resume=True)
    played_on(clinics, signed_by_all(clinics, before, after))


def test_what_an_amendment_may_not_change_is_refused_by_whoever_signs(tmp_path, kills):
    clinics = Clinics(tmp_path)
    before = clinics.agree(rounds=6)
    stopped(clinics, before, kills, 1)
    after = amend(before, [moved(clinics, "Mercy")], round=3, **NOTHING)
    changes = {
        "training.rounds": lambda one: one["training"].update(rounds=9),
        "privacy.epsilon": lambda one: one["privacy"].update(epsilon=30.0),
        "members.Hill.rows": lambda one: one["members"][0].update(rows=11),
        "amends.agreement": lambda one: one["amends"].update(agreement="0" * 64),
        "amends.first": lambda one: one["amends"].update(first="0" * 64),
        "topology.graph": lambda one: one["topology"].update(graph="edges:Hill--Mercy,Hill--North,Mercy--North"),
        "amends.came": lambda one: one["amends"].update(came=["Hill"]),
        "least_heard": lambda one: one.update(least_heard=1, longest_pause=5.0),
        "exchange_key": lambda one: one["members"][0].update(exchange_key="ab" * 32),
    }
    for change in changes.values():
        document = after.document
        change(document)
        with pytest.raises(InputError):
            sign(tmp_path / "Hill", parse_agreement(document, "here"), ())


def test_signatures_are_their_members_own_and_of_this_amendment(tmp_path, kills):
    clinics = Clinics(tmp_path)
    before = clinics.agree(rounds=6)
    stopped(clinics, before, kills, 1)
    file = moved(clinics, "Mercy")
    after, other = (amend(before, [file], round=3, **NOTHING) for _ in range(2))
    hill, mercy = (sign(tmp_path / name, after, ()) for name in ("Hill", "Mercy"))
    both = sign(tmp_path / "North", after, [hill, mercy])
    assert both.amends.signatures.keys() == {"Hill", "Mercy", "North"}
    assert both.hash == after.hash
    assert parse_agreement(both.document, "here") == both
    assert [one.hash for one in earlier_agreements(tmp_path / "Hill", both, "Hill")] == [before.hash]
    with pytest.raises(InputError, match="another amendment"):
        sign(tmp_path / "North", other, [hill])
    forged = both.document
    for signature in (both.amends.signatures["Mercy"], "00", "xyz"):
        forged["amends"]["signatures"]["Hill"] = signature
        with pytest.raises(InputError, match="a signature of Hill that is not its own"):
            earlier_agreements(tmp_path / "Hill", parse_agreement(forged, "here"), "Hill")
    stale = other.document
    stale["amends"]["signatures"] = both.document["amends"]["signatures"]
    with pytest.raises(InputError, match="not its own"):
        earlier_agreements(tmp_path / "Hill", parse_agreement(stale, "here"), "Hill")


@pytest.mark.parametrize(
    "case", ["secure sums", "anti-pgd", "mafalda", "zip-dl", "swarm", "decor", "poisson", "dp-csgp"]
)
def test_members_may_not_change_where_figures_depend_on_who_takes_part(tmp_path, case):
    before, after = one_less(tmp_path, case)
    with pytest.raises(Unaccountable, match="if members come or leave in mid-run"):
        amended_guarantees(before, after)


@pytest.mark.parametrize("case", ["dp-d-sgd", "muffliato-sgd", "dp2sgd"])
def test_members_may_change_where_they_do_not(tmp_path, case):
    before, after = one_less(tmp_path, case)
    found = amended_guarantees(before, after).document
    assert found["headline"] == agreed_guarantees(before).document["headline"]


def one_less(folder, case):
    """An agreement of four, and the amendment by which one of them leaves."""
    more = {name: {"algorithm": f'name = "{name}"\nstep_size = 0.5'} for name in ("mafalda", "dp2sgd", "swarm")}
    clinics = Clinics(folder, NAMES)
    before = clinics.agree(**{**CASES, **more}[case] | {"graph": "complete:4"}, rounds=6)
    return before, amend(before, [], round=3, **NOTHING | {"without": ["North"]})


def test_from_a_new_address_to_who_leaves_at_the_command_line(tmp_path, kills, sotto, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clinics = Clinics(tmp_path, NAMES)
    before = clinics.agree(rounds=6, graph="complete:4")
    stopped(clinics, before, kills, 1)

    def told(line, schema):
        code, out, err = sotto(f"{line} --json")
        assert code == 0, err
        fits(json.loads(out), schema)
        return json.loads(out)

    renewed = told("peer renew --folder Mercy --address 127.0.0.1:7499", "peer-renew")
    assert renewed["address"] == "127.0.0.1:7499"
    left = told("peer leave agreement.toml --folder South", "peer-leave")
    assert left["round"] == 2
    amended = told("peer amend agreement.toml Mercy.member.toml --from-round 3 --without South", "peer-amend")
    assert [member["name"] for member in amended["members"]] == ["Hill", "Mercy", "North"]
    shutil.copy("amended.toml", "mercy.toml")
    assert told("peer sign mercy.toml --folder Mercy", "peer-sign")["unsigned"] == ["Hill", "North"]
    assert told("peer sign amended.toml mercy.toml --folder Hill", "peer-sign")["unsigned"] == ["North"]
    assert told("peer sign amended.toml --folder North", "peer-sign")["unsigned"] == []
    assert read_agreement(tmp_path / "amended.toml").hash == amended["hash"]
    code, _, err = sotto("peer amend agreement.toml --from-round 3 --without Nobody --out other.toml")
    assert (code, "no member called 'Nobody'" in err) == (2, True)
    code, _, err = sotto("peer amend agreement.toml --from-round 6 --out other.toml")
    assert (code, "no round is left" in err) == (2, True)


def test_a_certificate_is_renewed_beside_the_one_before(tmp_path):
    made = create_identity("Mercy", tmp_path / "peer", address="mercy.example:7443")
    found = renew_identity(tmp_path / "peer", address="mercy.example:7444", listen=None)
    again = renew_identity(tmp_path / "peer", address=None, listen=None)
    assert (again.address, again.exchange_key) == ("mercy.example:7444", made.member.exchange_key)
    assert len({made.member.certificate, found.certificate, again.certificate}) == 3
    newest = load_identity(tmp_path / "peer")
    assert (newest.member, newest.secret, newest.exchange_key) == (again, made.secret, made.exchange_key)
    assert newest.tls_key != made.tls_key
    for path in (tmp_path / "peer" / "renewed").glob("*/identity.json"):
        assert path.stat().st_mode & 0o077 == 0
    assert member_status(tmp_path / "peer").member == again


def test_an_agreement_that_amends_none_is_what_it_was(tmp_path):
    """Hash and file of agreements have no word about amendments unless they are one."""
    agreement = Clinics(tmp_path).agree(rounds=3)
    assert (agreement.run, agreement.since, "amends" in agreement.toml()) == (agreement.hash, 0, False)
    assert read_agreement(tmp_path / "agreement.toml").hash == agreement.hash


@pytest.mark.slow
@pytest.mark.parametrize("case", ["anti-pgd", "dp-d-sgd"])
def test_killed_before_and_after_every_write_an_amended_run_ends_all_the_same(tmp_path, kills, monkeypatch, case):
    clinics, writes = Clinics(tmp_path), EveryWrite()
    before = clinics.agree(**CASES[case], rounds=4)
    stopped(clinics, before, kills, 0)
    after = signed_by_all(clinics, before, amend(before, [moved(clinics, "Mercy")], round=2, **NOTHING))
    writes.watch(monkeypatch)
    acts = {name: lambda name=name: clinics.join(after, name, resume=True) for name in after.names}
    acts["Mercy"] = lambda: writes.survived(lambda: clinics.join(after, "Mercy", resume=True))
    results = clinics.play(acts)
    assert [one for one in results.values() if isinstance(one, BaseException)] == []
    assert len(writes.passed) > 40
    check_one_message_for_each_place(kills)
    for name in after.names:
        assert rounds_sent(clinics, after, name) == list(range(4))
