"""The demonstration: what neighbours see without noise, and what three kinds of it cost at the same epsilon.

`demo.toml` says what is run, as any sweep; runs, accounts and attacks are those of the other commands.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Protocol

from sottovoce.algorithms.registry import algorithm_spec
from sottovoce.attacks.registry import AttackOptions, PictureResult, attack_by_name, check_attacks
from sottovoce.attacks.run_attacks import attack_unless_stored, own_result, run_attack, store_attack
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.report.pairwise_leakage import FigureKind, pairwise_leakage
from sottovoce.report.picture_gallery import stored_pictures
from sottovoce.run.finished_run import open_run
from sottovoce.run.layout import RunFiles
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.protocol import topology_of
from sottovoce.run.sweep import FinishedSweepRun, SweepRun, expand_sweep, finished_before, only_read, run_experiments
from sottovoce.support.config import Document, apply_overrides, read_settings_file
from sottovoce.support.files import check_folder
from sottovoce.support.processes import map_in_processes
from sottovoce.support.text import to_json

RECIPE = Path(__file__).with_name("demo.toml")

MEMBERSHIP_ATTACK, ATTACKER = "likelihood", 0


class Work(Protocol):
    """Something that is being done."""

    def tell(self, done: int, total: int) -> None:
        """So much of it is done."""


@dataclass(frozen=True)
class DemonstratedRun:
    """One of the runs: how well it did, what is promised, and what two attacks by neighbours achieved.

    Attacks are None where nodes hear nothing but sums; of features no pictures are made.
    """

    finished: FinishedSweepRun
    folder: Path
    privacy: PrivacyDocument
    membership: Document | None
    inversion: Document | None

    @property
    def features(self) -> str | None:
        """The map that pictures went through, if they did."""
        return _features(self.finished.run)

    @property
    def likeness(self) -> float | None:
        """The mean correlation of neighbours' pictures with what node 0 made of their messages."""
        if self.inversion is None:
            return None
        return float(fmean(one for victim in self.inversion["victims"] for one in victim["likeness"]))

    @property
    def by_distance(self) -> list[Document]:
        """The largest epsilon that is proven at each number of hops, the nearest first."""
        found = pairwise_leakage(self.privacy, topology_of(self.finished.run.experiment, None).n)
        ways = {} if found is None else found["ways"]
        return [
            {"distance": one["distance"], "epsilon": one["most"]}
            for one in ways.get(FigureKind.PROVEN, {"by_distance": []})["by_distance"]
        ]

    def document(self) -> Document:
        """As JSON."""
        last, config = self.finished.result["metrics"], self.finished.run.experiment
        attack = self.membership
        return {
            "algorithm": config.algorithm.name, "features": self.features, "folder": str(self.folder),
            "sigma": self.privacy.sigma,
            "accuracy": last["accuracy"], "bytes": last["bytes"], "proven_for": self.privacy.adjacency,
            "delta": self.privacy.delta, "everyone": _guarantee_document(self.privacy.headline),
            "by_distance": self.by_distance,
            "attack": None if attack is None else {
                "name": MEMBERSHIP_ATTACK, "auc": attack["auc"], "confidence": attack["confidence"]
            },
            "likeness": self.likeness,
        }  # fmt: skip


@dataclass(frozen=True)
class Demonstration:
    """All runs, and the page about them; `notes` say of runs that were only read how far they were checked."""

    page: Path
    runs: tuple[DemonstratedRun, ...]
    notes: tuple[str, ...] = ()


def demonstrate(
    out: Path, settings: list[str], show: Callable[[str], AbstractContextManager[Work]], *, jobs: int | None = None
) -> Demonstration:
    """Train, account, attack, and write the page. What is finished is only read, what was stopped goes on."""
    check_folder(out)
    document = apply_overrides(read_settings_file(RECIPE), settings)
    runs = expand_sweep(document, RECIPE.name)
    check_attacks(document, runs)
    if all(_is_finished(run, out) for run in runs):
        jobs = 1  # processes of their own would take longer to start than there is to read
    notes, found = only_read(finished_before(runs, out)), dict[str, DemonstratedRun]()
    with show("training, accounting and attacks") as work:
        for run, shown in map_in_processes(partial(_show, out=out), runs, jobs):
            found[run.experiment.name] = shown
            work.tell(len(found), len(runs))
    from sottovoce.report.page import write_page

    shown_runs = tuple(found[run.experiment.name] for run in runs)
    with show("page"):
        page = write_page(out / str(document["name"]) / "report.html", [one.folder for one in shown_runs])
    return Demonstration(page, shown_runs, tuple(notes))


def _is_finished(run: SweepRun, out: Path) -> bool:
    files = RunFiles(out / run.experiment.name)
    return files.result.exists() and (files.attack.exists() or not _sends_models(run))


def _sends_models(run: SweepRun) -> bool:
    """Whether neighbours receive a node's own model, which they can attack; of secure sums they receive only these."""
    return algorithm_spec(run.experiment.algorithm.name).sums_of is None


def _features(run: SweepRun) -> str | None:
    named: str | None = run.experiment.model.settings.get("features")
    return named


def _show(run: SweepRun, out: Path) -> DemonstratedRun:
    """Train and account, and then attack, all in this process."""
    (finished,) = run_experiments([run], out, resume=True, jobs=1)
    folder = out / run.experiment.name
    files = RunFiles(folder)
    attacked = _sends_models(run)
    return DemonstratedRun(
        finished=finished, folder=folder, privacy=PrivacyDocument.read(files.document(files.privacy) or {}),
        membership=attack_unless_stored([folder], MEMBERSHIP_ATTACK, jobs=1) if attacked else None,
        inversion=_invert(folder) if attacked and _features(run) is None else None,
    )  # fmt: skip


def _invert(folder: Path) -> Document:
    """Gradient inversion by node 0, stored with its pictures: these rows may be seen by anybody.

    A result of the same attacker that this user stored is only read.
    """
    found = own_result([folder], "inversion")
    if found is not None and found["attacker"] == ATTACKER and "pictures" in found:
        return found
    result = run_attack(attack_by_name("inversion"), [open_run(folder, own=True)], AttackOptions(attacker=ATTACKER))
    assert isinstance(result, PictureResult)
    return store_attack([folder], "inversion", {**result.document(), "pictures": stored_pictures(result)})


def _guarantee_document(headline: PrivacyFigure) -> Document:
    return {
        "view": str(headline.view), "victim": headline.victim, "kind": headline.kind,
        "epsilon": to_json(headline.epsilon),
    }  # fmt: skip
