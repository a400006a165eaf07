"""The demonstration: what neighbours see without noise, and what three kinds of it cost at the same epsilon.

`demo.toml` says what is run, as any sweep; runs, accounts and attacks are those of the other commands.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

from sottovoce.algorithms.registry import algorithm_spec
from sottovoce.attacks.on_sweeps import check_attacks
from sottovoce.attacks.registry import AttackOptions, PictureResult, attack_by_name
from sottovoce.attacks.run_attacks import attack_unless_stored, own_result, run_attack, store_attack
from sottovoce.config import Document, apply_overrides, read_settings_file
from sottovoce.core.files import check_folder
from sottovoce.core.json_numbers import to_json
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.report.pairwise_leakage import FigureKind, pairwise_leakage
from sottovoce.report.picture_gallery import stored_pictures
from sottovoce.run.build_topology import topology_of
from sottovoce.run.finished_run import open_run
from sottovoce.run.layout import RunFiles
from sottovoce.run.parallel import run_experiments
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.sweep import expand_sweep
from sottovoce.run.sweep_results import FinishedSweepRun

RECIPE = Path(__file__).with_name("demo.toml")

MEMBERSHIP_ATTACK, ATTACKER = "likelihood", 0


class ShowProgress(Protocol):
    """Given the name of some work, a context that yields a function to report how much of it is done."""

    def __call__(self, what: str) -> AbstractContextManager[Callable[[int, int], None]]: ...


@dataclass(frozen=True)
class DemonstratedRun:
    """One of the runs: how well it did, what is promised, and what two attacks by neighbours achieved.

    Attacks are None where nodes hear nothing but sums.
    """

    finished: FinishedSweepRun
    folder: Path
    privacy: PrivacyDocument
    membership: Document | None
    inversion: Document | None

    @property
    def likeness(self) -> float | None:
        """Half of a neighbour's pictures are correlated so much, or more, with what node 0 made of its message."""
        if self.inversion is None:
            return None
        return float(median(one for victim in self.inversion["victims"] for one in victim["likeness"]))

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
            "algorithm": config.algorithm.name, "folder": str(self.folder), "sigma": self.privacy.sigma,
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
    """All runs, and the page about them."""

    page: Path
    runs: tuple[DemonstratedRun, ...]


def demonstrate(out: Path, settings: list[str], progress: ShowProgress, *, jobs: int | None = None) -> Demonstration:
    """Train, account, attack, and write the page. What is finished is only read, what was stopped goes on."""
    check_folder(out)
    document = apply_overrides(read_settings_file(RECIPE), settings)
    runs = expand_sweep(document, RECIPE.name)
    check_attacks(document, runs)
    if all(RunFiles(out / run.experiment.name).result.exists() for run in runs):
        jobs = 1  # processes of their own would take longer to start than there is to read
    with progress("training and accounting") as tell:
        finished = run_experiments(runs, out, resume=True, jobs=jobs, progress=tell)
    with progress("attacks") as tell:
        attacked = []
        for number, one in enumerate(finished):
            attacked.append(_attack(one, out))
            tell(number + 1, len(finished))
    from sottovoce.report.page import write_page

    with progress("page"):
        page = write_page(out / str(document["name"]) / "report.html", [one.folder for one in attacked])
    return Demonstration(page, tuple(attacked))


def _attack(finished: FinishedSweepRun, out: Path) -> DemonstratedRun:
    folder = out / finished.run.experiment.name
    files = RunFiles(folder)
    heard = algorithm_spec(finished.run.experiment.algorithm.name).sums_of is None
    return DemonstratedRun(
        finished=finished, folder=folder, privacy=PrivacyDocument.read(files.document(files.privacy) or {}),
        membership=attack_unless_stored([folder], MEMBERSHIP_ATTACK) if heard else None,
        inversion=_invert(folder) if heard else None,
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


def _guarantee_document(headline: PrivacyFigure | None) -> Document | None:
    if headline is None:
        return None
    return {
        "view": str(headline.view), "victim": headline.victim, "kind": headline.kind,
        "epsilon": to_json(headline.epsilon),
    }  # fmt: skip
