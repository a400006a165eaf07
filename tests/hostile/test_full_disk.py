"""A disk that fills up at any write: exit code 1, one line that says so, and what was there before is kept."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

import pytest

from tests.hostile.mutations import SETTINGS

WRITES = ((os, "fsync"), (os, "replace"), (os, "mkdir"), (tempfile, "mkstemp"))
"""What every file and folder goes through before it is there."""


class Disk:
    """Writes are counted; from the one on that a test chooses, there is no room for any."""

    def __init__(self, monkeypatch):
        self.writes, self.room = 0, None
        for module, name in WRITES:
            monkeypatch.setattr(module, name, self._limited(getattr(module, name)))

    def leave_room_for(self, writes: int | None) -> None:
        self.writes, self.room = 0, writes

    def _limited(self, inner):
        def write(*arguments, **more):
            self.writes += 1
            if self.room is not None and self.writes > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return inner(*arguments, **more)

        return write


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("try.toml").write_text(SETTINGS)
    return tmp_path


def expect_full(code: int, out: str, err: str) -> None:
    assert (code, out, err.count("\n")) == (1, "", 1), (code, out, err)
    assert err.startswith("sotto: ")
    assert ": the disk is full; " in err
    assert "make room" in err


def half_written(folder: Path) -> list[Path]:
    return list(folder.rglob("*.part"))


def test_a_run_on_a_disk_that_fills_up_at_any_write_goes_on_when_there_is_room(sotto, place, disk):
    assert sotto("--quiet run try.toml --out whole")[0] == 0
    writes = disk.writes
    assert writes > 20
    for room in range(writes):
        disk.leave_room_for(room)
        expect_full(*sotto(f"--quiet run try.toml --out out{room}"))
        assert not half_written(place)
        if room % 6 == 0:
            disk.leave_room_for(None)
            code, _, err = sotto(f"--quiet run try.toml --resume --out out{room}")
            assert (code, err) == (0, "")
            for name in ("metrics.jsonl", "privacy.json"):
                whole, resumed = (Path(folder, "try", name).read_text() for folder in ("whole", f"out{room}"))
                assert without_seconds(resumed) == without_seconds(whole)


def without_seconds(text: str) -> list[str]:
    return [line.partition(', "seconds"')[0] for line in text.splitlines()]


COMMANDS = {
    "compare": "--quiet compare done --out page.html",
    "attack": "--quiet attack done --attack threshold --samples 10",
    "noise": "--quiet noise --graph ring:4 --participation 2x2 --no-cache --out c.npz",
    "all pairs": "--quiet account --graph ring:4 --rounds 3 --all-pairs --out pairs.jsonl",
}


@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
def test_a_command_on_a_disk_that_fills_up_at_any_write_keeps_what_was_there(line, sotto, place, trained, disk):
    shutil.copytree(trained(tomllib.loads(SETTINGS)), "done")
    for name in ("page.html", "c.npz"):
        Path(name).write_text("before")
    pairs = Path("pairs.jsonl")
    for _ in range(2):  # the first time a key of the user's own is made, too
        disk.leave_room_for(None)
        code, _, err = sotto(line)
        assert code == 0, err
        pairs.unlink(missing_ok=True)
    writes = disk.writes
    assert writes >= 3
    for name in ("page.html", "c.npz"):
        Path(name).write_text("before")
    for room in range(writes):
        disk.leave_room_for(room)
        expect_full(*sotto(line))
        assert not half_written(place)
        assert {Path(name).read_text() for name in ("page.html", "c.npz")} == {"before"}
        pairs.unlink(missing_ok=True)


def test_half_a_model_is_not_left_behind(sotto, place, trained, disk):
    done = trained(tomllib.loads(SETTINGS))
    disk.leave_room_for(None)
    assert sotto(f"export {done} --out whole")[0] == 0
    writes = disk.writes
    for room in range(writes):
        disk.leave_room_for(room)
        expect_full(*sotto(f"export {done} --out model"))
        assert not Path("model").exists()
    disk.leave_room_for(None)
    assert sotto(f"export {done} --out model")[0] == 0


def test_the_noise_cache_may_be_full(sotto, own_cache, disk):
    disk.leave_room_for(0)
    assert sotto("noise --graph ring:4 --participation 2x2")[0] == 0
    assert not list(own_cache.parent.rglob("*.npz"))


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own of 400 kB, where tests run as root."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = os.geteuid() == 0 and shutil.which("mount") is not None
    mounted = mounted and not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "none", place], capture_output=True, check=False
    ).returncode  # fmt: skip
    if not mounted:
        pytest.skip("a small disk can be mounted by root only")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("free", [0, 4, 8, 12, 20, 32, 48])
def test_a_disk_that_is_really_full(free, small_disk, sotto, place):
    """So many kilobytes are left; the page of a run alone takes more than all of the disk."""
    (small_disk / "filling").write_bytes(bytes(shutil.disk_usage(small_disk).free - 1024 * free))
    expect_full(*sotto(f"--quiet run try.toml --out {small_disk}"))
    (small_disk / "filling").unlink()
    assert not half_written(small_disk)
