"""`sotto ledger`: what runs on the same data promised and spent, and what is left of the budget."""

from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from sottovoce._version import __version__
from sottovoce.cli.app import app
from sottovoce.cli.options import Delta, Json, check_one_form
from sottovoce.cli.output import Table, answer, print_line, print_note, print_sentence, print_sentences, show
from sottovoce.cli.printed_figures import joint_data
from sottovoce.privacy.rounding import round_down, round_up
from sottovoce.support.text import table_text

if TYPE_CHECKING:
    from sottovoce.ledger.lineages import Lineage, RunSpending
    from sottovoce.ledger.spending import Spending
    from sottovoce.support.text import JSON

COLUMNS = ("lineage", "run", "round", "rounds", "epsilon_spent", "epsilon_planned", "epsilon_of_lineage", "delta")


@app.command("ledger")
def ledger_(
    file: Path = Argument(help="The ledger file, as in sotto run --ledger."),
    budget: float | None = Option(None, help="Set the budget: an epsilon at --delta."),
    delta: Delta = 1e-5,
    lineage: str | None = Option(
        None, help="Show only this lineage; with --budget, set its budget instead of that of the first."
    ),
    new_lineage: str | None = Option(None, help="Declare a lineage: data about people who are in no other lineage."),
    as_csv: bool = Option(
        False, "--csv", help="Print the history of spending, one line for each time, instead of the table."
    ),
    as_json: Json = False,
) -> None:
    """Show what was promised, spent and is left, by lineage of data. Example: sotto ledger my.ledger --budget 4"""
    from sottovoce.ledger.database import open_ledger
    from sottovoce.ledger.spending import Spending

    check_one_form(as_csv)
    if budget is not None or new_lineage is not None:
        _write(file, budget, delta, lineage, new_lineage)
    with open_ledger(file, read_only=True) as database:
        database.verify()
        spending = Spending(database)
        shown = spending.lineages() if lineage is None else [spending.lineage(lineage)]
        if as_csv:
            print_line(_csv(spending, {one.name for one in shown}, delta).rstrip("\n"))
        else:
            documents = [lineage_document(one, delta) for one in shown]
            answer({"version": __version__, "ledger": str(file), "lineages": documents}, [])
            show_lineages(shown, delta, file)


def _write(file: Path, budget: float | None, delta: float, lineage: str | None, new_lineage: str | None) -> None:
    """Declare a lineage, or set a budget; a ledger that is not there yet is made."""
    from sottovoce.ledger.database import open_ledger
    from sottovoce.ledger.lineages import Budget
    from sottovoce.ledger.spending import DEFAULT, Spending, require_lineage

    if not file.exists():
        require_lineage(file, lineage or DEFAULT, [DEFAULT, *([new_lineage] if new_lineage else [])])
    wanted = None if budget is None else Budget(budget, delta)
    with open_ledger(file) as database:
        spending = Spending(database)
        if new_lineage is not None:
            spending.add_lineage(new_lineage)
        if wanted is not None:
            before = spending.lineage(lineage or DEFAULT).budget
            spending.set_budget(wanted, lineage or DEFAULT)
            if before not in (None, wanted):
                print_note(f"The budget of lineage {lineage or DEFAULT} was {before}, and is {wanted} now.")


def show_lineages(lineages: "Sequence[Lineage]", delta: float, file: Path, *, after: int = 0) -> None:
    """A table for each, with what is left of its budget; a line between two of them, and `after` other tables."""
    for number, one in enumerate(lineages, after):
        if number:
            print_sentence()
        at = delta if one.budget is None else one.budget.delta
        show(_table(one, at))
        print_sentences(_words(one, at, file))


