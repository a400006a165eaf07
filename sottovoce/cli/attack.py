"""`sotto attack` and `sotto audit`: what curious nodes get out of a finished run, beside what it promised."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.app import app
from sottovoce.cli.options import Json
from sottovoce.cli.output import Table, answer, doing, progress
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.attacks.evaluation import Success
    from sottovoce.auditing.claim_checks import Checked
    from sottovoce.run.finished_run import FinishedRun

Data = Annotated[Path | None, typer.Option("--data", help="Folder of data sets; else SOTTOVOCE_DATA.")]
Attacker = Annotated[int | None, typer.Option(help="Only this node; all that were recorded unless given.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of what is sampled.")]
Jobs = Annotated[int | None, typer.Option(min=1, max=64, help="Runs at once; one per core unless given.")]


@app.command()
def attack(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs; several are seeds of one experiment.")],
    kind: Annotated[
        str, typer.Option("--attack", help="threshold, classifier, likelihood, pooled, reconstruction or inversion.")
    ] = "threshold",
    attacker: Attacker = None,
    view: Annotated[
        str | None, typer.Option(help="pooled: who conspires, coalition:A,B or everyone; each alone unless given.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="inversion: draw what was found here, as SVG.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Members of a victim to try, and as many others.")] = 500,
    shadows: Annotated[int, typer.Option(min=2, help="likelihood: shadow runs; below 16 by RMIA, else LiRA.")] = 16,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    seed: Seed = 0,
    jobs: Jobs = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Attack what nodes received in a finished run. Example: sotto attack runs/digits --attacker 0"""
    from sottovoce.attacks.registry import ATTACKS
    from sottovoce.attacks.run_attacks import figures, infer, keep, solve, stored_attack
    from sottovoce.core.files import check_writable
    from sottovoce.report.page import write_page_of
    from sottovoce.run.finished_run import open_run

    if kind not in ATTACKS:
        raise InputError(f"--attack {kind}", f"known: {', '.join(ATTACKS)}", "choose one of them")
    if picture is not None and kind != "inversion":
        raise InputError(f"--picture with {kind}", "only inversion draws", "add --attack inversion")
    with doing("opening"):
        finished_run = [open_run(folder, data) for folder in runs]
    for folder in runs:
        stored_attack(folder)  # a damaged attack.json is refused before any work
    if picture is not None:
        check_writable(picture)
    if kind == "inversion":
        found, table, after = _inverted(finished_run[0], attacker or 0, picture, seed)
        runs = runs[:1]
    elif kind == "reconstruction":
        with doing(kind):
            documents = [solve(one, 0 if attacker is None else attacker) for one in finished_run]
        found = documents[0] if len(finished_run) == 1 else {"each": documents}
        table, after = _solved(documents[0]), [] if len(finished_run) == 1 else ["Shown is the first run."]
    else:
        with progress("shadow runs" if kind == "likelihood" else kind) as tell:
            success = infer(
                finished_run, kind, attacker=attacker, view=view, samples=samples, shadows=shadows, confidence=confidence,
                seed=seed, jobs=jobs, tell=tell,
            )  # fmt: skip
        who = view or ("all" if attacker is None else attacker)
        asked = {"attacker": who, "samples": samples, "seed": seed}
        found, table, after = {**asked, **figures(success)}, _figures(success), [_said(success)]
    document = keep(runs, kind, found)
    for folder in runs:
        write_page_of(folder, again=True)
    answer(document, as_json, table, *after)


def _inverted(
    finished_run: "FinishedRun", attacker: int, picture: Path | None, seed: int
) -> tuple[dict[str, Any], Table, list[str]]:
    from sottovoce.attacks.inversion import inverted
    from sottovoce.core.files import write_text
    from sottovoce.report.picture_gallery import gallery

    found, pictures = inverted(finished_run, attacker, seed=seed)
    if picture is not None:
        rows = {
            "batches": [one for truth, _ in pictures for one in truth],
            "found": [one for _, made in pictures for one in made],
        }
        write_text(picture, gallery(rows, finished_run.training_run.task.dataset.shape))
    table = [[f"node seen by {attacker}", "rows", "likeness of what was found", "of strangers"]]
    for one in found["victims"]:
        alike = ", ".join(f"{value:.2f}" for value in one["likeness"])
        table.append([str(one["victim"]), str(one["rows"]), alike, f"{one['strangers']:.2f}"])
    return found, table, ["Likeness is correlation with the closest picture found: 1 is the same picture."]


