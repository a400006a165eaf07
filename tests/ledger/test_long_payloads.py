"""Long payloads lie in a file beside the ledger: whole at every moment, erased after use, refused where they differ."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import suppress

import pytest

from sottovoce.errors import InputError, SottovoceError
from sottovoce.ledger import payload_file
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.payload_file import BLOCK, LONG
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.steps import Steps, StoredNoise

FIRST, NEXT = Place(1, 0), Place(2, 0)

TAGS = {"anna": bytes(range(32)), "berta": bytes(32)}


def long(letter: bytes) -> bytes:
    return letter * (LONG + 1000)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger"


def record(path, place, letter, **more):
    with open_ledger(path) as database:
        steps = Steps(database, "run")
        steps.record_step(place, dict.fromkeys(("anna", "berta"), long(letter)), released=long(b"r"), **more)
        steps.record_received(place, {"anna": long(b"x"), "berta": b"short"})


def beside(path):
    return path.parent / "ledger.payloads"


def test_long_payloads_are_read_as_they_were_recorded(path):
    record(path, FIRST, b"m", noise=StoredNoise(1, {1: long(b"n")}))
    with open_ledger(path) as database:
        steps = Steps(database, "run")
        found = steps.step(FIRST)
        assert found.outgoing == {"anna": long(b"m"), "berta": long(b"m")}
        assert found.incoming == {"anna": long(b"x"), "berta": b"short"}
        assert (found.released, steps.noise()) == (long(b"r"), {1: long(b"n")})
        steps.verify()
        with open_ledger(path, read_only=True) as other:
            Steps(other, "run").verify()
    assert beside(path).stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size < LONG
    assert beside(path).stat().st_size < 5 * LONG, "a message for all is stored once"


def test_long_payloads_are_on_the_disk_before_the_entry_that_names_them(path, monkeypatch):
    with open_ledger(path) as database:
        steps, seen, flush = Steps(database, "run"), [], os.fdatasync

        def watched(handle):
            seen.append((steps.newest(), beside(path).read_bytes().count(long(b"m"))))
            flush(handle)

        monkeypatch.setattr(payload_file.os, "fdatasync", watched)
        steps.record_step(FIRST, {"anna": long(b"m")})
    assert seen == [(None, 1)]


def test_what_never_left_is_overwritten_by_the_next_record(path):
    """By its payloads where they are long enough, otherwise with zeros, up to the last byte."""
    record(path, FIRST, b"m", model=long(b"o"), noise=StoredNoise(1, {1: long(b"n")}))
    with open_ledger(path) as database:
        steps, size = Steps(database, "run"), beside(path).stat().st_size
        steps.record_step(NEXT, {"anna": b"a"}, noise=StoredNoise(2, {}))
        steps.record_received(NEXT, {"anna": long(b"x")[:-50]})
        left = beside(path).read_bytes()
        assert len(left) == size
        for letter in (b"r", b"o", b"n"):
            assert letter * 4 not in left
        assert long(b"m") in left
        assert steps.step(NEXT).incoming == {"anna": long(b"x")[:-50]}


def test_what_never_left_is_overwritten_when_the_ledger_is_closed_or_opened_after_a_kill(path):
    record(path, FIRST, b"m")
    with open_ledger(path) as database:
        Steps(database, "run").record_step(NEXT, {"anna": b"a"})
        shutil.copy(path, path.parent / "copy")
        shutil.copy(f"{path}-wal", path.parent / "copy-wal")
        shutil.copy(beside(path), path.parent / "copy.payloads")
    assert b"rrrr" not in beside(path).read_bytes()
    assert b"rrrr" in (path.parent / "copy.payloads").read_bytes()
    with open_ledger(path.parent / "copy"):
        assert b"rrrr" not in (path.parent / "copy.payloads").read_bytes()


def test_what_is_dropped_without_a_flush_is_overwritten_only_after_one(path):
    """A power failure may undo the record that dropped it, and name it again."""
    with open_ledger(path) as database:
        steps = Steps(database, "run")
        steps.record_step(FIRST, {"anna": long(b"m")})
        with database.transaction(flush=False):
            database.drop("kind IN ('sent', 'message')", (), erase=False)
        assert steps.pending() == []
        steps.database.write({"message": (long(b"z"),)})
        assert long(b"m") in beside(path).read_bytes()
        steps.record_step(NEXT, {"anna": b"b"})
        steps.database.write({"message": (long(b"z"),)})
        assert b"mmmm" not in beside(path).read_bytes()


def test_a_place_is_not_used_again_before_the_record_that_frees_it_is_whole(path):
    """A process that ends in the middle of a record leaves all of the one before."""
    record(path, FIRST, b"m")
    with open_ledger(path) as database:
        steps = Steps(database, "run")
        steps.database.write({"lost": (long(b"z"),)})
        with suppress(RuntimeError), database.transaction():
            database.drop("kind = ?", ("own",), erase=True)
            raise RuntimeError
        assert steps.step(FIRST).released == long(b"r")
        shutil.copy(path, path.parent / "copy")
        shutil.copy(beside(path), path.parent / "copy.payloads")
    with open_ledger(path.parent / "copy") as database:
        assert Steps(database, "run").step(FIRST).released == long(b"r")
        assert b"zzzz" not in (path.parent / "copy.payloads").read_bytes(), "what was cut off is erased"


def test_room_is_used_again(path):
    with open_ledger(path) as database:
        steps = Steps(database, "run")
        for round in range(30):
            steps.record_step(Place(round, 0), {"anna": long(b"m")}, model=long(b"o"))
            steps.record_received(Place(round, 0), {"anna": long(b"x")})
            steps.forget(Place(round, 0))
        assert beside(path).stat().st_size <= 6 * (LONG + BLOCK)
        steps.verify()


def test_what_was_received_is_asked_for_again_if_a_power_failure_took_it(path):
    """It is flushed with the next step: till then its row can be there without its bytes."""
    with open_ledger(path) as database:
        steps = Steps(database, "run")
        steps.record_step(FIRST, {"anna": b"a"})
        steps.record_received(FIRST, {"anna": b"short", "berta": long(b"y")}, TAGS)
        steps.record_step(NEXT, {"anna": b"b"})
        steps.record_received(NEXT, {"anna": long(b"x"), "berta": b"short"}, TAGS)
    beside(path).write_bytes(bytes(beside(path).stat().st_size))
    with open_ledger(path) as database:
        steps = Steps(database, "run")
        assert steps.step(NEXT).received is None
        assert steps.receipt("anna").place == FIRST
        assert steps.receipt("berta").place == NEXT
        with pytest.raises(InputError, match="a second, different message from anna"):
            steps.record_received(NEXT, {"anna": long(b"z"), "berta": b"short"})
        steps.record_received(NEXT, {"anna": long(b"x"), "berta": b"short"})
        assert steps.step(NEXT).incoming == {"anna": long(b"x"), "berta": b"short"}
        assert steps.receipt("anna").place == NEXT
        steps.verify()


def edit(path, query):
    with sqlite3.connect(path) as connection:
        connection.execute(query)
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: beside(path).unlink(),
        lambda path: os.truncate(beside(path), LONG),
        lambda path: beside(path).write_bytes(bytes(beside(path).stat().st_size)),
        lambda path: edit(path, "UPDATE payloads SET start = 0 WHERE bytes IS NULL"),
        lambda path: edit(path, "UPDATE payloads SET start = start + 1 WHERE bytes IS NULL"),
        lambda path: edit(path, "UPDATE payloads SET length = 1000000000000000 WHERE kind = 'own'"),
        lambda path: edit(path, "UPDATE payloads SET length = -1, start = 'here' WHERE kind = 'own'"),
        lambda path: edit(path, "UPDATE payloads SET start = NULL, length = NULL"),
    ],
)
def test_damage_is_refused(path, damage):
    record(path, FIRST, b"m")
    damage(path)
    with pytest.raises(InputError, match="edited or damaged"), open_ledger(path) as database:
        Steps(database, "run").verify()


def test_a_pipe_in_the_place_of_the_file_is_refused(path):
    with open_ledger(path) as database:
        os.mkfifo(beside(path))
        with pytest.raises(InputError, match="a pipe or a device"):
            Steps(database, "run").record_step(FIRST, {"anna": long(b"m")})


@pytest.mark.parametrize("failing", ["pwritev", "fdatasync"])
def test_a_write_or_flush_that_fails_is_final(path, monkeypatch, failing):
    def full(*_):
        raise OSError(28, "No space left on device")

    with open_ledger(path) as database:
        steps = Steps(database, "run")
        with monkeypatch.context() as patched:
            patched.setattr(payload_file.os, failing, full)
            with pytest.raises(SottovoceError, match="the disk is full; nothing is sent"):
                steps.record_step(FIRST, {"anna": long(b"m")})
        with pytest.raises(SottovoceError, match="an earlier write failed"):
            steps.record_step(FIRST, {"anna": long(b"m")})
        assert steps.newest() is None
