"""The figures of a finished run, computed again from its settings, its checkpoint, its data and its noise key.

With the run's own noise key a rerun gives all bits again, so that the figures of every round and the checkpoint can be
compared. Without it, the last round is compared with the checkpoint, and earlier rounds are not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from sottovoce.auditing.folder_check import MEASURED_TOLERANCE, FolderCheck, Given, as_read
from sottovoce.core.arrays import Rows
from sottovoce.core.loop import iterate_rounds
from sottovoce.errors import Diverged, InputError
from sottovoce.learning.tasks import CPU
from sottovoce.run.baselines import compute_baselines
from sottovoce.run.checkpoint import load
from sottovoce.run.fingerprint import origin, versions
from sottovoce.run.finished_run import FinishedRun, buildable
from sottovoce.run.layout import (
    ATTACK,
    BASELINES,
    CHECKPOINT,
    CONFIG,
    FILES,
    GRAPH,
    MEMBER_MODEL,
    MESSAGES,
    METRICS,
    PRIVACY,
    PRIVATE,
    RESULT,
    RunFiles,
)
from sottovoce.run.privacy_document import PrivacyDocument, epsilon_in_line
from sottovoce.run.privacy_report import report_wanted
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.run_documents import RunDocuments
from sottovoce.run.training_run import RunState, TrainingRun, average_model, is_measured, measure, measured_rounds
from sottovoce.support.config import Document, first_difference
from sottovoce.support.npz import read_checked_npz
from sottovoce.support.progress import Progress
from sottovoce.support.text import parse_json
from sottovoce.support.threads import threads

SETTINGS, GRAPH_AND_SIZES = "what the settings give", "what the graph gives"
MODELS, RERUN = "what the models in checkpoint.npz give", "what a rerun gives"

MEASURED = ("loss", "accuracy", "rmse", "consensus")
"""What lines of metrics say of models."""

UNCOMPARED_FILES = {MESSAGES.name, MEMBER_MODEL.name}
"""Files of a run that nothing else in its folder is compared with; like whatever is no file of a run, they are listed.

