"""What the public files of a run's folder state, computed again from its settings and its graph.

Pages, tables and trackers show what a folder says. Guarantees, rounds, epsilon and what was sent follow from settings
and graph, and are compared with them. What models decide is private: it is compared where whoever checks has measured
them again (`auditing.recomputation`), and is listed as not checked otherwise. Reading needs no torch; computing does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.core.arrays import Rows
from sottovoce.core.loop import iterate_rounds
from sottovoce.errors import InputError, Unaccountable, require_extra
from sottovoce.run.folder_check import FolderCheck, Given, as_read
from sottovoce.run.layout import ATTACK, AUDIT, BASELINES, METRICS, PRIVACY, RESULT
from sottovoce.run.privacy_document import epsilon_in_line
from sottovoce.run.run_documents import RunDocuments
from sottovoce.support.config import Document, Experiment

if TYPE_CHECKING:
    from sottovoce.run.run_accountant import RunAccountant
    from sottovoce.run.training_run import TrainingRun

SETTINGS, GRAPH_AND_SIZES = "what the settings give", "what the graph gives"
BY_AN_AUDIT = "models and rows are private; sotto audit compares it"
BY_AN_ATTACK = "an attack is repeated by sotto attack"
BY_MEMBER = "only the member's own program knows it"

COPIED = ("algorithm", "topology", "rounds", "sigma", "delta", "headline")
"""What `result.json` repeats of `privacy.json`."""


@dataclass(frozen=True)
class Measured:
    """What models give, where they were measured again: lines of metrics and the result; and why the rest was not."""

    lines: tuple[Given, ...] = ()
    result: tuple[Given, ...] = ()
    why_not: str = BY_AN_AUDIT


def with_check(run: RunDocuments, build: Callable[[], RunAccountant]) -> RunDocuments:
    """The run with its check. Where its settings cannot be built here, nothing is checked, and the reason says why."""
    try:
        require_extra("learning", "torch")
        found = check_public(run, build())
    except InputError as problem:
        found = FolderCheck()
        for name in (PRIVACY.name, METRICS.name, RESULT.name):
            found.leave_out(name, (), str(problem))
    except Unaccountable as refusal:
        found = FolderCheck([f"{PRIVACY.name}: its settings give no guarantee: {refusal}"])
    for kind, stated, reason in (
        (BASELINES, run.baselines, BY_AN_AUDIT), (ATTACK, run.attacks, BY_AN_ATTACK), (AUDIT, run.audit, BY_AN_AUDIT),
    ):  # fmt: skip
        if stated:
            found.leave_out(kind.name, (), reason)
    return replace(run, check=found)


def check_public(run: RunDocuments, accountant: RunAccountant, measured: Measured = Measured()) -> FolderCheck:  # noqa: B008
    """Guarantees, lines of metrics and the result, against what settings, graph and measured models give."""
    found, training_run = check_privacy(run.stated, accountant, run.experiment), accountant.training_run
    expected, stated = _rounds_measured(run), [line["round"] for line in run.lines]
    if run.member is None and stated != expected:
        found.findings.append(f"{METRICS.name}: rounds are {_some(stated)}, but the settings give {_some(expected)}")
    if found.findings:
        return found  # what else differs follows from these, or cannot be computed
    lines = [{"round": line["round"], "epsilon": epsilon_in_line(run.privacy, line["round"])} for line in run.lines]
    given = [Given(SETTINGS, as_read(lines)), *measured.lines]
    if run.member is None:
        sent = sent_by(training_run)
        by_graph = [{key: sent[line["round"]][key] for key in ("messages", "bytes")} for line in run.lines]
        given.insert(1, Given(GRAPH_AND_SIZES, by_graph))
    why_not = measured.why_not if run.member is None else BY_MEMBER
    found.compare(METRICS.name, list(run.lines), given, why_not)
    experiment = run.experiment
    result = {
        "name": experiment.name, "seed": experiment.seed, "adjacency": experiment.privacy.adjacency,
        **{key: run.stated[key] for key in COPIED},
        **({"member": None} if run.member is None and "member" in run.result else {}),
    }  # fmt: skip
    last = Given(f"the last line of {METRICS.name}", {"metrics": run.lines[-1]})
    found.compare(RESULT.name, run.result, [Given(SETTINGS, result), last, *measured.result], why_not)
    return found


def check_privacy(stated: Document, accountant: RunAccountant, experiment: Experiment) -> FolderCheck:
    """Whether a `privacy.json` is what its settings give: the same version computes the same."""
    from sottovoce.run.privacy_report import stated_again

    found = FolderCheck()
    found.compare(PRIVACY.name, stated, [Given(SETTINGS, as_read(stated_again(accountant, experiment)))])
    return found


def _rounds_measured(run: RunDocuments) -> list[int]:
    from sottovoce.run.training_run import is_measured

    every, last = run.experiment.metrics.every, run.experiment.training.rounds
    return [0, *(rounds for rounds in range(1, last + 1) if is_measured(rounds, every, last))]


def _some(rounds: list[int]) -> str:
    return f"{len(rounds)} from {rounds[0]} to {rounds[-1]}" if len(rounds) > 12 else str(rounds)


def sent_by(training_run: TrainingRun) -> dict[int, Document]:
    """Messages and bytes that have left nodes after each round: they follow from graph, algorithm and model size."""
    messages, bits, size = 0, 0, training_run.task.model.layout.size
    found: dict[int, Document] = {0: {"messages": 0, "bytes": 0, "sent": [0, 0]}}
    zeros = np.zeros((training_run.topology.n, 1))
    played = iterate_rounds(
        training_run.algorithm, training_run.topology, zeros, _no_gradient, rounds=training_run.rounds,
        seed=training_run.seed,
    )  # fmt: skip
    for now in played:
        traffic = now.traffic_of(size)
        messages, bits = messages + traffic.messages, bits + traffic.bits
        found[now.round + 1] = {"messages": messages, "bytes": -(-bits // 8), "sent": [messages, bits]}
    return found


def _no_gradient(round: int, point: Rows) -> Rows:
    return np.zeros_like(point)
