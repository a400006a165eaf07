"""The command `sotto`. Answers go to stdout, everything else to stderr; errors are one line and an exit code."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from sottovoce import __version__
from sottovoce.errors import SottovoceError

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
        shown.add_column(heading, justify="left" if number == 0 else "right")
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
