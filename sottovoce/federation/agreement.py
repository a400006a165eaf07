"""The agreement of a federation: everything about a run that all members know, and that must be equal at each.

It holds no data, no path, no secret, and no seed of noise or batches. Two agreements are the same if their canonical
forms are: keys sorted, defaults written out, numbers normalised.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from sottovoce.core.graphs import Graph, graph
from sottovoce.errors import InputError
from sottovoce.federation.member import Member, check_member
from sottovoce.learning.columns import Columns, parse_columns
from sottovoce.learning.datasets import OF_ITS_OWN
from sottovoce.run.protocol import check_algorithm, chosen_spec
from sottovoce.support.config import (
    LARGEST_SEED,
    NAME,
    About,
    AlgorithmChoice,
    DataSettings,
    Document,
    Experiment,
    MachineSettings,
    MetricsSettings,
    ModelChoice,
    PrivacySettings,
    Section,
    TopologySettings,
    TrainingSettings,
    leaves,
    parse_section,
    read_settings_file,
)
from sottovoce.support.config import first_difference as first_difference_of
from sottovoce.support.text import to_toml

NONCE_PATTERN = r"^[0-9a-f]{64}$"

MOST_MEMBERS = 1000
"""Of a federation: each pair of them is compared, and all of it is in every member's agreement."""

LONGEST_PAUSE = 366 * 86_400.0
"""Seconds."""

NOT_AGREED = {
    "noise_key": "every member draws its noise from secrets of its own",
    "record": "members record nothing of what they receive",
    "machine": "apart from precision, each member decides on its own how it computes",
}
"""Keys of run files that no agreement has, and why."""


class AgreedTopology(Section):
    """A graph, by members' names, and its weights. It does not change: who is missing shows by itself."""

    graph: str
    weights: str | None = None


class AgreedData(Section):
    """What the columns of every member's table are, and the norm that rows are scaled to."""

    columns: Columns
    unit_norm: bool = False
    max_norm: float | None = Field(default=None, gt=0)


class AgreedMember(Member):
    """A member, and how many rows it declares for training: a public number."""

    rows: int = Field(ge=1, le=10**9)


class Amends(Section):
    """What an amendment goes on from: the agreement before it, the first of all, the round from which it holds itself.

    Who `came` has no part in what was before. Those who stay sign its hash with the certificates that they had before.
    """

    agreement: str = Field(pattern=NONCE_PATTERN)
    first: str = Field(pattern=NONCE_PATTERN)
    round: int = Field(ge=1)
    came: list[str] = Field(default_factory=list)
    signatures: dict[str, str] = Field(default_factory=dict)


class AgreedSettings(Section):
    """The settings that whoever assembles an agreement chooses: those of a run file that are public.

    Messages hold values of `precision` within `message_range`; others are refused by whoever receives them. With
    `secure_sum` members learn sums of messages, and no single one. While fewer than `least_heard` of its neighbours
    answer, a member pauses and keeps its budget; after `longest_pause` seconds its run ends, incomplete.
    """

    name: str = Field(pattern=f"^{NAME}(/{NAME})*$", max_length=200)
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    precision: Literal["float32", "float64"] = "float32"
    message_range: list[float] = Field(default_factory=lambda: [-1e6, 1e6], min_length=2, max_length=2)
    secure_sum: bool | None = None
    least_heard: int = Field(default=1, ge=1, le=MOST_MEMBERS)
    longest_pause: float = Field(default=86_400.0, gt=0, le=LONGEST_PAUSE)
    about: About = About()
    topology: AgreedTopology
    training: TrainingSettings
    model: ModelChoice = ModelChoice()
    algorithm: AlgorithmChoice = AlgorithmChoice()
    privacy: PrivacySettings = PrivacySettings()
    metrics: MetricsSettings = MetricsSettings()


