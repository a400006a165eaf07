"""`sotto audit`: a run's folder computed again, its guarantees and the claims of others beside lower bounds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.app import app
from sottovoce.cli.options import Code, Data, Jobs, Json, Seed, Yes
from sottovoce.cli.output import answer, facts, print_note, print_sentence, print_sentences, show_findings
from sottovoce.cli.progress import activity
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.auditing.claim_checks import ClaimCheck, RunAudit
    from sottovoce.auditing.folder_check import FolderCheck
    from sottovoce.auditing.outside_claims import Judgement, OutsideClaim
    from sottovoce.run.finished_run import FinishedRun
    from sottovoce.support.progress import Progress

DELTA = 1e-5
"""Of a claim about settings, where none is given."""


@app.command()
def audit(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run.")] = None,
    settings: Annotated[
        str | None, typer.Option(help="In place of a run: DP-SGD settings, key=value with commas; docs/audit.md.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="--settings are those of flower, nvflare or opacus, by their own names.")
    ] = None,
    claim: Annotated[
        float | None, typer.Option(help="Epsilon that somebody claims; exit code 4 if it is refuted.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the claim; default: that of the run, or 1e-5.")] = None,
    adjacency: Annotated[
        str | None, typer.Option(help="What the claim protects: record or user; default: as the run.")
    ] = None,
    change: Annotated[
        str | None,
        typer.Option(
            help="How it changes in the claim: replace, or zero-out: it is there or counts as nothing.",
            show_default="replace",
        ),
    ] = None,
    view: Annotated[
        str | None, typer.Option(help="Against whom the claim is: everyone, or node:A.", show_default="everyone")
    ] = None,
    paper: Annotated[str | None, typer.Option(help="Who claims it, for the page; default: [about] paper.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page about the claim.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="File for the page about the claim; default: RUN/claim.html.")
    ] = None,
    runs: Annotated[int, typer.Option(min=0, help="Number of reruns with input canaries; 0 for none.")] = 8,
    rerun: Annotated[
        bool, typer.Option("--rerun/--no-rerun", help="Play the run again, and compare the figures of every round.")
    ] = True,
    attacker: Annotated[
        str | None, typer.Option(help="Node that receives from the victim of input canaries, by number or name.")
    ] = None,
    repetitions: Annotated[
        int, typer.Option(min=100, help="Repetitions of the mechanism with gradient canaries.")
    ] = 10_000,
    confidence: Annotated[float, typer.Option(help="Confidence of all lower bounds together.")] = 0.999,
    seed: Seed = 0,
    jobs: Jobs = None,
    data: Data = None,
    code: Code = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Compare the claims about a run, or about settings, with what is really so.

    Everything that the folder of a run states is computed again; what cannot be is listed as not checked. Exit code 1:
    the folder contradicts itself, which is printed first. Exit code 4: a claim is refuted, the run's own or --claim.

    Example: sotto audit runs/digits --runs 4
    """
    if (run is None) == (settings is None):
        raise InputError("a run and --settings" if run else "no run", "an audit is about one of them", "give RUN")
    if settings is not None:
        _audit_settings(settings, preset, claim, delta, paper, title, out)
        return
    assert run is not None
    about = {"--delta": delta, "--adjacency": adjacency, "--view": view, "--change": change, "--paper": paper}
    given = [name for name, value in about.items() if value is not None]
    if claim is None and given:
        raise InputError(f"{given[0]} without --claim", "it says what a claim is about", "give the claimed epsilon")
    if preset is not None:
        raise InputError(f"--preset {preset} with a run", "a preset says how --settings are read", "leave it out")
    from sottovoce.attacks.confidence import check_confidence
    from sottovoce.auditing.claim_checks import RunAudit, attacks_made, audit_gradients
    from sottovoce.privacy import views
    from sottovoce.report.page import write_page_of
    from sottovoce.run.finished_run import open_doubted_run
    from sottovoce.run.layout import RunFiles

    with activity("opening"):
        finished_run = open_doubted_run(run, data)
    listener = None if attacker is None else finished_run.node(attacker)
    if listener is not None:
        views.node(listener).check(finished_run.training_run.topology.n)
    stated = _stated(finished_run, claim, delta, adjacency, change or "replace", view or "everyone", paper)
    with activity("rerun") as work:
        folder = _check_folder(finished_run, rerun, work.tell)
    each = 1 - check_confidence(confidence) / attacks_made(finished_run, reruns=runs)
    with activity("gradient canaries"):
        checks, refused = audit_gradients(finished_run, repetitions=repetitions, confidence=each, seed=seed)
    if runs and not folder.findings:
        _add_input_canaries(checks, refused, finished_run, runs, listener, each, seed, jobs)
    judgement = None if stated is None else _judged(finished_run, checks, stated)
    found = RunAudit(tuple(checks), tuple(refused), tuple(folder.findings), folder.not_checked, confidence, judgement)
    document = {"run": str(run), **found.document()}
    files = RunFiles(run)
    files.write_document(files.audit, document)
    if not folder.findings:
        write_page_of(run, again=True)
    if judgement is not None:
        _write_claim_page(out or run / "claim.html", judgement, title, _facts_of(finished_run), _again(run, judgement))
    _answer(found, document)


