"""What leaves a member, and what it writes for others to read, is the same for data sets that differ in one record.

All but the noisy numbers of messages, and hashes of these: how many frames of which kind, for which places and how
long, what its log says, and the files that may be handed on.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from dataclasses import dataclass, field, replace

import pytest

from sottovoce.federation.frames import MAGIC, Kind, hello_in
from sottovoce.federation.grpc_links import GrpcLinks
from sottovoce.federation.metrics import Metrics
from sottovoce.ledger.payloads import NO_TAG
from tests.federation.clinics import DP_D_SGD, Clinics

PUBLIC = ("agreement.toml", "config.json", "privacy.json")
RECORDS = {
    "far outside the range": "Mercy 0,1e300,west,no",
    "a missing cell": "Mercy 1,,east,no",
    "another label": "Mercy 2,50,east,yes",
    "a longer line": f"Mercy {200 * '3'},-0.000000000000000000001,  west  ,yes",
}
"""What stands in place of a record of Mercy: the first one, the second, and so on."""

CASES = {
    "dp-d-sgd": {"algorithm": DP_D_SGD},
    "poisson": {"algorithm": DP_D_SGD, "batches": 'batch = "poisson:0.5"'},
    "muffliato-sgd": {"algorithm": 'name = "muffliato-sgd"\nstep_size = 0.5\ngossip_steps = 2'},
    "compressed": {"algorithm": 'name = "dp-csgp"\nstep_size = 0.5\ncompression = "gsgd:4"'},
    "pairs": {"algorithm": 'name = "decor"\nstep_size = 0.5\nsigma = 1.0\nsigma_pair = 2.0', "privacy": ""},
    "correlated": {"algorithm": 'name = "anti-pgd"\nstep_size = 0.5'},
}


MATTER_OF_TIME = r"sottovoce_(connected|last_message|refused|sent_bytes|distance)"
"""Metrics that tell when neighbours came, what was sent again to them, and how far their noise is from one's own."""


@dataclass
class Seen:
    """What others can see of all members, and the numbers that they were sent."""

    frames: set = field(default_factory=set)
    events: dict = field(default_factory=dict)
    metrics: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    numbers: set = field(default_factory=set)


def see(folder, agreement, monkeypatch):
    """Let all take part; what leaves each of them, and what it writes for others."""
    clinics, seen, transmit = Clinics.__new__(Clinics), Seen(), GrpcLinks.transmit
    clinics.__dict__.update(folder=folder, names=agreement.names)
    clinics.__dict__.update(events={name: [] for name in clinics.names}, metrics=defaultdict(Metrics))

    def watched(self, neighbour, frame):
        says = hello_in(frame).version if frame.kind is Kind.HELLO else len(frame.payload)
        if frame.kind is not Kind.WAITING:  # whether somebody waits long enough to say so is a matter of time
            header = replace(frame, tag=NO_TAG).header()  # a tag is a keyed hash of a noisy message
            seen.frames.add((self.rules.member, neighbour, header, frame.tag != NO_TAG, says))
        if frame.kind is Kind.MESSAGE:
            seen.numbers.add(frame.payload)
        transmit(self, neighbour, frame)

    with monkeypatch.context() as patched:
        patched.setattr(GrpcLinks, "transmit", watched)
        results = clinics.run(agreement)
    for name in agreement.names:
        assert results[name]["heard"]["steps"] > 0, results[name]
        told = (event for event in clinics.events[name] if event[0] not in ("waiting", "ending"))  # a matter of time
        seen.events[name] = sorted(map(repr, told))
        lines = clinics.metrics[name].text().splitlines()
        seen.metrics[name] = [line for line in lines if not re.match(MATTER_OF_TIME, line)]
        seen.files[name] = [(clinics.run_folder(agreement, name) / file).read_bytes() for file in PUBLIC]
    return seen


def with_record(folder, row, record):
    """Put a record of Mercy in place of another."""
    heading, *lines = (folder / "Mercy.csv").read_text().splitlines()
    lines[row] = record
    (folder / "Mercy.csv").write_text("\n".join([heading, *lines]) + "\n")
    return folder


FAST = [("dp-d-sgd", list(RECORDS)[:2])]
SLOW = [("dp-d-sgd", list(RECORDS)[2:]), *((case, list(RECORDS)[:1]) for case in list(CASES)[1:])]


@pytest.mark.parametrize(("case", "records"), [*FAST, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)])
def test_what_others_see_does_not_depend_on_one_record(tmp_path, monkeypatch, case, records):
    (tmp_path / "first").mkdir()
    agreement = Clinics(tmp_path / "first").agree(**CASES[case], rounds=3)
    places = {what: shutil.copytree(tmp_path / "first", tmp_path / what) for what in records}
    first = see(tmp_path / "first", agreement, monkeypatch)
    assert {frame[2][:4] for frame in first.frames} == {MAGIC}
    for what, place in places.items():
        row = list(RECORDS).index(what)
        other = see(with_record(place, row, RECORDS[what]), agreement, monkeypatch)
        assert other.frames == first.frames
        assert other.events == first.events
        assert other.metrics == first.metrics
        assert other.files == first.files
        assert not other.numbers & first.numbers
