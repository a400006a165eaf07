"""What a member's screen and its log say of an event."""

from __future__ import annotations

import json
import os
import signal

import pytest

from sottovoce.federation.events import FrameRefused, event_log, link_event
from sottovoce.federation.frames import Reason

NAMES = ("Hill", "Mercy", "South")

SENTENCES = [
    ("missing", {"round": 3, "members": ["Mercy"]},
     "Round 3 went on without Mercy; later rounds will too, until it is heard again."),
    ("missing", {"round": 3, "members": ["Mercy", "South"]},
     "Round 3 went on without Mercy and South; later rounds will too, until they are heard again."),
    ("sum_failed", {"round": 8, "members": ["South"], "over": "all members"},
     "The sum of round 8 over all members failed: there was no message from South. The round is spent, and this "
     "member's model stays as it was. The same holds for every round until South is heard again."),
    ("absent", {"first": 5, "last": 6}, "Absent from round 5 up to round 6, so that no mask is used twice."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "facts", "sentence"), SENTENCES)
def test_sentences_agree_with_the_number_of_members(name, facts, sentence):
    shown = []
    with event_log(None, shown.append) as tell:
        tell(name, facts)
    assert shown == [sentence]


def test_a_message_out_of_turn_is_logged_and_looks_like_no_attack(tmp_path):
    shown, path = [], tmp_path / "log.jsonl"
    with event_log(path, shown.append) as tell:
        for reason in (Reason.TOO_EARLY, Reason.RANGE):
            tell(*link_event(FrameRefused(1, reason), NAMES, 4))
    assert shown == [f"A message from Mercy was refused: {Reason.RANGE.value}."]
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["OutOfTurn", "FrameRefused"]


def test_a_log_that_was_moved_away_goes_on_in_a_new_file_after_sighup(tmp_path):
    path = tmp_path / "log.jsonl"
    with event_log(path, lambda line: None) as tell:
        tell("round", {"round": 1})
        path.rename(tmp_path / "log.1")
        tell("round", {"round": 2})
        os.kill(os.getpid(), signal.SIGHUP)
        tell("round", {"round": 3})
    rounds = [
        [json.loads(line)["round"] for line in file.read_text().splitlines()] for file in (tmp_path / "log.1", path)
    ]
    assert rounds == [[1, 2], [3]]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_the_same_refusal_is_told_once_a_minute_and_another_at_once(tmp_path, monkeypatch):
    now, shown = [0.0], []
    monkeypatch.setattr("sottovoce.federation.events.time.monotonic", lambda: now[0])
    with event_log(tmp_path / "log.jsonl", shown.append) as tell:
        for seconds in range(90):
            now[0] = float(seconds)
            tell(*link_event(FrameRefused(1, Reason.RANGE), NAMES, 4))
        tell(*link_event(FrameRefused(2, Reason.RANGE), NAMES, 4))
    assert len(shown) == 3
