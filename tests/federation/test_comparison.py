"""What two members find out about agreements that differ."""

from __future__ import annotations

import pytest

from sottovoce.federation.agreement import parse_agreement
from sottovoce.federation.events import named_keys
from sottovoce.federation.frames import Refused, differing_keys, encode_hashes
from tests.federation.federation import agreement_in


@pytest.fixture(scope="module")
def agreement(tmp_path_factory):
    return agreement_in(tmp_path_factory.mktemp("agreement"))


def changed(agreement, section, **values):
    document = agreement.document
    return parse_agreement({**document, section: {**document[section], **values}}, "other")


def test_the_keys_are_named_and_the_nonce_last(agreement):
    other = changed(changed(agreement, "privacy", delta=1e-7), "training", rounds=3)
    other = parse_agreement({**other.document, "nonce": "0" * 64}, "other")
    told = encode_hashes(other.key_hashes)
    assert differing_keys(agreement.key_hashes, told) == ("privacy.delta", "training.rounds", "nonce")


def test_members_and_columns_are_named(agreement):
    document = agreement.document
    document["members"][1]["address"] = "mercy.example:1"
    document["data"]["columns"]["columns"][0]["range"] = [0, 199]
    keys = differing_keys(agreement.key_hashes, encode_hashes(parse_agreement(document, "other").key_hashes))
    assert "members.Mercy.address" in keys
    assert any(key.startswith("data.columns.columns.1. ") for key in keys), keys


def test_hashes_tell_none_of_the_values(agreement):
    told = encode_hashes(agreement.key_hashes).decode()
    assert agreement.members[0].certificate.split()[3] not in told
    assert all(len(value) == 64 for value in agreement.key_hashes.values())


@pytest.mark.parametrize("told", [None, b"", b"[1]", b"{", b"\xff", b'"a"', b"[" * 100_000])
def test_what_is_no_hashes_is_refused(told):
    with pytest.raises(Refused):
        differing_keys({"name": "1"}, told)


def test_what_a_neighbour_calls_its_keys_is_shown_safely():
    keys = differing_keys({}, encode_hashes({"\x1b[31m" + "x" * 200: "", "b": "", "c": "", "d": "", "nonce": ""}))
    assert named_keys(keys) == "\\x1b[31m" + "x" * 75 + ", b, c and 2 more"
