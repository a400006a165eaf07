"""What is being done: a line now and then where stderr is no terminal, one that is written anew where it is."""

from __future__ import annotations

import io
import json
import re
import threading

import pytest

from sottovoce.cli import options, output, progress
from sottovoce.cli.progress import Activity, activity, narrated
from sottovoce.support.progress import counted, report_progress, report_stage


def test_lines_tell_of_the_innermost_work_whether_or_not_it_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.001)
    written, more = [], threading.Event()

    def write(line):
        written.append(line)
        more.set()

    def next_line():
        more.clear()
        assert more.wait(60)
        more.clear()  # one that was being written while the work went on
        assert more.wait(60)
        return re.sub(r"\d+ s$", "N s", written[-1])

    monkeypatch.setattr(output.verbosity, "quiet", False)
    monkeypatch.setattr(progress, "print_message", write)
    with narrated("run"):
        assert next_line() == "sotto: run: N s"
        with activity("digits") as work:
            assert next_line() == "sotto: digits: N s"
            work.tell(1200, 10_000)
            assert next_line() == "sotto: digits: 1,200 of 10,000, N s"
        assert next_line() == "sotto: run: N s"
    count = len(written)
    more.clear()
    assert not more.wait(0.01)
    assert len(written) == count


def test_a_command_writes_lines_on_stderr_and_its_answer_on_stdout(sotto, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.001)
    written, line, system = threading.Event(), Activity.line, options.Setting.system

    def note(work):
        found = line(work)
        if "tracing" in found:
            written.set()
        return found

    def wait(setting, sigma):
        assert written.wait(60)
        return system(setting, sigma)

    with monkeypatch.context() as patch:
        patch.setattr(Activity, "line", note)
        patch.setattr(options.Setting, "system", wait)
        code, out, err = sotto("account --graph ring:6 --json")
    assert (code, json.loads(out)["graph"]) == (0, "ring:6")
    assert re.search(r"^sotto: tracing dp-d-sgd on ring:6: \d+ s$", err, re.MULTILINE)
    monkeypatch.setattr(Activity, "line", lambda _: pytest.fail("asked to be quiet"))
    assert sotto("--quiet account --graph ring:6 --json") == (0, out, "")


def test_what_comes_before_the_whole_is_counted_is_told_of_and_its_parts_are_not(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("sottovoce.cli.progress.time.monotonic", lambda: clock[0])
    with activity("clinics", first="data", note=lambda done: f"epsilon {done} of 9") as work:
        work.begun = 0.0
        assert work.line() == "sotto: clinics: data, 0 s"
        with counted("attackers", 3):
            report_progress(1)
            clock[0] = 60.0
            assert work.line() == "sotto: clinics: attackers 1 of 3, 60 s"
        work.tell(5, 40)
        report_stage("metropolis weights")  # a part of the rounds that are counted
        assert work.line() == "sotto: clinics: 5 of 40, epsilon 5 of 9, 60 s"


def test_a_terminal_shows_one_line_that_is_gone_before_anything_else_is_printed(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(output.sys, "stderr", shown)
    monkeypatch.setattr(output.verbosity, "quiet", False)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "BLINK", 0.001)
    with narrated("run"), activity("digits") as work:
        work.tell(3, 8)
        wait_until_shown(shown, "digits: 3 of 8")
        output.print_message("a note")
        assert f"{output.EMPTY_LINE}a note\n" in shown.getvalue()
        report_stage("drawing")
        wait_until_shown(shown, "digits: 3 of 8")
    assert shown.getvalue().endswith(output.EMPTY_LINE)


def wait_until_shown(shown, words):
    for _ in range(600):
        if words in shown.getvalue().rpartition(output.EMPTY_LINE)[2]:
            return
        threading.Event().wait(0.05)
    pytest.fail(f"{words} not in {shown.getvalue()!r}")
