"""The command `sotto`. Answers go to stdout, everything else to stderr; errors are one line and an exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from sottovoce import __version__
from sottovoce.errors import SottovoceError, Unaccountable

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Weights = Annotated[str, typer.Option(help="metropolis, max-degree, uniform or push.")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"sotto {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _sotto(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Private learning without a server."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def graph(
    spec: Annotated[str, typer.Argument(help="e.g. ring:30, erdos-renyi:100,p=0.2,seed=1, file:edges.txt.gz")],
    weights: Weights = "metropolis",
    as_json: Json = False,
) -> None:
    """Nodes, edges, degrees and spectral gap of a graph. Example: sotto graph grid:8x8 --weights uniform"""
    from sottovoce.graphs import graph as build
    from sottovoce.topology import weigh

    source = build(spec)
    net = weigh(source, weights)
    facts = {
        "graph": source.name,
        "weights": weights,
        "nodes": source.n,
        "edges": source.edges,
        "directed": source.directed,
        "degree_min": int(source.out_degrees.min()),
        "degree_mean": float(source.out_degrees.mean()),
        "degree_max": int(source.out_degrees.max()),
        "components": int(source.components.max()) + 1,
        "spectral_gap": net.spectral_gap,
    }
    _answer(facts, as_json, [["", ""], *([key.replace("_", " "), _short(value)] for key, value in facts.items())])


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    as_json: Json = False,
) -> None:
    """Train digits on 16 nodes, without noise, with DP-D-SGD and with ZIP-DL. Example: sotto demo --rounds 50"""
    from sottovoce import demo as small

    every = max(1, rounds // 5)
    outcomes = list(small.train(rounds=rounds, every=every, seed=seed))
    shown = sorted({outcome.round for outcome in outcomes})
    table = [["test accuracy after round", *map(str, shown)]]
    for name in dict.fromkeys(outcome.algorithm for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.algorithm == name]
        table.append([f"{name}, mean model", *(f"{outcome.mean_model:.3f}" for outcome in mine)])
        table.append([f"{name}, worst node", *(f"{outcome.worst_node:.3f}" for outcome in mine)])
    document = {"graph": small.GRAPH, "sigma": small.SIGMA, "outcomes": [o._asdict() for o in outcomes]}
    _answer(document, as_json, table)
    if not as_json:
        typer.echo(f"16 nodes on {small.GRAPH}, scikit-learn's digits, noise multiplier {small.SIGMA}.", err=True)
        typer.echo("Equal noise is not equal privacy: zero-sum noise costs less accuracy and hides less.", err=True)


@app.command()
def data(
    folder: Annotated[Path | None, typer.Option("--data", help="Folder of data sets; else SOTTOVOCE_DATA.")] = None,
    as_json: Json = False,
) -> None:
    """Which data sets are found where, and how to get the others. Example: sotto data --data ~/data"""
    from sottovoce.learning.data import catalogue, folder_of

    listed = catalogue(folder)
    place = folder_of(folder)
    document = {"folder": None if place is None else str(place), "data": [_data_facts(entry) for entry in listed]}
    table = [["data set", "kind", "training", "test", "MB", "found", "licence"]]
    for entry in listed:
        rows = [f"{count:,}" for count in entry.rows] if entry.rows else ["?", "?"]
        found = "no" if entry.missing else "yes" if entry.files else "built in"
        table.append([entry.name, entry.kind, *rows, f"{entry.bytes / 1e6:.1f}", found, entry.licence])
    _answer(document, as_json, table)
    if not as_json:
        for entry in listed:
            typer.echo(f"{entry.name}: {entry.trap}.")
        for entry in listed:
            if not entry.found:
                typer.echo(f"{entry.name}: put {', '.join(entry.missing)} into the folder; from {entry.source}.")
        typer.echo(f"Folder: {place or 'none; give --data DIR or set SOTTOVOCE_DATA'}.", err=True)


def _data_facts(entry: Any) -> dict[str, Any]:
    training, test = entry.rows or (None, None)
    return {
        "name": entry.name, "kind": entry.kind, "found": entry.found, "files": list(entry.files),
        "missing": list(entry.missing), "training_rows": training, "test_rows": test, "bytes": entry.bytes,
        "licence": entry.licence, "source": entry.source, "trap": entry.trap,
    }  # fmt: skip


GraphSpec = Annotated[
    str, typer.Option("--graph", help="e.g. ring:30, erdos-renyi:100,p=0.2,seed=1, file:edges.txt.gz")
]
Name = Annotated[str, typer.Option("--algorithm", help="e.g. dp-d-sgd, zip-dl, muffliato; see docs/algorithms.md")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds; gossip steps when averaging.")]
ViewSpec = Annotated[str, typer.Option("--view", help="everyone, node:A, coalition:A,B or eavesdropper:A>B.")]
SecureSum = Annotated[bool, typer.Option("--secure-sum", help="Receivers learn only sums of what they receive.")]
Convex = Annotated[bool, typer.Option("--convex", help="Local steps are non-expansive: use that for the headline.")]
Adjacency = Annotated[str, typer.Option(help="user (all of a node's data changes) or record.")]
Part = Annotated[str, typer.Option("--participation", help="every, or KxB: K times, B rounds apart.")]
Delta = Annotated[float, typer.Option(help="delta of (epsilon, delta)-DP.")]
Seed = Annotated[int, typer.Option(help="Seed of random topologies.")]
Chebyshev = Annotated[bool, typer.Option("--chebyshev", help="muffliato: accelerated gossip.")]
Randomized = Annotated[bool, typer.Option("--randomized", help="One random edge per gossip step.")]
GossipSteps = Annotated[int | None, typer.Option(help="muffliato-sgd: gossip steps per gradient.")]
CompressionSpec = Annotated[
    str | None, typer.Option("--compression", help="dp-csgp: identity, rand:0.5, gsgd:8, top:0.1.")
]
CorrelationFile = Annotated[str | None, typer.Option("--correlation", help="mf-d-sgd, mafalda: npz file with C.")]
SigmaPair = Annotated[float | None, typer.Option(help="decor: noise that neighbours share.")]


def _chosen(
    graph: str,
    weights: str | None,
    name: str,
    sigma: float | None,
    randomized: bool,
    seed: int,
    **settings: Any,
) -> tuple[Any, Any]:
    """The algorithm and the topology that the shared options name."""
    import inspect

    from sottovoce.algorithms import algorithm, builder
    from sottovoce.topology import random_edges, weigh

    accepted = inspect.signature(builder(name)).parameters
    if "participation" not in accepted or settings.get("correlation") is not None:
        settings = {key: value for key, value in settings.items() if key not in ("rounds", "participation")}
    given = {key: value for key, value in {"sigma": sigma, **settings}.items() if value not in (None, False)}
    if "sigma" in given and "sigma" not in accepted:
        del given["sigma"]
    built = algorithm(name, **given)
    kind = weights or {"column-stochastic": "push", "complete average": "uniform"}.get(built.requires, "metropolis")
    net = weigh(graph, kind)
    return built, random_edges(net, seed=seed) if randomized else net


@app.command("account")
def account_(
    graph: GraphSpec,
    algorithm: Name = "dp-d-sgd",
    rounds: Rounds = 1,
    sigma: Annotated[float, typer.Option(help="Noise multiplier: standard deviation over sensitivity.")] = 1.0,
    view: ViewSpec = "everyone",
    weights: Annotated[str | None, typer.Option(help="metropolis, max-degree, uniform or push.")] = None,
    secure_sum: SecureSum = False,
    convex: Convex = False,
    adjacency: Adjacency = "user",
    participation: Part = "every",
    delta: Delta = 1e-5,
    seed: Seed = 0,
    chebyshev: Chebyshev = False,
    randomized: Randomized = False,
    gossip_steps: GossipSteps = None,
    compression: CompressionSpec = None,
    correlation: CorrelationFile = None,
    sigma_pair: SigmaPair = None,
    published: Annotated[bool, typer.Option("--published", help="Also the papers' formulas, for comparison.")] = False,
    lipschitz: Annotated[float | None, typer.Option(help="zip-dl: L of its Assumption 5.6, for --published.")] = None,
    victim: Annotated[list[int] | None, typer.Option(help="Only this node; may be given more than once.")] = None,
    all_pairs: Annotated[bool, typer.Option("--all-pairs", help="Every node as attacker; draws a heat map.")] = False,
    out: Annotated[Path | None, typer.Option(help="--all-pairs: keep figures here, and resume from here.")] = None,
    as_json: Json = False,
) -> None:
    """What a view can learn about every node. Example: sotto account --graph ring:30 --rounds 40 --view node:0"""
    from sottovoce.compression import Identity
    from sottovoce.privacy.account import KINDS, PUBLISHED, account
    from sottovoce.privacy.released import trace_released
    from sottovoce.privacy.views import view as named_view
    from sottovoce.trace import trace

    built, net = _chosen(
        graph, weights, algorithm, sigma, randomized, seed,
        chebyshev=chebyshev, gossip_steps=gossip_steps, compression=compression, correlation=correlation,
        sigma_pair=sigma_pair, rounds=rounds, participation=participation,
    )  # fmt: skip
    traced = trace if isinstance(built.compression, Identity) else trace_released
    system = traced(built, net, rounds=rounds)
    if all_pairs:
        _all_pairs(system, participation, secure_sum, delta, out, as_json)
        return
    result = account(
        system,
        named_view(view, secure_sum=secure_sum),
        adjacency=adjacency,
        participation=participation,
        convex=convex,
        kinds=(*KINDS, PUBLISHED) if published else KINDS,
        lipschitz=lipschitz,
        victims=victim or None,
    )
    _answer(result.document(delta), as_json, _by_distance(result, delta))
    if result.headline is None:
        raise Unaccountable("; ".join(result.refusals))
    if not as_json:
        best = result.headline
        figure = f"epsilon {best.epsilon(delta):.4g} at delta {delta:g} (mu {best.mu:.4g})"
        typer.echo(f"Headline: {figure}, {best.kind}, for node {best.victim}, who is worst off.", err=True)
        for assumption in best.assumptions:
            typer.echo(f"It assumes: {assumption}.", err=True)
        for refusal in result.refusals:
            typer.echo(f"Not offered: {refusal}.", err=True)


def _all_pairs(
    system: Any, participation: str, secure_sum: bool, delta: float, out: Path | None, as_json: bool
) -> None:
    """Fixed-streams figures for every attacker and victim."""
    import numpy as np

    from sottovoce.compression import Identity
    from sottovoce.privacy import pairs
    from sottovoce.privacy.gaussian import epsilon_of
    from sottovoce.privacy.sensitivity import participation as named_participation

    if not isinstance(system.algorithm.compression, Identity):
        raise Unaccountable(
            f"{system.algorithm.compression.name}: single messages have no exact loss; drop --all-pairs"
        )
    scheme = named_participation(participation)
    with _progress("attackers") as advance:
        mu = pairs.all_pairs(system, scheme, secure_sum=secure_sum, store=out, progress=advance)
    others = mu[~np.eye(system.n, dtype=bool)]
    spread = {name: float(value) for name, value in zip(("min", "mean", "max"), _spread(others), strict=True)}
    facts = {
        "algorithm": system.algorithm.name, "topology": system.topology.name, "rounds": system.rounds, "delta": delta,
        "kind": "fixed-streams", "proven_for_training": False, "pairs": len(others),
        **{f"mu_{name}": "inf" if np.isinf(value) else value for name, value in spread.items()},
        "epsilon_max": "inf" if np.isinf(spread["max"]) else epsilon_of(spread["max"], delta),
    }  # fmt: skip
    rows = [["", ""], *([key.replace("_", " "), _short(value)] for key, value in facts.items())]
    matrix = [["inf" if np.isinf(x) else x for x in row] for row in mu.tolist()]
    _answer({**facts, "mu": matrix}, as_json, rows)
    if not as_json:
        typer.echo("Row: who learns; column: about whom; darker is more, logarithmic.", err=True)
        typer.echo(pairs.heat_map(mu))


def _spread(values: Any) -> tuple[float, float, float]:
    return values.min(), values.mean(), values.max()


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr with rate and remaining time; nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _by_distance(result: Any, delta: float) -> list[list[str]]:
    """Epsilon by kind and by distance from the view: least, mean and largest over victims."""
    table = [["kind", "distance", "victims", "mu min", "mean", "max", "epsilon min", "mean", "max"]]
    groups: dict[tuple[str, int | None], list[Any]] = {}
    for guarantee in result.guarantees:
        groups.setdefault((guarantee.kind, guarantee.distance), []).append(guarantee)
    for (kind, distance), found in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        columns = []
        for values in ([g.mu for g in found], [g.epsilon(delta) for g in found]):
            columns += [f"{x:.4g}" for x in (min(values), sum(values) / len(values), max(values))]
        table.append([kind, "any" if distance is None else str(distance), str(len(found)), *columns])
    return table


@app.command("calibrate")
def calibrate_(
    graph: GraphSpec,
    epsilon: Annotated[float, typer.Option(help="Target epsilon of the headline.")],
    algorithm: Name = "dp-d-sgd",
    rounds: Rounds = 1,
    view: ViewSpec = "everyone",
    weights: Annotated[str | None, typer.Option(help="metropolis, max-degree, uniform or push.")] = None,
    secure_sum: SecureSum = False,
    convex: Convex = False,
    adjacency: Adjacency = "user",
    participation: Part = "every",
    delta: Delta = 1e-5,
    seed: Seed = 0,
    chebyshev: Chebyshev = False,
    randomized: Randomized = False,
    gossip_steps: GossipSteps = None,
    compression: CompressionSpec = None,
    correlation: CorrelationFile = None,
    sigma_pair: SigmaPair = None,
    as_json: Json = False,
) -> None:
    """The sigma for a target epsilon. Example: sotto calibrate --graph ring:30 --rounds 40 --epsilon 1"""
    from sottovoce.privacy.calibrate import calibrate
    from sottovoce.privacy.views import view as named_view

    built, net = _chosen(
        graph, weights, algorithm, 1.0, randomized, seed,
        chebyshev=chebyshev, gossip_steps=gossip_steps, compression=compression, correlation=correlation,
        sigma_pair=sigma_pair, rounds=rounds, participation=participation,
    )  # fmt: skip
    adversary = named_view(view, secure_sum=secure_sum)
    sigma = calibrate(
        built, net, adversary, rounds=rounds, epsilon=epsilon, delta=delta,
        adjacency=adjacency, participation=participation, convex=convex,
    )  # fmt: skip
    facts = {
        "algorithm": algorithm, "graph": net.name, "view": str(adversary), "rounds": rounds, "epsilon": epsilon,
        "delta": delta, "sigma": sigma,
    }  # fmt: skip
    _answer(facts, as_json, [["", ""], *([key, _short(value)] for key, value in facts.items())])


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
    as_json: Json = False,
) -> None:
    """Noise that costs least. Example: sotto noise --graph florentine --weights uniform --participation 4x16"""
    from sottovoce.factorize import cache, factorize, picture
    from sottovoce.topology import weigh

    net = weigh(graph, weights)
    with _gap_shown(gap) as told:
        found = factorize(
            net, rounds=rounds, participation=participation, objective=objective, structure=structure, bands=bands,
            restart=restart, view=view or None, gap=gap, probes=probes, seed=seed, cache=not no_cache, progress=told,
        )  # fmt: skip
    if out is not None:
        _write(out, lambda file: cache.write(file, found))
    facts = {"graph": net.name, **found.document()}
    shown = {key: value for key, value in facts.items() if key != "for_view"} | facts.get("for_view", {})
    _answer(facts, as_json, [["", ""], *([key.replace("_", " "), _short(value)] for key, value in shown.items())])
    if not as_json:
        times = f"{found.over_independent:.3g} times less error than independent noise"
        typer.echo(f"{times}, {found.over_antipgd:.3g} times less than AntiPGD, at the same privacy.", err=True)
        typer.echo(f"\nC, darker for larger:\n{picture.matrix(found.C)}")
        typer.echo(f"\nerror over rounds, up to {found.errors.max():.4g}:\n{picture.curve(found.errors)}")


def _write(path: Path, write: Callable[[Any], None]) -> None:
    """A file that is there as a whole or not at all."""
    from sottovoce.errors import InputError

    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            write(file)
        part.replace(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "the file must be writable", "name another") from None


@contextmanager
def _gap_shown(target: float) -> Iterator[Callable[[float], None]]:
    """The gap on stderr while a search takes longer than two seconds; nothing where stderr is no terminal."""
    import time

    from rich.console import Console

    console, begun = Console(stderr=True), time.monotonic()

    def tell(gap: float) -> None:
        if console.is_terminal and time.monotonic() - begun > 2:
            console.print(f"gap {gap:.2e}, until {target:g}   ", end="\r", highlight=False)

    try:
        yield tell
    finally:
        if console.is_terminal:
            console.print(" " * 40, end="\r")


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _answer(document: dict[str, Any], as_json: bool, table: list[list[str]]) -> None:
    """The one thing a command prints on stdout: a JSON document or a table, its first row the heading."""
    if as_json:
        typer.echo(json.dumps(document))
        return
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, show_header=any(table[0]), pad_edge=False)
    for number, heading in enumerate(table[0]):
        shown.add_column(heading, justify="left" if number == 0 else "right", no_wrap=number == 0)
    for row in table[1:]:
        shown.add_row(*row)
    Console().print(shown)


def main() -> None:
    """Run `sotto`; every failure becomes one line on stderr and its exit code."""
    try:
        code = app(standalone_mode=False)
    except SottovoceError as error:
        code = _fail(str(error), error.exit_code)
    except TyperException as error:
        hint = " Try 'sotto --help'." if error.exit_code == 2 else ""
        code = _fail(error.format_message() + hint, error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        code = _fail("stopped", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(line: str, code: int) -> int:
    typer.echo(f"sotto: {line}", err=True)
    return code
