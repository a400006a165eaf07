"""The figures of a finished run, computed again from its settings, its checkpoint, its data and its noise key.

With the run's own noise key a rerun gives all bits again, so that the figures of every round and the checkpoint can be
compared. Without it, the last round is compared with the checkpoint, and earlier rounds are not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from sottovoce.errors import Diverged, InputError
from sottovoce.learning.tasks import CPU
from sottovoce.run.baselines import compute_baselines
from sottovoce.run.checkpoint import load
from sottovoce.run.fingerprint import versions
from sottovoce.run.finished_run import FinishedRun, buildable
from sottovoce.run.folder_check import MEASURED_TOLERANCE, NOT_GIVEN, FolderCheck, Given, as_read
from sottovoce.run.layout import (
    ATTACK,
    BASELINES,
    CHECKPOINT,
    CONFIG,
    FILES,
    GRAPH,
    MEMBER_MODEL,
    MESSAGES,
    PRIVATE,
    RunFiles,
)
from sottovoce.run.public_check import BY_AN_ATTACK, SETTINGS, Measured, check_public, sent_by
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.run_documents import METRICS, RunDocuments
from sottovoce.run.training_run import RunState, average_model, measure, measured_rounds
from sottovoce.support.config import Document, first_difference
from sottovoce.support.npz import read_checked_npz
from sottovoce.support.progress import Progress
from sottovoce.support.text import parse_json
from sottovoce.support.threads import threads

MODELS, RERUN = "what the models in checkpoint.npz give", "what a rerun gives"

MEASURED = ("loss", *METRICS, "consensus")
"""What lines of metrics say of models."""

UNCOMPARED_FILES = {MESSAGES.name, MEMBER_MODEL.name}
"""Files of a run that nothing else in its folder is compared with; like whatever is no file of a run, they are listed.

Of reruns only those are used that the auditor has signed, so that these need not be listed.
"""


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
    if run.foreign:
        return FolderCheck([problem.found for problem in run.foreign])
    stored, sent = _stored_ending(run, len(documents.lines)), sent_by(run.training_run)
    try:
        again = _rerun(run, progress) if rerun else Rerun(why_not="no rerun was asked for")
    except Diverged as problem:
        return FolderCheck([f"checkpoint.npz: a rerun diverges: {problem.found}"])
    found = check_public(documents, RunAccountant(run.training_run), _measured(run, stored, again))
    _compare_checkpoint(found, run, stored, again, sent)
    if documents.baselines is not None:
        _compare_baselines(found, run, documents.baselines, rerun=rerun)
    files = RunFiles(run.folder)
    for name, document in ((CONFIG.name, files.document(files.config)), (GRAPH.name, files.document(files.graph))):
        found.compare(name, document, [Given("taken as given", document)])
    if documents.attacks:
        found.compare(ATTACK.name, documents.attacks, [], BY_AN_ATTACK)
    known = {kind.name for kind in FILES} - UNCOMPARED_FILES
    for path in sorted(run.folder.iterdir()):
        if path.name not in known:
            found.leave_out(path.name, (), "it is not compared with anything")
    return found


def _measured(run: FinishedRun, stored: Ending, again: Rerun) -> Measured:
    """What the models of the checkpoint give, and those of a rerun."""
    lines = [Given(MODELS, as_read(stored.lines), MEASURED_TOLERANCE)]
    if again.ending is not None:
        lines.insert(0, Given(RERUN, as_read(again.ending.lines), MEASURED_TOLERANCE))
    with threads(run.experiment.machine.threads):
        average = average_model(run.training_run, stored.state)
        scores = run.training_run.task.score(average, run.experiment.metrics.test_rows)
    result = Given(MODELS, {"held_out": as_read(scores)}, MEASURED_TOLERANCE)
    return Measured(tuple(lines), (result,), again.why_not or NOT_GIVEN)


def _compare_checkpoint(
    found: FolderCheck, run: FinishedRun, stored: Ending, again: Rerun, sent: dict[int, Document]
) -> None:
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
