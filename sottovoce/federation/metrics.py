"""What whoever runs a member's machine watches: counts and times, in the text format of Prometheus.

They follow from what is agreed on, from what neighbours do and when, and from how far this member is: no row decides
any of them, so no batch is counted and no step is timed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sottovoce.errors import InputError
from sottovoce.federation.member import check_address, split_address
from sottovoce.support.files import check_writable, write_text

METRICS = {
    "rounds": ("gauge", "Rounds that this member has begun."),
    "rounds_planned": ("gauge", "Rounds of the agreement."),
    "finished": ("gauge", "1 when the run has ended."),
    "paused": ("gauge", "1 while fewer neighbours answer than were agreed on."),
    "epsilon_spent": ("gauge", "What the rounds so far cost, at the delta of the run."),
    "epsilon_planned": ("gauge", "What all rounds cost."),
    "epsilon_left": ("gauge", "What the budget of this data has left beside all that is planned."),
    "sent_bytes": ("counter", "Bytes that this process has sent."),
    "connected": ("gauge", "1 while a neighbour is connected."),
    "heard": ("counter", "Gossip steps in which a neighbour was heard."),
    "missed": ("counter", "Gossip steps that went on without a neighbour that was due."),
    "last_message_timestamp_seconds": ("gauge", "When the last message of a neighbour arrived."),
    "slow": ("counter", "How often a neighbour was named for making this member wait again and again."),
    "distance": ("gauge", "How far a neighbour's last message is from one's own, in units of what noise explains."),
    "refused": ("counter", "What was refused and why, by whose it was, where that is known."),
    "certificate_ends_timestamp_seconds": ("gauge", "When the certificate of a member ends."),
}
"""By name: whether it only grows, and what it is. Names that are shown have `sottovoce_` in front."""

SECONDS = 5.0
"""Between two versions of the file; so long whoever asks may take."""


class Metrics:
    """The newest values, by name and labels; set and read by any thread."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, float]] = {name: {} for name in METRICS}
        self._lock = threading.Lock()

    def set(self, name: str, value: float, **labels: str) -> None:
        """From now on it is this."""
        with self._lock:
            self._values[name][_labels(labels)] = value

    def add(self, name: str, count: int = 1, **labels: str) -> None:
        """It has grown."""
        with self._lock:
            counts, key = self._values[name], _labels(labels)
            counts[key] = counts.get(key, 0) + count

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        lines = []
        with self._lock:
            for name, (kind, about) in METRICS.items():
                shown = f"sottovoce_{name}" + ("_total" if kind == "counter" else "")
                lines += [f"# HELP {shown} {about}", f"# TYPE {shown} {kind}"]
                lines += [f"{shown}{labels} {float(value)!r}" for labels, value in self._values[name].items()]
        return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    """As they stand behind a name; names of members and reasons hold nothing that would have to be escaped.

    >>> _labels({"member": "Hill", "reason": "its length"})
    '{member="Hill",reason="its length"}'
    """
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else ""


@contextmanager
def exported(metrics: Metrics, address: str | None, file: Path | None) -> Iterator[None]:
    """Serve them over HTTP at an address, and write them to a file now and then, as far as these are given."""
    with ExitStack() as until:
        if address is not None:
            until.enter_context(_served(metrics, address))
        if file is not None:
            until.enter_context(_written(metrics, check_writable(file)))
        yield


@contextmanager
def _served(metrics: Metrics, address: str) -> Iterator[None]:
    class Answer(BaseHTTPRequestHandler):
        timeout = SECONDS

        def do_GET(self) -> None:
            body = metrics.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Whoever asks is not logged."""

    check_address(address, "--metrics")
    try:
        server = ThreadingHTTPServer(split_address(address), Answer)
    except OSError as error:
        raise InputError(f"--metrics {address}: {error.strerror}", "metrics need a free port", "name another") from None
    with server:
        thread = threading.Thread(target=server.serve_forever, name="sottovoce-metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _written(metrics: Metrics, file: Path) -> Iterator[None]:
    over = threading.Event()

    def write() -> None:
        write_text(file, metrics.text())
        file.chmod(0o644)  # whoever collects it is another user

    def keep() -> None:
        while not over.wait(SECONDS):
            write()

    thread = threading.Thread(target=keep, name="sottovoce-metrics-file", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        write()
