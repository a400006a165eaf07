"""Members that check each other, without taking part in anything."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from dataclasses import replace

import pytest

from sottovoce.federation import checking
from sottovoce.federation.agreement import parse_agreement
from sottovoce.federation.assembly import assemble_agreement
from sottovoce.federation.checking import check_neighbours, check_rules
from sottovoce.federation.events import Connected
from sottovoce.federation.frames import Hello, Kind
from sottovoce.federation.grpc_links import GrpcLinks
from sottovoce.federation.identity import create_identity
from tests.federation.federation import COLUMNS, SETTINGS, member_files
from tests.federation.grpc_members import HELLO, PATIENCE, Federation, RawNeighbour, frame, payload


@pytest.fixture
def clinics(tmp_path):
    """Three members at free ports of loopback, of which the last does not listen: identities, and their agreement."""
    (tmp_path / "settings.toml").write_text(re.sub('graph = ".*"', 'graph = "complete:3"', SETTINGS))
    (tmp_path / "patients.columns.toml").write_text(COLUMNS)
    identities = []
    for name, listens in (("Hill", True), ("Mercy", True), ("North", False)):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}" if listens else None
        identities.append(create_identity(name, tmp_path / name, address=address, listen=listens))
    return identities, assemble_agreement(tmp_path / "settings.toml", member_files(tmp_path))


def checked(identities, agreements, wait):
    """What members find that check at the same time."""
    found = {}

    def check(number):
        found[number] = check_neighbours(
            identities[number], agreements[number], number, bind=identities[number].member.address, wait=wait
        )

    threads = [threading.Thread(target=check, args=(number,)) for number in agreements]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * PATIENCE)
    return found


def test_members_that_only_check_find_each_other(clinics):
    identities, agreement = clinics
    found = checked(identities, dict.fromkeys(range(3), agreement), PATIENCE)
    assert [checks.fine for checks in found.values()] == [True] * 3, found
    assert [found[number].answered for number in range(3)] == [True, True, False]
    mercy, north = found[0].neighbours
    assert abs(mercy.clock_difference) < 5
    assert (north.same_agreement, north.same_version, north.round_trip) == (True, True, None)


def test_who_is_not_there_and_who_has_another_agreement_is_named(clinics):
    identities, agreement = clinics
    privacy = {**agreement.document["privacy"], "delta": 1e-7}
    other = parse_agreement({**agreement.document, "nonce": "0" * 64, "privacy": privacy}, "other")
    alone = checked(identities, {0: agreement}, 0.0)[0]
    assert not alone.fine
    assert "cannot be reached" in alone.neighbours[0].problem
    assert "North does not listen, and no check arrived from it" in alone.neighbours[1].problem
    found = checked(identities, {0: agreement, 1: other, 2: other}, PATIENCE)
    assert [one.same_agreement for one in found[0].neighbours] == [False, False]
    assert found[0].neighbours[0].problem == "Mercy has another agreement: it differs in privacy.delta, nonce."
    assert found[0].neighbours[1].problem == "North has another agreement: it differs in privacy.delta, nonce."
    assert found[2].neighbours[0].problem == "Hill has another agreement: it differs in privacy.delta, nonce."
    assert [checks.disagree for checks in found.values()] == [True] * 3
    assert [one.same_agreement for one in found[2].neighbours] == [False, True]


class OtherVersion(GrpcLinks):
    def hello(self, neighbour):
        return replace(super().hello(neighbour), payload=Hello(None, "0.1.7").encode())


def test_another_version_of_the_package_is_named_and_nothing_wrong(clinics, monkeypatch):
    monkeypatch.setattr(checking, "GrpcLinks", OtherVersion)
    identities, agreement = clinics
    found = checked(identities, dict.fromkeys(range(3), agreement), PATIENCE)[0]
    assert found.fine
    assert [(one.version, one.same_version) for one in found.neighbours[:1]] == [("0.1.7", False)]


class LateReturn:
    """A stream whose writer hears late that a chunk was written: whoever reads it may have left by then."""

    def __init__(self, context):
        self._context = context

    def __getattr__(self, name):
        return getattr(self._context, name)

    async def write(self, chunk):
        await self._context.write(chunk)
        await asyncio.sleep(PATIENCE)


class LateLinks(GrpcLinks):
    async def _answer_comparison(self, request, context):
        await super()._answer_comparison(request, LateReturn(context))


def test_what_a_neighbour_tells_is_noted_before_it_has_its_answer_and_leaves(clinics, monkeypatch):
    monkeypatch.setattr(checking, "GrpcLinks", LateLinks)
    identities, agreement = clinics
    other = parse_agreement({**agreement.document, "nonce": "0" * 64}, "other")
    found = checked(identities, {0: agreement, 1: other, 2: other}, PATIENCE)
    assert [one.differing for one in found[0].neighbours] == [("nonce",)] * 2
    assert found[2].neighbours[0].differing == ("nonce",)


def test_whoever_checks_takes_no_messages(tmp_path):
    made = Federation(tmp_path, listen=(True, True))
    with made.links(0, {1}, exchanges=False) as checker:
        made.found_at(0, checker.port)
        with RawNeighbour(made.identities[1], made.known[0]) as neighbour:
            neighbour.send(HELLO, frame(Kind.MESSAGE, 0, payload(1), sender=1))
            assert neighbour.answer() is None
        assert not any(isinstance(event, Connected) for event in made.events[0])
        assert checker.claims() == {}


def test_a_taken_port_does_not_keep_a_member_from_asking(clinics):
    identities, agreement = clinics
    rules = check_rules(agreement, 0)
    members = {one: agreement.members[one] for one in rules.neighbours}
    address = identities[0].member.address
    with GrpcLinks(rules, identities[0], members, report=lambda event: None, bind=address):
        found = checked(identities, {0: agreement}, 0.0)[0]
    assert not found.answered


def test_links_end_a_meeting_with_whoever_has_another_agreement(tmp_path):
    """Both sides learn of it at once, whoever dialled."""
    made = Federation(tmp_path, listen=(True, True))
    with made.links(0, {1}) as first:
        made.found_at(0, first.port)
        second = made.links(1, {0})
        second.rules = replace(second.rules, agreement=bytes(32))
        with second:
            assert second.meet(PATIENCE) == {0}
            assert first.meet(PATIENCE) == {1}
            assert (first.disagreeing(), second.disagreeing()) == ({1}, {0})


def test_stopped_links_interrupt_whoever_waits(tmp_path):
    made = Federation(tmp_path, listen=(True, True))
    with made.links(0, {1}) as links:
        threading.Timer(0.05, links.stop).start()
        with pytest.raises(KeyboardInterrupt):
            links.meet(PATIENCE)
        with pytest.raises(KeyboardInterrupt):
            links.meet(0.0)
