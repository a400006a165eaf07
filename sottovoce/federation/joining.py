"""A member's part in the run of an agreement: from its table to its model, with a ledger of all that it sent.

ledger.db                private: every step before it is sent, and what has been spent (in the member's folder)
runs/NAME-HASH/          one run, private:
    agreement.toml       what was agreed on
    config.json, privacy.json, metrics.jsonl, result.json, report.html    as of every run
    attendance.jsonl     who was heard in each step, and who was missing
    model.npz            this member's model at the end
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.arrays import numpy_dtype, to_numpy
from sottovoce.core.messages import Traffic
from sottovoce.core.pair_masks import PairMasks
from sottovoce.core.secret_source import SecretSource
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError, Unaccountable
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.attendance import Absences, Enough, StepAttendance
from sottovoce.federation.events import LinkEvent, link_event, named_keys
from sottovoce.federation.grpc_links import GrpcLinks
from sottovoce.federation.guarantees import AccountedRun, account_run, record_account, recorded_run
from sottovoce.federation.identity import TIME_REMEDY, Identity, mask_keys, pair_secrets, time_problem
from sottovoce.federation.journal import Journal, decode_state, encode_state
from sottovoce.federation.link_rules import LinkRules, link_rules, mask_partners
from sottovoce.federation.links import Clock
from sottovoce.federation.member_folder import (
    ATTENDANCE,
    LEDGER,
    MemberSettings,
    check_not_behind,
    heard_over_run,
    require_confirmed,
    run_folder,
    whole_lines,
)
from sottovoce.federation.peer_transport import PeerTransport
from sottovoce.federation.secure_grpc import LinkSettings
from sottovoce.learning.tables import Table, read_table
from sottovoce.ledger.database import Database, flush_folder, open_ledger
from sottovoce.ledger.payloads import FIRST, Place
from sottovoce.ledger.spending import Spending
from sottovoce.ledger.steps import MaskKeys, Steps
from sottovoce.report.page import write_page_of
from sottovoce.run.layout import RunFiles, make_folder
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.run_ledger import planned_run
from sottovoce.run.training_run import RunState, TrainingRun, is_measured
from sottovoce.support.config import Document
from sottovoce.support.files import open_to_append, owner_only, write, write_text
from sottovoce.support.processes import ends_when_stopped, signals_wait
from sottovoce.support.text import JSON, parse_json, to_json
from sottovoce.support.threads import threads

COMPARISON = 10.0
"""Seconds in which neighbours with different agreements find out what these differ in."""


@dataclass(frozen=True)
class Watch:
    """Who is told how it goes: rounds that were played, and what happens, as a name with facts that are not private."""

    progress: Callable[[int, int], None]
    event: Callable[[str, dict[str, JSON]], None]


def member_number(agreement: Agreement, identity: Identity) -> int:
    """The number of this member's node; refused where the agreement has other keys of it, or does not name it."""
    agreed = agreement.member(identity.member.name)
    if agreed.certificate != identity.member.certificate or agreed.exchange_key != identity.member.exchange_key:
        raise InputError(
            f"the agreement has other keys of {agreed.name} than {identity.folder}",
            "a member takes part with the keys in the agreement", "give the --folder of that identity",
        )  # fmt: skip
    return agreement.names.index(agreed.name)


def member_table(agreement: Agreement, identity: Identity, settings: MemberSettings, given: Path | None) -> Table:
    """This member's table, with the agreed columns: the file that is given, or that its settings name."""
    if given is None and settings.data is None:
        raise InputError("no data", "a member takes part with its own rows", "give --data FILE")
    path = given or identity.folder / str(settings.data)
    return read_table(path, agreement.data.columns)


def rules_of(agreement: Agreement, training_run: TrainingRun, member: int) -> LinkRules:
    """What this member's links accept."""
    start = training_run.starting_models(np.array([member]))
    return link_rules(
        bytes.fromhex(agreement.hash), training_run.algorithm, training_run.topology, member,
        rounds=training_run.rounds, dimension=int(start.shape[1]), precision=numpy_dtype(start),
        message_range=(agreement.message_range[0], agreement.message_range[1]),
    )  # fmt: skip


