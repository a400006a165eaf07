"""What an agreement guarantees to whom, before anybody's rows are there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from sottovoce.core.grid import with_exact_noise
from sottovoce.core.noise import NoNoise
from sottovoce.core.sensitivity import largest
from sottovoce.errors import InputError, Unaccountable
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.masked_sums import check_sums
from sottovoce.learning.tables import Table
from sottovoce.planning.noise_accumulation import noise_in_models
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.report.wording import headline_sentence
from sottovoce.run.build import build_accountant
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
    accountant = build_accountant(with_secret_noise(agreement), tables=tables)
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


def with_secret_noise(agreement: Agreement) -> Experiment:
    """The settings of its members, who draw secret noise, and figures say so; a simulation of it has a key."""
    return agreement.experiment.model_copy(update={"noise": "secret"})


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
    return AgreedGuarantees(report.document(), agreement.names, _noise_in_models(accountant))


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
