"""`sotto run`: one experiment, or a sweep of them, from a TOML file."""

import math
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.app import app, explained, fail
from sottovoce.cli.options import Json
from sottovoce.cli.output import Table, answer, facts, note, progress, size, voice
from sottovoce.errors import InputError, PeerLost, SottovoceError
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.config import Document, Experiment
    from sottovoce.run.sweep import Planned


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
    processes: Annotated[
        int | None, typer.Option(min=1, max=256, help="Spread the nodes of one run over so many processes.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which a process that does not answer is given up.")
    ] = 120.0,
    as_json: Json = False,
) -> None:
    """Train, with metrics, guarantees and checkpoints in runs/NAME. Example: sotto run recipes/digits.toml"""
    if not math.isfinite(timeout):
        raise InputError(f"--timeout {timeout}", "it is a number of seconds", "leave it out for 120")
    if _ranked():
        wanted = partial(_alone, file, settings or [], only, out)
        _as_rank(wanted, timeout, data=data, out=out, resume=resume, as_json=as_json)
        return
    if (processes or 1) > 1:
        _alone(file, settings or [], only, out)
        _in_processes(file, settings or [], processes or 1, timeout, data=data, out=out, resume=resume, as_json=as_json)
    document, runs = _planned(file, settings or [], only, out)
    if len(runs) == 1 and not runs[0].variant:
        _one(runs[0].experiment, data=data, out=out, resume=resume, as_json=as_json)
        return
    chosen = [run for run in runs if only is None or only in run.experiment.name]
    _sweep(document, file, settings or [], chosen, data=data, out=out, resume=resume, jobs=jobs, as_json=as_json)


def _planned(file: Path, settings: list[str], only: str | None, out: Path) -> "tuple[Document, list[Planned]]":
    """What a file asks for; refused before any work where it cannot be."""
    from sottovoce.config import apply_overrides, read_settings_file
    from sottovoce.core.files import check_folder
    from sottovoce.run.sweep import planned

    check_folder(out)
    document = apply_overrides(read_settings_file(file), settings)
    runs = planned(document, str(file))
    if only is not None and not any(only in run.experiment.name for run in runs):
        raise InputError(f"--only {only}", f"no run of {file} has that in its name", f"e.g. {runs[0].experiment.name}")
    return document, runs


def _alone(file: Path, settings: list[str], only: str | None, out: Path) -> "Experiment":
    """The one run of a file, which processes can share."""
    _, runs = _planned(file, settings, only, out)
    if len(runs) > 1 or runs[0].variant:
        raise InputError(
            f"{file}: a sweep over processes", "the nodes of one run are spread over them",
            "use --jobs for several runs at once, or the settings of one run",
        )  # fmt: skip
    return runs[0].experiment


def _one(experiment: "Experiment", *, data: Path | None, out: Path, resume: bool, as_json: bool) -> None:
    """One run, in this process."""
    with progress(experiment.name, rate=True) as tell:
        from sottovoce.run.execute import run_experiment

        result = run_experiment(experiment, out / experiment.name, data=data, resume=resume, progress=tell)
    _finish(result, out / experiment.name, as_json)


def _finish(result: "Document", folder: Path, as_json: bool) -> None:
    """The page of a finished run, and what it came to."""
    from sottovoce.report.page import write_page_of

    write_page_of(folder, again=False)
    answer(result, as_json, _facts(result))


def _ranked() -> bool:
    """Whether torchrun, or `sotto` itself, started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def _as_rank(
    wanted: "Callable[[], Experiment]",
    timeout: float,
    *,
    data: Path | None,
    out: Path,
    resume: bool,
    as_json: bool,
) -> None:
    """One rank's part of a run. Rank 0 shows how far it is and answers; what went wrong is said once."""
    from sottovoce.distributed.launch import is_orphaned, unblock_signals

    unblock_signals()
    from sottovoce.distributed.ranks import join_ranks
    from sottovoce.run.execute import run_experiment

    leads = os.environ["RANK"] == "0"
    with join_ranks(timeout) as ranks:
        try:
            experiment = ranks.on_every_rank(wanted)
            with progress(experiment.name, rate=True) if leads else nullcontext() as tell:
                folder = out / experiment.name
                result = run_experiment(experiment, folder, data=data, resume=resume, progress=tell, coordinator=ranks)
        except (Exception, KeyboardInterrupt) as error:
            if voice.verbose and not isinstance(error, SottovoceError | KeyboardInterrupt | MemoryError):
                raise
            line, code = explained(error)
            if not is_orphaned():
                ranks.report_once(error, lambda: fail(line, code))
            if isinstance(error, PeerLost):
                sys.stderr.flush()
                os._exit(code)  # threads of the backend that wait for a lost rank would abort the interpreter's end
            raise SystemExit(code) from None
    if leads:
        _finish(result, out / experiment.name, as_json)


