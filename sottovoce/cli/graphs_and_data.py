"""`sotto graph`, `sotto data` and `sotto schema`: what there is to run on, and what documents look like."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Context, Option

from sottovoce.cli.app import app
from sottovoce.cli.options import Data, GraphName, Json, Weights, Yes
from sottovoce.cli.output import answer, facts, picked, print_line, print_note, print_remark, print_sentences
from sottovoce.cli.progress import activity
from sottovoce.errors import InputError
from sottovoce.support.limits import size_text

if TYPE_CHECKING:
    from sottovoce.core.topologies import Topology
    from sottovoce.learning.columns import Column
    from sottovoce.learning.datasets import DatasetListing
    from sottovoce.support.text import JSON

MOST_MOMENTS = 300
"""Nodes of which second moments are followed."""


@app.command()
def graph(
    spec: GraphName,
    weights: Weights = "metropolis",
    compression: str | None = Option(None, help="Also whether models stay together: rand:0.5, with push weights."),
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Show nodes, edges, degrees and spectral gap of a graph. Example: sotto graph grid:8x8 --weights uniform"""
    from sottovoce.core.graphs import graph as build
    from sottovoce.core.topologies import weigh

    with activity("reading the graph"):
        source = build(spec)
    with activity("weights and their spectral gap"):
        net = weigh(source, weights)
        gap = net.spectral_gap
    found = {
        "graph": source.name,
        "weights": weights,
        "nodes": source.n,
        "edges": source.edges,
        "directed": source.directed,
        "degree_min": int(source.out_degrees.min()),
        "degree_mean": float(source.out_degrees.mean()),
        "degree_max": int(source.out_degrees.max()),
        "components": int(source.components.max()) + 1,
        "spectral_gap": gap,
    }
    growth = None if compression is None else warn_if_apart(net, compression)
    if compression is not None and growth is None:
        raise InputError(
            f"--compression {compression} on {net.name}",
            f"growth is known of random coordinates, column-stochastic weights and up to {MOST_MOMENTS} nodes",
            "give rand:0.5 and --weights push, for example",
        )
    names = None if source.labels is None else [str(label) for label in source.labels]
    grown = {"compression": compression, "growth": growth}
    answer({**found, **grown, "labels": names}, facts(found if growth is None else found | grown))
    if names is not None:
        few = ", ".join(f"{node} is {name}" for node, name in enumerate(names[:4]))
        print_remark(f"Nodes are numbered as their graph lists them: {few}{', ...' if len(names) > 4 else ''}")


def warn_if_apart(net: "Topology", compression: str) -> float | None:
    """By how much distances between models grow in a round, below 1 they shrink; None where that is not known."""
    from sottovoce.core.compression import RandomK, parse_compression

    operator = parse_compression(compression)
    if not isinstance(operator, RandomK) or net.n > MOST_MOMENTS or not (net.static and net.at(0).column_stochastic):
        return None
    found = operator.growth([net.at(0).weights.toarray()])
    if found >= 1:
        print_note(f"Models grow apart with {compression}: keep part of the weight, as --weights push,lazy=0.5 does.")
    return found


data_commands = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
app.add_typer(data_commands, name="data")


@data_commands.callback()
def data(
    context: Context,
    folder: Data = None,
    as_json: Json = False,
) -> None:
    """List which data sets are found, and how to get the others. Example: sotto data --data ~/data"""
    if context.invoked_subcommand is not None:
        return
    from sottovoce.learning.datasets import folder_of, list_datasets

    listed = list_datasets(folder)
    place = folder_of(folder)
    document = {"folder": None if place is None else str(place), "data": [_data_facts(entry) for entry in listed]}
    table = [["data set", "kind", "training", "test", "size", "found", "licence"]]
    for entry in listed:
        rows = [f"{count:,}" for count in entry.rows] if entry.rows else ["?", "?"]
        found = "no" if entry.missing else "yes" if entry.files else "built in"
        table.append(
            [entry.name, entry.kind, *rows, size_text(entry.bytes) if entry.bytes else "", found, entry.licence]
        )
    answer(document, table)
    print_sentences(f"{entry.name}: {entry.trap}." for entry in listed)
    print_sentences(
        f"{entry.name}: put {', '.join(entry.missing)} into the folder; from {entry.source}."
        for entry in listed
        if not entry.found
    )
    print_remark(f"Folder: {place or 'none; give --data DIR or set SOTTOVOCE_DATA'}.")


