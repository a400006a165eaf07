"""One member's rounds: over which links they go, what is told and measured of them, and what is left at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.arrays import numpy_dtype, to_numpy
from sottovoce.core.loop import start_run
from sottovoce.core.messages import Traffic
from sottovoce.core.pair_masks import PairMasks
from sottovoce.core.secret_source import SecretSource
from sottovoce.errors import InputError, PeerLost
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.attendance import Absences, Enough, StepAttendance
from sottovoce.federation.events import REFUSALS, Connected, Left, LinkEvent, Lost, link_event, named_keys
from sottovoce.federation.grpc_links import GrpcLinks
from sottovoce.federation.guarantees import member_settings
from sottovoce.federation.identity import (
    TIME_REMEDY,
    Identity,
    certificate_ends,
    ends_soon,
    pair_secrets,
    time_problem,
)
from sottovoce.federation.journal import Journal, decode_state, encode_state
from sottovoce.federation.link_rules import Earlier, LinkRules, link_rules
from sottovoce.federation.links import Clock
from sottovoce.federation.member_folder import ATTENDANCE, MemberSettings, heard_over_run, signed_amendments
from sottovoce.federation.metrics import Metrics
from sottovoce.federation.peer_transport import PeerTransport
from sottovoce.federation.secure_grpc import LinkSettings
from sottovoce.ledger.payloads import Place
from sottovoce.report.page import write_page_of
from sottovoce.run.fingerprint import public_fingerprint
from sottovoce.run.folder_check import FolderCheck
from sottovoce.run.layout import RunFiles
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.run_documents import read_doubted_run
from sottovoce.run.training_run import RunState, TrainingRun, is_measured
from sottovoce.support.config import Document
from sottovoce.support.files import open_to_append, write
from sottovoce.support.npz import write_npz
from sottovoce.support.processes import signals_wait
from sottovoce.support.text import JSON, to_json

COMPARISON = 10.0
"""Seconds in which neighbours with different agreements find out what these differ in."""


FAR = 10.0
"""Times what noise explains that a neighbour's message is away when it is named."""


@dataclass(frozen=True)
class Watch:
    """Who is told how it goes: rounds that were played, and what happens, as a name with facts that are not private."""

    progress: Callable[[int, int], None]
    event: Callable[[str, dict[str, JSON]], None]
    metrics: Metrics = field(default_factory=Metrics)


@dataclass(frozen=True)
class Part:
    """What is played under one agreement. `earlier` were played before it, `following` is the one that amends it."""

    agreement: Agreement
    earlier: tuple[Earlier, ...]
    following: Agreement | None

    @property
    def begins(self) -> int:
        """The first round."""
        return self.agreement.since

    @property
    def ends(self) -> int:
        """The round before which it ends."""
        return self.agreement.training.rounds if self.following is None else self.following.since

    @property
    def is_last(self) -> bool:
        """Whether none follows."""
        return self.following is None

    @property
    def leaving(self) -> frozenset[int]:
        """Who has no part in the following one."""
        stay = set(self.agreement.names if self.following is None else self.following.names)
        return frozenset(number for number, name in enumerate(self.agreement.names) if name not in stay)


def rules_of(part: Part, training_run: TrainingRun, member: int) -> LinkRules:
    """What this member's links accept."""
    agreement = part.agreement
    start = training_run.starting_models(np.array([member]))
    rules = link_rules(
        bytes.fromhex(agreement.hash), training_run.algorithm, training_run.topology, member,
        rounds=training_run.rounds, dimension=int(start.shape[1]), precision=numpy_dtype(start),
        message_range=(agreement.message_range[0], agreement.message_range[1]),
    )  # fmt: skip
    return replace(rules, rounds=part.ends, earlier=part.earlier, leaving=part.leaving)


