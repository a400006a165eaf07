"""Running attacks on finished runs and on sweeps, and the file `attack.json` that their results are stored in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sottovoce.attacks.evaluation import MembershipResult, check_confidence
from sottovoce.attacks.registry import (
    MEMBERSHIP_ATTACKS,
    Attack,
    AttackOptions,
    AttackResult,
    Option,
    attack_by_name,
    attacks_with,
    names_of,
)
from sottovoce.errors import InputError
from sottovoce.run.finished_run import FinishedRun, open_run
from sottovoce.run.layout import RunFiles, read_private_facts
from sottovoce.run.sweep import SweepRow
from sottovoce.support.config import Document
from sottovoce.support.files import is_signed, sign
from sottovoce.support.progress import Progress
from sottovoce.support.threads import threads

DEFAULT = AttackOptions()


def run_attack(attack: Attack, finished_runs: Sequence[FinishedRun], options: AttackOptions = DEFAULT) -> AttackResult:
    """Attack one finished run, or several that differ only in their seeds."""
    if attack.membership:
        return infer_membership(finished_runs, attack.name, options)
    return attack.load()(finished_runs, options)


def infer_membership(
    finished_runs: Sequence[FinishedRun], name: str = "threshold", options: AttackOptions = DEFAULT
) -> MembershipResult:
    """Membership inference by one attacker, or by all that were recorded, on one run or on several seeds of it.

    For the pooled attack a view says who pools: `coalition:0,3`, or `everyone`, who hears all messages.
    """
    attack = attack_by_name(name, MEMBERSHIP_ATTACKS)
    check_confidence(options.confidence)
    check_seeds(finished_runs)
    if options.view is not None and (not attack.takes(Option.VIEW) or options.attacker is not None):
        raise InputError(
            f"view {options.view} with {name}",
            f"a view is for {names_of(attacks_with(Option.VIEW))}, and excludes --attacker",
            "leave one of them out",
        )
    with threads():
        result = attack.load()(finished_runs, options)
    assert isinstance(result, MembershipResult)
    return result


def result_document(attack: Attack, result: AttackResult, options: AttackOptions) -> Document:
    """What is stored and printed of a result: for membership inference with the options that decide it."""
    return {**_asked(options), **result.document()} if attack.membership else result.document()


def _asked(options: AttackOptions) -> Document:
    one = "all" if options.attacker is None else options.attacker
    return {
        "attacker": one if options.view is None else str(options.view),
        "samples": options.samples,
        "seed": options.seed,
    }


def attack_unless_stored(
    folders: Sequence[Path], name: str, data: Path | None = None, *, jobs: int | None = None
) -> Document:
    """Membership inference by all recorded nodes with default options, on `jobs` processes; a result of these that
    this user has stored is only read.

    It is for runs of the user's own settings, as those of a sweep.
    """
    stored = own_result(folders, name)
    asked = {**_asked(DEFAULT), "confidence": DEFAULT.confidence}
    if stored is not None and asked.items() <= stored.items():
        return stored
    attack = attack_by_name(name, MEMBERSHIP_ATTACKS)
    finished_runs = [open_run(folder, data, own=True) for folder in folders]
    result = run_attack(attack, finished_runs, replace(DEFAULT, jobs=jobs))
    return store_attack(folders, name, {**asked, **result_document(attack, result, DEFAULT)})


def check_seeds(finished_runs: Sequence[FinishedRun]) -> None:
    """Refuse a run given twice, which would count its victims twice, and runs of other settings than the first."""
    places = [run.folder.resolve() for run in finished_runs]
    settings = [_without_seeds(run.experiment.document()) for run in finished_runs]
    for number, run in enumerate(finished_runs):
        if places[number] in places[:number]:
            raise InputError(f"{run.folder} twice", "each victim must count once", "give each run once")
        if settings[number] != settings[0]:
            key = next(key for key, value in settings[0].items() if settings[number].get(key) != value)
            raise InputError(
                f"{finished_runs[0].folder} and {run.folder} differ in {key}",
                "only seeds of one experiment can be attacked together",
                "attack them one by one",
            )  # fmt: skip


def _without_seeds(settings: Document) -> Document:
    left_out = ("name", "seed", "noise", "noise_key", "about", "machine")
    rest = {key: value for key, value in settings.items() if key not in left_out}
    for part in ("data", "topology"):
        rest[part] = {key: value for key, value in rest[part].items() if key != "seed"}
    return rest


def store_attack(folders: Sequence[Path], name: str, found: Document) -> Document:
    """Write what an attack found into `attack.json` of its runs, where the latest result of each attack counts.

    It is signed there, so that this user finds it again by `own_result`.
    """
    document = {"runs": [str(folder) for folder in folders], "attack": name, **found}
    signed = {**document, "signature": sign(_signed_content(folders, document))}
    for folder in folders:
        files = RunFiles(folder)
        files.write_document(files.attack, {**stored_attacks(folder), name: signed})
    return document


def own_result(folders: Sequence[Path], name: str) -> Document | None:
    """What this user's attack of that name on these runs found and stored; None where it is anybody else's."""
    stored = dict(stored_attacks(folders[0]).get(name, {}))
    signature = stored.pop("signature", "")
    ours = stored.get("runs") == [str(folder) for folder in folders]
    return stored if ours and is_signed(_signed_content(folders, stored), signature) else None


def _signed_content(folders: Sequence[Path], document: Document) -> bytes:
    """What a signature is about: the result, and which runs, on which data and with which noise, it was found on."""
    facts = [read_private_facts(RunFiles(folder)) for folder in folders]
    keys = [files.document(files.noise_key) for files in map(RunFiles, folders)]
    runs = [None if one is None else one.fingerprint for one in facts]
    return json.dumps(["attack", runs, keys, document], sort_keys=True).encode()


def stored_attacks(folder: Path) -> Document:
    """What attacks on a run found so far, by the name of the attack."""
    files = RunFiles(folder)
    try:
        return files.document(files.attack) or {}
    except InputError as error:
        raise InputError(error.found, "it is written by sotto attack", "remove this file") from None


# --- sweeps: the seeds of one variant, at one point of the grid, are attacked together --------------------------------


@dataclass(frozen=True)
class AttackedRow:
    """A row of a sweep's results with what each attack found, by its name; empty where a run diverged."""

    row: SweepRow
    found: dict[str, Document]


def attack_rows(
    rows: Sequence[SweepRow],
    attacks: Sequence[Attack],
    out: Path,
    *,
    data: Path | None = None,
    progress: Progress | None = None,
) -> list[AttackedRow]:
    """Attack the runs of every row by all nodes that were recorded. Stored results are only read."""

    attacked, done = [], 0
    for row in rows:
        found = {}
        for attack in attacks:
            if not row.diverged:
                folders = [out / one.run.experiment.name for one in row.runs]
                found[attack.name] = attack_unless_stored(folders, attack.name, data)
            done += 1
            if progress is not None:
                progress(done, len(rows) * len(attacks))
        attacked.append(AttackedRow(row, found))
    return attacked
