"""All members of an agreement on this machine, what each of them has done, and tables to try it with."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import time

import pytest

from sottovoce.cli.peer import _fitting, _rehearsal_table
from sottovoce.errors import InputError
from sottovoce.federation.agreement import Agreement, read_agreement
from sottovoce.federation.assembly import read_draft
from sottovoce.federation.guarantees import account_run
from sottovoce.federation.joining import _keep_lines
from sottovoce.federation.member_folder import run_folder
from sottovoce.federation.rehearsal import MemberProgress, _failure, _listening, _progress, _rehearsed
from sottovoce.learning.columns import read_columns
from sottovoce.learning.tables import split_table
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


def test_a_rehearsal_that_cannot_begin_leaves_nothing_behind(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    tables = write_tables(tmp_path)
    (tmp_path / "settings.toml").write_text((tmp_path / "settings.toml").read_text().replace("path:3", "path:4"))
    code, out, err = sotto(f"peer rehearse settings.toml --data {tables}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "rehearsal").exists()


@pytest.mark.parametrize(
    ("code", "how", "exits"),
    [(2, "Hill ended with code 2: no", 2), (3, "code 3: no", 3), (-9, "Hill was ended by SIGKILL; ", 1)],
)
def test_why_a_member_has_ended_is_said(tmp_path, code, how, exits):
    (tmp_path / "Hill.messages").write_text("Mercy is connected.\nsotto: no\n")
    failure = _failure("Hill", code, tmp_path / "Hill.messages")
    assert (how in str(failure), failure.exit_code) == (True, exits)
    silent = str(_failure("Mercy", code, tmp_path / "Mercy.messages"))
    assert silent.endswith(f"is in {tmp_path}/Mercy.messages, its events are in {tmp_path}/Mercy.events.jsonl")


def test_a_table_fits_a_terminal_of_any_width(tmp_path):
    agreed = agreement_in(tmp_path)
    found = [
        MemberProgress("Hill", 12, False, 0, None, None, None, (), ()),
        MemberProgress("Mercy", 20, True, 0, None, None, None, (), ()),
        MemberProgress("North", 15, True, 3, "accuracy", 0.75, 1.5, ("Hill",), ("Mercy",)),
    ]
    table = _rehearsal_table(agreed, found)
    assert [row[1] for row in table] == ["round", "preparing", "waiting", "3 of 4"]
    wide = _fitting(table, 200)
    assert wide[-1].split() == ["North", "3", "of", "4", "0.750", "1.5", "Mercy", "1", "15"]
    for width in range(10, 100):
        lines = _fitting(table, width)
        assert max(map(len, lines)) < width
        assert all(line.startswith(whole[: min(width - 1, 15)]) for line, whole in zip(lines, wide, strict=True))


def test_what_is_shown_as_spent_is_never_below_what_is_recorded_for_the_round_at_hand(tmp_path):
    """A member that has played one round may have sent the next, which the ledger has at the figure of a later one."""
    agreed = agreement_in(tmp_path)
    privacy = account_run(agreed, {}, "Hill").privacy
    assert [one["round"] for one in privacy["over_rounds"]] == [1, 4]
    folder = run_folder(tmp_path / "Hill", agreed)
    folder.mkdir(parents=True)
    (folder / "privacy.json").write_text(json.dumps(privacy))
    assert _progress(tmp_path, agreed)[0].epsilon is None
    (folder / "attendance.jsonl").write_text('{"round": 0, "step": 0, "heard": [], "missing": []}\n')
    found = _progress(tmp_path, agreed)[0]
    assert (found.rounds, found.epsilon) == (1, privacy["headline"]["epsilon"])


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
    assert json.loads(out) == {"member": "Hill", "running": False, "runs": [], "lineages": [], "problems": []}
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
        assert f"of {found['rounds']} steps" in (result.with_name("report.html")).read_text()
    assert keys_left(tmp_path) == []
    code, _, err = sotto(f"peer rehearse settings.toml --data {tables}")
    assert (code, "rehearsal exists" in err) == (2, True)
    code, _, err = sotto("peer join rehearsal/agreement.toml --folder rehearsal/Hill --resume")
    assert (code, "no identity" in err) == (2, True)


def keys_left(folder):
    return [
        path for path in (folder / "rehearsal").rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    ]


@pytest.mark.slow
def test_a_member_that_fails_ends_the_rehearsal_with_its_reason(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    table = write_tables(tmp_path) / "Mercy.csv"
    table.write_text(re.sub(",[0-9]+,(east|west)", r",old,\1", table.read_text(), count=1))
    code, out, err = sotto(f"peer rehearse settings.toml --data {table.parent}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Mercy ended with code 2: " in err
    assert "row 1, column 'age': 'old'" in err
    assert keys_left(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 120])
def test_the_table_fills_on_a_terminal(tmp_path, width):
    prepare(tmp_path)
    tables = write_tables(tmp_path)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
    words = [sys.executable, "-m", "sottovoce", "peer", "rehearse", "settings.toml", "--data", str(tables), "--json"]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b"")).decode()
        assert len(json.loads(process.stdout.read())["members"]) == 3
    os.close(ours)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) < width
    assert any(re.match(r"Hill +preparing", line) for line in lines)
    assert any(re.match("Ctrl-C ends them", line) for line in lines)
    assert process.returncode == 0


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # nobody has it open any more
        return b""


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
    while (
        keys_left(tmp_path) and time.monotonic() < deadline
    ):  # of a rehearsal that was killed, members remove their own
        time.sleep(0.1)
    assert keys_left(tmp_path) == []


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as one:
        return one.connect_ex((host, int(port))) == 0
