"""`sotto audit`: a run's folder computed again, its guarantees and the claims of others beside lower bounds."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Exit, Option

from sottovoce.cli.app import app
from sottovoce.cli.options import Code, Data, Jobs, Json, Seed, Yes, refuse_given
from sottovoce.cli.output import answer, facts, print_note, print_sentence, print_sentences, show_findings
from sottovoce.cli.progress import activity
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.auditing.outside_claims import Judgement
    from sottovoce.run.finished_run import FinishedRun
    from sottovoce.run.folder_check import FolderCheck
    from sottovoce.support.progress import Progress

DELTA = 1e-5
"""Of a claim about settings, where none is given."""


@app.command()
def audit(
    run: Path | None = Argument(None, help="Folder of a finished run."),
    settings: str | None = Option(
        None, help="In place of a run: DP-SGD settings, key=value with commas; docs/audit.md."
    ),
    preset: str | None = Option(None, help="--settings are those of flower, nvflare or opacus, by their own names."),
    claim: float | None = Option(None, help="Epsilon that somebody claims; exit code 4 if it is refuted."),
    delta: float | None = Option(None, help="Delta of the claim; default: that of the run, or 1e-5."),
    adjacency: str | None = Option(None, help="What the claim protects: record or user; default: as the run."),
    change: str | None = Option(
        None,
        help="How it changes in the claim: replace, or zero-out: it is there or counts as nothing.",
        show_default="replace",
    ),
    view: str | None = Option(None, help="Against whom the claim is: everyone, or node:A.", show_default="everyone"),
    paper: str | None = Option(None, help="Who claims it, for the page; default: [about] paper."),
    title: str | None = Option(None, help="Title of the page about the claim."),
    out: Path | None = Option(None, "--out", help="File for the page about the claim; default: RUN/claim.html."),
    runs: int = Option(8, min=0, help="Number of reruns with input canaries; 0 for none."),
    rerun: bool = Option(
        True, "--rerun/--no-rerun", help="Play the run again, and compare the figures of every round."
    ),
    attacker: str | None = Option(
        None, help="Node that receives from the victim of input canaries, by number or name."
    ),
    repetitions: int = Option(10_000, min=100, help="Repetitions of the mechanism with gradient canaries."),
    confidence: float = Option(0.999, help="Confidence of all lower bounds together."),
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
    about = {"--delta": delta, "--adjacency": adjacency, "--view": view, "--change": change, "--paper": paper}
    given = {name: value is not None for name, value in about.items()}
    if claim is None and run is not None:
        refuse_given(given, "it says what a claim is about", "give the claimed epsilon", beside=" without --claim")
    if run is None:
        of_runs = {name: given[name] for name in ("--adjacency", "--view", "--change")}
        refuse_given(of_runs, "it is about a claim about a run", "say it in --settings", beside=" with --settings")
        _audit_settings(settings or "", preset, claim, delta, paper, title, out)
        return
    if preset is not None:
        raise InputError(f"--preset {preset} with a run", "a preset says how --settings are read", "leave it out")
    from sottovoce.attacks.evaluation import check_confidence
    from sottovoce.auditing.canaries import audit_inputs
    from sottovoce.auditing.claim_checks import RunAudit, attacks_made, audit_gradients, judge
    from sottovoce.auditing.outside_claims import OutsideClaim
    from sottovoce.core.participation import parse_adjacency, parse_change
    from sottovoce.privacy import views
    from sottovoce.report.claim_page import write_claim_page
    from sottovoce.report.page import write_page_of
    from sottovoce.run.finished_run import open_doubted_run
    from sottovoce.run.layout import RunFiles
    from sottovoce.run.run_documents import read_doubted_run

    with activity("opening"):
        opened = open_doubted_run(run, data)
    listener = None if attacker is None else opened.node(attacker)
    if listener is not None:
        views.node(listener).check(opened.training_run.topology.n)
    stated, experiment = None, opened.experiment
    if claim is not None:
        stated = OutsideClaim(
            epsilon=claim, delta=experiment.privacy.delta if delta is None else delta,
            adjacency=parse_adjacency(adjacency or experiment.privacy.adjacency).value,
            change=parse_change(change or "replace").value, view=view or "everyone",
            paper=experiment.about.paper if paper is None else paper, words=experiment.about.claim,
        )  # fmt: skip
    with activity("rerun") as work:
        folder = _check_folder(opened, rerun, work.tell)
    each = 1 - check_confidence(confidence) / attacks_made(opened, reruns=runs)
    with activity("gradient canaries"):
        checks, refused = audit_gradients(opened, repetitions=repetitions, confidence=each, seed=seed)
    if runs and not folder.findings:
        try:
            with activity("reruns") as work:
                checks.append(
                    audit_inputs(
                        opened, runs=runs, attacker=listener, confidence=each, seed=seed, jobs=jobs,
                        progress=work.tell, note=print_note,
                    )
                )  # fmt: skip
        except Unaccountable as refusal:
            refused.append(str(refusal))
    judgement = None
    if stated is not None:
        with activity("the claim"):
            judgement = judge(opened, checks, stated)
    found = RunAudit(tuple(checks), tuple(refused), folder, confidence, judgement)
    document = {"run": str(run), **found.document()}
    files = RunFiles(run)
    files.write_document(files.audit, document)
    if not folder.findings:
        write_page_of(replace(read_doubted_run(run), check=folder), again=True)
    show_findings(folder.findings)
    if judgement is not None:
        place = out or run / "claim.html"
        write_claim_page(
            place, judgement, title=title, settings=_facts_of(opened), commands=_again(run, judgement, data),
            findings=folder.findings,
        )  # fmt: skip
        print_sentences(judgement.notes())
    answer(document, found.table(), *found.notes())
    if found.exit_code:
        raise Exit(found.exit_code)


def _check_folder(finished_run: "FinishedRun", rerun: bool, tell: "Progress | None") -> "FolderCheck":
    """What the folder states, its page and its exported model among it, computed again."""
    from sottovoce.auditing.recomputation import check_files
    from sottovoce.report.model_export import check_export
    from sottovoce.report.page_check import check_page
    from sottovoce.run.run_documents import read_doubted_run

    documents = read_doubted_run(finished_run.folder)
    found = check_files(finished_run, documents, rerun=rerun, progress=tell)
    for more in () if found.findings else (check_page(documents), check_export(finished_run)):
        found.findings += more.findings
        found.not_checked.update(more.not_checked)
    return found


def _facts_of(finished_run: "FinishedRun") -> dict[str, str]:
    """The settings of a run that decide what it protects, for readers of a page about a claim."""
    from sottovoce.report.wording import noise_text

    experiment, run = finished_run.experiment, finished_run.training_run
    given = {key: value for key, value in experiment.algorithm.settings.items() if value is not None}
    return {
        "algorithm": run.algorithm.name,
        "settings": ", ".join(f"{key} {value}" for key, value in given.items()),
        "graph": f"{run.topology.name}, {run.topology.n} nodes",
        "rounds": f"{run.rounds:,}",
        "noise": noise_text(finished_run.privacy),
        "data and model": f"{experiment.data.name}, {experiment.model.name}",
        "batches": experiment.training.batch,
        "clipping": f"{experiment.training.clip}, bound {experiment.training.bound}",
    }


def _again(run: Path, judgement: "Judgement", data: Path | None) -> list[str]:
    claim, there = judgement.claim, "" if data is None else f" --data {data}"
    about = f"--claim {claim.epsilon:g} --delta {claim.delta:g} --adjacency {claim.adjacency} --change {claim.change}"
    return [f"sotto run {run}/config.json{there}", f"sotto audit {run} {about} --view {claim.view}{there}"]


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
    from sottovoce.auditing.given_settings import mechanism
    from sottovoce.auditing.lower_bound import round_down
    from sottovoce.auditing.outside_claims import REFUTED, Outcome, OutsideClaim, about_settings
    from sottovoce.report.claim_page import write_claim_page
    from sottovoce.support.text import to_json

    found = mechanism(settings, preset)
    if epsilon is None and delta is not None and found.stated_delta not in (None, delta):
        raise InputError(f"--delta {delta:g}", f"what is stated is for {found.stated_delta:g}", "give --claim with it")
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
        write_claim_page(out, judgement, title=title, settings=found.facts(), commands=[command])
    if judgement is not None and judgement.outcome is Outcome.REFUTED:
        raise Exit(REFUTED)
