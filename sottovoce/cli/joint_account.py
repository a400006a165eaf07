"""`sotto account RUN RUN...`: what several runs tell together."""

from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce._version import __version__
from sottovoce.cli.options import Setting
from sottovoce.cli.output import Table, answer
from sottovoce.errors import InputError
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.core.adjacency import Adjacency, Change
    from sottovoce.run.joint_account import JointAccount, JointFigure


def answer_for_runs(runs: list[Path], setting: Setting, as_json: bool) -> None:
    """Print the joint figures of runs, for everyone and for the views that all have, or for one view."""
    from sottovoce.run.joint_account import joint_account

    if setting != Setting(view=setting.view, delta=setting.delta):
        raise InputError("runs with options of a graph", "runs have settings of their own", "keep --view and --delta")
    found = joint_account(runs, setting.delta)
    figures = _asked(found, setting.view)
    document = {
        "version": __version__, "runs": [str(folder) for folder in found.folders], "delta": setting.delta,
        "adjacency": found.adjacency.value, "figures": [one.document(setting.delta) for one in figures],
        "note": found.note,
    }  # fmt: skip
    answer(document, as_json, _table(figures, setting.delta), *_lines(found, figures[0]))


def changed_data(adjacency: "Adjacency", change: "Change") -> str:
    """What a joint figure is about, as a sentence."""
    what = "a node's data is" if adjacency == "user" else "one record is"
    how = "replaced" if change == "replace" else "made to count as nothing"
    return f"It is about the same data in all runs, of which {what} {how}."


def _asked(found: "JointAccount", view: str) -> "tuple[JointFigure, ...]":
    """All figures, or those of the view that was asked for."""
    if view == "everyone":
        return found.figures
    figures = tuple(one for one in found.figures if str(one.view) == view)
    if not figures:
        known = ", ".join(str(one.view) for one in found.figures)
        raise InputError(f"--view {view}", f"views that all runs have: {known}", "choose one of them")
    return figures


def _table(figures: "tuple[JointFigure, ...]", delta: float) -> Table:
    table = [["view", "runs", "mu", f"epsilon at delta {delta:g}", "how"]]
    for one in figures:
        mu = "-" if one.joint.mu is None else round_up(one.joint.mu)
        epsilon = round_up(one.joint.epsilon(delta))
        table.append([str(one.view), str(len(one.joint.losses)), mu, epsilon, one.joint.rule.value])
    return table


def _lines(found: "JointAccount", first: "JointFigure") -> list[str]:
    lines = [changed_data(found.adjacency, first.joint.change), f"{first.final_models.sentence}."]
    lines += [f"It assumes: {assumption}." for assumption in first.assumptions]
    return lines if found.note is None else [*lines, found.note]
