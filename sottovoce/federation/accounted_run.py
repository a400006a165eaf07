"""A member's run with its figures: accounted for when it begins, read back when it goes on.

To account for a run takes seconds to minutes, in which neighbours would wait for a member that starts again. So
`privacy.json` is read where the ledger has its SHA-256 under the hash of the agreement. It is used only if the run that
is built from the agreement, with the noise that stands there, has the fingerprint that stands there too, and with the
same versions: what runs is what was accounted for. Otherwise the run is accounted for anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from sottovoce.errors import InputError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.guarantees import build_agreement, with_secret_noise
from sottovoce.learning.tables import Table
from sottovoce.ledger.database import Database
from sottovoce.privacy.composition import Loss
from sottovoce.run.build import build_run_at
from sottovoce.run.fingerprint import public_fingerprint, versions
from sottovoce.run.layout import RunFiles
from sottovoce.run.privacy_report import report_wanted
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.config import Document

ACCOUNTED = "accounted"


@dataclass(frozen=True)
class AccountedRun:
    """A run and its `privacy.json`. `loss_after` says what fewer rounds would cost."""

    training_run: TrainingRun
    privacy: Document
    loss_after: Callable[[int], Loss]


def account_run(agreement: Agreement, tables: Mapping[str, Table]) -> AccountedRun:
    """The run of an agreement, accounted for here and now."""
    accountant = build_agreement(agreement, tables)
    training_run = accountant.training_run
    stated = {"versions": versions(), "fingerprint": public_fingerprint(agreement.experiment, training_run)}
    report = report_wanted(accountant, agreement.experiment)
    return AccountedRun(training_run, report.document() | stated, report.loss_after)


def record_account(database: Database, agreement: Agreement, privacy: Document) -> None:
    """Enter in the ledger what a run was accounted for as, unless that stands there."""
    digest = _digest(privacy)
    if _recorded_digest(database, agreement) != digest:
        with database.transaction():
            database.add(ACCOUNTED, agreement.hash, {"privacy": digest})


def recorded_run(
    database: Database, files: RunFiles, agreement: Agreement, tables: Mapping[str, Table]
) -> AccountedRun | None:
    """The run as it was accounted for before; None where that is not known, or was something else.

    What fewer rounds would cost is not known from then: whoever asks waits until the run is accounted for anew.
    """
    digest = _recorded_digest(database, agreement)
    try:
        privacy = None if digest is None else files.document(files.privacy)
    except InputError:
        return None
    if privacy is None or _digest(privacy) != digest or privacy.get("versions") != versions():
        return None
    sigma = privacy["sigma"]
    if sigma is None:
        return None
    per_node = tuple(sigma) if isinstance(sigma, list) else sigma
    training_run = build_run_at(with_secret_noise(agreement), per_node, tables)
    if public_fingerprint(agreement.experiment, training_run) != privacy.get("fingerprint"):
        return None
    anew = cache(lambda: account_run(agreement, tables))
    return AccountedRun(training_run, privacy, lambda rounds: anew().loss_after(rounds))


def _recorded_digest(database: Database, agreement: Agreement) -> str | None:
    found = database.entries_about(ACCOUNTED, agreement.hash)
    return str(found[-1].body["privacy"]) if found else None


def _digest(privacy: Document) -> str:
    return hashlib.sha256(json.dumps(privacy, sort_keys=True).encode()).hexdigest()
