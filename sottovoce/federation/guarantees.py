"""What an agreement guarantees to whom, before anybody's rows are there; and a member's run with these figures.

To account for a run takes seconds to minutes, in which neighbours would wait for a member that starts again. So
`privacy.json` is read where the ledger has its SHA-256 under the hash of the agreement. It is used only if the run that
is built from the agreement, with the noise that stands there, has the fingerprint that stands there too, and with the
same versions: what runs is what was accounted for. Otherwise the run is accounted for anew.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from sottovoce.core.grid import with_exact_noise
from sottovoce.core.noise import NoNoise
from sottovoce.core.sensitivity import largest
from sottovoce.errors import InputError, Unaccountable
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.link_rules import check_sums
from sottovoce.learning.tables import Table
from sottovoce.ledger.database import Database
from sottovoce.planning.noise_accumulation import noise_in_models
from sottovoce.privacy.composition import Loss
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.report.wording import headline_sentence
from sottovoce.run.build import build_accountant
from sottovoce.run.fingerprint import origin, public_fingerprint, versions
from sottovoce.run.layout import RunFiles
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.privacy_report import report_wanted
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.config import Document, Experiment


@dataclass(frozen=True)
class AgreedGuarantees:
    """The guarantees of an agreement, as `privacy.json` of a run has them, and by the names of its members."""

    document: Document
    names: tuple[str, ...]
    noise_in_models: float
    """The standard deviation of noise in one value of a member's model after the last round."""
    training_run: TrainingRun

    @cached_property
    def privacy(self) -> PrivacyDocument:
        """All guarantees, as types."""
        return PrivacyDocument.read(self.document)

    @property
    def sentence(self) -> str:
        """The headline, or why there is none."""
        return headline_sentence(self.privacy, self.names)

    @property
    def members(self) -> dict[str, PrivacyFigure | None]:
        """What each single member can learn at most, if all follow the agreement; None where nothing is proven."""
        return {self.names[node]: view.headline for node, view in self.privacy.node_views.items()}


def build_agreement(agreement: Agreement, tables: Mapping[str, Table]) -> RunAccountant:
    """The run of an agreement, with its accountant: with the tables that are here, by member, and zeros for the others.

    Noise, batches and figures do not depend on which tables are here.
    """
    accountant = build_accountant(member_settings(agreement), tables=tables)
    _require_grid(accountant.training_run)
    return accountant


def _require_grid(run: TrainingRun) -> None:
    """Refuse float32 where it alone keeps members from releasing multiples of a step."""
    possible = with_exact_noise(run.algorithm, run.topology, "where-possible")
    if possible.exact_noise and not run.algorithm.exact_noise:
        raise InputError(
            f'{run.algorithm.name} with precision = "float32"',
            "members release multiples of a step, and on that grid its models take more bits",
            'set precision = "float64"',
        )


def member_settings(agreement: Agreement, member: str | None = None) -> Experiment:
    """The settings of its members, or of one: they draw secret noise, which figures say; a simulation has a key."""
    return agreement.experiment.model_copy(update={"noise": "secret", "member": member})


def agreed_guarantees(agreement: Agreement) -> AgreedGuarantees:
    """The guarantees that hold whatever rows members will bring."""
    try:
        accountant = build_agreement(agreement, {})
    except Unaccountable as refusal:
        if agreement.privacy.epsilon is None:
            raise
        raise _no_noise_meets_the_target(agreement, refusal) from refusal
    run = accountant.training_run
    if run.algorithm.secure_sum:
        check_sums(run.algorithm, run.topology)
    report = report_wanted(accountant, agreement.experiment)
    return AgreedGuarantees(report.document(), agreement.names, _noise_in_models(accountant), run)


def _noise_in_models(accountant: RunAccountant) -> float:
    """Of rounds that were not traced as much as of those that were."""
    run, system = accountant.training_run, accountant.system
    if isinstance(run.algorithm.noise, NoNoise):
        return 0.0
    variance = noise_in_models(system).node * run.rounds / system.rounds
    return abs(run.algorithm.step_size) * largest(run.algorithm.sensitivity) * math.sqrt(variance)


def _no_noise_meets_the_target(agreement: Agreement, refusal: Unaccountable) -> Unaccountable:
    name, view = agreement.algorithm.name, agreement.privacy.view
    return Unaccountable(
        f"with {name} no epsilon is proven against {view}, so that no noise meets privacy.epsilon = "
        f"{agreement.privacy.epsilon:g}; use an algorithm that adds noise to gradients, such as dp-d-sgd or "
        "muffliato-sgd, "
        f"or give algorithm.sigma in place of privacy.epsilon, and rely on no figure ({refusal})"
    )


ACCOUNTED = "accounted"


@dataclass(frozen=True)
class AccountedRun:
    """A run and its `privacy.json`. `loss_after` says what fewer rounds would cost."""

    training_run: TrainingRun
    privacy: Document
    loss_after: Callable[[int], Loss]


def account_run(agreement: Agreement, tables: Mapping[str, Table], member: str) -> AccountedRun:
    """A member's run of an agreement, accounted for here and now."""
    accountant = build_agreement(agreement, tables)
    training_run = accountant.training_run
    report = report_wanted(accountant, agreement.experiment)
    stated = report.document() | origin(member_settings(agreement, member), training_run)
    return AccountedRun(training_run, stated, report.loss_after)


def record_account(database: Database, agreement: Agreement, privacy: Document) -> None:
    """Enter in the ledger what a run was accounted for as, unless that stands there."""
    digest = _digest(privacy)
    if _recorded_digest(database, agreement) != digest:
        with database.transaction():
            database.add(ACCOUNTED, agreement.hash, {"privacy": digest})


def recorded_run(
    database: Database, files: RunFiles, agreement: Agreement, tables: Mapping[str, Table], member: str
) -> AccountedRun | None:
    """A member's run as it was accounted for before; None where that is not known, or was something else.

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
    experiment = member_settings(agreement, member)
    training_run = build_accountant(experiment, tables=tables, sigma=per_node).training_run
    if public_fingerprint(experiment, training_run) != privacy.get("fingerprint"):
        return None
    anew = cache(lambda: account_run(agreement, tables, member))
    return AccountedRun(training_run, privacy, lambda rounds: anew().loss_after(rounds))


def _recorded_digest(database: Database, agreement: Agreement) -> str | None:
    found = database.entries_about(ACCOUNTED, agreement.hash)
    return str(found[-1].body["privacy"]) if found else None


def _digest(privacy: Document) -> str:
    return hashlib.sha256(json.dumps(privacy, sort_keys=True).encode()).hexdigest()
