"""A member's part in the run of an agreement: what it leaves behind, and what it refuses."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import time

import numpy as np
import pytest

from sottovoce import export_model, read_exported_model
from sottovoce.errors import InputError, PeerLost, Unaccountable
from sottovoce.federation import guarantees
from sottovoce.federation.frames import Reason
from sottovoce.federation.guarantees import agreed_guarantees, build_agreement
from sottovoce.federation.identity import locked_identity
from sottovoce.federation.links import Links
from sottovoce.federation.member_folder import BudgetSettings
from sottovoce.federation.member_run import MemberRun
from sottovoce.learning.tables import read_table
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.spending import DEFAULT, Spending
from sottovoce.ledger.steps import Place as LedgerPlace
from sottovoce.ledger.steps import Steps
from sottovoce.report.page import read_checked_runs
from sottovoce.support.files import sign
from sottovoce.support.npz import read_checked_npz, write_npz
from tests.cli.test_schemas import fits
from tests.federation.clinics import QUICK, Clinics
from tests.federation.kills import KEPT, UNSTORED, Kills
from tests.federation.memory_links import Killed
from tests.ledger.verified import verify
from tests.run.test_baselines import trained_by_hand

ALONE = QUICK.model_copy(update={"patience": 0.2, "gather": 0.2})
PATIENT = QUICK.model_copy(update={"patience": 3.0, "gather": 3.0})


@pytest.fixture
def kills(monkeypatch):
    watched = Kills()
    watched.watch(monkeypatch)
    return watched


def test_a_run_ends_at_all_members_each_with_its_model_result_and_ledger(tmp_path, kills):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=4)
    results = clinics.run(agreement)
    neighbours = {name: agreement.neighbours(name) for name in clinics.names}
    for name, result in results.items():
        folder = clinics.run_folder(agreement, name)
        assert result["rounds"] == 4
        assert np.isfinite(np.load(folder / "model.npz")["model"]).all()
        heard = [
            (line["round"], line["heard"], line["missing"])
            for line in clinics.lines(agreement, name, "attendance.jsonl")
        ]
        assert heard == [(round, list(neighbours[name]), []) for round in range(4)]
        assert result["heard"] == {"steps": 4, "members": dict.fromkeys(neighbours[name], 4)}
        assert clinics.join(agreement, name) == result, "a finished run is not played again"
        assert clinics.events[name][-1] == ("finished", {})
        check_export(folder, name)
        with clinics.ledger(name) as database:
            spent = Spending(database).lineage(DEFAULT)
            assert spent.counted.epsilon(agreement.privacy.delta) == pytest.approx(result["headline"]["epsilon"])
            verify(Steps(database, agreement.hash))
    check_what_was_seen(clinics, agreement, kills)


def test_a_table_that_does_not_fit_ends_it_before_anything_is_begun(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clinics = Clinics(tmp_path)
    agreement, name = clinics.agree(rounds=4), clinics.names[0]
    table = tmp_path / f"{name}.csv"
    heading, first, second, *rest = table.read_text().splitlines()
    cells = dict(zip(heading.split(","), second.split(","), strict=True))
    for column, cell in [(one.name, cells[one.name]) for one in agreement.data.columns.columns]:
        wrong = {**cells, column: f"{cell}?"}
        table.write_text("\n".join([heading, first, ",".join(wrong.values()), *rest]) + "\n")
        code, out, err = sotto(f"peer join agreement.toml --folder {name} --data {table} --log {name}.jsonl")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"row 2, column {column!r}: '{cell}?'" in err
        assert not (tmp_path / name / "ledger.db").exists()
        assert not (tmp_path / f"{name}.jsonl").exists()


def check_export(folder, name):
    """A member hands on its own model, which its agreement's figure covers, and no other."""
    found = export_model(folder)
    assert (found.node, found.covered) == (name, True)
    model = read_exported_model(folder / "export")
    np.testing.assert_array_equal(model.parameters.numpy(), np.load(folder / "model.npz")["model"])
    (run,) = read_checked_runs([folder])
    assert (run.member, run.check.findings) == (name, [])
    assert {"privacy.json: versions", "result.json: heard"} <= set(run.check.not_checked)
    for other, change in (("a model of before", {"model": np.zeros(3)}), ("another run", {"about": np.zeros(64)})):
        place = shutil.copytree(folder, folder.with_name(other))
        with (place / "model.npz").open("wb") as file:
            write_npz(file, read_checked_npz(folder / "model.npz") | change)
        with pytest.raises(InputError, match=r"model\.npz: not the model of this run"):
            export_model(place, place / "again")
    place = shutil.copytree(folder, folder.with_name("planted"))
    np.savez(place / "model.npz", model=model.parameters.numpy())
    with pytest.raises(InputError, match="no checksum"):
        export_model(place, place / "again")
    with pytest.raises(InputError, match="which has its own model"):
        export_model(folder, folder / "other", node="Nobody")


