"""`sotto account --rounds 10,20,50`: how what a view learns grows with the length of training."""

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.cli.options import Setting, settings_document
from sottovoce.cli.output import Table, answer, print_remark
from sottovoce.cli.progress import activity
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.privacy.accountant import Account
    from sottovoce.privacy.guarantee import Kind
    from sottovoce.report.figures import Line

HEADLINE = "headline: what is proven for what runs"


def answer_over_rounds(
    setting: Setting, sigma: float, kinds: "tuple[Kind, ...]", lipschitz: float | None, figures: Path | None
) -> None:
    """Account for each number of rounds by itself: a correlation that is fitted to it differs."""
    from sottovoce.privacy.accountant import account

    found, each = list["Account"](), [dataclasses.replace(setting, rounds=str(one)) for one in setting.every_length]
    with activity(f"accounting for {setting.view}") as work:
        for number, one in enumerate(each, 1):
            found.append(account(one.system(sigma), one.adversary, **one.terms(kinds=kinds, lipschitz=lipschitz)))
            work.tell(number, len(each))
    lines, files = over_rounds(found, setting.delta), list[Path]()
    if figures is not None:
        from sottovoce.report.figure_files import Format, write_figures
        from sottovoce.report.figures import panels

        title = f"What {setting.view} learns: mean epsilon over nodes, least to largest"
        drawn = panels("over-rounds", title, lines, x="rounds", y="epsilon")
        files = write_figures(figures, drawn, (Format.SVG, Format.PDF))
    table: Table = [["rounds", "kind", "epsilon min", "mean", "max"]]
    table += [
        [f"{rounds:g}", line.name, round_up(least), round_up(mean), round_up(most)]
        for line in lines
        for rounds, mean, (least, most) in zip(line.x, line.y, line.band, strict=True)
    ]
    documents = [one.document(setting.delta) for one in found]
    answer({**settings_document(each[-1], sigma), "accounts": documents, "files": list(map(str, files))}, table)
    for file in files:
        print_remark(str(file))


def over_rounds(accounts: "list[Account]", delta: float) -> "list[Line]":
    """Lines of the headline, and of each kind and formula: the mean epsilon over victims, the least and the most."""
    from sottovoce.privacy.guarantee import Kind
    from sottovoce.report.figures import Line

    found: dict[str, dict[int, list[float]]] = {}
    for one in accounts:
        found.setdefault(HEADLINE, {})[one.system.rounds] = [one.epsilon(delta)]
        for guarantee in one.guarantees:
            printed = guarantee.kind is Kind.AS_PUBLISHED
            name = guarantee.assumptions[0].sentence if printed else guarantee.kind.value
            found.setdefault(name, {}).setdefault(one.system.rounds, []).append(guarantee.epsilon(delta))
    return [
        Line(
            name, list(at), [math.fsum(epsilons) / len(epsilons) for epsilons in at.values()],
            ends=[(min(epsilons), max(epsilons)) for epsilons in at.values()],
        )
        for name, at in found.items()
    ]  # fmt: skip
