"""`sotto peer status` and `sotto peer rehearse`: how far members are, and what they have spent."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.ledger import lineage_document, lineage_lines, lineage_table
from sottovoce.cli.options import Json, Yes
from sottovoce.cli.output import Table, aligned, answer, print_note, show, verbosity
from sottovoce.cli.peer import Folder, peer, require_peers
from sottovoce.cli.progress_lines import activity
from sottovoce.cli.terminal import print_line
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.federation.agreement import Agreement
    from sottovoce.federation.member_folder import MemberStatus
    from sottovoce.federation.rehearsal import MemberProgress
    from sottovoce.support.json_numbers import JSON

DELTA = 1e-5
"""At which figures of a lineage without a budget are shown, as sotto ledger does."""


@peer.command()
def status(folder: Folder = Path("peer"), as_json: Json = False) -> None:
    """Show what this member has done and spent, also while it takes part. Example: sotto peer status --folder peer"""
    require_peers()
    from sottovoce.federation.member_folder import LEDGER, member_status

    found = member_status(folder)
    answer(_status_document(found), as_json, _runs_table(found))
    if not as_json:
        for line in _now(found):
            print_line(line)
        for lineage in found.lineages:
            at = DELTA if lineage.budget is None else lineage.budget.delta
            print_line()
            show(lineage_table(lineage, at))
            for line in lineage_lines(lineage, at, folder / LEDGER):
                print_line(line)


def _runs_table(found: "MemberStatus") -> Table:
    table = [["run", "rounds", "epsilon spent", "planned", "heard last", "missing", "folder"]]
    for run in found.runs:
        figures = [_epsilon(figure) for figure in (run.epsilon_spent, run.epsilon_planned)]
        rounds = f"{run.rounds} of {run.agreement.training.rounds}"
        table.append([run.agreement.name, rounds, *figures, _names(run.heard), _names(run.missing), str(run.folder)])
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
            else f"No process takes part for {found.member.name} now. To go on, use sotto peer join ... --resume."
        )


def _status_document(found: "MemberStatus") -> "dict[str, JSON]":
    from sottovoce.support.json_numbers import to_json

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
    return {"member": found.member.name, "running": found.running, "runs": runs, "lineages": lineages}


@peer.command()
def rehearse(
    agreement: Annotated[Path, typer.Argument(help="An agreement, or the settings for one.")],
    data: Annotated[Path, typer.Option(help="Folder with a table for each member, named after the member.")],
    out: Annotated[Path, typer.Option(help="New folder for the members' folders.")] = Path("rehearsal"),
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Run all members on this machine, each in a process of its own, with throw-away keys.

    Example: sotto peer rehearse agreement.toml --data tables
    """
    require_peers()
    from sottovoce.support.json_numbers import to_json

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
    answer(document, as_json, _rehearsal_table(agreed, found))
    if not as_json:
        print_note(f"Own figures are on each member's held-out rows. Folder: {out}; its keys are removed.")


def _rehearsal_table(agreement: "Agreement", found: "Sequence[MemberProgress]") -> Table:
    metric = next((one.metric for one in found if one.metric is not None), "accuracy")
    table = [["member", "round", f"own {metric}", "epsilon spent", "missing", "heard", "rows"]]
    for one in found:
        value = "" if one.value is None else f"{one.value:.3f}"
        rounds = f"{one.rounds} of {agreement.training.rounds}"
        if one.rounds == 0:
            rounds = "waiting" if one.ready else "preparing"
        epsilon = _epsilon(one.epsilon) if one.rounds else ""
        table.append([one.name, rounds, value, epsilon, _names(one.missing), str(len(one.heard)), f"{one.rows:,}"])
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


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
