"""`sotto peer init` and `sotto peer agree`, and the simulation of what was agreed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from sottovoce.federation.member import read_member
from tests.cli.test_schemas import fits
from tests.federation.federation import COLUMNS, ROWS, SETTINGS, prepare, write_tables


@pytest.fixture
def clinics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    return tmp_path


def test_from_keys_to_a_simulation(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text(SETTINGS)
    (tmp_path / "patients.columns.toml").write_text(COLUMNS)
    spoken = {}
    for name in ROWS:
        code, out, err = sotto(f"peer init {name} --address {name}.example:7443 --folder {name} --json")
        assert (code, err) == (0, "")
        fits(json.loads(out), "peer-init")
        spoken[name] = json.loads(out)["fingerprint"].replace(" ", "").lower()
    files = " ".join(f"{name}.member.toml" for name in ROWS)
    code, out, err = sotto(f"peer agree settings.toml {files} --json")
    assert (code, err) == (0, "")
    agreed = json.loads(out)
    fits(agreed, "peer-agree")
    assert {member["name"]: member["fingerprint"] for member in agreed["members"]} == spoken
    code, out, err = sotto(f"run agreement.toml --data {write_tables(tmp_path)} --json")
    assert (code, err) == (0, "")
    assert json.loads(out)["headline"]["epsilon"] == agreed["headline"]["epsilon"]
    assert json.loads((tmp_path / "runs" / "clinics" / "privacy.json").read_text())["sigma"] == agreed["sigma"]


def test_what_agree_prints(sotto, clinics):
    code, out, _ = sotto("peer agree settings.toml Hill.member.toml Mercy.member.toml North.member.toml")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.split()}
    assert "Hill, North" in rows["Mercy"]
    assert "epsilon 3 about" in rows["Mercy"]
    assert "That is epsilon 3 at delta 1e-05" in rows["Proven:"]
    before = (clinics / "agreement.toml").read_text()
    code, _, err = sotto("peer agree settings.toml Hill.member.toml Mercy.member.toml North.member.toml")
    assert (code, "never overwritten" in err) == (2, True)
    assert (clinics / "agreement.toml").read_text() == before


def test_a_range_that_noise_is_likely_to_leave_is_named(sotto, clinics):
    narrow = SETTINGS.replace("seed = 3", "seed = 3\nmessage_range = [-10.0, 1.0]")
    said = []
    for number, text in enumerate([SETTINGS, narrow]):
        (clinics / "settings.toml").write_text(text)
        code, _, err = sotto(
            f"peer agree settings.toml {' '.join(f'{name}.member.toml' for name in ROWS)} --out {number}.toml"
        )
        assert code == 0
        said.append("leaves message_range, -10 to 1, stops" in " ".join(err.split()))
    assert said == [False, True]


def test_secure_sums_from_the_agreement_to_fingerprints_and_a_simulation(sotto, clinics):
    sums = SETTINGS.replace('graph = "path:3"', 'graph = "complete:3"\nweights = "uniform"')
    (clinics / "settings.toml").write_text("secure_sum = true\n" + sums.replace("dp-d-sgd", "dp-fedavg"))
    code, out, err = sotto("peer agree settings.toml Hill.member.toml Mercy.member.toml North.member.toml")
    assert (code, "is restored from a copy while all its neighbours but one lie" in err) == (0, True)
    assert "One missing member makes every sum fail in that round" in err
    assert "every single node; larger coalitions are not covered" in out, out
    code, _, err = sotto("peer join agreement.toml --folder Hill --data none.csv")
    assert (code, "none.csv: No such file; a table is read from it; check the path" in err) == (2, True)
    table = write_tables(clinics) / "Hill.csv"
    code, _, err = sotto(f"peer join agreement.toml --folder Hill --data {table}")
    assert (code, "fingerprints of clinics were not confirmed" in err) == (2, True)
    assert "type sotto peer check agreement.toml --folder Hill to see them" in err
    code, _, err = sotto("peer check agreement.toml --folder Hill")
    fingerprint = read_member(clinics / "Mercy.member.toml").spoken_fingerprint
    told = "If all of them are right, type: sotto peer check agreement.toml --folder Hill --confirmed"
    assert (code, f"Mercy  {fingerprint}" in err, told in err) == (1, True, True)
    _, _, err = sotto(told.partition("sotto ")[2])
    assert fingerprint not in err
    assert "Noted in Hill/confirmed.json: the fingerprints of all 3 members were compared and are right." in err
    assert json.loads((clinics / "Hill" / "confirmed.json").read_text()).popitem()[1]["Mercy"] == fingerprint
    code, out, err = sotto(f"run agreement.toml --data {table.parent} --json")
    assert (code, err, json.loads(out)["algorithm"]) == (0, "", "secure-average")


REFUSED = [
    ("peer init Hill --no-listen --folder other", "Hill.member.toml exists"),
    ("peer init West --folder other", "West listens and has no address"),
    ("peer init We/st --folder other", "at most 63 bytes"),
    ("peer agree settings.toml Hill.member.toml", "[rows] names Mercy"),
    ("peer agree settings.toml settings.toml", "settings.toml: seed; there is no such key"),
    ("peer agree nothing.toml Hill.member.toml", "nothing.toml: No such file"),
    ("peer agree setings.toml Hill.member.toml --out settings.toml", "setings.toml: No such file"),
    ("peer agree settings.toml Hil.member.toml", "Hil.member.toml: No such file; every member provides its NAME"),
    ("peer check agreement.toml --folder Hill --wait nan", "nan is not a number of seconds"),
    ("peer join agreement.toml --folder Hill --data t.csv --patience inf", "inf is not a number of seconds"),
]


@pytest.mark.parametrize(("line", "reason"), REFUSED, ids=[line for line, _ in REFUSED])
def test_refusals_are_one_line_and_leave_nothing(sotto, clinics, line, reason):
    code, out, err = sotto(line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
    assert not (clinics / "other").exists()
    assert not (clinics / "agreement.toml").exists()


def test_a_table_that_does_not_fit_is_refused_before_anything_runs(sotto, clinics):
    sotto("peer agree settings.toml Hill.member.toml Mercy.member.toml North.member.toml")
    data = write_tables(clinics)
    table = data / "Mercy.csv"
    table.write_text(table.read_text().replace(",east,", ",cellar,", 1))
    code, out, err = sotto(f"run agreement.toml --data {data}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "column 'ward': 'cellar'; categories are east, west" in err
    table.unlink()
    code, _, err = sotto(f"run agreement.toml --data {data}")
    assert (code, "no table called Mercy" in err) == (2, True)
    assert not (clinics / "runs").exists()


def test_without_the_extra_one_line_says_what_to_type(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr("sottovoce.errors.find_spec", lambda name: None if name == "grpc" else found(name))
    code, out, err = sotto("peer init Hill --address hill.example:7443")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert 'pip install "sottovoce[peers]"' in err
    assert list(tmp_path.iterdir()) == []


def test_other_commands_load_neither_grpc_nor_cryptography(clinics, sotto):
    sotto("peer agree settings.toml Hill.member.toml Mercy.member.toml North.member.toml")
    code = (
        "import sys, pathlib, sottovoce, sottovoce.cli\n"
        "from sottovoce.cli.run import _run_settings\n"
        "_run_settings(pathlib.Path('agreement.toml'))\n"
        "sys.exit(any(name in sys.modules for name in ('grpc', 'cryptography', 'pyarrow')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