def _in_processes(
    file: Path,
    settings: list[str],
    processes: int,
    timeout: float,
    *,
    data: Path | None,
    out: Path,
    resume: bool,
    as_json: bool,
) -> None:
    """Start the ranks here, and end as they do; they say what there is to say."""
    from sottovoce.distributed.launch import launch

    arguments = [word for word in ("quiet", "verbose") if getattr(voice, word)]
    arguments = [*(f"--{word}" for word in arguments), "run", str(file), "--out", str(out), "--timeout", str(timeout)]
    arguments += [word for setting in settings for word in ("--set", setting)]
    arguments += ["--data", str(data)] if data is not None else []
    arguments += ["--resume"] if resume else []
    arguments += ["--json"] if as_json else []
    raise SystemExit(launch(arguments, processes))


def _sweep(
    document: "Document",
    file: Path,
    settings: list[str],
    runs: "list[Planned]",
    *,
    data: Path | None,
    out: Path,
    resume: bool,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Carry out all runs, write the page of results, and print its table."""
    from sottovoce.report.sweep_report import write_results
    from sottovoce.run.parallel import run_experiments
    from sottovoce.run.sweep import attacks_of
    from sottovoce.run.sweep_results import rows

    name = str(document["name"])
    with progress(name) as tell:
        finished = run_experiments(runs, out, data=data, resume=resume, jobs=jobs, progress=tell)
    command = " ".join(["sotto run", str(file), *(f"--set {setting}" for setting in settings)])
    page = write_results(out / name, name, runs[0].experiment.about, finished, command)
    reported = rows(finished)
    documents = [row.document() for row in reported]
    answered = {"name": name, "page": str(page), "runs": documents}
    if kinds := attacks_of(document):
        from sottovoce.attacks.on_sweeps import attack_rows
        from sottovoce.report.attack_report import write_attacks

        with progress("attacks") as tell:
            attacked = attack_rows(reported, kinds, out, data=data, tell=tell)
        answered["attacks"] = str(write_attacks(out / name, name, runs[0].experiment.about, attacked, command))
    answer(answered, as_json, _table(documents))
    if not as_json:
        note(f"Page: {' and '.join(str(answered[key]) for key in ('page', 'attacks') if key in answered)}")


def _facts(result: "Document") -> Table:
    """What one run came to."""
    from sottovoce.privacy.assumptions import FINAL_MODELS
    from sottovoce.privacy.guarantee import Headline

    last = result["metrics"]
    metric = next(key for key in ("accuracy", "rmse") if key in last)
    headline = None if result["headline"] is None else Headline.read(result["headline"])
    shown: dict[str, Any] = {
        "run": result["name"],
        "algorithm": f"{result['algorithm']} on {result['topology']}, {_rounds(result['rounds'])}",
        f"test {metric} of the average model": f"{last[metric]['average']:.4f}",
        f"test {metric} of nodes": "{mean:.4f} ({min:.4f} to {max:.4f})".format(**last[metric]),
        "sent": f"{last['messages']:,} messages, {size(last['bytes'])}{_between(last)}",
        "epsilon": _epsilon(result),
        **({} if headline is None or headline.covers_final_models else {"not covered": FINAL_MODELS}),
        "seconds of training": f"{result['seconds']:.1f}",
        "folder": result["folder"],
        "page": f"{result['folder']}/report.html",
    }
    return facts(shown)


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count:,} rounds"


def _between(last: "Document") -> str:
    """What of it went between processes, as counted there."""
    return f", {size(last['wire_bytes'])} between processes" if "wire_bytes" in last else ""


def _epsilon(result: "Document") -> str:
    headline = result["headline"]
    if headline is None:
        return "none is proven: see privacy.json"
    what = "a node's data" if result["adjacency"] == "user" else "one record"
    done = "replaced" if headline["change"] == "replace" else "made to count as nothing"
    epsilon = round_up(float(headline["epsilon"]))
    return f"{epsilon} at delta {result['delta']:g}, {headline['view']} as adversary, {what} {done}, {headline['kind']}"


def _table(found: list["Document"]) -> Table:
    """A sweep: means over seeds, with deviations."""
    from sottovoce.report.sweep_report import epsilon_of, shown

    metric = found[0]["metric"] if found else ""
    table = [["run", "seeds", f"{metric}, average model", f"{metric}, nodes", "test loss", "epsilon", "sent"]]
    for row in found:
        figures = [shown(row[key]) for key in ("average_model", "mean_node", "loss")]
        table.append(
            [row["run"], str(row["seeds"]), *figures, epsilon_of(row["epsilon"]), size(1e6 * row["megabytes"])]
        )
    return table
