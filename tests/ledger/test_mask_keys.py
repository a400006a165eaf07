"""Keys of masks in a ledger, and the places at which they were used: never one twice."""

from __future__ import annotations

import pytest

from sottovoce.errors import InputError
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.steps import MaskKeys, Steps
from tests.ledger.verified import masked_places, verify

KEYS = {"Hill": b"1" * 32, "North": b"2" * 32}


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(tmp_path / "ledger.db") as database:
        yield database


def test_keys_are_made_once_and_erased_at_the_end(ledger):
    keys = MaskKeys(ledger, "run")
    assert not keys.were_made
    keys.store(KEYS)
    assert (keys.were_made, keys.keys()) == (True, KEYS)
    with pytest.raises(InputError, match="keys of masks a second time; a mask is used once"):
        keys.store(KEYS)
    with pytest.raises(InputError, match="keys of masks a second time"):
        MaskKeys(ledger, "another run").store(KEYS)
    keys.erase()
    assert (keys.were_made, keys.keys()) == (True, {})
    assert b"1" * 32 not in ledger.path.read_bytes()
    with pytest.raises(InputError, match="a second time"):
        keys.store({"Hill": b"3" * 32})


def test_every_step_enters_its_place_and_none_occurs_twice(ledger):
    keys, steps = MaskKeys(ledger, "run"), Steps(ledger, "run")
    keys.store(KEYS)
    for round in (0, 1, 4):
        steps.record_step(Place(round, 0), {"Hill": b"a", "North": b"b"}, masks=keys.label)
    assert masked_places(ledger, keys.label) == [Place(0, 0), Place(1, 0), Place(4, 0)]
    steps.record_step(Place(4, 0), {"Hill": b"a", "North": b"b"}, masks=keys.label)  # the same again is nothing new
    assert len(masked_places(ledger, keys.label)) == 3
    with pytest.raises(InputError, match="round 4, step 0: recorded with other bytes"):
        steps.record_step(Place(4, 0), {"Hill": b"c", "North": b"b"}, masks=keys.label)
    with pytest.raises(InputError, match="round 4, step 0 has been masked before"):
        Steps(ledger, "another run").record_step(Place(4, 0), {"Hill": b"c"}, masks=keys.label)
    assert Steps(ledger, "another run").newest() is None
    verify(steps)


def test_a_ledger_whose_keys_were_exchanged_is_refused(ledger):
    keys = MaskKeys(ledger, "run")
    keys.store(KEYS)
    with ledger.transaction():
        ledger._connection.execute("UPDATE payloads SET bytes = ? WHERE name = 'Hill'", (b"9" * 32,))
    with pytest.raises(InputError, match="keys of masks differ from their hash"):
        verify(Steps(ledger, "run"))
