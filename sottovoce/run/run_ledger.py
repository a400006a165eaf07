"""A run's place in a ledger: reserved before its first round, recorded before rounds are played, settled at its end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sottovoce.core.participation import Adjacency
from sottovoce.core.random_streams import NoiseKey
from sottovoce.errors import InputError, Unaccountable
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import PlannedRun, Stage
from sottovoce.ledger.spending import DEFAULT, Spending, require_lineage
from sottovoce.privacy.composition import GaussianLoss, Loss, SampledLoss
from sottovoce.privacy.covering_views import NAMED_ONLY
from sottovoce.privacy.guarantee import Kind
from sottovoce.privacy.views import ViewKind
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.support.config import Document


@dataclass(frozen=True)
class LedgerFile:
    """Where a run is to be entered, and for which lineage of data."""

    path: Path
    lineage: str = DEFAULT


class RunLedger:
    """The entry of one run, which rank 0 writes."""

    def __init__(self, file: LedgerFile, planned: PlannedRun) -> None:
        self._file, self._planned = file, planned
        self._spending: Spending | None = None

    def check(self, loss_after: Callable[[int], Loss]) -> None:
        """Refuse a run that would pass the budget, before anything is made for it."""
        if not self._file.path.exists():
            require_lineage(self._file.path, self._file.lineage)
            return
        with open_ledger(self._file.path) as database:
            Spending(database).check(self._planned, self._file.lineage, loss_after)

    @contextmanager
    def reserved(self, loss_after: Callable[[int], Loss]) -> Iterator[None]:
        """Reserve what the run costs; at the end, what was not sent is given back."""
        with open_ledger(self._file.path) as database:
            self._spending = Spending(database)
            self._spending.reserve(self._planned, self._file.lineage, loss_after=loss_after)
            del loss_after  # it holds what was traced, which takes memory
            try:
                yield
            finally:
                if database.is_usable:
                    self._spending.settle(self._planned.run)

    def require_recorded(self, played: int) -> None:
        """Refuse to go on after so many rounds if fewer are recorded."""
        assert self._spending is not None
        _require_ahead(self._file.path, self._planned.name, self._spending.recorded(self._planned.run), played)

    def spent_in_all(self, delta: float) -> Document:
        """What all runs on the same records have spent by now."""
        assert self._spending is not None
        return self._spending.lineage(self._file.lineage).spent_in_all(delta)

    def spend(self, round: int) -> int:
        """Record what a round costs, before it is played; the last round that is covered now."""
        assert self._spending is not None
        return self._spending.spend(self._planned.run, round)


def run_identity(fingerprint: str, key: NoiseKey) -> str:
    """What tells a run from every other: settings and data by their fingerprint, and the key of its noise.

    The same settings with the same data and a fresh key are another release; with the same key they are the same one.
    """
    return hashlib.sha256(f"sottovoce run {fingerprint} {key.hexadecimal}".encode()).hexdigest()


def planned_run(privacy: PrivacyDocument, *, run: str, name: str, data: str, noise: str | None = None) -> PlannedRun:
    """What a ledger has to know about a run; refused where nothing is proven for it.

    It is refundable where an end that depends on what was seen is proven to cost what the rounds up to it do: for
    whoever sees everything, and for fixed streams, since shifts of what is seen next follow from what was seen. Figures
    by absorption couple two runs in a way that looks ahead to the planned end.
    """
    loss, headline = privacy.loss, privacy.headline
    if loss is None or headline.proves_nothing:
        why = "; ".join(privacy.refusals) or privacy.convexity
        raise Unaccountable(f"run {name}: nothing is proven for it, so no ledger can say what it costs: {why}")
    may_stop = headline.kind is Kind.FIXED_STREAMS or (
        headline.kind is Kind.ANY_TRAINING and headline.view.kind is ViewKind.EVERYONE
    )
    stages = []
    for end in privacy.over_rounds:
        if isinstance(loss, SampledLoss) and loss.among > 1:
            spent: Loss = loss  # where it is drawn at random, all may lie in the first rounds
        elif isinstance(loss, SampledLoss):
            spent = replace(loss, rounds=-(-loss.rounds * end.round // privacy.rounds))
        elif isinstance(loss, GaussianLoss):
            spent = loss if end.mu is None else GaussianLoss(end.mu)
        else:
            spent = replace(loss, epsilon=end.epsilon)
        stages.append(Stage(end.round, spent))
    return PlannedRun(
        run=run, name=name, rounds=privacy.rounds, loss=loss, stages=tuple(stages) or (Stage(privacy.rounds, loss),),
        refundable=isinstance(loss, GaussianLoss) and may_stop, adjacency=Adjacency(privacy.adjacency), data=data,
        noise=noise, covers=privacy.covers or NAMED_ONLY,
    )  # fmt: skip


def check_same_choice(folder: Path, *, entered: bool, wanted: bool, finished: bool) -> None:
    """Refuse to go on outside of a ledger with a run that is in one, or to enter a run after its end."""
    if entered and not wanted and not finished:
        raise InputError(
            f"{folder}: the run is entered in a ledger", "its rounds are recorded there before they are played",
            "go on with --ledger FILE",
        )  # fmt: skip
    if finished and wanted and not entered:
        raise InputError(
            f"{folder}: a finished run that is in no ledger", "a run is entered before its first round",
            "run it again with another --out",
        )  # fmt: skip


def check_entered(file: LedgerFile, *, run: str, name: str, played: int) -> None:
    """Refuse a ledger that knows less of a run than its folder: it is another one, or an older copy was put back."""
    recorded = None
    if file.path.exists():
        with open_ledger(file.path, read_only=True) as database:
            recorded = Spending(database).recorded(run)
    _require_ahead(file.path, name, recorded, played)


def _require_ahead(path: Path, name: str, recorded: int | None, played: int) -> None:
    if recorded is None or recorded < played:
        known = "does not have it" if recorded is None else f"has recorded {recorded}"
        raise InputError(
            f"{path}: run {name} began in a ledger and has played {played} rounds, but this one {known}",
            "rounds are recorded before they are played, so it is another ledger, or an older copy of it",
            "name the one in which the run began; if that is lost, count its whole budget as spent",
        )  # fmt: skip
