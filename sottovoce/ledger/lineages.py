"""Lineages of data, their budgets, and the runs on them: what each promised and has spent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from sottovoce.core.participation import Adjacency
from sottovoce.errors import InputError
from sottovoce.privacy.composition import Composition, GaussianLoss, Loss, compose, loss_document, read_loss
from sottovoce.privacy.covering_views import Coverage
from sottovoce.privacy.gaussian_dp import epsilon_of, mu_of
from sottovoce.support.config import Document
from sottovoce.support.text import JSON, to_json

NOTHING = GaussianLoss(0.0)
SHARES = (1.0, 0.98, 0.9, 0.7, 0.4, 0.1)
"""Of what would fit if all losses were Gaussian, which they are not all: tried in this order."""

EVERYBODY = Coverage(everyone=True, colluders=None)


@dataclass(frozen=True)
class Budget:
    """What may be spent on a lineage, at a delta."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InputError(
                f"a budget of epsilon {self.epsilon}", "it must be positive and finite", "give 4, for example"
            )
        if not 0 < self.delta < 1:
            raise InputError(f"a budget at delta {self.delta}", "it must lie between 0 and 1", "give 1e-5, for example")

    def __str__(self) -> str:
        return f"epsilon {repr(self.epsilon).removesuffix('.0')} at delta {self.delta:g}"


class Stage(NamedTuple):
    """What a run has cost after a round."""

    round: int
    loss: Loss


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """What a run will cost at its end, and after some of its rounds, the last among them.

    `run` tells it from every other run: an agreement's hash, say. `data` is a fingerprint of the data, and `noise` one
    of the key of its noise, if it has one; both are stored with a salt. `covers` says against whom its figure holds.
    What was not sent is given back if the run is `refundable`: a Gaussian one, by its mu squared. Of batches drawn by
    chance, and of figures against single nodes, nothing is: no proof covers an end that depends on what was seen.
    """

    run: str
    name: str
    rounds: int
    loss: Loss
    stages: tuple[Stage, ...]
    refundable: bool
    adjacency: Adjacency
    data: str
    noise: str | None = None
    covers: Coverage = EVERYBODY

    def stage(self, round: int) -> Stage:
        """The first stage that covers a round; between two of them the later one's cost holds."""
        found = next((stage for stage in self.stages if stage.round >= round), None)
        if found is None:
            raise InputError(f"round {round} of run {self.name}", f"it has {self.rounds}", "plan more rounds")
        return found

    def document(self) -> dict[str, JSON]:
        """As JSON."""
        return {
            "name": self.name, "rounds": self.rounds, "loss": loss_document(self.loss),
            "stages": [{"round": stage.round, "loss": loss_document(stage.loss)} for stage in self.stages],
            "refundable": self.refundable, "adjacency": self.adjacency.value, "data": self.data,
            "noise": self.noise, "covers": self.covers.document(),
        }  # fmt: skip

    @classmethod
    def read(cls, run: str, document: Document) -> PlannedRun:
        """What `document` wrote."""
        return cls(
            run=run, name=document["name"], rounds=document["rounds"], loss=read_loss(document["loss"]),
            stages=tuple(Stage(one["round"], read_loss(one["loss"])) for one in document["stages"]),
            refundable=document["refundable"], adjacency=Adjacency(document["adjacency"]), data=document["data"],
            noise=document.get("noise"), covers=Coverage.read(document["covers"]),
        )  # fmt: skip


@dataclass(frozen=True)
class RunSpending:
    """How far a run has come: messages up to `round` are recorded for sending. It is open until it has ended."""

    lineage: str
    planned: PlannedRun
    round: int
    is_open: bool

    @property
    def spent(self) -> Loss:
        """What has been spent so far."""
        return self.planned.stage(self.round).loss if self.round else NOTHING

    @property
    def counted(self) -> Loss:
        """What counts against a budget: the planned end, until the run has ended and gave back what it could."""
        if self.is_open or (self.round and not self.planned.refundable):
            return self.planned.loss
        return self.spent

    @property
    def state(self) -> str:
        """How it stands, in a word."""
        if self.is_open:
            return "reserved"
        return "finished" if self.round == self.planned.rounds else "stopped"


@dataclass(frozen=True)
class Lineage:
    """Data about the same people, with a budget if it has one, and the runs on it."""

    name: str
    budget: Budget | None
    runs: tuple[RunSpending, ...]

    @property
    def counted(self) -> Composition:
        """What counts against the budget: reservations of runs that go on, and what others have spent."""
        return compose(run.counted for run in self.runs)

    @property
    def spent(self) -> Composition:
        """What has been spent so far by all runs together."""
        return compose(run.spent for run in self.runs)

    @property
    def adjacency(self) -> Adjacency:
        """Whose data the joint figure is about: one record, unless every run protects all data of a node."""
        users = all(run.planned.adjacency is Adjacency.USER for run in self.runs)
        return Adjacency.USER if self.runs and users else Adjacency.RECORD

    @property
    def covers(self) -> Coverage:
        """Against whom the joint figure holds: whom the figures of all runs cover."""
        return Coverage.common(run.planned.covers for run in self.runs)

    def epsilon_left(self) -> float | None:
        """The budget less what counts against it, rounded down; None without a budget."""
        if self.budget is None:
            return None
        total = self.counted.epsilon(self.budget.delta)
        return max(0.0, math.nextafter(self.budget.epsilon - total, -math.inf)) if total else self.budget.epsilon

    def mu_left(self) -> float | None:
        """Up to which mu a further run without sampling fits, by the exact composition; None without a budget."""
        if self.budget is None:
            return None
        total = self.counted
        counted = total.epsilon(self.budget.delta) if total.mu is None else None
        if counted is not None and not 0 < counted < self.budget.epsilon:
            return 0.0
        mu = total.mu if counted is None else mu_of(counted, self.budget.delta)
        squared = mu_of(self.budget.epsilon, self.budget.delta) ** 2 - (mu or 0.0) ** 2
        gaussian = math.sqrt(squared) * (1 - 1e-12) if squared > 0 else 0.0
        return next((mu for share in SHARES if self._fits(GaussianLoss(mu := share * gaussian))), 0.0)

    def epsilon_fits(self) -> float | None:
        """The same as an epsilon at the budget's delta."""
        mu = self.mu_left()
        if mu is None or self.budget is None:
            return None
        return epsilon_of(mu, self.budget.delta) if self.counted.epsilon(self.budget.delta) else self.budget.epsilon

    def spent_in_all(self, delta: float) -> dict[str, JSON]:
        """What all runs on these records have spent, run by run and together, for those who read of one of them."""
        begun = [run for run in self.runs if run.round]
        each = [{"run": run.planned.name, "epsilon": to_json(compose([run.spent]).epsilon(delta))} for run in begun]
        return {"lineage": self.name, "delta": delta, "epsilon": to_json(self.spent.epsilon(delta)), "runs": each}

    def _fits(self, further: Loss) -> bool:
        assert self.budget is not None
        joint = compose([*(run.counted for run in self.runs), further])
        return joint.epsilon(self.budget.delta) <= self.budget.epsilon
