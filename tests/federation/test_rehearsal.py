"""All members of an agreement on this machine, what each of them has done, and tables to try it with."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
import time

import pytest

from sottovoce.errors import InputError
from sottovoce.federation.agreement import Agreement, read_agreement
from sottovoce.federation.assembly import read_draft
from sottovoce.federation.joining import _keep_lines
from sottovoce.federation.rehearsal import _listening, _rehearsed
from sottovoce.learning.columns import read_columns
from sottovoce.learning.split_tables import split_table
from tests.cli.test_schemas import fits
from tests.docs.test_docs import ROOT
from tests.federation.federation import ROWS, agreement_in, prepare, write_tables


def test_a_rehearsed_agreement_has_the_same_settings_and_other_keys(tmp_path):
    agreed = agreement_in(tmp_path)
    document = agreed.document
    document["members"][2]["listen"] = False
    (tmp_path / "rehearsal").mkdir()
    path = tmp_path / "agreement.toml"
    names = _listening(document, path)
    found = _rehearsed(document, path, names, tmp_path / "rehearsal")
    assert isinstance(found, Agreement)
    assert [member.listen for member in found.members] == [True, True, False]
    assert all(member.address.startswith("127.0.0.1:") for member in found.members[:2])
    assert found.nonce != agreed.nonce
    assert not {member.certificate for member in found.members} & {member.certificate for member in agreed.members}
    same = {key for key in document if key not in ("nonce", "members")}
    assert {key: found.document[key] for key in same} == {key: document[key] for key in same}
    assert {member.name: member.rows for member in found.members} == ROWS


def test_tables_of_the_recipe_fit_it_and_share_no_row(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = ROOT / "recipes" / "hospitals.toml"
    code, out, err = sotto(f"data split breast-cancer {recipe} --out tables --json")
    assert (code, err) == (0, "")
    fits(json.loads(out), "data-split")
    draft, lines = read_draft(recipe), []
    for member in json.loads(out)["members"]:
        _, *rows = (tmp_path / member["file"]).read_text().splitlines()
        assert (len(rows), member["rows"]) == (member["rows"] + member["held_out"], draft.rows[member["name"]])
        lines += rows
    assert len(set(lines)) == len(lines) > 550
    code, out, err = sotto(f"data split breast-cancer {recipe} --out tables")
    assert (code, "never overwritten" in err) == (2, True)
    columns = read_columns(draft.data.columns, recipe.parent, "here")
    again = split_table("breast-cancer", columns, draft.rows, draft.seed)
    assert again["Hill"].text == (tmp_path / "tables" / "Hill.csv").read_text()
    assert split_table("breast-cancer", columns, draft.rows, 1)["Hill"].text != again["Hill"].text
    with pytest.raises(InputError, match="each holds out at least one"):
        split_table("breast-cancer", columns, {"Hill": 569}, 0)


def test_lines_of_rounds_that_are_played_again_are_taken_out(tmp_path):
    lines = tmp_path / "metrics.jsonl"
    lines.write_text('{"round": 1}\n{"round": 2}\n{"round": 3}\n{"roun')
    _keep_lines(lines, 2)
    assert lines.read_text() == '{"round": 1}\n{"round": 2}\n'
    assert stat.S_IMODE(lines.stat().st_mode) == 0o600
    _keep_lines(tmp_path / "none", 2)


def test_status_of_a_member_that_has_done_nothing(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    code, out, err = sotto("peer status --folder Hill --json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"member": "Hill", "runs": [], "lineages": []}
    assert sotto("peer status --folder Hill")[0] == 0


def test_agreements_are_compared(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = agreement_in(tmp_path).toml()
    (tmp_path / "one.toml").write_text(text)
    (tmp_path / "other.toml").write_text(re.sub("rounds = .*", "rounds = 7", text))
    code, out, err = sotto("peer check one.toml --folder Hill --against other.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "training.rounds" in err


@pytest.mark.slow
def test_three_members_rehearse(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    tables = write_tables(tmp_path)
    code, out, err = sotto(f"peer rehearse settings.toml --data {tables} --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    fits(found, "peer-rehearse")
    assert [one["round"] for one in found["members"]] == [found["rounds"]] * 3
    assert all(one["value"] is not None and one["missing"] == [] for one in found["members"])
    code, out, _ = sotto("peer status --folder rehearsal/Mercy --json")
    assert code == 0
    (run,) = json.loads(out)["runs"]
    fits(json.loads(out), "peer-status")
    assert (run["finished"], run["heard"]) == (True, ["Hill", "North"])
    assert run["epsilon_spent"] == run["epsilon_planned"]
    for member in ROWS:
        folder = tmp_path / "rehearsal" / member
        (result,) = folder.glob("runs/*/result.json")
        fits(json.loads(result.read_text()), "peer-join")
        assert "secret noise" in result.with_name("privacy.json").read_text()
        for path in (folder / "runs").rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    code, _, err = sotto(f"peer rehearse settings.toml --data {tables}")
    assert (code, "rehearsal exists" in err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_members_end_with_the_rehearsal(command, tmp_path, kind, code):
    prepare(tmp_path)
    text = (tmp_path / "settings.toml").read_text()
    (tmp_path / "settings.toml").write_text(re.sub("rounds = .*", "rounds = 100000", text))
    rehearsal = command(tmp_path, "peer", "rehearse", "settings.toml", "--data", str(write_tables(tmp_path)))
    deadline, lines = time.monotonic() + 300, []
    while len(lines) < 3 and time.monotonic() < deadline:
        lines = [*tmp_path.glob("rehearsal/*/runs/*/attendance.jsonl")]
        time.sleep(0.1)
    assert len(lines) == 3
    rehearsal.send_signal(kind)
    rehearsal.communicate()
    assert rehearsal.returncode == code
    ports = [member.address for member in read_agreement(tmp_path / "rehearsal" / "agreement.toml").members]
    deadline = time.monotonic() + 30
    for address in ports:
        while _answers(address) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not _answers(address)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as one:
        return one.connect_ex((host, int(port))) == 0
