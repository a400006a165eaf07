"""The trade-off of one run: how well it learned, what is proven about it, and how well the strongest attack did."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sottovoce.attacks.registry import PageFigure, page_attacks
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.report.rounding import finite
from sottovoce.run.run_documents import LESS_IS_BETTER, RunDocuments, damaged_run
from sottovoce.support.config import Document
from sottovoce.support.json_numbers import to_json


@dataclass(frozen=True)
class AttackSuccess:
    """The AUC of a membership attack with its confidence interval."""

    attack: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f}) {self.attack}"


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """One line of the table of trade-offs. Figures are None where training diverged."""

    run: RunDocuments
    average_model: float | None
    mean_node: float | None
    worst_node: float | None
    headline: PrivacyFigure
    attack: AttackSuccess | None
    bytes: int

    def document(self) -> Document:
        """As JSON."""
        privacy, headline = self.run.privacy, self.headline
        return {
            "run": self.run.name, "folder": str(self.run.folder), "seed": self.run.experiment.seed,
            "algorithm": privacy.algorithm, "topology": privacy.topology, "rounds": privacy.rounds,
            "metric": self.run.metric, "average_model": self.average_model, "mean_node": self.mean_node,
            "worst_node": self.worst_node, "epsilon": to_json(headline.epsilon),
            "delta": privacy.delta, "kind": headline.kind,
            "adversary": str(headline.view), "adjacency": privacy.adjacency,
            "change": headline.change,
            "attack": None if self.attack is None else asdict(self.attack), "bytes": self.bytes,
        }  # fmt: skip


def trade_off(run: RunDocuments) -> TradeOff:
    """What a run came to, beside its headline and its strongest attack."""
    worst = "max" if run.metric in LESS_IS_BETTER else "min"
    return TradeOff(
        run=run, average_model=finite(run.final_metric("average")), mean_node=finite(run.final_metric("mean")),
        worst_node=finite(run.final_metric(worst)), headline=run.privacy.headline, attack=strongest_attack(run),
        bytes=run.lines[-1]["bytes"],
    )  # fmt: skip


def strongest_attack(run: RunDocuments) -> AttackSuccess | None:
    """The membership attack with the largest AUC, of those that the page draws ROC curves of."""
    names = [attack.name for attack in page_attacks(PageFigure.ROC_CURVE) if attack.name in run.attacks]
    try:
        found = [AttackSuccess(name, **run.attacks[name]["auc"]) for name in names]
    except (KeyError, TypeError):
        raise damaged_run(run.folder) from None
    return max(found, key=lambda success: success.value, default=None)
