"""`sotto account`, `sotto calibrate` and `sotto noise`."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce._version import __version__
from sottovoce.cli.account_words import headline_words, table_by_distance
from sottovoce.cli.app import app
from sottovoce.cli.joint_account import answer_for_runs
from sottovoce.cli.options import GraphSpec, Json, Part, Setting, Weights, Yes, offering, with_setting
from sottovoce.cli.output import Table, answer, facts, gap_shown, print_note, progress, short, show_elapsed
from sottovoce.cli.progress_lines import Activity
from sottovoce.cli.sampling import (
    calibrated_by_chance,
    counts_on_chance,
    declared_nodes,
    node_lines,
    sampled_figure_of,
    sampled_words,
    sigma_text,
)
from sottovoce.cli.terminal import print_line
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.core.json_numbers import JSON
    from sottovoce.core.noise import PerNode
    from sottovoce.privacy.accountant import Account
    from sottovoce.privacy.guarantee import Guarantee, Kind
    from sottovoce.tracing.linear_system import LinearSystem

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
    out: Annotated[Path | None, typer.Option(help="--all-pairs: keep figures here, and resume from here.")] = None,
    data: Annotated[Path | None, typer.Option(help="RUN --view: folder of files that the run names.")] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """What a view can learn about every node. Example: sotto account --graph ring:30 --rounds 40 --view node:0"""
    from sottovoce.privacy.accountant import account

    if runs:
        answer_for_runs(runs, setting, data, as_json)
        return
    if data is not None:
        raise InputError("--data without a run", "it has the files that a run names", "name the folder of a run")
    kinds = _asked_kinds(kind, published)
    _fits_together(setting, all_pairs, {"--published": published, "--kind": bool(kind), "--optimised": optimised}, out)
    _check_lipschitz(lipschitz, published)
    with show_elapsed(f"tracing {setting.algorithm} on {setting.graph}"):
        system = setting.system(sigma)
    if all_pairs:
        _all_pairs(setting, system, sigma, out, as_json)
        return
    _announce(setting, system, kinds, optimised)
    with show_elapsed(f"accounting for {setting.view}") as work, _telling_when_stopped(work):
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
    document = {
        **_what(setting, sigma), **result.document(setting.delta), "nodes": nodes,
        "sampled": None if sampled is None else sampled.document(),
    }  # fmt: skip
    answer(document, as_json, table_by_distance(result, setting.delta))
    if published and not as_json:
        print_line()
        answer({}, False, _as_published(result))
    if result.headline is None and not chance and (result.refusals or not result.guarantees):
        raise Unaccountable("; ".join([*result.refusals, *unsampled]))
    if not as_json:
        lines = [f"No headline: {NOT_PROVEN}."]
        if chance and sampled is not None:
            lines = sampled_words(result, sampled, setting.delta)
        elif result.headline is not None:
            lines = headline_words(result, result.headline, setting.delta, setting.labels)
        lines += [f"Sampling counts for nothing: {reason}." for reason in unsampled]
        for line in [*lines, *node_lines(setting, nodes)]:
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

    terms = Terms(parse_adjacency(setting.adjacency), parse_participation(setting.scheme), optimised=optimised)
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


def _fits_together(setting: Setting, all_pairs: bool, not_of_pairs: dict[str, bool], out: Path | None) -> None:
    if all_pairs:
        given = {**not_of_pairs, "--convex": setting.convex, "--victim": bool(setting.victim)}
        given["--view"] = setting.view != "everyone"
        given["--and-final-models"] = setting.and_final_models != "none"
        given["--records"] = setting.records is not None
        for option, there in given.items():
            if there:
                raise InputError(f"{option} with --all-pairs", "that is about every node, fixed streams", "drop one")
    elif out is not None:
        raise InputError("--out without --all-pairs", "only all pairs are kept", "add --all-pairs, or use --json")


def _what(setting: Setting, sigma: "PerNode") -> "dict[str, JSON]":
    """What the figures are about, besides what an account says itself: enough to repeat it."""
    return {
        "version": __version__,
        "sigma": list(sigma) if isinstance(sigma, tuple) else sigma,
        "adjacency": setting.adjacency,
        "participation": setting.participation,
        "convex": setting.convex,
        "seed": setting.seed,
        "labels": setting.labels,
    }


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


def _all_pairs(setting: Setting, system: "LinearSystem", sigma: float, out: Path | None, as_json: bool) -> None:
    """Fixed-streams figures for every attacker and victim, and what is proven for training."""
    import numpy as np

    from sottovoce.core.json_numbers import to_json
    from sottovoce.core.participation import parse_participation
    from sottovoce.privacy import all_pairs
    from sottovoce.privacy.accountant import account
    from sottovoce.privacy.gaussian_dp import epsilon_of
    from sottovoce.privacy.guarantee import Kind

    if system.only_gradients:
        raise Unaccountable(f"{system.only_gradients}: single messages have no exact loss; drop --all-pairs")
    if system.n < 2:
        raise InputError("--all-pairs on one node", "a pair has two", "take a larger graph")
    delta, averaging = setting.delta, system.algorithm.averaging
    whole = account(system, adjacency=setting.adjacency, participation=setting.scheme)
    with progress("attackers") as advance:
        mu = all_pairs.all_pairs(
            system,
            parse_participation(setting.scheme),
            secure_sum=setting.secure_sum,
            store=out,
            progress=advance,
        )
    others = mu[~np.eye(system.n, dtype=bool)]
    least, mean, most = (float(x) for x in (others.min(), others.mean(), others.max()))
    figures = {"mu_min": least, "mu_mean": mean, "mu_max": most, "epsilon_max": epsilon_of(most, delta)}
    proven = None if whole.headline is None else whole.headline.document(delta)
    document = {
        **_what(setting, sigma), "algorithm": system.algorithm.name, "topology": system.topology.name,
        "rounds": system.rounds, "secure_sum": setting.secure_sum, "delta": delta, "kind": Kind.FIXED_STREAMS.value,
        "proven_for_training": averaging, "pairs": len(others),
        **{name: to_json(value) for name, value in figures.items()},
        "proven_for_everyone": proven,
        "mu": [[to_json(value) for value in row] for row in mu.tolist()],
    }  # fmt: skip
    shown = {key: document[key] for key in ("algorithm", "topology", "rounds", "delta", "kind", "pairs")}
    table = [*facts(shown), *([name.replace("_", " "), round_up(value)] for name, value in figures.items())]
    lines = (
        [] if averaging else ["These are exact for fixed streams, an idealisation of training; do not promise them."]
    )
    if whole.headline is not None and not averaging:
        best = whole.headline
        lines.append(
            f"Proven for any pair: epsilon {round_up(best.epsilon(delta))} (mu {round_up(best.mu)}), {best.kind}."
        )
    legend = "Row: who learns; column: about whom; darker is more, logarithmic."
    answer(document, as_json, table, *lines, legend, all_pairs.heat_map(mu))


@app.command("calibrate")
@with_setting
def calibrate_(
    setting: Setting,
    epsilon: Annotated[float, typer.Option(help="Target epsilon of the headline.")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """The sigma for a target epsilon. Example: sotto calibrate --graph ring:30 --rounds 40 --epsilon 1"""
    from sottovoce.privacy.calibration import Target, calibrated_system

    net = setting.chosen[1]
    with show_elapsed(f"calibrating {setting.algorithm} on {net.name}"):
        reference, target = setting.system(1.0), Target(epsilon, setting.delta)
        found = calibrated_system(
            reference, setting.adversary, target, adjacency=setting.adjacency, participation=setting.scheme,
            convex=setting.convex, victims=setting.victims,
        )  # fmt: skip
        chance = calibrated_by_chance(setting, reference, target, found.sigma)
    sigma = found.sigma if chance is None else chance.sigma
    nodes = declared_nodes(setting, sigma)
    document = {
        **_what(setting, sigma), "algorithm": setting.algorithm, "graph": net.name,
        "view": str(setting.adversary), "final_models": setting.and_final_models, "secure_sum": setting.secure_sum,
        "rounds": setting.rounds, "epsilon": epsilon, "delta": setting.delta,
        "headline": None if found.account.headline is None else found.account.headline.document(setting.delta),
        "covers": None if found.account.headline is None else found.account.coverage.document(),
        "nodes": nodes, "sampled": None if chance is None else chance.figure.document(),
    }  # fmt: skip
    settings = ("algorithm", "graph", "view", "secure_sum", "convex", "adjacency", "participation", "rounds", "epsilon")
    table = [*facts({key: document[key] for key in (*settings, "delta")}), ["sigma", sigma_text(sigma)]]
    best = found.account.headline
    lines = [] if best is None else headline_words(found.account, best, setting.delta, setting.labels)
    if chance is not None:
        lines = sampled_words(found.account, chance.figure, setting.delta)
    answer(document, as_json, table, *lines, *node_lines(setting, nodes))


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
