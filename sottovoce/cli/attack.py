"""`sotto attack`: what an adversary gets out of a finished run."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from sottovoce.attacks.registry import (
    ATTACKS,
    Attack,
    AttackOptions,
    attack_by_name,
    attacks_with,
)
from sottovoce.attacks.registry import Option as Taken
from sottovoce.cli.app import app
from sottovoce.cli.options import Code, Data, Jobs, Json, Seed, Yes, options_given, refuse_given
from sottovoce.cli.output import answer, print_note
from sottovoce.cli.progress import activity
from sottovoce.errors import InputError

Attacker = Annotated[str | None, Option(help="Only this node, by number or name; default: all that were recorded.")]


def _names(attacks: tuple[Attack, ...]) -> str:
    *most, last = [attack.name for attack in attacks]
    return f"{', '.join(most)} or {last}" if most else last


def _help(option: Taken, text: str) -> str:
    """Help on an option that only some attacks take."""
    return f"{_names(attacks_with(option))}: {text}"


@app.command()
def attack(
    context: Context,
    runs: list[Path] | None = Argument(
        None, help="Folders of finished runs; several are taken as seeds of one experiment."
    ),
    model: Path | None = Option(
        None, help="In place of runs: the folder that sotto export wrote, or a .safetensors file beside its model.json."
    ),
    members: Path | None = Option(None, help="--model: table of rows that it was trained on."),
    others: Path | None = Option(None, help="--model: table of rows that it was not trained on."),
    name: str = Option(ATTACKS[0].name, "--attack", help=f"{_names(ATTACKS)}."),
    attacker: Attacker = None,
    view: str | None = Option(
        None, help=_help(Taken.VIEW, "who pools, coalition:A,B or everyone; default: each node alone.")
    ),
    samples: int = Option(
        AttackOptions.samples,
        min=1,
        help=_help(Taken.SAMPLES, "number of members of a victim to test, and of non-members."),
    ),
    shadows: int = Option(
        AttackOptions.shadows,
        min=2,
        help=_help(Taken.SHADOWS, "number of shadow runs; RMIA below 16, LiRA from 16 on."),
    ),
    confidence: float = Option(AttackOptions.confidence, help="Confidence of the intervals."),
    seed: Seed = 0,
    jobs: Jobs = None,
    data: Data = None,
    code: Code = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Attack what nodes received in a finished run. Example: sotto attack runs/digits --attacker 0"""
    if model is not None or not runs:
        _attack_model(options_given(context), model, members, others, confidence, seed)
        return
    refuse_given({"--members": members, "--others": others}, "they are about a --model", "leave it out")
    from sottovoce.attacks.run_attacks import result_document, run_attack, store_attack, stored_attacks
    from sottovoce.report.page import write_page_of
    from sottovoce.run.finished_run import open_run

    chosen = attack_by_name(name, given_as="--attack")
    if len(runs) > 1 and not chosen.several_runs:
        raise InputError(f"{len(runs)} runs with --attack {name}", "it attacks one run", "attack them one by one")
    with activity("opening"):
        finished_runs = [open_run(folder, data) for folder in runs]
    for folder in runs:
        stored_attacks(folder)  # a damaged attack.json is refused before any work
    with activity(chosen.progress or name) as work:
        options = AttackOptions(
            attacker=None if attacker is None else finished_runs[0].node(attacker), view=view, samples=samples,
            shadows=shadows, confidence=confidence, seed=seed, jobs=jobs, progress=work.tell, note=print_note,
        )  # fmt: skip
        result = run_attack(chosen, finished_runs, options)
    document = store_attack(runs, name, result_document(chosen, result, options))
    for folder in runs:
        write_page_of(folder, again=True, data=data)
    answer(document, result.table(), *result.notes())


def _attack_model(
    given: dict[str, str], model: Path | None, members: Path | None, others: Path | None, confidence: float, seed: int
) -> None:
    if model is None or members is None or others is None:
        lacking = next(one for one in ("model", "members", "others") if one not in given)
        raise InputError(
            f"no --{lacking}", "an attack is on runs, or on a model, with rows that it was trained on and others",
            "name the folders of runs, or give --model, --members and --others",
        )  # fmt: skip
    known = {"model", "members", "others", "confidence", "seed", "yes", "as_json"}
    refuse_given({given[name]: name not in known for name in given}, "it is about runs", "leave it out")
    from sottovoce.attacks.exported_models import attack_model
    from sottovoce.learning.exported_model import read_exported_model

    with activity("attacking the model"):
        found = attack_model(read_exported_model(model), members, others, confidence=confidence, seed=seed)
    asked = {"runs": [str(members), str(others)], "attacker": "whoever has the model", "seed": seed}
    attacks = [
        {**asked, "attack": one.method, "samples": max(one.members, one.nonmembers), **one.document()} for one in found
    ]
    document = {"model": str(model), "attacks": attacks}
    answer(document, [row for one in found for row in one.table()], *found[0].notes())
