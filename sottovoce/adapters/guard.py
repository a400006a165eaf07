"""The guard of one site: its updates leave it clipped, with noise, and after they were entered in its ledger.

    with Guard("agreement.toml", "North", folder="north") as guard:
        for round in range(guard.rounds):
            model = receive()                                              # your own framework does
            send(guard.trained(round, model, train))

`train` is given a copy, so what it does in place shows in the update and nowhere else. What it raises stays here, as
rows may be why: then noise alone is sent. Where single records are protected, `guard.stepped` takes the gradients of
each record in place of training. A round has one release. Whoever asks again for a round, after a crash or for another
update, gets the bytes that were recorded for it: noise is never drawn a second time for a place. What comes back are
whole multiples of a step, as real numbers: rounding is covered.

Shapes: D numbers of an update, B records.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import secrets
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.adapters.site_agreement import Agreed, SiteAgreement, read_site_agreement
from sottovoce.core.release import Gradient, release_of
from sottovoce.core.secret_source import SecretSource
from sottovoce.distributed.sharded_rows import NodeShard, ShardedRows, as_sharded
from sottovoce.errors import InputError, Unaccountable
from sottovoce.federation.journal import KEPT_ROUNDS, Journal, RecordedInputs, RecordedStep
from sottovoce.learning.clipping import clip_rows, sum_clipped
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import Budget, PlannedRun
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.spending import DEFAULT, Spending
from sottovoce.ledger.steps import Steps
from sottovoce.report.page import write_page_of
from sottovoce.run.build import build_accountant
from sottovoce.run.fingerprint import origin
from sottovoce.run.folder_check import FolderCheck
from sottovoce.run.layout import RunFiles, public_settings
from sottovoce.run.privacy_document import epsilon_in_line
from sottovoce.run.privacy_report import PrivacyReport, listed, report_wanted, sigma_of
from sottovoce.run.run_documents import read_doubted_run
from sottovoce.run.run_ledger import planned_run
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.config import AlgorithmChoice, Experiment
from sottovoce.support.files import make_private_folder, read_bytes, write_bytes, write_text
from sottovoce.support.text import join_names
from sottovoce.support.threads import chunks

Model: TypeAlias = Mapping[str, NDArray[Any]]
"""Parameters by name; or the difference between two models."""

Train: TypeAlias = Callable[[Model], Model]
"""The site's own training: from a model that it may change to the one after."""

Gradients: TypeAlias = Callable[[Model, NDArray[np.int64]], Model]
"""The gradients of the site's own records with these numbers, from 0, at a model: by name, first axis the records."""

log = logging.getLogger(__name__)

KEY, LEDGER, FAILURE, EVERYBODY, AT_ONCE = "site.key", "ledger.db", "failure.txt", 0, 256


