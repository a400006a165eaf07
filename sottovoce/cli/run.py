"""`sotto run`: one experiment, or a sweep of them, from a TOML file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.app import app
from sottovoce.cli.options import Json
from sottovoce.cli.output import Table, answer, facts, progress, up
from sottovoce.errors import InputError

if TYPE_CHECKING:
    from sottovoce.config import Document


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A TOML file; see docs/run.md and the folder recipes.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, e.g. training.rounds=50; may be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an unfinished run stopped.")] = False,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of data sets; else SOTTOVOCE_DATA.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder that runs are written into.")] = Path("runs"),
    jobs: Annotated[
        int | None, typer.Option(min=1, max=64, help="Runs of a sweep at once; one per core unless given.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Only runs of a sweep whose name contains this.")] = None,
    as_json: Json = False,
) -> None:
    """Train, with metrics, guarantees and checkpoints in runs/NAME. Example: sotto run recipes/digits.toml"""
    from sottovoce.config import changed, read
    from sottovoce.run.sweep import expand

    document = changed(read(file), settings or [])
    runs = expand(document, str(file))
    if len(runs) == 1 and only is None:
        with progress(runs[0].name, rate=True) as tell:
            from sottovoce.run.folder import carry_out

            result = carry_out(runs[0], out / runs[0].name, data=data, resume=resume, tell=tell)
        answer(result, as_json, _facts(result))
        return
    chosen = [one for one in runs if only is None or only in one.name]
    if not chosen:
        raise InputError(f"--only {only}", f"no run of {file} has that in its name", f"e.g. {runs[0].name}")
    from sottovoce.run.together import carry_out_all

    with progress(str(document["name"])) as tell:
        found = carry_out_all(chosen, out, data=data, resume=resume, jobs=jobs, tell=tell)
    answer({"name": document["name"], "runs": found}, as_json, _table(found))


def _facts(result: "Document") -> Table:
    """What one run came to."""
    last = result["metrics"]
    metric = _metric(last)
    shown: dict[str, Any] = {
        "run": result["name"],
        "algorithm": f"{result['algorithm']} on {result['topology']}, {result['rounds']} rounds",
        f"test {metric} of the average model": f"{last[metric]['average']:.4f}",
        f"test {metric} of nodes": "{mean:.4f} ({min:.4f} to {max:.4f})".format(**last[metric]),
        "sent": f"{last['messages']:,} messages, {last['bytes'] / 1e6:,.1f} MB",
        "epsilon": _epsilon(result),
        "seconds": f"{result['seconds']:.1f}",
        "folder": result["folder"],
    }
    return facts(shown)


def _epsilon(result: "Document") -> str:
    headline = result["headline"]
    if headline is None:
        return "none is proven: see privacy.json"
    what = "a node's data" if result["adjacency"] == "user" else "one record"
    done = "replaced" if headline["change"] == "replace" else "made to count as nothing"
    epsilon = up(float(headline["epsilon"]))
    return f"{epsilon} at delta {result['delta']:g}, {headline['view']} as adversary, {what} {done}, {headline['kind']}"


def _metric(line: "Document") -> str:
    return next(key for key in ("accuracy", "rmse") if key in line)


def _table(found: list["Document"]) -> Table:
    """A sweep: means over seeds, with deviations."""
    metric = found[0]["metric"] if found else ""
    table = [["run", "seeds", f"{metric}, average model", f"{metric}, nodes", "test loss", "epsilon", "MB sent"]]
    for row in found:
        epsilon = "none" if row["epsilon"] is None else up(float(row["epsilon"]))
        table.append(
            [row["run"], str(row["seeds"]), *(_spread(row, key) for key in ("average_model", "mean_node", "loss")),
             epsilon, f"{row['megabytes']:,.1f}"]
        )  # fmt: skip
    return table


def _spread(row: "Document", key: str) -> str:
    deviation = row[f"{key}_deviation"]
    return f"{row[key]:.4f}" + ("" if deviation is None else f" ± {deviation:.4f}")
