"""`sotto run --ledger`, `sotto ledger`, `sotto account RUN RUN`: budgets hold, and figures are those of the files."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil

import pytest

from sottovoce.cli import run as run_command
from sottovoce.core.participation import Adjacency
from sottovoce.ledger.lineages import Budget, Lineage, PlannedRun, RunSpending, Stage
from sottovoce.privacy.composition import GaussianLoss, SampledLoss, compose
from sottovoce.privacy.rounding import round_down, round_up
from sottovoce.run import execute
from tests.cli.test_schemas import fits

DELTA = 1e-5
TOML = """
name = "try"
data.rows = 12
topology.graph = "ring:4"
metrics = {every = 2, test_rows = 20}
algorithm = {name = "dp-d-sgd", sigma = 4.0}
training = {rounds = 6, batch = "cycle:3x2", clip = "per-example", bound = 1.0}
privacy.attackers = [0]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "try.toml").write_text(TOML)
    (tmp_path / "bare.toml").write_text(TOML.replace(', clip = "per-example", bound = 1.0', ""))
    return tmp_path


def mu_of(folder, out):
    return json.loads((folder / out / "try" / "privacy.json").read_text())["loss"]["mu"]


def test_a_run_reserves_spends_and_is_refused_beyond_the_budget(folder, sotto):
    assert sotto("run try.toml --out plain")[0] == 0
    mu = mu_of(folder, "plain")
    needed = compose([GaussianLoss(mu)] * 2).epsilon(DELTA)
    assert sotto(f"ledger my.ledger --budget {needed!r}")[0] == 0
    for out in ("one", "two"):
        code, _, err = sotto(f"run try.toml --ledger my.ledger --out {out}")
        assert (code, err) == (0, "")
    code, out, err = sotto("run try.toml --ledger my.ledger --out three")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "not one round would still fit" in err
    assert not (folder / "three").exists()
    code, out, _ = sotto("ledger my.ledger --json")
    document = json.loads(out)
    fits(document, "ledger")
    (lineage,) = document["lineages"]
    assert (lineage["counted"], lineage["spent"], lineage["budget"]) == (needed, needed, needed)
    assert [run["state"] for run in lineage["runs"]] == ["finished", "finished"]
    rows = list(csv.DictReader(io.StringIO(sotto("ledger my.ledger --csv")[1])))
    assert [int(row["round"]) for row in rows] == [1, 2, 4, 6] * 2
    assert float(rows[-1]["epsilon_of_lineage"]) == needed
    assert float(rows[3]["epsilon_spent"]) == compose([GaussianLoss(mu)]).epsilon(DELTA)
    assert "Of several runs, mu squared adds" in sotto("ledger my.ledger")[1]
    code, out, err = sotto("ledger my.ledger --csv --json")
    assert (code, out, "--csv with --json" in err) == (2, "", True)