def join_federation(
    identity: Identity,
    agreement: Agreement,
    table: Table,
    settings: MemberSettings,
    *,
    resume: bool,
    watch: Watch,
    file: Path = Path("agreement.toml"),
) -> Document:
    """Take part until the last round, and return the result; a run that was begun goes on with `resume`.

    `file` is what the user calls the agreement, for what errors say to type.
    Nothing is sent before what the run costs is reserved in the member's ledger.
    """
    member, files = member_number(agreement, identity), RunFiles(run_folder(identity.folder, agreement))
    require_confirmed(identity.folder, agreement, file)
    if (problem := time_problem(identity.member)) is not None:
        raise InputError(problem, "others take no certificate whose time is over or has not begun", TIME_REMEDY)
    with ExitStack() as until:
        until.enter_context(owner_only())
        database = until.enter_context(open_ledger(identity.folder / LEDGER))
        finished = files.document(files.result)
        if finished is not None:  # a process may have been killed after it wrote the result
            write_page_of(files.folder, again=False)
            _close(database, agreement)
            watch.event("finished", {})
            return finished
        spending, tables = Spending(database), {identity.member.name: table}
        with ends_when_stopped():
            accounted = recorded_run(database, files, agreement, tables) or account_run(agreement, tables)
        training_run, privacy = accounted.training_run, accounted.privacy
        keys = _mask_keys(MaskKeys(database, agreement.hash), identity, agreement, training_run.topology, files)
        _reserve(spending, agreement, accounted, table, settings)
        record_account(database, agreement, privacy)
        del accounted  # what was traced takes memory that training may need
        label = None if keys is None else keys.label
        journal = Journal(Steps(database, agreement.hash), agreement.names, _spend(spending, agreement), label)
        check_not_behind(files.folder, journal.newest(), database.path)
        begun = journal.recorded_state()
        if begun is not None and not resume:
            raise InputError(
                f"{agreement.name} was already begun with this folder", "no step is taken twice", "go on with --resume"
            )
        _prepare_folder(files, agreement, privacy, 0 if begun is None else begun[0])
        guarantees = PrivacyDocument.read(privacy)
        masks = None if keys is None else PairMasks(identity.member.name, keys.keys())
        run = _MemberRun(
            identity, agreement, settings, guarantees, training_run, journal, files, watch, member, masks, file
        )  # fmt: skip
        until.enter_context(threads(agreement.experiment.machine.threads))
        try:
            seconds, scores = run.play(begun)
        except BaseException:
            if database.is_usable:
                spending.withdraw(agreement.hash)
            raise
        result = run.finish(privacy, seconds, scores)
        flush_folder(files.folder)
        _close(database, agreement)
        return result


def _close(database: Database, agreement: Agreement) -> None:
    """The last acts of a run, after its result is on the disk: erase what only its rounds needed, and settle its cost.

    All of them may be repeated: whoever was killed here starts again, and finds the result.
    """
    Steps(database, agreement.hash).erase_noise()
    MaskKeys(database, agreement.hash).erase()
    spending = Spending(database)
    if spending.recorded(agreement.hash) is not None:
        spending.settle(agreement.hash)


def _mask_keys(
    keys: MaskKeys, identity: Identity, agreement: Agreement, topology: Topology, files: RunFiles
) -> MaskKeys | None:
    """The keys of this member's masks, which are made once for an agreement; None where there are no secure sums."""
    if not agreement.has_secure_sums:
        return None
    if not keys.were_made:
        if files.folder.exists():
            raise InputError(
                f"{files.folder} exists, but {keys.database.path} knows of no masks",
                "with a ledger that was lost or restored, masks could be used a second time",
                "do not take part in this agreement with this folder any more",
            )
        names, member = agreement.names, member_number(agreement, identity)
        keys.store(mask_keys(identity, agreement, [names[one] for one in mask_partners(topology, member)]))
    return keys


def _reserve(
    spending: Spending, agreement: Agreement, accounted: AccountedRun, table: Table, settings: MemberSettings
) -> None:
    """Reserve what the run costs in the ledger."""
    budget = settings.agreed_budget
    if budget is not None:
        spending.set_budget(budget, settings.lineage)
    planned = planned_run(
        PrivacyDocument.read(accounted.privacy), run=agreement.hash, name=agreement.name, data=_fingerprint(table)
    )
    try:
        spending.reserve(planned, settings.lineage, loss_after=accounted.loss_after)
    except Unaccountable as refusal:
        raise Unaccountable(f"{refusal}; {_agree_anew(agreement)}") from refusal


def _agree_anew(agreement: Agreement) -> str:
    """What to do where a run costs more than a member may spend."""
    target = agreement.privacy.epsilon
    less = "fewer training.rounds or more noise"
    if target is not None:
        less = f"a privacy.epsilon below {target:g} (fewer rounds alone would get less noise, and cost the same)"
    return f"no member can change that alone: make a new agreement with sotto peer agree, with {less}"


def _spend(spending: Spending, agreement: Agreement) -> Callable[[int], None]:
    """Records what a round costs, where that is more than is recorded already."""
    covered = 0

    def before(round: int) -> None:
        nonlocal covered
        if round > covered:
            covered = spending.spend(agreement.hash, round)

    return before


