"""What a member writes down of each step before anything leaves it, so that a restart sends the same bytes.

Each step is one transaction of the member's ledger, on the disk before anything of it leaves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

import numpy as np

from sottovoce.core import arrays
from sottovoce.core.algorithm import State
from sottovoce.core.arrays import Reals
from sottovoce.core.random_streams import StreamName
from sottovoce.distributed.sharded_rows import ShardedRows, as_tensor
from sottovoce.federation.frames import MemberNumber
from sottovoce.federation.link_rules import LinkRules
from sottovoce.ledger.payloads import Place, Receipt, hashed
from sottovoce.ledger.steps import Steps, StoredNoise
from sottovoce.support.text import parse_json


class RecordedStep(NamedTuple):
    """What was recorded of a step: what is sent to whom, what was received, once that is known, and what was noted."""

    sent: Mapping[MemberNumber, bytes]
    received: Mapping[MemberNumber, bytes] | None
    answers: Mapping[str, Reals]


class KeptNoise(NamedTuple):
    """What later rounds of correlated noise go on from: arrays by round and name, from round `since` on."""

    since: int
    by_round: Mapping[int, Mapping[str, Reals]]


KEPT_ROUNDS = 8
"""Messages of so many rounds are kept for neighbours that ask for them; what is older is deleted."""


class Journal:
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
        incoming = hashed(payloads).renamed(self._names.__getitem__)
        self._steps.record_received(place, incoming, incoming.tags)

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
        """Refuse a ledger that is behind what a neighbour has received: it was put back from a copy.

        What this member has sent by then is counted first, although the ledger knows nothing of it.
        """
        for member, receipt in receipts.items():
            newest = self.newest()
            if newest is None or receipt.place > newest:
                self._spend(receipt.place.round + 1)
            self._steps.check_receipt(self._names[member], receipt)

    def _by_number(self, payloads: Mapping[str, bytes]) -> dict[MemberNumber, bytes]:
        return {self._numbers[name]: payload for name, payload in payloads.items()}


def _stored(kept: KeptNoise) -> StoredNoise:
    return StoredNoise(kept.since, {round: encode_arrays(dict(named)) for round, named in kept.by_round.items()})


Numbers: TypeAlias = list[float]
"""The leaves of a state that are no arrays, in their order."""


OF_OTHERS = " of others"
"""How the name of an array ends that has rows of other members."""


def encode_arrays(named: dict[str, Reals]) -> bytes:
    """Arrays by name as bytes: the length of a header, the header, and the numbers one array after the other.

    They are copied once; an archive of numpy copies and adds them up three times, which a ledger feels.
    """
    whole = {name: np.ascontiguousarray(values) for name, values in named.items()}
    header = json.dumps({name: [values.dtype.str, values.shape] for name, values in whole.items()}).encode()
    numbers = (values.reshape(-1).view(np.uint8).data for values in whole.values() if values.size)
    return b"".join((len(header).to_bytes(8, "big"), header, *numbers))


def decode_arrays(stored: bytes) -> dict[str, Reals]:
    """What `encode_arrays` made; nothing is ever unpickled."""
    start = 8 + int.from_bytes(stored[:8], "big")
    named: dict[str, Reals] = {}
    for name, (kind, shape) in parse_json(stored[8:start].decode()).items():
        count = math.prod(shape)
        named[name] = np.frombuffer(stored, np.dtype(kind), count, start).reshape(shape).copy()
        start += named[name].nbytes
    assert start == len(stored), "arrays of another form"
    return named


def encode_state(state: State) -> bytes:
    """All that the loop needs to go on."""
    named: dict[str, Reals] = {}
    numbers: Numbers = []
    _collect(state, named, numbers)
    return encode_arrays({"numbers": np.array(numbers), **named})


def decode_state(stored: bytes, like: State) -> State:
    """The state that was encoded, nested as `like`, the state of the same loop before its first round."""
    named = decode_arrays(stored)
    numbers: Numbers = named.pop("numbers").tolist()
    state = _restored(like, named, numbers)
    assert not named, "a state of another loop"
    assert not numbers, "a state of another loop"
    return state


def _collect(value: State, named: dict[str, Reals], numbers: Numbers) -> None:
    if value is None or isinstance(value, bool | int | float):
        numbers.append(np.nan if value is None else float(value))
    elif isinstance(value, tuple):
        for part in value:
            _collect(part, named, numbers)
    elif isinstance(value, ShardedRows):
        named[f"{len(named)}{OF_OTHERS if len(value.away) else ''}"] = arrays.to_numpy(value.rows)
    else:
        named[f"{len(named)}"] = arrays.to_numpy(value)


def _restored(like: State, named: dict[str, Reals], numbers: Numbers) -> State:
    if like is None or isinstance(like, bool | int | float):
        found = numbers.pop(0)
        return None if like is None else type(like)(found)
    if isinstance(like, tuple):
        parts = [_restored(part, named, numbers) for part in like]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    if isinstance(like, ShardedRows):
        if next(iter(named)).endswith(OF_OTHERS):
            return ShardedRows(like.shard, as_tensor(_next(named, like.rows)), like.away)
        return ShardedRows(
            like.shard, as_tensor(_next(named, like.own))
        )  # models have no others' after the first round
    return _next(named, like)


def _next(named: dict[str, Reals], like: arrays.Rows) -> arrays.Rows:
    values = named.pop(next(iter(named)))
    assert values.shape == tuple(like.shape), "a state of another loop"
    return arrays.convert(values, like)
