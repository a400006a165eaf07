"""Frames: what is written is read again, whatever the chunks; everything else is refused, before its payload."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.federation.frames import (
    ABSENCE,
    HEADER,
    VERSION,
    Frame,
    FrameReader,
    Hello,
    Kind,
    Reason,
    Refused,
    hello_in,
)
from sottovoce.ledger.payloads import NO_TAG, Place, Receipt

AGREEMENT, LENGTH = bytes(range(32)), 24
HELLO = Hello(Receipt(Place(2, 1), bytes(32), NO_TAG))
FRAMES = [
    Frame(AGREEMENT, Place(3, 0), 4, Kind.HELLO, HELLO.encode()),
    Frame(AGREEMENT, Place(3, 1), 4, Kind.MASKED, bytes(LENGTH)),
    Frame(AGREEMENT, Place(3, 1), 4, Kind.ACKNOWLEDGEMENT, bytes(32)),
    Frame(AGREEMENT, Place(4, 0), 4, Kind.WAITING),
    Frame(AGREEMENT, Place(6, 0), 4, Kind.ABSENT, ABSENCE.pack(4, 0)),
]


def reader(kind=Kind.MASKED):
    return FrameReader(AGREEMENT, LENGTH, kind)


@pytest.mark.parametrize("size", [1, 7, 60, 61, 1000])
def test_frames_are_read_as_they_were_written_whatever_the_chunks(size):
    stream, reads = b"".join(frame.encode() for frame in FRAMES), reader()
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [frame for chunk in chunks for frame in reads.feed(chunk)] == FRAMES


def test_of_the_two_kinds_of_messages_an_agreement_has_one_and_absence_is_for_sums_only():
    plain, masked = (Frame(AGREEMENT, Place(3, 1), 4, kind, bytes(LENGTH)) for kind in (Kind.MESSAGE, Kind.MASKED))
    assert reader().feed(masked.encode()) == [masked]
    assert reader(Kind.MESSAGE).feed(plain.encode()) == [plain]
    for kind, frame in ((Kind.MASKED, plain), (Kind.MESSAGE, masked), (Kind.MESSAGE, FRAMES[-1])):
        with pytest.raises(Refused) as refusal:
            reader(kind).feed(frame.encode())
        assert refusal.value.reason is Reason.FORMAT


@pytest.mark.parametrize("hello", [HELLO, Hello(None), Hello(None, "x" * 64)])
def test_a_hello_says_what_was_put_into_it(hello):
    (frame,) = reader().feed(Frame(AGREEMENT, Place(3, 0), 4, Kind.HELLO, hello.encode()).encode())
    assert hello_in(frame) == hello


def header(*, magic=b"soto", version=VERSION, kind=Kind.MASKED, agreement=AGREEMENT, length=LENGTH):
    return HEADER.pack(magic, version, kind, agreement, 0, 0, 1, length, NO_TAG)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"magic": b"http"}, Reason.FORMAT),
        ({"version": VERSION + 1}, Reason.VERSION),
        ({"kind": 0}, Reason.FORMAT),
        ({"kind": 9}, Reason.FORMAT),
        ({"agreement": bytes(32)}, Reason.AGREEMENT),
        ({"length": LENGTH + 1}, Reason.LENGTH),
        ({"length": 2**63}, Reason.LENGTH),
        ({"kind": Kind.WAITING, "length": 1}, Reason.LENGTH),
        ({"kind": Kind.HELLO, "length": 10}, Reason.LENGTH),
        ({"kind": Kind.ACKNOWLEDGEMENT, "length": 0}, Reason.LENGTH),
        ({"kind": Kind.ABSENT, "length": 0}, Reason.LENGTH),
        ({"kind": Kind.MESSAGE}, Reason.FORMAT),
    ],
)
def test_a_wrong_header_is_refused_before_any_payload(wrong, reason):
    with pytest.raises(Refused) as refusal:
        reader().feed(header(**wrong))
    assert refusal.value.reason is reason


def test_random_bytes_are_frames_or_refused():
    rng, refused = np.random.default_rng(1), 0
    for _ in range(10_000):
        whole = bytearray(FRAMES[rng.integers(len(FRAMES))].encode())
        for at in rng.integers(len(whole), size=rng.integers(1, 4)):
            whole[at] = rng.integers(256)
        try:
            for frame in reader().feed(bytes(whole[: rng.integers(len(whole) + 1)])):
                if frame.kind is Kind.HELLO:
                    hello_in(frame)
        except Refused:
            refused += 1
    assert refused > 1000
