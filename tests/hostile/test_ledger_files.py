"""Files beside a ledger: what lies in their place is neither followed nor waited for, and a full disk is called one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sottovoce.ledger.database import BESIDE, open_ledger

KINDS = {
    "a link": lambda path, outside: path.symlink_to(outside / "taken"),
    "a link to nothing": lambda path, outside: path.symlink_to(outside / "nothing"),
    "a pipe": lambda path, outside: os.mkfifo(path),
    "a folder": lambda path, outside: path.mkdir(),
}
LINE = "ledger my.ledger --budget 4"


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder beside that of a ledger, which is the current one."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "taken").write_text("precious")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with open_ledger(Path("my.ledger")):
        pass
    return tmp_path / "outside"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_beside_a_ledger_is_refused(kind, outside, sotto):
    for end in (".lock", *BESIDE):
        beside = Path(f"my.ledger{end}")
        beside.unlink(missing_ok=True)
        KINDS[kind](beside, outside)
        for line in (LINE, *(("ledger my.ledger",) if end != ".lock" else ())):  # who only reads takes no lock
            code, out, err = sotto(line)
            assert (code, out, err.count("\n")) == (2, "", 1), err
            assert err.startswith(f"sotto: {beside} is "), err
        assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("taken", "precious")]
        beside.rmdir() if beside.is_dir() and not beside.is_symlink() else beside.unlink()
    assert sotto(LINE)[0] == 0


def test_a_ledger_that_cannot_be_made_for_want_of_room_says_so(outside, sotto, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sottovoce.ledger.database.open_to_append", full)
    code, out, err = sotto(LINE)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "my.ledger: the disk is full; " in err


@pytest.mark.parametrize("denied", ["my.ledger", "here"])
def test_a_missing_permission_is_no_failing_disk(denied, outside, sotto, monkeypatch):
    """As if another user owned the file, or the folder: tests that run as root may write everywhere."""

    def access(path, mode):
        return not (mode == os.W_OK and Path(path).name == denied)

    monkeypatch.setattr(os, "access", access)
    code, out, err = sotto(LINE)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert f"{denied}: Permission denied; " in err
    assert "give yourself the permission" in err
