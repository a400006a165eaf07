"""What a member writes down of each step before anything leaves it, so that a restart sends the same bytes.

Each step is one transaction of the member's ledger, on the disk before anything of it leaves. Every answer of a round's
inputs, what was computed from rows and what was drawn, goes into it with the messages. After a restart the recorded
answers are given again: no gradient is computed and no noise is drawn a second time for a place from which something
may have left.

Of a gradient that is released with noise on a grid, only the sum is recorded. A gradient to which noise is added later,
on single messages, is recorded as it is; the journal never leaves the member.

Noise that is correlated over rounds goes on from that of earlier rounds. What it needs of them is recorded too, and
kept as long as it is needed: as many rows as C looks back. On a grid, any digit of any round may decide, so the keys of
all rounds are kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from io import BytesIO
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sottovoce.core.algorithm import State
from sottovoce.core.arrays import Reals, Rows, convert, to_numpy
from sottovoce.core.correlation import Correlation
from sottovoce.core.grid import NoiseOnGrid
from sottovoce.core.noise import FactoredMatrix
from sottovoce.core.noise_sources import Sources
from sottovoce.core.random_streams import RandomSource, StreamName
from sottovoce.core.release import GossipStep, Gradient
from sottovoce.core.transport import Nodes
from sottovoce.distributed.shard_transport import ShardedFeed
from sottovoce.distributed.sharded_rows import NOWHERE, ShardedRows, as_sharded, as_tensor
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
        self._to_keep: StoredNoise | None = None
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
        self._to_keep = StoredNoise(kept.since, {round: encode_arrays(of) for round, of in kept.by_round.items()})

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
        self._steps.record_step(
            place, outgoing, released=encode_arrays(self._noted), model=model, noise=self._to_keep, masks=self._masks
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

    def recorded_state(self) -> tuple[int, bytes | None] | None:
        """The newest round that was begun, and the state before it, if it is not the start."""
        return self._steps.recorded_state()

    def steps_recorded(self) -> int:
        """How many steps were recorded for sending, by this process and earlier ones."""
        return self._steps.count()

    def pending(self, since: int = 0) -> dict[Place, dict[MemberNumber, bytes]]:
        """Payloads of rounds from one on that neighbours may still be waiting for."""
        found = self._steps.pending()
        return {place: self._by_number(payloads) for place, payloads in found.items() if place.round >= since}

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
        return {self._numbers[name]: payload for name, payload in payloads.items() if name in self._numbers}


def encode_arrays(named: Mapping[str, Reals]) -> bytes:
    """Arrays by name as bytes."""
    file = BytesIO()
    np.savez(file, **named)  # type: ignore[arg-type]
    return file.getvalue()


def decode_arrays(stored: bytes) -> dict[str, Reals]:
    """What `encode_arrays` made; nothing is ever unpickled."""
    with np.load(BytesIO(stored), allow_pickle=False) as found:
        return dict(found)


def encode_state(state: State) -> bytes:
    """All that the loop needs to go on."""
    return encode_arrays({str(number): leaf for number, leaf in enumerate(_leaves(state))})


def decode_state(stored: bytes, like: State) -> State:
    """The state that was encoded, nested as `like`, the state of the same loop before its first round."""
    leaves = list(decode_arrays(stored).values())
    state = _restored(like, leaves)
    assert not leaves, "a state of another loop"
    return state


def _leaves(state: State) -> Iterator[Reals]:
    if isinstance(state, tuple):
        for part in state:
            yield from _leaves(part)
    elif state is None or isinstance(state, bool | int | float):
        yield np.array(math.nan if state is None else float(state))
    else:
        yield to_numpy(state.rows if isinstance(state, ShardedRows) else state)


def _restored(like: State, leaves: list[Reals]) -> State:
    if isinstance(like, tuple):
        parts = [_restored(part, leaves) for part in like]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    found = leaves.pop(0)
    if like is None or isinstance(like, bool | int | float):
        return None if like is None else type(like)(found)
    if isinstance(like, ShardedRows):  # models have no rows of others after the first round
        away = like.away if found.shape == tuple(like.rows.shape) else NOWHERE
        return ShardedRows(like.shard, as_tensor(convert(found, like.rows)), away)
    assert found.shape == tuple(like.shape), "a state of another loop"
    return convert(found, like)


GRADIENT, RELEASED, ROW = "gradient", "released", "row"


class RecordedInputs(ShardedFeed):
    """Asks the feed, or the journal where it knows the answer."""

    def __init__(
        self, seed: int, source: RandomSource, gradient: Gradient, start: ShardedRows, journal: Journal
    ) -> None:
        super().__init__(seed, source, gradient, start)
        self._like, self._journal = start.own, journal
        self._source, self._place, self._asked = source, Place(-1, 0), 0
        self._kept_to = -1
        self._computed: ShardedRows | None = None
        self._restore(journal.kept_noise())

    def gradient(self, round: int, point: Rows) -> ShardedRows:
        """Computed once. Where its noisy sum is recorded alone, that stands in its place: nobody asks what it was."""
        place = Place(round, 0)
        recorded = self._journal.replayed(place)
        if recorded is not None:
            return self._row(recorded.answers[GRADIENT if GRADIENT in recorded.answers else RELEASED])
        self._bind(as_sharded(point))
        found = super().gradient(round, point)
        self._bind(found)
        self._journal.note(place, GRADIENT, to_numpy(found.own))
        self._computed = found
        return found

    def released(self, values: Rows, noise: NoiseOnGrid, round: int) -> ShardedRows:
        """What is released: drawn once, and recorded in place of the gradient that is in it.

        Beside it, where values are made of gradients that later rounds need, too.
        """
        place = Place(round, 0)
        recorded = self._journal.replayed(place)
        if recorded is not None:
            return self._row(recorded.answers[RELEASED]) if GRADIENT in recorded.answers else as_sharded(values)
        alone = values is self._computed
        if not alone:
            self._bind(as_sharded(values))
        found = super().released(values, noise, round)
        if alone:
            self._journal.forget_note(place, GRADIENT)
        self._journal.note(place, RELEASED, to_numpy(found.own))
        if noise.correlation is not None:
            self._keep_keys()
        return found

    def noise(self, sources: Sources, matrix: FactoredMatrix, round: int, step: int) -> ShardedRows:
        """Noise of this member's own sum, drawn once."""
        return self._once(Place(round, step), sources.kind, partial(super().noise, sources, matrix, round, step))

    def correlated(self, correlation: Correlation, sources: Sources, matrix: FactoredMatrix, round: int) -> ShardedRows:
        """Noise that later rounds build on, drawn once."""
        place, draw = Place(round, 0), partial(super().correlated, correlation, sources, matrix, round)
        found = self._once(place, sources.kind, draw)
        if self._journal.replayed(place) is None:
            self._keep_rows(round)
        return found

    def noisy_messages(self, gossip_step: GossipStep, sent: ShardedRows, sender: Nodes, receiver: Nodes) -> Tensor:
        """Messages with the noise of their edges. Recorded ones are as they were sent."""
        recorded = self._journal.replayed(Place(gossip_step.round, gossip_step.step))
        if recorded is not None:
            rows = sent.taken(sender)
            for row, to in zip(rows, receiver.tolist(), strict=True):
                row.copy_(decoded_row(recorded.sent[to], row))
            return rows
        self._bind(sent)
        return super().noisy_messages(gossip_step, sent, sender, receiver)

    # --- what later rounds need ------------------------------------------------------------------------------------

    def _bind(self, rows: ShardedRows) -> None:
        """Coins depend on where the gradient is taken, noise on what it is added to."""
        self._source.bind(hashlib.sha256(to_numpy(rows.own).tobytes()).digest())

    def _keep_rows(self, round: int) -> None:
        past = self._feed.past()
        new = {t: {ROW: to_numpy(row)} for t, row in past.items() if t > self._kept_to}
        self._journal.keep_noise(KeptNoise(min(past, default=round), new or {round: {}}))
        self._kept_to = round

    def _keep_keys(self) -> None:
        new: dict[int, dict[str, Reals]] = {}
        for name, key in self._source.noise_keys().items():
            if name.round > self._kept_to:
                new.setdefault(name.round, {})[json.dumps(name)] = np.frombuffer(key, np.uint8)
        self._journal.keep_noise(KeptNoise(0, new))
        self._kept_to = max(new, default=self._kept_to)

    def _restore(self, kept: Mapping[int, Mapping[str, Reals]]) -> None:
        """Go on where an earlier process of this member stopped."""
        self._kept_to = max(kept, default=-1)
        rows = {t: convert(named[ROW], self._like) for t, named in kept.items() if ROW in named}
        keys = {name: key for named in kept.values() for name, key in named.items() if name != ROW}
        if keys:
            self._feed.restore_streams({_stream_name(name): key.tobytes() for name, key in keys.items()})
        elif kept:
            self._feed.restore_past(rows, self._kept_to + 1)

    def _once(self, place: Place, kind: str, draw: Callable[[], ShardedRows]) -> ShardedRows:
        """The next answer of a kind for a place: the recorded one, or what is drawn now."""
        self._asked = self._asked + 1 if place == self._place else 0
        self._place, name = place, f"{kind} {self._asked}"
        recorded = self._journal.replayed(place)
        if recorded is not None:
            return self._row(recorded.answers[name])
        found = draw()
        self._journal.note(place, name, to_numpy(found.own))
        return found

    def _row(self, values: Reals) -> ShardedRows:
        return self._sharded(torch.from_numpy(values))


def decoded_row(payload: bytes, like: Tensor) -> Tensor:
    """The numbers of a payload, which are little-endian."""
    values = like.numpy()
    numbers = np.frombuffer(payload, dtype=values.dtype.newbyteorder("<")).astype(values.dtype)
    return torch.from_numpy(numbers.reshape(values.shape))


def _stream_name(text: str) -> StreamName:
    kind, ids, round, step = parse_json(text)
    return StreamName(kind, tuple(ids), round, step)