class Guard:
    """One site of an agreement. Its folder holds its key, its ledger and its run.

    With a `budget` for a `lineage` of data, as many rounds are played as it has room for: that is decided before the
    first.
    """

    def __init__(
        self, agreement: Agreed, site: str, folder: Path | str, *, budget: Budget | None = None, lineage: str = DEFAULT
    ) -> None:
        self.agreement = agreed = read_site_agreement(agreement)
        if site not in agreed.sites:
            raise InputError(f"no site called {site!r}", f"sites are {join_names(agreed.sites)}", "check the name")
        self.site, self._node, self._lock = site, agreed.sites.index(site), threading.RLock()
        self._run_id = hashlib.sha256(f"{agreed.hash} {site}".encode()).hexdigest()
        self._folder = Path(folder)
        self._files = RunFiles(self._folder / "runs" / f"{agreed.name}-{agreed.hash[:8]}")
        self._shapes: dict[str, tuple[int, ...]] | None = None
        make_private_folder(self._folder)
        with ExitStack() as unless_ready:
            database = unless_ready.enter_context(open_ledger(self._folder / LEDGER))
            self._spending = Spending(database)
            if budget is not None:
                self._spending.set_budget(budget, lineage)
            self._accounted = self._reserve(lineage)
            self._journal = Journal(Steps(database, self._run_id), ("everybody",), self._spend)
            self._write_run()
            self._until = unless_ready.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def rounds(self) -> int:
        """So many rounds are played: those of the agreement, or as many as the budget has room for."""
        return self._accounted.run.rounds // self.agreement.steps

    @property
    def report(self) -> PrivacyReport:
        """What is proven of these rounds."""
        return self._accounted.report

    def check(self, round: int, aggregator: str | None = None) -> None:
        """Refuse a round that is over budget, or that was not agreed on: before anybody trains for it."""
        if not 0 <= round < self.rounds:
            why = "the budget is spent" if self.rounds < self.agreement.rounds else "the agreement has no more"
            raise Unaccountable(f"{self.site} has {self.rounds} rounds of {self.agreement.name}, from 0 on: {why}")
        agreed = self.agreement.aggregator(round)
        if aggregator != agreed:
            raise Unaccountable(
                f"round {round} is aggregated by {aggregator or 'a server'}, and {agreed or 'a server'} was agreed on: "
                "what single sites learn depends on it"
            )

    def release(self, round: int, update: Model, *, aggregator: str | None = None) -> dict[str, NDArray[Any]]:
        """The update of a round as it may leave the site; refused once the rounds are over.

        `aggregator` is the site to which the framework sends it, None for a server.
        """
        self.check(round, aggregator)
        if self.agreement.records is not None:
            raise InputError(
                "an update of a whole round", f"{self.agreement.name} protects single records", "use guard.stepped"
            )
        given = {name: np.asarray(part) for name, part in update.items()}
        row = torch.from_numpy(self._flat(given))[None]
        clipping = self._accounted.run.gradients.clipping
        return self._released(round, given, lambda _, points: clip_rows(row.to(points.dtype), clipping).rows)

    def trained(
        self, round: int, model: Model, train: Train, *, aggregator: str | None = None
    ) -> dict[str, NDArray[Any]]:
        """The model after training as it may leave the site: the one before, and the update with noise.

        The one before is copied first: trainers that work in place would change it, and it leaves as it is. Whole
        numbers, such as counters of batches, stay as they were, and so do types of numbers: a trainer that fails, or
        leaves other parameters, is not told from one that moves nothing.
        """
        self.check(round, aggregator)
        before = {name: np.array(part) for name, part in model.items()}
        moved = [name for name in before if np.issubdtype(before[name].dtype, np.floating)]
        try:
            update = _moved(before, train(_copied(before)), moved)
        except Exception:
            self._failed(f"training in round {round}")
            update = _moved(before, before, moved)
        noisy = self.release(round, update, aggregator=aggregator)
        return {
            name: (part + noisy[name]).astype(part.dtype) if name in noisy else part for name, part in before.items()
        }

    def stepped(
        self,
        round: int,
        model: Model,
        gradients: Gradients,
        *,
        only: Sequence[str] | None = None,
        aggregator: str | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The model after a round of steps along noisy sums of clipped gradients of records, as it may leave the site.

        `only` these parameters are trained, by default all that are no whole numbers; nothing else moves.
        """  # fmt: skip
        self.check(round, aggregator)
        if self.agreement.records is None:
            raise InputError(f"steps in {self.agreement.name}", "it has no [records]", "agree on them, or use trained")
        now = {name: np.array(part) for name, part in model.items()}
        moved = [name for name in now if np.issubdtype(now[name].dtype, np.floating)] if only is None else only
        for step in range(round * self.agreement.steps, (round + 1) * self.agreement.steps):
            trained = {name: now[name] for name in moved}
            noisy = self._released(step, trained, self._summed(now, trained, gradients))
            now |= {name: now[name] - self.agreement.records.rate * noisy[name] for name in moved}
        return {name: part.astype(np.asarray(model[name]).dtype) for name, part in now.items()}

    def finish(self, *, loss: float, accuracy: float, seconds: float = 0.0) -> Path:
        """The run is over: what it did not release is given back, where that is proven; and its page is written.

        Loss and accuracy are those of the last model on rows of this site that were held out. They stay in its folder.
        """
        if not math.isfinite(loss) or not math.isfinite(accuracy):
            raise InputError(f"loss {loss} and accuracy {accuracy}", "they are numbers", "give those of another model")
        privacy, files, experiment = self.report.stated, self._files, self._accounted.experiment
        measured = {key: dict.fromkeys(("mean", "min", "max", "average"), value)
                    for key, value in (("loss", loss), ("accuracy", accuracy))}  # fmt: skip
        with self._lock:
            played = self._journal.steps_recorded()
        line = {
            "round": self._accounted.run.rounds, **measured, "messages": played, "bytes": played * self._bytes(),
            "epsilon": epsilon_in_line(privacy, self._accounted.run.rounds), "seconds": round(seconds, 3),
        }  # fmt: skip
        write_text(files.metrics, json.dumps(line) + "\n", private=True)
        stated = self._accounted.report.document()
        shown = ("algorithm", "topology", "rounds", "sigma", "adjacency", "delta", "headline")
        files.write_document(files.result, {
            "name": experiment.name, "seed": experiment.seed, **{key: stated[key] for key in shown}, "metrics": line,
            "seconds": round(seconds, 3), "folder": str(files.folder), "member": self.site,
        })  # fmt: skip
        write_page_of(replace(read_doubted_run(files.folder), check=FolderCheck()), again=False)
        with self._lock:
            self._spending.settle(self._run_id)
        return files.page

    def close(self) -> None:
        """Leave the ledger to other processes. What the run may cost stays reserved: it can go on."""
        with self._lock:
            self._until.close()

    # --- in a round ------------------------------------------------------------------------------------------------

    def _flat(self, update: Model) -> NDArray[Any]:
        """All numbers in one row; the parameters are those of the first round."""
        shapes = _shapes(update)
        odd = next((f"{name} of {part.dtype}" for name, part in update.items() if part.dtype.kind not in "fiu"), None)
        if odd is not None:
            raise InputError(f"parameter {odd}", "an update has real numbers", "leave it out")
        if self._shapes is None:
            self._shapes = shapes
        if not shapes or shapes != self._shapes:
            raise InputError(
                f"an update of {len(shapes)} parameters", "every round has the same, with the same shapes",
                "give all parameters that are trained, each time",
            )  # fmt: skip
        return np.concatenate([np.asarray(part, dtype=self.agreement.precision).ravel() for part in update.values()])

    def _failed(self, what: str) -> None:
        """Say so in the log, and why in a file of the site: frameworks send logs on, and errors quote rows."""
        write_text(self._folder / FAILURE, traceback.format_exc(), private=True)
        log.error("%s: %s failed, and counts as nothing: %s says why", self.site, what, self._folder / FAILURE)

    def _summed(self, model: Model, trained: Model, gradients: Gradients) -> Gradient:
        """The clipped gradients of a batch, added up and divided by a number that depends on no row."""
        clipping, batches = self._accounted.run.gradients.clipping, self._accounted.run.gradients.batches
        weight = 1 / float(batches.divisors[self._node])

        def total(step: int, points: torch.Tensor) -> torch.Tensor:
            found, numbered = torch.zeros_like(points), tuple(np.arange(len(shard)) for shard in batches.shards)
            rows = replace(batches, key=self._source, shards=numbered).rows_of(self._node, step)
            for some in chunks(len(rows), AT_ONCE):
                each = torch.from_numpy(self._gradients(gradients, model, trained, rows[some])).to(points)
                found += sum_clipped(each[None], points.new_full((1, len(each)), weight), clipping).rows
            return found

        return total

    def _gradients(
        self, gradients: Gradients, model: Model, trained: Model, rows: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Those of some records, one below the other. One that fails is zero, and changes nothing about others."""
        try:
            parts = gradients(_copied(model), rows)
            each = [
                np.asarray(parts[name], dtype=float).reshape(len(rows), like.size) for name, like in trained.items()
            ]
            return np.concatenate(each, axis=1)
        except Exception:
            if len(rows) > 1:
                halves = np.array_split(rows, 2)
                return np.concatenate([self._gradients(gradients, model, trained, half) for half in halves])
            self._failed("the gradient of a record")
            return np.zeros((1, sum(like.size for like in trained.values())))

    def _released(self, step: int, given: Model, clipped: Gradient) -> dict[str, NDArray[Any]]:
        """What a step releases, in the form of what is given: as it was recorded, or clipped, noisy and recorded."""
        row_D = self._flat(given)
        with self._lock:
            released = self._drawn(step, row_D, clipped)
        parts = np.split(released, np.cumsum([part.size for part in given.values()])[:-1])
        return {
            name: part.reshape(like.shape).astype(like.dtype)
            for (name, like), part in zip(given.items(), parts, strict=True)
        }

    def _drawn(self, step: int, row_D: NDArray[Any], clipped: Gradient) -> NDArray[Any]:
        run, place = self._accounted.run, Place(step, 0)
        recorded = self._journal.replayed(place)
        if recorded is not None:
            return self._recorded(step, recorded, len(row_D))
        shard = NodeShard(tuple(np.array([node]) for node in range(run.topology.n)), self._node)
        start, mixing = ShardedRows(shard, torch.zeros(1, len(row_D), dtype=run.task.dtype)), run.topology.at(step, 0)
        inputs = RecordedInputs(run.seed, self._source, clipped, start, self._journal)
        entering = release_of(run.algorithm).step(inputs.gradient(step, start), mixing, inputs, step)
        released: NDArray[Any] = as_sharded(entering.gradient).own[0].numpy()
        self._journal.before_send(place, {EVERYBODY: released.tobytes()})
        return released

    @property
    def _source(self) -> SecretSource:
        """Fresh keys, and of batches those that are recorded."""
        return SecretSource(secret=self._key(), context=bytes.fromhex(self._run_id), keep_coins=self._journal.coins)

    def _recorded(self, round: int, recorded: RecordedStep, numbers: int) -> NDArray[Any]:
        """What a round released, as long as it is kept."""
        if not recorded.sent:
            raise InputError(
                f"step {round} was released long ago", f"the last {KEPT_ROUNDS} rounds are kept", "go on after it"
            )
        released = np.frombuffer(recorded.sent[EVERYBODY], dtype=self.agreement.precision)
        if len(released) != numbers:
            raise InputError(
                f"round {round} was released with {len(released):,} numbers", f"this update has {numbers:,}",
                "give the update of the model that the run began with",
            )  # fmt: skip
        return released

    def _key(self) -> bytes:
        path = self._folder / KEY
        if not path.exists():
            write_bytes(path, secrets.token_bytes(32), private=True)
        return read_bytes(path)

    def _bytes(self) -> int:
        return (
            sum(int(np.prod(shape)) for shape in (self._shapes or {}).values())
            * np.dtype(self.agreement.precision).itemsize
        )

    # --- what it costs ---------------------------------------------------------------------------------------------

    def _reserve(self, lineage: str) -> Accounted:
        """Reserve all rounds, or as many as the budget has room for; and what is proven of these."""
        whole = _accounted(self.agreement.model_dump_json())
        runs = (run.planned for found in self._spending.lineages() for run in found.runs)
        begun = next((run for run in runs if run.run == self._run_id), None)
        if begun is None and self._files.config.exists():
            raise InputError(
                f"{self._folder / LEDGER}: it does not have the run in {self._files.folder}",
                "with a ledger that was lost or restored, a round would be released twice",
                "put the ledger of that run back, or agree on another run",
            )  # fmt: skip
        rounds = self._within_budget(whole, lineage) if begun is None else begun.rounds // self.agreement.steps
        found = _accounted(self.agreement.model_dump_json(), rounds)
        self._spending.reserve(self._planned(found), lineage, loss_after=found.report.loss_after)
        return found

    def _within_budget(self, whole: Accounted, lineage: str) -> int:
        """So many rounds fit; one, which is refused, where none does."""
        low, high = 1, self.agreement.rounds
        while low < high:
            middle = (low + high + 1) // 2
            part = _accounted(self.agreement.model_dump_json(), middle)
            try:
                self._spending.check(self._planned(part), lineage, part.report.loss_after)
                low = middle
            except Unaccountable:
                high = middle - 1
        return low

    def _planned(self, accounted: Accounted) -> PlannedRun:
        return planned_run(accounted.report.stated, run=self._run_id, name=self.agreement.name, data=self.site)

    def _spend(self, rounds: int) -> None:
        self._spending.spend(self._run_id, rounds)

    def _write_run(self) -> None:
        """The settings and the guarantees, as every run has them."""
        files, (experiment, run, report) = self._files, self._accounted
        experiment = experiment.model_copy(update={"member": self.site})
        make_private_folder(files.folder)
        files.write_document(files.config, public_settings(experiment))
        files.write_document(files.privacy, report.document() | origin(experiment, run))


def _shapes(model: Model) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(part) for name, part in model.items()}


