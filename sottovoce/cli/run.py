"""`sotto run`: one experiment, or a sweep of them, from a TOML file."""

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from sottovoce.cli.app import app, explained, fail
from sottovoce.cli.graphs_and_data import warn_if_apart
from sottovoce.cli.options import Changes, Code, Data, Jobs, Json, Track, Yes, code_beside, refuse_given
from sottovoce.cli.output import Table, answer, facts, print_note, print_remark, verbosity
from sottovoce.cli.printed_figures import changed_data
from sottovoce.cli.progress import activity
from sottovoce.distributed.launch import place_among_ranks
from sottovoce.errors import InputError, PeerLost, SottovoceError
from sottovoce.privacy.rounding import round_up
from sottovoce.support.limits import size_text
from sottovoce.support.own_code import code_from

if TYPE_CHECKING:
    from sottovoce.attacks.registry import Attack
    from sottovoce.privacy.guarantee import PrivacyFigure
    from sottovoce.run.privacy_document import PrivacyDocument
    from sottovoce.run.run_documents import RunDocuments
    from sottovoce.run.run_ledger import LedgerFile
    from sottovoce.run.sweep import Shard, SweepRow, SweepRun
    from sottovoce.support.config import Document, Experiment
    from sottovoce.support.progress import Progress

BEFORE = "starting"