def check_what_was_seen(clinics, agreement, kills):
    """Neighbours received what the sender's ledger has, and theirs says so."""
    for (receiver, sender, place), digests in kills.seen.items():
        names = agreement.names[receiver], agreement.names[sender]
        with clinics.ledger(names[1]) as database:
            assert {Steps(database, agreement.hash).step(LedgerPlace(*place)).sent[names[0]]} == digests
        with clinics.ledger(names[0]) as database:
            assert {Steps(database, agreement.hash).step(LedgerPlace(*place)).received[names[1]]} == digests


def test_a_ledger_is_small_again_when_the_run_is_over(tmp_path, kills):
    """Messages of 60 kB, of which it had kept dozens."""
    clinics = Clinics(tmp_path, ("Hill", "Mercy"))
    clinics.run(clinics.agree(rounds=12, model='name = "mlp"\nhidden = [3000]'))
    with clinics.ledger("Hill") as database:
        assert database.rows("SELECT COUNT(*) FROM payloads")[0][0] == 0
    assert sum(file.stat().st_size for file in (tmp_path / "Hill").glob("ledger.db*")) < 200_000


def test_no_gradient_is_in_any_ledger(tmp_path, kills, monkeypatch):
    """Of a gradient that is released with noise only the sum is stored, even by the member whose it is."""
    from sottovoce.federation.journal import Journal

    gradients, note = [], Journal.note

    def noted(journal, place, name, values):
        if name == "gradient":
            gradients.append(values.tobytes())
        note(journal, place, name, values)

    monkeypatch.setattr(Journal, "note", noted)
    clinics = Clinics(tmp_path)
    clinics.run(clinics.agree(rounds=2))
    assert len(gradients) == 6
    for name in clinics.names:
        stored = b"".join(path.read_bytes() for path in (tmp_path / name).glob("ledger.db*"))
        assert not any(gradient in stored for gradient in gradients)


def test_a_run_that_was_begun_goes_on_only_with_resume(tmp_path, kills):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=3)
    kills.planned.add(("Hill", KEPT, Place(1, 0)))

    def hill():
        with pytest.raises(Killed):
            clinics.join(agreement, "Hill")
        with pytest.raises(InputError, match=r"was already begun with this folder; .*--resume"):
            clinics.join(agreement, "Hill")
        return clinics.join(agreement, "Hill", resume=True)

    results = clinics.run(agreement, {"Hill": hill})
    assert {result["rounds"] for result in results.values()} == {3}


def killed_once(clinics, agreement, kills, between=lambda: None):
    """A run in which Hill is killed in round 1, and something happens before it goes on; how often it was accounted."""
    kills.planned.add(("Hill", KEPT, Place(1, 0)))
    accounted, before = [], guarantees.report_wanted

    def hill():
        with pytest.raises(Killed):
            clinics.join(agreement, "Hill")
        between()
        patched.setattr(guarantees, "report_wanted", lambda *some: accounted.append(1) or before(*some))
        return clinics.join(agreement, "Hill", resume=True)

    with pytest.MonkeyPatch.context() as patched:
        results = clinics.run(agreement, {"Hill": hill})
    assert [one for one in results.values() if isinstance(one, BaseException)] == []
    return len(accounted), results