@dataclass(frozen=True)
class MemberRun:
    """One member's rounds. `budget_left` is what the budget of its data has left, if it has one."""

    identity: Identity
    part: Part
    settings: MemberSettings
    privacy: PrivacyDocument
    training_run: TrainingRun
    journal: Journal
    files: RunFiles
    watch: Watch
    member: int
    masks: PairMasks | None
    budget_left: float | None
    file: Path

    @property
    def agreement(self) -> Agreement:
        """What is played under."""
        return self.part.agreement

    def play(self, begun: tuple[int, bytes | None] | None) -> tuple[float, Document]:
        """Play the rounds that are left, and write the model at the end; the seconds it took, and how well it does.

        Of a part that another one follows only the state at its end is kept, in the journal. If members have gone on to
        that one, and need not be heard, so does this one.
        """
        started = time.monotonic()
        self._begin_metrics()
        with self._links(begun) as links, open_to_append(self.files.folder / ATTENDANCE) as attendance:
            transport = self._transport(links, attendance, is_new=begun is None)
            part = self.training_run.keyed(self._source()).hosted_by(transport)
            state = self._state_before(part, transport, begun)
            self.journal.state = encode_state(state.loop_state)
            self._refuse_amended(state.rounds)
            with open_to_append(self.files.metrics) as metrics:
                try:
                    for _, now in part.play(state):
                        state = now
                        self.journal.state = encode_state(state.loop_state)
                        self._after_round(part, transport, state, time.monotonic() - started, metrics)
                        self._refuse_amended(state.rounds)
                except PeerLost:
                    if self.part.is_last or self._all_are_needed(transport):
                        raise
                if not self.part.is_last:
                    return time.monotonic() - started, {}
                if state.rounds < part.rounds:  # after a restart the last rounds may be left out
                    end = state._replace(rounds=part.rounds)
                    self._after_round(part, transport, end, time.monotonic() - started, metrics)
        model = to_numpy(part.models(state))[0]
        settings = member_settings(self.agreement, self.identity.member.name)
        about = np.frombuffer(public_fingerprint(settings, self.training_run).encode(), np.uint8)
        write(self.files.member_model, lambda file: write_npz(file, {"about": about, "model": model}), private=True)
        scores = part.task.score(part.models(state)[0], self.agreement.metrics.test_rows)
        return time.monotonic() - started, scores

    def _state_before(
        self, part: TrainingRun, transport: PeerTransport, begun: tuple[int, bytes | None] | None
    ) -> RunState:
        """The state before the round at hand: the recorded one, or the start. Who comes starts near the others."""
        start, (round, stored) = part.before(), begun or (self.part.begins, None)
        if stored is not None:
            return RunState(round, decode_state(stored, start.loop_state), Traffic(0, 0), 0)
        amends = self.agreement.amends
        if amends is not None and self.journal.newest() is None:
            others = transport.rules.senders - {self.agreement.names.index(name) for name in amends.came}
            heard = transport.heard_models(others, round)
            if heard is not None:
                rows = transport.start(lambda _: torch.from_numpy(heard), None)
                _, loop_state = start_run(part.algorithm, part.topology, rows, part.rounds)
                start = start._replace(loop_state=loop_state)
        return start._replace(rounds=round)

    def _all_are_needed(self, transport: PeerTransport) -> bool:
        return transport.why_all is not None or self.masks is not None

    def _refuse_amended(self, round: int) -> None:
        """Play no round of an agreement from which its amendment holds, once this member has signed that."""
        signed = signed_amendments(self.identity.folder).get(self.agreement.hash)
        if self.part.is_last and signed is not None and round >= signed:
            raise InputError(
                f"round {round} of {self.agreement.name}", f"this member signed an amendment from round {signed} on",
                "give the amendment, signed by all who stay, to sotto peer join --resume",
            )  # fmt: skip

    def finish(self, privacy: Document, seconds: float, scores: Document, in_all: Document) -> Document:
        """Write the result and the page."""
        experiment = self.agreement.experiment
        result: Document = {
            "name": experiment.name, "seed": experiment.seed, "algorithm": privacy["algorithm"],
            "topology": privacy["topology"], "rounds": experiment.training.rounds, "sigma": privacy["sigma"],
            "adjacency": experiment.privacy.adjacency, "delta": experiment.privacy.delta,
            "headline": privacy["headline"], "metrics": self.files.lines()[-1], "held_out": scores,
            "seconds": round(seconds, 3), "folder": str(self.files.folder), "member": self.identity.member.name,
            "spent_in_all": in_all, **heard_over_run(self.files.folder, sums=self.masks is not None),
        }  # fmt: skip
        self.files.write_document(self.files.result, result)
        self.watch.metrics.set("finished", 1)
        write_page_of(replace(read_doubted_run(self.files.folder), check=FolderCheck()), again=False)
        return result

    @contextmanager
    def _links(self, begun: tuple[int, bytes | None] | None) -> Iterator[GrpcLinks]:
        rules = rules_of(self.part, self.training_run, self.member)
        links = GrpcLinks(
            rules, self.identity, {one: self.agreement.members[one] for one in rules.neighbours}, report=self._report,
            bind=self.settings.bind,
            settings=LinkSettings(through_proxy=self.settings.through_proxy, through_relay=self.settings.relay),
            at=Place(self.part.begins if begun is None else begun[0], 0), seen=self.journal.seen(rules),
            key_hashes=self.agreement.key_hashes,
        )  # fmt: skip
        with links, signals_wait(links.stop):
            for place, payloads in self.journal.pending(self.part.begins).items():
                links.send(place, payloads)
            yield links

    def _transport(self, links: GrpcLinks, attendance: TextIO, *, is_new: bool) -> PeerTransport:
        settings, agreement = self.settings, self.agreement
        pause = agreement.longest_pause if self.part.is_last else min(agreement.longest_pause, settings.gather)
        return PeerTransport(
            self.training_run.algorithm, self.training_run.topology, links, seconds=settings.patience,
            gather=settings.gather, enough=Enough(agreement.least_heard, pause), journal=self.journal,
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
            if spent is not None:
                self.watch.metrics.set("epsilon_spent", spent)

    def _report(self, event: LinkEvent) -> None:
        name, facts = link_event(event, self.agreement.names, self.training_run.rounds)
        self.watch.event(name, facts)
        if isinstance(event, Connected | Lost | Left):
            self.watch.metrics.set("connected", isinstance(event, Connected), member=str(facts["member"]))
        if name in REFUSALS:
            member, reason = (str(facts.get(key, other)) for key, other in (("member", ""), ("reason", name)))
            self.watch.metrics.add("refused", member=member, reason=reason)

    def _begin_metrics(self) -> None:
        """What is known before the first round, for all neighbours."""
        metrics, own = self.watch.metrics, self.identity.member.name
        metrics.set("rounds_planned", self.training_run.rounds)
        for name in ("rounds", "paused", "finished"):
            metrics.set(name, 0)
        planned = self.privacy.epsilon_after(self.training_run.rounds)
        if planned is not None:
            metrics.set("epsilon_planned", planned)
        if self.budget_left is not None:
            metrics.set("epsilon_left", self.budget_left)
        for member in (self.agreement.member(name) for name in (own, *self.agreement.neighbours(own))):
            metrics.set("certificate_ends_timestamp_seconds", certificate_ends(member).timestamp(), member=member.name)
            if (warning := ends_soon(member)) is not None:
                self.watch.event("certificate_ends", {"member": member.name, "warning": warning})
        for name in self.agreement.neighbours(own):
            metrics.set("connected", 0, member=name)
        for name in self.agreement.heard_by(own):
            metrics.add("heard", 0, member=name)
            metrics.add("missed", 0, member=name)


@dataclass(frozen=True)
class _Told:
    """Tells how the rounds of a run go, as events and as lines of attendance. `is_new` is a run that was not begun."""

    run: MemberRun
    links: GrpcLinks
    attendance: TextIO
    is_new: bool
    absences: Absences = field(default_factory=Absences)
    far: set[int] = field(default_factory=set)

    def __call__(self, event: str, *, step: StepAttendance | None = None, **facts: Any) -> None:
        if step is not None:
            self._heard(step)
            return
        if event == "begin" and self.is_new and self.links.disagreeing() >= self.links.neighbours:
            self._refuse_agreement()
        self.run.watch.event(
            event, {key: self._names(fact) if isinstance(fact, Set) else fact for key, fact in facts.items()}
        )
        if event in ("pause", "goes_on"):
            self.run.watch.metrics.set("paused", event == "pause")
        for one in sorted(facts["members"]) if event == "slow" else ():
            self.run.watch.metrics.add("slow", member=self.run.agreement.names[one])
        for one in sorted(facts["members"]) if event == "gather" else ():
            problem = time_problem(self.run.agreement.members[one])
            if problem is not None:
                self("certificate", members={one}, problem=problem, remedy=TIME_REMEDY)

    def _heard(self, step: StepAttendance) -> None:
        heard, missing = self._names(step.heard), self._names(step.missing)
        line = {"round": step.place.round, "step": step.place.step, "heard": heard, "missing": missing}
        if step.sum_known is not None:
            line["sum_known"] = step.sum_known
        if step.distances:
            line["distances"] = {self.run.agreement.names[one]: round(far, 3) for one, far in step.distances.items()}
        self.attendance.write(json.dumps(line) + "\n")
        self.attendance.flush()
        self._measure(step)
        far = {one for one, distance in step.distances.items() if distance > FAR}
        if new := far - self.far:
            self("far", members=new, round=step.place.round)
        self.far.clear()
        self.far.update(far)
        for event, members in self.absences.changed_by(step).items():
            if event == "missing" and step.sum_known is not None:
                over_all = sums_over_all(self.run.training_run.algorithm)
                over = "all members" if over_all else "this member's neighbours"
                self("sum_failed", members=members, round=step.place.round, over=over)
            else:
                self(event, members=members, round=step.place.round)

    def _measure(self, step: StepAttendance) -> None:
        metrics, names = self.run.watch.metrics, self.run.agreement.names
        metrics.set("rounds", step.place.round + 1)
        metrics.set("sent_bytes", self.links.wire_bytes)
        for metric, members in (("heard", step.heard), ("missed", step.missing)):
            for one in members:
                metrics.add(metric, member=names[one])
        for one, far in step.distances.items():
            metrics.set("distance", far, member=names[one])
        for one, moment in self.links.heard_at().items():
            metrics.set("last_message_timestamp_seconds", moment, member=names[one])

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
