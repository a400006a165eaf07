"""Steps are stored once, replayed as they were, and compared with receipts; edits and roll-backs are refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import stat
import time

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sottovoce.errors import InputError, SottovoceError
from sottovoce.ledger import steps as steps_module
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.payloads import Place, Receipt
from sottovoce.ledger.spending import Spending
from sottovoce.ledger.steps import Steps, StoredNoise, digest_of
from tests.ledger.verified import verify
from tests.ledger.writer import planned

FIRST, SECOND, NEXT = Place(1, 0), Place(1, 1), Place(2, 0)
OWN = {"released": b"r", "model": b"m"}

TAG = bytes(range(32))


def receipt(place: Place, payload: bytes) -> Receipt:
    return Receipt(place, hashlib.sha256(payload).digest(), TAG)


@pytest.fixture
def steps(tmp_path):
    with open_ledger(tmp_path / "ledger") as database:
        yield Steps(database, "run")


def test_a_step_is_read_as_it_was_recorded(steps):
    steps.record_step(FIRST, {"anna": b"to anna", "berta": b"to berta"}, **OWN)
    steps.record_received(FIRST, {"anna": b"from anna"})
    found = steps.step(FIRST)
    assert found.outgoing == {"anna": b"to anna", "berta": b"to berta"}
    assert found.incoming == {"anna": b"from anna"}
    assert (found.released, found.model) == (b"r", b"m")
    assert found.sent["anna"] == digest_of(b"to anna")
    assert (steps.newest(), steps.step(SECOND)) == (FIRST, None)
    assert Steps(steps.database, "other").newest() is None


def test_a_place_has_one_message(steps):
    steps.record_step(FIRST, {"anna": b"one"}, released=b"c")
    steps.record_step(FIRST, {"anna": b"one"}, released=b"c")
    for other in ({"anna": b"two"}, {"anna": b"one", "berta": b"one"}, {}):
        with pytest.raises(InputError, match="recorded with other bytes"):
            steps.record_step(FIRST, other, released=b"c")
    with pytest.raises(InputError, match="recorded with other bytes"):
        steps.record_step(FIRST, {"anna": b"one"}, released=b"d")
    steps.record_step(NEXT, {})
    with pytest.raises(InputError, match="must be recorded in order"):
        steps.record_step(SECOND, {})


def test_a_sender_has_one_message_for_a_place(steps):
    steps.record_received(FIRST, {"anna": b"one"}, {"anna": TAG})
    steps.record_received(FIRST, {"anna": b"one", "berta": b"other"})
    with pytest.raises(InputError, match="a second, different message from anna"):
        steps.record_received(FIRST, {"anna": b"two"})
    assert steps.receipt("anna") == receipt(FIRST, b"one")
    assert steps.receipt("carla") is None
    assert steps.receipt("berta") is None, "without the tag that came with it, it would prove nothing"
    steps.record_step(FIRST, {})
    assert steps.step(FIRST).received == {"anna": digest_of(b"one"), "berta": digest_of(b"other")}


def test_that_nobody_was_heard_is_recorded(steps):
    steps.record_step(FIRST, {"anna": b"to anna"})
    assert steps.step(FIRST).received is None
    steps.record_received(FIRST, {})
    steps.record_received(FIRST, {})
    assert steps.step(FIRST).received == {}
    assert len(steps.database.entries("received")) == 1
    assert steps.receipt("anna") is None


def test_bytes_go_and_hashes_stay(steps):
    for place in (FIRST, SECOND):
        steps.record_step(place, {"anna": b"a", "berta": b"b"}, model=b"m")
        steps.record_received(place, {"anna": b"x"})
    assert [(place, name) for place, payloads in steps.pending().items() for name in payloads] == [
        (FIRST, "anna"), (FIRST, "berta"), (SECOND, "anna"), (SECOND, "berta"),
    ]  # fmt: skip
    assert steps.step(SECOND).incoming == {"anna": b"x"}
    steps.record_step(NEXT, {"anna": b"a"})
    assert steps.step(FIRST).outgoing == {"anna": b"a", "berta": b"b"}
    assert steps.step(SECOND).incoming == {}
    steps.forget(SECOND)
    assert steps.step(FIRST).outgoing == {}
    assert steps.step(FIRST).model is None
    assert set(steps.step(FIRST).sent) == {"anna", "berta"}
    assert list(steps.pending()) == [SECOND, NEXT]


def test_a_ledger_that_was_put_back_is_behind_a_receipt(tmp_path):
    path = tmp_path / "ledger"
    with open_ledger(path) as database:
        Steps(database, "run").record_step(FIRST, {"anna": b"a"})
    shutil.copy(path, tmp_path / "copy")
    with open_ledger(path) as database:
        steps = Steps(database, "run")
        steps.record_step(NEXT, {"anna": b"b"})
        steps.check_receipt("anna", receipt(NEXT, b"b"))
        steps.check_receipt("anna", receipt(FIRST, b"a"))
        with pytest.raises(InputError, match="a different message of round 2, step 0"):
            steps.check_receipt("anna", receipt(NEXT, b"a"))
    shutil.copy(tmp_path / "copy", path)
    with open_ledger(path) as database:
        steps = Steps(database, "run")
        steps.check_receipt("anna", receipt(FIRST, b"a"))
        with pytest.raises(InputError, match="anna has a message of round 2, step 0, but the last one in this ledger"):
            steps.check_receipt("anna", receipt(NEXT, b"b"))


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE entries SET body = replace(body, 'sent', 'lost') WHERE number = 1",
        "DELETE FROM entries WHERE number = 1",
        "UPDATE entries SET key = 'run 0000000001 000001' WHERE number = 1",
        "UPDATE entries SET hash = x'00' WHERE number = 2",
        "UPDATE entries SET body = x'ff00' WHERE number = 2",
        "UPDATE payloads SET bytes = x'00' WHERE kind = 'message'",
        "UPDATE payloads SET bytes = x'00' WHERE kind = 'received'",
        "UPDATE payloads SET bytes = NULL",
        "UPDATE entries SET body = 5",
        "DROP TABLE payloads",
        "ALTER TABLE entries ADD COLUMN more",
        "CREATE TRIGGER later AFTER INSERT ON entries BEGIN DELETE FROM entries WHERE number < new.number; END",
    ],
)
def test_an_edited_ledger_is_refused(tmp_path, edit):
    path = tmp_path / "ledger"
    with open_ledger(path) as database:
        steps = Steps(database, "run")
        steps.record_step(FIRST, {"anna": b"a"})
        steps.record_step(NEXT, {"berta": b"b"})
        steps.record_received(NEXT, {"berta": b"c"})
        verify(steps)
    with sqlite3.connect(path) as connection:
        connection.execute(edit)
    connection.close()
    with pytest.raises(InputError, match="edited or damaged"), open_ledger(path) as database:
        verify(Steps(database, "run"))


def test_a_ledger_is_for_one_owner_and_one_process(tmp_path):
    path = tmp_path / "ledger"
    with open_ledger(path) as database:
        Steps(database, "run").record_step(FIRST, {"anna": b"a"})
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        assert set(modes.values()) == {0o600}, modes
        with pytest.raises(InputError, match="another process uses it"), open_ledger(path):
            pass
        with open_ledger(path, read_only=True) as other:
            assert Steps(other, "run").newest() == FIRST
    path.chmod(0o644)
    with pytest.raises(InputError, match="others can read it"), open_ledger(path):
        pass
    (tmp_path / "text").write_text("no database, but long enough to look at it " * 40)
    (tmp_path / "text").chmod(0o600)
    with pytest.raises(InputError, match="edited or damaged"), open_ledger(tmp_path / "text"):
        pass
    with pytest.raises(InputError, match="no such file"), open_ledger(tmp_path / "none", read_only=True):
        pass


def test_a_write_that_fails_is_final(tmp_path):
    with open_ledger(tmp_path / "ledger") as database:
        steps = Steps(database, "run")
        steps.record_step(FIRST, {"anna": b"a"})
        pages = database.rows("PRAGMA page_count")[0][0]
        database.rows(f"PRAGMA max_page_count={pages + 2}")
        with pytest.raises(SottovoceError, match="the disk is full; nothing is sent") as error:
            steps.record_step(NEXT, {"anna": os.urandom(100_000)})
        assert error.value.exit_code == 1
        with pytest.raises(SottovoceError, match="an earlier write failed"):
            steps.record_step(NEXT, {"anna": b"a"})
        assert steps.newest() == FIRST


def test_a_round_costs_less_than_5_ms_of_processor_time(steps):
    """Beyond the disk's own flush, which the processor does not wait for."""
    payloads, rounds = {name: os.urandom(20_000) for name in ("anna", "berta", "carla")}, 60
    spending = Spending(steps.database)
    spending.reserve(planned(rounds=rounds, run="run"))
    begun = time.process_time()
    for round in range(1, rounds + 1):
        place = Place(round, 0)
        spending.spend("run", round)
        steps.record_step(place, payloads, **OWN)
        steps.record_received(place, payloads)
        steps.forget(place)
    assert (time.process_time() - begun) / rounds < 0.005


