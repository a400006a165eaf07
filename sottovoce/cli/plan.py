"""`sotto plan`: which algorithm to take, before anything is trained."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Context, Option

from sottovoce._version import __version__
from sottovoce.cli.app import app
from sottovoce.cli.options import (
    Asked,
    Code,
    Json,
    Yes,
    code_beside,
    options_given,
    refuse_given,
    with_options,
)
from sottovoce.cli.output import answer, picked, print_line, print_note
from sottovoce.cli.progress import activity
from sottovoce.errors import InputError, Unaccountable
from sottovoce.support.own_code import code_from
from sottovoce.support.processes import ends_when_stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from sottovoce.planning.question import Question
    from sottovoce.planning.ranking import Entry, Plan


OF_PAGE = {"serve", "port", "graph"}
OF_RUN_FILE = {"file", "data", "code", "epsilon", "yes", "as_json", "convex", "algorithm"}
"""What can be given beside --serve, and beside a run file, which says all else."""


@app.command("plan")
@with_options
def plan_(
    asked: Asked,
    context: Context,
    file: Path | None = Argument(None, help="A run file, in place of options; --epsilon and --data may be added."),
    epsilon: float | None = Option(None, help="Target epsilon; default: that of the run file."),
    data: Path | None = Option(None, "--data", help="With a run file: folder of data sets."),
    code: Code = None,
    dimension: int = Option(1000, min=1, max=10**12, help="Number of parameters of the model."),
    algorithm: list[str] | None = Option(
        None,
        help="Only this algorithm; may be repeated.",
    ),
    colluders: int = Option(1, min=1, help="Algorithms with secure sums: how many nodes may collude."),
    yes: Yes = False,
    serve: bool = Option(
        False, "--serve", help="Serve a page to plan with, in a browser on this machine, until Ctrl-C."
    ),
    port: int = Option(0, min=0, max=65535, help="Port of that page; 0 is any free one."),
    as_json: Json = False,
) -> None:
    """Rank every algorithm at a target epsilon by the noise that it leaves in models. Nothing is trained.

    Example: sotto plan --graph ring:16 --records 80 --rounds 50 --adjacency record --participation 10x5 --epsilon 4
    """
    from sottovoce.core.graphs import graph as build
    from sottovoce.learning.declared_records import parse_records
    from sottovoce.planning.planner import plan
    from sottovoce.planning.question import Question

    given = options_given(context)
    if serve or port:
        refuse_given({"--port": not serve}, "it is the port of a page", "add --serve", beside=" without --serve")
        refuse_given(
            {given[name]: name not in OF_PAGE for name in given}, "the page itself asks for all but --graph",
            "leave out {}", beside=" with --serve",
        )  # fmt: skip
        _serve(asked.graph, port)
        return
    if file is not None:
        refuse_given(
            {given[name]: name not in OF_RUN_FILE for name in given}, "the run file already says this",
            "leave it out, or change the file", beside=f" with {file}",
        )  # fmt: skip
        with code_from(code_beside(file) if code is None else code):
            question = _question_of_file(file, data, epsilon)
        if asked.convex:
            question = replace(question, convex=True)
    else:
        if not asked.graph or epsilon is None or asked.records is None or data is not None:
            needed = {"no --graph": asked.graph, "no --epsilon": epsilon, "no --records": asked.records}
            what = next((what for what, value in needed.items() if value in (None, "")), "--data")
            raise InputError(
                f"{what} without a run file", "a plan needs --graph, --records and --epsilon, or a run file",
                "write sotto plan RUN.toml, or give all three",
            )  # fmt: skip
        held = parse_records(asked.records)
        with activity(f"reading {asked.graph}"):
            network = build(asked.graph)
        question = Question(
            graph=network, epsilon=epsilon, dimension=dimension, records=held[0] if len(held) == 1 else tuple(held),
            final_models=asked.and_final_models, colluders=colluders,
            rounds=asked.length, **picked(asked, "delta", "view", "adjacency", "participation", "weights", "convex"),
        )  # fmt: skip
    with activity("algorithms") as work, ends_when_stopped():
        found = plan(question, work.tell, algorithm)
    if not found.ranked:
        reasons = "; ".join(dict.fromkeys(one.reason for one in found.refused))
        raise Unaccountable(f"no algorithm meets epsilon {question.epsilon:g} against {question.view}: {reasons}")
    answer(_document(found), found.table(), *_words(found))


def _serve(graph: str, port: int) -> None:
    """The planner in a browser, until Ctrl-C."""
    from sottovoce.core.graphs import graph as build
    from sottovoce.report.plan_server import PlanServer

    if graph:
        build(graph)
    with PlanServer(port, (graph,) if graph else ()) as server:
        print_line(f"Planner: {server.url}")
        print_note("Open it in a browser on this machine. Ctrl-C ends it.")
        with activity(""):  # it waits for questions
            server.serve_forever()


def _question_of_file(file: Path, data: Path | None, epsilon: float | None) -> "Question":
    """What a run file asks."""
    from sottovoce.run.build import planned_question
    from sottovoce.run.sweep import expand_sweep
    from sottovoce.support.config import read_settings_file

    runs = expand_sweep(read_settings_file(file), str(file))
    if len(runs) != 1:
        raise InputError(f"{file}: a sweep of {len(runs)} runs", "a plan is about one run", "give the file of one run")
    return planned_question(runs[0].experiment, data, epsilon)


def _document(found: "Plan") -> dict[str, object]:
    question = found.question
    best = found.recommended
    return {
        "version": __version__, "graph": question.graph.name,
        **picked(question, "rounds", "epsilon", "delta", "view", "final_models", "adjacency", "colluders"),
        **picked(question, "participation", "convex", "records", "dimension", "sensitivity"),
        "ranked": [_entry(entry, question.delta) for entry in found.ranked],
        "not_applicable": [{**one._asdict(), "settings": dict(one.settings)} for one in found.refused],
        "recommendation": {"algorithm": None if best is None else best.label, "reason": found.reason},
    }  # fmt: skip


def _entry(entry: "Entry", delta: float) -> dict[str, object]:
    return {
        **picked(entry, "algorithm", "weights", "error_node", "bytes_per_node", "sigma"),
        "settings": dict(entry.settings),
        "guarantee": entry.guarantee.document(delta),
        "sampled": None if entry.sampled is None else entry.sampled.document(), "covers": entry.covers.document(),
        "error_average_model": entry.error_average, "not_predicted": entry.unpredicted or None,
    }  # fmt: skip


def _shared(found: "Plan", sentence: str, fact: "Callable[[Entry], str]") -> list[str]:
    """A sentence for each different fact, with the algorithms that it holds for; none for an empty one."""
    facts: dict[str, list[str]] = {}
    for entry in found.ranked:
        if one := fact(entry):
            facts.setdefault(one, []).append(entry.label)
    return [f"{', '.join(labels)}: {sentence.format(one)}." for one, labels in facts.items()]


def _words(found: "Plan") -> list[str]:
    from sottovoce.privacy.assumptions import CHANGED_RECORD

    question = found.question
    about = "one record" if question.adjacency == "record" else "all data of a node"
    lines = [
        f"Epsilon against {question.view} at delta {question.delta:g}, {about} replaced. Noise: the root mean square "
        "distance it moves a model, for steps of size one and gradients clipped to one; training itself is left out.",
        f"Recommended: {found.reason}.",
    ]
    lines += _shared(
        found, "counts on chance, and its figure is about one record that is {}",
        lambda entry: "" if entry.sampled is None else CHANGED_RECORD[entry.sampled.change],
    )  # fmt: skip
    lines += _shared(found, "The target is met {}", lambda entry: str(entry.covers))
    lines += _shared(found, "{}", lambda entry: str(entry.stand_in or ""))
    lines += _shared(found, "{}", lambda entry: entry.guarantee.final_models.sentence)
    for one in found.refused:
        shown = ",".join(f"{key}={value}" for key, value in one.settings.items())
        lines.append(f"Not applicable: {one.algorithm}{f'({shown})' if shown else ''}: {one.reason}.")
    return lines
