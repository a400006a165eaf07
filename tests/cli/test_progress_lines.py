"""Lines of progress where stderr is no terminal, and the rate on a bar where it is one."""

from __future__ import annotations

import io
import json
import re
import threading
from functools import partial

import pytest
import rich.console

from sottovoce.cli import options, output, progress_lines
from sottovoce.cli.progress_lines import Activity, activity, lines_written
from sottovoce.support.progress import counted, report_progress, report_stage


def test_lines_tell_of_the_innermost_work_whether_or_not_it_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr(progress_lines, "INTERVAL", 0.001)
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

    with activity("run"), lines_written(write):
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
    monkeypatch.setattr(progress_lines, "INTERVAL", 0.001)
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
    monkeypatch.setattr(output, "lines_written", lambda _: pytest.fail("asked to be quiet"))
    assert sotto("--quiet account --graph ring:6 --json") == (0, out, "")


def test_a_rate_is_that_of_the_rounds_whatever_was_done_before(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("sottovoce.cli.progress_lines.time.monotonic", lambda: clock[0])
    work = Activity("clinics", begun=0.0)
    hear, pace = output._until_counted(work), partial(output._pace, work, True, lambda done: f"epsilon {done}")
    hear("attackers", 0, 3)
    clock[0] = 60.0
    hear("attackers", 1, 3)
    assert (work.line(), pace()) == ("sotto: clinics: attackers 1 of 3, 60 s", "")
    work.tell(5, 40)
    assert pace() == "epsilon 5"
    for done in range(6, 21):
        clock[0] += 0.5
        work.tell(done, 40)
        hear("metropolis weights", 0, 0)  # a part of the rounds that are counted
    assert pace() == "2.0 rounds/s, epsilon 20"


def test_a_bar_shows_what_the_activity_tells(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(output.Verbosity, "shows_progress", True)
    on_terminal = partial(rich.console.Console, file=shown, force_terminal=True, width=99)
    monkeypatch.setattr(rich.console, "Console", on_terminal)
    with output.progress("digits", first="data", note=lambda done: f"epsilon {done} of 9") as tell:
        report_stage("calibrating noise")
        wait_until_shown(shown, "digits: calibrating noise")
        with counted("accounts", 7):
            report_progress(2)
            wait_until_shown(shown, "digits: accounts", "2 of 7")
        tell(3, 8)
        wait_until_shown(shown, "3 of 8, epsilon 3 of 9")


def wait_until_shown(shown, *words):
    """The bar is drawn again ten times a second."""
    plain = ""
    for _ in range(600):
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue()).rpartition("\r")[2]
        if all(word in plain for word in words):
            return
        threading.Event().wait(0.05)
    pytest.fail(f"{words} not in {plain!r}")
