"""Flower's own simulation engine with eight nodes: what leaves them, and what happens when the budget is gone."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

flwr = pytest.importorskip("flwr", reason="flwr is not installed: make test-adapters")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from sottovoce.adapters.flower import sottovoce_mod  # noqa: E402
from sottovoce.adapters.guard import Guard  # noqa: E402
from sottovoce.adapters.record_gradients import ModuleGradients  # noqa: E402
from sottovoce.ledger.lineages import Budget  # noqa: E402
from tests.adapters.breast_cancer import accuracy, rows_of, start, trained  # noqa: E402

SITES, ROUNDS = [f"s{number}" for number in range(8)], 5
SECRET = 12345.678


def agreement(folder, sigma, more=""):
    path = folder / "agreement.toml"
    path.write_text(f"""
        name = "breast-cancer"
        sites = {json.dumps(SITES)}
        rounds = {ROUNDS}
        bound = 0.5
        privacy.sigma = {sigma}
        {more}
    """)
    return path


def gradients(site):
    """Those of a site's records, each by itself."""
    inputs, targets = (torch.from_numpy(part.astype(np.float32)) for part in rows_of(SITES.index(site), len(SITES))[0])
    return ModuleGradients(Logistic(), nn.functional.binary_cross_entropy_with_logits, inputs, targets)


def gradients_by_opacus(site):
    """The same by the hooks of another package."""
    inputs, targets = (torch.from_numpy(part.astype(np.float32)) for part in rows_of(SITES.index(site), len(SITES))[0])
    hooked = pytest.importorskip("opacus").GradSampleModule(nn.Linear(30, 1), loss_reduction="sum")

    def of_records(model, rows):
        hooked.zero_grad()
        hooked._module.load_state_dict(
            {"weight": torch.from_numpy(model["w"])[None], "bias": torch.from_numpy(model["b"])}
        )
        outputs = hooked(inputs[rows]).squeeze(-1)
        nn.functional.binary_cross_entropy_with_logits(outputs, targets[rows], reduction="sum").backward()
        return {"w": hooked._module.weight.grad_sample.numpy(), "b": hooked._module.bias.grad_sample.numpy()}

    return of_records


class Logistic(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.zeros(30)), nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        return inputs @ self.w + self.b


