"""`sotto data inspect`, and runs on one table."""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest

from tests.cli.test_schemas import fits

RUN = """
name = "patients"

[data]
name = "table:patients.csv"
columns = "patients.columns.toml"

[model]
name = "logistic"

[topology]
graph = "ring:4"

[algorithm]
sigma = 2.0

[training]
rounds = 3
clip = "bounded"

[privacy]
attackers = "none"
"""


@pytest.fixture
def patients(tmp_path, monkeypatch):
    """A table of patients whom age tells apart, and the settings of a run on it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [f"{number},{rng.integers(20, 90)},{number % 2}" for number in range(60)]
    (tmp_path / "patients.csv").write_text("\n".join(["patient,age,again", *lines]))
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def test_a_column_of_numbers_that_is_dropped_for_one_cell_names_it(sotto, patients):
    lines = [f"{number},{40 + number / 7:.3f},{number / 9},{number % 2}" for number in range(59)]
    (patients / "sodium.csv").write_text("\n".join(["patient,sodium,age,again", *lines, '59,"139,8",1,1']))
    code, out, _ = sotto("data inspect sodium.csv")
    assert code == 0
    assert "'139,8' is not a number" in out


def test_from_a_table_to_a_run(sotto, patients):
    code, out, err = sotto("data inspect patients.csv --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    fits(found, "data-inspect")
    assert found["target"] == "again"
    assert [column["categories"] for column in found["columns"]] == [None, ["0", "1"]]
    assert "name rows or people" in found["reasons"]["patient"]
    guess = patients / "patients.columns.toml"
    assert stat.S_IMODE(guess.stat().st_mode) == 0o600
    code, _, err = sotto("data inspect patients.csv")
    assert (code, "a file that you may have edited is not overwritten" in err) == (2, True)
    code, out, err = sotto("run run.toml --json")
    assert (code, err) == (0, "")
    first = json.loads((patients / "runs" / "patients" / "privacy.json").read_text())
    assert "not offered" not in first["convexity"]  # ranges bound the norm of rows

    table = patients / "patients.csv"
    table.write_text(table.read_text().replace("\n7,", "\n7000,").replace("\n8,", "\n8000,"))
    code, _, err = sotto("run run.toml --set name=other --json")
    assert (code, err) == (0, "")
    other = json.loads((patients / "runs" / "other" / "privacy.json").read_text())
    assert {**other, "fingerprint": ""} == {**first, "fingerprint": ""}


REFUSED = [
    ("data.columns=none.toml", "none.toml: No such file"),
    ("data.name=digits", "data.columns with digits; it is only for tables"),
    ("data.name=tables", "data.name = tables with another partition"),
    ("data.shards={Hill=3}", "data.shards with table:patients.csv"),
]


@pytest.mark.parametrize(("setting", "reason"), REFUSED, ids=[setting for setting, _ in REFUSED])
def test_refusals(sotto, patients, setting, reason):
    sotto("data inspect patients.csv --json")
    code, out, err = sotto("run run.toml", "--set", setting)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


FOLDER = """
[data]
name = "table:wards"
partition = "tables"
columns = {target = "again", columns = [
  {name = "age", range = [0, 120], missing = 50}, {name = "again", categories = ["no", "yes"]},
]}
"""


@pytest.fixture
def wards(tmp_path, monkeypatch):
    """A folder of four tables of 6, 9, 12 and 15 rows, and the settings of a run on it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wards").mkdir()
    for number, name in enumerate(("West", "Old Town", "North", "East")):
        lines = [f"{20 + (7 * row) % 70 or ''},{'yes' if row % 2 else 'no'}" for row in range(6 + 3 * number)]
        (tmp_path / "wards" / f"{name}.csv").write_text("\n".join(["age,again", *lines, ",no"]))
    before, _, after = RUN.partition("[data]")
    (tmp_path / "run.toml").write_text(before + FOLDER + "[model]" + after.partition("[model]")[2])
    return tmp_path