def test_who_goes_on_does_not_account_for_the_run_again(tmp_path, kills):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=3)
    times, results = killed_once(clinics, agreement, kills)
    assert times == 0
    headlines = [result["headline"]["epsilon"] for result in results.values()]
    assert headlines == [headlines[0]] * 3
    files = {name: clinics.run_folder(agreement, name) / "privacy.json" for name in clinics.names}
    assert files["Hill"].read_text() == files["Mercy"].read_text()


@pytest.mark.parametrize("changed", ["edited", "gone", "damaged", "other version", "another agreement's"])
def test_figures_that_this_user_has_not_computed_are_computed_again(tmp_path, kills, changed):
    clinics = Clinics(tmp_path)
    agreed_guarantees(other := clinics.agree(rounds=30))
    agreement, another = clinics.agree(rounds=3), guarantees.account_file(other)
    assert another.stat().st_mode & 0o077 == 0

    def change():
        file = guarantees.account_file(agreement)
        text = file.read_text()
        file.unlink()
        if changed == "edited":
            sigma = json.loads(text)["privacy"]["sigma"]
            assert text.count(f'"sigma": {sigma!r}') == 1
            file.write_text(text.replace(f'"sigma": {sigma!r}', f'"sigma": {sigma / 2!r}'))
        elif changed == "damaged":
            file.write_text(text[:100])
        elif changed == "other version":
            document = json.loads(text)["privacy"]
            document["versions"]["sottovoce"] = "0.0.1"
            signature = sign(guarantees._signed(agreement, document))
            file.write_text(json.dumps({"privacy": document, "signature": signature}))
        elif changed == "another agreement's":
            file.write_text(another.read_text())

    times, results = killed_once(clinics, agreement, kills, change)
    assert times == 1
    assert len({result["headline"]["epsilon"] for result in results.values()}) == 1
    folders = [clinics.run_folder(agreement, name) / "privacy.json" for name in clinics.names]
    assert len({path.read_text() for path in folders}) == 1


def test_a_page_that_a_kill_prevented_is_written_by_the_next_join(tmp_path, kills):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=1)
    results = clinics.run(agreement)
    page = clinics.run_folder(agreement, "Hill") / "report.html"
    text = page.read_text()
    page.unlink()
    assert clinics.join(agreement, "Hill", resume=True) == results["Hill"]
    shown = re.sub(r'"unchecked":\{.*?\}', "", page.read_text())
    assert shown == re.sub(r'"unchecked":\{.*?\}', "", text)


def test_a_member_sees_at_home_what_it_would_reach_alone(sotto, tmp_path, kills):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=4)
    clinics.run(agreement)
    folder = clinics.run_folder(agreement, "Mercy")
    (tmp_path / "Hill.csv").unlink()
    line = f"peer join {tmp_path}/agreement.toml --folder {tmp_path}/Mercy --data {tmp_path}/Mercy.csv --baselines"
    code, out, err = sotto(line)
    assert (code, "accuracy of this member alone" in out) == (0, True), err
    stored = json.loads((folder / "baselines.json").read_text())
    fits(stored, "baselines.json")
    tables = {"Mercy": read_table(tmp_path / "Mercy.csv", agreement.data.columns)}
    run, node = build_agreement(agreement, tables).training_run, agreement.names.index("Mercy")
    alone = trained_by_hand(run.task, run.starting_models(np.array([node]))[0], run.task.shards.indices[node])
    assert stored["nodes"] == [{"node": "Mercy", "alone": alone, "without_noise": None}]
    assert "of this member alone" in (folder / "report.html").read_text()
    code, out, _ = sotto(f"compare {folder}")
    assert (code, "each alone" in out, "without noise" in out) == (0, True, False)


