"""NVFlare: an executor around a site's trainer, and for swarm learning whoever aggregates when, and the exact mean.

    job.to(GuardedExecutor(trainer, "agreement.toml"), site, tasks=["train"])

What the trainer answers leaves the executor with its update clipped and noisy, also where the site aggregates itself:
filters of a job never see that update. Metrics, numbers of steps and local models are about rows, so they stay: the
answer has the model, and the agreed weight in place of a number of steps. What the trainer puts into the context of the
job, and events that it fires, go no further.

With a server that is all (FedAvg). For swarm learning, `AgreedSwarm` takes the place of `SwarmClientController`, with
`AgreedMean` as its aggregator: the order of aggregators, the weights and how many sites are in a mean are agreed on,
and what single sites learn depends on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.aggregator import Aggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.ccwf.common import Constant
from nvflare.app_common.ccwf.swarm_client_ctl import SwarmClientController

from sottovoce.adapters.guard import Guard, Model
from sottovoce.adapters.site_agreement import read_site_agreement
from sottovoce.errors import SottovoceError, Unaccountable
from sottovoce.ledger.lineages import Budget
from sottovoce.ledger.spending import DEFAULT


class GuardedExecutor(Executor):  # type: ignore[misc]
    """Runs the site's own executor, and gives its model to the guard of this site before it leaves.

    `folder` has a folder for each site that plays on this machine. A budget is given by `epsilon` and `delta`. Where
    single records are protected, `trainer.records(site)` gives the gradients of a site's records, and does not train.
    """

    def __init__(
        self,
        trainer: Executor,
        agreement: str,
        folder: str = "guard",
        epsilon: float | None = None,
        delta: float = 1e-5,
        lineage: str = DEFAULT,
    ) -> None:
        super().__init__()
        self.trainer, self.agreement, self.folder = trainer, agreement, folder
        self.epsilon, self.delta, self.lineage = epsilon, delta, lineage

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """The trainer hears of the job's events, as if it were in the job itself."""
        self.trainer.handle_event(event_type, _kept_here(fl_ctx))

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Train, and release; other tasks, such as validation, are refused: what they answer is about rows."""
        if task_name != AppConstants.TASK_TRAIN:
            self.log_error(fl_ctx, f"task {task_name}: only training is answered, with the update clipped and noisy")
            return make_reply(ReturnCode.TASK_UNSUPPORTED)
        round, site = shareable.get_header(AppConstants.CURRENT_ROUND), fl_ctx.get_identity_name()
        aggregator, agreed = shareable.get_header(Constant.AGGREGATOR), read_site_agreement(self.agreement)
        budget = None if self.epsilon is None else Budget(self.epsilon, self.delta)

        def train(before: Model) -> Model:
            answer = self.trainer.execute(task_name, shareable, _kept_here(fl_ctx), abort_signal)
            if answer.get_return_code(ReturnCode.OK) != ReturnCode.OK:
                raise Unaccountable(f"the trainer failed in round {round}")
            return _trained(before, answer)

        try:
            with Guard(agreed, site, Path(self.folder) / site, budget=budget, lineage=self.lineage) as guard:
                if agreed.records is not None:
                    records = self.trainer.records(site)
                    noisy = guard.stepped(round, _weights(shareable), records, aggregator=aggregator)
                else:
                    noisy = guard.trained(round, _weights(shareable), train, aggregator=aggregator)
        except SottovoceError as refusal:
            self.log_error(fl_ctx, f"{site} sends nothing in round {round}: {refusal}")
            return make_reply(ReturnCode.EXECUTION_RESULT_ERROR)
        except Exception:
            self.log_exception(fl_ctx, f"training failed in round {round}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return DXO(DataKind.WEIGHTS, noisy, {MetaKey.NUM_STEPS_CURRENT_ROUND: agreed.weight(site)}).to_shareable()


class _Silent:
    """A job's engine without what tells others: events reach components that stream metrics, requests other sites."""

    def __init__(self, engine: object) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("fire", "send", "multicast", "stream")):
            return lambda *_, **__: None
        return getattr(self._engine, name)


