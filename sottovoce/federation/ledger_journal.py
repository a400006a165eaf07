"""The journal of a member in its ledger: each step is one transaction, on the disk before anything of it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from sottovoce.core.arrays import Reals
from sottovoce.core.random_streams import StreamName
from sottovoce.federation.journal import KeptNoise, RecordedStep
from sottovoce.federation.links import MemberNumber
from sottovoce.federation.mailbox import LinkRules
from sottovoce.federation.member_state import decode_arrays, encode_arrays
from sottovoce.ledger.payloads import hashed
from sottovoce.ledger.places import Place, Receipt
from sottovoce.ledger.steps import Steps, StoredNoise

KEPT_ROUNDS = 8
"""Messages of so many rounds are kept for neighbours that ask for them; what is older is deleted."""


class LedgerJournal:
    """Steps of one run, with members by number. `state` is that of the loop before the round at hand, as bytes.

    `spend(rounds)` records what that many rounds cost. `masks` is the label of the keys of this run's masks, if it has
    any: each place is entered under it, and none twice.
    """

    def __init__(
        self, steps: Steps, names: Sequence[str], spend: Callable[[int], None], masks: str | None = None
    ) -> None:
        self._steps, self._names, self._spend, self._masks = steps, tuple(names), spend, masks
        self._numbers = {name: number for number, name in enumerate(names)}
        self._noted: dict[str, Reals] = {}
        self._to_keep: KeptNoise | None = None
        self.state = b""

    # --- what a step is made of ------------------------------------------------------------------------------------

    def note(self, place: Place, name: str, values: Reals) -> None:
        """Keep it until the payloads of the step are there."""
        self._noted[name] = values

    def forget_note(self, place: Place, name: str) -> None:
        """Keep it no longer."""
        del self._noted[name]

    def keep_noise(self, kept: KeptNoise) -> None:
        """Keep it until the payloads of the step are there."""
        self._to_keep = kept

    def coins(self, name: StreamName, key: bytes) -> bytes:
        """The key of a batch's coins: the recorded one, or this one, which is on the disk when the call returns."""
        return self._steps.record_coins(Place(name.round, 0), key)

    def before_send(self, place: Place, payloads: Mapping[MemberNumber, bytes]) -> None:
        """One transaction: all payloads, what was computed and drawn for them, and the state before the round."""
        outgoing = hashed(payloads).renamed(self._names.__getitem__)
        self._spend(place.round + 1)
        if place.step == 0 and place.round % KEPT_ROUNDS == 0 and place.round > KEPT_ROUNDS:
            self._steps.forget(Place(place.round - KEPT_ROUNDS, 0))
        model = self.state if place.step == 0 else None
        noise = None if self._to_keep is None else _stored(self._to_keep)
        self._steps.record_step(
            place, outgoing, released=encode_arrays(self._noted), model=model, noise=noise, masks=self._masks
        )
        self._noted, self._to_keep = {}, None

    def received(self, place: Place, payloads: Mapping[MemberNumber, bytes]) -> None:
        """What was received, before it is used."""
        self._steps.record_received(place, hashed(payloads).renamed(self._names.__getitem__))

    def end(self, unended: Set[MemberNumber]) -> None:
        """Nothing more is sent."""
        self._steps.record_end([self._names[member] for member in sorted(unended)])

    # --- after a restart -------------------------------------------------------------------------------------------

    def replayed(self, place: Place) -> RecordedStep | None:
        """What is recorded of a step."""
        found = self._steps.step(place)
        if found is None:
            return None
        received = None if found.received is None else self._by_number(found.incoming)
        answers = decode_arrays(found.released) if found.released else {}
        return RecordedStep(self._by_number(found.outgoing), received, answers)

    def has_ended(self) -> bool:
        """Whether an earlier process recorded the end."""
        return self._steps.has_ended()

    def kept_noise(self) -> dict[int, dict[str, Reals]]:
        """What later rounds of correlated noise go on from."""
        return {round: decode_arrays(stored) for round, stored in self._steps.noise().items()}

    def erase_noise(self) -> None:
        """The run is over: nothing goes on from its noise."""
        self._steps.erase_noise()

    def newest(self) -> Place | None:
        """The newest place that is recorded."""
        return self._steps.newest()

    def recorded_state(self) -> tuple[int, bytes] | None:
        """The newest round that was begun, and the state before it."""
        newest = self.newest()
        found = None if newest is None else self._steps.step(Place(newest.round, 0))
        return None if found is None or newest is None or found.model is None else (newest.round, found.model)

    def steps_recorded(self) -> int:
        """How many steps were recorded for sending, by this process and earlier ones."""
        return self._steps.count()

    def pending(self) -> dict[Place, dict[MemberNumber, bytes]]:
        """Payloads that neighbours may still be waiting for."""
        found: dict[Place, dict[MemberNumber, bytes]] = {}
        for message in self._steps.pending():
            found.setdefault(message.place, {})[self._numbers[message.receiver]] = message.payload
        return found

    def seen(self, rules: LinkRules) -> dict[MemberNumber, Receipt]:
        """What was received last from each neighbour."""
        receipts = {sender: self._steps.receipt(self._names[sender]) for sender in rules.senders}
        return {sender: one for sender, one in receipts.items() if one is not None}

    def check_receipts(self, receipts: Mapping[MemberNumber, Receipt]) -> None:
        """Refuse a ledger that is behind what a neighbour has received: it was put back from a copy."""
        for member, receipt in receipts.items():
            self._steps.check_receipt(self._names[member], receipt)

    def _by_number(self, payloads: Mapping[str, bytes]) -> dict[MemberNumber, bytes]:
        return {self._numbers[name]: payload for name, payload in payloads.items()}


def _stored(kept: KeptNoise) -> StoredNoise:
    return StoredNoise(kept.since, {round: encode_arrays(dict(named)) for round, named in kept.by_round.items()})
