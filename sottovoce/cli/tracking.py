"""`--track`: runs for TensorBoard and MLflow, as their rounds go or when they are finished."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.cli.output import print_remark

if TYPE_CHECKING:
    from sottovoce.report.tracking import Tracker
    from sottovoce.run.run_documents import RunDocuments
    from sottovoce.support.progress import Progress


def wanted_trackers(words: list[str] | None) -> "list[Tracker]":
    """The programs that are named; refused before any work where one is not installed."""
    if not words:
        return []
    from sottovoce.report.tracking import parse_tracker

    return [parse_tracker(word) for word in dict.fromkeys(words)]


@contextmanager
def tracked_live(folder: Path, trackers: "Sequence[Tracker]", out: Path, tell: "Progress") -> "Iterator[Progress]":
    """What a run calls after each round: how far it is, and each program that is named gets what was measured.

    A finished run, which is only read, is written as a whole.
    """
    if not trackers:
        yield tell
        return
    from sottovoce.report.tracking import LiveTracking, places_of

    live, finished = LiveTracking(folder, trackers, out), False

    def both(done: int, total: int) -> None:
        live(done, total)
        tell(done, total)

    try:
        yield both
        finished = True
    finally:
        live.close(finished=finished)
    if not live.begun:
        from sottovoce.run.run_documents import read_runs

        write_tracked(read_runs([folder]), trackers, out)
    else:
        _say_where(trackers, places_of(trackers, out))


def write_tracked(runs: "Sequence[RunDocuments]", trackers: "Sequence[Tracker]", out: Path) -> None:
    """Write runs for each program, and say where."""
    if trackers:
        from sottovoce.report.tracking import track

        _say_where(trackers, track(runs, trackers, out))


def _say_where(trackers: "Sequence[Tracker]", places: Sequence[Path]) -> None:
    print_remark(f"Written for {', '.join(trackers)}: {', '.join(map(str, places))}")