def _figures(success: "Success") -> Table:
    rows = {
        "ROC-AUC": success.auc,
        "true positives at 0.1 % false ones": success.tpr_at_0_1_percent,
        "true positives at 1 % false ones": success.tpr_at_1_percent,
        "advantage": success.advantage,
    }
    table = [[success.attack, "", "from", "to"]]
    table += [[name, f"{e.value:.4f}", f"{e.low:.4f}", f"{e.high:.4f}"] for name, e in rows.items()]
    return table


def _said(success: "Success") -> str:
    trend = ", ".join(f"{auc:.2f}" for _, auc in success.by_round[:: max(1, len(success.by_round) // 6)])
    over = f" Area by round: {trend}." if trend else ""
    if success.by_distance:
        over += " Area by hops: " + ", ".join(f"{hops}: {auc}" for hops, auc in success.by_distance) + "."
    return (
        f"{success.pairs} pairs of attacker and victim, {success.victims} victims, {success.members:,} members and "
        f"{success.others:,} others; {success.confidence:.0%} intervals {success.interval}.{over}"
    )


def _solved(found: dict[str, Any]) -> Table:
    table = [[f"node seen by {found['attacker']}", "hops", "gradients solved for", "sharpest", "in round"]]
    for one in found["nodes"]:
        solved = one["solved_rounds"]
        sharp = "none" if not solved else "exactly" if one["deviation"] < 1e-9 else f"± {one['deviation']:.4g}"
        shown = [str(one["node"]), str(one["distance"]), f"{solved} of {found['rounds']}", sharp]
        table.append([*shown, "" if one["round"] is None else str(one["round"])])
    return table


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    runs: Annotated[int, typer.Option(min=0, help="Reruns with input canaries; 0 for none.")] = 8,
    attacker: Annotated[int | None, typer.Option(help="Who listens to the victim of input canaries.")] = None,
    repetitions: Annotated[int, typer.Option(min=100, help="Of the mechanism, with gradient canaries.")] = 10_000,
    confidence: Annotated[float, typer.Option(help="Of each lower bound.")] = 0.999,
    seed: Seed = 0,
    jobs: Jobs = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Lower bounds on mu and epsilon beside the guarantees of a finished run; exit code 1 if one is exceeded.

    Example: sotto audit runs/digits --runs 4
    """
    from sottovoce.auditing.canaries import check_inputs
    from sottovoce.auditing.claim_checks import any_exceeded, check_gradients
    from sottovoce.core.files import write_text
    from sottovoce.privacy import views
    from sottovoce.report.page import write_page_of
    from sottovoce.run.finished_run import open_run
    from sottovoce.run.layout import RunFiles

    with doing("opening"):
        finished_run = open_run(run, data)
    if attacker is not None:
        views.node(attacker).check(finished_run.training_run.topology.n)
    with doing("gradient canaries"):
        checked, refused = check_gradients(finished_run, repetitions=repetitions, confidence=confidence, seed=seed)
    try:
        with progress("reruns") as tell:
            checked += [] if not runs else [
                check_inputs(
                    finished_run, runs=runs, attacker=attacker, confidence=confidence, seed=seed, jobs=jobs, tell=tell
                )
            ]  # fmt: skip
    except Unaccountable as refusal:
        refused.append(str(refusal))
    exceeded = any_exceeded(checked)
    document = {
        "run": str(run), "consistent": not exceeded, "refused": refused, "audits": [one.document() for one in checked],
    }  # fmt: skip
    write_text(RunFiles(run).audit, json.dumps(document, indent=1) + "\n")
    write_page_of(run, again=True)
    verdict = "A claim is exceeded: it is wrong, or something else ran." if exceeded else "No claim is exceeded."
    if not any(one.claims for one in checked):
        verdict = "There is no claim to compare with."
    answer(document, as_json, _beside(checked), verdict, *(f"Not audited: {line}" for line in refused))
    if exceeded:
        raise typer.Exit(1)


def _beside(checked: "list[Checked]") -> Table:
    table = [["canaries", "view", "victim", "rounds", "kind", "mu >=", "claimed", "epsilon >=", "claimed", "verdict"]]
    for one in checked:
        bounds = [_down(one.audit.mu), _down(one.audit.epsilon)]
        if not one.claims:
            table.append([one.canaries, "", "", str(one.rounds), "none", bounds[0], "", bounds[1], "", "no claim"])
        for claim in one.claims:
            mu = "" if claim.mu is None else round_up(claim.mu)
            victim = "any" if claim.victim is None else str(claim.victim)
            table.append([
                one.canaries, claim.view, victim, str(one.rounds), claim.kind, bounds[0], mu, bounds[1],
                round_up(claim.epsilon), one.verdict(claim),
            ])  # fmt: skip
    return table


def _down(value: float) -> str:
    return f"{math.floor(value * 1000) / 1000:g}" if math.isfinite(value) else "inf"
