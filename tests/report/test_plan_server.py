"""`sotto plan --serve`: the planner in a browser with the accountant behind it, and strangers at its port."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
from urllib.parse import urlencode

import pytest

from sottovoce.planning.asked_plan import answer_plan
from sottovoce.report.plan_server import AccountantProcess, PlanServer
from tests.hostile.strangers import strangers_at

QUESTION = {
    "graph": "ring:5", "algorithm": "dp-d-sgd", "batches": "4", "rounds": "12", "epsilon": "3", "records": "40",
    "parameters": "10", "observer": "1", "colluders": "1",
}  # fmt: skip


@pytest.fixture(scope="module")
def own_graph(tmp_path_factory):
    """A path of four nodes with names, which looks different from each of them."""
    file = tmp_path_factory.mktemp("graphs") / "own.txt"
    file.write_text("Ash Birch\nBirch Cedar\nCedar Dogwood\n")
    return f"file:{file}"


@pytest.fixture(scope="module")
def server(own_graph):
    with PlanServer(graphs=(own_graph,)) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def said(server, request: bytes) -> str:
    """The whole reply to some bytes; what the server does not read may break the connection."""
    with socket.create_connection(("127.0.0.1", server.server_port), 60) as connection:
        found = b""
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                found += part
        except OSError:
            pass
    return found.decode()


def asked(server, path: str, *headers: str, host: str | None = None, method: str = "GET") -> str:
    host = f"127.0.0.1:{server.server_port}" if host is None else host
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    return said(server, ("\r\n".join(lines) + "\r\n\r\n").encode())


def place(server) -> str:
    return f"/{server.secret}/"


def answered(server, **changes: str) -> dict:
    reply = asked(server, f"{place(server)}plan?{urlencode({**QUESTION, **changes})}")
    assert reply.startswith("HTTP/1.0 200 "), reply
    return json.loads(reply.partition("\r\n\r\n")[2])


def test_answers_are_those_of_the_accountant(server, own_graph):
    for changes in ({}, {"algorithm": "secure-average", "graph": "complete:6", "colluders": "2"}):
        found = answered(server, **changes)
        assert found == json.loads(json.dumps(answer_plan({**QUESTION, **changes})))
    ash, cedar = (answered(server, graph=own_graph, observer=name)["leaks"] for name in ("Ash", "Cedar"))
    assert [hops for hops, _ in ash] == [1, 2, 3]
    assert [hops for hops, _ in cedar] == [1, 2]


def test_strangers_get_nothing(server):
    page, port = place(server), server.server_port
    assert asked(server, page).startswith("HTTP/1.0 200 ")
    ours = f"Host: 127.0.0.1:{port}"
    for reply in (
        *(asked(server, page, host=host) for host in (f"evil.example:{port}", "127.0.0.1", f"localhost:{port}", "")),
        asked(server, page, ours),
        asked(server, page, f"Origin: http://evil.example:{port}"),
        asked(server, page, "Sec-Fetch-Site: cross-site"),
        said(server, f"GET {page} HTTP/1.0\r\n\r\n".encode()),
        asked(server, page + "x" * 3000),
    ):
        assert reply.startswith("HTTP/1.0 403 "), reply
    wrong = (
        "/",
        "/plan",
        page[:-2] + "/",
        page[:-1],
        f"{page}../etc/passwd",
        f"{page}%2e%2e/etc/passwd",
        "/etc/passwd",
    )
    for path in (*wrong, f"{page}plan/", f"http://evil.example{page}x"):
        reply = asked(server, path)
        assert reply.startswith("HTTP/1.0 404 "), (path, reply)
        assert server.secret not in reply.partition("\r\n\r\n")[2]
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert " 501 " in asked(server, page, "Content-Length: 99999999999", method=method).partition("\r\n")[0]


def test_requests_are_bounded(server):
    page = place(server)
    flood = b"x" * (4 << 20)
    head = f"GET {page} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n"
    said(server, head.encode() + b"Content-Length: 4194304\r\n\r\n" + flood)  # not read
    said(server, b"GET /" + flood)
    said(server, head.encode() + b"X: " + flood)
    said(server, head.encode() + b"X: y\r\n" * 10_000)
    with strangers_at(server.server_port):
        assert "sigma" in answered(server)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rounds": "0"}, "rounds '0'; a whole number from 1 to 2,000 is needed"),
        ({"rounds": "1e3"}, "rounds '1e3'; a whole number"),
        ({"rounds": "9" * 400}, "a whole number from 1 to 2,000"),
        ({"epsilon": "nan"}, "epsilon 'nan'; a number above 0"),
        ({"epsilon": "-1"}, "epsilon '-1'; a number above 0"),
        ({"epsilon": "1e300"}, "epsilon"),
        ({"records": "2"}, "2 rows; every batch needs at least one row"),
        ({"graph": "complete:1000000000"}, "at most 20,000,000 nodes"),
        ({"graph": "ring:300"}, "300 nodes; the page plans for up to 200"),
        ({"graph": "file:/etc/passwd"}, "the page opens no files"),
        ({"graph": "ring:-1"}, "ring"),
        ({"algorithm": "os.py:system"}, "algorithm 'os.py:system'; the page plans"),
        ({"observer": "Ash"}, "Ash"),
        ({"observer": "7"}, "7"),
        ({"colluders": "9"}, "colluders '9'"),
        ({"more": "1"}, "cannot be read"),
    ],
)
def test_wrong_numbers_are_refused_in_a_sentence(changes, reason, server):
    assert reason in answered(server, **changes)["refused"]


def test_a_question_that_takes_too_long_is_given_up_and_the_next_is_answered():
    accountant = AccountantProcess(0.0)
    try:
        assert "took longer than 0 seconds" in accountant.ask(QUESTION)["refused"]
        accountant._seconds = 60.0
        assert accountant.ask(QUESTION)["sigma"] > 0
    finally:
        accountant.end()


def test_the_page_asks_the_accountant_and_nobody_else(server, own_graph, chromium):
    context = chromium.new_context(viewport={"width": 390, "height": 800})
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: request.url.startswith(server.url) or wrong.append(request.url))
    page.goto(server.url)

    def told(**choices: str) -> float:
        for name, value in choices.items():
            control = page.locator(f"#plan-{name}")
            control.select_option(value) if name == "algorithm" else control.fill(value)
        page.wait_for_selector("#plan-answer[data-from=accountant]")
        found = re.search(r"σ = (\S+) times", page.inner_text("#plan-answer"))
        assert found
        return float(found[1])

    assert page.input_value("#plan-graph") == own_graph
    told(observer="Dogwood")
    assert page.locator("#plan details tbody tr").count() == 3
    shown = told(graph="ring:16", observer="3", rounds="101")
    question = {**QUESTION, "graph": "ring:16", "observer": "3", "rounds": "101", "batches": "5", "epsilon": "8"}
    exact = answer_plan({**question, "records": "100", "parameters": "1000"})
    assert exact["sigma"] <= shown <= 1.001 * exact["sigma"]
    assert "what node 3 could learn" in page.inner_text("#plan figcaption")
    assert told(graph="complete:6", algorithm="secure-average") < told(algorithm="dp-d-sgd")
    page.locator("#plan-graph").fill("ring:x")
    page.wait_for_selector("#plan-answer[data-from=nobody] >> text=ring:x")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert wrong == []
    page.route("**/plan?*", lambda route: route.abort())
    page.locator("#plan-graph").fill("ring:16")
    page.wait_for_selector("#plan-answer >> text=was ended")
    context.close()


def test_the_page_says_that_it_computes_and_for_how_long_then_answers_or_says_why_not(server, chromium, monkeypatch):
    """The accountant waits until the page was seen to wait."""
    seen, ask = threading.Event(), server.accountant.ask
    monkeypatch.setattr(server.accountant, "ask", lambda question: ask(question) if seen.wait(120) else {})
    context = chromium.new_context()
    page = context.new_page()
    page.goto(server.url)
    page.locator("#plan-graph").fill("ring:5")
    page.wait_for_selector("#plan-waiting >> text=/The accountant is computing: [1-9][0-9]* s/")
    assert "No answer" not in page.inner_text("#planner")
    assert page.inner_text("#plan .missing") == "The accountant is computing."
    seen.set()
    page.wait_for_selector("#plan-answer[data-from=accountant]")
    assert not page.locator("#plan-waiting").is_visible()
    page.locator("#plan-rounds").fill("3000")
    page.wait_for_selector("#plan-answer[data-from=nobody] >> text=a whole number from 1 to 2,000 is needed")
    assert "the reason is above" in page.inner_text("#plan .missing")
    context.close()


def test_ctrl_c_ends_it_with_one_line(command, tmp_path):
    running = command(tmp_path, "plan", "--serve")
    while "\n" not in running.printed() and not running.wait(0.05):
        pass
    running.send_signal(signal.SIGINT)
    out, err = running.communicate()
    assert re.fullmatch(r"Planner: http://127\.0\.0\.1:\d+/\S{22}/\n", out)
    assert running.returncode == 130
    assert err.splitlines()[-1:] == ["sotto: stopped"]
    assert err.count("\n") <= 2


@pytest.mark.parametrize("words", ["--port 80000", "--port 4000", "--serve --epsilon 3", "--serve --json"])
def test_options_that_do_not_go_with_the_page_are_refused(words, sotto):
    code, out, err = sotto(f"plan {words}")
    assert (code, out, err.count("\n")) == (2, "", 1)
