"""A stranger on the port of torchrun's store: what it puts there is refused, and never run."""

from __future__ import annotations

import json
import os
import pickle
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from sottovoce.distributed.communication import Communicator, RankStore
from sottovoce.distributed.ranks import ERRORS, Ranks, error_document, read_error
from sottovoce.errors import InputError, PeerLost, SottovoceError, Unaccountable, Uncertified


@pytest.fixture
def port():
    """The store that torchrun would open, and the connection of a stranger to it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
    return store, TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=20))


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


STRANGE = {
    "nothing": b"",
    "no text": b"\xff\xfe\x00",
    "too deep": b"[" * 200_000,
    "not finite": b'{"value": NaN, "error": {}}',
    "a number": b"5",
    "a list": b"[1, 2]",
    "other keys": b'{"value": 1}',
    "an unknown error": b'{"value": null, "error": {"kind": "SystemExit", "parts": ["0"]}}',
    "an error without parts": b'{"value": null, "error": {"kind": "InputError"}}',
    "an error with too few parts": b'{"value": null, "error": {"kind": "InputError", "parts": []}}',
    "an error that is a word": b'{"value": null, "error": "InputError"}',
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_no_rank_wrote_is_refused_in_one_line(name, port):
    store, stranger = port
    ranks = Ranks(Communicator(1, 2), RankStore(store, 1, timeout=5.0))
    stranger.set("call/1", STRANGE[name])
    with pytest.raises(PeerLost, match="that no rank wrote; another program uses the same port") as refused:
        ranks.on_rank_zero(lambda: None)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [b"[1, 2]", b'"x"', b"null", b"7"])
def test_facts_that_no_rank_wrote_are_refused(value, port):
    store, stranger = port
    ranks = Ranks(Communicator(0, 2), RankStore(store, 0, timeout=5.0))
    stranger.set("call/1/1", value)
    with pytest.raises(PeerLost, match="that no rank wrote"):
        ranks.require_equal({"rounds": 5})


def hear_of_rank_zero(ranks, key):
    """What it returned, or why it is gone."""
    with ranks.propagate_errors():
        if key == "failed":
            raise PeerLost("rank 0 is gone")
        ranks.on_rank_zero(lambda: None)


@pytest.mark.parametrize("key", ["call/1", "failed"])
def test_a_pickle_is_not_run(key, port, tmp_path):
    store, stranger = port
    ranks, trap = Ranks(Communicator(1, 2), RankStore(store, 1, timeout=5.0)), tmp_path / "trap"
    stranger.set(key, pickle.dumps(Touch(trap)))
    with pytest.raises(PeerLost):
        hear_of_rank_zero(ranks, key)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Touch(trap)))
    assert trap.exists(), "the trap works"


def test_errors_reach_other_ranks_with_kind_and_message():
    for error in (
        InputError("a", "b", "c"), Unaccountable("no proof"), Uncertified("a", "b", "c"), PeerLost("gone"),
        SottovoceError("x"),
    ):  # fmt: skip
        read = read_error(json.loads(json.dumps(error_document(error))), "key")
        assert (type(read), str(read)) == (type(error), str(error))

    class Other(SottovoceError):
        """Not in the tree of errors."""

    assert type(read_error(error_document(Other("y")), "key")) is SottovoceError
    assert {"SottovoceError", "InputError", "Diverged", "PeerLost", "Unaccountable", "Uncertified"} == set(ERRORS)


def test_outcomes_are_json_or_fail_at_home(port):
    store, _ = port
    left = RankStore(store, 0, timeout=5.0)
    assert Ranks(Communicator(0, 2), left).on_rank_zero(lambda: {"epsilon": 1.5}) == {"epsilon": 1.5}
    assert left.get("call/1") == {"value": {"epsilon": 1.5}, "error": None}
    with pytest.raises(ValueError, match="Out of range float"):
        RankStore(store, 0, timeout=5.0).put("key", float("nan"))
