"""The transport of one member of a federation: its node lives here, and its neighbours may be missing.

A member is a shard of one node. Who is not heard in time is left out of a gossip step:

    mixed_u = sum_v W[u,v] x_v  over those heard,  + sum_v W[u,v] x_u  over those missing

With push-sum the second sum is left out, and so is the missing members' weight: a share that is not heard is lost in
value and in weight alike. Where a proof needs all messages, `PeerLost` is raised instead.

A secure sum of which one message is missing fails, and the member stays where it was (`link_rules`). After a restart a
member sends nothing under masks before a round that is later than any that it, two neighbours or a receipt knows of.

Shapes: N nodes, D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from sottovoce.core import arrays
from sottovoce.core.algorithm import Algorithm, sums_over_all
from sottovoce.core.arrays import Rows
from sottovoce.core.integer_sums import IntegerSums, ModelGrid, SumGrid, Words, encoded
from sottovoce.core.pair_masks import PairMasks
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.release import GossipStep, Gradient, LoopInputs
from sottovoce.core.topologies import Topology
from sottovoce.core.transport import Delivered
from sottovoce.distributed.shard_transport import Pending, ShardTransport
from sottovoce.distributed.sharded_rows import NodeShard, ShardedRows, as_sharded, as_tensor
from sottovoce.errors import Diverged, PeerLost, SumFailed, Unaccountable
from sottovoce.federation.attendance import Attendance, Enough, Patience, StepAttendance, Tell
from sottovoce.federation.frames import MemberNumber, Refused
from sottovoce.federation.journal import Journal, RecordedInputs, RecordedStep, decoded_row
from sottovoce.federation.link_rules import AHEAD, KEPT, LinkRules, MaskedSums, why_all_are_needed
from sottovoce.federation.links import Clock, Links
from sottovoce.ledger.payloads import Payloads, Place
from sottovoce.support.text import join_names
from sottovoce.tracing.round_maps import noise_deviation

GO_ON = "when everybody is there again, continue with --resume at every member that stopped"


@dataclass(frozen=True)
class PeerTransport(ShardTransport):
    """One member's node, with an algorithm on a fixed topology.

    `seconds` is its patience in a round, `gather` what all neighbours are given to be there when a process of the
    member starts. `journal` records each step before it is sent, and is replayed; links of a member that goes on begin
    at its newest place. `tell` is told how rounds go. `masks` are those of secure sums, where the algorithm has them.
    """

    algorithm: Algorithm
    topology: Topology
    links: Links
    _: KW_ONLY
    seconds: float
    gather: float
    enough: Enough
    journal: Journal
    clock: Clock
    tell: Tell
    masks: PairMasks | None = None
    doubted: set[MemberNumber] = field(default_factory=set)
    keep_received = False

    @property
    def rules(self) -> LinkRules:
        """What the agreement says about this member's links."""
        return self.links.rules

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All members."""
        return self.topology.names or tuple(f"node {node}" for node in range(self.topology.n))

    @cached_property
    def shard(self) -> NodeShard:  # type: ignore[override]
        """One node for each process."""
        return NodeShard(tuple(np.array([node]) for node in range(self.topology.n)), self.rules.member)

    @cached_property
    def why_all(self) -> str | None:
        """Why no message may be missing, if that is so."""
        return why_all_are_needed(self.algorithm, self.topology.at(0))

    @cached_property
    def patience(self) -> Patience:
        """What is left of it."""
        return Patience(self.seconds, self.links, self.clock, self.attendance)

    @cached_property
    def attendance(self) -> Attendance:
        """Whom this member waits for."""
        slack = -(-(AHEAD + 1) // self.rules.steps)
        return Attendance(slack, all_needed=self.why_all is not None, leaving=self.rules.leaving)

    @cached_property
    def sums(self) -> MaskedSums | None:
        """How messages are masked."""
        if self.masks is None:
            return None
        return MaskedSums(self.rules.member, self.names, self.masks, sums_over_all(self.algorithm))

    @property
    def wire_bytes(self) -> int:
        return self.links.wire_bytes

    def rounds(self, first: int, last: int) -> Iterator[int]:
        """Rounds that neighbours played without this member are left out; at the end those still there are served.

        What was recorded is replayed first, and a round that was begun is ended. A round that is earlier than a
        recorded one was left out then, and stays so. Whoever needs nobody's messages any more meets nobody.
        """
        newest, joined, last = self.journal.newest(), first, min(last, self.rules.rounds)
        if not self._is_recorded(self.rules.later(Place(last, 0), -1)):
            unmet = self._gathered(0 if newest is None else newest.round)
            if self.sums is not None:
                joined = self._abstain(newest, last, unmet)
        for round in range(first, last):
            self.journal.check_receipts(self.links.receipts())
            if self.journal.replayed(Place(round, 0)) is not None:
                yield round
            elif newest is None or round > newest.round:
                joined = max(joined, self._round_to_join(round, last))
                if round >= joined:
                    yield round
        if not self.journal.has_ended():
            self._serve_until_all_ended(Place(last, 0))
        self.journal.check_receipts(self.links.receipts())

    def heard_models(self, senders: Set[MemberNumber], round: int) -> arrays.Reals | None:
        """The mean of what some members send in the round in which this one would begin; None where nobody is heard."""
        rule = self.rules.payload
        if not senders or rule.masked or rule.decompress is not None or rule.largest_weight is not None:
            return None
        self._gathered(round)
        place = Place(self._round_to_join(round, self.rules.rounds), 0)
        heard = self.links.receive(place, senders, self.seconds)
        if not heard:
            return None
        rows = [np.frombuffer(payload, rule.precision.newbyteorder("<")) for payload in heard.values()]
        return np.mean(rows, axis=0, keepdims=True).astype(rule.precision)

    def _gathered(self, round: int) -> Set[MemberNumber]:
        """Who is not there, once this process has waited for all and enough of them are.

        Nothing new is sent before: what neighbours have shows whether the journal was put back.
        """
        neighbours = self.rules.neighbours
        self.tell("gather", members=neighbours, seconds=self.gather)
        self.patience.gather(self.gather)
        unmet = self.links.meet(self.gather)
        self.tell("begin", without=unmet)
        if self.sums is not None:  # which need all of them
            return unmet

        def attempt(seconds: float) -> Set[MemberNumber]:
            return self.links.meet(seconds, self.enough.neighbours)

        return self._paused(round, neighbours, unmet, attempt)

    def _paused(
        self,
        round: int,
        members: Set[MemberNumber],
        missing: Set[MemberNumber],
        attempt: Callable[[float], Set[MemberNumber]],
    ) -> Set[MemberNumber]:
        """Who is missing once enough of some members answer; `attempt` waits for them. Alone nobody plays on."""
        if len(members) - len(missing) >= self.enough.neighbours:
            return missing
        self.tell("pause", members=missing, round=round, least=self.enough.neighbours)
        until = self.clock.now() + self.enough.longest_pause
        while len(members) - len(missing) < self.enough.neighbours:
            left = until - self.clock.now()
            if left <= 0:
                raise PeerLost(
                    f"this run is incomplete: in round {round} there was no answer from {self._who(missing)} for "
                    f"{self.enough.longest_pause:g} s, and a member must hear {self.enough.neighbours} of its "
                    f"neighbours; {GO_ON}"
                )
            missing = attempt(min(left, self.patience.seconds))
        self.tell("goes_on", round=round)
        return missing

    def _abstain(self, newest: Place | None, last: int, unmet: Set[MemberNumber]) -> int:
        """The first round in which masks are fresh: later than any of which this member, or its neighbours, know.

        A folder that was put back knows less than its neighbours, so each of them is asked: what it has from this
        member, which it can prove, and where it stands, of which one may lie. Who has sent nothing begins with the
        others.
        """
        if unmet:
            raise PeerLost(
                f"there was no answer from {self._who(unmet)}; with secure sums a member goes on only when every "
                "neighbour "
                f"has said which round it is in, so that no mask is used twice; {GO_ON}"
            )
        since = self.rules.since
        rounds = [receipt.place.round for receipt in self.links.receipts().values()]
        received = [round for round in rounds if round >= since]
        if (newest is None or newest.round < since) and not received:
            return since
        begun = since if newest is None else max(since, newest.round + 1)
        claimed = [one.round for one in self._believed(begun)]
        fresh = min(max(begun, 1 + max(claimed + received)), last)
        if fresh > begun:
            self.links.abstain(Place(begun, 0), Place(fresh, 0))
            self.tell("absent", first=begun, last=fresh - 1)
        return fresh

    def _is_recorded(self, place: Place) -> bool:
        """Whether all that was received at a place is recorded."""
        found = self.journal.replayed(place)
        return found is not None and found.received is not None

    def _serve_until_all_ended(self, end: Place) -> None:
        """Send messages again to whoever was killed with them, until neighbours have all they need or patience ends."""
        left = self.patience.wait(
            end, self._awaited(self.rules.neighbours - self.rules.leaving, end), self.links.unended
        )
        self.journal.end(left)
        if left:
            self.tell("unended", members=left)

    def _round_to_join(self, round: int, last: int) -> int:
        """The round in which a member goes on that is behind its neighbours.

        Who is a few rounds behind leaves out none: the messages of these rounds are still kept for it.
        """
        if self.why_all is not None:
            return round
        furthest = max((min(place.round, last - 1) for place in self._believed(round)), default=round)
        if furthest <= round + self.attendance.slack:
            return round
        self.tell("skips", first=round, last=furthest - 1)
        return furthest

    def _believed(self, round: int) -> Collection[Place]:
        """How far neighbours are; who says that it is further than others say is named, and not followed."""
        reached = self.links.reached()
        for one, claim in self.links.claims().items():
            if one not in self.doubted and claim.round > max(reached[one].round, round) + self.attendance.slack:
                self.doubted.add(one)
                self.tell("doubted", members={one}, round=claim.round)
        return reached.values()

    def open_inputs(self, seed: int, source: RandomSource, gradient: Gradient, start: Rows) -> RecordedInputs:
        """What this member computes and draws goes into its journal."""
        return RecordedInputs(seed, source, gradient, as_sharded(start), self.journal)

    # --- sending and receiving -------------------------------------------------------------------------------------

    def deliver(self, gossip_step: GossipStep, rows: Rows, weight: Rows | None, inputs: LoopInputs) -> Delivered:
        """Push-sum's weight travels as one more number of the row: who misses a share misses both."""
        if weight is None or gossip_step.edge_noise:
            return super().deliver(gossip_step, rows, weight, inputs)
        sent, public = as_sharded(rows), as_tensor(weight)
        both = ShardedRows(self.shard, torch.cat([sent.own, self.shard.rows_here(public)], dim=1))
        mixed, _ = self.deliver_rows(gossip_step, both, absent=torch.zeros_like(both.own))
        weights = as_tensor(gossip_step.mixing @ public)
        weights[self.nodes] = mixed.own[:, -1:]
        return Delivered(ShardedRows(self.shard, mixed.own[:, :-1].contiguous()), sent, weights)

    def secure_sum(self, gossip_step: GossipStep, sent: ShardedRows) -> ShardedRows:
        """The average of all members, of which this one sees no other's message."""
        grid = gossip_step.grid
        if not isinstance(grid, SumGrid):
            raise Unaccountable("only sums of integers can be masked: otherwise single messages would be visible")
        average = partial(grid.average, node=self.rules.member)
        return self._averaged(gossip_step, grid, sent, lambda total: torch.from_numpy(average(total))[None])

    def neighbour_sums(self, gossip_step: GossipStep, grid: ModelGrid, sent: ShardedRows) -> ShardedRows:
        """The average over this member's neighbours, of which it sees none."""
        average = partial(grid.average, node=self.rules.member)
        return self._averaged(
            gossip_step, grid, sent, lambda total: as_tensor(arrays.convert(average(total)[None], sent.own))
        )

    def _averaged(
        self, gossip_step: GossipStep, grid: IntegerSums, sent: ShardedRows, average: Callable[[Words], Tensor]
    ) -> ShardedRows:
        """The average of this member's set, from its sum; `SumFailed` where a message is missing.

        A sum out of range is one that failed, too: somebody sent what the agreement does not allow.
        """
        if self.sums is None:
            raise Unaccountable(
                "these messages between members are not masked, so a secure sum would show single messages"
            )
        place, weights = Place(gossip_step.round, gossip_step.step), grid.weights
        integers = encoded(arrays.to_numpy(sent.own)[0], grid.step)
        recorded = self._recorded(place, partial(self.sums.frames, weights, integers, place))
        self.links.send(place, recorded.sent)
        heard = self._heard(place, recorded, self.rules.senders)
        missing, found = self.sums.missing(weights, heard.keys()), None
        failure = f"messages of {len(missing)} members are missing at {place}"
        if not missing:
            try:
                found = average(self.sums.total(weights, integers, heard))
            except Diverged as beyond:
                failure = str(beyond)
        self.tell("heard", step=StepAttendance(place, frozenset(heard.keys()), missing, sum_known=found is not None))
        self._stop_if_gone(place, missing)
        if found is None:
            raise SumFailed(failure)
        return ShardedRows(self.shard, found)

    def _stop_if_gone(self, place: Place, missing: frozenset[MemberNumber]) -> None:
        """Where every sum is over all members, and one of them is gone, further rounds would only be spent."""
        gone = frozenset(one for one in missing if self.attendance.given_up(one))
        if gone and self.sums is not None and self.sums.over_all:
            raise PeerLost(
                f"{self._who(gone)} did not answer in round {place.round} either; no sum over all members is known "
                f"while one of them is missing; {GO_ON}"
            )

    def exchange(
        self, gossip_step: GossipStep, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor], absent: Tensor
    ) -> Pending:
        """What arrives, and what stands in for who is missing."""
        place = Place(gossip_step.round, gossip_step.step)
        recorded = self._recorded(place, lambda: _encoded(outgoing))
        self._hold_back(place, outgoing.keys() - incoming.keys())
        self.links.send(place, recorded.sent)
        heard = self._heard(place, recorded, incoming.keys())
        for sender, tensor in incoming.items():
            tensor.copy_(decoded_row(heard[sender], tensor) if sender in heard else absent)
        missing = frozenset(incoming.keys() - heard.keys())
        distances = self._distances(place, absent, {one: incoming[one] for one in heard.keys() & incoming.keys()})
        self.tell("heard", step=StepAttendance(place, frozenset(heard.keys()), missing, distances=distances))
        return AllArrived()

    def _distances(
        self, place: Place, own: Tensor, received: Mapping[MemberNumber, Tensor]
    ) -> dict[MemberNumber, float]:
        """How far messages are from this member's own noisy one, as `StepAttendance` has it; of plain messages."""
        method, mixing, rule = self.algorithm, self.topology.at(0), self.rules.payload
        deviation = noise_deviation(method.noise, method.sensitivity, mixing)
        is_plain = rule.decompress is None and rule.largest_weight is None and not method.noise.edge(mixing)
        if not is_plain or deviation is None or not deviation.all():
            return {}
        scale = abs(method.step_size) * float(deviation.max()) * math.sqrt(2 * own.numel() * (place.round + 1))
        return {one: float((tensor - own).double().norm()) / scale for one, tensor in received.items()}

    def _recorded(self, place: Place, make: Callable[[], Mapping[MemberNumber, bytes]]) -> RecordedStep:
        """What an earlier process recorded; or what is made to be sent, recorded before that."""
        recorded = self.journal.replayed(place)
        if recorded is None:
            recorded = RecordedStep(make(), None, {})
            self._check(place, recorded.sent)
            self.journal.check_receipts(self.links.receipts())
            self.journal.before_send(place, recorded.sent)
        return recorded

    def _heard(self, place: Place, recorded: RecordedStep, senders: Set[MemberNumber]) -> Mapping[MemberNumber, bytes]:
        """What an earlier process received, or what arrives now. What is long over is sent no more."""
        heard = self._hear(place, senders) if recorded.received is None else recorded.received
        self.links.forget(self.rules.oldest_kept(place))
        return heard

    def _check(self, place: Place, payloads: Mapping[MemberNumber, bytes]) -> None:
        """Refuse to send what every neighbour would refuse."""
        try:
            for payload in {id(payload): payload for payload in payloads.values()}.values():
                self.rules.payload.check(payload)
        except Refused as refusal:
            raise Diverged(
                f"neighbours would refuse the message of round {place.round}: {refusal.reason.value}",
                "values must lie within the range of the agreement",
                "lower the step size, or agree on a larger range",
            ) from None

    def _hold_back(self, place: Place, receivers: Set[MemberNumber]) -> None:
        """Do not run ahead of those that this member never hears: they acknowledge one message before the next."""
        awaited = self._awaited(receivers, place)
        left = self.patience.wait(place, awaited, partial(self.links.unacknowledged, place))
        self._note(place, awaited - left, left)

    def _hear(self, place: Place, senders: Set[MemberNumber]) -> Payloads[MemberNumber]:
        """What arrives in time; who is missing is noted, or ends the run where all are needed."""
        awaited = self._awaited(senders, place)

        def attempt(members: Set[MemberNumber], seconds: float, enough: int | None = None) -> Set[MemberNumber]:
            self.links.receive(place, members, seconds, enough)
            return self.links.unanswered(place, members, believed_only=enough is not None)

        self.patience.wait(place, awaited, attempt)
        if self.why_all is None:
            pausing = partial(attempt, senders, enough=self.enough.neighbours)
            left = self.links.unanswered(place, senders, believed_only=True)
            self._paused(place.round, senders, left, pausing)
        heard = self.links.receive(place, senders, 0.0)
        self._note(place, heard.keys(), awaited - heard.keys() - self.links.absent(place))
        self.journal.received(place, heard)
        return heard

    def _who(self, members: Set[MemberNumber]) -> str:
        return join_names([self.names[one] for one in sorted(members)])

    def _awaited(self, members: Set[MemberNumber], place: Place) -> frozenset[MemberNumber]:
        """Those worth waiting for: not who was missed, nor who is too far ahead to keep messages of this place."""
        if self.why_all is not None:
            return frozenset(members)
        claims, kept = self.links.claims(), self.rules.later(place, KEPT)
        near = frozenset(one for one in members if claims.get(one, place) <= kept)
        return self.attendance.awaited(near, place.round, claims)

    def _note(self, place: Place, heard: Set[MemberNumber], missing: Set[MemberNumber]) -> None:
        if missing and self.why_all is not None:
            raise PeerLost(
                f"{self._who(missing)} did not answer in round {place.round}, step {place.step}; {self.why_all}; "
                f"{GO_ON}"
            )
        self.attendance.note(heard, missing, place.round, self.links.claims())
        self.links.note_missed(frozenset(filter(self.attendance.given_up, self.rules.neighbours)))
        if slow := self.attendance.newly_doubted():
            self.tell("slow", members=slow, round=place.round)


class AllArrived:
    """Nothing is under way any more."""

    def wait(self) -> None:
        """There is nothing to wait for."""


def _encoded(outgoing: Mapping[int, Tensor]) -> Payloads[MemberNumber]:
    """The numbers of each tensor, little-endian; equal payloads are kept once."""
    payloads: dict[MemberNumber, bytes] = {}
    for peer, tensor in outgoing.items():
        payload = _little_endian(tensor).tobytes()
        payloads[peer] = next((known for known in payloads.values() if known == payload), payload)
    return Payloads(payloads)


def _little_endian(tensor: Tensor) -> arrays.Reals:
    values = tensor.numpy()
    return values.astype(values.dtype.newbyteorder("<"), copy=False)