def _moved(before: Model, after: Model, names: Sequence[str]) -> Model:
    """How far training moved parameters; refused where it left others than it was given."""
    odd = {name for name, _ in _shapes(before).items() ^ _shapes(after).items()}
    if odd:
        raise InputError(
            f"parameters {join_names(sorted(odd))}", "the model has the same before and after training",
            "return them all",
        )  # fmt: skip
    return {name: np.subtract(after[name], before[name], dtype=float) for name in names}


def _copied(model: Model) -> dict[str, NDArray[Any]]:
    return {name: part.copy() for name, part in model.items()}


class Accounted(NamedTuple):
    """The settings of some rounds, the run, and what is proven of it."""

    experiment: Experiment
    run: TrainingRun
    report: PrivacyReport


@lru_cache(maxsize=64)
def _accounted(agreement: str, rounds: int | None = None) -> Accounted:
    """An agreement's run, or its first rounds with the same noise; once in a process, for sites are opened often."""
    agreed = SiteAgreement.model_validate_json(agreement)
    if rounds is None or rounds == agreed.rounds:
        return _account(agreed.experiment)
    experiment, run, _ = _accounted(agreement)
    sigma = listed(sigma_of(run.algorithm.noise))
    fewer = {
        "training": experiment.training.model_copy(update={"rounds": rounds * agreed.steps}),
        "algorithm": AlgorithmChoice(name=experiment.algorithm.name, sigma=sigma),  # type: ignore[call-arg]
        "privacy": experiment.privacy.model_copy(update={"epsilon": None}),
    }
    return _account(experiment.model_copy(update=fewer))


def _account(experiment: Experiment) -> Accounted:
    accountant = build_accountant(experiment, tables={})
    return Accounted(experiment, accountant.training_run, report_wanted(accountant, experiment))
