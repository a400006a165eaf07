"""The figures of a finished run, computed again from its settings, its checkpoint, its data and its noise key.

What is compared with what stands in `shown_fields`; here are the values. With the run's own noise key a rerun gives all
bits again, so that the figures of every round and the checkpoint can be compared. Without it, the last round is
compared with the checkpoint, and earlier rounds are not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from sottovoce.auditing.shown_fields import MEASURED_TOLERANCE, MODELS, FolderCheck, Source, as_read
from sottovoce.core.arrays import Rows
from sottovoce.core.loop import iterate_rounds
from sottovoce.errors import Diverged, InputError
from sottovoce.learning.tasks import CPU
from sottovoce.run.baselines import compute_baselines
from sottovoce.run.checkpoint import load
from sottovoce.run.fingerprint import own_code, public_fingerprint, versions
from sottovoce.run.finished_run import FinishedRun, buildable
from sottovoce.run.layout import (
    ATTACK,
    BASELINES,
    CHECKPOINT,
    CONFIG,
    FILES,
    GRAPH,
    LOCK,
    METRICS,
    NOISE_KEY,
    PRIVACY,
    PRIVATE,
    RERUNS,
    RESULT,
    SHADOWS,
    Audience,
    RunFiles,
)
from sottovoce.run.metrics import average_model, is_measured, measure
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.privacy_report import report_wanted
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.run_documents import RunDocuments
from sottovoce.run.simulation import measured_rounds
from sottovoce.run.stated_guarantees import epsilon_in_line
from sottovoce.run.training_run import RunState, TrainingRun
from sottovoce.support.config import Document, first_difference
from sottovoce.support.files import read_checked_npz
from sottovoce.support.progress import Progress
from sottovoce.support.text import parse_json
from sottovoce.support.threads import threads

Values = dict[str, dict[Source, object]]
"""What each source gives for each file."""


class End(NamedTuple):
    """Where a run ended: in its checkpoint, or in a rerun."""

    state: RunState
    models: torch.Tensor


@dataclass(frozen=True, eq=False)
class Rerun:
    """The lines of metrics and the end of a rerun, or why there is none."""

    lines: tuple[Document, ...] = ()
    end: End | None = None
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
    checkpoint = load(RunFiles(run.folder).checkpoint, run.training_run, run.fingerprint)
    state = checkpoint.state
    end = End(state, run.training_run.models(state))
    try:
        again = _rerun(run, progress) if rerun else Rerun(why_not="no rerun was asked for")
    except Diverged as problem:
        found.findings.append(f"checkpoint.npz: a rerun diverges: {problem.found}")
        return found
    values, missing = _values(run, documents, end, again), {Source.RERUN: again.why_not} if again.end is None else {}
    _compare_models(found, end, again)
    if again.end is not None:
        values[CHECKPOINT.name][Source.RERUN] = {"nonfinite": again.end.state.nonfinite}
    files = RunFiles(run.folder)
    stated_files: dict[str, object] = {
        METRICS.name: list(documents.lines), RESULT.name: documents.result, BASELINES.name: documents.baselines,
        PRIVATE.name: files.document(files.private), CHECKPOINT.name: _about_checkpoint(run),
        CONFIG.name: files.document(files.config), GRAPH.name: files.document(files.graph),
        ATTACK.name: documents.attacks or None,
    }  # fmt: skip
    for name, document in stated_files.items():
        if document is not None:
            found.compare(name, document, values.get(name, {}), missing)
    if rerun and documents.baselines is not None:
        _compare_baselines(found, run, documents)
    _leave_out_others(found, run)
    return found


def _compare_privacy(found: FolderCheck, run: FinishedRun) -> None:
    report = report_wanted(RunAccountant(run.training_run), run.experiment)
    code = own_code(run.experiment)
    given = {
        **report.document(), "fingerprint": public_fingerprint(run.experiment, run.training_run),
        **({"code": code} if code else {}),
    }  # fmt: skip
    found.compare(PRIVACY.name, run.stored_privacy, {Source.SETTINGS: as_read(given)}, {})


def _rounds_measured(run: FinishedRun) -> list[int]:
    every, last = run.experiment.metrics.every, run.training_run.rounds
    return [0, *(rounds for rounds in range(1, last + 1) if is_measured(rounds, every, last))]


def _some(rounds: list[int]) -> str:
    return f"{len(rounds)} from {rounds[0]} to {rounds[-1]}" if len(rounds) > 12 else str(rounds)


def _values(run: FinishedRun, documents: RunDocuments, end: End, again: Rerun) -> Values:
    """What each source gives for metrics, result, checkpoint and private facts."""
    traffic = sent_by(run.training_run)
    lines, privacy = documents.lines, PrivacyDocument.read(run.stored_privacy)
    experiment, training_run = run.experiment, run.training_run
    with threads(experiment.machine.threads):
        last = _measured(training_run, end.state, experiment.metrics.test_rows)
        average = average_model(training_run, end.state)
        scores = training_run.task.score(average, experiment.metrics.test_rows)
    by_line = {
        Source.SETTINGS: [
            {"round": line["round"], "epsilon": epsilon_in_line(privacy, line["round"])} for line in lines
        ],
        Source.TOPOLOGY: [traffic[line["round"]] for line in lines],
        Source.MODELS: [*({} for _ in lines[:-1]), last],
    }
    if again.end is not None:
        by_line[Source.RERUN] = list(again.lines)
    result = {
        "name": experiment.name, "seed": experiment.seed, "adjacency": experiment.privacy.adjacency,
        **{key: run.stored_privacy[key] for key in ("algorithm", "topology", "rounds", "sigma", "delta", "headline")},
    }  # fmt: skip
    checkpoint = {"rounds": training_run.rounds, "lines": len(lines)}
    nonfinite = {} if again.end is None else {Source.RERUN: {"nonfinite": again.end.state.nonfinite}}
    return {
        METRICS.name: {source: as_read(part) for source, part in by_line.items()},
        RESULT.name: {
            Source.SETTINGS: result, Source.COPY: {"metrics": lines[-1]}, Source.MODELS: {"held_out": as_read(scores)},
        },
        PRIVATE.name: {Source.COPY: {"nonfinite": end.state.nonfinite}, **nonfinite},
        CHECKPOINT.name: {
            Source.SETTINGS: checkpoint, Source.TOPOLOGY: {"sent": traffic[training_run.rounds]["sent"]},
        },
    }  # fmt: skip


def _measured(training_run: TrainingRun, state: RunState, test_rows: int | None) -> Document:
    found = measure(training_run, state, 0.0, test_rows).document()
    return {key: found[key] for key in found if key in ("loss", "accuracy", "rmse", "consensus")}


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


def _rerun(run: FinishedRun, progress: Progress | None) -> Rerun:
    """All rounds again, with the run's own noise and batches, where they give the same bits here."""
    why_not = _why_no_rerun(run)
    if why_not is not None:
        return Rerun(why_not=why_not)
    training_run, metrics, lines = run.training_run, run.experiment.metrics, []
    played = measured_rounds(
        training_run, training_run.before(), every=metrics.every, test_rows=metrics.test_rows,
    )  # fmt: skip
    with threads(run.experiment.machine.threads):
        for state, measurement in played:
            if progress is not None:
                progress(state.rounds, training_run.rounds)
            if measurement is not None:
                found = measurement.document()
                lines.append({key: found[key] for key in found if key in ("loss", "accuracy", "rmse", "consensus")})
            last = state
    return Rerun(tuple(lines), End(last, training_run.models(last)))


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