@app.command()
def run(
    file: Path = Argument(help="A TOML file: settings (see docs/run.md) or an agreement."),
    settings: Changes = None,
    resume: bool = Option(False, "--resume", help="Continue an unfinished run."),
    data: Data = None,
    out: Path = Option(Path("runs"), "--out", help="Folder for runs."),
    jobs: Jobs = None,
    only: str | None = Option(None, help="Only the runs of a sweep whose names contain this."),
    shard: str | None = Option(
        None, help="Only this part of a sweep, such as 7/50, resumed; whichever part ends last writes the results."
    ),
    processes: int = Option(
        1, min=1, max=256, help="Spread the nodes of one run over this many processes.", show_default=False
    ),
    timeout: float = Option(120.0, min=1, help="Seconds after which a process that does not answer counts as lost."),
    ledger: Path | None = Option(
        None, help="Reserve the cost of the run in this ledger; the run is refused if it exceeds the budget."
    ),
    lineage: str | None = Option(None, help="--ledger: which lineage of data; default: the first."),
    baselines: bool = Option(
        False, "--baselines", help="Also train without noise, and each node alone, to show what joining gains."
    ),
    trackers: Track = None,
    code: Code = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Train; metrics, guarantees and checkpoints go to runs/NAME. Example: sotto run recipes/digits.toml"""
    if not math.isfinite(timeout):
        raise InputError(f"--timeout {timeout}", "it must be a number of seconds", "leave it out for 120")
    how = Execution(
        data=data, out=out, resume=resume, ledger=_ledger_file(ledger, lineage), trackers=trackers or [],
        baselines=baselines,
    )  # fmt: skip
    place = None if shard is not None else place_among_ranks()
    if place is not None or processes > 1:
        refuse_given(
            {"--baselines": baselines}, "baselines are trained in one process", "leave one of them out",
            beside=" with --processes",
        )  # fmt: skip
    from sottovoce.run.sweep import parse_shard

    part = None if shard is None else parse_shard(shard)
    with code_from(code_beside(file) if code is None else code):
        wanted = partial(_read_plan, file, settings or [], only, out)
        if place is not None:
            _run_as_rank(place.rank, wanted, timeout, how)
        elif processes > 1:
            _run_in_processes(wanted(), processes)
        elif (plan := wanted()).is_sweep:
            refuse_given(
                {"--ledger": ledger}, "one run is entered at a time", "add --set for a single run",
                beside=" with a sweep",
            )  # fmt: skip
            refuse_given({"--only": only if shard else None}, "parts are of all runs", "leave one of them out")
            _run_sweep(plan, jobs, how, part)
        else:
            refuse_given({"--shard": shard}, "it is a part of a sweep", "leave it out", beside=" with a single run")
            _run_one(plan.single_run(), how)


def _ledger_file(path: Path | None, lineage: str | None) -> "LedgerFile | None":
    if path is None:
        refuse_given(
            {"--lineage": lineage}, "a lineage is part of a ledger", "add --ledger FILE", beside=" without --ledger"
        )
        return None
    from sottovoce.run.run_ledger import LedgerFile

    return LedgerFile(path) if lineage is None else LedgerFile(path, lineage)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How runs are carried out: from which folder of data sets, into which folder, ledger and trackers."""

    data: Path | None
    out: Path
    resume: bool
    ledger: "LedgerFile | None"
    trackers: list[str]
    baselines: bool


@dataclass(frozen=True)
class RunPlan:
    """What a file asks for: the runs, the attacks on them afterwards, and the command, without a noise key."""

    file: Path
    name: str
    command: str
    runs: "list[SweepRun]"
    attacks: "tuple[Attack, ...]"
    is_sweep: bool

    def single_run(self) -> "Experiment":
        """The one run, whose nodes processes can share."""
        if self.is_sweep:
            raise InputError(
                f"{self.file}: a sweep over processes", "--processes spreads the nodes of one run",
                "use --jobs for several runs at once, or the settings of one run",
            )  # fmt: skip
        return self.runs[0].experiment


def _read_plan(file: Path, settings: list[str], only: str | None, out: Path) -> RunPlan:
    """Read a file; what cannot be carried out is refused before any work."""
    from sottovoce.attacks.registry import check_attacks
    from sottovoce.run.layout import with_key_from_file
    from sottovoce.run.protocol import with_overrides
    from sottovoce.run.sweep import expand_sweep
    from sottovoce.support.files import check_folder

    check_folder(out)
    document = with_key_from_file(with_overrides(_run_settings(file), settings), file.parent)
    runs = expand_sweep(document, str(file))
    attacks = check_attacks(document, runs)
    if only is not None and not any(only in run.experiment.name for run in runs):
        raise InputError(f"--only {only}", f"no run of {file} has that in its name", f"e.g. {runs[0].experiment.name}")
    shown = [setting for setting in settings if not setting.lstrip().startswith("noise_key")]
    return RunPlan(
        file, str(document.get("name", "")),
        " ".join(["sotto run", str(file), *(f"--set {setting}" for setting in shown)]),
        [run for run in runs if only is None or only in run.experiment.name],
        attacks, is_sweep=len(runs) > 1 or bool(runs[0].variant),
    )  # fmt: skip


def _run_settings(file: Path) -> "Document":
    """The settings of a run, or of the run that an agreement describes, which is simulated."""
    from sottovoce.support.config import read_settings_file

    document = read_settings_file(file)
    if "members" not in document:
        return document
    from sottovoce.federation.agreement import parse_agreement

    return parse_agreement(document, str(file)).experiment.document()


@contextmanager
def _played(experiment: "Experiment", how: Execution, *, leads: bool = True) -> "Iterator[Progress]":
    """What a run calls after each round: how far it is, and each tracker gets what was measured.

    A finished run, which is only read, is tracked as a whole.
    """
    folder = how.out / experiment.name
    with activity(experiment.name if leads else "", first=BEFORE, note=_spent_text(folder)) as work:
        if not (leads and how.trackers):
            yield work.tell
            return
        from sottovoce.report.tracking import LiveTracking, places_of
        from sottovoce.run.layout import METRICS, RunFiles
        from sottovoce.run.public_check import BY_AN_AUDIT

        only_read = [f"{METRICS.name} ({BY_AN_AUDIT})"] if RunFiles(folder).result.exists() else []
        live, finished = LiveTracking(folder, how.trackers, how.out, only_read), False

        def both(done: int, total: int) -> None:
            live.write()
            work.tell(done, total)

        try:
            yield both
            finished = True
        finally:
            live.close(finished=finished)
    print_remark(places_of(how.trackers, how.out))


def _run_one(experiment: "Experiment", how: Execution) -> None:
    """One run, in this process."""
    folder, ended = how.out / experiment.name, list["RunDocuments"]()
    with _telling_what_is_kept(folder), _played(experiment, how) as after_round:
        from sottovoce.run.execute import run_experiment
        from sottovoce.run.layout import RunFiles
        from sottovoce.run.protocol import topology_of

        if (compression := experiment.algorithm.settings.get("compression")) is not None:
            warn_if_apart(topology_of(experiment, how.data), str(compression))
        if (undone := experiment.training.undone_by_clipping()) is not None:
            print_note(undone)
        run_experiment(
            experiment, folder, data=how.data, resume=how.resume, progress=after_round, ledger=how.ledger,
            on_end=ended.append,
        )  # fmt: skip
        (run,) = ended
        if how.baselines:
            from sottovoce.run.baselines import write_baselines

            run = replace(run, baselines=write_baselines(RunFiles(folder), experiment, how.data))
    _finish(run)


@contextmanager
def _telling_what_is_kept(folder: Path) -> "Iterator[None]":
    """For who stops a run: what is left of it, and how to go on."""
    from sottovoce.run.layout import RunFiles

    try:
        yield
    except KeyboardInterrupt:
        kept = "no round was played: start the run again"
        if folder.exists():
            rounds = "the rounds until now are" if RunFiles(folder).checkpoint.exists() else "no round is yet"
            kept = f"{rounds} saved in {folder}: go on with --resume"
        print_note(f"sotto: {kept}.")
        raise


def _spent_text(folder: Path) -> Callable[[int], str]:
    """What has been spent after so many rounds, for the line of progress; a run writes its guarantees before them."""

    @cache
    def privacy() -> "PrivacyDocument":
        from sottovoce.run.layout import RunFiles
        from sottovoce.run.privacy_document import PrivacyDocument

        files = RunFiles(folder)
        return PrivacyDocument.read(files.document(files.privacy) or {})

    def text(rounds: int) -> str:
        spent, headline = privacy().epsilon_after(rounds), privacy().headline
        if spent is None:
            return "epsilon inf: nothing is proven"
        if not privacy().over_rounds:
            return f"epsilon {round_up(headline.epsilon)} at the end"
        return f"epsilon {round_up(spent)} of {round_up(headline.epsilon)}"

    return text


def _finish(run: "RunDocuments") -> None:
    """Write the page of a finished run, and print its result."""
    from sottovoce.report.page import write_page_of

    write_page_of(run, again=False)
    answer(run.result, _facts(run))
    if run.check.not_checked:
        print_remark(f"Finished before, and only read: {run.folder}. Not checked: {'; '.join(run.check.lines())}.")


def _run_as_rank(rank: int, wanted: Callable[[], RunPlan], timeout: float, how: Execution) -> None:
    """One rank's part of a run. Rank 0 shows progress and prints the result; an error is printed once."""
    from sottovoce.distributed.launch import is_orphaned
    from sottovoce.support.processes import unblock_signals

    unblock_signals()
    from sottovoce.distributed.ranks import join_ranks
    from sottovoce.run.execute import run_experiment
    from sottovoce.run.run_documents import RunDocuments

    leads, ended = rank == 0, list[RunDocuments]()
    with join_ranks(timeout, lambda line: print_note(f"sotto: {line}")) as ranks:
        try:
            experiment = ranks.on_every_rank(lambda: wanted().single_run())
            folder = how.out / experiment.name
            with _played(experiment, how, leads=leads) as after_round:
                run_experiment(
                    experiment, folder, data=how.data, resume=how.resume, progress=after_round, coordinator=ranks,
                    ledger=how.ledger, on_end=ended.append,
                )  # fmt: skip
        except (Exception, KeyboardInterrupt) as error:
            if verbosity.verbose and not isinstance(error, SottovoceError | KeyboardInterrupt | MemoryError):
                raise
            line, code = explained(error)
            if not is_orphaned():
                ranks.report_once(error, lambda: fail(line, code))
            if isinstance(error, PeerLost):
                sys.stderr.flush()
                os._exit(code)  # threads of the backend that wait for a lost rank would abort the interpreter's end
            raise SystemExit(code) from None
    if leads:
        _finish(ended[0])


def _run_in_processes(plan: RunPlan, processes: int) -> None:
    """Start this command again, once for each rank, and end as they do; they print the result, or the error."""
    from sottovoce.distributed.launch import launch

    plan.single_run()
    with activity(""):  # rank 0 tells how far it is
        raise SystemExit(launch(sys.argv[1:], processes))


def _run_sweep(plan: RunPlan, jobs: int | None, how: Execution, shard: "Shard | None") -> None:
    """Carry out all runs, or a part of them; once all are there, write the page of results, and print its table."""
    from sottovoce.report.sweep_report import write_results
    from sottovoce.run.run_documents import final_average_text
    from sottovoce.run.sweep import finished_before, only_read, run_experiments, sweep_rows

    name, about = plan.name, plan.runs[0].experiment.about
    runs, resume = (plan.runs, how.resume) if shard is None else (shard.of(plan.runs), True)
    before = finished_before(runs, how.out)
    with activity(name) as work:
        finished = run_experiments(runs, how.out, data=how.data, resume=resume, jobs=jobs, progress=work.tell)
    if how.baselines:
        from sottovoce.run.baselines import with_baselines

        with activity("baselines") as work:
            finished = with_baselines(finished, how.out, data=how.data, jobs=jobs, progress=work.tell)
    if shard is not None:
        missing = shard.end(how.out / name, finished)
        if missing:
            part = {"shard": f"{shard.number} of {shard.count}", "runs": len(runs), "missing": missing}
            answer({"name": name, **part}, facts(part))
            return
        finished = shard.merged(plan.runs, how.out, how.out / name, how.data)
        before += finished_before([run for run in plan.runs if run not in runs], how.out)
    notes = only_read(before)
    page = write_results(how.out / name, name, about, finished, plan.command, notes)
    rows = sweep_rows(finished)
    if how.trackers:
        from sottovoce.report.page import read_checked_runs
        from sottovoce.report.tracking import track

        print_remark(track(read_checked_runs([how.out / name], how.data), how.trackers, how.out))
    answered = {"name": name, "page": str(page), "runs": [row.document() for row in rows]}
    if plan.attacks:
        from sottovoce.attacks.run_attacks import attack_rows
        from sottovoce.report.attack_report import write_attacks

        with activity("attacks") as work:
            attacked = attack_rows(rows, plan.attacks, how.out, data=how.data, progress=work.tell)
        answered["attacks"] = str(write_attacks(how.out / name, name, about, attacked, plan.command))
    averaged = final_average_text(run.experiment.metrics.final_rounds for run in plan.runs)
    answer(answered, _table(rows), *([f"Test figures: {averaged}."] if averaged else []))
    print_remark(f"Page: {' and '.join(str(answered[key]) for key in ('page', 'attacks') if key in answered)}")
    for note in notes:
        print_remark(note)


def _facts(run: "RunDocuments") -> Table:
    """The result of one run, with the same final figures as in `sotto compare`."""
    from sottovoce.report.quality import baseline_rows, constant_rows, quality_rows
    from sottovoce.report.wording import noise_text, spent_text
    from sottovoce.run.run_documents import final_average_text

    result, headline = run.result, run.privacy.headline
    last, metric, settings = result["metrics"], run.metric, run.experiment
    final = {figure: run.final_metric(figure) for figure in ("average", "mean", "min", "max")}
    shown = {
        "run": result["name"],
        "algorithm": f"{result['algorithm']} on {result['topology']}, {_rounds(result['rounds'])}",
        **constant_rows(result.get("held_out")),
        f"test {metric} of the average model": f"{final['average']:.4f}",
        f"test {metric} of nodes": "{mean:.4f} ({min:.4f} to {max:.4f})".format(**final),
        **({"test figures": averaged} if (averaged := final_average_text([settings.metrics.final_rounds])) else {}),
        **quality_rows(result.get("held_out")),
        **baseline_rows(run.baselines, result.get("held_out")),
        "sent": f"{last['messages']:,} messages, {size_text(last['bytes'])}{_between(last)}",
        "noise": noise_text(run.privacy),
        "epsilon": _epsilon(run.privacy),
        **spent_text(result),
        **({"it holds": str(run.privacy.covers)} if run.privacy.covers is not None else {}),
        **_limits(headline, settings),
        **({"single nodes": run.privacy.attackers} if _is_sampled(run) else {}),
        "seconds of training": f"{result['seconds']:.1f}",
        "folder": result["folder"],
        "page": f"{result['folder']}/report.html",
    }
    return facts(shown)


def _is_sampled(run: "RunDocuments") -> bool:
    """Whether nodes were left out as adversaries although nobody asked for that."""
    victims = {one.victim for view in run.privacy.views for one in view.guarantees}
    unasked = run.experiment.privacy.attackers == "auto" and run.privacy.sigma is not None and len(victims) > 1
    return unasked and len(run.privacy.node_views) < len(victims)


def _limits(headline: "PrivacyFigure", settings: "Experiment") -> dict[str, str]:
    """Whom a target was set for, what the figure leaves out, who may know the noise: where that is not the usual."""
    from sottovoce.privacy.assumptions import FINAL_MODELS, AssumptionKind

    found = {}
    if settings.privacy.epsilon is not None and settings.privacy.view != "everyone":
        found["target"] = f"epsilon {settings.privacy.epsilon:g} against {settings.privacy.view}"
    if not headline.proves_nothing:
        rounding = "rounding of floating-point numbers"
        covered = {FINAL_MODELS: headline.covers_final_models, rounding: headline.covers_rounding}
        if not all(covered.values()):
            found["not covered"] = "; ".join(what for what, is_covered in covered.items() if not is_covered)
    if settings.noise == "secret" or settings.noise_key is not None:
        known = AssumptionKind.REPRODUCIBLE_RUN if settings.noise is None else AssumptionKind.SECRET_NOISE
        found["noise key"] = known.value
    return found


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count:,} rounds"


