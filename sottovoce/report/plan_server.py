"""`sotto plan --serve`: the planner page on this machine, answered by the accountant.

It listens on the loopback address alone, at a path with a secret in it, and answers two requests: the page and a
question. Both need the right `Host`, so that no other site can send a browser here under a name of its own. It opens no
file that a request names. Questions are answered one after the other by a process that is ended if one takes too long.
"""

from __future__ import annotations

import json
import multiprocessing
import secrets
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from socket import socket
from urllib.parse import parse_qsl, urlsplit

from sottovoce.errors import InputError, SottovoceError
from sottovoce.planning.asked_plan import DELTA, answer_plan, planned_algorithms
from sottovoce.report.page import asset, filled_page
from sottovoce.support.config import Document
from sottovoce.support.processes import end_with_parent, signals_blocked

LOOPBACK = "127.0.0.1"

ASKED_AT = "plan"
"""Where the page sends its questions, beside its own address."""

GRAPHS = ("ring:8", "ring:16", "torus:4x4", "hypercube:4", "complete:8", "complete:16")
"""Suggested where a graph is asked for."""

SCRIPTS = ("chart.js", "frame.js", "planner.js")

ASKED = ("graph", "algorithm", "batches", "rounds", "epsilon", "records", "parameters", "observer", "colluders")

LONGEST = 2000
"""Characters of a request's path."""

SILENCE = 10.0
"""Seconds after which a connection that says nothing is closed."""

CONNECTIONS = 200
"""At once; more are hung up on."""

SECONDS = 120.0
"""So long the accountant may take for a question."""

HEADERS = {
    "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin", "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
}  # fmt: skip


def planner_page(graphs: Sequence[str]) -> str:
    """The page as text; `graphs` are offered first."""
    known = list(dict.fromkeys([*graphs, *GRAPHS]))
    ask = {"at": ASKED_AT, "graphs": known, "algorithms": planned_algorithms(), "delta": DELTA}
    data = {"runs": [], "series": [], "colours": [], "ask": ask}
    return filled_page("planner.html", "Plan a run", data, [asset(name) for name in SCRIPTS])


class AccountantProcess:
    """A process that answers one question after the other; it is ended, and another started, if one takes too long."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds, self._turn = seconds, threading.Lock()
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def ask(self, question: Mapping[str, str]) -> Document:
        """What the accountant answers, or why it refuses."""
        with self._turn:
            pipe = self._started()
            try:
                pipe.send(dict(question))
                if pipe.poll(self._seconds):
                    return dict(pipe.recv())
                reason = f"The accountant took longer than {self._seconds:g} seconds. Ask sotto plan, which may."
            except (EOFError, OSError):
                reason = "The accountant's process ended, perhaps for want of memory. Ask about a smaller graph."
            self.end()
            return {"refused": reason}

    def _started(self) -> Connection:
        if self._pipe is None or self._process is None or not self._process.is_alive():
            self.end()
            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=_answer_questions, args=(other,), daemon=True)
            with signals_blocked():  # Ctrl-C is for the server; the process ends with it
                self._process.start()
            other.close()
        return self._pipe

    def end(self) -> None:
        """End the process, whatever it is at."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


def _answer_questions(pipe: Connection) -> None:
    """In a process of its own."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with_parent(parent.sentinel)
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(question))


def _answer(question: Mapping[str, str]) -> Document:
    try:
        return answer_plan(question)
    except SottovoceError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": "There is not enough memory for this graph and so many rounds."}


class PlanServer(ThreadingHTTPServer):
    """Serves the page at `url`; `graphs` are those of the user's own, the only ones that may be read from files."""

    daemon_threads = True

    def __init__(self, port: int = 0, graphs: tuple[str, ...] = (), *, seconds: float = SECONDS) -> None:
        self.graphs, self.page = graphs, planner_page(graphs).encode()
        self.secret = secrets.token_urlsafe(16)
        self.accountant = AccountantProcess(seconds)
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        try:
            super().__init__((LOOPBACK, port), _Requests)
        except OSError as error:
            raise InputError(
                f"port {port}: {error.strerror}", "the planner listens at a free port", "leave --port out"
            ) from None

    @property
    def url(self) -> str:
        """Where the page is; who does not know it gets nothing."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.secret}/"

    def process_request(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """In a thread of its own, unless there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """The thread's work."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that broke off is nobody's concern."""

    def server_close(self) -> None:
        """Also of the accountant."""
        super().server_close()
        self.accountant.end()


class _Requests(BaseHTTPRequestHandler):
    """One connection, one request."""

    server: PlanServer
    timeout = SILENCE

    def do_GET(self) -> None:
        """The page, or an answer; of anything else it says that it is not here."""
        asked = urlsplit(self.path) if len(self.path) <= LONGEST else None
        place = f"/{self.server.secret}/"
        if not self._is_for_us() or asked is None:
            self._reply(HTTPStatus.FORBIDDEN, b"forbidden\n", "text/plain")
        elif secrets.compare_digest(asked.path.encode(), place.encode()):
            self._reply(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif secrets.compare_digest(asked.path.encode(), f"{place}{ASKED_AT}".encode()):
            answer = json.dumps(self._answered(asked.query), allow_nan=False)
            self._reply(HTTPStatus.OK, answer.encode(), "application/json")
        else:
            self._reply(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain")

    def _is_for_us(self) -> bool:
        """Whether it was addressed to this server, and not by a page of another site."""
        port = self.server.server_port
        hosts = self.headers.get_all("Host", [])
        origins = self.headers.get_all("Origin", [])
        ours = [f"{LOOPBACK}:{port}"]
        return (
            hosts == ours
            and origins in ([], [f"http://{ours[0]}"])
            and self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        )

    def _answered(self, query: str) -> Document:
        try:
            found = parse_qsl(query, keep_blank_values=True, max_num_fields=len(ASKED))
            question = dict(found)
            if sorted(question) != sorted(ASKED) or len(found) != len(ASKED):
                raise InputError("a question in other words", f"it has {', '.join(ASKED)}", "reload the page")
            self._check_graph(question["graph"])
            return self.server.accountant.ask(question)
        except InputError as error:
            return {"refused": str(error)}
        except ValueError:
            return {"refused": "The question cannot be read. Reload the page."}

    def _check_graph(self, graph: str) -> None:
        if graph.partition(":")[0].strip() == "file" and graph not in self.server.graphs:
            raise InputError(f"graph {graph!r}", "the page opens no files", f"start sotto plan --serve --graph {graph}")

    def _reply(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response_only(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged: the path has the secret."""