def _fingerprint(table: Table) -> str:
    """A hash of all rows, which the ledger salts."""
    digest = hashlib.sha256(table.inputs.tobytes())
    digest.update(table.targets.tobytes())
    return digest.hexdigest()


def _prepare_folder(files: RunFiles, agreement: Agreement, privacy: Document, played: int) -> None:
    """Write what is known before the first round. Lines about rounds that will be played again are taken out."""
    make_folder(files.folder)
    _keep_lines(files.metrics, played)
    _keep_lines(files.folder / ATTENDANCE, played - 1)
    write_text(files.folder / "agreement.toml", agreement.toml(), private=True)
    files.write_document(files.config, agreement.experiment.document())
    files.write_document(files.privacy, privacy)


def _keep_lines(path: Path, last: int) -> None:
    """Keep the lines of a file up to a round."""
    if path.exists():
        kept = (line for line in whole_lines(path) if parse_json(line)["round"] <= last)
        write_text(path, "".join(kept), private=True)


@dataclass(frozen=True)
class _MemberRun:
    """One member's rounds."""

    identity: Identity
    agreement: Agreement
    settings: MemberSettings
    privacy: PrivacyDocument
    training_run: TrainingRun
    journal: Journal
    files: RunFiles
    watch: Watch
    member: int
    masks: PairMasks | None
    file: Path

    def play(self, begun: tuple[int, bytes] | None) -> tuple[float, Document]:
        """Play the rounds that are left, and write the model at the end; the seconds it took, and how well it does."""
        started = time.monotonic()
        with self._links(begun) as links, open_to_append(self.files.folder / ATTENDANCE) as attendance:
            transport = self._transport(links, attendance, is_new=begun is None)
            part = self.training_run.keyed(self._source()).hosted_by(transport)
            state = _state_before(part, begun)
            self.journal.state = encode_state(state.loop_state)
            with open_to_append(self.files.metrics) as metrics:
                for _, now in part.play(state):
                    state = now
                    self.journal.state = encode_state(state.loop_state)
                    self._after_round(part, transport, state, time.monotonic() - started, metrics)
                if state.rounds < part.rounds:  # after a restart the last rounds may be left out
                    end = state._replace(rounds=part.rounds)
                    self._after_round(part, transport, end, time.monotonic() - started, metrics)
        model = to_numpy(part.models(state))[0]
        write(self.files.member_model, lambda file: np.savez(file, model=model), private=True)
        scores = part.task.score(part.models(state)[0], self.agreement.metrics.test_rows)
        return time.monotonic() - started, scores

    def finish(self, privacy: Document, seconds: float, scores: Document) -> Document:
        """Write the result and the page."""
        experiment = self.agreement.experiment
        result: Document = {
            "name": experiment.name, "seed": experiment.seed, "algorithm": privacy["algorithm"],
            "topology": privacy["topology"], "rounds": experiment.training.rounds, "sigma": privacy["sigma"],
            "adjacency": experiment.privacy.adjacency, "delta": experiment.privacy.delta,
            "headline": privacy["headline"], "metrics": self.files.lines()[-1], "held_out": scores,
            "seconds": round(seconds, 3), "folder": str(self.files.folder), "member": self.identity.member.name,
            **heard_over_run(self.files.folder, sums=self.masks is not None),
        }  # fmt: skip
        self.files.write_document(self.files.result, result)
        write_page_of(self.files.folder, again=False)
        return result

    @contextmanager
    def _links(self, begun: tuple[int, bytes] | None) -> Iterator[GrpcLinks]:
        rules = rules_of(self.agreement, self.training_run, self.member)
        links = GrpcLinks(
            rules, self.identity, {one: self.agreement.members[one] for one in rules.neighbours}, report=self._report,
            bind=self.settings.bind, settings=LinkSettings(through_proxy=self.settings.through_proxy),
            at=FIRST if begun is None else Place(begun[0], 0), seen=self.journal.seen(rules),
            key_hashes=self.agreement.key_hashes,
        )  # fmt: skip
        with links, signals_wait(links.stop):
            for place, payloads in self.journal.pending().items():
                links.send(place, payloads)
            yield links

    def _transport(self, links: GrpcLinks, attendance: TextIO, *, is_new: bool) -> PeerTransport:
        settings, agreement = self.settings, self.agreement
        return PeerTransport(
            self.training_run.algorithm, self.training_run.topology, links, seconds=settings.patience,
            gather=settings.gather, enough=Enough(agreement.least_heard, agreement.longest_pause), journal=self.journal,
            clock=Clock(), tell=_Told(self, links, attendance, is_new), masks=self.masks,
        )  # fmt: skip

    def _source(self) -> SecretSource:
        return SecretSource(
            secret=self.identity.secret, context=bytes.fromhex(self.agreement.hash),
            pair_secrets=pair_secrets(self.identity, self.agreement, "noise"), keep_coins=self.journal.coins,
        )  # fmt: skip

    def _after_round(
        self, part: TrainingRun, transport: PeerTransport, state: RunState, seconds: float, metrics: TextIO
    ) -> None:
        total = part.rounds
        self.watch.progress(state.rounds, total)
        if is_measured(state.rounds, self.agreement.metrics.every, total):
            spent, planned = (self.privacy.epsilon_after(at) for at in (state.rounds, total))
            epsilon: JSON = None if spent is None else {"spent": to_json(spent), "planned": to_json(planned)}
            line = own_figures(part, state, self.agreement.metrics.test_rows)
            messages = self.journal.steps_recorded() * len(transport.rules.receivers)
            sent = {"messages": messages, "bytes": messages * transport.rules.payload.length}
            taken = {"wire_bytes": state.wire_bytes, "epsilon": epsilon, "seconds": round(seconds, 3)}
            metrics.write(json.dumps({**line, **sent, **taken}) + "\n")
            metrics.flush()
            self.watch.event("round", {"round": state.rounds, "rounds": total, "epsilon": epsilon})

    def _report(self, event: LinkEvent) -> None:
        self.watch.event(*link_event(event, self.agreement.names, self.training_run.rounds))


