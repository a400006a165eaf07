"""Checks of all neighbours of a member: whether each can be reached, is the right one, and agrees.

They are made again and again until all is well or the time is over. Each begins with a look by TLS alone, because gRPC
says no more than that a socket was closed. Whoever checks also answers: two members that both only check find each
other. It takes no messages.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import numpy as np

from sottovoce._version import __version__
from sottovoce.errors import SottovoceError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.events import Checked, Disagreed, LinkEvent, named_keys
from sottovoce.federation.frames import VERSION as PROTOCOL
from sottovoce.federation.frames import (
    Frame,
    Hello,
    KeyHashes,
    Kind,
    Reason,
    Refused,
    differing_keys,
    encode_hashes,
)
from sottovoce.federation.grpc_links import CLOCK, GrpcLinks, version_in
from sottovoce.federation.identity import TIME_REMEDY, Identity, time_problem, tls_name
from sottovoce.federation.link_rules import LinkRules, PayloadRule
from sottovoce.federation.member import Member, split_address
from sottovoce.federation.secure_grpc import (
    CHECK,
    COMPARE,
    VERSION,
    LinkSettings,
    dialler_credentials,
    grpc,
    method_path,
    name_option,
)
from sottovoce.ledger.payloads import FIRST

DIRECT = LinkSettings()
"""Without a proxy."""


@dataclass(frozen=True)
class NeighbourCheck:
    """One neighbour. `problem` is what is wrong, in one sentence, or None; what is not known is None too.

    `reachable` is whether its address answers, `right_certificate` whether it shows the certificate of the agreement,
    `tls` the version of TLS, `accepted` whether it takes this member's certificate. `version` is its version of the
    package, `clock_difference` how many seconds its clock is ahead of this one, `round_trip` how many a question takes,
    `differing` the keys in which its agreement differs.
    """

    name: str
    reachable: bool
    right_certificate: bool | None = None
    tls: str | None = None
    accepted: bool | None = None
    same_agreement: bool | None = None
    version: str | None = None
    clock_difference: float | None = None
    round_trip: float | None = None
    problem: str | None = None
    differing: tuple[str, ...] = ()

    @property
    def same_version(self) -> bool | None:
        """Whether it runs the same version of the package."""
        return None if self.version is None else self.version == __version__


def probe_tls(identity: Identity, neighbour: Member, timeout: float) -> NeighbourCheck:
    """Shake hands with a neighbour that listens, and hang up."""
    address, found = str(neighbour.address), NeighbourCheck(neighbour.name, False)
    try:
        connection = socket.create_connection(split_address(address), timeout)
    except OSError as error:
        return replace(found, problem=f"{address} cannot be reached: {error.strerror or error}.")
    found = replace(found, reachable=True)
    with connection:
        try:
            secured = _context(identity).wrap_socket(connection, server_hostname=tls_name(neighbour))
        except (OSError, ValueError) as error:
            return replace(found, problem=f"{address} answers, but not with TLS: {_reason(error)}.")
        with secured:
            return _look(found, secured, identity.member, neighbour)


def _look(found: NeighbourCheck, secured: ssl.SSLSocket, own: Member, neighbour: Member) -> NeighbourCheck:
    """What a connection shows, up to the first byte that the neighbour sends."""
    is_right = secured.getpeercert(binary_form=True) == neighbour.certificate_bytes
    found = replace(found, right_certificate=is_right, tls=secured.version())
    if not is_right:
        return replace(found, problem=f"{neighbour.address} shows another certificate than the agreement.")
    if found.tls != VERSION:
        return replace(found, problem=f"{neighbour.address} speaks {found.tls}; members speak {VERSION}.")
    try:
        accepted = bool(secured.recv(1))  # in TLS 1.3 a client learns only here whether its certificate was taken
    except OSError:
        accepted = False
    problem = time_problem(neighbour) or time_problem(own)
    if problem is not None:
        problem = f"T{problem[1:]}: {TIME_REMEDY}."
    elif not accepted:
        problem = f"{neighbour.name} does not accept this member's certificate; compare the agreements, and the clocks."
    return replace(found, accepted=accepted, problem=problem)


def _context(identity: Identity) -> ssl.SSLContext:
    """Takes any certificate and TLS 1.2 too: what is wrong with them is to be reported."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    file = os.memfd_create("identity")  # the ssl module reads keys from files only; this one is on no disk
    try:
        os.write(file, identity.tls_key + identity.member.certificate.encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


def _reason(error: Exception) -> str:
    return error.reason.replace("_", " ").lower() if isinstance(error, ssl.SSLError) and error.reason else str(error)


def check_neighbour(
    identity: Identity,
    rules: LinkRules,
    neighbour: Member,
    timeout: float = 5.0,
    key_hashes: KeyHashes | None = None,
    settings: LinkSettings = DIRECT,
) -> NeighbourCheck:
    """Reach a neighbour that listens, and ask it how things are; every wait ends after `timeout` seconds.

    Through a proxy there is no look by TLS alone.
    """
    found = NeighbourCheck(neighbour.name, True)
    if not settings.through_proxy:
        found = probe_tls(identity, neighbour, timeout)
    if found.problem is not None:
        return found
    options = [name_option(neighbour), *settings.dialler_options()]
    with grpc.secure_channel(neighbour.address, dialler_credentials(identity, neighbour), options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout)
            found = _ask(channel, rules, found, timeout)
        except (grpc.RpcError, grpc.FutureTimeoutError, StopIteration):
            return replace(found, problem=f"{neighbour.name} takes connections, but does not answer.")
        if found.same_agreement is not False:
            return found
        with suppress(grpc.RpcError, StopIteration, Refused):
            asked = iter((encode_hashes(key_hashes or {}),))
            told = next(channel.stream_stream(method_path(COMPARE))(asked, timeout=timeout))
            keys = differing_keys(key_hashes or {}, told)
            return replace(found, differing=keys, problem=other_agreement(found.name, keys))
    return found


def _ask(channel: grpc.Channel, rules: LinkRules, found: NeighbourCheck, timeout: float) -> NeighbourCheck:
    asked, began = time.time(), time.perf_counter()
    own = Frame(rules.agreement, FIRST, rules.member, Kind.HELLO, Hello(None).encode())
    answers = channel.stream_stream(method_path(CHECK))(iter((own.encode(),)), timeout=timeout)
    greeting = next(answers)
    round_trip = time.perf_counter() - began
    found = replace(found, round_trip=round_trip)
    told = next(answers)
    try:
        version = version_in(greeting, rules)
        (clock,) = CLOCK.unpack(told)
    except Refused as refusal:
        if refusal.reason is Reason.AGREEMENT:
            return replace(found, same_agreement=False, problem=other_agreement(found.name))
        problem = f"{found.name} answers in a way that this version does not understand; compare versions."
        if refusal.reason is Reason.VERSION:
            problem = f"{found.name} speaks another version of the protocol than {PROTOCOL}, that of this member."
        return replace(found, problem=problem)
    except struct.error:
        return replace(found, problem=f"{found.name} does not tell the time.")
    ahead = clock - asked - round_trip / 2
    return replace(found, same_agreement=True, clock_difference=ahead, version=version)


def other_agreement(name: str, keys: Sequence[str] = ()) -> str:
    """What is said of a neighbour with another agreement, which differs in these keys."""
    differs = f": it differs in {named_keys(keys)}." if keys else "; compare the two files."
    return f"{name} has another agreement{differs}"


PAUSE = 0.5
"""Seconds between two attempts to reach a neighbour."""

LINGER = 10.0
"""Seconds that a member whose lines are all fine still answers neighbours that have not asked yet."""


@dataclass(frozen=True)
class Checks:
    """What was found about each neighbour, and whether this member answered those that asked meanwhile."""

    neighbours: tuple[NeighbourCheck, ...]
    answered: bool

    @property
    def disagree(self) -> bool:
        """Whether one of them has another agreement."""
        return any(one.same_agreement is False for one in self.neighbours)

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong with any of them."""
        return all(one.problem is None for one in self.neighbours)


def check_rules(agreement: Agreement, member: int) -> LinkRules:
    """The rules of links over which nobody sends messages."""
    names = agreement.names
    neighbours = frozenset(names.index(one) for one in agreement.neighbours(names[member]))
    payload = PayloadRule(0, np.dtype(agreement.precision))
    return LinkRules(
        bytes.fromhex(agreement.hash), member, neighbours, neighbours, agreement.training.rounds, 1, payload
    )


def check_neighbours(
    identity: Identity,
    agreement: Agreement,
    member: int,
    *,
    bind: str | None,
    wait: float,
    timeout: float = 5.0,
    settings: LinkSettings = DIRECT,
) -> Checks:
    """Check every neighbour; for `wait` seconds again, as long as something is wrong."""
    rules = check_rules(agreement, member)
    check = _Check(identity, rules, agreement.key_hashes, time.monotonic() + wait, timeout, settings)
    members = {one: agreement.members[one] for one in sorted(check.rules.neighbours)}
    with check.answering(members, bind) as answered:
        with ThreadPoolExecutor(len(members)) as threads:
            try:
                found = tuple(threads.map(check.of, members.keys(), members.values()))
            except BaseException:
                check.stopped.set()  # whoever stops it does not wait until the time is over
                raise
        if wait > 0 and answered:
            check.linger(members.keys())
    return Checks(found, answered)


@dataclass(frozen=True)
class _Check:
    """Checks until a deadline. `asked` has who asked this member, with its version; `differing` what others told."""

    identity: Identity
    rules: LinkRules
    key_hashes: KeyHashes
    deadline: float
    timeout: float
    settings: LinkSettings
    asked: dict[int, str | None] = field(default_factory=dict)
    differing: dict[int, tuple[str, ...]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    stopped: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def answering(self, members: Mapping[int, Member], bind: str | None) -> Iterator[bool]:
        """Answer neighbours that check; yields False where another process has the port, a running `join` say."""
        links = GrpcLinks(
            self.rules, self.identity, members, report=self._report, bind=bind, exchanges=False,
            key_hashes=self.key_hashes, settings=self.settings,
        )  # fmt: skip
        try:
            links.__enter__()
        except SottovoceError:
            yield False
            return
        try:
            yield self.identity.member.listen
        finally:
            links.__exit__()

    def of(self, number: int, neighbour: Member) -> NeighbourCheck:
        """A neighbour that listens is asked; of the others it is known whether they have asked.

        Another agreement does not become the same while one waits.
        """
        disagreed = None
        while True:
            found = self._ask(number, neighbour)
            disagreed = found if found.same_agreement is False else disagreed
            left = self.deadline - time.monotonic()
            if found.problem is None or found.differing or left <= 0 or self.stopped.is_set():
                return found if found.problem is None else disagreed or found
            self._wait(lambda: False, min(PAUSE, left))

    def linger(self, neighbours: Iterable[int]) -> None:
        """Give neighbours that have not asked yet the time to do so."""
        wanted = set(neighbours)
        self._wait(lambda: self.asked.keys() - self._uncompared() >= wanted, LINGER)

    def _uncompared(self) -> set[int]:
        """Neighbours that have another agreement, and have not told what it differs in."""
        return {number for number, version in self.asked.items() if version is None} - self.differing.keys()

    def _ask(self, number: int, neighbour: Member) -> NeighbourCheck:
        if neighbour.listen:
            return check_neighbour(self.identity, self.rules, neighbour, self.timeout, self.key_hashes, self.settings)
        with self.changed:
            known, version = number in self.asked, self.asked.get(number)
            keys = self.differing.get(number, ())
        if not known:
            absent = f"{neighbour.name} does not listen, and no check arrived from it; type sotto peer check there too."
            return NeighbourCheck(neighbour.name, False, problem=absent)
        found = NeighbourCheck(neighbour.name, True, True, accepted=True, same_agreement=version is not None)
        if version is None:
            return replace(found, problem=other_agreement(neighbour.name, keys), differing=keys)
        return replace(found, version=version)

    def _report(self, event: LinkEvent) -> None:
        with self.changed:
            if isinstance(event, Checked):
                self.asked[event.neighbour] = event.version
            if isinstance(event, Disagreed):
                self.differing[event.neighbour] = event.keys
            self.changed.notify_all()

    def _wait(self, reached: Callable[[], bool], seconds: float) -> None:
        with self.changed:
            self.changed.wait_for(reached, seconds)
