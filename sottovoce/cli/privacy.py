"""`sotto account` and `sotto calibrate`."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.account_words import headline_words, join_distances, table_words
from sottovoce.cli.all_pairs import answer_for_pairs
from sottovoce.cli.app import app
from sottovoce.cli.joint_account import answer_for_runs
from sottovoce.cli.options import Code, Json, Setting, Yes, offering, settings_document, with_setting
from sottovoce.cli.output import (
    Table,
    answer,
    facts,
    print_sentence,
    show,
    show_elapsed,
    telling_when_stopped,
    verbosity,
)
from sottovoce.cli.progress_lines import Activity
from sottovoce.cli.sampling import (
    calibrated_by_chance,
    counts_on_chance,
    declared_nodes,
    node_lines,
    sampled_figure_of,
    sampled_words,
)
from sottovoce.errors import InputError
from sottovoce.privacy.rounding import round_up, sigma_text

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm
    from sottovoce.privacy.accountant import Account
    from sottovoce.privacy.guarantee import Guarantee, Kind

NOT_PROVEN = (
    "for what runs nothing is proven by these kinds, so epsilon is infinite; add --kind any-training, or --convex "
    "where local steps are convex"
)
"""Where only kinds were asked for that rest on more than what is known."""

OTHER_FORMATS = (".csv", ".tsv", ".npz", ".npy", ".parquet", ".xlsx")
"""Names of files that promise another format than that of stored pairs."""


def _kinds() -> Iterable[str]:
    from sottovoce.privacy.guarantee import Kind

    return Kind


Kinds = Annotated[
    list[str] | None,
    typer.Option(help="Only this kind of guarantee; may be repeated.", autocompletion=offering(_kinds)),
]


@app.command("account")
@with_setting
def account_(
    setting: Setting,
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of runs, to account for together.")] = None,
    sigma: Annotated[float, typer.Option(help="Standard deviation of the noise divided by the sensitivity.")] = 1.0,
    kind: Kinds = None,
    optimised: Annotated[
        bool, typer.Option("--optimised", help="convex-training: find the tightest policy, however long it takes.")
    ] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Also show the papers' formulas, for comparison.")
    ] = False,
    lipschitz: Annotated[float | None, typer.Option(help="zip-dl: L of its Assumption 5.6, for --published.")] = None,
    all_pairs: Annotated[
        bool, typer.Option("--all-pairs", help="Take every node as the attacker, and draw a heat map.")
    ] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, help="--all-pairs: only this many attackers, drawn at random with --seed.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="--all-pairs: file to store figures in and to resume from.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="With RUN and --view: folder of the files that the run names.")
    ] = None,
    code: Code = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Show what a view can learn about every node. Example: sotto account --graph ring:30 --rounds 40 --view node:0"""
    from sottovoce.privacy.accountant import account
    from sottovoce.privacy.guarantee import Kind

    if runs:
        _only_of_graphs({
            "--sigma": sigma != 1.0, "--kind": bool(kind), "--optimised": optimised, "--published": published,
            "--lipschitz": lipschitz is not None, "--all-pairs": all_pairs, "--sample": sample is not None,
            "--out": out is not None,
        })  # fmt: skip
        _check_folders(runs)
        answer_for_runs(runs, setting, data, as_json)
        return
    if data is not None:
        raise InputError(
            "--data without a run", "--data is the folder of the files that a run names", "name the folder of a run"
        )
    if code is not None:
        raise InputError(
            "--code without a run", "--algorithm FILE.py:NAME is looked for in the current folder", "leave it out"
        )
    kinds = _asked_kinds(kind, published)
    published = Kind.AS_PUBLISHED in kinds
    _fits_together(setting, all_pairs, {"--published": published, "--kind": bool(kind), "--optimised": optimised})
    _only_of_pairs(all_pairs, sample, out)
    _check_lipschitz(lipschitz, published)
    with show_elapsed(f"tracing {setting.algorithm} on {setting.graph}"):
        system = setting.system(sigma)
    if all_pairs:
        answer_for_pairs(setting, system, sigma, sample, out, as_json)
        return
    with show_elapsed(f"accounting for {setting.view}") as work, telling_when_stopped(lambda: _done_of(work)):
        result = account(
            system,
            setting.adversary,
            adjacency=setting.adjacency,
            participation=setting.scheme,
            convex=setting.convex,
            kinds=kinds,
            lipschitz=lipschitz,
            victims=setting.victims,
            optimised=optimised,
        )
        sampled, unsampled = sampled_figure_of(setting, system)
    nodes, chance = declared_nodes(setting, sigma), counts_on_chance(sampled, result.headline, setting.delta)
    document: dict[str, object] = {}
    tables: list[Table] = []
    lines: list[str] = []
    with show_elapsed(f"epsilon of {len(result.guarantees):,} guarantees and the headline"):
        if as_json:
            document = {
                **settings_document(setting, sigma), **result.document(setting.delta), "nodes": nodes,
                "sampled": None if sampled is None else sampled.document(),
            }  # fmt: skip
        else:
            tables = [result.table(setting.delta), *([_as_published(result)] if published else [])]
            if chance and sampled is not None:
                lines = sampled_words(result, sampled, setting.delta)
            else:
                lines = table_words(result) + headline_words(result, result.headline, setting.delta, setting.labels)
    if as_json:
        answer(document, True, [])
    else:
        _show_tables(tables)
    if not as_json:
        lines += [f"Sampling is not counted: {reason}." for reason in unsampled]
        for line in [*lines, *node_lines(setting, nodes)]:
            print_sentence(line)


