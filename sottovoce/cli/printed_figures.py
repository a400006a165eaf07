"""How privacy figures are printed: tables of an account, its headline in words, and joint figures of runs.

The rows of an account's own table are made by `privacy.accountant.Account.table`.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sottovoce.cli.output import Table, node_name
from sottovoce.core.final_models import FinalModels
from sottovoce.privacy.rounding import round_up
from sottovoce.privacy.views import LISTED

if TYPE_CHECKING:
    from sottovoce.cli.options import Setting
    from sottovoce.core.noise import PerNode
    from sottovoce.core.participation import Change
    from sottovoce.privacy.accountant import Account
    from sottovoce.privacy.guarantee import Guarantee, PrivacyFigure
    from sottovoce.run.accounts_of_runs import JointAccount, JointFigure


SWEPT = (
    "Absorption policies of convex-training: two to eight sweeps for each victim, valid and a few percent above the "
    "best at most; --optimised searches on."
)
"""For answers whose policies were not searched for to the end."""


NOT_PROVEN = "For a figure, add --kind any-training, or --convex where local steps are convex."
"""What to type where nothing is proven."""


FEW = 12
"""Of so many nodes each is shown."""

ALIKE = 1e-9
"""Figures that differ by less, relatively, differ by rounding."""


def account_words(
    result: "Account", sampled: "PrivacyFigure | None", delta: float, labels: Sequence[str] | None
) -> list[str]:
    """The headline in words, and whom the table is about; it counts on chance where that is better."""
    if sampled is not None:
        from sottovoce.privacy.amplification import better_figure
        from sottovoce.privacy.guarantee import PrivacyFigure

        if better_figure(sampled, PrivacyFigure.of(result.headline, delta)) is sampled:
            return sampled_words(result, sampled, delta)
    return table_words(result) + headline_words(result, delta, labels)


def headline_words(result: "Account", delta: float, labels: Sequence[str] | None) -> list[str]:
    """The headline with all that it rests on."""
    from sottovoce.privacy.covering_views import stand_in_of

    best = result.headline
    if best.proves_nothing:
        return [
            f"Headline: epsilon inf at delta {delta:g} (mu inf) against {best.view}: nothing is proven for what runs.",
            *(f"Does not apply: {refusal}." for refusal in result.refusals),
            NOT_PROVEN,
        ]
    figure = f"epsilon {round_up(best.epsilon(delta))} at delta {delta:g} (mu {round_up(best.mu)})"
    unobserved = sorted({g.victim for g in result.guarantees if g.mu == 0 and g.victim is not None and not g.observed})
    scope = "no observed node is worse off" if unobserved else "nobody is worse off"
    if len({one.victim for one in result.guarantees}) + len(result.view.members) < result.system.n:
        scope = "of the nodes that were asked about, none is worse off"
    if math.isinf(best.mu):
        scope = "part of what this adversary sees holds no noise that it does not know, so nothing protects them"
    if not best.observed:
        scope = "no observed message depends on this data, and final models are not covered"
    lines = [f"Headline: {figure}, {best.kind} ({best.figure}), {_whom(result, labels)}; {scope}."]
    stand_in = stand_in_of(result.view, result.system)
    lines += [] if stand_in is None else [f"{stand_in}."]
    lines.append(f"It holds {result.coverage}.")
    lines.append(f"{best.final_models.sentence}.")
    if math.isinf(best.mu) and best.view.final_models is not FinalModels.NONE:
        lines.append("Noise may cancel in final models; without --and-final-models you see what messages alone tell.")
    if best.observed and unobserved:
        named = ", ".join(node_name(node, labels) for node in unobserved[:LISTED]) + (
            ", ..." * (len(unobserved) > LISTED)
        )
        lines.append(
            f"Nothing is observed of {named}: epsilon 0 there does not cover their models, if they are published."
        )
    lines += [f"It assumes: {assumption}." for assumption in best.assumptions]
    if labels is not None:
        lines.append(
            f"Nodes are numbered as their graph lists them: {node_name(0, labels)}, {node_name(1, labels)}, ..."
        )
    if result.absorption_policy == "swept":
        lines.append(SWEPT)
    return lines + [f"Does not apply: {refusal}." for refusal in result.refusals]


def _whom(result: "Account", labels: Sequence[str] | None) -> str:
    """The victims that the headline is about, and the adversary where it is not the one that was asked for."""
    from sottovoce.privacy.covering_views import hides_in_sums, knows_everything
    from sottovoce.privacy.views import ViewKind

    best, any_of_a_size = result.headline, result.view.kind is ViewKind.ANY_COALITION
    victim = f"for node {node_name(best.victim, labels)}"
    if knows_everything(best.view, result.system) and best.view != result.view:
        return f"{victim} against all nodes together, who know every secret"
    if any_of_a_size:
        members = ", ".join(node_name(member, labels) for member in best.view.members)
        return f"{victim} against the coalition that learns most: {members}"
    if best.view != result.view:
        known = "its own noise" if hides_in_sums(result.system) else "the secrets that it shares"
        return f"{victim} against {best.view}, who knows {known}"
    worst = sum(g.kind == best.kind and math.isclose(g.mu, best.mu, rel_tol=ALIKE) for g in result.guarantees)
    return victim if worst == 1 else f"for each of {worst} nodes"


def table_words(result: "Account") -> list[str]:
    """Whom the table is about and whom the headline is about, where they differ."""
    from sottovoce.privacy.covering_views import hides_in_sums

    if result.headline_of_another is None:
        return []
    outsider, member = "shares no secret", "share secrets with their neighbours"
    if hides_in_sums(result.system):
        outsider, member = "adds no noise", "know the noise that they add"
    return [
        f"The table is about an outsider, who hears every message and {outsider}. Its last row and the headline are "
        f"about members, who {member} and so learn more."
    ]


def join_distances(table: Table) -> Table:
    """A table of guarantees in which distances one after the other that have the same figures are one row.

    >>> head, kind = ["kind", "figure", "distance", "victims", "mu"], ["any-training", "bound"]
    >>> join_distances([head, [*kind, "1", "2", "0.5"], [*kind, "2", "2", "0.1"],
    ...                 [*kind, "3", "2", "0.1"], [*kind, "4", "1", "0.1"]])[2:]
    [['any-training', 'bound', '2 to 4', '5', '0.1']]
    """
    joined: Table = []
    for (*_, counts), group in groupby(table, lambda row: (row[:2], row[4:], row[2].isdigit())):
        rows = list(group)
        first, last = rows[0], rows[-1]
        if counts and 1 < len(rows) == int(last[2]) - int(first[2]) + 1:
            victims = sum(int(row[3]) for row in rows)
            rows = [[*first[:2], f"{first[2]} to {last[2]}", str(victims), *first[4:]]]
        joined += rows
    return joined


def sampled_words(result: "Account", figure: "PrivacyFigure", delta: float) -> list[str]:
    """A headline that counts on chance, with all that it rests on."""
    lines = [
        f"Headline: epsilon {round_up(figure.epsilon)} at delta {delta:g}, {figure.kind}, counting on batches that are "
        "drawn at random; nobody is worse off.",
        f"It holds {result.coverage}.", f"{figure.final_models.sentence}.",
    ]  # fmt: skip
    return lines + [f"It assumes: {assumption}." for assumption in figure.assumptions]


def declared_nodes(setting: "Setting", sigma: "PerNode") -> list[dict[str, Any]] | None:
    """Records, sigma and noise of every node, where their records are given and noise is each node's own."""
    if setting.records is None or setting.declared is None or not setting.spec.independent_noise:
        return None
    sensitivity, found = setting.declared.sensitivity, list[dict[str, Any]]()
    for node, records in enumerate(setting.declared.records):
        own, size = (each[node] if isinstance(each, tuple) else each for each in (sigma, sensitivity))
        found.append({"records": records, "sigma": own, "noise": own * size})
    return found


