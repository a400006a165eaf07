"""A plugin of pytest: which lines of the package each test passes through. Used by `benchmarks.mutants`."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

FOLDER = Path(os.environ["MUTANTS_RECORD"])
ROOT = Path(__file__).parents[1]
recorder = coverage.Coverage(data_file=None, source=[str(ROOT / "sottovoce")], messages=False)
seconds: dict[str, float] = {}


def pytest_sessionstart() -> None:
    recorder.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    recorder.switch_context(item.nodeid)
    try:
        return (yield)  # type: ignore[misc]
    finally:
        recorder.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed or report.skipped:
        seconds[report.nodeid] = float("inf")


def pytest_sessionfinish() -> None:
    recorder.stop()
    data = recorder.get_data()
    passed: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            for test in contexts:
                if seconds.get(test, float("inf")) != float("inf"):
                    passed[test][str(Path(file).relative_to(ROOT))].append(line)
    (FOLDER / "lines.json").write_text(json.dumps([{test: seconds[test] for test in passed}, passed]))
