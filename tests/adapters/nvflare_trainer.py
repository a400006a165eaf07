"""A site's executor as an NVFlare job has it, which tells its metrics and its number of steps."""

import json
import os
import signal
from pathlib import Path

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.widgets.widget import Widget

from sottovoce.adapters.nvflare import AgreedMean
from tests.adapters import digit_images
from tests.adapters.breast_cancer import rows_of, start, trained


class Trainer(Executor):
    """Trains on a site's rows. `as_difference`: the answer is the update. In round `until` it fails, or is killed."""

    def __init__(self, as_difference: bool = False, until: int = 1000, killed: bool = False):
        super().__init__()
        self.as_difference, self.until, self.killed = as_difference, until, killed

    def records(self, site):
        """The gradients of a site's records, where these are protected one by one."""
        return digit_images.gradients_of(int(site[-1]) - 1, 3)

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        fl_ctx.set_prop("loss_of_rows", 0.123, private=False, sticky=True)
        fl_ctx.set_prop("rows", 17, private=False, sticky=False)
        self.fire_event("analytix_log_stats", fl_ctx)
        if shareable.get_header("current_round") >= self.until:
            if self.killed:
                os.kill(os.getpid(), signal.SIGKILL)
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        model, site = from_shareable(shareable).data, int(fl_ctx.get_identity_name()[-1]) - 1
        new = trained(model, *rows_of(site, 3)[0])
        before = {name: part.copy() for name, part in model.items()}
        for name, part in model.items():  # in place, as trainers of NVFlare do
            part[...] = new[name]
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 17 * (site + 1), MetaKey.INITIAL_METRICS: 0.123}
        if self.as_difference:
            return DXO(DataKind.WEIGHT_DIFF, {name: new[name] - before[name] for name in new}, meta).to_shareable()
        return DXO(DataKind.WEIGHTS, model, meta).to_shareable()


class Listener(Widget):
    """Notes events of metrics, which other widgets send to the server."""

    def __init__(self, folder: str):
        super().__init__()
        self.folder = folder

    def handle_event(self, event_type, fl_ctx):
        if event_type == "analytix_log_stats":
            (Path(self.folder) / "heard").touch()


class Models(ModelPersistor):
    """Starts from the same model everywhere, and keeps what it is given, round by round."""

    def __init__(self, folder: str, images: bool = False):
        super().__init__()
        self.folder, self.images = folder, images

    def load_model(self, fl_ctx):
        return make_model_learnable(digit_images.start() if self.images else start(), {})

    def save_model(self, model_learnable, fl_ctx):
        with (Path(self.folder) / f"{fl_ctx.get_identity_name()}.jsonl").open("a") as file:
            weights = {name: part.tolist() for name, part in model_learnable["weights"].items()}
            file.write(json.dumps(weights) + "\n")


class WatchedMean(AgreedMean):
    """Notes who sent what to be averaged, and what else was in it."""

    def __init__(self, agreement: str, folder: str):
        super().__init__(agreement)
        self.folder = folder

    def accept(self, shareable, fl_ctx):
        found, me = from_shareable(shareable), fl_ctx.get_identity_name()
        sender = fl_ctx.get_peer_context().get_identity_name()
        told = fl_ctx.get_peer_context().get_all_public_props()
        line = {
            "told": sorted({"loss_of_rows", "rows"} & {*told, *fl_ctx.get_all_public_props()}),
            "round": shareable.get_header("current_round"), "at": me, "from": sender, "meta": sorted(found.meta),
            "steps": found.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND), "w": found.data["w"].tolist(),
        }  # fmt: skip
        with (Path(self.folder) / "accepted.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return super().accept(shareable, fl_ctx)