class Agreement(AgreedSettings):
    """What all members know. `nonce` are 32 random bytes, in hexadecimal digits: no two agreements are equal."""

    nonce: str
    data: AgreedData
    members: list[AgreedMember]
    amends: Amends | None = None

    @property
    def run(self) -> str:
        """What the run is known by: the hash of its first agreement. Amendments belong to the same run."""
        return self.hash if self.amends is None else self.amends.first

    @property
    def since(self) -> int:
        """The round from which it holds."""
        return 0 if self.amends is None else self.amends.round

    @property
    def names(self) -> tuple[str, ...]:
        """The members' names, in the order of the graph's nodes."""
        return tuple(member.name for member in self.members)

    @cached_property
    def graph(self) -> Graph:
        """Who speaks to whom."""
        return graph(self.topology.graph)

    def member(self, name: str) -> AgreedMember:
        """The member of a name."""
        for member in self.members:
            if member.name == name:
                return member
        raise InputError(
            f"no member called {name!r}", f"members are {', '.join(self.names)}", "check the name, or the agreement"
        )

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The members with which a member shares an edge, in either direction."""
        node, linked = self.names.index(name), self.graph.adjacency + self.graph.adjacency.T
        return tuple(self.names[other] for other in sorted(linked[[node]].indices.tolist()))

    def heard_by(self, name: str) -> tuple[str, ...]:
        """The members whose messages a member receives."""
        return tuple(self.names[other] for other in self.graph.adjacency[:, [self.names.index(name)]].nonzero()[0])

    @cached_property
    def experiment(self) -> Experiment:
        """The run that it describes: the same settings simulate it, and account for it."""
        return Experiment(
            name=self.name, seed=self.seed, secure_sum=self.secure_sum, about=self.about,
            topology=TopologySettings(**self.topology.model_dump()),
            training=self.training, model=self.model, algorithm=self.algorithm, privacy=_on_grid(self.privacy),
            metrics=self.metrics,
            data=DataSettings(
                name=OF_ITS_OWN, partition=OF_ITS_OWN,
                columns=self.data.columns.model_dump(mode="json", exclude_none=True),
                shards={member.name: member.rows for member in self.members}, unit_norm=self.data.unit_norm,
                max_norm=self.data.max_norm,
            ),
            machine=MachineSettings(precision=self.precision),
        )  # fmt: skip

    @property
    def has_secure_sums(self) -> bool:
        """Whether members learn sums of messages, and no single one."""
        return chosen_spec(self.experiment).sums_of is not None

    @property
    def document(self) -> Document:
        """All that it says, defaults written out."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def canonical(self) -> bytes:
        """The same bytes for the same agreement, however its file is written."""
        return _canonical(self._agreed)

    @property
    def _agreed(self) -> Document:
        """All that a signature is about."""
        return _normalised(self.model_dump(mode="json", exclude_none=True, exclude={"amends": {"signatures"}}))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical form, in hexadecimal digits."""
        return hashlib.sha256(self.canonical).hexdigest()

    @cached_property
    def key_hashes(self) -> dict[str, str]:
        """The SHA-256 of each value, by key: by them two members find what their agreements differ in."""
        return {key: hashlib.sha256(_canonical(value)).hexdigest() for key, value in leaves(_by_name(self))}

    def toml(self) -> str:
        """As a file holds it."""
        return to_toml(self.document)


def _on_grid(privacy: PrivacySettings) -> PrivacySettings:
    """Members release multiples of a step wherever figures allow it, also where noise is correlated over rounds."""
    wanted = True if privacy.exact_noise is True else "where-possible"
    return privacy.model_copy(update={"exact_noise": wanted})


def first_difference(one: Agreement, other: Agreement) -> str | None:
    """The first key in which two agreements differ, and both values; None where they are the same agreement."""
    found = first_difference_of(_by_name(one), _by_name(other))
    return None if found is None else f"{found[0]}: {found[1]!r:.60} and {found[2]!r:.60}"


def _by_name(agreement: Agreement) -> Document:
    """The normalised document with members and columns by name, so that a difference names the one that it is in."""
    document = agreement._agreed
    members = {member["name"]: member for member in document["members"]}
    columns = document["data"]["columns"]
    listed = {f"{place}. {column['name']}": column for place, column in enumerate(columns["columns"], 1)}
    return {**document, "members": members, "data": {**document["data"], "columns": {**columns, "columns": listed}}}


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def read_agreement(path: Path) -> Agreement:
    """The agreement that a file holds."""
    return parse_agreement(read_settings_file(path), str(path))


def parse_agreement(document: Document, where: str) -> Agreement:
    """An agreement from its document, with all that it says checked; `where` names the file in messages."""
    check_agreed_keys(document, where)
    if "members" not in document and "rows" in document:
        raise InputError(
            f"{where} has the settings of an agreement", "an agreement also lists the members",
            "make it with sotto peer agree",
        )  # fmt: skip
    agreement = parse_section(Agreement, document, where)
    if not re.fullmatch(NONCE_PATTERN, agreement.nonce):
        raise InputError(f"{where}: nonce", "it has 64 hexadecimal digits", "make the agreement with sotto peer agree")
    low, high = agreement.message_range
    if not low < 0 < high:
        raise InputError(f"{where}: message_range = {agreement.message_range}", "0 must lie within it", "correct it")
    parse_columns(agreement.data.columns.model_dump(mode="json", exclude_none=True), where)
    if agreement.privacy.exact_noise is False:
        raise InputError(
            f"{where}: privacy.exact_noise = false", "members always use exact noise if it is possible",
            "leave it out",
        )  # fmt: skip
    check_members(agreement.members, where)
    _check_graph(agreement, where)
    if agreement.since >= agreement.training.rounds:
        raise InputError(f"{where}: amends.round = {agreement.since}", "no round is left from there", "end the run")
    check_algorithm(agreement.experiment)
    return agreement.model_copy(update={"secure_sum": True}) if agreement.has_secure_sums else agreement


def check_agreed_keys(document: Document, where: str) -> None:
    """Refuse keys of run files that are not for an agreement, with the reason."""
    for key, reason in NOT_AGREED.items():
        if key in document:
            raise InputError(f"{where}: {key}", reason, "leave it out")


def check_not_too_many(members: int, where: str) -> None:
    """Refuse a federation that is too large to be compared, before its members are read."""
    if members > MOST_MEMBERS:
        raise InputError(
            f"{where}: {members:,} members", f"it has at most {MOST_MEMBERS:,}", "simulate a federation of that size"
        )


def check_members(members: Sequence[Member], where: str) -> None:
    """Refuse members of a wrong form, in a wrong order, or that cannot be told apart."""
    check_not_too_many(len(members), where)
    if len(members) < 2:
        raise InputError(f"{where}: {len(members)} members", "a federation has at least two", "add the others")
    for member in members:
        check_member(member, where)
    for one, other in combinations(members, 2):
        same = {
            "name": _spoken(one.name) == _spoken(other.name),
            "certificate": one.certificate == other.certificate,
            "exchange_key": one.exchange_key == other.exchange_key,
        }
        for what in same:
            if same[what]:
                raise InputError(
                    f"{where}: {one.name} and {other.name} have the same {what}", "members must differ in it",
                    "give each an identity of its own: sotto peer init",
                )  # fmt: skip
    names = [member.name for member in members]
    if names != sorted(names):
        raise InputError(f"{where}: members {', '.join(names)}", "they must be sorted by name", "sort them")


def _spoken(name: str) -> str:
    """A name without what readers do not see: capitals, and wide or joined forms of letters."""
    return unicodedata.normalize("NFKC", name).casefold()


def _check_graph(agreement: Agreement, where: str) -> None:
    """Refuse a graph of other nodes, one that is not connected, and edges that nobody can open."""
    if not agreement.topology.graph.startswith("edges:"):
        raise InputError(
            f"{where}: topology.graph = {agreement.topology.graph!r:.60}", "an agreement names both ends of every edge",
            "make it with sotto peer agree",
        )  # fmt: skip
    nodes = agreement.graph.names
    if nodes != agreement.names:
        strange = sorted(set(nodes or ()) ^ set(agreement.names))
        raise InputError(
            f"{where}: {', '.join(strange[:3])} only in the graph, or only among the members",
            "nodes and members must be the same",
            "correct topology.graph, or give the member's file",
        )  # fmt: skip
    if not agreement.graph.connected:
        raise InputError(
            f"{where}: a graph that is not connected", "every member must be able to reach every other", "add edges"
        )
    for name in agreement.names:
        heard = len(agreement.heard_by(name))
        if agreement.least_heard > heard:
            raise InputError(
                f"{where}: least_heard = {agreement.least_heard}", f"{name} hears {heard} other members",
                f"give at most {heard}, or add edges",
            )  # fmt: skip
        for other in agreement.neighbours(name):
            if not agreement.member(name).listen and not agreement.member(other).listen:
                raise InputError(
                    f"{where}: an edge between {name} and {other}, and neither listens",
                    "one of the two must open the connection",
                    "leave that edge out, or let one of them make an identity without --no-listen",
                )  # fmt: skip


def _normalised(value: Any) -> Any:
    """Whole numbers without a point, everywhere: 2.0 and 2 are one number.

    >>> _normalised({"sigma": 2.0, "bound": -0.0, "clip": True, "range": [0.5, 1e3]})
    {'sigma': 2, 'bound': 0, 'clip': True, 'range': [0.5, 1000]}
    """
    if isinstance(value, dict):
        return {key: _normalised(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_normalised(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
