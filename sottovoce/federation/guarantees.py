"""What an agreement guarantees to whom, before anybody's rows are there; and a member's run with these figures.

To account for a run takes seconds to minutes, and all members of an agreement have the same figures. So they are kept
in the user's cache, signed by the user's own key. They are used only if the run that is built from the agreement, with
the noise that stands there, has the fingerprint that stands there too, and with the same versions: what runs is what
was accounted for. Otherwise the run is accounted for anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from sottovoce.core.grid import with_exact_noise
from sottovoce.core.noise import NoNoise
from sottovoce.core.sensitivity import largest
from sottovoce.errors import InputError, Unaccountable
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.link_rules import check_sums
from sottovoce.learning.tables import Table
from sottovoce.planning.noise_accumulation import noise_in_models
from sottovoce.privacy.composition import Loss
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.report.wording import headline_sentence
from sottovoce.run.build import build_accountant
from sottovoce.run.fingerprint import origin, public_fingerprint, versions
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.privacy_report import report_wanted
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.config import Document, Experiment
from sottovoce.support.files import cache_folder, is_signed, make_private_folder, read_bytes, sign, write_text
from sottovoce.support.text import json_text, parse_json


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
    document = report.document()
    _store(agreement, document, run)
    return AgreedGuarantees(document, agreement.names, _noise_in_models(accountant), run)


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


@dataclass(frozen=True)
class AccountedRun:
    """A run and its `privacy.json`. `loss_after` says what fewer rounds would cost."""

    training_run: TrainingRun
    privacy: Document
    loss_after: Callable[[int], Loss]


def account_run(agreement: Agreement, tables: Mapping[str, Table], member: str) -> AccountedRun:
    """A member's run of an agreement, with the figures that this user computed before, for any member, or new ones.

    What fewer rounds would cost is not among them: whoever asks waits until the run is accounted for anew.
    """
    stored, settings = _stored(agreement), member_settings(agreement)
    if stored is not None:
        sigma = stored["sigma"]
        per_node = tuple(sigma) if isinstance(sigma, list) else sigma
        run = build_accountant(settings, tables=tables, sigma=per_node).training_run
        if public_fingerprint(settings, run) == stored["fingerprint"]:
            anew = cache(lambda: report_wanted(build_agreement(agreement, tables), settings))
            return AccountedRun(run, _of_member(stored, agreement, run, member), lambda after: anew().loss_after(after))
    accountant = build_agreement(agreement, tables)
    report, run = report_wanted(accountant, agreement.experiment), accountant.training_run
    document = _store(agreement, report.document(), run)
    return AccountedRun(run, _of_member(document, agreement, run, member), report.loss_after)


def _of_member(document: Document, agreement: Agreement, run: TrainingRun, member: str) -> Document:
    return document | origin(member_settings(agreement, member), run)


def account_file(agreement: Agreement) -> Path | None:
    """Where the figures of an agreement are kept, with this user's signature; None without a home."""
    place = cache_folder("accounts")
    return None if place is None else place / f"{agreement.hash}.json"


def _stored(agreement: Agreement) -> Document | None:
    """The figures of an agreement, as these versions computed them; None where they are not known, or not signed."""
    file = account_file(agreement)
    with suppress(InputError, ValueError, KeyError, TypeError, AttributeError):
        if file is not None and file.exists():
            found = parse_json(read_bytes(file))
            document: Document = found["privacy"]
            if is_signed(_signed(agreement, document), found["signature"]) and document["versions"] == versions():
                return document
    return None


def _store(agreement: Agreement, document: Document, run: TrainingRun) -> Document:
    """Keep figures with what they are about; it is no harm if they cannot be kept."""
    document, file = document | origin(member_settings(agreement), run), account_file(agreement)
    if file is not None:
        with suppress(OSError, InputError):
            make_private_folder(file.parent)
            content = json_text({"privacy": document, "signature": sign(_signed(agreement, document))})
            write_text(file, content, private=True)
    return document


def _signed(agreement: Agreement, document: Document) -> bytes:
    return json.dumps([agreement.hash, document], sort_keys=True).encode()
