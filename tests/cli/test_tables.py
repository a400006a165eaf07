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


def test_from_a_table_to_a_run(sotto, patients):
    code, out, err = sotto("data inspect patients.csv --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    fits(found, "data-inspect")
    assert found["target"] == "again"
    assert [column["categories"] for column in found["columns"]] == [None, None, ["0", "1"]]
    guess = patients / "patients.columns.toml"
    assert stat.S_IMODE(guess.stat().st_mode) == 0o600
    code, _, err = sotto("data inspect patients.csv")
    assert (code, "what you edited is not overwritten" in err) == (2, True)
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
    ("data.name=digits", "data.columns with digits; it is about tables"),
    ("data.name=tables", "data.name = tables with another partition"),
    ("data.shards={Hill=3}", "data.shards with table:patients.csv"),
]


@pytest.mark.parametrize(("setting", "reason"), REFUSED, ids=[setting for setting, _ in REFUSED])
def test_refusals(sotto, patients, setting, reason):
    sotto("data inspect patients.csv --json")
    code, out, err = sotto("run run.toml", "--set", setting)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