def _kept_here(fl_ctx: FLContext) -> FLContext:
    """A context for the trainer. Public properties of the job's own go with every message, whoever put them there."""
    manager = fl_ctx.get_prop(ReservedKey.MANAGER)
    for key in () if manager is None else (*manager.public_stickers, *manager.private_stickers):
        fl_ctx.get_prop(key)  # and with that they are in the context itself
    kept: FLContext = fl_ctx.clone()
    kept.remove_prop(ReservedKey.MANAGER, force_removal=True)
    kept.put(ReservedKey.ENGINE, _Silent(fl_ctx.get_engine()), private=True, sticky=False)
    return kept


class AgreedMean(Aggregator):  # type: ignore[misc]
    """The mean with agreed weights, of the round at hand, each site once; refused with fewer sites than agreed on."""

    def __init__(self, agreement: str) -> None:
        super().__init__()
        self.agreement = agreement
        self._round, self._models = -1, dict[str, Model]()

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """A site's model of this round; not a late one, nor a second."""
        round = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
        if round != self._round:
            self._round, self._models = round, {}
        site, sites = _sender(fl_ctx), read_site_agreement(self.agreement).sites
        if shareable.get_header(AppConstants.CURRENT_ROUND) != round or site not in sites or site in self._models:
            self.log_warning(fl_ctx, f"a model of {site} is left out of round {round}")
            return False
        self._models[site] = _weights(shareable)
        return True

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """The mean of the models that were accepted."""
        agreed, models, self._models = read_site_agreement(self.agreement), self._models, {}
        if len(models) < agreed.fewest:
            raise Unaccountable(
                f"round {self._round} has models of {len(models)} sites, and {agreed.fewest} are agreed on in a mean"
            )
        shares = np.array([agreed.weight(site) for site in models])
        mean = {
            name: np.average([one[name] for one in models.values()], axis=0, weights=shares).astype(part.dtype)
            for name, part in next(iter(models.values())).items()
        }
        return DXO(DataKind.WEIGHTS, mean).to_shareable()


class AgreedSwarm(SwarmClientController):  # type: ignore[misc]
    """NVFlare's swarm with the agreed order of aggregators, in place of one that is drawn in each round."""

    def __init__(self, agreement: str, **given: Any) -> None:
        super().__init__(min_responses_required=read_site_agreement(agreement).fewest, **given)
        self.agreement = agreement

    def start_run(self, fl_ctx: FLContext) -> None:
        """Refuse another aggregator: it could weigh sites as it likes."""
        super().start_run(fl_ctx)
        if not isinstance(self.aggregator, AgreedMean):
            self.system_panic(f"aggregator {type(self.aggregator).__name__}: use AgreedMean", fl_ctx)

    def _scatter(self, task_data: Shareable, for_round: int, fl_ctx: FLContext) -> bool:
        self.aggrs = [read_site_agreement(self.agreement).aggregator(for_round)]
        return bool(super()._scatter(task_data, for_round, fl_ctx))


def _sender(fl_ctx: FLContext) -> str:
    return str(fl_ctx.get_peer_context().get_identity_name())


def _weights(shareable: Shareable) -> Model:
    """The model that a message carries."""
    found = from_shareable(shareable)
    if found.data_kind != DataKind.WEIGHTS:
        raise Unaccountable(f"a message with {found.data_kind}: whole models are exchanged")
    return {str(name): np.asarray(part) for name, part in found.data.items()}


def _trained(before: Model, answer: Shareable) -> Model:
    """The model after training, which trainers give as a whole or as a difference."""
    found = from_shareable(answer)
    if found.data_kind == DataKind.WEIGHT_DIFF:
        return {name: before[name] + np.asarray(found.data[name]) for name in before}
    return _weights(answer)
