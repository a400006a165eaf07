"""`sotto demo`: the whole of it in a minute."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.app import app
from sottovoce.cli.options import Json
from sottovoce.cli.output import Table, answer, note, progress
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.demo.demonstration import Demonstration

EXACT = 1e-9
"""Below this a gradient is solved for exactly, up to rounding."""

ABOUT = {"record": "one record replaced", "user": "all data of a node replaced, so also one record"}


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
    runs, tries = [one.document() for one in found.runs], _next(found)
    answer({"page": str(found.page), "runs": runs, "next": tries}, as_json, _table(runs), *_words(runs))
    if not as_json:
        note(f"Page: {found.page}")
        note("Next, try:")
        for line in tries:
            note(f"  {line}")


def _table(runs: list[dict[str, Any]]) -> Table:
    figures = ["accuracy, average model", "nodes", "epsilon, everyone", "worst single node"]
    table = [["algorithm", *figures, "members: area", "", "a gradient"]]
    for one in runs:
        auc, accuracy = one["attack"]["auc"], one["accuracy"]
        table.append([
            one["algorithm"], f"{accuracy['average']:.3f}", f"{accuracy['mean']:.3f}", _promise(one["everyone"]),
            _promise(one["worst_node"]), f"{auc['value']:.3f}", f"({auc['low']:.3f} to {auc['high']:.3f})",
            _sharp(one["sharpest_gradient"]),
        ])  # fmt: skip
    return table


def _promise(found: dict[str, Any] | None) -> str:
    """An epsilon is never shown without the kind of its proof."""
    if found is None:
        return "none is proven"
    return f"{round_up(float(found['epsilon']))} {found['kind']}" if _limited(found) else "no limit"


def _sharp(deviation: Any) -> str:
    if deviation == "inf":
        return "hidden"
    return "exactly" if deviation < EXACT else f"± {float(f'{deviation:.2g}'):g}"


def _limited(found: dict[str, Any] | None) -> bool:
    return found is not None and found["epsilon"] != "inf"


def _words(runs: list[dict[str, Any]]) -> list[str]:
    from sottovoce.privacy.assumptions import FINAL_MODELS

    lines = [f"Epsilon at delta {runs[0]['delta']:g}; whoever hears every message, or one node, is the adversary."]
    for adjacency, about in ABOUT.items():
        proven = [one for one in runs if one["proven_for"] == adjacency and _limited(one["everyone"])]
        names = list(dict.fromkeys(one["algorithm"] for one in proven))
        if names:
            lines.append(f"{', '.join(names)}: {about}.")
    kept = dict.fromkeys(one["algorithm"] for one in runs if _limited(one["everyone"]) and not one["models_covered"])
    if kept:
        lines.append(f"{', '.join(kept)}: not covered are {FINAL_MODELS}.")
    confidence = runs[0]["attack"]["confidence"]
    lines.append(
        "Members: every node tells its neighbours' training rows from others by their models; 0.5 is guessing, "
        f"in brackets {confidence:.0%} intervals."
    )
    lines.append("A gradient: how sharply node 0 solves for that of a neighbour, whose length is 1 at most.")
    return lines


def _next(found: "Demonstration") -> list[str]:
    """Commands to paste, about what was just run."""
    from sottovoce.core.compression import Identity

    noisy = [one for one in found.runs if one.privacy["sigma"] is not None and one.privacy["adjacency"] == "record"]
    run = noisy[len(noisy) // 4] if noisy else found.runs[-1]
    experiment, sent = run.finished.run.experiment, run.finished.result["metrics"]
    dimension = 8 * sent["bytes"] // max(1, sent["messages"]) // Identity().bits(1)
    about = f"--graph {experiment.topology.graph} --rounds {experiment.training.rounds}"
    about += f" --adjacency {run.privacy['adjacency']} --participation {run.privacy['participation']}"
    lines = [f"sotto audit {run.folder} --runs 0"]
    if run.privacy["sigma"] is not None:
        lines.append(f"sotto account {about} --sigma {round_up(run.privacy['sigma'])} --view node:0")
    if experiment.privacy.epsilon is not None and experiment.data.rows is not None:
        size = f"--records {experiment.data.rows} --dimension {dimension}"
        lines.append(f"sotto plan {about} {size} --epsilon {experiment.privacy.epsilon:g}")
    return lines