def simulate(mods, rounds=ROUNDS, failing=None):
    """Train with FedAvg; the models of all rounds, and what the server was told beside them."""
    seen = {"models": [], "metrics": [], "failures": []}
    app = ClientApp(mods=mods)

    @app.train()
    def train(message, context):
        given = {name: array.numpy() for name, array in message.content["arrays"].items()}
        if context.node_config["partition-id"] == failing:
            raise ValueError(f"row {SECRET}")
        train_rows, _ = rows_of(context.node_config["partition-id"], len(SITES))
        new = ArrayRecord({name: flwr.app.Array(part) for name, part in trained(given, *train_rows).items()})
        metrics = MetricRecord({"num-examples": len(train_rows[1]), "loss": SECRET})
        return Message(RecordDict({"arrays": new, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        raise ValueError(f"row {SECRET}")

    class Watched(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            seen["failures"] += [one.error.reason for one in replies if one.has_error()]
            for one in replies:
                records = one.content.metric_records.values() if one.has_content() else ()
                seen["metrics"] += [dict(record) for record in records]
            arrays, metrics = super().aggregate_train(server_round, replies)
            if arrays is not None:
                seen["models"].append({name: array.numpy() for name, array in arrays.items()})
            return arrays, metrics

        def aggregate_evaluate(self, server_round, replies):
            seen["failures"] += [one.error.reason for one in replies if one.has_error()]

    server = ServerApp()

    @server.main()
    def main(grid, context):
        first = ArrayRecord({name: flwr.app.Array(part) for name, part in start().items()})
        Watched(min_available_nodes=len(SITES), min_train_nodes=len(SITES)).start(
            grid=grid, initial_arrays=first, num_rounds=rounds
        )

    run_simulation(server_app=server, client_app=app, num_supernodes=len(SITES))
    return seen


def test_models_leave_with_noise_and_nothing_else_does(tmp_path):
    """Without noise it learns what plain FedAvg does; with noise the mean moves by what is accounted for."""
    small = simulate([sottovoce_mod(agreement(tmp_path, 1e-6), tmp_path / "small")])
    noisy = simulate([sottovoce_mod(agreement(tmp_path, 0.05), tmp_path / "noisy")], rounds=ROUNDS + 1)
    plain = simulate([])
    test_rows = rows_of(0, len(SITES))[1]
    reached = [accuracy(found["models"][-1], *test_rows) for found in (plain, small, noisy)]
    assert reached[0] > 0.9
    assert reached[1] == pytest.approx(reached[0], abs=0.02)  # equal weights in place of rows
    assert 0.75 < reached[2] <= reached[0] + 0.03
    for found in (small, noisy):
        assert {key for line in found["metrics"] for key in line} == {"num-examples"}
        assert {line["num-examples"] for line in found["metrics"]} == {1.0}
        assert not any(str(SECRET) in reason for reason in found["failures"])
    assert small["failures"] == []  # every evaluation raises, which is about rows, too
    assert len(small["models"]) == len(noisy["models"]) == ROUNDS  # the round that was not agreed on had no answers
    assert sum("rounds" in reason for reason in noisy["failures"]) == len(SITES)
    moved = noisy["models"][0]["w"] - small["models"][0]["w"]
    expected = 0.05 * 2 * 0.5 / np.sqrt(len(SITES))
    assert 0.5 * expected < moved.std() < 1.6 * expected  # thirty numbers


def test_a_budget_ends_the_rounds_of_a_node(tmp_path):
    path = agreement(tmp_path, 2.0)
    with Guard(path, "s0", tmp_path / "alone") as guard:
        budget = Budget(0.7 * guard.report.headline.epsilon, 1e-5)
    found = simulate([sottovoce_mod(path, tmp_path / "sites", budget=budget)])
    assert 1 < len(found["models"]) < ROUNDS
    assert any("budget" in reason for reason in found["failures"])
    assert {path.name for path in Path(tmp_path / "sites").iterdir()} == set(SITES)


@pytest.mark.parametrize("records", [gradients, gradients_by_opacus])
def test_single_records_are_protected_by_steps_along_noisy_sums(tmp_path, records):
    """Almost without noise the server gets what gradient descent along clipped gradients gives."""
    steps = f"records.held = {[50] * 8}\nrecords.rate = 2.0\nrecords.steps = 4"
    found = simulate([sottovoce_mod(agreement(tmp_path, 1e-5, steps), tmp_path / "sites", records=records)])
    assert len(found["models"]) == ROUNDS, found["failures"]
    model = start()
    for _ in range(ROUNDS):
        each = []
        for site in range(8):
            w, b = (model[name].astype(float) for name in "wb")
            inputs, targets = rows_of(site, 8)[0]
            for _ in range(4):
                error = 1 / (1 + np.exp(-(inputs @ w + b))) - targets
                rows = error[:, None] * np.hstack([inputs, np.ones((50, 1))])
                clipped = rows * np.minimum(1, 0.5 / np.linalg.norm(rows, axis=1))[:, None]
                step = 2.0 * clipped.sum(0) / 50
                w, b = w - step[:30], b - step[30:]
            each.append(np.concatenate([w, b]))
        model = dict(zip("wb", np.split(np.mean(each, axis=0), [30]), strict=True))
    assert np.allclose(found["models"][-1]["w"], model["w"], atol=1e-3)
    assert accuracy(found["models"][-1], *rows_of(0, 8)[1]) > 0.9


def test_a_site_whose_training_fails_sends_noise_alone(tmp_path):
    found = simulate([sottovoce_mod(agreement(tmp_path, 0.05), tmp_path / "sites")], failing=3)
    assert len(found["models"]) == ROUNDS
    assert {line["num-examples"] for line in found["metrics"]} == {1.0}
    assert len(found["metrics"]) == 8 * ROUNDS
    assert not any(str(SECRET) in reason for reason in found["failures"])
