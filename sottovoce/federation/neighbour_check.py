"""What `sotto peer check` says about a neighbour: whether it can be reached, is the right one, and agrees."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sottovoce._version import __version__
from sottovoce.federation.comparison import KeyHashes, differing_keys, encode_hashes, named_keys
from sottovoce.federation.frames import Frame, FrameReader, Hello, Kind, Reason, Refused, hello_in
from sottovoce.federation.identity import Identity
from sottovoce.federation.links import FIRST
from sottovoce.federation.mailbox import LinkRules
from sottovoce.federation.member import Member
from sottovoce.federation.secure_grpc import grpc
from sottovoce.federation.tls import CHECK, COMPARE, dialler_credentials, method_path, name_option
from sottovoce.federation.tls_probe import TlsProbe, probe_tls

CLOCK = struct.Struct("<d")
"""How a member tells its time: seconds since 1970."""


@dataclass(frozen=True)
class NeighbourCheck:
    """One neighbour. `problem` is what is wrong, in one sentence, or None; what is not known is None too.

    `clock_difference` is how many seconds its clock is ahead of this one, `round_trip` how many a question takes,
    `differing` the keys in which its agreement differs.
    """

    name: str
    tls: TlsProbe
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


def check_neighbour(
    identity: Identity,
    rules: LinkRules,
    neighbour: Member,
    timeout: float = 5.0,
    key_hashes: KeyHashes | None = None,
) -> NeighbourCheck:
    """Reach a neighbour that listens, and ask it how things are; every wait ends after `timeout` seconds."""
    tls = probe_tls(identity, neighbour, timeout)
    if tls.problem is not None:
        return NeighbourCheck(neighbour.name, tls, problem=tls.problem)
    options = [name_option(neighbour), ("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(neighbour.address, dialler_credentials(identity, neighbour), options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout)
            found = _ask(channel, rules, neighbour, tls, timeout)
            return _compared(channel, found, key_hashes or {}, timeout) if found.same_agreement is False else found
        except (grpc.RpcError, grpc.FutureTimeoutError, StopIteration):
            problem = f"{neighbour.name} takes connections, but does not answer."
            return NeighbourCheck(neighbour.name, tls, problem=problem)


def _ask(channel: grpc.Channel, rules: LinkRules, neighbour: Member, tls: TlsProbe, timeout: float) -> NeighbourCheck:
    asked, began = time.time(), time.perf_counter()
    own = Frame(rules.agreement, FIRST, rules.member, Kind.HELLO, Hello(None).encode())
    answers = channel.stream_stream(method_path(CHECK))(iter((own.encode(),)), timeout=timeout)
    greeting = next(answers)
    round_trip = time.perf_counter() - began
    told = next(answers)
    try:
        version = version_in(greeting, rules)
        (clock,) = CLOCK.unpack(told)
    except Refused as refusal:
        agreement = False if refusal.reason is Reason.AGREEMENT else None
        return NeighbourCheck(
            neighbour.name, tls, agreement, round_trip=round_trip, problem=_sentence(neighbour, refusal)
        )
    except struct.error:
        return NeighbourCheck(neighbour.name, tls, problem=f"{neighbour.name} does not tell the time.")
    ahead = clock - asked - round_trip / 2
    problem = None if version == __version__ else other_version(neighbour, version)
    return NeighbourCheck(neighbour.name, tls, True, version, ahead, round_trip, problem)


def version_in(greeting: bytes, rules: LinkRules) -> str:
    """The version of the package that a hello of the same agreement names."""
    frames = FrameReader(rules.agreement, rules.payload.length).feed(greeting)
    if len(frames) != 1 or frames[0].kind is not Kind.HELLO:
        raise Refused(Reason.FORMAT)
    return hello_in(frames[0]).version


def _sentence(neighbour: Member, refusal: Refused) -> str:
    if refusal.reason is Reason.AGREEMENT:
        return other_agreement(neighbour.name)
    return f"{neighbour.name} answers in a way that this version does not understand; compare versions."


def other_agreement(name: str, keys: Sequence[str] = ()) -> str:
    """What is said of a neighbour with another agreement, which differs in these keys."""
    differs = f": it differs in {named_keys(keys)}." if keys else "; compare the two files."
    return f"{name} has another agreement{differs}"


def _compared(channel: grpc.Channel, found: NeighbourCheck, own: KeyHashes, timeout: float) -> NeighbourCheck:
    """The same, with the keys in which a neighbour's agreement differs, as far as it tells."""
    try:
        told = next(channel.stream_stream(method_path(COMPARE))(iter((encode_hashes(own),)), timeout=timeout))
        keys = differing_keys(own, told)
    except (grpc.RpcError, StopIteration, Refused):
        return found
    return replace(found, differing=keys, problem=other_agreement(found.name, keys))


def other_version(neighbour: Member, version: str) -> str:
    """What is said of a neighbour with another version of the package."""
    return f"{neighbour.name} has version {version}, and this member {__version__}; install the same."
