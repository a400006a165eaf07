"""What happens to a member, as JSON lines in a file, and the part of it that a person wants to see."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sottovoce.core.files import explaining, open_to_append
from sottovoce.core.json_numbers import JSON

SHOWN = {
    "gather": "Waiting for {members}, {seconds:g} seconds at most.",
    "waiting": "Waiting for {members} in round {round}.",
    "ending": "This member has played its last round, and waits for {members} to do so.",
    "Connected": "{member} is connected.",
    "Lost": "{member} is lost: {reason}.",
    "Left": "{member} has ended its run.",
    "Disagreed": "{member} has another agreement: it differs in {keys}.",
    "FrameRefused": "A message of {member} was refused: {reason}.",
    "StrangerRefused": "Somebody who is no neighbour tried to connect, and was refused.",
    "Equivocation": "{member} sent two different messages for one place; the second was not used.",
    "missing": "Round {round} went on without {members}; so will others, until it is heard again.",
    "back": "{members} was heard again, in round {round}.",
    "unended": "The run ended here before {members} had its last messages: it may find nobody when it comes back.",
}
"""What is told on stderr of some events. Nothing in an event comes from anybody's rows."""


@contextmanager
def event_log(path: Path | None, show: Callable[[str], None]) -> Iterator[Callable[[str, dict[str, JSON]], None]]:
    """What is to be called with the name of an event and its facts, from any thread."""
    rule, remedy = "events are appended to it", "name another file with --log"
    one_at_a_time = threading.Lock()
    with explaining(path or Path(), rule, remedy):
        lines = None if path is None else open_to_append(path)

    def tell(name: str, facts: dict[str, JSON]) -> None:
        with one_at_a_time:
            if lines is not None:
                now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
                lines.write(json.dumps({"time": now, "event": name, **facts}) + "\n")
                lines.flush()
            if name in SHOWN:
                show(SHOWN[name].format(**{key: _words(value) for key, value in facts.items()}))

    try:
        yield tell
    finally:
        if lines is not None:
            lines.close()


def _words(value: JSON) -> JSON:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
