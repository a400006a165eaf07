"""A member's part in the run of an agreement: from its table to its model, with a ledger of all that it sent.

ledger.db                private: every step before it is sent, and what has been spent (in the member's folder)
runs/NAME-HASH/          one run, private:
    agreement.toml       what was agreed on; agreement-HASH.toml what it amends
    config.json, privacy.json, metrics.jsonl, result.json, report.html    as of every run
    attendance.jsonl     who was heard in each step, and who was missing
    model.npz            this member's model at the end
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from sottovoce.core.pair_masks import PairMasks
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError, Unaccountable
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.amendments import earlier_agreements
from sottovoce.federation.guarantees import AccountedRun, account_run, member_settings
from sottovoce.federation.identity import TIME_REMEDY, Identity, load_identity, mask_keys, time_problem
from sottovoce.federation.journal import Journal
from sottovoce.federation.link_rules import Earlier, mask_partners
from sottovoce.federation.member_folder import (
    ATTENDANCE,
    LEDGER,
    MemberSettings,
    check_not_behind,
    require_confirmed,
    run_folder,
    whole_lines,
)
from sottovoce.federation.member_run import MemberRun, Part, Watch
from sottovoce.learning.tables import Table, read_table
from sottovoce.ledger.database import Database, flush_folder, open_ledger
from sottovoce.ledger.lineages import RunSpending
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.spending import Spending
from sottovoce.ledger.steps import MaskKeys, Steps
from sottovoce.report.page import write_page_of
from sottovoce.run.layout import RunFiles, make_folder
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.run_ledger import planned_run
from sottovoce.support.config import Document
from sottovoce.support.files import owner_only, write_text
from sottovoce.support.processes import ends_when_stopped
from sottovoce.support.text import parse_json
from sottovoce.support.threads import threads


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

    Of an amendment, what is left of the agreement before it is played first. `file` is what the user calls the
    agreement, for what errors say to type. Nothing is sent before what the run costs is reserved in the member's
    ledger.
    """
    member_number(agreement, identity)
    files, folder = RunFiles(run_folder(identity.folder, agreement)), identity.folder
    require_confirmed(folder, agreement, file)
    if (problem := time_problem(identity.member)) is not None:
        raise InputError(problem, "others take no certificate whose time is over or has not begun", TIME_REMEDY)
    with ExitStack() as until:
        until.enter_context(owner_only())
        database = until.enter_context(open_ledger(folder / LEDGER))
        finished = files.document(files.result)
        if finished is not None:  # a process may have been killed after it wrote the result
            write_page_of(files.folder, again=False)
            _close(database, agreement)
            watch.event("finished", {})
            return finished
        chain = [*earlier_agreements(folder, agreement, identity.member.name), agreement]
        joining = _Joining(database, files, chain, table, settings, resume, watch, file)
        until.enter_context(threads(agreement.experiment.machine.threads))
        begun, state = joining.entered(), None
        for number, one in enumerate(chain[begun:], begun):
            if number > begun:
                joining.enter(one, state)
            part, own = joining.part(number), load_identity(folder, one)
            if part.is_last or time_problem(own.member) is None:
                found = joining.play(own, part)
                state = found.run.journal.state
            elif recorded := joining.steps.recorded_state():
                state = recorded[1]
        spending, delta = Spending(database), found.privacy["delta"]
        in_all = spending.lineage(settings.lineage).spent_in_all(delta)
        result = found.run.finish(found.privacy, found.seconds, found.scores, in_all)
        flush_folder(files.folder)
        _close(database, agreement)
        return result


class _Played(NamedTuple):
    """What was played, as what it is accounted for, how long it took, and how well the model does."""

    run: MemberRun
    privacy: Document
    seconds: float
    scores: Document