def _show_tables(tables: list[Table]) -> None:
    """Those that have rows, one below the other."""
    for number, table in enumerate(one for one in tables if len(one) > 1):
        if number:
            print_sentence()
        show(table if verbosity.csv else join_distances(table))


def _asked_kinds(named: list[str] | None, published: bool) -> "tuple[Kind, ...]":
    from sottovoce.privacy.guarantee import KINDS, Kind, parse_kind

    asked = KINDS if not named else tuple(dict.fromkeys(parse_kind(kind) for kind in named))
    return tuple(kind for kind in Kind if kind in asked or (published and kind is Kind.AS_PUBLISHED))


def _proven_kinds(algorithm: "Algorithm", setting: Setting, named: list[str] | None) -> "tuple[Kind, ...]":
    """Those of the kinds that are asked for that can be a headline; refused where none of them can."""
    from sottovoce.privacy.accountant import headline_kinds

    asked, proven = _asked_kinds(named, False), headline_kinds(algorithm, convex=setting.convex)
    if not set(asked) & set(proven):
        raise InputError(
            " ".join(f"--kind {kind}" for kind in asked),
            f"a target is met by a figure that is proven for what runs: {', '.join(proven)}",
            "take one of these, or add --convex where local steps are convex",
        )
    return tuple(kind for kind in proven if kind in asked)


def _done_of(work: Activity) -> str:
    """Which kinds are done, how far the one at hand is, and how to have the answer of those."""
    finished = [kind for kind in _kinds() if kind in work.finished]
    at = ""
    if work.unfinished is not None:
        kind, how_far = work.unfinished
        at = f"; {kind} {how_far} of its work" if how_far.endswith("%") else f"; {kind} {how_far} victims"
    again = " ".join(f"--kind {kind}" for kind in finished)
    done = ", ".join(finished) or "no kind"
    return f"done when stopped: {done}{at}. Nothing is kept{again and f'; {again} answers with that'}."


def _check_lipschitz(lipschitz: float | None, published: bool) -> None:
    if lipschitz is not None and not published:
        raise InputError("--lipschitz without --published", "only the papers' formulas use it", "add --published")
    if lipschitz is not None and not 0 <= lipschitz < math.inf:
        raise InputError(f"--lipschitz {lipschitz}", "it must be finite and not negative", "give 1.0, for example")


