"""Amendments of an agreement in the midst of its run: addresses, certificates, members who come and who leave.

An amendment is an agreement of its own. It names the one before it, and the round from which it holds; all who stay
sign its hash. The run goes on: places, ledger, noise and what was reserved are those of the run, whose name is the hash
of its first agreement.

Addresses and certificates change no figure. Who comes or leaves is decided by what people saw of the run, so figures
must hold for whoever chooses the rest of it by what it saw: those about everyone, of Gaussian noise that is fresh in
each round and each member's own. They do not depend on who else takes part, and are the same before and after.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sottovoce.core.algorithm import Weighted
from sottovoce.errors import InputError, Unaccountable
from sottovoce.federation.agreement import Agreement, parse_agreement, read_agreement
from sottovoce.federation.assembly import NONCE_BYTES
from sottovoce.federation.guarantees import AgreedGuarantees, agreed_guarantees
from sottovoce.federation.identity import check_certificate, has_signed, load_identity, signature
from sottovoce.federation.link_rules import why_all_are_needed
from sottovoce.federation.member import SUFFIX, Member, read_member
from sottovoce.federation.member_folder import noted_as_signed, recorded_rounds, signed_amendments
from sottovoce.privacy.guarantee import Kind
from sottovoce.run.run_ledger import planned_run
from sottovoce.run.training_run import TrainingRun
from sottovoce.support.config import Document, first_difference


def amend(
    before: Agreement,
    member_files: Sequence[Path],
    *,
    round: int,
    rows: Mapping[str, int],
    without: Sequence[str],
    edges: Sequence[str],
) -> Agreement:
    """The amendment that holds from a round, which nobody has signed yet.

    A file of somebody who takes part replaces what is known of it. `rows` are those of members who come, `without` are
    those who leave. `edges` are added between members, such as A--B.
    """
    for name in without:
        before.member(name)
    given = {member.name: member for member in map(read_member, member_files)}
    for name, member in given.items():
        check_certificate(member, f"{name}{SUFFIX}")
    came, members = sorted(given.keys() - set(before.names)), []
    for agreed in before.members:
        if agreed.name not in without:
            members.append({**agreed.model_dump(), **_public(given.get(agreed.name, agreed))})
    for name in came:
        if name not in rows:
            raise InputError(f"no rows for {name}", "each member declares them", f"give --rows {name}=800, for example")
        members.append({**_public(given[name]), "rows": rows[name]})
    document = before.model_dump(mode="json", exclude_none=True) | {
        "nonce": secrets.token_hex(NONCE_BYTES),
        "members": sorted(members, key=lambda member: str(member["name"])),
        "amends": {"agreement": before.hash, "first": before.run, "round": round, "came": came},
    }
    if came or without:
        kept = [*before.topology.graph.removeprefix("edges:").split(","), *edges]
        gone = [edge for edge in kept if not set(without).isdisjoint(_ends(edge))]
        document["topology"]["graph"] = "edges:" + ",".join(edge for edge in kept if edge not in gone)
        document["privacy"]["attackers"] = "none"
    after = parse_agreement(document, "the amendment")
    check_amendment(before, after)
    return after


def _public(member: Member) -> Document:
    return member.model_dump(include=set(Member.model_fields))


def _ends(edge: str) -> list[str]:
    return edge.replace("->", "--").split("--")


def check_amendment(before: Agreement, after: Agreement) -> None:
    """Refuse an amendment of another agreement, or one that changes more than an amendment may."""
    amends = after.amends
    if amends is None or (amends.agreement, amends.first) != (before.hash, before.run):
        raise InputError(
            f"{after.name}: no amendment of {before.hash[:8]}", "it names the agreement before it by its hash",
            "give the amendment of this agreement",
        )  # fmt: skip
    if known := sorted(set(amends.came) & set(before.names)):
        raise InputError(f"amends.came names {known[0]}", "it took part before", "make the amendment again")
    if after.since <= before.since:
        raise InputError(
            f"an amendment from round {after.since}", f"the one before it holds from round {before.since}",
            "name a later round",
        )  # fmt: skip
    changes = _changes_members(before, after)
    found = first_difference(_lasting(before, after, changes), _lasting(after, after, changes))
    if found is not None:
        raise InputError(
            f"an amendment of {found[0]}", "it may change addresses, certificates, and who takes part",
            "make another agreement",
        )  # fmt: skip


def _changes_members(before: Agreement, after: Agreement) -> bool:
    assert after.amends is not None
    return bool(after.amends.came) or after.names != before.names


def _lasting(agreement: Agreement, after: Agreement, changes: bool) -> Document:
    """Of an agreement what no amendment may change: of its members those who stay."""
    document, stay = agreement.model_dump(mode="json"), _staying(after)
    for key in ("nonce", "amends"):
        document.pop(key)
    document["members"] = {
        one["name"]: {"rows": one["rows"], "exchange_key": one["exchange_key"]}
        for one in document["members"]
        if one["name"] in stay
    }
    if changes:
        document["topology"].pop("graph")
        document["privacy"]["attackers"] = "none" if agreement is not after else document["privacy"]["attackers"]
    return document


def _staying(after: Agreement) -> set[str]:
    assert after.amends is not None
    return set(after.names) - set(after.amends.came)


def amended_guarantees(before: Agreement, after: Agreement) -> AgreedGuarantees:
    """What holds for the whole run, whoever decided on the amendment by what it had seen; refused where that differs.

    If the members stay, nothing that figures depend on has changed.
    """
    found = agreed_guarantees(after)
    if not _changes_members(before, after):
        assert before.experiment == after.experiment
        return found
    why = _why_members_stay(found)
    if why is None and _cost(agreed_guarantees(before)) != _cost(found):
        why = "its figures would be others"
    if why is not None:
        raise Unaccountable(
            f"no figure is proven for {after.algorithm.name} if members come or leave in mid-run: {why}; let this run "
            "end, and make another agreement"
        )
    return found


def _why_members_stay(found: AgreedGuarantees) -> str | None:
    """Why figures of a run say nothing if its members change after messages were seen; None where they hold."""
    run, headline = found.training_run, found.privacy.headline
    if run.algorithm.secure_sum:
        return "in secure sums the noise of others hides each member"
    if run.algorithm.noise.correlation is not None:
        return "its noise is correlated over rounds, by a matrix that is made for these members"
    if _is_weighted(run):
        return "its weights add up over these members"
    planned = planned_run(found.privacy, run="", name=found.document["algorithm"], data="")
    if not planned.refundable or headline.kind is not Kind.ANY_TRAINING or not planned.covers.everyone:
        return "only figures of Gaussian noise against whoever sees everything hold then"
    return why_all_are_needed(run.algorithm, run.topology.at(0))


def _is_weighted(run: TrainingRun) -> bool:
    algorithm = run.algorithm
    return isinstance(algorithm.message(algorithm.init(np.zeros((run.topology.n, 1)))), Weighted)


def _cost(found: AgreedGuarantees) -> tuple[object, ...]:
    return found.document["loss"], found.document["over_rounds"], found.document["sigma"]


# --- signatures, and what a member knows ------------------------------------------------------------------------------


def sign(folder: Path, after: Agreement, copies: Sequence[Agreement]) -> Agreement:
    """The amendment with the signature of the member whose folder this is, and those of other copies of it.

    From its round on a process of this member plays no more under the agreement before it, from now on. So it must not
    have come so far yet: all begin in that round.
    """
    before = agreement_before(folder, after)
    check_amendment(before, after)
    amended_guarantees(before, after)
    identity = load_identity(folder, before)
    name = before.member(identity.member.name).name
    assert after.amends is not None
    signatures = dict(after.amends.signatures)
    for copy in copies:
        if copy.hash != after.hash or copy.amends is None:
            raise InputError(f"another amendment than {after.hash[:8]}", "all sign the same one", "give copies of it")
        signatures |= copy.amends.signatures
    if name in _staying(after):
        stops = signed_amendments(folder).get(before.hash, math.inf) <= after.since
        with noted_as_signed(folder, after):  # a process that has just looked may begin one round more
            if (begun := recorded_rounds(folder, after) + (not stops)) > after.since:
                raise InputError(
                    f"an amendment from round {after.since}", f"{name} has begun {begun} rounds",
                    f"amend from round {begun} on, or from a later one that leaves time to sign",
                )  # fmt: skip
        signatures[name] = signature(identity, _signed(after))
    signed = after.model_copy(update={"amends": after.amends.model_copy(update={"signatures": signatures})})
    unsigned(before, signed)
    return signed


def _signed(after: Agreement) -> bytes:
    return f"sottovoce amendment {after.hash}".encode()


def unsigned(before: Agreement, after: Agreement) -> list[str]:
    """Who stays and has not signed yet; a signature that is not its member's is refused."""
    assert after.amends is not None
    for name, signed in after.amends.signatures.items():
        if name not in _staying(after) or not has_signed(before.member(name), signed, _signed(after)):
            raise InputError(
                f"a signature of {name} that is not its own", "members sign with the certificate that they had",
                f"ask {name} for its copy again",
            )  # fmt: skip
    return sorted(_staying(after) - after.amends.signatures.keys())


