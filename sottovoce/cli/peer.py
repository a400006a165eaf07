"""`sotto peer`: a member of a federation, with its own data on its own machine."""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Exit, Option

from sottovoce.cli.app import app
from sottovoce.cli.ledger import lineage_document, show_lineages
from sottovoce.cli.options import Json, Yes
from sottovoce.cli.output import (
    Table,
    aligned,
    answer,
    facts,
    picked,
    print_note,
    print_remark,
    print_sentences,
    verbosity,
)
from sottovoce.cli.progress import activity
from sottovoce.errors import InputError, PeerLost
from sottovoce.privacy.rounding import round_up
from sottovoce.support.limits import size_text
from sottovoce.support.processes import ends_when_stopped

if TYPE_CHECKING:
    from sottovoce.federation.agreement import Agreement
    from sottovoce.federation.checking import Checks
    from sottovoce.federation.guarantees import AgreedGuarantees
    from sottovoce.federation.member import Member
    from sottovoce.federation.member_folder import MemberStatus
    from sottovoce.federation.rehearsal import MemberProgress
    from sottovoce.learning.tables import Table as MemberRows
    from sottovoce.support.config import Document
    from sottovoce.support.text import JSON

peer = typer.Typer(
    help="Take part in a federation: one process for each member, with its own data. Example: sotto peer init --help",
    rich_markup_mode=None,
)
app.add_typer(peer, name="peer")

SUMS_ASSUME = (
    "Secure sums hold if every member has compared every fingerprint with its owner (sotto peer check AGREEMENT "
    "--folder FOLDER shows them), and if no member's folder is restored from a copy while all its neighbours but one "
    "lie. Members can spoil sums unseen. Whoever steals keys later can read frames that were recorded: delete "
    "identity.json after the run."
)

SUMS_FAIL = (
    "{missing} in that round: a member without its sum keeps the model it had, and the round is spent all the same. If "
    "a sum fails at one member and not at another, their models diverge from each other, which costs accuracy but no "
    "privacy: see docs/missing-members.md."
)

DELTA = 1e-5
"""At which figures of a lineage without a budget are shown, as sotto ledger does."""

RANGE_IN_DEVIATIONS = 10
"""A range is narrow if it is less than this many standard deviations of the noise in models."""

RANGE_IS_NARROW = (
    "By the last round noise alone will have moved each value of a model by about {noise:.4g} (its standard "
    "deviation), and a member whose model leaves message_range, {least:g} to {most:g}, stops: agree on a range of at "
    "least ten times that to either side, on a smaller step size or on fewer rounds."
)

Folder = Annotated[Path, Option(help="This member's private folder.")]


def _finite(seconds: float | None) -> float | None:
    """Refuse a time that never ends, or is no number."""
    if seconds is not None and not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is not a number of seconds.")
    return seconds


@peer.command()
def init(
    name: str = Argument(help="The member's name: letters, digits, _ and -."),
    address: str | None = Option(None, help="HOST:PORT at which others reach this member."),
    folder: Folder = Path("peer"),
    listen: bool = Option(True, "--listen/--no-listen", help="Whether others can open connections to this member."),
    as_json: Json = False,
) -> None:
    """Make the keys of a member, and the file to give to the others.

    Example: sotto peer init Mercy --address mercy.example:7443
    """
    require_peers()
    from sottovoce.federation.identity import create_identity

    _show_member(create_identity(name, folder, address=address, listen=listen).member, folder)


def _show_member(member: "Member", folder: Path) -> None:
    """Say what to hand to the others."""
    from sottovoce.federation.member import SUFFIX

    public = folder.parent / f"{member.name}{SUFFIX}"
    shown = {
        "name": member.name, "address": member.address, "listen": member.listen, "folder": str(folder),
        "public_file": str(public), "fingerprint": member.spoken_fingerprint,
    }  # fmt: skip
    answer(shown, [["", ""], *([key.replace("_", " "), _word(value)] for key, value in shown.items())])
    print_remark(f"Give {public} to the others, and never {folder}. Compare fingerprints by telephone.")


@peer.command()
def renew(
    folder: Folder = Path("peer"),
    address: str | None = Option(None, help="HOST:PORT at which others reach this member from now on."),
    listen: bool | None = Option(
        None, "--listen/--no-listen", help="Whether others can open connections to this member from now on."
    ),
    as_json: Json = False,
) -> None:
    """Make another certificate for a member, with another address if wanted, for an amendment.

    Example: sotto peer renew --folder peer --address mercy.example:7444
    """
    require_peers()
    from sottovoce.federation.identity import renew_identity

    _show_member(renew_identity(folder, address=address, listen=listen), folder)