@dataclass(frozen=True)
class _Told:
    """Tells how the rounds of a run go, as events and as lines of attendance. `is_new` is a run that was not begun."""

    run: _MemberRun
    links: GrpcLinks
    attendance: TextIO
    is_new: bool
    absences: Absences = field(default_factory=Absences)

    def __call__(self, event: str, *, step: StepAttendance | None = None, **facts: Any) -> None:
        if step is not None:
            self._heard(step)
            return
        if event == "begin" and self.is_new and self.links.disagreeing() >= self.links.neighbours:
            self._refuse_agreement()
        self.run.watch.event(
            event, {key: self._names(fact) if isinstance(fact, Set) else fact for key, fact in facts.items()}
        )
        for one in sorted(facts["members"]) if event == "gather" else ():
            problem = time_problem(self.run.agreement.members[one])
            if problem is not None:
                self("certificate", members={one}, problem=problem, remedy=TIME_REMEDY)

    def _heard(self, step: StepAttendance) -> None:
        heard, missing = self._names(step.heard), self._names(step.missing)
        line = {"round": step.place.round, "step": step.place.step, "heard": heard, "missing": missing}
        if step.sum_known is not None:
            line["sum_known"] = step.sum_known
        self.attendance.write(json.dumps(line) + "\n")
        self.attendance.flush()
        for event, members in self.absences.changed_by(step).items():
            if event == "missing" and step.sum_known is not None:
                over_all = sums_over_all(self.run.training_run.algorithm)
                over = "all members" if over_all else "this member's neighbours"
                self("sum_failed", members=members, round=step.place.round, over=over)
            else:
                self(event, members=members, round=step.place.round)

    def _names(self, members: Set[int]) -> list[JSON]:
        return [self.run.agreement.names[one] for one in sorted(members)]

    def _refuse_agreement(self) -> None:
        """Refuse to begin where all neighbours have another agreement; a single one may lie about it."""
        differing, file = self.links.differences(COMPARISON), self.run.file
        one = min(self.links.disagreeing())
        keys, name = differing.get(one), self.run.agreement.names[one]
        differs = f": it differs in {named_keys(keys)}" if keys else ""
        raise InputError(
            f"{name} has another agreement than {file}{differs}", "all members must take part in the same one",
            f"find out who has the right file; save theirs as {name}.agreement.toml to see both values with "
            f"sotto peer check {file} --folder {self.run.identity.folder} --against {name}.agreement.toml",
        )  # fmt: skip


def own_figures(part: TrainingRun, state: RunState, test_rows: int | None) -> dict[str, JSON]:
    """How well this member's model does on its own held-out rows, which are never sent."""
    found = part.task.evaluate(part.models(state), test_rows)
    loss, metric = float(found.loss[0]), float(found.metric[0])
    return {"round": state.rounds, "loss": _alone(loss), found.metric_name: _alone(metric)}


def _alone(value: float) -> dict[str, JSON]:
    return dict.fromkeys(("mean", "min", "max", "average"), value)


def _state_before(part: TrainingRun, begun: tuple[int, bytes] | None) -> RunState:
    """The state before the round at hand: the recorded one, or the start."""
    start = part.before()
    if begun is None:
        return start
    round, stored = begun
    return RunState(round, decode_state(stored, start.loop_state), Traffic(0, 0), 0)
