"""`sotto demo`: training, accounting, attacks and a page."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Option

from sottovoce.cli.app import app
from sottovoce.cli.options import Changes, Jobs, Json
from sottovoce.cli.output import Table, answer, print_remark
from sottovoce.cli.progress import activity
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.demo.demonstration import DemonstratedRun, Demonstration

SUMS = "sees only sums"


@app.command()
def demo(
    settings: Changes = None,
    out: Path = Option(Path("runs"), "--out", help="Folder that runs are written into."),
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Show what neighbours learn without noise, and with three kinds of noise at one epsilon. Writes a page.

    Example: sotto demo --out runs
    """
    from sottovoce.demo.demonstration import demonstrate

    found = demonstrate(out, settings or [], activity, jobs=jobs)
    commands = _next_commands(found)
    document = {"page": str(found.page), "runs": [one.document() for one in found.runs], "next": commands}
    answer(document, _table(found.runs))
    print_remark(_setting(found))
    for one in found.runs:
        if one.privacy.covers is not None and one.privacy.covers.colluders is not None:
            print_remark(f"{_title(one)}: it holds {one.privacy.covers}.")
        if math.isfinite(one.privacy.headline.epsilon):
            print_remark(f"{_title(one)}: rounding is covered by {_covering_rounding(one)}.")
    for note in found.notes:
        print_remark(note)
    print_remark(f"Page: {found.page}")
    print_remark("Three things to try:")
    for line in commands:
        print_remark(f"  {line}")


def _setting(found: "Demonstration") -> str:
    """What was trained by whom, and what the columns are about."""
    about = found.runs[0].finished.run.experiment.about
    return (
        f"{about.purpose} Accuracy is that of the average of all models. Epsilon limits what can be learned about one "
        "picture: 0 is nothing."
    )


def _table(runs: "Sequence[DemonstratedRun]") -> Table:
    hops = max((len(one.by_distance) for one in runs), default=0)
    heading = ["training", "accuracy", "pictures reconstructed", "members told from others"]
    table = [[*heading, "epsilon, neighbour", f"epsilon, {hops} hops"]]
    for one in runs:
        accuracy, distances = one.finished.result["metrics"]["accuracy"]["average"], one.by_distance
        table.append([
            _title(one), f"{accuracy:.0%}",
            _pictures(one),
            SUMS if one.membership is None else f"{one.membership['auc']['value']:.0%} (coin: 50%)",
            _epsilon(distances[0]["epsilon"]) if distances else "none is proven",
            _epsilon(distances[-1]["epsilon"]) if len(distances) == hops else "all are neighbours",
        ])  # fmt: skip
    return table


def _pictures(run: "DemonstratedRun") -> str:
    if run.membership is None:
        return SUMS
    return "not tried" if run.likeness is None else f"correlation {max(0.0, run.likeness):.2f}"


def _epsilon(value: float | str) -> str:
    return "no limit" if value == "inf" else f"{value:g}"


def _title(run: "DemonstratedRun") -> str:
    from sottovoce.algorithms.registry import algorithm_spec

    title, headline = algorithm_spec(run.finished.run.experiment.algorithm.name).title, run.privacy.headline
    title = title if run.features is None else f"features: {title}"
    finite = math.isfinite(headline.epsilon)
    return f"{title}, epsilon {round_up(headline.epsilon)}" if finite else f"{title}, no noise"


def _covering_rounding(run: "DemonstratedRun") -> str:
    """Which of its figures hold for what computers send, rather than for real numbers."""
    nodes = [one.covers_rounding for view in run.privacy.node_views.values() for one in view.guarantees]
    if run.privacy.headline.covers_rounding:
        return "all figures" if all(nodes) else "the figure for everyone, and by some of those for single nodes"
    return "some of the figures for single nodes alone" if any(nodes) else "no figure"


def _next_commands(found: "Demonstration") -> list[str]:
    """Commands to paste, about what was just run."""
    from sottovoce.core.compression import Identity

    noisy = [one for one in found.runs if one.privacy.sigma is not None and one.privacy.adjacency == "record"]
    run = noisy[0] if noisy else found.runs[-1]
    experiment, sent, sigma = run.finished.run.experiment, run.finished.result["metrics"], run.privacy.sigma
    dimension = 8 * sent["bytes"] // max(1, sent["messages"]) // Identity().bits(1)
    question = f"--graph {experiment.topology.graph} --rounds {experiment.training.rounds}"
    question += f" --adjacency {run.privacy.adjacency} --participation {run.privacy.participation}"
    lines = [f"sotto audit {run.folder} --runs 0"]
    if isinstance(sigma, int | float):
        lines.append(f"sotto account {run.folder} --view node:0")
    if experiment.privacy.epsilon is not None and experiment.data.rows is not None:
        size = f"--records {experiment.data.rows} --dimension {dimension}"
        lines.append(f"sotto plan {question} {size} --epsilon {experiment.privacy.epsilon:g}")
    return lines