def test_alone_nothing_is_sent_and_nothing_spent_and_the_run_ends_incomplete(tmp_path, kills):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=500, more="longest_pause = 0.5")
    with pytest.raises(PeerLost, match="this run is incomplete") as end:
        clinics.join(agreement, "Hill", settings=ALONE)
    assert end.value.exit_code == 1
    with clinics.ledger("Hill") as database:
        assert Steps(database, agreement.hash).newest() is None
        assert Spending(database).lineage(DEFAULT).counted.epsilon(1e-5) == 0.0
    paused = [facts for event, facts in clinics.events["Hill"] if event == "pause"]
    assert paused == [{"members": ["Mercy"], "round": 0, "least": 1}]


def test_who_is_left_alone_in_a_run_spends_one_round_and_no_more(tmp_path, kills):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=500, more="longest_pause = 0.5")
    kills.planned.add(("Mercy", KEPT, Place(2, 0)))
    ends = clinics.run(
        agreement, {name: lambda name=name: clinics.join(agreement, name, settings=ALONE) for name in clinics.names}
    )
    assert {type(end) for end in ends.values()} == {Killed, PeerLost}
    for name in ("Hill", "North"):
        with clinics.ledger(name) as database:
            assert Steps(database, agreement.hash).newest().round in (2, 3)
            assert Spending(database).recorded(agreement.hash) < 50, "stages of 500 rounds have several rounds"


@pytest.mark.parametrize(("least", "heard"), [(2, 1), (3, 1)])
def test_nobody_has_to_hear_more_members_than_it_is_linked_to(tmp_path, least, heard):
    clinics = Clinics(tmp_path)
    with pytest.raises(InputError, match=f"least_heard = {least}; Hill hears {heard} "):
        clinics.agree(more=f"least_heard = {least}")
    assert clinics.agree(graph="complete:3", more="least_heard = 2").least_heard == 2


def test_status_says_of_which_round_attendance_is_and_whether_a_process_is_at_it(sotto, tmp_path, kills):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=2)
    clinics.run(agreement)
    (clinics.run_folder(agreement, "Hill") / "result.json").unlink()
    line = f"peer status --folder {tmp_path / 'Hill'}"
    _, out, _ = sotto(line)
    assert "clinics: heard and missing are about round 1, which ended at 2" in out
    assert "No process takes part for Hill now" in out
    with locked_identity(tmp_path / "Hill"):
        _, out, _ = sotto(line)
        assert "A process takes part for Hill." in out
        _, out, _ = sotto(f"{line} --json")
    found = json.loads(out)
    fits(found, "peer-status")
    assert (found["running"], found["runs"][0]["last_step"][-6:], found["problems"]) == (True, "+00:00", [])


def test_status_tells_a_health_check_what_somebody_should_look_after(sotto, tmp_path, kills):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=2)
    clinics.run(agreement)
    line = f"peer status --folder {tmp_path / 'Hill'} --exit-code"
    assert sotto(line)[0] == 0, "the run has ended"
    (clinics.run_folder(agreement, "Hill") / "result.json").unlink()
    assert sotto(line)[0] == 1, "nobody plays it"
    with locked_identity(tmp_path / "Hill"):
        assert sotto(line)[0] == 0
        long_ago = time.time() - 120.0
        os.utime(clinics.run_folder(agreement, "Hill") / "attendance.jsonl", (long_ago, long_ago))
        assert sotto(f"{line} --stalled 100")[0] == 1
        assert sotto(f"{line} --stalled 200")[0] == 0
    assert sotto(f"peer status --folder {tmp_path / 'Hill'}")[0] == 0


