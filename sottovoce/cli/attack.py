"""`sotto attack` and `sotto audit`: what an adversary gets out of a finished run, and its guarantees checked."""

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.attacks.registry import (
    ATTACKS,
    Attack,
    AttackOptions,
    AttackResult,
    Option,
    PictureResult,
    attack_by_name,
    attacks_with,
)
from sottovoce.cli.app import app
from sottovoce.cli.options import Code, Json, Yes, offering
from sottovoce.cli.output import answer, print_note, progress, show_elapsed, show_findings
from sottovoce.errors import InputError, Unaccountable

Data = Annotated[Path | None, typer.Option("--data", help="Folder of data sets; default: SOTTOVOCE_DATA.")]
Attacker = Annotated[
    str | None, typer.Option(help="Only this node, by number or name; default: all that were recorded.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed for sampling.")]
Jobs = Annotated[int | None, typer.Option(min=1, max=64, help="Number of runs at once; default: one per core.")]


def _names(attacks: tuple[Attack, ...]) -> str:
    *most, last = [attack.name for attack in attacks]
    return f"{', '.join(most)} or {last}" if most else last


def _help(option: Option, text: str) -> str:
    """Help on an option that only some attacks take."""
    return f"{_names(attacks_with(option))}: {text}"


def _attack_names() -> list[str]:
    return [attack.name for attack in ATTACKS]


@app.command()
def attack(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs; several are taken as seeds of one experiment.")
    ],
    name: Annotated[
        str, typer.Option("--attack", help=f"{_names(ATTACKS)}.", autocompletion=offering(_attack_names))
    ] = ATTACKS[0].name,
    attacker: Attacker = None,
    view: Annotated[
        str | None,
        typer.Option(help=_help(Option.VIEW, "who pools, coalition:A,B or everyone; default: each node alone.")),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help=_help(Option.PICTURE, "draw what was found into this SVG file."))
    ] = None,
    samples: Annotated[
        int,
        typer.Option(min=1, help=_help(Option.SAMPLES, "number of members of a victim to test, and of non-members.")),
    ] = AttackOptions.samples,
    shadows: Annotated[
        int, typer.Option(min=2, help=_help(Option.SHADOWS, "number of shadow runs; RMIA below 16, LiRA from 16 on."))
    ] = AttackOptions.shadows,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = AttackOptions.confidence,
    seed: Seed = 0,
    jobs: Jobs = None,
    data: Data = None,
    code: Code = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Attack what nodes received in a finished run. Example: sotto attack runs/digits --attacker 0"""
    from sottovoce.attacks.run_attacks import result_document, run_attack, store_attack, stored_attacks
    from sottovoce.report.page import write_page_of
    from sottovoce.run.finished_run import open_run
    from sottovoce.support.files import check_writable

    chosen = attack_by_name(name, given_as="--attack")
    if picture is not None and not chosen.takes(Option.PICTURE):
        drawing = _names(attacks_with(Option.PICTURE))
        raise InputError(f"--picture with {name}", f"only {drawing} draws", f"add --attack {drawing}")
    with show_elapsed("opening"):
        finished_runs = [open_run(folder, data) for folder in runs]
    for folder in runs:
        stored_attacks(folder)  # a damaged attack.json is refused before any work
    if picture is not None:
        picture = check_writable(picture)
    attacked = finished_runs if chosen.several_runs else finished_runs[:1]
    with progress(chosen.progress or name) as tell:
        options = AttackOptions(
            attacker=None if attacker is None else attacked[0].node(attacker), view=view, samples=samples,
            shadows=shadows, confidence=confidence, seed=seed, jobs=jobs, progress=tell, note=print_note,
        )  # fmt: skip
        result = run_attack(chosen, attacked, options)
    if picture is not None:
        _draw(result, picture)
    folders = [run.folder for run in attacked]
    document = store_attack(folders, name, result_document(chosen, result, options))
    for folder in folders:
        write_page_of(folder, again=True)
    answer(document, as_json, result.table(), *result.notes())


def _draw(result: AttackResult, picture: Path) -> None:
    from sottovoce.report.picture_gallery import gallery
    from sottovoce.support.files import write_text

    assert isinstance(result, PictureResult)
    write_text(picture, gallery(result.pictures(), result.picture_shape))


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    runs: Annotated[int, typer.Option(min=0, help="Number of reruns with input canaries; 0 for none.")] = 8,
    attacker: Annotated[
        str | None, typer.Option(help="Node that receives from the victim of input canaries, by number or name.")
    ] = None,
    repetitions: Annotated[
        int, typer.Option(min=100, help="Repetitions of the mechanism with gradient canaries.")
    ] = 10_000,
    confidence: Annotated[float, typer.Option(help="Confidence of each lower bound.")] = 0.999,
    seed: Seed = 0,
    jobs: Jobs = None,
    data: Data = None,
    code: Code = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Compare the guarantees of a finished run with lower bounds from attacks; exit code 1 if one is exceeded.

    First all guarantees are computed again from the settings. If the folder contradicts itself, that is printed
    first, as a finding, with exit code 1.

    Example: sotto audit runs/digits --runs 4
    """
    from sottovoce.auditing.canaries import audit_inputs
    from sottovoce.auditing.claim_checks import RunAudit, audit_gradients
    from sottovoce.privacy import views
    from sottovoce.report.contradictions import contradictions_in
    from sottovoce.report.page import write_page_of
    from sottovoce.run.claim_recomputation import unlike_settings
    from sottovoce.run.finished_run import open_run
    from sottovoce.run.layout import RunFiles
    from sottovoce.run.run_documents import read_runs

    with show_elapsed("opening"):
        finished_run = open_run(run, data)
    listener = None if attacker is None else finished_run.node(attacker)
    if listener is not None:
        views.node(listener).check(finished_run.training_run.topology.n)
    with show_elapsed("guarantees"):
        findings = contradictions_in(read_runs([run])[0]) or unlike_settings(finished_run)
    with show_elapsed("gradient canaries"):
        checks, refused = audit_gradients(finished_run, repetitions=repetitions, confidence=confidence, seed=seed)
    try:
        with progress("reruns") as tell:
            if runs:
                checks.append(
                    audit_inputs(
                        finished_run, runs=runs, attacker=listener, confidence=confidence, seed=seed, jobs=jobs,
                        progress=tell, note=print_note,
                    )
                )  # fmt: skip
    except Unaccountable as refusal:
        refused.append(str(refusal))
    found = RunAudit(tuple(checks), tuple(refused), tuple(findings))
    document = {"run": str(run), **found.document()}
    files = RunFiles(run)
    files.write_document(files.audit, document)
    write_page_of(run, again=True)
    show_findings(found.findings, as_json)
    answer(document, as_json, found.table(), *found.notes())
    if not found.consistent:
        raise typer.Exit(1)