def test_a_folder_with_a_table_for_each_node(sotto, wards):
    code, _, err = sotto("run run.toml --json --set privacy.attackers=all")
    assert (code, err) == (0, "")
    folder = wards / "runs" / "patients"
    graph, config = (json.loads((folder / name).read_text()) for name in ("graph.json", "config.json"))
    assert graph["labels"] == ["East", "North", "Old Town", "West"]
    assert config["data"]["shards"] == {"East": 13, "North": 10, "Old Town": 8, "West": 6}
    sensitivities = json.loads((folder / "privacy.json").read_text())["sensitivity"]
    assert [round(sensitivities[0] * 13 / found, 6) for found in sensitivities] == [13, 10, 8, 6]
    assert "Old Town: 8 records, noise" in (folder / "report.html").read_text()
    (wards / "wards").rename(wards / "elsewhere")  # figures follow from the settings alone
    code, out, err = sotto("account runs/patients --json", "--view", "node:Old Town")
    assert (code, err) == (0, "")
    assert json.loads(out)["view"] == "node:2"
    code, out, err = sotto("compare runs/patients --json")
    assert (code, err) == (0, "")
    assert json.loads(out)["findings"] == []
    code, _, err = sotto("audit runs/patients --runs 0 --repetitions 100")
    assert (code, "is the file 'wards', and no folder was named" in err) == (2, True)


def test_a_plan_takes_its_question_from_a_run_file(sotto, wards):
    code, out, err = sotto("plan run.toml --epsilon 4 --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    fits(found, "plan")
    assert (found["records"], found["dimension"], found["rounds"]) == ([13, 10, 8, 6], 2, 3)
    assert (found["adjacency"], found["participation"], found["epsilon"]) == ("record", "every", 4.0)
    for line, reason in (
        ("plan run.toml", "patients without a target"),
        ("plan run.toml --epsilon 4 --records 3", "--records with run.toml; the run file already says this"),
        ("plan --graph ring:4 --epsilon 4", "no --records without a run file"),
        ("plan run.toml --serve", "FILE with --serve"),
        ("plan --graph ring:4 --serve --rounds 100", "--rounds with --serve"),
        ("plan --port 5", "--port without --serve"),
        ("plan --graph ring:4 --epsilon 4 --records 3 --data wards", "--data without a run file"),
    ):
        code, out, err = sotto(line)
        assert (code, out, err.count("\n")) == (2, "", 1), line
        assert reason in err
    run = wards / "run.toml"
    run.write_text(run.read_text().replace('graph = "ring:4"', 'graph = "ring:4"\ndropout = 0.1'))
    code, _, err = sotto("plan run.toml --epsilon 4")
    assert (code, "topology.dropout in a plan" in err) == (2, True)


NODES = [
    ("topology.graph=ring:5", "4 tables for the 5 nodes of ring:5"),
    ("topology.graph=edges:East--West,West--North,North--Quay", "no table or rows for node 'Quay'"),
    ("topology.graph=edges:East--West,West--North", "'Old Town' is no node of the graph"),
    ("data.partition=iid", "wards is a folder; if data.name is a folder, every node has the table of its name"),
    ("data.name=table:none", "none is not a folder"),
    ('data.shards={East=12,North=10,West=6,"Old Town"=10}', "Old Town: a table of 10 rows"),
]


@pytest.mark.parametrize(("setting", "reason"), NODES, ids=[setting for setting, _ in NODES])
def test_refusals_about_folders(sotto, wards, setting, reason):
    code, out, err = sotto("run run.toml", "--set", setting)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_refusals_name_the_row_in_a_folder(sotto, wards):
    (wards / "wards" / "North.csv").write_text("age,again\n31,no\nold,yes\n50,no\n")
    code, _, err = sotto("run run.toml")
    assert (code, "North.csv, row 2, column 'age': 'old'; a finite number is needed here" in err) == (2, True)
    code, _, err = sotto("data inspect wards --json")
    assert (code, "'old' is not a number" in err) == (2, True)