def _fits_together(setting: Setting, all_pairs: bool, not_of_pairs: dict[str, bool]) -> None:
    if all_pairs:
        given = {**not_of_pairs, "--convex": setting.convex, "--victim": bool(setting.victim)}
        given["--within"] = setting.within is not None
        given["--view"] = setting.view != "everyone"
        given["--and-final-models"] = setting.and_final_models != "none"
        given["--records"] = setting.records is not None
        for option, there in given.items():
            if there:
                raise InputError(
                    f"{option} with --all-pairs", "--all-pairs is about every node, by fixed streams", "drop one"
                )


def _check_folders(runs: list[Path]) -> None:
    """Refuse a graph that stands where the folder of a run is expected."""
    from sottovoce.core.graphs import kinds

    graph = next((str(one) for one in runs if not one.exists() and str(one).partition(":")[0] in kinds()), None)
    if graph is not None:
        raise InputError(f"{graph}: no run", "graphs are named by an option", f"write --graph {graph}")


def _only_of_graphs(given: Mapping[str, bool]) -> None:
    """Refuse options that figures of runs would not follow."""
    for option in (name for name, there in given.items() if there):
        raise InputError(f"{option} with runs", "runs have settings of their own", "keep --view and --delta")


def _only_of_pairs(all_pairs: bool, sample: int | None, out: Path | None) -> None:
    if out is not None and not all_pairs:
        raise InputError(
            "--out without --all-pairs", "only the figures of all pairs are stored", "add --all-pairs, or use --json"
        )
    if out is not None and out.suffix.lower() in OTHER_FORMATS:
        raise InputError(
            f"--out {out}",
            "figures are stored as lines of JSON",
            f"write --out {out.with_suffix('.jsonl')}, for example",
        )
    if sample is not None and not all_pairs:
        raise InputError("--sample without --all-pairs", "it samples the attackers of --all-pairs", "add --all-pairs")


def _as_published(result: "Account") -> Table:
    """One line a formula: its range over victims, and for how many it is below the exact loss."""
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


@app.command("calibrate")
@with_setting
def calibrate_(
    setting: Setting,
    epsilon: Annotated[float, typer.Option(help="Target epsilon of the headline.")],
    kind: Kinds = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Find the sigma for a target epsilon. Example: sotto calibrate --graph ring:30 --rounds 40 --epsilon 1"""
    from sottovoce.privacy.calibration import Target, calibrated_system

    with show_elapsed(f"reading {setting.graph}"):
        net = setting.chosen[1]
    with (
        show_elapsed(f"calibrating {setting.algorithm} on {net.name}") as work,
        telling_when_stopped(lambda: _done_of(work)),
    ):
        reference, target = setting.system(1.0), Target(epsilon, setting.delta)
        kinds = _proven_kinds(reference.algorithm, setting, kind)
        found = calibrated_system(
            reference, setting.adversary, target, adjacency=setting.adjacency, participation=setting.scheme,
            convex=setting.convex, victims=setting.victims, kinds=kinds,
        )  # fmt: skip
        chance = calibrated_by_chance(setting, reference, target, found.sigma)
    sigma = found.sigma if chance is None else chance.sigma
    nodes = declared_nodes(setting, sigma)
    document = {
        **settings_document(setting, sigma), "algorithm": setting.algorithm, "graph": net.name,
        "view": str(setting.adversary), "final_models": setting.and_final_models,
        "secure_sum": setting.secure_sum or found.account.system.algorithm.secure_sum,
        "rounds": setting.rounds, "epsilon": epsilon, "delta": setting.delta,
        "headline": found.account.headline.document(setting.delta),
        "covers": found.account.coverage.document(),
        "nodes": nodes, "sampled": None if chance is None else chance.figure.document(),
    }  # fmt: skip
    settings = ("algorithm", "graph", "view", "secure_sum", "convex", "adjacency", "participation", "rounds", "epsilon")
    table = [*facts({key: document[key] for key in (*settings, "delta")}), ["sigma", sigma_text(sigma)]]
    best = found.account.headline
    lines = [] if best is None else headline_words(found.account, best, setting.delta, setting.labels)
    if chance is not None:
        lines = sampled_words(found.account, chance.figure, setting.delta)
    answer(document, as_json, table, *lines, *node_lines(setting, nodes))
