"""Attacks on finished runs by name: what each needs, which options it takes, and where its result is shown.

    >>> attack_by_name("pooled").takes(Option.VIEW), attack_by_name("threshold").takes(Option.VIEW)
    (True, False)
    >>> [attack.name for attack in ATTACKS if not attack.membership]
    ['inversion']

To add an attack, write one file with a function `attack_runs(finished_runs, options)` that returns an `AttackResult`,
and add its entry to `ATTACKS`. The command line, sweeps and the report page follow from the entry. This module is
imported for the help of `sotto attack`, so it loads neither torch nor numpy; `Attack.load` imports the file of an
attack.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sottovoce.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from sottovoce.privacy.views import View
    from sottovoce.run.finished_run import FinishedRun
    from sottovoce.run.sweep import SweepRun
    from sottovoce.support.config import Document
    from sottovoce.support.progress import Note, Progress


class Option(StrEnum):
    """Options that only some attacks take."""

    VIEW = "view"
    SAMPLES = "samples"
    SHADOWS = "shadows"
    METHOD = "method"


class PageFigure(StrEnum):
    """Where the report page shows the result of an attack: the values are identifiers of its elements."""

    ROC_CURVE = "roc"
    PICTURES = "pictures"


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """What an attack is asked for; each attack reads the options it takes.

    `attacker` is the number of a node, None for all that were recorded; `view` names attackers that pool what they
    received. At most `samples` members of each victim are tried, and as many non-members. `jobs` processes run the
    shadow runs; `note` is told of those in the folder that are not used.
    """

    attacker: int | None = None
    view: str | View | None = None
    samples: int = 500
    shadows: int = 16
    method: str | None = None
    confidence: float = 0.95
    seed: int = 0
    jobs: int | None = None
    progress: Progress | None = None
    note: Note | None = None


class AttackResult(Protocol):
    """What an attack found."""

    def document(self) -> Document:
        """As JSON, for `attack.json`."""

    def table(self) -> list[list[str]]:
        """For the terminal; the first row is the heading."""

    def notes(self) -> list[str]:
        """Sentences to print below the table."""


@runtime_checkable
class PictureResult(AttackResult, Protocol):
    """What an attack found that reconstructs pictures."""

    @property
    def picture_shape(self) -> tuple[int, ...]:
        """The shape of one picture."""

    def pictures(self) -> dict[str, list[Tensor]]:
        """Named rows of pictures, one below the other."""


AttackRuns = Callable[[Sequence["FinishedRun"], AttackOptions], AttackResult]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One entry of the registry.

    `module` is the file in this folder that has `attack_runs`. `description` is a sentence for reports in Markdown;
    `caption` continues the words "The attack NAME" on the report page, and is needed for the ROC curve only. With
    `by_distance` the result has the AUC by hops between attacker and victim.
    """

    name: str
    module: str
    description: str
    caption: str = ""
    options: frozenset[Option] = frozenset()
    membership: bool = False
    several_runs: bool = True
    by_distance: bool = False
    page_figure: PageFigure | None = None
    progress: str = ""

    def takes(self, option: Option) -> bool:
        """Whether the attack has this option."""
        return option in self.options

    def load(self) -> AttackRuns:
        """The function that attacks finished runs; this imports torch."""
        attack_runs: AttackRuns = importlib.import_module(f"sottovoce.attacks.{self.module}").attack_runs
        return attack_runs


ATTACKS = (
    Attack(
        name="threshold", module="threshold", membership=True, options=frozenset({Option.SAMPLES}),
        description="The **threshold** attack takes rows with a low loss on a victim's last model for members.",
        caption="takes rows with a low loss for members", page_figure=PageFigure.ROC_CURVE,
    ),
    Attack(
        name="classifier", module="classifier", membership=True, options=frozenset({Option.SAMPLES}),
        description="The **classifier** learns from the losses of 26 models and from 70 % of the candidates, whose "
        "membership it is told.",
        caption="learns from known members what a member's losses look like", page_figure=PageFigure.ROC_CURVE,
    ),
    Attack(
        name="likelihood", module="likelihood", membership=True, progress="shadow runs",
        options=frozenset({Option.SAMPLES, Option.SHADOWS, Option.METHOD}),
        description="The **likelihood** attack compares with shadow runs.",
        caption="compares with many runs in which the row was or was not used", page_figure=PageFigure.ROC_CURVE,
    ),
    Attack(
        name="pooled", module="pooled", membership=True, by_distance=True,
        options=frozenset({Option.SAMPLES, Option.VIEW}),
        description="The **pooled** attack is by threshold too, on the mean of all that a node received in a round "
        "where it does not hear the victim itself: it works at any distance.",
        caption="takes rows with a low loss on the mean of what was received for members",
        page_figure=PageFigure.ROC_CURVE,
    ),
    Attack(
        name="inversion", module="inversion", several_runs=False,
        description="The **inversion** attack looks for inputs whose gradient is a neighbour's first message.",
        page_figure=PageFigure.PICTURES,
    ),
)  # fmt: skip
"""Membership attacks first, from the adversary who knows least to the one who knows most."""

MEMBERSHIP_ATTACKS = tuple(attack for attack in ATTACKS if attack.membership)


def names_of(attacks: Sequence[Attack]) -> str:
    """The names of some attacks, for messages."""
    return ", ".join(attack.name for attack in attacks)


def attacks_with(option: Option) -> tuple[Attack, ...]:
    """All attacks that take an option."""
    return tuple(attack for attack in ATTACKS if attack.takes(option))


def attack_by_name(name: str, among: Sequence[Attack] = ATTACKS, given_as: str = "attack") -> Attack:
    """The attack of that name; refuses names that are not among the given attacks."""
    for attack in among:
        if attack.name == name:
            return attack
    raise InputError(f"{given_as} {name}", f"known: {names_of(among)}", "choose one of them")


def page_attacks(figure: PageFigure) -> tuple[Attack, ...]:
    """The attacks that one figure of the report page shows, the one with the strongest adversary first."""
    return tuple(attack for attack in reversed(ATTACKS) if attack.page_figure is figure)


def check_attacks(document: Document, runs: Sequence[SweepRun]) -> tuple[Attack, ...]:
    """The attacks that a sweep asks for; refuses unknown ones, and runs that do not record what an attack needs."""
    names = document.get("attacks", [])
    known = [attack.name for attack in MEMBERSHIP_ATTACKS]
    if not isinstance(names, list) or not all(name in known for name in names):
        example = f'["{MEMBERSHIP_ATTACKS[0].name}"]'
        raise InputError(f"attacks = {names}", f"known: {names_of(MEMBERSHIP_ATTACKS)}", f"write attacks = {example}")
    attacks = tuple(MEMBERSHIP_ATTACKS[known.index(name)] for name in names)
    unrecorded = next((run.experiment for run in runs if run.experiment.record.attackers in ("none", [])), None)
    if unrecorded is not None and attacks:
        raise InputError(
            f"attacks on {unrecorded.name}, which records nothing", "attacks need what attackers received",
            'write record.attackers = "all"',
        )  # fmt: skip
    return attacks