def test_a_certificate_that_ends_soon_is_told_to_all_before(sotto, tmp_path, kills, monkeypatch):
    monkeypatch.setattr("sottovoce.federation.identity.VALID", datetime.timedelta(days=20))
    clinics = Clinics(tmp_path, ("Hill", "Mercy"))
    agreement = clinics.agree(rounds=2)
    clinics.run(agreement)
    told = [facts["member"] for event, facts in clinics.events["Hill"] if event == "certificate_ends"]
    assert told == ["Hill", "Mercy"]
    (clinics.run_folder(agreement, "Hill") / "result.json").unlink()
    _, out, _ = sotto(f"peer status --folder {tmp_path / 'Hill'} --json")
    assert [problem for problem in json.loads(out)["problems"] if "certificate of Mercy ends on 20" in problem]


@pytest.mark.parametrize("ledger", ["older", "gone"])
def test_a_ledger_that_is_behind_the_runs_own_folder_is_refused_where_no_neighbour_is(tmp_path, kills, ledger):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=3)
    kills.planned |= {("Hill", KEPT, Place(0, 0)), ("Hill", UNSTORED, Place(2, 0))}
    files = [tmp_path / "Hill" / f"ledger.db{end}" for end in ("", "-wal", "-shm")]

    def hill():
        with pytest.raises(Killed):
            clinics.join(agreement, "Hill", settings=PATIENT)
        copies = {path: path.read_bytes() for path in files if path.exists()}
        with pytest.raises(Killed):
            clinics.join(agreement, "Hill", settings=PATIENT, resume=True)
        for path in files:
            path.unlink(missing_ok=True)
        for path, content in copies.items() if ledger == "older" else ():
            path.write_bytes(content)
            path.chmod(0o600)

    others = {name: lambda name=name: clinics.join(agreement, name, settings=PATIENT) for name in ("Mercy", "North")}
    ends = clinics.run(agreement, {"Hill": hill, **others})
    assert [end for end in ends.values() if isinstance(end, BaseException)] == []
    last = "round 0, step 0" if ledger == "older" else "none"
    for _ in range(2):
        with pytest.raises(InputError, match=f"has reached round 1, but the last step in this ledger is {last}"):
            clinics.join(agreement, "Hill", settings=PATIENT, resume=True)


def test_a_table_can_be_replaced_until_the_first_message(sotto, tmp_path, kills, monkeypatch):
    """Whoever gave a wrong one stops before round 1 and gives another; who has sent something goes on with its own."""
    monkeypatch.chdir(tmp_path)
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=3)
    right, wrong = (tmp_path / f"{name}.csv" for name in ("Hill", "Mercy"))
    line = f"peer join agreement.toml --data {wrong} --folder Hill"
    with monkeypatch.context() as interrupted:
        interrupted.setattr(MemberRun, "play", _interrupt)
        code, _, err = sotto(line)
    assert code == 130
    assert f"To go on, type sotto {line} --resume\n" in err
    results = clinics.run(agreement)
    assert results["Hill"]["heard"]["steps"] == 3
    with clinics.ledger("Hill") as database:
        (run,) = Spending(database).lineage(DEFAULT).runs
    assert run.round == 3
    shutil.copy(wrong, right)
    (clinics.run_folder(agreement, "Hill") / "result.json").unlink()
    with pytest.raises(InputError, match="other data than it began with"):
        clinics.join(agreement, "Hill", resume=True)


def _interrupt(*_):
    raise KeyboardInterrupt


