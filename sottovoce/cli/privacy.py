"""`sotto account`, `sotto calibrate` and `sotto noise`."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.all_pairs import answer_for_pairs
from sottovoce.cli.app import app
from sottovoce.cli.joint_account import answer_for_runs
from sottovoce.cli.options import (
    GraphSpec,
    Json,
    Part,
    Setting,
    Weights,
    Yes,
    offering,
    settings_document,
    with_setting,
)
from sottovoce.cli.output import Table, answer, facts, gap_shown, print_note, short, show_elapsed
from sottovoce.cli.progress_lines import Activity
from sottovoce.cli.terminal import print_line
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.rounding import round_up
from sottovoce.privacy.views import LISTED

if TYPE_CHECKING:
    from sottovoce.privacy.accountant import Account
    from sottovoce.privacy.guarantee import Guarantee, Kind
    from sottovoce.tracing.linear_system import LinearSystem

POLICY_SENTENCES = {
    "optimised": "Absorption policies of convex-training: optimised for each victim.",
    "swept": "Absorption policies of convex-training: two sweeps for each victim, valid and a few percent above the "
    "best at most; --optimised searches on.",
}
"""Which policy a figure for convex-training used."""

NOT_PROVEN = "nothing here is proven for what runs; add --kind any-training, or --convex where local steps are convex"
"""Where only kinds were asked for that rest on more than what is known."""


def _kinds() -> Iterable[str]:
    from sottovoce.privacy.guarantee import Kind

    return Kind


@app.command("account")
@with_setting
def account_(
    setting: Setting,
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of runs: what they tell together.")] = None,
    sigma: Annotated[float, typer.Option(help="Standard deviation of the noise over sensitivity.")] = 1.0,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind of guarantee; may be given more than once.", autocompletion=offering(_kinds)),
    ] = None,
    optimised: Annotated[
        bool, typer.Option("--optimised", help="convex-training: the tightest policy, however long it takes.")
    ] = False,
    published: Annotated[bool, typer.Option("--published", help="Also the papers' formulas, for comparison.")] = False,
    lipschitz: Annotated[float | None, typer.Option(help="zip-dl: L of its Assumption 5.6, for --published.")] = None,
    all_pairs: Annotated[bool, typer.Option("--all-pairs", help="Every node as attacker; draws a heat map.")] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, help="--all-pairs: so many attackers, drawn at random with --seed.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="--all-pairs: keep figures here, and resume from here.")] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """What a view can learn about every node. Example: sotto account --graph ring:30 --rounds 40 --view node:0"""
    from sottovoce.privacy.accountant import account

    if runs:
        answer_for_runs(runs, setting, as_json)
        return
    kinds = _asked_kinds(kind, published)
    _fits_together(setting, all_pairs, {"--published": published, "--kind": bool(kind), "--optimised": optimised})
    _only_of_pairs(all_pairs, sample, out)
    _check_lipschitz(lipschitz, published)
    with show_elapsed(f"tracing {setting.algorithm} on {setting.graph}"):
        system = setting.system(sigma)
    if all_pairs:
        answer_for_pairs(setting, system, sigma, sample, out, as_json)
        return
    _announce(setting, system, kinds, optimised)
    with show_elapsed(f"accounting for {setting.view}") as work, _telling_when_stopped(work):
        result = account(
            system,
            setting.adversary,
            adjacency=setting.adjacency,
            participation=setting.participation,
            convex=setting.convex,
            kinds=kinds,
            lipschitz=lipschitz,
            victims=setting.victims,
            optimised=optimised,
        )
    document = {**settings_document(setting, sigma), **result.document(setting.delta)}
    answer(document, as_json, _by_distance(result, setting.delta))
    if published and not as_json:
        print_line()
        answer({}, False, _as_published(result))
    if result.headline is None and (result.refusals or not result.guarantees):
        raise Unaccountable("; ".join(result.refusals))
    if result.headline is None and not as_json:
        print_line(f"No headline: {NOT_PROVEN}.")
    elif result.headline is not None and not as_json:
        for line in _in_words(setting, result, result.headline):
            print_line(line)


def _asked_kinds(named: list[str] | None, published: bool) -> "tuple[Kind, ...]":
    from sottovoce.privacy.guarantee import KINDS, Kind, parse_kind

    asked = KINDS if not named else tuple(dict.fromkeys(parse_kind(kind) for kind in named))
    return tuple(kind for kind in Kind if kind in asked or (published and kind is Kind.AS_PUBLISHED))


def _announce(setting: Setting, system: "LinearSystem", kinds: "tuple[Kind, ...]", optimised: bool) -> None:
    """Say before work of minutes how long it takes, and what would be quick."""
    from sottovoce.core.adjacency import parse_adjacency
    from sottovoce.core.limits import check_cost
    from sottovoce.core.participation import parse_participation
    from sottovoce.privacy.account_estimate import estimate_account
    from sottovoce.privacy.terms import Terms

    terms = Terms(parse_adjacency(setting.adjacency), parse_participation(setting.participation), optimised=optimised)
    estimate = estimate_account(system, setting.adversary, kinds, terms, setting.victims)
    check_cost(estimate.what, estimate.whole, estimate.smaller)
    if estimate.notice:
        print_note(f"sotto: {estimate.notice}")


@contextmanager
def _telling_when_stopped(work: Activity) -> Iterator[None]:
    """On Ctrl-C say which kinds were done, how far the one at hand was, and how to have the answer of those."""
    try:
        yield
    except KeyboardInterrupt:
        done = ", ".join(work.finished) or "no kind"
        at = f"; {work.reached.removesuffix(', ')} victims" if work.part not in work.finished and work.part else ""
        again = " ".join(f"--kind {kind}" for kind in work.finished)
        print_note(f"sotto: done when stopped: {done}{at}. Nothing is kept{again and f'; {again} answers with that'}.")
        raise


def _check_lipschitz(lipschitz: float | None, published: bool) -> None:
    if lipschitz is not None and not published:
        raise InputError("--lipschitz without --published", "only papers' formulas use it", "add --published")
    if lipschitz is not None and not 0 <= lipschitz < math.inf:
        raise InputError(f"--lipschitz {lipschitz}", "it is finite and not negative", "give 1.0, say")


def _fits_together(setting: Setting, all_pairs: bool, not_of_pairs: dict[str, bool]) -> None:
    if all_pairs:
        given = {**not_of_pairs, "--convex": setting.convex, "--victim": bool(setting.victim)}
        given["--view"] = setting.view != "everyone"
        given["--and-final-models"] = setting.and_final_models != "none"
        for option, there in given.items():
            if there:
                raise InputError(f"{option} with --all-pairs", "that is about every node, fixed streams", "drop one")


def _only_of_pairs(all_pairs: bool, sample: int | None, out: Path | None) -> None:
    if out is not None and not all_pairs:
        raise InputError("--out without --all-pairs", "only all pairs are kept", "add --all-pairs, or use --json")
    if sample is not None and not all_pairs:
        raise InputError("--sample without --all-pairs", "attackers of all pairs are sampled", "add --all-pairs")


def _in_words(setting: Setting, result: "Account", best: "Guarantee") -> list[str]:
    """The headline with all that it rests on."""
    figure = f"epsilon {round_up(best.epsilon(setting.delta))} at delta {setting.delta:g} (mu {round_up(best.mu)})"
    unobserved = sorted({g.victim for g in result.guarantees if g.victim is not None and not g.observed})
    scope = "no observed node is worse off" if unobserved else "nobody is worse off"
    if len({one.victim for one in result.guarantees}) + len(result.view.members) < result.system.n:
        scope = "of the nodes that were asked about, none is worse off"
    if not best.observed:
        scope = "no observed message depends on this data, and final models are not covered"
    lines = [f"Headline: {figure}, {best.kind}, {_whom(setting, result, best)}; {scope}."]
    lines.append(f"It holds {result.coverage}.")
    lines.append(f"{best.final_models.sentence}.")
    if best.observed and unobserved:
        named = ", ".join(setting.name(node) for node in unobserved[:LISTED]) + (", ..." * (len(unobserved) > LISTED))
        lines.append(
            f"Nothing is observed of {named}: epsilon 0 there does not cover their models, if they are published."
        )
    lines += [f"It assumes: {assumption}." for assumption in best.assumptions]
    if setting.labels is not None:
        lines.append(f"Nodes are numbered in the order of their names: {setting.name(0)}, {setting.name(1)}, ...")
    if result.absorption_policy is not None:
        lines.append(POLICY_SENTENCES[result.absorption_policy.value])
    return lines + [f"Not offered: {refusal}." for refusal in result.refusals]


def _whom(setting: Setting, result: "Account", best: "Guarantee") -> str:
    """The victims that the headline is about, and the adversary where it is not the one that was asked for."""
    from sottovoce.privacy.views import ViewKind

    if result.view.kind is ViewKind.ANY_COALITION:
        members = ", ".join(setting.name(member) for member in best.view.members) or str(best.view)
        return f"for node {setting.name(best.victim)} against the coalition that learns most: {members}"
    if best.view != result.view:
        return f"for node {setting.name(best.victim)} against {best.view}, who knows shared secrets"
    worst = sum(g.kind == best.kind and g.mu == best.mu for g in result.guarantees)
    return f"for node {setting.name(best.victim)}" if worst == 1 else f"for each of {worst} nodes"


def _by_distance(result: "Account", delta: float) -> Table:
    """Epsilon by kind and by distance from the view: least, mean and largest over victims."""
    from sottovoce.privacy.guarantee import Kind

    table = [["kind", "distance", "victims", "mu min", "mean", "max", "epsilon min", "mean", "max"]]
    groups: dict[tuple[str, int | None], list[Guarantee]] = {}
    for guarantee in result.guarantees:
        if guarantee.kind is not Kind.AS_PUBLISHED:
            groups.setdefault((guarantee.kind, guarantee.distance), []).append(guarantee)
    for (kind, distance), found in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        columns = []
        for values in ([g.mu for g in found], [g.epsilon(delta) for g in found]):
            columns += [round_up(x) for x in (min(values), sum(values) / len(values), max(values))]
        far = ("out of reach" if found[0].view.members else "-") if distance is None else str(distance)
        table.append([kind, far, str(len(found)), *columns])
    return table


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
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """The sigma for a target epsilon. Example: sotto calibrate --graph ring:30 --rounds 40 --epsilon 1"""
    from sottovoce.privacy.calibration import calibrated

    build, net = setting.chosen
    with show_elapsed(f"calibrating {setting.algorithm} on {net.name}"):
        found = calibrated(
            build(1.0), net, setting.adversary, rounds=setting.rounds, epsilon=epsilon, delta=setting.delta,
            adjacency=setting.adjacency, participation=setting.participation, convex=setting.convex,
            victims=setting.victims,
        )  # fmt: skip
    document = {
        **settings_document(setting, found.sigma), "algorithm": setting.algorithm, "graph": net.name,
        "view": str(setting.adversary), "final_models": setting.and_final_models, "secure_sum": setting.secure_sum,
        "rounds": setting.rounds, "epsilon": epsilon, "delta": setting.delta,
        "headline": None if found.account.headline is None else found.account.headline.document(setting.delta),
        "covers": None if found.account.headline is None else found.account.coverage.document(),
    }  # fmt: skip
    settings = ("algorithm", "graph", "view", "secure_sum", "convex", "adjacency", "participation", "rounds", "epsilon")
    table = [*facts({key: document[key] for key in (*settings, "delta")}), ["sigma", round_up(found.sigma, 6)]]
    best = found.account.headline
    answer(document, as_json, table, *(() if best is None else _in_words(setting, found.account, best)))


@app.command("noise")
def noise_(
    graph: GraphSpec,
    participation: Part = "every",
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds; K times B of the participation if left out.")
    ] = None,
    weights: Weights = "metropolis",
    objective: Annotated[str, typer.Option(help="Error of: all models, the last ones, the network average.")] = "all",
    structure: Annotated[str, typer.Option(help="dense, banded or toeplitz.")] = "dense",
    bands: Annotated[int | None, typer.Option(min=1, help="banded, toeplitz: how many; B if left out.")] = None,
    restart: Annotated[int | None, typer.Option(min=1, help="Fresh noise every so many rounds.")] = None,
    view: Annotated[
        list[str] | None, typer.Option(help="Optimise for node:A or coalition:A,B; may be repeated.")
    ] = None,
    gap: Annotated[float, typer.Option(help="How close to the optimum, relatively.")] = 1e-3,
    probes: Annotated[int | None, typer.Option(min=2, help="Estimate the graph's part from random vectors.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of --probes.")] = 0,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the cache.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write C and its figures here, as npz.")] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Noise that costs least. Example: sotto noise --graph florentine --weights uniform --participation 4x16"""
    from sottovoce.cli import terminal_plots
    from sottovoce.core import files
    from sottovoce.core.topologies import weigh
    from sottovoce.matrix_factorization import cache
    from sottovoce.matrix_factorization.factorization import factorize

    if out is not None:
        files.check_writable(out)
    net = weigh(graph, weights)
    with gap_shown(gap) as report:
        found = factorize(
            net, rounds=rounds, participation=participation, objective=objective, structure=structure, bands=bands,
            restart=restart, view=view or None, gap=gap, probes=probes, seed=seed, cache=not no_cache, progress=report,
        )  # fmt: skip
    if found.refused_file is not None:
        print_note(f"{found.refused_file} does not hold what it should; computed again.")
    if out is not None:
        files.write(files.check_writable(out), lambda file: cache.write(file, found))
    document = {"graph": net.name, **found.document()}
    shown: dict[str, object] = {key: value for key, value in document.items() if key != "for_view"}
    if found.for_view is not None:
        shown |= asdict(found.for_view)
    times = f"{short(found.over_independent)} times less error than independent noise"
    answer(
        document,
        as_json,
        facts(shown),
        f"{times}, {short(found.over_antipgd)} times less than AntiPGD, at the same privacy.",
        f"\nC, darker for larger:\n{terminal_plots.matrix(found.C)}",
        f"\nerror over rounds, up to {found.errors.max():.4g}:\n{terminal_plots.curve(found.errors)}",
    )
