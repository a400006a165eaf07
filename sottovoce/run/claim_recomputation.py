"""Whether the figures of a run are those of its settings: computed anew by the code that made them.

Figures follow from settings, the graph and the number of rows of each node, so the same version gives the same ones.
"""

from __future__ import annotations

import json
from pathlib import Path

from sottovoce.run.claim_consistency import first_differences
from sottovoce.run.fingerprint import public_fingerprint
from sottovoce.run.finished_run import FinishedRun, accountant_of
from sottovoce.run.layout import RunFiles
from sottovoce.run.privacy_report import PrivacyReport, report_privacy
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.support.config import Document, Experiment
from sottovoce.support.text import parse_json

LISTED = 5
"""Of so many differences each is named; the rest is counted."""


def unlike_settings(finished_run: FinishedRun) -> list[str]:
    """Where `privacy.json` differs from what its settings give, in every figure."""
    report = _report(RunAccountant(finished_run.training_run), finished_run.experiment)
    return _differences(finished_run.stored_privacy, report.document())


def headline_unlike_settings(stated: Document, accountant: RunAccountant, experiment: Experiment) -> list[str]:
    """Where the headline of `privacy.json`, and what belongs to it, differs from what the settings give."""
    return _differences(stated, _report(accountant, experiment, "none").summary())


def stored_headline_unlike_settings(folder: Path, experiment: Experiment, data: Path | None) -> list[str]:
    """The same for a run's folder, of which only files that may be handed on are read."""
    files = RunFiles(folder)
    accountant = accountant_of(files, experiment, data)
    stated = files.document(files.privacy) or {}
    found = headline_unlike_settings(stated, accountant, experiment)
    if stated.get("fingerprint") != public_fingerprint(experiment, accountant.training_run):
        found.append("privacy.json: its fingerprint is not that of these settings, this graph and this version")
    return found


def stored_figures_unlike_settings(folder: Path, experiment: Experiment, data: Path | None) -> list[str]:
    """Where any figure of a run's folder, finished or not, differs from what its settings and its graph give."""
    files = RunFiles(folder)
    accountant = accountant_of(files, experiment, data)
    return _differences(files.document(files.privacy) or {}, _report(accountant, experiment).document())


def _report(
    accountant: RunAccountant, experiment: Experiment, attackers: str | int | list[int | str] | None = None
) -> PrivacyReport:
    wanted = experiment.privacy
    return report_privacy(
        accountant, delta=wanted.delta, attackers=wanted.attackers if attackers is None else attackers,
        target=wanted.view, final_models=wanted.and_final_models, every=experiment.metrics.every,
    )  # fmt: skip


def _differences(stated: Document, given: Document) -> list[str]:
    given = parse_json(json.dumps(given))
    compared = {key: value for key, value in stated.items() if key in given}
    found = list(first_differences(compared, given))
    sentences = [f"privacy.json: {place} is {one!r}, but the settings give {other!r}" for place, one, other in found]
    rest = len(sentences) - LISTED
    return sentences if rest <= 0 else [*sentences[:LISTED], f"privacy.json: {rest} more differ from the settings"]