def _answer(found: "RunAudit", document: dict[str, object]) -> None:
    show_findings(found.findings)
    if found.outside is not None:
        print_sentences(found.outside.notes())
    answer(document, found.table(), *found.notes())
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _check_folder(finished_run: "FinishedRun", rerun: bool, tell: "Progress | None") -> "FolderCheck":
    """What the folder states, its page and its exported model among it, computed again."""
    from sottovoce.auditing.recomputation import check_files
    from sottovoce.report.contradictions import check_page
    from sottovoce.report.model_export import check_export
    from sottovoce.run.run_documents import read_doubted_run

    documents = read_doubted_run(finished_run.folder)
    found = check_files(finished_run, documents, rerun=rerun, progress=tell)
    for more in () if found.findings else (check_page(documents), check_export(finished_run)):
        found.findings += more.findings
        found.not_checked.update(more.not_checked)
    return found


def _add_input_canaries(
    checks: "list[ClaimCheck]",
    refused: list[str],
    finished_run: "FinishedRun",
    runs: int,
    listener: int | None,
    confidence: float,
    seed: int,
    jobs: int | None,
) -> None:
    from sottovoce.auditing.canaries import audit_inputs

    try:
        with activity("reruns") as work:
            checks.append(
                audit_inputs(
                    finished_run, runs=runs, attacker=listener, confidence=confidence, seed=seed, jobs=jobs,
                    progress=work.tell, note=print_note,
                )
            )  # fmt: skip
    except Unaccountable as refusal:
        refused.append(str(refusal))


def _stated(
    finished_run: "FinishedRun",
    epsilon: float | None,
    delta: float | None,
    adjacency: str | None,
    change: str,
    view: str,
    paper: str | None,
) -> "OutsideClaim | None":
    """The claim of others, if there is one."""
    from sottovoce.auditing.outside_claims import OutsideClaim
    from sottovoce.core.adjacency import parse_adjacency, parse_change

    if epsilon is None:
        return None
    about, privacy = finished_run.experiment.about, finished_run.experiment.privacy
    return OutsideClaim(
        epsilon=epsilon, delta=privacy.delta if delta is None else delta,
        adjacency=parse_adjacency(adjacency or privacy.adjacency).value, change=parse_change(change).value, view=view,
        paper=about.paper if paper is None else paper, words=about.claim,
    )  # fmt: skip


def _judged(finished_run: "FinishedRun", checks: "list[ClaimCheck]", claim: "OutsideClaim") -> "Judgement":
    from sottovoce.auditing.evidence import judge

    with activity("the claim"):
        return judge(finished_run, checks, claim)


def _facts_of(finished_run: "FinishedRun") -> dict[str, str]:
    """The settings of a run that decide what it protects, for readers of a page about a claim."""
    experiment, run = finished_run.experiment, finished_run.training_run
    given = {key: value for key, value in experiment.algorithm.settings.items() if value is not None}
    return {
        "algorithm": run.algorithm.name,
        "settings": ", ".join(f"{key} {value}" for key, value in given.items()),
        "graph": f"{run.topology.name}, {run.topology.n} nodes",
        "rounds": f"{run.rounds:,}",
        "batches": experiment.training.batch,
        "clipping": f"{experiment.training.clip}, bound {experiment.training.bound}",
        "change": f"one {experiment.privacy.adjacency} replaced by another",
    }


def _again(run: Path, judgement: "Judgement") -> list[str]:
    claim = judgement.claim
    about = f"--claim {claim.epsilon:g} --delta {claim.delta:g} --adjacency {claim.adjacency} --change {claim.change}"
    return [f"sotto run {run}/config.json", f"sotto audit {run} {about} --view {claim.view}"]


def _write_claim_page(
    place: Path, judgement: "Judgement", title: str | None, settings: dict[str, str], commands: list[str]
) -> None:
    from sottovoce.report.claim_page import write_claim_page

    write_claim_page(place, judgement, title=title, settings=settings, commands=commands)


def _audit_settings(
    settings: str,
    preset: str | None,
    epsilon: float | None,
    delta: float | None,
    paper: str | None,
    title: str | None,
    out: Path | None,
) -> None:
    """What settings really give, and a claim beside it."""
    from sottovoce.auditing.claim_checks import REFUTED
    from sottovoce.auditing.given_settings import mechanism
    from sottovoce.auditing.lower_bound import round_down
    from sottovoce.auditing.outside_claims import Outcome, OutsideClaim, about_settings
    from sottovoce.support.json_numbers import to_json

    found = mechanism(settings, preset)
    delta = delta if delta is not None else found.stated_delta if found.stated_delta is not None else DELTA
    claimed = epsilon if epsilon is not None else found.stated_epsilon
    claim = OutsideClaim(
        epsilon=0.0 if claimed is None else claimed, delta=delta, adjacency=found.adjacency, view="who sees releases",
        change="as above", paper=paper or "",
    )  # fmt: skip
    with activity("epsilon"):
        least, most = found.epsilon(delta)
    judgement = None if claimed is None else about_settings(claim, least, most)
    shown = {
        **found.facts(), "delta": f"{delta:g}", "epsilon, at least": round_down(least),
        "epsilon, at most": round_up(most),
    }  # fmt: skip
    document = {
        "settings": found.facts(), "delta": delta, "least": to_json(least), "most": to_json(most),
        "claim": None if judgement is None else judgement.document(),
    }  # fmt: skip
    if judgement is not None:
        print_sentence(judgement.sentence)
    answer(document, facts(shown))
    if judgement is not None and out is not None:
        named = "" if preset is None else f" --preset {preset}"
        command = f"sotto audit --settings '{settings}'{named} --claim {claim.epsilon:g} --delta {delta:g}"
        _write_claim_page(out, judgement, title, found.facts(), [command])
    if judgement is not None and judgement.outcome is Outcome.REFUTED:
        raise typer.Exit(REFUTED)
