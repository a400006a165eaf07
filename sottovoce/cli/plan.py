"""`sotto plan`: which algorithm to take, before anything is trained."""

from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce._version import __version__
from sottovoce.cli.app import app
from sottovoce.cli.options import (
    ADJACENCY,
    RECORDS,
    ROUNDS,
    AdjacencySpec,
    AndFinalModels,
    Convex,
    Delta,
    GraphSpec,
    Json,
    Part,
    Rounds,
    SuitedWeights,
    ViewSpec,
    Yes,
)
from sottovoce.cli.output import answer, progress
from sottovoce.core.adjacency import Adjacency, parse_adjacency
from sottovoce.errors import Unaccountable

if TYPE_CHECKING:
    from collections.abc import Callable

    from sottovoce.planning.planner import Entry, Plan


@app.command("plan")
def plan_(
    graph: GraphSpec,
    epsilon: Annotated[float, typer.Option(help="Target epsilon.")],
    records: Annotated[str, typer.Option(help=RECORDS)],
    rounds: Rounds = ROUNDS,
    dimension: Annotated[int, typer.Option(min=1, max=10**12, help="Parameters of the model.")] = 1000,
    view: ViewSpec = "everyone",
    and_final_models: AndFinalModels = "none",
    weights: SuitedWeights = None,
    convex: Convex = False,
    adjacency: AdjacencySpec = ADJACENCY,
    participation: Part = "every",
    colluders: Annotated[
        int, typer.Option(min=1, help="How many nodes may work together where algorithms have secure sums.")
    ] = 1,
    delta: Delta = 1e-5,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Every algorithm at a target epsilon, ranked by the noise it leaves in models. No training.

    Example: sotto plan --graph ring:16 --records 80 --rounds 50 --adjacency record --participation 10x5 --epsilon 4
    """
    from sottovoce.core.graphs import graph as build
    from sottovoce.learning.declared_records import parse_records
    from sottovoce.planning.planner import Question, plan

    held = parse_records(records)
    question = Question(
        graph=build(graph), rounds=rounds, epsilon=epsilon, delta=delta, dimension=dimension,
        records=held[0] if len(held) == 1 else tuple(held),
        view=view, final_models=and_final_models, adjacency=adjacency, participation=participation, weights=weights,
        convex=convex, colluders=colluders,
    )  # fmt: skip
    with progress("algorithms") as tell:
        found = plan(question, tell)
    if not found.ranked:
        reasons = "; ".join(dict.fromkeys(one.reason for one in found.refused))
        raise Unaccountable(f"no algorithm meets epsilon {epsilon:g} against {view}: {reasons}")
    answer(_document(found), as_json, found.table(), *_words(found))


def _document(found: "Plan") -> dict[str, object]:
    question = found.question
    best = found.recommended
    return {
        "version": __version__, "graph": question.graph.name, "rounds": question.rounds, "epsilon": question.epsilon,
        "delta": question.delta, "view": question.view, "final_models": question.final_models,
        "adjacency": question.adjacency, "colluders": question.colluders,
        "participation": question.participation, "convex": question.convex, "records": _listed(question.records),
        "dimension": question.dimension, "sensitivity": _listed(question.sensitivity),
        "ranked": [_entry(entry, question.delta) for entry in found.ranked],
        "not_applicable": [{**one._asdict(), "settings": dict(one.settings)} for one in found.refused],
        "recommendation": {"algorithm": None if best is None else best.label, "reason": found.reason},
    }  # fmt: skip


def _listed(values: "float | tuple[float, ...]") -> "float | list[float]":
    return list(values) if isinstance(values, tuple) else values


def _entry(entry: "Entry", delta: float) -> dict[str, object]:
    return {
        "algorithm": entry.algorithm, "settings": dict(entry.settings), "weights": entry.weights,
        "sigma": _listed(entry.sigma),
        "guarantee": entry.guarantee.document(delta),
        "sampled": None if entry.sampled is None else entry.sampled.document(), "covers": entry.covers.document(),
        "error_average_model": entry.error_average, "error_node": entry.error_node,
        "not_predicted": entry.unpredicted or None, "bytes_per_node": entry.bytes_per_node,
    }  # fmt: skip


def _shared(found: "Plan", sentence: str, fact: "Callable[[Entry], str]") -> list[str]:
    """A sentence for each different fact, with the algorithms that it holds for."""
    facts: dict[str, list[str]] = {}
    for entry in found.ranked:
        facts.setdefault(fact(entry), []).append(entry.label)
    return [f"{', '.join(labels)}: {sentence.format(one)}." for one, labels in facts.items()]


def _words(found: "Plan") -> list[str]:
    question = found.question
    about = "one record" if parse_adjacency(question.adjacency) is Adjacency.RECORD else "all data of a node"
    lines = [
        f"Epsilon against {question.view} at delta {question.delta:g}, {about} replaced. Noise: the root mean square "
        "distance it moves a model, for steps of size one and gradients clipped to one; training itself is left out.",
        f"Recommended: {found.reason}.",
    ]
    lines += _shared(found, "The target is met {}", lambda entry: str(entry.covers))
    lines += _shared(found, "{}", lambda entry: entry.guarantee.final_models.sentence)
    for one in found.refused:
        shown = ",".join(f"{key}={value}" for key, value in one.settings.items())
        lines.append(f"Not applicable: {one.algorithm}{f'({shown})' if shown else ''}: {one.reason}.")
    return lines
