"""How an agreement is put together: from settings, and from the files that members hand over."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.graphs import Graph, graph
from sottovoce.errors import InputError
from sottovoce.federation.agreement import (
    NOT_AGREED,
    AgreedSettings,
    AgreedTopology,
    Agreement,
    check_agreed_keys,
    check_not_too_many,
    parse_agreement,
)
from sottovoce.federation.identity import check_certificate
from sottovoce.federation.member import SUFFIX, Member, read_member
from sottovoce.learning.columns import read_columns
from sottovoce.learning.datasets import OF_ITS_OWN
from sottovoce.run.protocol import parse_run
from sottovoce.support.config import (
    Document,
    MachineSettings,
    Section,
    check_length,
    parse_section,
    read_settings_file,
)
from sottovoce.support.own_code import code_from

NONCE_BYTES = 32


class DraftData(Section):
    """As in an agreement; the columns may be in a file."""

    columns: str | dict[str, Any]
    unit_norm: bool = False
    max_norm: float | None = None


class Draft(AgreedSettings):
    """The settings from which an agreement is made: rows by member, columns by file, and any graph."""

    data: DraftData
    rows: dict[str, int]


def read_draft(settings: Path) -> Draft:
    """The settings that a file holds, or those of the simulation that it describes."""
    where, document = str(settings), read_settings_file(settings)
    if "name" in document.get("data", {}):
        document = _of_simulation(document, settings)
    check_agreed_keys(document, where)
    return parse_section(Draft, document, where)


def _of_simulation(document: Document, settings: Path) -> Document:
    """The settings of a simulation whose nodes have a table each, without what no agreement has."""
    from sottovoce.run.build import with_table_facts

    run = parse_run({key: value for key, value in document.items() if key not in NOT_AGREED}, str(settings))
    if run.data.partition != OF_ITS_OWN:
        raise InputError(
            f"{settings}: data.partition = {run.data.partition!r:.40}", "members have a table each",
            'simulate that first: data = {name = "table:FOLDER", partition = "tables"}',
        )  # fmt: skip
    data = with_table_facts(run, settings.parent).data
    given = run.model_dump(mode="json", exclude_defaults=True, exclude={"data"})
    precision = parse_section(MachineSettings, document.get("machine", {}), f"{settings}: machine").precision
    kept = {"columns": data.columns, "unit_norm": data.unit_norm, "max_norm": data.max_norm}
    return {**given, "precision": precision, "rows": data.shards, "data": kept}


def assemble_agreement(settings: Path, member_files: Sequence[Path]) -> Agreement:
    """The agreement of settings and members; the same settings give another one each time, by its random bytes."""
    where, draft = str(settings), read_draft(settings)
    check_not_too_many(len(member_files), where)
    members = sorted((read_member(path) for path in member_files), key=lambda member: member.name)
    for member in members:
        check_certificate(member, f"{member.name}{SUFFIX}")
    strange = sorted(set(draft.rows) - {member.name for member in members})
    if strange:
        raise InputError(
            f"{where}: [rows] names {strange[0]}", "there is no such member", f"give {strange[0]}{SUFFIX}, too"
        )
    columns = read_columns(draft.data.columns, settings.parent, where)
    agreed = draft.model_dump(mode="json", exclude={"rows", "data", "topology"})
    if "start" in agreed["model"]:
        from sottovoce.learning.starts import start_digest

        with code_from(settings.parent):
            agreed["model"]["start_sha256"] = start_digest(agreed["model"])
    agreement = parse_agreement(
        {
            **agreed,
            "nonce": secrets.token_hex(NONCE_BYTES),
            "topology": _named_topology(draft.topology, members, where),
            "data": {**draft.data.model_dump(mode="json"), "columns": columns.model_dump(mode="json")},
            "members": [_with_rows(member, draft.rows, where) for member in members],
        },
        where,
    )
    check_length(agreement.toml(), f"the agreement of {len(members)} members")
    return agreement


def _with_rows(member: Member, rows: dict[str, int], where: str) -> Document:
    """A member with the rows that the settings declare for it."""
    if member.name not in rows:
        raise InputError(
            f"{where}: no rows for {member.name}", "each member declares how many rows it trains on",
            f"write {member.name} = 800, for example, under [rows]",
        )  # fmt: skip
    return {**member.model_dump(), "rows": rows[member.name]}


def _named_topology(topology: AgreedTopology, members: Sequence[Member], where: str) -> Document:
    """The topology with edges between members. Nodes without names are the members in the order of their names."""
    found, names = graph(topology.graph), [member.name for member in members]
    if found.names is None:
        if found.n != len(names):
            raise InputError(
                f"{where}: {topology.graph} has {found.n} nodes", f"there are {len(names)} member files",
                "give one file for each node",
            )  # fmt: skip
        nodes = names
    else:
        nodes = list(found.names)
    return {**topology.model_dump(mode="json"), "graph": _edges_by_name(found, nodes)}


def _edges_by_name(found: Graph, nodes: Sequence[str]) -> str:
    senders, receivers = found.adjacency.nonzero()
    between = "->" if found.directed else "--"
    ends = ((nodes[u], nodes[v]) for u, v in zip(senders.tolist(), receivers.tolist(), strict=True))
    pairs = sorted((one, other) for one, other in ends if found.directed or one < other)
    return "edges:" + ",".join(f"{one}{between}{other}" for one, other in pairs)