def lineage_document(lineage: "Lineage", delta: float) -> "dict[str, JSON]":
    """A lineage as JSON; figures are at the delta of its budget, or at the one that was asked for."""
    from sottovoce.support.text import to_json

    budget = lineage.budget
    at = delta if budget is None else budget.delta
    return {
        "lineage": lineage.name, "delta": at, "adjacency": lineage.adjacency.value,
        "change": lineage.counted.change.value, "rule": lineage.counted.rule.value,
        "budget": None if budget is None else budget.epsilon,
        "spent": to_json(lineage.spent.epsilon(at)), "counted": to_json(lineage.counted.epsilon(at)),
        "left": lineage.epsilon_left(), "mu_left": lineage.mu_left(), "fits": lineage.epsilon_fits(),
        "covers": lineage.covers.document(), "runs": [_run_document(run, at) for run in lineage.runs],
    }  # fmt: skip


def _run_document(run: "RunSpending", delta: float) -> "dict[str, JSON]":
    from sottovoce.privacy.composition import compose, loss_document
    from sottovoce.support.text import to_json

    planned = run.planned
    return {
        "run": planned.name, "id": planned.run, "state": run.state, "adjacency": planned.adjacency.value,
        "rounds": planned.rounds, "recorded": run.round, "loss": loss_document(planned.loss),
        "promised": to_json(compose([planned.loss]).epsilon(delta)),
        "spent": to_json(compose([run.spent]).epsilon(delta)), "gives_back": planned.refundable,
    }  # fmt: skip


def _table(lineage: "Lineage", delta: float) -> Table:
    """The runs on a lineage, and their total."""
    from sottovoce.privacy.composition import compose

    table = [["run", "state", "epsilon promised", "spent", "up to round", "counted"]]
    for run in lineage.runs:
        losses = (run.planned.loss, run.spent, run.counted)
        promised, spent, counted = (round_up(compose([loss]).epsilon(delta)) for loss in losses)
        covered = f"{run.round} of {run.planned.rounds}"
        table.append([run.planned.name, run.state, promised, spent, covered, counted])
    spent, counted = (round_up(total.epsilon(delta)) for total in (lineage.spent, lineage.counted))
    return [*table, [f"lineage {lineage.name}", "", "", spent, "", counted]]


def _words(lineage: "Lineage", delta: float, file: Path) -> list[str]:
    """The budget, what is left of it, and how the total was found."""
    lines = []
    if lineage.budget is None:
        lines.append(f"No budget is set. To set one: sotto ledger {file} --budget 10 --delta 1e-5")
    else:
        fits, passed = lineage.epsilon_fits(), lineage.counted.epsilon(delta) - lineage.budget.epsilon
        left = f"a further run of epsilon up to {round_down(fits)} fits" if fits else "no further run fits"
        lines.append(f"Budget: {lineage.budget}; {f'passed by {round_up(passed)}' if passed > 0 else left}.")
        if fits and lineage.counted.mu is None:
            lines.append("That is a run whose batches are not sampled; of others sotto run --ledger says.")
    if len(lineage.runs) > 1:
        lines.append(f"Of several runs, {lineage.counted.rule}; the total is not the sum of their epsilons.")
        lines.append(joint_data(lineage.adjacency, lineage.counted.change))
    if lineage.covers.colluders is not None:
        lines.append(f"Totals hold {lineage.covers}.")
    if any(run.state == "stopped" and not run.planned.refundable for run in lineage.runs):
        lines.append(
            "A stopped run with sampled batches, or with a figure about single nodes, counts in full: "
            "nothing is proven to be given back."
        )
    return lines


def _csv(spending: "Spending", shown: Set[str], delta: float) -> str:
    """Each time that a run on the lineages that are shown spent more: what it and its lineage had spent by then."""
    from sottovoce.privacy.composition import compose

    rows: list[tuple[object, ...]] = [COLUMNS]
    for lineage, run in ((one, run) for one, run in spending.history() if one.name in shown):
        at = delta if lineage.budget is None else lineage.budget.delta
        spent, planned = (compose([loss]).epsilon(at) for loss in (run.spent, run.planned.loss))
        facts = (lineage.name, run.planned.name, run.round, run.planned.rounds)
        rows.append((*facts, spent, planned, lineage.spent.epsilon(at), at))
    return table_text(rows)