def agreement_before(folder: Path, after: Agreement) -> Agreement:
    """The agreement that an amendment is about, as this member played it."""
    known = known_agreements(folder)
    wanted = None if after.amends is None else after.amends.agreement
    if wanted not in known:
        raise InputError(
            f"{folder} does not know what {after.name} amends", "who stays has played the agreement before it",
            "take part in that one first",
        )  # fmt: skip
    return known[wanted]


def known_agreements(folder: Path) -> dict[str | None, Agreement]:
    """The agreements that this member has played, by their hashes."""
    found = [read_agreement(path) for path in sorted((folder / "runs").glob("*/agreement*.toml"))]
    return {one.hash: one for one in found}


def earlier_agreements(folder: Path, agreement: Agreement, member: str) -> list[Agreement]:
    """What this member has played, or will have, of the same run before an agreement, the first of them first.

    Refused where somebody who stays has not signed, or what was signed changes more than it may.
    """
    amends = agreement.amends
    if amends is None or member in amends.came:
        return []
    before = agreement_before(folder, agreement)
    check_amendment(before, agreement)
    if missing := unsigned(before, agreement):
        raise InputError(
            f"{agreement.name} is not signed by {', '.join(missing)}", "all who stay sign an amendment",
            "let them type sotto peer sign with this file",
        )  # fmt: skip
    return [*earlier_agreements(folder, before, member), before]
