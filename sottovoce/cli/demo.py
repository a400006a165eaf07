"""`sotto demo`: training, accounting, attacks and a page in a minute."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.app import app
from sottovoce.cli.options import Json
from sottovoce.cli.output import Table, answer, print_note, progress
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.demo.demonstration import DemonstratedRun, Demonstration
    from sottovoce.privacy.guarantee import PrivacyFigure

FEDERATION = (
    "sotto data split breast-cancer recipes/hospitals.toml --out tables",
    "sotto peer rehearse recipes/hospitals.toml --data tables",
)
"""Commands that show members of a federation at work."""

PROTECTED = {"record": "one record replaced", "user": "all data of a node replaced, so also one record"}


@app.command()
def demo(
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, e.g. training.rounds=50; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder that runs are written into.")] = Path("runs"),
    jobs: Annotated[int | None, typer.Option(min=1, max=64, help="Runs at once; one per core unless given.")] = None,
    as_json: Json = False,
) -> None:
    """Train digits on 16 nodes without noise and with three kinds of it at the same epsilon; attack, write a page.

    Example: sotto demo --out runs
    """
    from sottovoce.demo.demonstration import demonstrate

    found = demonstrate(out, settings or [], progress, jobs=jobs)
    commands = _next_commands(found)
    document = {"page": str(found.page), "runs": [one.document() for one in found.runs], "next": commands}
    answer(document, as_json, _table(found.runs), *_explanations(found.runs))
    if not as_json:
        print_note(f"Page: {found.page}")
        print_note("Next, try:")
        for line in commands:
            print_note(f"  {line}")
        print_note("Eight hospitals, each a process with its own table, in a clone of the repository:")
        for line in FEDERATION:
            print_note(f"  {line}")


def _table(runs: "Sequence[DemonstratedRun]") -> Table:
    from sottovoce.attacks.run_reconstruction import error_text
    from sottovoce.demo.demonstration import largest_node_epsilon

    figures = ["accuracy, average model", "nodes", "epsilon, everyone", "worst single node"]
    table = [["algorithm", *figures, "membership AUC", "", "gradient error"]]
    for one in runs:
        auc, accuracy = one.attack["auc"], one.finished.result["metrics"]["accuracy"]
        error = one.gradient_error if one.gradient_error == math.inf else float(f"{one.gradient_error:.2g}")
        table.append([
            _algorithm(one), f"{accuracy['average']:.3f}", f"{accuracy['mean']:.3f}",
            _epsilon(one.privacy.headline), _epsilon(largest_node_epsilon(one.privacy)), f"{auc['value']:.3f}",
            f"({auc['low']:.3f} to {auc['high']:.3f})", error_text(error, otherwise="hidden"),
        ])  # fmt: skip
    return table


def _epsilon(headline: "PrivacyFigure | None") -> str:
    """An epsilon is never shown without the kind of its proof."""
    if headline is None:
        return "none is proven"
    return f"{round_up(headline.epsilon)} {headline.kind}" if math.isfinite(headline.epsilon) else "no limit"


def _explanations(runs: "Sequence[DemonstratedRun]") -> list[str]:
    from sottovoce.privacy.assumptions import FINAL_MODELS

    lines = [f"Epsilon at delta {runs[0].privacy.delta:g}; whoever hears every message, or one node, is the adversary."]
    proven = [(_algorithm(one), one.privacy) for one in runs if one.proven]
    for adjacency, change in PROTECTED.items():
        names = dict.fromkeys(name for name, privacy in proven if privacy.adjacency == adjacency)
        if names:
            lines.append(f"{', '.join(names)}: {change}.")
    uncovered = dict.fromkeys(_algorithm(one) for one in runs if one.proven and not one.models_covered)
    if uncovered:
        lines.append(f"{', '.join(uncovered)}: not covered are {FINAL_MODELS}.")
    lines.append(
        "Membership AUC: every node tells its neighbours' training rows from others by their models; 0.5 is random "
        f"guessing, in brackets {runs[0].attack['confidence']:.0%} intervals."
    )
    lines.append(
        "Gradient error: how precisely node 0 reconstructs the gradient of a neighbour, whose length is at most 1."
    )
    return lines


def _algorithm(run: "DemonstratedRun") -> str:
    return run.finished.run.experiment.algorithm.name


def _next_commands(found: "Demonstration") -> list[str]:
    """Commands to paste, about what was just run."""
    from sottovoce.core.compression import Identity

    noisy = [one for one in found.runs if one.privacy.sigma is not None and one.privacy.adjacency == "record"]
    run = noisy[len(noisy) // 4] if noisy else found.runs[-1]
    experiment, sent, sigma = run.finished.run.experiment, run.finished.result["metrics"], run.privacy.sigma
    dimension = 8 * sent["bytes"] // max(1, sent["messages"]) // Identity().bits(1)
    question = f"--graph {experiment.topology.graph} --rounds {experiment.training.rounds}"
    question += f" --adjacency {run.privacy.adjacency} --participation {run.privacy.participation}"
    lines = [f"sotto audit {run.folder} --runs 0"]
    if isinstance(sigma, int | float):
        lines.append(f"sotto account {question} --sigma {round_up(sigma)} --view node:0")
    if experiment.privacy.epsilon is not None and experiment.data.rows is not None:
        size = f"--records {experiment.data.rows} --dimension {dimension}"
        lines.append(f"sotto plan {question} {size} --epsilon {experiment.privacy.epsilon:g}")
    return lines
