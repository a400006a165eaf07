"""The demonstration: digits on 16 nodes, without noise and with three kinds of it at the same epsilon.

`demo.toml` says what is run, as any sweep; runs, accounts and attacks are those of the other commands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sottovoce.attacks.on_sweeps import check_attacks
from sottovoce.attacks.run_attacks import attack_unless_stored, own_result, store_attack
from sottovoce.attacks.run_reconstruction import reconstruct_run
from sottovoce.config import Document, apply_overrides, read_settings_file
from sottovoce.core.files import check_folder
from sottovoce.core.json_numbers import to_json
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.run.finished_run import open_run
from sottovoce.run.layout import RunFiles
from sottovoce.run.parallel import run_experiments
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.sweep import expand_sweep
from sottovoce.run.sweep_results import FinishedSweepRun

RECIPE = Path(__file__).with_name("demo.toml")

TITLE = "What 16 nodes learn from each other"

MEMBERSHIP_ATTACK, ATTACKER = "threshold", 0


class ShowProgress(Protocol):
    """Given the name of some work, a context that yields a function to report how much of it is done."""

    def __call__(self, what: str) -> AbstractContextManager[Callable[[int, int], None]]: ...


@dataclass(frozen=True)
class DemonstratedRun:
    """One of the runs: how well it did, its guarantees, and what two attacks on it achieved.

    `gradient_error` is the smallest error with which node 0 can reconstruct the gradient of another node.
    """

    finished: FinishedSweepRun
    folder: Path
    privacy: PrivacyDocument
    attack: Document
    gradient_error: float

    @property
    def proven(self) -> bool:
        """Whether a finite epsilon is proven against everyone."""
        return self.privacy.headline is not None and math.isfinite(self.privacy.headline.epsilon)

    @property
    def models_covered(self) -> bool:
        """Whether the epsilons hold for models that are published at the end, too."""
        return self.privacy.headline is not None and self.privacy.headline.covers_final_models

    def document(self) -> Document:
        """As JSON; `proven_for` says what the epsilons are about: a record, or all data of a node, which covers it."""
        last, config = self.finished.result["metrics"], self.finished.run.experiment
        return {
            "algorithm": config.algorithm.name, "folder": str(self.folder), "sigma": self.privacy.sigma,
            "accuracy": last["accuracy"], "bytes": last["bytes"], "proven_for": self.privacy.adjacency,
            "delta": self.privacy.delta, "everyone": _guarantee_document(self.privacy.headline),
            "worst_node": _guarantee_document(largest_node_epsilon(self.privacy)),
            "models_covered": self.models_covered,
            "attack": {
                "name": MEMBERSHIP_ATTACK, "auc": self.attack["auc"], "confidence": self.attack["confidence"]
            },
            "sharpest_gradient": "inf" if math.isinf(self.gradient_error) else self.gradient_error,
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
        page = write_page(out / str(document["name"]) / "report.html", [one.folder for one in attacked], title=TITLE)
    return Demonstration(page, tuple(attacked))


def _attack(finished: FinishedSweepRun, out: Path) -> DemonstratedRun:
    folder = out / finished.run.experiment.name
    files = RunFiles(folder)
    return DemonstratedRun(
        finished=finished, folder=folder, privacy=PrivacyDocument.read(files.document(files.privacy) or {}),
        gradient_error=_gradient_error(folder), attack=attack_unless_stored([folder], MEMBERSHIP_ATTACK),
    )  # fmt: skip


def _gradient_error(folder: Path) -> float:
    """The smallest gradient reconstruction error; a result of the same attacker that this user stored is only read."""
    found = own_result([folder], "reconstruction")
    if found is None or found["attacker"] != ATTACKER:
        found = store_attack([folder], "reconstruction", reconstruct_run(open_run(folder), ATTACKER).document())
    return min(float(one["deviation"]) for one in found["nodes"])


def largest_node_epsilon(privacy: PrivacyDocument) -> PrivacyFigure | None:
    """The largest epsilon that is proven for a single node as the adversary; None where not all have a proof."""
    headlines = [view.headline for view in privacy.node_views.values()]
    proven = [headline for headline in headlines if headline is not None]
    if not proven or len(proven) < len(headlines):
        return None
    return max(proven, key=lambda headline: headline.epsilon)


def _guarantee_document(headline: PrivacyFigure | None) -> Document | None:
    if headline is None:
        return None
    return {
        "view": str(headline.view), "victim": headline.victim, "kind": headline.kind,
        "epsilon": to_json(headline.epsilon),
    }  # fmt: skip
