"""Batches that are drawn by chance, and records that nodes declare, in `sotto account` and `sotto calibrate`."""

from typing import TYPE_CHECKING

from sottovoce.cli.options import Setting
from sottovoce.errors import Unaccountable
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.core.noise import PerNode
    from sottovoce.privacy.accountant import Account
    from sottovoce.privacy.calibration import Target
    from sottovoce.privacy.guarantee import Guarantee, PrivacyFigure
    from sottovoce.privacy.sampled_batches import SampledCalibration
    from sottovoce.support.json_numbers import JSON
    from sottovoce.tracing.linear_system import LinearSystem

FEW = 12
"""Of so many nodes each is shown."""


def sampled_figure_of(setting: Setting, system: "LinearSystem") -> "tuple[PrivacyFigure | None, list[str]]":
    """The figure that counts on chance, or why there is none, where batches are drawn by chance at all."""
    from sottovoce.privacy.sampled_batches import sampled_figure

    nodes = None if setting.declared is None else setting.declared.sampled_nodes
    if nodes is None:
        return None, []
    try:
        return sampled_figure(system, setting.adversary, nodes, setting.delta), []
    except Unaccountable as refusal:
        return None, [str(refusal)]


def counts_on_chance(sampled: "PrivacyFigure | None", best: "Guarantee", delta: float) -> bool:
    """Whether the figure that counts on chance is the one to report."""
    from sottovoce.privacy.guarantee import PrivacyFigure
    from sottovoce.privacy.sampled_batches import better_figure

    return sampled is not None and better_figure(sampled, PrivacyFigure.of(best, delta)) is sampled


def calibrated_by_chance(
    setting: Setting, reference: "LinearSystem", target: "Target", unsampled: float
) -> "SampledCalibration | None":
    """The least sigma that counts on chance, where that is less than without."""
    from sottovoce.privacy.sampled_batches import calibrate_sampled, saves_noise

    nodes = None if setting.declared is None else setting.declared.sampled_nodes
    found = None if nodes is None else calibrate_sampled(reference, setting.adversary, nodes, target)
    return found if found is not None and saves_noise(found.sigma, unsampled) else None


def sampled_words(result: "Account", figure: "PrivacyFigure", delta: float) -> list[str]:
    """A headline that counts on chance, with all that it rests on."""
    lines = [
        f"Headline: epsilon {round_up(figure.epsilon)} at delta {delta:g}, {figure.kind}, counting on batches that are "
        "drawn at random; nobody is worse off.",
        f"It holds {result.coverage}.", f"{figure.final_models.sentence}.",
    ]  # fmt: skip
    return lines + [f"It assumes: {assumption}." for assumption in figure.assumptions]


def declared_nodes(setting: Setting, sigma: "PerNode") -> "list[JSON] | None":
    """Records, sigma and noise of every node, where their records are given and noise is each node's own."""
    if setting.records is None or setting.declared is None or not setting.spec.independent_noise:
        return None
    sensitivity, found = setting.declared.sensitivity, list["JSON"]()
    for node, records in enumerate(setting.declared.records):
        own, size = (each[node] if isinstance(each, tuple) else each for each in (sigma, sensitivity))
        found.append({"records": records, "sigma": own, "noise": own * size})
    return found


def node_lines(setting: Setting, nodes: "list[JSON] | None") -> list[str]:
    """The same in words, for gradients clipped to norm one."""
    if nodes is None:
        return []
    rows: list[tuple[int, int, float]] = [
        (node, int(one["records"]), float(one["noise"])) for node, one in enumerate(nodes) if isinstance(one, dict)
    ]
    shown = rows if len(rows) <= FEW else sorted({min(rows, key=_records), max(rows, key=_records)}, key=_records)
    return [
        f"Node {setting.name(node)} with {records:,} records adds noise of standard deviation {round_up(noise)}, for "
        "gradients clipped to norm one."
        for node, records, noise in shown
    ]


def _records(row: tuple[int, int, float]) -> int:
    return row[1]
