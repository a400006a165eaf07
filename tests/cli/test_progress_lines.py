"""Lines of progress where stderr is no terminal, and the rate on a bar where it is one."""

from __future__ import annotations

import json
import re
import threading

import pytest
import rich.progress

from sottovoce.cli import options, output, progress_lines
from sottovoce.cli.progress_lines import Activity, activity, lines_written


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


def test_rate_and_remaining_time_are_those_of_the_same_rounds_whatever_was_done_before(monkeypatch):
    clock, made = [0.0], []

    class Timed(rich.progress.Progress):
        def __init__(self, *columns, **options):
            super().__init__(*columns, get_time=lambda: clock[0], auto_refresh=False, **options)
            made.append(self)

    monkeypatch.setattr(rich.progress, "Progress", Timed)
    with output._bar("clinics", True, lambda done: f"epsilon {done}") as tell:
        clock[0] = 60.0
        tell(5, 40)
        (task,) = made[0].tasks
        assert (task.fields["speed"], task.time_remaining) == ("epsilon 5", None)
        for done in range(6, 21):
            clock[0] += 0.5
            tell(done, 40)
        assert (task.fields["speed"], task.time_remaining) == ("2.0 rounds/s, epsilon 20", 10)
