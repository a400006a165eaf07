"""What an adversary that was not asked about before learns from a run: its account, by the run's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sottovoce.core.final_models import FinalModels, parse_final_models
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.accountant import Account
from sottovoce.privacy.covering_views import shares_secrets
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.privacy.sampled_batches import sampled_figure
from sottovoce.privacy.views import everyone, parse_view, with_final_models
from sottovoce.run.fingerprint import public_fingerprint
from sottovoce.run.finished_run import accountant_of
from sottovoce.run.layout import RunFiles
from sottovoce.run.run_accountant import UNCLIPPED, RunAccountant
from sottovoce.support.config import Experiment, parse_experiment
from sottovoce.support.threads import one_thread


@dataclass(frozen=True, eq=False)
class AskedView:
    """The account of one adversary of a run, with the accountant that the run's settings give.

    `sampled` is what whoever hears everything learns where batches are drawn by chance: nobody learns more.
    """

    folder: Path
    experiment: Experiment
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
    files = RunFiles(folder)
    settings = files.document(files.config) if folder.is_dir() else None
    stated = None if settings is None else files.document(files.privacy)
    if settings is None or stated is None:
        raise InputError(f"{folder}: no run", "a run has config.json and privacy.json", "give runs/NAME of sotto run")
    experiment = parse_experiment(settings, str(files.config))
    accountant = accountant_of(files, experiment, data)
    if stated.get("fingerprint") != public_fingerprint(experiment, accountant.training_run):
        raise InputError(
            f"{folder}: its figures are not those of these settings and this version",
            "only a run that this version would repeat can be accounted for", "run it again",
        )  # fmt: skip
    if not accountant.training_run.clipped:
        raise Unaccountable(UNCLIPPED)
    which = parse_final_models(final_models)
    if which is FinalModels.NONE:
        which = parse_final_models(experiment.privacy.and_final_models)
    adversary = with_final_models(parse_view(view, labels=accountant.training_run.topology.names), which)
    wanted_delta = experiment.privacy.delta if delta is None else delta
    sampled = _learned_by_everyone(accountant, which, wanted_delta)
    return AskedView(folder, experiment, accountant, accountant.account(adversary), wanted_delta, sampled)


def _learned_by_everyone(accountant: RunAccountant, which: FinalModels, delta: float) -> PrivacyFigure | None:
    """The figure that counts on chance, where no node knows more than whoever hears everything."""
    nodes = accountant.training_run.sampled_nodes
    if nodes is None or shares_secrets(accountant.system):
        return None
    try:
        return sampled_figure(accountant.system, with_final_models(everyone(), which), nodes, delta)
    except Unaccountable:
        return None
