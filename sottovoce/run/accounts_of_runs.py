"""What runs that are there already tell: one run to an adversary that was not asked about before, or several together.

Several runs on the same data are accounted for against everyone, and against each view that all of them have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sottovoce.core.final_models import FinalModels, parse_final_models
from sottovoce.core.participation import Adjacency
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy import views
from sottovoce.privacy.accountant import Account
from sottovoce.privacy.assumptions import Assumption
from sottovoce.privacy.composition import Composition, GaussianLoss, Loss, compose
from sottovoce.privacy.covering_views import NAMED_ONLY, Coverage, shares_secrets
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.privacy.views import View, everyone, parse_view, with_final_models
from sottovoce.run.fingerprint import public_fingerprint
from sottovoce.run.finished_run import accountant_of
from sottovoce.run.layout import noise_check
from sottovoce.run.public_check import check_privacy
from sottovoce.run.run_accountant import UNCLIPPED, RunAccountant, published_models
from sottovoce.run.run_documents import BegunRun, read_begun_run
from sottovoce.support.config import Experiment
from sottovoce.support.text import JSON, to_json
from sottovoce.support.threads import one_thread


@dataclass(frozen=True, eq=False)
class AskedView:
    """The account of one adversary of a run, with the accountant that the run's settings give.

    `sampled` is what whoever hears everything learns where batches are drawn by chance: nobody learns more.
    """

    accountant: RunAccountant
    account: Account
    delta: float
    sampled: PrivacyFigure | None

    @property
    def names(self) -> list[str] | None:
        """What the graph calls its nodes."""
        found = self.accountant.training_run.topology.names
        return None if found is None else list(found)


@one_thread()
def ask_about_run(
    folder: Path, view: str, *, delta: float | None = None, final_models: str = "none", data: Path | None = None
) -> AskedView:
    """Account for a view of a run, finished or not, that its folder may have no figure of.

    It is computed from the settings and the graph that the folder holds, at the noise that they give; the folder must
    be one of this version. Nothing of the run's rows is used but their number. `data` has files that settings name.
    Delta is the run's own unless given.
    """
    files, experiment, stated, _ = read_begun_run(folder)
    accountant = accountant_of(files, experiment, data)
    run = accountant.training_run
    if stated.get("fingerprint") != public_fingerprint(experiment, run):
        raise InputError(
            f"{folder}: its figures are not those of these settings and this version",
            "only a run that this version would repeat can be accounted for", "run it again",
        )  # fmt: skip
    if not run.clipped:
        raise Unaccountable(UNCLIPPED)
    which = parse_final_models(final_models)
    if which is FinalModels.NONE:
        which = published_models(run, experiment.privacy.and_final_models)
    account = accountant.account(with_final_models(parse_view(view, labels=run.topology.names), which))
    delta = experiment.privacy.delta if delta is None else delta
    return AskedView(accountant, account, delta, _learned_by_everyone(accountant, which, delta))


def _learned_by_everyone(accountant: RunAccountant, which: FinalModels, delta: float) -> PrivacyFigure | None:
    """The figure that counts on chance, where no node knows more than whoever hears everything."""
    try:
        everybody = with_final_models(everyone(), which)
        return None if shares_secrets(accountant.system) else accountant.sampled(everybody, delta)
    except Unaccountable:
        return None


OTHER_NODES = (
    "Data, seeds or graphs of the runs differ, so their nodes are not the same: there is no figure for single nodes."
)


@dataclass(frozen=True)
class JointFigure:
    """What one adversary learns from all runs together."""

    view: View
    joint: Composition
    final_models: FinalModels
    assumptions: tuple[Assumption, ...]

    def document(self, delta: float) -> dict[str, JSON]:
        """As JSON."""
        return {
            "view": str(self.view), "change": self.joint.change.value, "mu": to_json(self.joint.mu),
            "epsilon": to_json(self.joint.epsilon(delta)), "rule": self.joint.rule.value,
            "final_models": self.final_models.value, "assumptions": [str(one) for one in self.assumptions],
        }  # fmt: skip


@dataclass(frozen=True)
class JointAccount:
    """The joint figures of some runs, everyone first, which holds for those in `covers`; the weakest `adjacency`."""

    folders: tuple[Path, ...]
    adjacency: Adjacency
    figures: tuple[JointFigure, ...]
    covers: Coverage
    note: str | None


def joint_account(folders: Sequence[Path], delta: float, *, data: Path | None = None) -> JointAccount:
    """Account for runs together, finished or not: of each, what its planned end costs.

    Figures that the settings of a run do not give are refused, and so are runs that drew the same noise. `data` has
    files that settings name.
    """
    runs = [read_begun_run(folder) for folder in dict.fromkeys(folders)]
    _require_own_noise(runs)
    for run in runs:
        _require_true_figures(run, data)
    same = len({repr(_nodes(run.experiment)) for run in runs}) == 1
    everyone = _joint(views.everyone(), [_headline(run) for run in runs])
    others = list(_of_views(runs)) if same else []
    covers = Coverage.common(run.privacy.covers or NAMED_ONLY for run in runs)
    if covers.everyone:
        others = [_at_most(one, everyone, delta) for one in others]
    records = any(run.privacy.adjacency == Adjacency.RECORD for run in runs)
    return JointAccount(
        tuple(run.files.folder for run in runs), Adjacency.RECORD if records else Adjacency.USER,
        (everyone, *others), covers, None if same else OTHER_NODES,
    )  # fmt: skip


def _nodes(experiment: Experiment) -> tuple[object, ...]:
    """What decides which node holds which rows."""
    return experiment.data, experiment.seed if experiment.data.seed is None else None, experiment.topology.graph


def _headline(run: BegunRun) -> tuple[PrivacyFigure, Loss]:
    """The figure against everyone, and what it is made of."""
    if run.privacy.headline.proves_nothing or run.privacy.loss is None:
        raise Unaccountable(
            f"{run.files.folder}: nothing is proven for this run, so nothing is proven for all of them together"
        )
    return run.privacy.headline, run.privacy.loss


def _of_views(runs: Sequence[BegunRun]) -> Iterator[JointFigure]:
    """The figures of views that all runs have, but that of everyone."""
    each = [
        {
            one.view: (one.headline, GaussianLoss(one.headline.mu))
            for one in run.privacy.views
            if one.headline.mu is not None and not one.headline.proves_nothing
        }
        for run in runs
    ]
    for view in each[0]:
        if view != views.everyone() and all(view in headlines for headlines in each):
            yield _joint(view, [headlines[view] for headlines in each])


def _joint(view: View, found: Sequence[tuple[PrivacyFigure, Loss]]) -> JointFigure:
    order = list(FinalModels)
    return JointFigure(
        view, compose(loss for _, loss in found), min((one.final_models for one, _ in found), key=order.index),
        tuple(dict.fromkeys(assumption for one, _ in found for assumption in one.assumptions)),
    )  # fmt: skip


def _at_most(one: JointFigure, everyone: JointFigure, delta: float) -> JointFigure:
    """A figure of some view, or that of everyone where it is smaller: it alone counts on sampling."""
    covered = everyone.final_models is FinalModels.ALL or one.view.final_models is FinalModels.NONE
    if covered and everyone.joint.epsilon(delta) < one.joint.epsilon(delta):
        return replace(everyone, view=one.view)
    return one


def _require_true_figures(run: BegunRun, data: Path | None) -> None:
    found = check_privacy(run.stated, accountant_of(run.files, run.experiment, data), run.experiment).findings
    if found:
        raise InputError(
            f"{run.files.folder}: {found[0]}", "guarantees follow from the settings",
            "restore the file, or leave the run out",
        )  # fmt: skip


def _require_own_noise(runs: Sequence[BegunRun]) -> None:
    """Refuse two runs with one noise key: what both sent, subtracted, has no noise. A copy of a run tells nothing."""
    seen: dict[str, BegunRun] = {}
    for run in runs:
        key = noise_check(run.files, run.experiment)
        other = run if key is None else seen.setdefault(key, run)
        if other.experiment != run.experiment:
            raise Unaccountable(
                f"{run.files.folder}: its noise key is that of {other.files.folder}, and subtracting the messages of "
                "two runs with the same noise removes it"
            )
