"""`--track`: runs for TensorBoard and MLflow, when they are finished."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.output import print_note

if TYPE_CHECKING:
    from sottovoce.report.tracking import Tracker
    from sottovoce.run.run_documents import RunDocuments

Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Also write finished runs to local files for tensorboard or mlflow; may be repeated."),
]


def wanted_trackers(words: list[str] | None) -> "list[Tracker]":
    """The programs that are named; refused before any work where one is not installed."""
    if not words:
        return []
    from sottovoce.report.tracking import parse_tracker

    return [parse_tracker(word) for word in dict.fromkeys(words)]


def write_tracked(runs: "Sequence[RunDocuments]", trackers: "Sequence[Tracker]", out: Path, as_json: bool) -> None:
    """Write runs for each program, and say where."""
    if trackers:
        from sottovoce.report.tracking import track

        places = track(runs, trackers, out)
        if not as_json:
            print_note(f"Written for {', '.join(trackers)}: {', '.join(map(str, places))}")