def _data_facts(entry: "DatasetListing") -> "dict[str, JSON]":
    training, test = entry.rows or (None, None)
    return {
        **picked(entry, "name", "kind", "found"), "files": list(entry.files), "missing": list(entry.missing),
        "training_rows": training, "test_rows": test, **picked(entry, "bytes", "licence", "source", "trap"),
    }  # fmt: skip


@data_commands.command()
def inspect(
    file: Path = Argument(help="A table (.csv, .npz or .parquet), or a folder of tables."),
    target: str | None = Option(None, help="The column to predict; default: the last one."),
    out: Path | None = Option(None, help="File for the description; default: FILE.columns.toml."),
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Write a first description of a table's columns, for you to edit. Example: sotto data inspect patients.csv"""
    from sottovoce.errors import InputError
    from sottovoce.learning.columns import columns_text, guess_columns, read_all_cells
    from sottovoce.learning.table_cells import missing_cells
    from sottovoce.support.files import write_text

    cells = read_all_cells(file)
    guess = guess_columns(file, cells, target)
    found = guess.columns
    place = file.with_suffix(".columns.toml") if out is None else out
    if place.exists():
        raise InputError(
            f"{place} exists", "a file that you may have edited is not overwritten", "name another file with --out"
        )
    write_text(place, columns_text(guess), private=True)
    empty = {name: int(missing_cells(column, found.missing_words).sum()) for name, column in cells.items()}
    columns = [
        {**column.model_dump(include={"name", "range", "categories"}), "missing_cells": empty[column.name]}
        for column in found.columns
    ]
    table = [["column", "as", "values", "missing cells"]]
    for column in found.columns:
        kind = "target" if column.name == found.target else "input"
        table.append([column.name, kind, _values(column), str(empty[column.name])])
    table += [[name, "dropped", reason, str(empty[name])] for name, reason in guess.reasons.items()]
    document = {"file": str(place), "target": found.target, "columns": columns, "decimal": found.decimal}
    answer({**document, "drop": found.drop, "reasons": guess.reasons, "remarks": guess.remarks}, table)
    print_remark(f"{place}: ranges and categories come from rows and are not private; put public ones in their place.")
    for remark in guess.remarks:
        print_remark(remark)
    lacking = [column.name for column in found.columns if empty[column.name]]
    if lacking:
        print_remark(f"Cells are missing in {', '.join(lacking)}: say there what they become (missing = ...).")


@data_commands.command()
def split(
    name: str = Argument(help="A data set that needs no download: breast-cancer or digits."),
    settings: Path = Argument(help="Settings of a federation, which name its members under [rows]."),
    out: Path = Option(Path("tables"), help="New folder for the tables."),
    as_json: Json = False,
) -> None:
    """Write a table for each member of a federation, for trying things out.

    Example: sotto data split breast-cancer recipes/hospitals.toml --out tables
    """
    from sottovoce.errors import require_extra

    require_extra("peers", "cryptography")
    from sottovoce.errors import InputError
    from sottovoce.federation.assembly import read_draft
    from sottovoce.learning.columns import read_columns
    from sottovoce.learning.tables import split_table
    from sottovoce.support.files import check_folder, new_folder, write_text

    check_folder(out)
    if out.exists():
        raise InputError(f"{out} exists", "tables are never overwritten", "name another folder with --out")
    draft = read_draft(settings)
    columns = read_columns(draft.data.columns, settings.parent, str(settings))
    found = split_table(name, columns, draft.rows, draft.seed)
    table, members = [["member", "rows", "held out", "file"]], []
    with new_folder(out):
        for member, made in found.items():
            write_text(out / f"{member}.csv", made.text)
    for member, made in found.items():
        path = out / f"{member}.csv"
        members.append({"name": member, "rows": made.rows, "held_out": made.held_out, "file": str(path)})
        table.append([member, str(made.rows), str(made.held_out), str(path)])
    answer({"folder": str(out), "members": members}, table)


def _values(column: "Column") -> str:
    if column.range is not None:
        return f"from {column.range[0]:g} to {column.range[1]:g}"
    return ", ".join(column.categories or ())


@app.command("schema")
def schema_(
    name: str | None = Argument(None, help="The name of a command, or of a file of a run."),
    as_json: Json = False,
) -> None:
    """Print the JSON schema of a command's --json output, or of a file of a run. Example: sotto schema account"""
    from sottovoce.schemas import names, schema

    if name is None:
        answer({"schemas": names()}, [["", ""], *([one, schema(one)["title"]] for one in names())])
    else:
        print_line(json.dumps(schema(name)))