@dataclass(frozen=True)
class _Joining:
    """What a member brings along for its run. `chain` are the agreements that it is played under, one after another."""

    database: Database
    files: RunFiles
    chain: Sequence[Agreement]
    table: Table
    settings: MemberSettings
    resume: bool
    watch: Watch
    file: Path

    @property
    def steps(self) -> Steps:
        """All that was sent in this run."""
        return Steps(self.database, self.chain[-1].run)

    def entered(self) -> int:
        """Which agreement of the chain was begun last; refused where that is another one, or this member has left."""
        hashes = [one.hash for one in self.chain]
        last = next(reversed(self.steps.amendments()), hashes[0])
        if last not in hashes:
            found = "this member has left it" if last is None else f"it was amended by {last[:8]}"
            raise InputError(
                f"{self.file}: {found}", "what no longer holds is not played", "take part in the agreement that holds"
            )
        return hashes.index(last)

    def enter(self, one: Agreement, state: bytes | None) -> None:
        """From now on this agreement holds for this member; what it was about to do under the one before is over."""
        newest = self.steps.newest()
        if newest is not None and newest.round >= one.since:
            raise InputError(
                f"{self.file}: an amendment from round {one.since}, which this member has played before",
                "no round is played twice", "let all sign one from a later round",
            )  # fmt: skip
        self.steps.record_amended(one.hash, one.since, None if newest is None else state)
        self.watch.event("amended", {"round": one.since})

    def part(self, number: int) -> Part:
        """What is played under an agreement of the chain."""
        one = self.chain[number]
        earlier = tuple(
            Earlier(later.since, bytes.fromhex(each.hash), _numbers(one, each))
            for each, later in pairwise(self.chain[: number + 1])
        )
        return Part(one, earlier, None if one is self.chain[-1] else self.chain[number + 1])

    def play(self, identity: Identity, part: Part) -> _Played:
        """Account for a part, reserve what it costs, and play it."""
        agreement, files, settings, name = part.agreement, self.files, self.settings, identity.member.name
        database, spending = self.database, Spending(self.database)
        with ends_when_stopped():
            accounted = account_run(agreement, {name: self.table}, name)
        training_run, privacy = accounted.training_run, accounted.privacy
        keys = _mask_keys(MaskKeys(database, agreement.hash), identity, agreement, training_run.topology, files)
        _reserve(spending, agreement, accounted, self.table, settings)
        del accounted  # what was traced takes memory that training may need
        label = None if keys is None else keys.label
        steps = Steps(database, agreement.run, agreement.hash)
        journal = Journal(steps, agreement.names, _spend(spending, agreement), label)
        check_not_behind(files.folder, journal.newest(), database.path)
        begun = journal.recorded_state()
        if begun is not None and not self.resume:
            raise InputError(
                f"{agreement.name} was already begun with this folder", "no step is taken twice", "go on with --resume"
            )
        for one in self.chain[: self.chain.index(agreement)]:
            write_text(files.folder / f"agreement-{one.hash[:8]}.toml", one.toml(), private=True)
        _prepare_folder(files, agreement, name, privacy, part.begins if begun is None else begun[0])
        masks = None if keys is None else PairMasks(name, keys.keys())
        left = spending.lineage(settings.lineage).epsilon_left()
        run = MemberRun(
            identity, part, settings, PrivacyDocument.read(privacy), training_run, journal, files, self.watch,
            member_number(agreement, identity), masks, left, self.file,
        )  # fmt: skip
        try:
            return _Played(run, privacy, *run.play(begun))
        except BaseException:
            if database.is_usable:
                spending.withdraw(agreement.run)
            raise


def _numbers(now: Agreement, then: Agreement) -> dict[int, int]:
    """The numbers that members of an agreement had in an earlier one."""
    return {number: then.names.index(name) for number, name in enumerate(now.names) if name in then.names}


def leave_federation(folder: Path, agreement: Agreement) -> RunSpending:
    """Send nothing more in the run of an agreement; what it has spent. Again, it is the same."""
    with owner_only(), open_ledger(folder / LEDGER) as database:
        steps, spending = Steps(database, agreement.run), Spending(database)
        found = spending.run(agreement.run)
        if found is None:
            raise InputError(
                f"{agreement.name} was never begun with this folder", "nothing of it was sent", "leave it at that"
            )
        if next(reversed(steps.amendments()), "") is not None:
            newest = steps.newest()
            steps.record_amended(None, 0 if newest is None else newest.round + 1, None)
        _close(database, agreement)
        return spending.run(agreement.run) or found


def _close(database: Database, agreement: Agreement) -> None:
    """The last acts of a run, after its result is on the disk: erase what only its rounds needed, and settle its cost.

    All of them may be repeated: whoever was killed here starts again, and finds the result.
    """
    steps = Steps(database, agreement.run)
    steps.erase_noise()
    steps.forget(Place(agreement.training.rounds, 0))
    for one in {agreement.run, agreement.hash, *filter(None, steps.amendments())}:
        MaskKeys(database, one).erase()
    spending = Spending(database)
    if spending.recorded(agreement.run) is not None:
        spending.settle(agreement.run)
    database.shrink()


def _mask_keys(
    keys: MaskKeys, identity: Identity, agreement: Agreement, topology: Topology, files: RunFiles
) -> MaskKeys | None:
    """The keys of this member's masks, which are made once for an agreement; None where there are no secure sums."""
    if not agreement.has_secure_sums:
        return None
    if not keys.were_made:
        if files.folder.exists() and Spending(keys.database).recorded(agreement.run) is None:
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
        PrivacyDocument.read(accounted.privacy), run=agreement.run, name=agreement.name, data=_fingerprint(table)
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
            covered = spending.spend(agreement.run, round)

    return before


def _fingerprint(table: Table) -> str:
    """A hash of all rows, which the ledger salts."""
    digest = hashlib.sha256(table.inputs.tobytes())
    digest.update(table.targets.tobytes())
    return digest.hexdigest()


def _prepare_folder(files: RunFiles, agreement: Agreement, member: str, privacy: Document, played: int) -> None:
    """Write what is known before the first round. Lines about rounds that will be played again are taken out."""
    make_folder(files.folder)
    _keep_lines(files.metrics, played)
    _keep_lines(files.folder / ATTENDANCE, played - 1)
    write_text(files.folder / "agreement.toml", agreement.toml(), private=True)
    files.write_document(files.config, member_settings(agreement, member).document())
    files.write_document(files.privacy, privacy)


def _keep_lines(path: Path, last: int) -> None:
    """Keep the lines of a file up to a round."""
    if path.exists():
        kept = (line for line in whole_lines(path) if parse_json(line)["round"] <= last)
        write_text(path, "".join(kept), private=True)