Of reruns only those are used that the auditor has signed, so that these need not be listed.
"""

Sent = dict[int, Document]
"""Messages and bytes after each round."""


@dataclass(frozen=True, eq=False)
class Ending:
    """How a run ends, with the lines of metrics as far as they can be measured again."""

    state: RunState
    models: torch.Tensor
    lines: tuple[Document, ...]


class Rerun(NamedTuple):
    """How a rerun ends, or why there is none."""

    ending: Ending | None = None
    why_not: str = ""


def check_files(
    run: FinishedRun, documents: RunDocuments, *, rerun: bool = True, progress: Progress | None = None
) -> FolderCheck:
    """Compare all that the files of a folder state with what can be computed again; a `rerun` takes as long as the run.

    Whatever else lies in the folder is not checked, and is listed by its name.
    """
    found = FolderCheck([problem.found for problem in run.foreign])
    _compare_privacy(found, run)
    expected, stated = _rounds_measured(run), [line["round"] for line in documents.lines]
    if stated != expected:
        found.findings.append(f"metrics.jsonl: rounds are {_some(stated)}, but the settings give {_some(expected)}")
    if found.findings:
        return found  # what else differs follows from these, or cannot be computed
    stored = _stored_ending(run, len(expected))
    try:
        again = _rerun(run, progress) if rerun else Rerun(why_not="no rerun was asked for")
    except Diverged as problem:
        found.findings.append(f"checkpoint.npz: a rerun diverges: {problem.found}")
        return found
    sent = sent_by(run.training_run)
    _compare_metrics(found, run, documents, stored, again, sent)
    _compare_checkpoint(found, run, stored, again, sent)
    if documents.baselines is not None:
        _compare_baselines(found, run, documents.baselines, rerun=rerun)
    files = RunFiles(run.folder)
    for name, document in ((CONFIG.name, files.document(files.config)), (GRAPH.name, files.document(files.graph))):
        found.compare(name, document, [Given("taken as given", document)])
    if documents.attacks:
        found.compare(ATTACK.name, documents.attacks, [], "an attack is repeated by sotto attack")
    known = {kind.name for kind in FILES} - UNCOMPARED_FILES
    for path in sorted(run.folder.iterdir()):
        if path.name not in known:
            found.leave_out(path.name, (), "it is not compared with anything")
    return found


def _compare_privacy(found: FolderCheck, run: FinishedRun) -> None:
    report = report_wanted(RunAccountant(run.training_run), run.experiment)
    given = report.document() | origin(run.experiment, run.training_run)
    found.compare(PRIVACY.name, run.stored_privacy, [Given(SETTINGS, as_read(given))])


def _rounds_measured(run: FinishedRun) -> list[int]:
    every, last = run.experiment.metrics.every, run.training_run.rounds
    return [0, *(rounds for rounds in range(1, last + 1) if is_measured(rounds, every, last))]


def _some(rounds: list[int]) -> str:
    return f"{len(rounds)} from {rounds[0]} to {rounds[-1]}" if len(rounds) > 12 else str(rounds)


def _compare_metrics(
    found: FolderCheck, run: FinishedRun, documents: RunDocuments, stored: Ending, again: Rerun, sent: Sent
) -> None:
    """Lines of metrics, and the result, which is copied from them."""
    lines, experiment, privacy = documents.lines, run.experiment, PrivacyDocument.read(run.stored_privacy)
    by_settings = [{"round": line["round"], "epsilon": epsilon_in_line(privacy, line["round"])} for line in lines]
    by_graph = [{key: sent[line["round"]][key] for key in ("messages", "bytes")} for line in lines]
    measured = [Given(MODELS, as_read(stored.lines), MEASURED_TOLERANCE)]
    if again.ending is not None:
        measured.insert(0, Given(RERUN, as_read(again.ending.lines), MEASURED_TOLERANCE))
    found.compare(
        METRICS.name, list(lines),
        [Given(SETTINGS, as_read(by_settings)), Given(GRAPH_AND_SIZES, by_graph), *measured], again.why_not,
    )  # fmt: skip
    result = {
        "name": experiment.name, "seed": experiment.seed, "adjacency": experiment.privacy.adjacency,
        **{key: run.stored_privacy[key] for key in ("algorithm", "topology", "rounds", "sigma", "delta", "headline")},
    }  # fmt: skip
    with threads(experiment.machine.threads):
        scores = run.training_run.task.score(
            average_model(run.training_run, stored.state), experiment.metrics.test_rows
        )
    found.compare(
        RESULT.name, documents.result,
        [
            Given(SETTINGS, result), Given("the last line of metrics.jsonl", {"metrics": lines[-1]}),
            Given(MODELS, {"held_out": as_read(scores)}, MEASURED_TOLERANCE),
        ],
    )  # fmt: skip


def _compare_checkpoint(found: FolderCheck, run: FinishedRun, stored: Ending, again: Rerun, sent: Sent) -> None:
    """The checkpoint, and the private facts, which are copied from it."""
    files, about = RunFiles(run.folder), _about_checkpoint(run)
    as_given = {key: about[key] for key in ("format", "carry", "parts")}
    by_settings = {
        "fingerprint": run.fingerprint, "rounds": run.training_run.rounds, "lines": len(stored.lines),
        "sent": sent[run.training_run.rounds]["sent"],
    }  # fmt: skip
    by_rerun = {} if again.ending is None else {"nonfinite": again.ending.state.nonfinite}
    given = [Given("what it is read with", as_given), Given(SETTINGS, by_settings), Given(RERUN, by_rerun)]
    found.compare(CHECKPOINT.name, about, given, again.why_not)
    copied = {"fingerprint": run.fingerprint, "nonfinite": stored.state.nonfinite}
    found.compare(PRIVATE.name, files.document(files.private), [Given("what checkpoint.npz says", copied)])
    if again.ending is None:
        found.leave_out(CHECKPOINT.name, ["models"], again.why_not)
    elif not torch.allclose(stored.models, again.ending.models, rtol=MEASURED_TOLERANCE, atol=1e-9):
        found.findings.append(f"{CHECKPOINT.name}: its models are not those that a rerun ends with")


def sent_by(training_run: TrainingRun) -> Sent:
    """Messages and bytes that have left nodes after each round: they follow from graph, algorithm and model size."""
    messages, bits, size = 0, 0, training_run.task.model.layout.size
    found: Sent = {0: {"messages": 0, "bytes": 0, "sent": [0, 0]}}
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


def _stored_ending(run: FinishedRun, lines: int) -> Ending:
    """The end that the checkpoint holds; of all lines of metrics it gives the last."""
    training_run, metrics = run.training_run, run.experiment.metrics
    state = load(RunFiles(run.folder).checkpoint, training_run, run.fingerprint).state
    with threads(run.experiment.machine.threads):
        last = measure(training_run, state, 0.0, metrics.test_rows).document()
    return Ending(state, training_run.models(state), (*({} for _ in range(lines - 1)), _of_models(last)))


def _of_models(line: Document) -> Document:
    return {key: value for key, value in line.items() if key in MEASURED}


def _rerun(run: FinishedRun, progress: Progress | None) -> Rerun:
    """All rounds again, with the run's own noise and batches, where they give the same bits here."""
    why_not = _why_no_rerun(run)
    if why_not is not None:
        return Rerun(why_not=why_not)
    training_run, metrics, lines = run.training_run, run.experiment.metrics, []
    with threads(run.experiment.machine.threads):
        for state, measurement in measured_rounds(
            training_run, training_run.before(), every=metrics.every, test_rows=metrics.test_rows
        ):
            if progress is not None:
                progress(state.rounds, training_run.rounds)
            if measurement is not None:
                lines.append(_of_models(measurement.document()))
            last = state
    return Rerun(Ending(last, training_run.models(last), tuple(lines)))


def _why_no_rerun(run: FinishedRun) -> str | None:
    if not run.has_key:
        return "the folder has no noise key, so that its rounds cannot be played again"
    if run.experiment.machine.device != CPU.type:
        return f"it ran on {run.experiment.machine.device}, which rounds in another way"
    other = first_difference(run.stored_privacy.get("versions", {}), versions())
    if other is not None:
        return f"it says that it ran with {other[0]} {other[1]}, and {other[2]} is installed"
    return None


def _about_checkpoint(run: FinishedRun) -> Document:
    """What a checkpoint says of itself."""
    stored = read_checked_npz(RunFiles(run.folder).checkpoint, ["about"])
    return dict(parse_json(stored["about"].tobytes()))


def _compare_baselines(found: FolderCheck, run: FinishedRun, stated: Document, *, rerun: bool) -> None:
    """Baselines draw no noise, so that they can be computed again wherever the data is."""
    given, why_not = [], "no rerun was asked for"
    if rerun:
        try:
            again = compute_baselines(buildable(run.experiment, run.data, own=run.own), run.data)
            given = [Given(RERUN, as_read(again), MEASURED_TOLERANCE)]
        except InputError as problem:
            why_not = problem.found
    found.compare(BASELINES.name, stated, given, why_not)
