"""What the figures and tables of the papers show: the files in `recipes`, one folder a paper and one file a figure.

>>> sorted(papers())
['dp-csgp', 'mafalda', 'muffliato', 'threat-models', 'zip-dl']
>>> one_figure("muffliato", "1a").training is None
True
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from sottovoce.errors import InputError
from sottovoce.support.config import Document, Section, merge, parse_section, read_settings_file

RECIPES = Path(__file__).with_name("recipes")
ABOUT_PAPER = "paper"


Place: TypeAlias = float | Literal["first", "last", "mean", "least", "most"]

Interval: TypeAlias = Annotated[list[float], Field(min_length=2, max_length=2)]
"""From where to where a number lies."""


class Paper(Section):
    """A paper, the version that its figures are of, and what is known of later ones."""

    title: str
    authors: str
    version: str
    later: str = ""


ROUNDED = 0.01
"""What is found again may differ by this share."""


class Verdict(StrEnum):
    """What becomes of a claim."""

    HOLDS = "holds"
    OPEN = "cannot be decided"
    FAILS = "does not hold"


class Claim(Section):
    """What a paper says of a figure, as a number between two ends.

    The number is the value of a `line` `at` one place of the x axis, in the mean over it, or at an end of its band; or
    its ratio to that of the line `than`, at the same or another place. `found` is the interval of it at reduced
    settings: at 95 % over seeds; of what is exact both ends are the number.
    """

    says: str
    line: str
    than: str | None = None
    at: Place = "last"
    than_at: Place | None = None
    between: Interval
    found: Interval

    def verdict(self, interval: Interval) -> Verdict:
        """It holds if all of an interval is as the paper says, and fails if none of it is, or it is no number."""
        (least, most), (low, high) = self.between, interval
        if least <= low and high <= most:
            return Verdict.HOLDS
        return Verdict.OPEN if low <= most and least <= high else Verdict.FAILS

    def repeats(self, interval: Interval) -> bool:
        """Whether an interval meets the one that was found before, which may have been rounded."""
        return interval[0] <= self.found[1] * (1 + ROUNDED) and self.found[0] * (1 - ROUNDED) <= interval[1]


class Accounts(Section):
    """What privacy is drawn: over rounds, hops, distance in the plane or sigma; which figures, about whom.

    `figures`: `exact` (the worst change), `equal changes`, `everyone`, or names of published formulas. `attackers`: so
    many nodes drawn at random, or these. One line each for `victims`: all, neighbours, others. `lipschitz`: L of
    ZIP-DL's Assumption 5.6.
    """

    over: Literal["rounds", "hops", "plane", "sigma"]
    y: Literal["mu^2", "mu^2 / 2", "mu^2 / rounds", "epsilon"] = "mu^2"
    figures: list[str] = Field(default=["exact"])
    secure_sum: bool = False
    attackers: int | list[int] = 1
    victims: list[Literal["all", "neighbours", "others"]] = Field(default=["all"])
    victims_drawn: int | None = None
    lipschitz: float | None = None
    log_x: bool = False
    log_y: bool = True


class Averaging(Section):
    """What of averaging is drawn: the mean squared distance from the true mean, exact, over steps or nodes.

    `privacy`: times the mean loss of all others to one node, exact or by the formula of Theorem 1; sigma cancels in
    the product.
    """

    over: Literal["steps", "nodes"]
    values: float = 0.25
    privacy: Literal["none", "exact", "added up"] = "none"
    log_x: bool = False


class Training(Section):
    """What of finished training is drawn: the metric of which model, over what."""

    over: str
    y: Literal["average", "nodes", "best of nodes", "AUC", "megabytes to target"] = "average"
    metric: Literal["metric", "loss"] = "metric"
    at: float | str | None = None
    attack: str = "threshold"
    target: float | None = None
    log_x: bool = False


class NoisyGradients(Section):
    """Gradients at so many models with noise of this standard deviation, of so many parameters drawn at random."""

    noise: float
    draws: int = 1000
    parameters: int = 10_000
    log_x: bool = False


class PaperFigure(Section):
    """A figure or table: what it shows, what is smaller here, how it is made, and what the paper says of it."""

    shows: str
    scaled: str = ""
    takes: str = ""
    full: str = ""
    not_run: str = ""
    runs_of: str = ""
    accounts: Accounts | None = None
    averaging: Averaging | None = None
    training: Training | None = None
    gradients: NoisyGradients | None = None
    runs: Document = Field(default_factory=dict)
    reduced: Document = Field(default_factory=dict)
    claims: list[Claim] = Field(default_factory=list)

    @property
    def drawn(self) -> Accounts | Averaging | Training | NoisyGradients:
        """What is drawn, by which the engine is chosen."""
        found = [one for one in (self.accounts, self.averaging, self.training, self.gradients) if one is not None]
        if len(found) != 1:
            raise InputError(
                self.shows, "a figure has one of [accounts], [averaging], [training] and [gradients]", "give one"
            )
        return found[0]

    @property
    def state(self) -> str:
        """What becomes of the paper's claims at reduced settings."""
        if self.not_run:
            return "not run here"
        found = {claim.verdict(claim.found) for claim in self.claims}
        return found.pop().value if len(found) == 1 else "holds in part" if Verdict.HOLDS in found else Verdict.OPEN

    def settings(self, *, full: bool, seeds: int | None) -> Document:
        """The sweep to carry out."""
        found = self.runs if full else merge(self.runs, self.reduced)
        return found if seeds is None else {**found, "seeds": list(range(seeds))}


@cache
def papers() -> dict[str, Paper]:
    """Every paper, by the word for it."""
    return {
        folder.name: parse_section(Paper, read_settings_file(folder / f"{ABOUT_PAPER}.toml"), folder.name)
        for folder in sorted(RECIPES.iterdir())
        if (folder / f"{ABOUT_PAPER}.toml").is_file()
    }


def figures_of(paper: str) -> dict[str, PaperFigure]:
    """The figures and tables of a paper, in their order."""
    if paper not in papers():
        raise InputError(f"paper {paper!r}", f"known: {', '.join(papers())}", "choose one of them")
    names = [file.stem for file in (RECIPES / paper).glob("*.toml") if file.stem != ABOUT_PAPER]
    return {name: one_figure(paper, name) for name in sorted(names, key=_in_order)}


def _in_order(name: str) -> list[tuple[bool, int, str]]:
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.findall(r"\d+|\D+", name)]


@cache
def one_figure(paper: str, name: str) -> PaperFigure:
    """A figure or table by its number."""
    file = RECIPES / paper / f"{name}.toml"
    if paper not in papers() or re.fullmatch(r"\w[\w.-]*", name) is None or not file.is_file():
        raise InputError(
            f"figure {name!r} of {paper!r}", "it is not among those of sotto paper", "take one of its list"
        )
    found = parse_section(PaperFigure, read_settings_file(file), f"{paper} {name}")
    if found.runs_of:
        other = one_figure(paper, found.runs_of)
        found = found.model_copy(update={"runs": other.runs, "reduced": merge(other.reduced, found.reduced)})
    return found