def _between(last: "Document") -> str:
    """What of it went between processes, as counted there."""
    return f", {size_text(last['wire_bytes'])} between processes" if "wire_bytes" in last else ""


def _epsilon(privacy: "PrivacyDocument") -> str:
    headline = privacy.headline
    if headline.proves_nothing:
        return "inf: nothing is proven, see privacy.json"
    if privacy.is_silent:
        return "inf: without noise nothing limits what messages tell about the data"
    at_delta = f"{round_up(headline.epsilon)} at delta {privacy.delta:g}, {headline.view} as adversary"
    return f"{at_delta}, {changed_data(privacy.adjacency, headline.change)}, {headline.kind}"


def _table(rows: "list[SweepRow]") -> Table:
    """A sweep: means over seeds, with deviations."""
    from sottovoce.report.sweep_report import epsilon_text
    from sottovoce.report.wording import deviation_text

    metric = rows[0].metric if rows else ""
    table = [["run", "seeds", f"{metric}, average model", f"{metric}, nodes", "test loss", "epsilon", "sent"]]
    for row in rows:
        found = row.document()
        figures = [deviation_text(**found[key]) for key in ("average_model", "mean_node", "loss")]
        sent = size_text(1e6 * found["megabytes"])
        table.append([row.label, str(len(row.runs)), *figures, epsilon_text(row.epsilon), sent])
    return table