def test_a_run_that_would_pass_the_budget_is_refused_with_the_rounds_that_would_fit(tmp_path, monkeypatch):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=4)
    little, enough = (
        QUICK.model_copy(update={"budget": BudgetSettings(epsilon=one, delta=1e-5)}) for one in (2.1, 9.0)
    )
    wanted = (
        "2 of its 4 rounds would still fit; no member .* alone: make a new agreement .* with a privacy.epsilon below 3"
    )
    with pytest.raises(Unaccountable, match=wanted) as refusal:
        clinics.join(agreement, "Hill", settings=little)
    assert refusal.value.exit_code == 3
    with clinics.ledger("Hill") as database:
        assert Spending(database).lineage(DEFAULT).runs == ()
    monkeypatch.setattr(MemberRun, "play", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        clinics.join(agreement, "Hill", settings=enough)
    with pytest.raises(Unaccountable, match=wanted):  # its figures are those of privacy.json now
        clinics.join(agreement, "Hill", settings=little)


def test_a_wrong_clock_ends_it_before_anything_is_begun(tmp_path, monkeypatch):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree()
    real = datetime.datetime
    for days, what in ((-30, "begins"), (5000, "ended")):

        class Clock(datetime.datetime):
            @classmethod
            def now(cls, zone=None, days=days):
                return real.now(zone) + datetime.timedelta(days=days)

        with monkeypatch.context() as wrong:
            wrong.setattr("sottovoce.federation.identity.datetime.datetime", Clock)
            with pytest.raises(
                InputError, match=f"the certificate of Hill {what} on .* the clock of this machine says"
            ):
                clinics.join(agreement, "Hill")
    assert not (tmp_path / "Hill" / "ledger.db").exists()


def test_an_agreement_with_other_keys_of_this_member_is_refused(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    clinics, others = Clinics(here), Clinics(there)
    with pytest.raises(InputError, match="the agreement has other keys of Hill"):
        clinics.join(others.agree(), "Hill")


def test_members_with_different_agreements_exchange_nothing_and_both_say_so(tmp_path, kills):
    clinics = Clinics(tmp_path, ("Hill", "Mercy"))
    one, other = clinics.agree(), clinics.agree()
    ends = clinics.play({
        "Hill": lambda: clinics.join(one, "Hill", settings=PATIENT),
        "Mercy": lambda: clinics.join(other, "Mercy", settings=PATIENT),
    })  # fmt: skip
    for name, neighbour in (("Hill", "Mercy"), ("Mercy", "Hill")):
        assert isinstance(ends[name], InputError), ends[name]
        assert f"{neighbour} has another agreement than agreement.toml: " in str(ends[name])
        assert f"--folder {tmp_path / name} --against {neighbour}.agreement.toml" in str(ends[name])
        assert "it differs in nonce;" in str(ends[name])
        with clinics.ledger(name) as database:
            found = Spending(database).lineage(DEFAULT)
        assert (len(found.runs), found.counted.epsilon(1e-5)) == (1, 0.0), "nothing was sent: nothing stays reserved"
    assert kills.seen == {}


def test_who_is_told_of_another_agreement_by_one_neighbour_waits_for_the_others(tmp_path, kills):
    """It may be a lie: nothing is sent, and nobody is told that trying again does not help."""
    clinics = Clinics(tmp_path)
    one, other = (clinics.agree(more="longest_pause = 0.5") for _ in range(2))
    settings = PATIENT.model_copy(update={"gather": 5.0})
    ends = clinics.play({
        name: lambda name=name: clinics.join(one if name == "Hill" else other, name, settings=settings)
        for name in ("Hill", "Mercy")
    })  # fmt: skip
    assert (type(ends["Hill"]), type(ends["Mercy"])) == (InputError, PeerLost)
    assert any(event == "OtherAgreement" for event, _ in clinics.events["Mercy"])
    assert kills.seen == {}


def test_a_single_member_with_another_agreement_stops_nobody_else(tmp_path, kills):
    clinics = Clinics(tmp_path)
    one, other = clinics.agree(graph="complete:3"), clinics.agree(graph="complete:3")
    ends = clinics.play({
        name: lambda name=name: clinics.join(other if name == "Mercy" else one, name, settings=PATIENT)
        for name in clinics.names
    })  # fmt: skip
    assert isinstance(ends["Mercy"], InputError)
    for name in ("Hill", "North"):
        assert ends[name]["heard"]["members"] == {"Mercy": 0, ({"Hill", "North"} - {name}).pop(): 4}
        assert ("OtherAgreement", {"member": "Mercy", "reason": Reason.AGREEMENT.value}) in clinics.events[name]
    assert not any(1 in (receiver, sender) for receiver, sender, _ in kills.seen)


def test_a_folder_that_was_restored_from_a_copy_is_refused_by_a_neighbours_receipt(tmp_path, kills):
    """And counts two releases, where it joins another agreement."""
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=5)
    kills.planned |= {("Hill", KEPT, Place(0, 0)), ("Hill", UNSTORED, Place(3, 0))}
    copy = tmp_path / "copy of Hill"

    def hill():
        with pytest.raises(Killed):
            clinics.join(agreement, "Hill")
        shutil.copytree(tmp_path / "Hill", copy)
        with pytest.raises(Killed):
            clinics.join(agreement, "Hill", resume=True)
        shutil.rmtree(tmp_path / "Hill")
        copy.rename(tmp_path / "Hill")
        return clinics.join(agreement, "Hill", resume=True)

    def other(name):
        return lambda: clinics.join(agreement, name, settings=PATIENT)

    ends = clinics.run(agreement, {"Hill": hill, "Mercy": other("Mercy"), "North": other("North")})
    assert isinstance(ends["Hill"], InputError)
    assert "Mercy has a message of round 2, step 0, but the last one in this ledger is of round 0, step 0" in str(
        ends["Hill"]
    )
    assert {len(digests) for digests in kills.seen.values()} == {1}, "no second release went out"
    with clinics.ledger("Hill") as database:
        assert Spending(database).recorded(agreement.hash) >= 3, "what neighbours have is counted, recorded or not"

    results = clinics.run(clinics.agree(rounds=2))
    with clinics.ledger("Hill") as database:
        found = Spending(database).lineage(DEFAULT)
    assert len(found.runs) == 2
    assert found.counted.epsilon(1e-5) > 1.3 * results["Hill"]["headline"]["epsilon"]


@pytest.mark.parametrize("later", [1, 0])
def test_a_neighbour_that_forges_receipts_is_named_and_stops_nobody(tmp_path, monkeypatch, later):
    """Of places that the victim has not reached, or of other bytes: it goes on without the liar."""
    acknowledgement = Links._acknowledgement

    def forged(links, receipt):
        if links.rules.member == 1:
            receipt = receipt._replace(place=Place(receipt.place.round + later, 0), digest=bytes(32))
        return acknowledgement(links, receipt)

    monkeypatch.setattr(Links, "_acknowledgement", forged)
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(graph="complete:3", rounds=6, more="longest_pause = 2.0")
    results = clinics.run(
        agreement, {name: lambda name=name: clinics.join(agreement, name, settings=PATIENT) for name in clinics.names}
    )
    for name in ("Hill", "North"):
        assert results[name]["rounds"] == 6
        refused = [facts for event, facts in clinics.events[name] if event == "FrameRefused"]
        assert {(facts["member"], facts["reason"]) for facts in refused} == {("Mercy", Reason.RECEIPT.value)}
        assert [facts["member"] for event, facts in clinics.events[name] if event == "Lost"] == ["Mercy"]
    assert "this run is incomplete" in str(results["Mercy"]), "nobody listens to it any more"


def test_what_is_not_proven_for_members_is_refused(tmp_path):
    clinics = Clinics(tmp_path)
    with pytest.raises(Unaccountable):
        clinics.join(clinics.agree('name = "zip-dl"\nstep_size = 0.5'), "Hill")


def test_noise_that_is_correlated_over_rounds_goes_on_after_a_kill_and_is_erased_at_the_end(tmp_path, kills):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree('name = "anti-pgd"\nstep_size = 0.5', rounds=3)
    kills.planned |= {("Hill", KEPT, Place(0, 0)), ("Hill", UNSTORED, Place(1, 0))}
    results = clinics.run(
        agreement, {"Hill": lambda: kills.survived(lambda resume: clinics.join(agreement, "Hill", resume=resume))}
    )
    assert {result["rounds"] for result in results.values()} == {3}
    assert kills.deaths == 2
    for name in clinics.names:
        with clinics.ledger(name) as database:
            assert Steps(database, agreement.hash).noise() == {}
