"""The demonstration: digits on 16 nodes, without noise and with three kinds of it at the same epsilon.

`demo.toml` says what is run, as any sweep; runs, accounts and attacks are those of the other commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.attacks.run_attacks import attack, keep, solve, stored_attack
from sottovoce.config import Document, apply_overrides, read_settings_file
from sottovoce.core.files import check_folder
from sottovoce.privacy.guarantee import Headline
from sottovoce.run.finished_run import open_run
from sottovoce.run.layout import RunFiles
from sottovoce.run.parallel import run_experiments
from sottovoce.run.sweep import planned
from sottovoce.run.sweep_results import Finished

RECIPE = Path(__file__).with_name("demo.toml")

TITLE = "What 16 nodes learn from each other"

ATTACK = "threshold"

Progress = Callable[[str], Any]
"""Given what is done, a context that yields a function to tell how far it is."""


@dataclass(frozen=True)
class Shown:
    """One of the runs: how well it did, what it promises to whom, and what two attacks on it achieved."""

    finished: Finished
    folder: Path
    privacy: Document
    attack: Document
    solved: Document

    def document(self) -> Document:
        """As JSON. `sharpest_gradient` is the deviation with which node 0 can solve for the gradient of another.

        `proven_for` says what the epsilons are about: a record, or all data of a node, which covers it;
        `models_covered` whether they hold for models that are published at the end, too."""
        last, config = self.finished.result["metrics"], self.finished.run.experiment
        headline = self.privacy["headline"]
        return {
            "algorithm": config.algorithm.name, "folder": str(self.folder), "sigma": self.privacy["sigma"],
            "accuracy": last["accuracy"], "bytes": last["bytes"], "proven_for": self.privacy["adjacency"],
            "delta": self.privacy["delta"], "everyone": None if headline is None else _kept(headline),
            "worst_node": worst_node(self.privacy),
            "models_covered": headline is not None and Headline.read(headline).covers_final_models,
            "attack": {"name": ATTACK, "auc": self.attack["auc"], "confidence": self.attack["confidence"]},
            "sharpest_gradient": min((one["deviation"] for one in self.solved["nodes"]), key=float),
        }  # fmt: skip


@dataclass(frozen=True)
class Demonstration:
    """All runs, and the page about them."""

    page: Path
    runs: tuple[Shown, ...]


def demonstrate(out: Path, settings: list[str], progress: Progress, *, jobs: int | None = None) -> Demonstration:
    """Train, account, attack, and write the page. What is finished is only read, what was stopped goes on."""
    check_folder(out)
    document = apply_overrides(read_settings_file(RECIPE), settings)
    runs = planned(document, RECIPE.name)
    if all(RunFiles(out / run.experiment.name).result.exists() for run in runs):
        jobs = 1  # processes of their own would take longer to start than there is to read
    with progress("training and accounting") as tell:
        finished = run_experiments(runs, out, resume=True, jobs=jobs, progress=tell)
    with progress("attacks") as tell:
        shown = []
        for number, one in enumerate(finished):
            shown.append(_attacked(one, out))
            tell(number + 1, len(finished))
    from sottovoce.report.page import write_page

    with progress("page"):
        page = write_page(out / str(document["name"]) / "report.html", [one.folder for one in shown], title=TITLE)
    return Demonstration(page, tuple(shown))


def _attacked(finished: Finished, out: Path) -> Shown:
    folder = out / finished.run.experiment.name
    files = RunFiles(folder)
    solved = stored_attack(folder).get("reconstruction")
    if solved is None or solved["attacker"] != 0:
        solved = keep([folder], "reconstruction", solve(open_run(folder), 0))
    return Shown(finished, folder, files.document(files.privacy) or {}, attack([folder], ATTACK), solved)


def worst_node(privacy: Document) -> Document | None:
    """The largest epsilon that is proven for a single node as the adversary; None where no node was accounted for."""
    nodes = [found for found in privacy["views"] if found["view"].startswith("node:")]
    if not nodes or any(found["headline"] is None for found in nodes):
        return None
    worst = max(nodes, key=lambda found: float(found["headline"]["epsilon"]))
    return _kept({"view": worst["view"], **worst["headline"]})


def _kept(headline: Document) -> Document:
    return {key: headline[key] for key in ("view", "victim", "kind", "epsilon")}
