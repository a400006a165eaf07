"""`sotto account RUN RUN...`: what several runs tell together; with one run and a view, what that view learns."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce._version import __version__
from sottovoce.cli.account_words import headline_words, table_words
from sottovoce.cli.options import Setting
from sottovoce.cli.output import Table, answer, print_sentence, print_sentences
from sottovoce.cli.progress import activity
from sottovoce.errors import InputError
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.core.adjacency import Adjacency, Change
    from sottovoce.run.accounts_of_runs import JointAccount, JointFigure


def answer_for_runs(runs: list[Path], setting: Setting, data: Path | None) -> None:
    """Print the joint figures of runs, for everyone and for the views that all have, or for one view.

    Of one run, any view can be asked about.
    """
    from sottovoce.run.accounts_of_runs import joint_account

    given = Setting(view=setting.view, delta=setting.delta)
    if len(runs) == 1 and setting.view != "everyone":
        given = dataclasses.replace(given, and_final_models=setting.and_final_models)
    if setting != given:
        raise InputError(
            "runs together with --graph or its options", "runs have settings of their own", "keep --view and --delta"
        )
    if len(runs) == 1 and setting.view != "everyone":
        _answer_for_view(runs[0], setting, data)
        return
    with activity("guarantees"):
        found = joint_account(runs, setting.delta, data=data)
    figures = _asked(found, setting.view)
    document = {
        "version": __version__, "runs": [str(folder) for folder in found.folders], "delta": setting.delta,
        "adjacency": found.adjacency.value, "figures": [one.document(setting.delta) for one in figures],
        "note": found.note,
    }  # fmt: skip
    answer(document, _table(figures, setting.delta), *_lines(found, figures[0]))


def _answer_for_view(folder: Path, setting: Setting, data: Path | None) -> None:
    """Print the account of one view of a run, by the run's own settings and, unless another is given, its delta."""
    from sottovoce.privacy.assumptions import CHANGED_RECORD
    from sottovoce.run.accounts_of_runs import ask_about_run
    from sottovoce.run.privacy_report import listed, sigma_of

    with activity(f"accounting for {setting.view}"):
        delta = None if setting.delta == Setting().delta else setting.delta
        asked = ask_about_run(folder, setting.view, delta=delta, final_models=setting.and_final_models, data=data)
    found, run, sampled = asked.account, asked.accountant.training_run, asked.sampled
    document = {
        "version": __version__, "run": str(folder), "sigma": listed(sigma_of(run.algorithm.noise)),
        "adjacency": run.adjacency.value, "participation": str(run.participation),
        "convex": asked.accountant.convexity.established, "seed": run.seed, "labels": asked.names,
        **found.document(asked.delta), "nodes": None, "sampled": None if sampled is None else sampled.document(),
    }  # fmt: skip
    answer(document, found.table(asked.delta))
    print_sentences(table_words(found) + headline_words(found, found.headline, asked.delta, asked.names))
    if sampled is not None:
        print_sentence(
            "Batches are drawn at random: whoever hears every message, and so this view too, learns at most "
            f"epsilon {round_up(sampled.epsilon)} about one record that is {CHANGED_RECORD[sampled.change]}."
        )


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
    if found.covers.colluders is not None and first is found.figures[0]:
        lines.append(f"It holds {found.covers}.")
    lines += [f"It assumes: {assumption}." for assumption in first.assumptions]
    return lines if found.note is None else [*lines, found.note]
