"""A member's own settings: where its data lies, its budget, its patience. They are never sent."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from sottovoce.ledger.lineages import Budget
from sottovoce.ledger.spending import DEFAULT
from sottovoce.support.config import Section, parse_section, read_settings_file

FILE = "settings.toml"
"""Its name in the member's folder."""


class BudgetSettings(Section):
    """What all runs on a lineage of data may cost together."""

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)


class MemberSettings(Section):
    """Settings of one member, all of which have defaults.

    `data` is the file of its table, looked for beside the settings. Before the first round a member waits `gather`
    seconds at most until all neighbours are there, later `patience` seconds in a round. `bind` is where it listens, if
    not at the port of its address on all interfaces.
    """

    data: str | None = None
    gather: float = Field(default=600.0, gt=0)
    patience: float = Field(default=60.0, gt=0)
    bind: str | None = None
    lineage: str = DEFAULT
    budget: BudgetSettings | None = None

    @property
    def agreed_budget(self) -> Budget | None:
        """The budget as a ledger takes it."""
        return None if self.budget is None else Budget(self.budget.epsilon, self.budget.delta)


def read_member_settings(folder: Path) -> MemberSettings:
    """The settings in a member's folder, or the defaults where it has none."""
    path = folder / FILE
    return parse_section(MemberSettings, read_settings_file(path), str(path)) if path.exists() else MemberSettings()
