"""What runs may cost and have cost, for each lineage of data.

A lineage is data about the same people, however its rows change: a budget belongs to it. What a run costs at its
planned end is reserved before its first message; what it has cost is recorded before each message that costs more. At
its end a Gaussian run gives back what was not sent.
"""

from __future__ import annotations

import hashlib
import secrets
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from sottovoce.errors import InputError, Unaccountable
from sottovoce.ledger.database import Database, Entry
from sottovoce.ledger.lineages import Budget, Lineage, PlannedRun, RunSpending
from sottovoce.privacy.composition import Loss, compose
from sottovoce.privacy.gaussian_dp import mu_of
from sottovoce.privacy.rounding import round_up
from sottovoce.support.config import LONGEST_KEY

DEFAULT = "data"
"""The lineage of a ledger that names none."""

LINEAGE, BUDGET, RESERVED, SPENT, SETTLED, SALT = "lineage", "budget", "reserved", "spent", "settled", "salt"
KINDS = (LINEAGE, BUDGET, RESERVED, SPENT, SETTLED)


class Spending:
    """The lineages and runs of an open ledger."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def lineages(self) -> list[Lineage]:
        """All lineages, with their budgets and runs as they stand now."""
        standing = _Standing()
        for entry in self.database.entries(*KINDS):
            standing.apply(entry)
        return standing.lineages()

    def history(self) -> Iterator[tuple[Lineage, RunSpending]]:
        """Each time that a run spent more: the run, and its lineage as it stood then."""
        standing = _Standing()
        for entry in self.database.entries(*KINDS):
            standing.apply(entry)
            if entry.kind == SPENT:
                run = standing.runs[entry.key]
                yield next(one for one in standing.lineages() if one.name == run.lineage), run

    def lineage(self, name: str) -> Lineage:
        """A lineage by its name; the default one is always there."""
        found = {one.name: one for one in self.lineages()}
        require_lineage(self.database.path, name, found)
        return found[name]

    def add_lineage(self, name: str) -> None:
        """Declare data about people of whom none are in another lineage."""
        if not name.isprintable() or not name.strip() or len(name) > LONGEST_KEY:
            raise InputError(
                f"lineage {name!r:.60}", f"its name has 1 to {LONGEST_KEY} characters", "give letters and digits"
            )
        if name not in {one.name for one in self.lineages()}:
            with self.database.transaction():
                self.database.add(LINEAGE, name, {})

    def set_budget(self, budget: Budget, lineage: str = DEFAULT) -> None:
        """What all runs on a lineage may cost together, from now on."""
        mu_of(budget.epsilon, budget.delta)
        if self.lineage(lineage).budget != budget:
            with self.database.transaction():
                self.database.add(BUDGET, lineage, {"epsilon": budget.epsilon, "delta": budget.delta})

    def reserve(
        self, planned: PlannedRun, lineage: str = DEFAULT, *, loss_after: Callable[[int], Loss] | None = None
    ) -> None:
        """Reserve what a run costs at its planned end, before its first message; refused if it passes the budget.

        `loss_after` is the run's own accountant: what it would cost with fewer rounds. A run that goes on is asked
        again if it had given something back. Its data stays the same from its first message on; before that, a wrong
        table can be replaced, and what is reserved stays reserved, in the same lineage.
        """
        found = self.lineage(lineage)
        before = self.run(planned.run)
        if before is not None and before.lineage != lineage:
            raise InputError(
                f"run {planned.name}: in lineage {before.lineage}",
                "a run belongs to one lineage",
                "leave out --lineage",
            )
        salt = self._salt()
        stored = _salted_run(salt, planned)
        if before is not None and before.round > 0 and before.planned.data != stored.data:
            raise InputError(
                f"run {planned.name}: other data than it began with",
                "a run can go on only as it began",
                "give that data again, or begin another run",
            )
        self._require_own_noise(stored)
        if before is not None and before.is_open and before.planned == stored:
            return
        _check_budget(found, planned, loss_after)
        with self.database.transaction():
            if not self.database.entries(SALT):
                self.database.add(SALT, "", {"salt": salt})
            self.database.add(RESERVED, planned.run, {"lineage": lineage, **stored.document()})

    def check(self, planned: PlannedRun, lineage: str, loss_after: Callable[[int], Loss]) -> None:
        """Refuse a run that would pass the budget, or has the noise of another, without reserving anything."""
        self._require_own_noise(_salted_run(self._salt(), planned))
        _check_budget(self.lineage(lineage), planned, loss_after)

    def spend(self, run: str, round: int) -> int:
        """Record that messages up to a round may leave; returns the last round that is covered by what is recorded."""
        before = self._known(run)
        if not before.is_open:
            raise InputError(
                f"run {before.planned.name}: it has ended", "an ended run sends nothing", "reserve it again"
            )
        stage = before.planned.stage(round)
        if stage.round > before.round:
            with self.database.transaction():
                self.database.add(SPENT, run, {"round": stage.round})
        return max(stage.round, before.round)

    def recorded(self, run: str) -> int | None:
        """The last round of a run that is covered by what is recorded; None where the run is not in this ledger."""
        found = self.run(run)
        return None if found is None else found.round

    def settle(self, run: str) -> None:
        """A run has ended: what it did not send is given back, where that is proven."""
        if self._known(run).is_open:
            with self.database.transaction():
                self.database.add(SETTLED, run, {})

    def withdraw(self, run: str) -> None:
        """A run has ended before its first message: what it reserved is free again, whatever the run is."""
        if self._known(run).round == 0:
            self.settle(run)

    def _require_own_noise(self, stored: PlannedRun) -> None:
        """Refuse a run with the noise of another: what both sent, subtracted, has none."""
        runs = (one.planned for found in self.lineages() for one in found.runs)
        other = next((one for one in runs if one.noise and one.noise == stored.noise and one.run != stored.run), None)
        if other is not None:
            raise InputError(
                f"run {stored.name}: its noise key was used by run {other.name}",
                "if two runs have the same noise, subtracting their messages removes it",
                "leave out noise_key, or give another name or seed",
            )  # fmt: skip

    def run(self, run: str) -> RunSpending | None:
        """How a run stands; None where it is not in this ledger."""
        return next((one for found in self.lineages() for one in found.runs if one.planned.run == run), None)

    def _known(self, run: str) -> RunSpending:
        found = self.run(run)
        if found is None:
            raise InputError(f"run {run}: nothing is reserved", "a run reserves what it costs first", "call reserve")
        return found

    def _salt(self) -> str:
        """What makes the hash of data useless to whoever guesses the data, but has no ledger."""
        found = self.database.entries(SALT)
        return str(found[0].body["salt"]) if found else secrets.token_hex(32)


def require_lineage(path: Path, name: str, known: Iterable[str] = (DEFAULT,)) -> None:
    """Refuse a lineage that a ledger does not have; one that is not there yet has the default one."""
    known = list(known)
    if name not in known:
        raise InputError(
            f"lineage {name!r}", f"{path} has: {', '.join(known)}",
            f"if none of its people are in those, type sotto ledger {path} --new-lineage {name}",
        )  # fmt: skip


def _salted_run(salt: str, planned: PlannedRun) -> PlannedRun:
    def salted(text: str) -> str:
        return hashlib.sha256(f"{salt} {text}".encode()).hexdigest()

    return replace(planned, data=salted(planned.data), noise=None if planned.noise is None else salted(planned.noise))


def _check_budget(lineage: Lineage, planned: PlannedRun, loss_after: Callable[[int], Loss] | None) -> None:
    budget = lineage.budget
    if budget is None:
        return
    others = [one.counted for one in lineage.runs if one.planned.run != planned.run]

    def fits(loss: Loss) -> bool:
        return compose([*others, loss]).epsilon(budget.delta) <= budget.epsilon

    if fits(planned.loss):
        return
    total = compose([*others, planned.loss]).epsilon(budget.delta)
    remedy = "fewer rounds or more noise are needed"
    if loss_after is not None:
        left = bisect_left(range(1, planned.rounds), True, key=lambda rounds: not fits(loss_after(rounds)))
        remedy = f"{left} of its {planned.rounds} rounds would still fit" if left else "not one round would still fit"
    raise Unaccountable(
        f"run {planned.name} would bring lineage {lineage.name} to epsilon {round_up(total, 6)} at delta "
        f"{budget.delta:g}; its budget is {budget.epsilon!r}; {remedy}"
    )


class _Standing:
    """How budgets and runs stand after some entries."""

    def __init__(self) -> None:
        self.budgets: dict[str, Budget | None] = {DEFAULT: None}
        self.runs: dict[str, RunSpending] = {}

    def apply(self, entry: Entry) -> None:
        """What a further entry changes."""
        key, body = entry.key, entry.body
        if entry.kind == LINEAGE:
            self.budgets[key] = None
        elif entry.kind == BUDGET:
            self.budgets[key] = Budget(body["epsilon"], body["delta"])
        elif entry.kind == RESERVED:
            spent = self.runs[key].round if key in self.runs else 0
            self.runs[key] = RunSpending(body["lineage"], PlannedRun.read(key, body), spent, is_open=True)
        elif entry.kind == SPENT:
            self.runs[key] = replace(self.runs[key], round=body["round"])
        else:
            self.runs[key] = replace(self.runs[key], is_open=False)

    def lineages(self) -> list[Lineage]:
        """All lineages as they stand."""
        return [
            Lineage(name, budget, tuple(run for run in self.runs.values() if run.lineage == name))
            for name, budget in self.budgets.items()
        ]