def _compare_models(found: FolderCheck, end: End, again: Rerun) -> None:
    if again.end is None:
        found.leave_out(CHECKPOINT.name, [MODELS], again.why_not)
    elif not torch.allclose(end.models, again.end.models, rtol=MEASURED_TOLERANCE, atol=1e-9):
        found.findings.append(f"{CHECKPOINT.name}: its models are not those that a rerun ends with")


def _compare_baselines(found: FolderCheck, run: FinishedRun, documents: RunDocuments) -> None:
    """Baselines draw no noise, so that they can be computed again wherever the data is."""
    try:
        given = compute_baselines(buildable(run.experiment, run.data, own=run.own), run.data)
    except InputError as problem:
        found.not_checked[BASELINES.name] = str(problem.found)
        return
    found.not_checked = {key: why for key, why in found.not_checked.items() if not key.startswith(BASELINES.name)}
    found.compare(BASELINES.name, documents.baselines, {Source.RERUN: as_read(given)}, {})


COMPARED = {kind.name for kind in FILES if kind.audience is not Audience.PRIVATE} | {
    kind.name for kind in (PRIVATE, CHECKPOINT, NOISE_KEY, LOCK, RERUNS, SHADOWS)
}
"""Files with rows in `shown_fields`, and what nothing is shown from: of reruns only those are used that the auditor has
signed. Of what else lies in a folder the name is listed."""


def _leave_out_others(found: FolderCheck, run: FinishedRun) -> None:
    for path in sorted(run.folder.iterdir()):
        if path.name not in COMPARED:
            found.leave_out(path.name, (), "it is not compared with anything")