def node_lines(setting: "Setting", nodes: list[dict[str, Any]] | None) -> list[str]:
    """The same in words, for gradients clipped to norm one."""
    if nodes is None:
        return []
    rows = sorted((one["records"], node, one["noise"]) for node, one in enumerate(nodes))
    shown = sorted(rows, key=itemgetter(1)) if len(rows) <= FEW else sorted({rows[0], rows[-1]})
    return [
        f"Node {setting.name(node)} with {records:,} records adds noise of standard deviation {round_up(noise)}, for "
        "gradients clipped to norm one."
        for records, node, noise in shown
    ]


def changed_data(adjacency: str, change: "Change", verb: str = "") -> str:
    """What a figure is about: which data, and how it changes."""
    how = "replaced" if change == "replace" else "made to count as nothing"
    what = "a node's data" if adjacency == "user" else "one record"
    return f"{what} {verb}{how}"


def joint_data(adjacency: str, change: "Change") -> str:
    """What a joint figure is about, as a sentence."""
    return f"It is about the same data in all runs, of which {changed_data(adjacency, change, 'is ')}."


def published_table(result: "Account") -> Table:
    """One line for each formula of a paper: its range over victims, and for how many it is below the exact loss."""
    from sottovoce.privacy.assumptions import AssumptionKind
    from sottovoce.privacy.guarantee import Kind

    table = [["as published", "victims", "mu min", "max", "below the exact loss"]]
    formulas: dict[str, list[Guarantee]] = {}
    for guarantee in result.guarantees:
        if guarantee.kind is Kind.AS_PUBLISHED:
            formulas.setdefault(guarantee.assumptions[0].sentence, []).append(guarantee)
    for name, found in formulas.items():
        below = sum(one.kind is AssumptionKind.BELOW_EXACT_LOSS for g in found for one in g.assumptions)
        mus = [g.mu for g in found]
        verdict = f"for {below}: not a bound" if below else "no"
        table.append([name, str(len(found)), round_up(min(mus)), round_up(max(mus)), verdict])
    return table


def joint_table(figures: "Sequence[JointFigure]", delta: float) -> Table:
    """What each adversary learns from several runs together."""
    table = [["view", "runs", "mu", f"epsilon at delta {delta:g}", "how"]]
    for one in figures:
        joint = one.joint
        mu = "-" if joint.mu is None else round_up(joint.mu)
        table.append([str(one.view), str(len(joint.losses)), mu, round_up(joint.epsilon(delta)), joint.rule.value])
    return table


def joint_words(found: "JointAccount", first: "JointFigure") -> list[str]:
    """What the first of the joint figures is about, and what it rests on."""
    lines = [joint_data(found.adjacency, first.joint.change), f"{first.final_models.sentence}."]
    if found.covers.colluders is not None and first is found.figures[0]:
        lines.append(f"It holds {found.covers}.")
    lines += [f"It assumes: {assumption}." for assumption in first.assumptions]
    return lines if found.note is None else [*lines, found.note]