# --- what was computed and drawn -----------------------------------------------------------------------------------


def test_noise_that_later_rounds_need_outlives_everything_but_what_says_that_it_is_old(steps):
    for round in range(20):
        noise = StoredNoise(max(0, round - 2), {round: bytes([round])})
        steps.record_step(Place(round, 0), {"anna": b"a"}, noise=noise)
        steps.forget(Place(round, 0))
    assert steps.noise() == {17: b"\x11", 18: b"\x12", 19: b"\x13"}
    assert Steps(steps.database, "other").noise() == {}
    verify(steps)
    steps.database.rows("UPDATE payloads SET bytes = zeroblob(33) WHERE kind = 'noise'")
    with pytest.raises(InputError, match="stored bytes of round 17, step 0 differ from their hash"):
        steps.noise()
    steps.erase_noise()
    assert steps.noise() == {}


def test_no_hash_of_what_was_drawn_can_be_guessed_after_it_is_deleted(steps):
    """Whoever finds the ledger later cannot check a guess of the gradient, nor of the noise, with what is left."""
    steps.record_step(FIRST, {"anna": b"sent"}, released=b"gradient", noise=StoredNoise(1, {1: b"row"}))
    steps.record_step(NEXT, {"anna": b"sent"}, noise=StoredNoise(2, {}))
    left = json.dumps([entry.body for entry in steps.database.entries("step")])
    assert digest_of(b"sent") in left
    for guessed in (b"gradient", b"row"):
        assert digest_of(guessed) not in left
    assert not steps.database.rows("SELECT * FROM payloads WHERE kind IN ('own', 'noise')")