def test_lines_of_metrics_say_what_has_been_spent(folder, sotto):
    assert sotto("run try.toml --set training.rounds=5")[0] == 0
    privacy = json.loads((folder / "runs/try/privacy.json").read_text())
    known = {0: 0.0} | {one["round"]: one["epsilon"] for one in privacy["over_rounds"]}
    lines = [json.loads(line) for line in (folder / "runs/try/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 2, 4, 5]
    assert [line["epsilon"]["spent"] for line in lines] == [known[line["round"]] for line in lines]
    assert {line["epsilon"]["planned"] for line in lines} == {privacy["headline"]["epsilon"]}
    text = run_command._spent_text(folder / "runs/try")
    assert text(5).startswith("epsilon ")
    assert text(3) == text(4) != text(5)


def test_a_stopped_run_gives_back_and_goes_on_in_its_ledger_only(folder, sotto, monkeypatch):
    """A killed one does not give back: its ledger is left as it is copied here."""
    real = execute.epsilon_in_line

    def stop(privacy, round):
        if round == 2:
            for end in ("", "-wal"):
                shutil.copy(f"my.ledger{end}", f"killed.ledger{end}")
            raise KeyboardInterrupt
        return real(privacy, round)

    monkeypatch.setattr(execute, "epsilon_in_line", stop)
    assert sotto("run try.toml --ledger my.ledger")[0] == 130
    monkeypatch.setattr(execute, "epsilon_in_line", real)
    mu = mu_of(folder, "runs")
    (lineage,) = json.loads(sotto("ledger my.ledger --json")[1])["lineages"]
    (killed,) = json.loads(sotto("ledger killed.ledger --json")[1])["lineages"]
    assert (killed["runs"][0]["state"], killed["runs"][0]["recorded"]) == ("reserved", 2)
    assert killed["counted"] == compose([GaussianLoss(mu)]).epsilon(DELTA)
    assert lineage["runs"][0]["state"] == "stopped"
    assert lineage["counted"] == pytest.approx(compose([GaussianLoss(mu / math.sqrt(3))]).epsilon(DELTA))
    code, _, err = sotto("run try.toml --resume")
    assert (code, "go on with --ledger FILE" in err) == (2, True)
    assert sotto("run try.toml --resume --ledger my.ledger")[0] == 0
    (lineage,) = json.loads(sotto("ledger my.ledger --json")[1])["lineages"]
    assert lineage["counted"] == compose([GaussianLoss(mu)]).epsilon(DELTA)
    assert sotto("run try.toml --ledger my.ledger")[0] == 0


def test_a_ledger_that_was_put_back_is_refused_by_the_run_that_is_ahead_of_it(folder, sotto, monkeypatch):
    """The folder of a run serves as a receipt: before the run was entered, in the middle, and after its end."""
    real = execute.epsilon_in_line

    def stop(privacy, round):
        if round == 2:
            for end in ("", "-wal"):
                shutil.copy(f"my.ledger{end}", f"middle.ledger{end}")
        if round == 4:
            raise KeyboardInterrupt
        return real(privacy, round)

    assert sotto("ledger my.ledger --budget 60.5")[0] == 0
    shutil.copy("my.ledger", "before.ledger")
    monkeypatch.setattr(execute, "epsilon_in_line", stop)
    assert sotto("run try.toml --ledger my.ledger")[0] == 130
    monkeypatch.setattr(execute, "epsilon_in_line", real)
    for older, words in (("before", "0 rounds, but this one does not have it"), ("none", "this one does not have it"),
                         ("middle", "3 rounds, but this one has recorded 2")):  # fmt: skip
        code, out, err = sotto(f"run try.toml --resume --ledger {older}.ledger")
        assert (code, out, words in err) == (2, "", True)
    assert not (folder / "none.ledger").exists()
    assert sotto("run try.toml --resume --ledger my.ledger")[0] == 0
    assert "epsilon 60.5 at" in sotto("ledger my.ledger")[1]
    for older, words in (("before", "6 rounds, but this one does not have it"), ("middle", "has recorded 2")):
        code, out, err = sotto(f"run try.toml --ledger {older}.ledger")
        assert (code, out, words in err) == (2, "", True)


def test_a_run_that_was_killed_as_soon_as_it_was_entered_is_not_counted_twice(folder, sotto, monkeypatch):
    assert sotto("run try.toml --out plain")[0] == 0
    assert (
        sotto(f"ledger my.ledger --budget {compose([GaussianLoss(mu_of(folder, 'plain'))]).epsilon(DELTA)!r}")[0] == 0
    )

    def stop(*_):
        for end in ("", "-wal"):
            shutil.copy(f"my.ledger{end}", f"killed.ledger{end}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(execute, "_prepare_folder", stop)
        assert sotto("run try.toml --ledger my.ledger")[0] == 130
    assert sotto("run try.toml --ledger killed.ledger --out other")[0] == 3
    assert sotto("run try.toml --ledger killed.ledger")[0] == 0
    (lineage,) = json.loads(sotto("ledger killed.ledger --json")[1])["lineages"]
    assert [run["state"] for run in lineage["runs"]] == ["finished"]


def test_several_runs_together(folder, sotto):
    sotto("run try.toml --out one")
    sotto("run try.toml --out two --set seed=0 --set training.batch=poisson:0.5")
    code, out, _ = sotto("account one/try two/try --json")
    document = json.loads(out)
    fits(document, "account")
    sampled = json.loads((folder / "two/try/privacy.json").read_text())["loss"]
    losses = [GaussianLoss(mu_of(folder, "one")), SampledLoss(sampled["noise"], sampled["share"], 6)]
    assert code == 0
    assert document["figures"][0]["epsilon"] == compose(losses).epsilon(DELTA)
    assert document["figures"][0]["change"] == "zero-out"
    assert [one["view"] for one in document["figures"]][:2] == ["everyone", "node:0"]
    assert document["figures"][1]["epsilon"] <= document["figures"][0]["epsilon"]
    one = json.loads(sotto("account one/try --json")[1])
    assert one["figures"][0]["mu"] == mu_of(folder, "one")
    sotto("run try.toml --out three --set seed=1")
    code, out, _ = sotto("account one/try three/try")
    assert (code, "no figure for single nodes" in out, "node:0" in out) == (0, True, False)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("account", 2, "no --graph"),
        ("account nowhere", 2, "no run"),
        ("account nowhere --graph ring:4", 2, "--graph with runs"),
        ("ledger none.ledger", 2, "no such file"),
        ("ledger my.ledger --budget 0", 2, "it must be positive and finite"),
        ("run try.toml --lineage b", 2, "--lineage without --ledger"),
        ("run try.toml --ledger my.ledger --lineage b", 2, "--new-lineage b"),
        ("run try.toml --ledger my.ledger --set seeds=[0,1]", 2, "one run is entered at a time"),
        ("run bare.toml --ledger my.ledger", 3, "no ledger can say what it costs"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(folder, sotto, line, code, words):
    found, out, err = sotto(line)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert words in err


def test_one_lineage_is_shown_alone_and_a_budget_says_what_it_was_and_by_how_much_it_is_passed(folder, sotto):
    assert sotto("run try.toml --ledger my.ledger")[0] == 0
    spent = compose([GaussianLoss(mu_of(folder, "runs"))]).epsilon(DELTA)
    code, out, err = sotto("ledger my.ledger --new-lineage b --lineage b --budget 2")
    assert (code, "lineage b" in out, "lineage data" in out, err) == (0, True, False, "")
    assert [one["lineage"] for one in json.loads(sotto("ledger my.ledger --lineage b --json")[1])["lineages"]] == ["b"]
    assert sotto("ledger my.ledger --lineage b --csv")[1].count("\n") == 1
    code, out, err = sotto("ledger my.ledger --lineage dtaa")
    assert (code, out, "my.ledger has: data, b" in err) == (2, "", True)
    assert sotto(f"ledger my.ledger --budget {spent!r}")[1].count("no further run fits") == 1, "and no run of mu 0"
    code, out, err = sotto("ledger my.ledger --budget 0.5")
    assert (
        err
        == f"The budget of lineage data was epsilon {spent!r} at delta 1e-05, and is epsilon 0.5 at delta 1e-05 now.\n"
    )
    assert f"Budget: epsilon 0.5 at delta 1e-05; passed by {round_up(spent - 0.5)}.\n" in out


def test_a_lineage_that_nobody_declared_is_refused_and_no_file_is_left(folder, sotto):
    for command in ("run try.toml --ledger new.ledger --lineage other", "ledger new.ledger --budget 2 --lineage other"):
        code, _, line = sotto(command)
        assert (code, "type sotto ledger new.ledger --new-lineage other" in line) == (2, True)
        assert sorted(path.name for path in folder.iterdir()) == ["bare.toml", "try.toml"]


def test_a_key_that_another_run_of_the_ledger_had_is_refused(folder, sotto):
    (folder / "named.toml").write_text(f'noise_key = "{"5a" * 16}"\n' + TOML)
    assert sotto("run named.toml --ledger my.ledger --out one")[0] == 0
    code, _, line = sotto("run named.toml --ledger my.ledger --out two --set training.bound=2.0")
    assert (code, "its noise key was used by run try" in line) == (2, True)
    assert not (folder / "two").exists()
    assert sotto("run named.toml --ledger my.ledger --out three --set training.bound=2.0 --set seed=1")[0] == 0


def test_what_fits_is_an_epsilon_that_fits_and_runs_say_what_their_records_have_spent(folder, sotto):
    """After epsilon 4 of 6, one of 4 fits: what is left is no difference."""
    study = "run try.toml --ledger my.ledger --set privacy.epsilon=4.0 --set name={}"
    (folder / "try.toml").write_text(TOML.replace(", sigma = 4.0", ""))
    assert sotto("ledger my.ledger --budget 6")[0] == 0
    assert sotto(study.format("first"))[0] == 0
    (found,) = json.loads(sotto("ledger my.ledger --json")[1])["lineages"]
    assert found["left"] < 2.01
    assert 4.0 < found["fits"] < 4.05
    assert f"epsilon up to {round_down(found['fits'])} fits" in sotto("ledger my.ledger")[1]
    for epsilon, code in ((found["fits"] * 1.01, 3), (round_down(found["fits"]), 0)):
        assert sotto(study.format("second") + f" --set privacy.epsilon={epsilon}")[0] == code
    in_all = json.loads((folder / "runs/second/result.json").read_text())["spent_in_all"]
    assert [one["run"] for one in in_all["runs"]] == ["first", "second"]
    assert in_all["epsilon"] == json.loads(sotto("ledger my.ledger --json")[1])["lineages"][0]["spent"]
    assert 5.9 < in_all["epsilon"] <= 6
    page = (folder / "runs/second/report.html").read_text()
    assert f"epsilon {round_up(in_all['epsilon'])} in all" in page
    assert "spent_in_all" not in json.loads((folder / "runs/second/config.json").read_text())


def test_what_is_said_to_fit_beside_sampled_batches_fits(tmp_path):
    sampled = SampledLoss(noise=4.0, share=0.1, rounds=20)
    run = RunSpending("data", planned_with(sampled), 20, is_open=False)
    found = Lineage("data", Budget(4.0, DELTA), (run,))
    assert found.mu_left() > 0.3
    assert compose([sampled, GaussianLoss(found.mu_left())]).epsilon(DELTA) <= 4.0
    assert Lineage("data", Budget(0.01, DELTA), (run,)).epsilon_fits() == 0


def planned_with(loss) -> PlannedRun:
    return PlannedRun(
        run="a", name="sampled", rounds=20, loss=loss, stages=(Stage(20, loss),), refundable=False,
        adjacency=Adjacency.RECORD, data="data",
    )  # fmt: skip