@peer.command()
def agree(
    settings: Path = Argument(help="Settings of the run, a TOML file; see docs/peers.md."),
    members: list[Path] = Argument(help="The NAME.member.toml of every member."),
    out: Path = Option(Path("agreement.toml"), help="File for the agreement."),
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Assemble an agreement, and show what it guarantees to whom. Nobody's rows are needed.

    Example: sotto peer agree settings.toml *.member.toml --out agreement.toml
    """
    require_peers()
    from sottovoce.federation.assembly import assemble_agreement
    from sottovoce.support.files import check_writable, write_text

    agreement = assemble_agreement(settings, members)
    check_writable(out)
    _check_new(out)
    from sottovoce.federation.guarantees import agreed_guarantees  # after what is quick: it takes seconds

    with activity("what the agreement guarantees"), ends_when_stopped():
        guarantees = agreed_guarantees(agreement)
    write_text(out, agreement.toml())
    _show_agreement(agreement, guarantees, out)


def _check_new(out: Path) -> None:
    if out.exists():
        raise InputError(f"{out} exists", "an agreement is never overwritten", "name another file with --out")


def _show_agreement(agreement: "Agreement", guarantees: "AgreedGuarantees", out: Path) -> None:
    """Who takes part, and what holds."""
    edges = "1 edge" if agreement.graph.edges == 1 else f"{agreement.graph.edges} edges"
    answer(
        _agreement_document(agreement, guarantees, out), _members_table(agreement, guarantees), "",
        f"{out}: {agreement.name}, {len(agreement.members)} members, {edges}",
        f"hash {agreement.hash}", guarantees.sentence,
    )  # fmt: skip
    if guarantees.members:
        print_remark("What a member can learn alone holds if all of them follow the agreement: see docs/peers.md.")
    least, most = agreement.message_range
    if RANGE_IN_DEVIATIONS * guarantees.noise_in_models > min(-least, most):
        print_remark(RANGE_IS_NARROW.format(noise=guarantees.noise_in_models, least=least, most=most))
    if (undone := agreement.experiment.training.undone_by_clipping()) is not None:
        print_remark(undone)
    if agreement.has_secure_sums:
        print_remark(SUMS_ASSUME)
        print_remark(SUMS_FAIL.format(missing=_failing_sums(agreement)))


@peer.command()
def amend(
    agreement: Path = Argument(help="The agreement that holds now."),
    members: list[Path] | None = Argument(None, help="NAME.member.toml of those who come, or whose file has changed."),
    from_round: int = Option(min=1, help="The round from which the amendment holds."),
    without: list[str] | None = Option(None, help="A member who leaves; again for each further one."),
    rows: list[str] | None = Option(None, help="NAME=COUNT, the rows of a member who comes; again for each."),
    edge: list[str] | None = Option(None, help="ONE--OTHER, a further edge of the graph; again for each."),
    out: Path = Option(Path("amended.toml"), help="File for the amendment."),
    as_json: Json = False,
) -> None:
    """Amend an agreement in mid-run: addresses, certificates, who comes and who leaves. All who stay sign it.

    Example: sotto peer amend agreement.toml Mercy.member.toml --from-round 20
    """
    require_peers()
    from sottovoce.federation.agreement import read_agreement
    from sottovoce.federation.amendments import amend as amended
    from sottovoce.federation.amendments import amended_guarantees
    from sottovoce.support.files import check_writable, write_text

    check_writable(out)
    _check_new(out)
    before = read_agreement(agreement)
    after = amended(
        before, members or (), round=from_round, rows=_counts(rows or ()), without=without or (), edges=edge or ()
    )
    with activity("what the amendment guarantees"), ends_when_stopped():
        guarantees = amended_guarantees(before, after)
    write_text(out, after.toml())
    _show_agreement(after, guarantees, out)
    print_remark(f"All who stay type sotto peer sign {out}, each with its own --folder, and hand the file on.")


def _counts(given: Sequence[str]) -> dict[str, int]:
    found = {}
    for text in given:
        name, _, count = text.partition("=")
        if not count.isdecimal():
            raise typer.BadParameter(f"{text!r} is not NAME=COUNT.")
        found[name] = int(count)
    return found


@peer.command()
def sign(
    amendment: Path = Argument(help="The amendment, as sotto peer amend wrote it; the signature is added to it."),
    copies: list[Path] | None = Argument(None, help="Copies that others have signed: their signatures are added."),
    folder: Folder = Path("peer"),
    as_json: Json = False,
) -> None:
    """Sign an amendment: from its round on this member refuses the agreement before it.

    Example: sotto peer sign amended.toml --folder peer
    """
    require_peers()
    from sottovoce.federation.agreement import read_agreement
    from sottovoce.federation.amendments import agreement_before, unsigned
    from sottovoce.federation.amendments import sign as signed_by
    from sottovoce.support.files import write_text

    with activity("what the amendment guarantees"), ends_when_stopped():
        after = signed_by(folder, read_agreement(amendment), [read_agreement(copy) for copy in copies or ()])
    write_text(amendment, after.toml())
    missing = unsigned(agreement_before(folder, after), after)
    found = {"file": str(amendment), "hash": after.hash, "from_round": after.since, "unsigned": missing}
    answer(found, facts({"amendment": after.hash, "from round": str(after.since), "not signed by": _named(missing)}))
    if not missing:
        print_remark(f"Hand {amendment} to all. Each stops sotto peer join, and starts it with this file and --resume.")


@peer.command()
def leave(
    agreement: Path = Argument(help="The agreement, or the amendment, that holds now."),
    folder: Folder = Path("peer"),
    as_json: Json = False,
) -> None:
    """Leave a run for good: nothing more is sent, and what it has spent is shown.

    Example: sotto peer leave agreement.toml --folder peer
    """
    require_peers()
    from sottovoce.federation.agreement import read_agreement
    from sottovoce.federation.identity import locked_identity
    from sottovoce.federation.joining import leave_federation
    from sottovoce.privacy.composition import compose

    agreed = read_agreement(agreement)
    with locked_identity(folder):
        found = leave_federation(folder, agreed)
    epsilon, delta = compose([found.counted]).epsilon(agreed.privacy.delta), agreed.privacy.delta
    document = {"agreement": agreed.run, "round": found.round, "epsilon": epsilon, "delta": delta}
    spent = f"{round_up(epsilon)} at delta {delta:g}"
    answer(document, facts({"left": agreed.name, "rounds sent": str(found.round), "epsilon spent": spent}))
    print_remark("Tell the others, who can go on with sotto peer amend --without.")


def _failing_sums(agreement: "Agreement") -> str:
    """Which sums fail for want of one member: of all whom it speaks to."""
    others = len(agreement.members) - 1
    if all(len(agreement.neighbours(name)) == others for name in agreement.names):
        return "One missing member makes every sum fail"
    return "A missing member makes the sums of its neighbours fail"


Confirmed = Annotated[
    bool,
    Option("--confirmed", help="For secure sums: note that all fingerprints were compared with their owners."),
]


def _confirm(folder: Path, agreement: "Agreement", confirmed: bool) -> None:
    """Note that fingerprints were compared, and say so."""
    from sottovoce.federation.member_folder import CONFIRMED, confirm

    if confirmed:
        confirm(folder, agreement)
        count = len(agreement.members)
        print_note(
            f"Noted in {folder / CONFIRMED}: the fingerprints of all {count} members were compared and are right. "
            "This note stays, whatever the check finds next."
        )


def _show_unconfirmed(path: Path, folder: Path, agreement: "Agreement") -> None:
    """Say which fingerprints are to be compared: each by another way than the agreement came."""
    from sottovoce.federation.member_folder import fingerprints, is_confirmed

    if is_confirmed(folder, agreement):
        return
    print_remark("With secure sums every member compares every fingerprint with its owner, for example by telephone:")
    for name, fingerprint in fingerprints(agreement).items():
        print_remark(f"  {name}  {fingerprint}")
    print_remark(f"If all of them are right, type: sotto peer check {path} --folder {folder} --confirmed")


AgreementFile = Annotated[Path, Argument(help="The agreement, as sotto peer agree wrote it.")]


@peer.command()
def check(
    agreement: AgreementFile,
    folder: Folder = Path("peer"),
    wait: float = Option(
        0.0, min=0, callback=_finite, help="Try again for this many seconds, until everything is fine."
    ),
    against: Path | None = Option(None, help="Another member's agreement, to compare with first."),
    confirmed: Confirmed = False,
    as_json: Json = False,
) -> None:
    """Check the connection to every neighbour. Exit code 1 if something is wrong, 2 if agreements differ.

    Example: sotto peer check agreement.toml --wait 60
    """
    require_peers()
    from sottovoce.federation.agreement import read_agreement
    from sottovoce.federation.checking import check_neighbours
    from sottovoce.federation.identity import ends_soon, load_identity
    from sottovoce.federation.joining import member_number
    from sottovoce.federation.member_folder import read_member_settings
    from sottovoce.federation.secure_grpc import LinkSettings

    agreed = read_agreement(agreement)
    if against is not None:
        _compare(agreement, agreed, against)
    identity = load_identity(folder, agreed)
    number, settings = member_number(agreed, identity), read_member_settings(folder)
    _confirm(folder, agreed, confirmed)
    _show_unconfirmed(agreement, folder, agreed)
    with activity("reaching neighbours"):
        found = check_neighbours(
            identity,
            agreed,
            number,
            bind=settings.bind,
            wait=wait,
            settings=LinkSettings(through_proxy=settings.through_proxy, through_relay=settings.relay),
        )
    answer(_checks_document(agreed, found), _checks_table(found))
    for member in (identity.member, *(agreed.member(one.name) for one in found.neighbours)):
        if (warning := ends_soon(member)) is not None:
            print_note(warning)
    if identity.member.listen and not found.answered:
        print_note(
            "Another process, perhaps sotto peer join, listens at this member's port: this check asked, and did not "
            "answer."
        )
    if not found.fine:
        raise Exit(2 if found.disagree else 1)


@peer.command()
def join(
    agreement: AgreementFile,
    data: Path | None = Option(None, help="This member's table: .csv, .parquet or .npz."),
    folder: Folder = Path("peer"),
    resume: bool = Option(False, "--resume", help="Continue a run that was begun."),
    patience: float | None = Option(
        None, min=0.1, callback=_finite, help="Seconds that a round may wait for neighbours."
    ),
    log: Path | None = Option(None, help="Append events to this file, as JSON lines; SIGHUP opens it anew."),
    metrics: str | None = Option(
        None, metavar="HOST:PORT", help="Serve metrics for Prometheus here, 127.0.0.1:9464 for example."
    ),
    metrics_file: Path | None = Option(None, help="Write these metrics to this file every few seconds."),
    baselines: bool = Option(
        False, "--baselines", help="Then train alone here, without noise: what joining bought. Not sent."
    ),
    confirmed: Confirmed = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Take part until the last round, with this member's own data.

    Example: sotto peer join agreement.toml --data our.csv
    """
    require_peers()
    with ends_when_stopped():  # all that is imported takes seconds, on a busy machine many
        from sottovoce.distributed.launch import leave_with_launcher
        from sottovoce.federation.agreement import read_agreement
        from sottovoce.federation.events import event_log
        from sottovoce.federation.identity import locked_identity
        from sottovoce.federation.joining import join_federation, member_number, member_table
        from sottovoce.federation.member_folder import read_member_settings
        from sottovoce.federation.member_run import Watch
        from sottovoce.federation.metrics import Metrics, exported

    leave_with_launcher()
    given = {
        "--data": data, "--folder": folder, "--patience": patience, "--log": log, "--metrics": metrics,
        "--metrics-file": metrics_file,
    }  # fmt: skip
    agreed = read_agreement(agreement)
    with locked_identity(folder, agreed) as identity:
        member_number(agreed, identity)
        _confirm(folder, agreed, confirmed)
        settings = read_member_settings(folder)
        if patience is not None:
            settings = settings.model_copy(update={"patience": patience})
        with ends_when_stopped():
            table = member_table(agreed, identity, settings, data)
        if table.clipped:
            print_note(
                f"{table.clipped:,} numbers of this table lie outside the ranges of their columns and were clipped."
            )
        try:
            with (
                event_log(log, print_note) as event,
                exported(values := Metrics(), metrics, metrics_file),
                activity(agreed.name, first="preparing") as work,
            ):
                watch = Watch(work.tell, event, values)
                result = join_federation(identity, agreed, table, settings, resume=resume, watch=watch, file=agreement)
        except KeyboardInterrupt:
            print_note(f"To go on, type {_resuming_line(agreement, given)}")
            raise
        except PeerLost as lost:
            raise PeerLost(f"{lost}; here, type {_resuming_line(agreement, given)}") from None
        alone = (
            _own_baseline(agreed, identity.member.name, table, Path(result["folder"]), result["held_out"])
            if baselines
            else {}
        )
    answer(result, _result_table(result, alone))


def _own_baseline(
    agreed: "Agreement", name: str, table: "MemberRows", folder: Path, scores: "Document"
) -> dict[str, str]:
    """What this member reaches alone, computed here where it is not there already; on its page, too."""
    from sottovoce.report.page import write_page_of
    from sottovoce.report.quality import baseline_rows
    from sottovoce.run.baselines import write_baselines
    from sottovoce.run.layout import RunFiles

    with activity("training alone"), ends_when_stopped():
        found = write_baselines(RunFiles(folder), agreed.experiment, tables={name: table}, own=name)
        write_page_of(folder, again=True)
    return baseline_rows(found, scores)


def _resuming_line(agreement: Path, given: Mapping[str, object]) -> str:
    """What is typed to go on with a run, with the options that were given."""
    options = (str(word) for option, value in given.items() if value is not None for word in (option, value))
    return shlex.join(["sotto", "peer", "join", str(agreement), *options, "--resume"])


def _result_table(result: "Document", alone: Mapping[str, str]) -> Table:
    from sottovoce.report.quality import quality_rows
    from sottovoce.report.wording import heard_text, spent_text, sums_text
    from sottovoce.support.text import from_json

    last, headline = result["metrics"], result["headline"]
    found = {
        "run": result["name"],
        "algorithm": f"{result['algorithm']}, {result['rounds']} rounds",
        "model": "that of this member, measured on its own held-out rows",
        **quality_rows(result["held_out"]),
        **alone,
        "epsilon": f"{round_up(from_json(headline['epsilon']))} at delta {result['delta']:g}, {headline['kind']}",
        "sent": f"{last['messages']:,} messages, {size_text(last['bytes'])}",
        "sent since it was last started": f"{size_text(last['wire_bytes'])} with headers and acknowledgements",
        **({"heard": heard_text(result["heard"])} if "heard" in result else {}),
        **sums_text(result),
        **spent_text(result),
        "folder": result["folder"],
        "page": f"{result['folder']}/report.html",
    }
    return facts(found)


def _compare(path: Path, agreement: "Agreement", other: Path) -> None:
    """Refuse two agreements that are not the same, with the first key that differs."""
    from sottovoce.federation.agreement import first_difference, read_agreement

    difference = first_difference(agreement, read_agreement(other))
    if difference is not None:
        raise InputError(
            f"{path} and {other} differ in {difference}", "all members take part in the same agreement",
            "give the right file to whoever has the other one",
        )  # fmt: skip
    print_note(f"{path} and {other} are the same agreement.")


def _checks_table(checks: "Checks") -> Table:
    table = [["neighbour", "reachable", "certificate", "agreement", "version", "clock", "round trip", "what is wrong"]]
    for one in checks.neighbours:
        table.append([
            one.name, "yes" if one.reachable else "no", _verdict(one.right_certificate, "right", "another one"),
            _verdict(one.same_agreement, "same", "another one"), _verdict(one.same_version, "same", str(one.version)),
            "?" if one.clock_difference is None else f"{one.clock_difference:+.1f} s",
            "?" if one.round_trip is None else f"{1000 * one.round_trip:.0f} ms", one.problem or "nothing",
        ])  # fmt: skip
    return table


def _verdict(value: bool | None, fine: str, wrong: str) -> str:
    return "?" if value is None else fine if value else wrong


def _checks_document(agreement: "Agreement", checks: "Checks") -> "dict[str, JSON]":
    neighbours: list[JSON] = [
        {
            **picked(one, "name", "reachable", "right_certificate", "same_agreement", "version", "clock_difference"),
            **picked(one, "round_trip", "problem"), "differing": list(one.differing),
        }
        for one in checks.neighbours
    ]  # fmt: skip
    return {
        "agreement": agreement.hash, "fine": checks.fine, "answered_others": checks.answered, "neighbours": neighbours
    }  # fmt: skip


def require_peers() -> None:
    """Refuse to go on without the packages that members need."""
    from sottovoce.errors import require_extra

    require_extra("peers", "cryptography", "grpc")


def _word(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else "none" if value is None else str(value)


def _members_table(agreement: "Agreement", guarantees: "AgreedGuarantees") -> Table:
    table = [["member", "rows", "noise", "address", "speaks to", "can learn, alone", "fingerprint"]]
    for node, member in enumerate(agreement.members):
        figure = guarantees.members.get(member.name)
        learns = "not computed" if member.name not in guarantees.members else "no figure is proven"
        if figure is not None:
            about = "" if figure.victim is None else f" about {agreement.names[figure.victim]}"
            learns = f"epsilon {round_up(figure.epsilon)}{about}"
        address = member.address if member.listen and member.address else "does not listen"
        others = ", ".join(agreement.neighbours(member.name))
        noise = guarantees.privacy.noise_of(node)
        size = "-" if noise is None else f"{noise:.4g}"
        table.append([member.name, f"{member.rows:,}", size, address, others, learns, member.spoken_fingerprint])
    return table


def _agreement_document(agreement: "Agreement", guarantees: "AgreedGuarantees", out: Path) -> "dict[str, JSON]":
    figures = guarantees.members
    members: list[JSON] = []
    for node, member in enumerate(agreement.members):
        figure = figures.get(member.name)
        members.append({
            **picked(member, "name", "address", "listen", "rows", "fingerprint"),
            "noise": guarantees.privacy.noise_of(node), "neighbours": list(agreement.neighbours(member.name)),
            "can_learn": None if figure is None else figure.document(),
        })  # fmt: skip
    return {
        "file": str(out), **picked(agreement, "name", "hash"),
        **picked(agreement.graph, "edges", "directed"), "secure_sum": agreement.has_secure_sums, "members": members,
        **{
            key: guarantees.document[key]
            for key in ("sigma", "sensitivity", "adjacency", "delta", "headline", "covers")
        },
    }  # fmt: skip


# --- how far members are, and what they have spent --------------------------------------------------------------------


@peer.command()
def status(
    folder: Folder = Path("peer"),
    exit_code: bool = Option(
        False, "--exit-code", help="Exit code 1 if a run needs somebody to look after it: see docs/peers.md."
    ),
    stalled: float = Option(3600.0, min=1, callback=_finite, help="With it, seconds without a step that are too many."),
    as_json: Json = False,
) -> None:
    """Show what this member has done and spent, also while it takes part. Example: sotto peer status --folder peer"""
    require_peers()
    from sottovoce.federation.member_folder import LEDGER, member_status

    found = member_status(folder, stalled)
    answer(_status_document(found), _runs_table(found))
    print_sentences(_now(found))
    print_sentences(found.problems)
    show_lineages(found.lineages, DELTA, folder / LEDGER, after=1)
    if exit_code and found.problems:
        raise Exit(1)


def _runs_table(found: "MemberStatus") -> Table:
    table = [["run", "rounds", "epsilon spent", "planned", "heard last", "missing", "folder"]]
    for run in found.runs:
        figures = [_epsilon(figure) for figure in (run.epsilon_spent, run.epsilon_planned)]
        rounds = f"{run.rounds} of {run.agreement.training.rounds}"
        table.append([run.agreement.name, rounds, *figures, _named(run.heard), _named(run.missing), str(run.folder)])
    return table


def _now(found: "MemberStatus") -> "Iterator[str]":
    """Of each run that has not ended, of which round attendance is, and when that was; and whether a process is at it.

    A member that is gone was heard in the last round that ended: that it is missing shows when the next one does.
    """
    for run in found.runs:
        if run.last_step is not None and not run.finished:
            when = f"{run.last_step:%Y-%m-%d %H:%M:%S} UTC"
            yield f"{run.agreement.name}: heard and missing are about round {run.rounds - 1}, which ended at {when}."
    if any(not run.finished for run in found.runs):
        yield (
            f"A process takes part for {found.member.name}. Its screen and its log show whom it is waiting for."
            if found.running
            else "To go on, use sotto peer join ... --resume."
        )


def _status_document(found: "MemberStatus") -> "dict[str, JSON]":
    from sottovoce.support.text import to_json

    runs: list[JSON] = [
        {
            "name": run.agreement.name, "agreement": run.agreement.hash, "folder": str(run.folder),
            "finished": run.finished, "round": run.rounds, "rounds": run.agreement.training.rounds,
            "epsilon_spent": to_json(run.epsilon_spent), "epsilon_planned": to_json(run.epsilon_planned),
            "heard": list(run.heard), "missing": list(run.missing),
            "last_step": None if run.last_step is None else run.last_step.isoformat(timespec="seconds"),
        }
        for run in found.runs
    ]  # fmt: skip
    lineages: list[JSON] = [lineage_document(lineage, DELTA) for lineage in found.lineages]
    return {
        "member": found.member.name, "running": found.running, "runs": runs, "lineages": lineages,
        "problems": list(found.problems),
    }  # fmt: skip


@peer.command()
def relay(
    agreements: list[Path] = Argument(help="Agreements whose members may use it."),
    listen: str = Option(help="HOST:PORT at which members reach it: the address of those behind it."),
    as_json: Json = False,
) -> None:
    """Forward connections to members that cannot be reached, until it is stopped; it reads nothing that they send.

    Example: sotto peer relay agreement.toml --listen 0.0.0.0:7443
    """
    require_peers()
    import asyncio

    from sottovoce.federation.agreement import read_agreement
    from sottovoce.federation.relay import Relay

    found = Relay.of(read_agreement(path) for path in agreements)
    asyncio.run(found.serve(listen, lambda port: print_note(f"Forwarding at port {port}. Ctrl-C ends it.")))
    document = {"members": len(found.members), "connections": found.connections, "bytes": found.carried}
    answer(document, facts({key: f"{value:,}" for key, value in document.items()}))


@peer.command()
def rehearse(
    agreement: Path = Argument(help="An agreement, or the settings for one."),
    data: Path = Option(help="Folder with a table for each member, named after the member."),
    out: Path = Option(Path("rehearsal"), help="New folder for the members' folders."),
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Run all members on this machine, each in a process of its own, with throw-away keys.

    Example: sotto peer rehearse agreement.toml --data tables
    """
    require_peers()
    from sottovoce.support.text import to_json

    with _shown_progress() as tell:
        from sottovoce.federation.rehearsal import rehearse as rehearse_members

        agreed, found = rehearse_members(agreement, data, out, tell)
    members: list[JSON] = [
        {
            "name": one.name, "rows": one.rows, "round": one.rounds, "metric": one.metric, "value": one.value,
            "epsilon_spent": to_json(one.epsilon), "heard": list(one.heard), "missing": list(one.missing),
        }
        for one in found
    ]  # fmt: skip
    document = {"name": agreed.name, "rounds": agreed.training.rounds, "folder": str(out), "members": members}
    answer(document, _rehearsal_table(agreed, found))
    print_remark(f"Own figures are on each member's held-out rows. Folder: {out}; its keys are removed.")


def _rehearsal_table(agreement: "Agreement", found: "Sequence[MemberProgress]") -> Table:
    metric = next((one.metric for one in found if one.metric is not None), "accuracy")
    table = [["member", "round", f"own {metric}", "epsilon spent", "missing", "heard", "rows"]]
    for one in found:
        value = "" if one.value is None else f"{one.value:.3f}"
        rounds = f"{one.rounds} of {agreement.training.rounds}"
        if one.rounds == 0:
            rounds = "waiting" if one.ready else "preparing"
        epsilon = _epsilon(one.epsilon) if one.rounds else ""
        table.append([one.name, rounds, value, epsilon, _named(one.missing), str(len(one.heard)), f"{one.rows:,}"])
    return table


def _fitting(table: Table, width: int) -> list[str]:
    """The lines of a table for a terminal: of a narrow one, columns from the left that fit, the first two always."""
    for columns in range(len(table[0]), 1, -1):
        lines = aligned([row[:columns] for row in table])
        if max(map(len, lines)) < width:
            break
    return [line[: width - 1] for line in lines]


@contextmanager
def _shown_progress() -> "Iterator[Callable[[Agreement, Sequence[MemberProgress]], None]]":
    """On a terminal, the table as it fills; elsewhere, for lines now and then, how far the slowest member is."""
    if not verbosity.shows_progress:
        with activity("rehearsal") as work:
            yield lambda agreement, found: work.tell(min(one.rounds for one in found), agreement.training.rounds)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    with Live(Text("Members are being started."), console=console, transient=True) as live:

        def tell(agreement: "Agreement", found: "Sequence[MemberProgress]") -> None:
            lines = _fitting(_rehearsal_table(agreement, found), console.width)
            live.update(Text("\n".join([*lines, "Ctrl-C ends them"]), no_wrap=True))

        yield tell


def _epsilon(figure: float | None) -> str:
    return "none is proven" if figure is None else round_up(figure)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