def test_tags_of_what_never_leaves_are_those_of_aes_gcm_and_each_has_a_key_of_its_own(steps):
    for place in (FIRST, NEXT):
        steps.record_step(place, {"anna": b"sent"}, released=b"the same gradient")
    first, second = (entry.body["own"]["released"] for entry in steps.database.entries("step"))
    assert first != second
    (row,) = steps.database.rows("SELECT bytes FROM payloads WHERE kind = 'own'")
    key, payload = row["bytes"][: steps_module.KEY_BYTES], row["bytes"][steps_module.KEY_BYTES :]
    assert second == AESGCM(key).encrypt(bytes(12), b"", payload).hex()


def test_long_bytes_are_read_as_they_were_and_leave_nothing_behind(tmp_path):
    path, long = tmp_path / "ledger", {letter: letter * 1_000_000 for letter in (b"m", b"r", b"o", b"n", b"x")}
    with open_ledger(path) as database:
        steps = Steps(database, "run")
        noise = StoredNoise(1, {1: long[b"n"]})
        steps.record_step(FIRST, {"anna": long[b"m"]}, released=long[b"r"], model=long[b"o"], noise=noise)
        steps.record_received(FIRST, {"anna": long[b"x"]})
        found = steps.step(FIRST)
        assert (found.outgoing, found.incoming) == ({"anna": long[b"m"]}, {"anna": long[b"x"]})
        assert (found.released, found.model, steps.noise()) == (long[b"r"], long[b"o"], {1: long[b"n"]})
        steps.record_step(NEXT, {"anna": b"a"}, noise=StoredNoise(2, {}))
    (left,) = (one.read_bytes() for one in tmp_path.glob("ledger*") if one.stat().st_size)
    assert long[b"m"][:1000] in left
    assert not any(letter * 100 in left for letter in (b"r", b"o", b"n", b"x"))


@pytest.mark.parametrize("byte", [0, 31, 32, 47])
def test_one_changed_byte_of_what_never_leaves_is_noticed(steps, byte):
    steps.record_step(FIRST, {"anna": b"sent"}, released=b"released numbers")
    (row,) = steps.database.rows("SELECT bytes FROM payloads WHERE kind = 'own'")
    edited = bytearray(row["bytes"])
    edited[byte] ^= 1
    for damage in (bytes(edited), row["bytes"][:byte]):
        steps.database.rows("UPDATE payloads SET bytes = ? WHERE kind = 'own'", (damage,))
        with pytest.raises(InputError, match="stored bytes of round 1, step 0 differ from their hash"):
            steps.step(FIRST)


def test_coins_serve_all_rounds_until_others_are_drawn_and_go_at_the_end(steps):
    key = bytes(range(32))
    assert steps.record_coins(Place(0, 0), key) == key
    for round in range(3):
        steps.record_step(Place(round, 0), {"anna": b"a%d" % round})
    steps.forget(Place(2, 0))
    assert steps.record_coins(Place(0, 0), bytes(32)) == key
    assert steps.record_coins(Place(3, 0), bytes(32)) == bytes(32)
    with pytest.raises(InputError):
        steps.record_coins(Place(0, 0), key)
    steps.erase_noise()
    with pytest.raises(InputError):
        steps.record_coins(Place(3, 0), key)
