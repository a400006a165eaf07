"""Membership attacks: they see what was received, find members where nothing hides them, nobody where noise does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from sottovoce import InputError, algorithm, dropout, metropolis, simulate, weigh
from sottovoce.attacks import inversion
from sottovoce.attacks.candidate_losses import LossSeries, attacked_pairs, candidates_of, loss_series
from sottovoce.attacks.classifier import classifier, spaced
from sottovoce.attacks.evaluation import Scores, evaluate_scores, roc_auc, roc_auc_variance
from sottovoce.attacks.pooled import Group, models_of
from sottovoce.attacks.registry import (
    ATTACKS,
    MEMBERSHIP_ATTACKS,
    AttackOptions,
    Option,
    PageFigure,
    attacks_with,
    page_attacks,
)
from sottovoce.attacks.run_attacks import infer_membership
from sottovoce.attacks.threshold import threshold
from sottovoce.core.random_streams import NoiseKey
from sottovoce.learning.datasets import Dataset, load
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.models import model
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.run.execute import run_experiment
from sottovoce.run.finished_run import open_run
from sottovoce.run.recording import RecordedRound
from sottovoce.schemas import schema
from sottovoce.support.config import RecordingSettings, parse_experiment

# --- registry ------------------------------------------------------------------------------------------------------


def test_every_attack_of_the_registry_has_its_function_and_its_place_in_the_schema():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    for attack in ATTACKS:
        assert callable(attack.load())
        assert f"**{attack.name}**" in attack.description
        assert bool(attack.caption) == (attack.page_figure is PageFigure.ROC_CURVE)
    found = schema("attack")["$defs"]["membership"]["properties"]["attack"]["enum"]
    of_exported_models = ["loss", "worst case"]
    assert found == [*(attack.name for attack in MEMBERSHIP_ATTACKS), *of_exported_models]
    drawn = [attack.name for attack in page_attacks(PageFigure.ROC_CURVE)]
    assert drawn == ["pooled", "likelihood", "classifier", "threshold"]


def test_the_registry_is_read_without_torch():
    code = "import sys; import sottovoce.attacks.registry; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_help_names_every_attack_and_who_takes_an_option(sotto):
    out = " ".join(sotto("attack --help")[1].split())
    assert "threshold, classifier, likelihood, pooled or inversion." in out
    for option in (Option.VIEW, Option.SHADOWS):
        (attack,) = attacks_with(option)
        assert f"{attack.name}: " in out


# --- figures -------------------------------------------------------------------------------------------------------


def test_areas_are_shares_of_pairs():
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 5, 40).astype(float), rng.integers(0, 4, 30).astype(float)
    above = members[:, None] - others[None, :]
    assert roc_auc(members, others) == pytest.approx(np.mean((above > 0) + 0.5 * (above == 0)))


def test_variance_of_areas_is_that_of_repeated_draws():
    rng = np.random.default_rng(1)
    drawn = [(rng.normal(0.7, 2, 50), rng.normal(0, 1, 80)) for _ in range(600)]
    found = np.mean([roc_auc_variance(*one) for one in drawn])
    assert found == pytest.approx(np.var([roc_auc(*one) for one in drawn]), rel=0.15)


def test_rates_are_counted_at_thresholds_that_ties_allow():
    others = np.concatenate([[9.0], np.zeros(999)])
    found = evaluate_scores("hand", [Scores(0, np.array([10.0, 9.0, 8.0, -1.0]), others)])
    assert found.tpr_at_0_1_percent.value == 0.75  # one false positive in a thousand is allowed, at 9 and down to 8
    others[1] = 9.0
    assert (
        evaluate_scores("hand", [Scores(0, np.array([10.0, 9.0, 8.0, -1.0]), others)]).tpr_at_0_1_percent.value == 0.25
    )
    assert evaluate_scores("hand", [Scores(0, np.array([10.0, 9.0, 8.0, -1.0]), others)]).tpr_at_1_percent.value == 0.75


@pytest.mark.parametrize("size", [20, 3000])
def test_curves_are_those_of_scikit_learn(size):
    rng = np.random.default_rng(2)
    members, others = rng.normal(0.5, 1, size).round(2), rng.normal(0, 1, size).round(2)
    found = evaluate_scores(
        "try",
        [Scores(0, members[: size // 2], others[: size // 2]), Scores(1, members[size // 2 :], others[size // 2 :])],
    )
    curve = found.document()["roc"]
    false, true, _ = roc_curve(np.repeat([1, 0], size), np.concatenate([members, others]), drop_intermediate=False)
    assert {*zip(curve["fpr"], curve["tpr"], strict=True)} <= {*zip(false.tolist(), true.tolist(), strict=True)}
    assert (curve["fpr"][0], curve["tpr"][0], curve["fpr"][-1], curve["tpr"][-1]) == (0, 0, 1, 1)
    assert len(curve["fpr"]) <= 200
    assert np.trapezoid(curve["tpr"], curve["fpr"]) == pytest.approx(roc_auc(members, others), abs=0.003)


@pytest.mark.parametrize("victims", [pytest.param(2, marks=pytest.mark.slow), 12])
def test_intervals_cover_the_truth_about_as_often_as_they_say(victims):
    rng = np.random.default_rng(2)
    truth, covered, advantage = 0.5, [], []
    for _ in range(60):
        scores = [Scores(v, rng.normal(0, 1, 40), rng.normal(0, 1, 40)) for v in range(victims)]
        found = evaluate_scores("chance", scores, confidence=0.9)
        covered.append(found.auc.low <= truth <= found.auc.high)
        advantage.append(found.advantage.value)
    assert 0.8 < np.mean(covered) < 0.98
    assert abs(np.mean(advantage)) < 0.03  # the best threshold in sight would show 0.1 where there is nothing


def test_a_row_that_several_attackers_score_does_not_choose_its_own_threshold():
    rng = np.random.default_rng(5)
    found = []
    for _ in range(80):
        chance = [Scores(v, rng.normal(0, 1, 20), rng.normal(0, 1, 20)) for v in range(4)]
        found.append(evaluate_scores("chance", [one for one in chance for _ in range(5)]).advantage.value)
    assert abs(np.mean(found)) < 0.03  # 0.06 when copies are halved one by one


def test_more_pairs_of_one_victim_are_no_more_victims():
    rng = np.random.default_rng(3)
    one = Scores(0, rng.normal(1, 1, 50), rng.normal(0, 1, 50))
    alone, thrice = evaluate_scores("x", [one]), evaluate_scores("x", [one, one, one])
    assert thrice.auc.high - thrice.auc.low == pytest.approx(alone.auc.high - alone.auc.low)
    assert (thrice.victims, thrice.pairs) == (1, 3)


# --- attacks on runs -----------------------------------------------------------------------------------------------


def meaningless(nodes=8, rows=25, features=20):
    """Labels by chance: all that can be learned is the training rows themselves."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((nodes * rows + 200, features), dtype=np.float32)
    targets = rng.integers(0, 2, len(inputs))
    cut = nodes * rows
    data = Dataset(
        name="chance", kind="classes", examples=Examples(inputs[:cut]), targets=targets[:cut], test_inputs=inputs[cut:],
        test_targets=targets[cut:], shape=(features,), classes=("0", "1"), groups=None, test_groups=None,
        entities=(), licence="", source="", notes=(),
    )  # fmt: skip
    return task(data, partition(data, nodes), model("mlp", data, hidden=(32,)))


def trained(name, net, every=5, clip=("none", None), **settings):
    job = meaningless(net.n)
    run = simulate(
        algorithm(name, step_size=1.0, **settings), net, job.gradients("full", *clip), rounds=120, every=10**6,
        noise_key=NoiseKey.of_seed(0), record=RecordingSettings(attackers="all", every=every),
    )  # fmt: skip
    pairs = attacked_pairs(run.messages, None, net.n)
    return job, run, loss_series(job, run.messages, pairs, candidates_of(job, pairs))


@pytest.fixture(scope="module")
def overfitted():
    return trained("d-psgd", metropolis("ring:8"))


def test_losses_are_those_of_the_models_received(overfitted):
    job, run, found = overfitted
    one = found[3]
    chosen = candidates_of(job, run.messages.pairs)[one.victim]
    assert set(chosen.members) <= set(job.shards.indices[one.victim])
    models = torch.from_numpy(run.messages.of(one.attacker, one.victim))
    for at in (0, len(one.rounds) - 1):
        with torch.no_grad():
            outputs = job.model.outputs(models[at], job.inputs[chosen.members])
            expected = job.model.loss.each(outputs, job.targets[chosen.members])
        np.testing.assert_allclose(one.members[at], expected, rtol=1e-4, atol=1e-6)


def test_without_noise_an_overfitted_model_gives_its_members_away(overfitted):
    _, _, found = overfitted
    low = threshold(found)
    assert low.auc.low > 0.7
    assert low.by_round[-1][1] == pytest.approx(low.auc.value)
    assert low.by_round[0][1] < low.auc.value
    assert low.advantage.low > 0.2
    assert classifier(found).auc.low > 0.7


@pytest.mark.parametrize("name", ["dp-d-sgd", "zip-dl"])
def test_huge_noise_leaves_only_guessing(name):
    _, _, found = trained(name, metropolis("ring:8"), clip=("per-example", 1.0), sigma=300.0)
    for attack in (threshold, classifier):
        got = attack(found)
        assert got.auc.low <= 0.5 <= got.auc.high
        assert got.auc.high - got.auc.low < 0.3


def test_who_misses_messages_attacks_with_those_that_came():
    net = dropout("ring:8", rate=0.4, seed=1)
    _, _, found = trained("d-psgd", net, every=20)
    assert any(not one.received().all() for one in found)
    assert threshold(found).auc.low > 0.6
    assert np.isfinite(classifier(found).auc.value)


def test_of_a_secure_sum_only_the_average_is_attacked():
    job, _, found = trained("dp-fedavg", weigh("complete:6", "uniform"), sigma=0.0)
    assert {one.victim for one in found} == {-1}
    assert len(found[0].members[0]) == min(150, len(job.test_inputs))
    assert threshold(found).auc.low > 0.6


def test_twenty_six_models_at_fixed_intervals():
    assert len(spaced(range(0, 1000, 3))) == 26
    assert spaced([0, 5, 9]) == (0, 5, 9)


def test_others_are_like_members_so_that_skew_is_no_success():
    """Nodes hold few labels each; models that know labels, and no rows, tell nothing."""
    digits = load("digits")
    shards = partition(digits, 8, "dirichlet:0.1", 0)
    job = task(digits, shards, model("softmax", digits))
    pairs = tuple((0, victim) for victim in range(1, 8))
    for victim, (members, others) in candidates_of(job, pairs).items():
        counts = [np.bincount(part, minlength=10) for part in (digits.targets[members], digits.test_targets[others])]
        assert (counts[0] == counts[1]).all()
        assert set(members) <= set(shards.indices[victim])
    assert len(candidates_of(job, pairs)) > 3


def test_labels_alone_tell_the_classifier_nothing():
    """Losses that depend on labels and chance: nets that learn labels of members must not be right, nor wrong."""
    rng = np.random.default_rng(0)
    found = []
    for victim in range(60):
        labels = rng.integers(0, 10, 32)
        members, others = (np.exp(labels + 0.1 * rng.standard_normal((5, 32))) for _ in range(2))
        found.append(LossSeries(99, victim, (1, 2, 3, 4, 5), members, others))
    area = classifier(found).auc
    assert area.low < 0.5 < area.high
    assert area.high - area.low < 0.1


def test_too_few_members_are_not_scored():
    job = meaningless(8, rows=5)
    pairs = ((0, 1), (0, 7))
    with pytest.raises(InputError, match=r"at most 5 members .* too few to score"):
        candidates_of(job, pairs)


# --- finished runs -------------------------------------------------------------------------------------------------

DOCUMENT = {
    "name": "small", "noise_key": 16 * "5a", "topology": {"graph": "ring:5"},
    "training": {"rounds": 60, "bound": 1.0, "clip": "per-example"},
    "data": {"rows": 20}, "model": {"name": "mlp", "hidden": [32]}, "record": {"attackers": [0, 2], "every": 5},
    "algorithm": {"name": "dp-d-sgd", "sigma": 0.0, "step_size": 2.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run without noise and one that is all noise."""
    out = tmp_path_factory.mktemp("runs")
    loud = DOCUMENT | {"algorithm": {"name": "dp-d-sgd", "sigma": 300.0, "step_size": 2.0}}
    for name, document in (("plain", DOCUMENT), ("loud", loud), ("second", DOCUMENT | {"seed": 1})):
        run_experiment(parse_experiment(document), out / name)
    run_experiment(parse_experiment(DOCUMENT | {"record": {}}), out / "mute")
    return out


def test_shadow_runs_show_what_a_threshold_does_not(finished, monkeypatch):
    plain, loud = open_run(finished / "plain"), open_run(finished / "loud")
    simple = infer_membership([plain], "threshold")
    for method in ("rmia", "lira"):
        found = infer_membership([plain], "likelihood", AttackOptions(shadows=4, method=method, jobs=1))
        assert found.auc.value > max(0.65, simple.auc.value)
        nothing = infer_membership([loud], "likelihood", AttackOptions(shadows=4, method=method, jobs=1))
        assert nothing.auc.low <= 0.5 <= nothing.auc.high
    monkeypatch.setattr("sottovoce.attacks.likelihood.with_other_rows", None)  # no run is needed a second time
    again = infer_membership([plain], "likelihood", AttackOptions(shadows=4, method="lira", jobs=1))
    assert again == infer_membership([plain], "likelihood", AttackOptions(shadows=4, method="lira", jobs=1))
    (victim,) = list((finished / "plain" / "shadows").iterdir())
    (victim / "0002.npz").unlink()
    with pytest.raises(TypeError):
        infer_membership([plain], "likelihood", AttackOptions(shadows=4, jobs=1))


@pytest.mark.slow
def test_shadow_runs_in_processes_of_their_own_give_the_same(finished):
    second = open_run(finished / "second")
    found = infer_membership([second], "likelihood", AttackOptions(shadows=4, jobs=2))
    for path in (finished / "second" / "shadows").glob("*/*"):
        path.unlink()
    assert infer_membership([second], "likelihood", AttackOptions(shadows=4, jobs=1)) == found


def test_attacks_are_printed_and_kept(sotto, finished):
    folder = finished / "plain"
    code, out, err = sotto(f"attack {folder} --json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["auc"]["low"] <= document["auc"]["value"] <= document["auc"]["high"]
    assert (document["pairs"], document["victims"], document["members"]) == (4, 3, 80)
    code, out, _ = sotto(f"attack {folder} --attack classifier --attacker 2")
    assert code == 0
    assert "ROC-AUC" in out
    assert "2 pairs of attacker and victim" in out
    kept = json.loads((folder / "attack.json").read_text())
    assert {key: value for key, value in kept["threshold"].items() if key != "signature"} == document
    assert kept["classifier"]["attacker"] == 2
    both = json.loads(sotto(f"attack {folder} {finished / 'second'} --json")[1])
    assert (both["pairs"], both["victims"], len(both["runs"])) == (8, 6, 2)


def test_pooled_attack_reaches_nodes_that_are_not_heard(sotto, finished):
    found = json.loads(sotto(f"attack {finished / 'plain'} --attack pooled --json")[1])
    assert [one["distance"] for one in found["by_distance"]] == [1, 2]
    assert (found["pairs"], found["victims"]) == (8, 5)
    assert found["auc"]["value"] > 0.55
    together = json.loads(sotto(f"attack {finished / 'plain'} --attack pooled --view coalition:0,2 --json")[1])
    assert (together["pairs"], together["attacker"]) == (3, "coalition:0,2")


def test_a_coalition_averages_the_copies_of_one_model():
    """Of a node that nobody hears they have the mean of all models."""
    rows = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 8.0]])
    got = RecordedRound(np.array([1, 1, 4]), np.array([0, 2, 0]), np.array([0, 1, 2]), rows)
    models = models_of(got, Group((0, 2), (0, 2)), [1, 4, 3])
    assert models.tolist() == [[2.0, 0.0], [0.0, 8.0], [4 / 3, 8 / 3]]
    assert models_of(got, Group((5,), (5,)), [1]) is None
    assert models_of(got, Group((0,), (0,)), [1]).tolist() == [[1.0, 0.0]]


def test_inversion_finds_the_row_behind_a_gradient_unless_noise_hides_it(sotto, tmp_path):
    one_row = DOCUMENT | {
        "training": {"rounds": 1, "batch": "fixed:1", "clip": "per-example", "bound": 1.0}, "record": {"attackers": [0]}
    }  # fmt: skip
    for name, sigma in (("plain", 0.0), ("private", 5.0)):
        settings = one_row | {"algorithm": {"name": "dp-d-sgd", "sigma": sigma}}
        run_experiment(parse_experiment(settings), tmp_path / name)
    plain = json.loads(sotto(f"attack {tmp_path / 'plain'} --attack inversion --json")[1])
    private = json.loads(sotto(f"attack {tmp_path / 'private'} --attack inversion --json")[1])
    assert [one["victim"] for one in plain["victims"]] == [1, 4]
    assert all(min(one["likeness"]) > 0.99 > one["strangers"] for one in plain["victims"])
    assert all(max(one["likeness"]) < 0.6 for one in private["victims"])


def test_inversion_compares_with_the_batch_that_was_drawn(sotto, tmp_path):
    """Which rows these are follows from the key that the run made for itself."""
    settings = DOCUMENT | {
        "noise_key": None, "training": {"rounds": 1, "batch": "fixed:1", "clip": "per-example", "bound": 1.0},
        "record": {"attackers": [0]},
    }  # fmt: skip
    run_experiment(parse_experiment(settings), tmp_path / "run")
    found = json.loads(sotto(f"attack {tmp_path / 'run'} --attack inversion --json")[1])
    assert max(likeness for one in found["victims"] for likeness in one["likeness"]) > 0.99
    (tmp_path / "run" / "noise.key").unlink()
    code, _, err = sotto(f"attack {tmp_path / 'run'} --attack inversion")
    assert (code, "no noise.key; it says which rows were in the first batch" in err) == (2, True), err


@pytest.mark.parametrize("size", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("rows", [1, 3])
def test_inversion_reads_labels_from_gradients_of_any_length(size, rows):
    digits = load("digits")
    job = task(digits, partition(digits, nodes=4), model("mlp", digits, hidden=(32,)))
    start = job.start(torch.Generator().manual_seed(1))
    batches = job.gradients(f"fixed:{rows}", noise_key=NoiseKey.of_seed(0))
    moved = batches(0, start)
    for node in range(4):
        truth = job.targets[torch.tensor(batches.batches.rows_of(node, 0))]
        assert sorted(inversion._labels(job, start[node], size * moved[node], rows).tolist()) == sorted(truth.tolist())


@pytest.mark.parametrize(("rows", "largest_jacobian"), [(8, inversion.LARGEST_JACOBIAN), (2, 0)])
def test_inversion_tells_the_rows_of_a_batch_apart(rows, largest_jacobian, monkeypatch):
    """By Gauss-Newton steps, and by L-BFGS where derivatives of all residuals would be too many."""
    monkeypatch.setattr(inversion, "LARGEST_JACOBIAN", largest_jacobian)
    digits = load("digits").max_norm(3.0)
    job = task(digits, partition(digits, nodes=4), model("softmax", digits))
    start = job.start(torch.Generator().manual_seed(1))
    batches = job.gradients(f"fixed:{rows}", noise_key=NoiseKey.of_seed(0))
    gradient, truth = batches(0, start)[0], job.inputs[torch.tensor(batches.batches.rows_of(0, 0))]
    noise = torch.randn(len(gradient), generator=torch.Generator().manual_seed(2))
    plain, noisy = (
        inversion.closest_correlation(inversion.invert(job, start[0], seen, rows=rows), truth)
        for seen in (gradient, gradient + noise)
    )
    assert plain.mean() > 0.95
    assert noisy.mean() < 0.5


def test_a_run_counts_once_and_only_with_seeds_of_its_own_kind(finished):
    plain, loud, second = (open_run(finished / name) for name in ("plain", "loud", "second"))
    assert infer_membership([plain, second]).victims == 2 * infer_membership([plain]).victims
    with pytest.raises(InputError, match="twice; each victim must count once"):
        infer_membership([plain, plain])
    with pytest.raises(InputError, match="differ in algorithm"):
        infer_membership([plain, loud])


def test_attacks_at_the_end_of_a_sweep(sotto, tmp_path):
    recipe = tmp_path / "study.toml"
    recipe.write_text(
        'name = "study"\nseeds = [0, 1]\nattacks = ["threshold", "pooled"]\ntopology.graph = "ring:5"\ndata.rows = 20\n'
        'model = {name = "mlp", hidden = [16]}\nrecord = {attackers = "all", every = 5}\n'
        'training = {rounds = 20, clip = "per-example", bound = 1.0}\n'
        'variants = [{name = "plain", algorithm = {name = "d-psgd", step_size = 2.0}},'
        '{name = "noisy", algorithm = {name = "dp-d-sgd", step_size = 2.0}, grid = {"algorithm.sigma" = [0.1, 1.0]}}]\n'
    )
    words = f"run {recipe} --out {tmp_path / 'runs'} --jobs 1 --resume --json"
    code, out, _ = sotto(words)
    assert code == 0
    page = Path(json.loads(out)["attacks"])
    assert "| noisy, sigma 1.0 |" in page.read_text()
    assert {one.name for one in page.parent.glob("attack-*.svg")} == {
        f"attack-{stem}.svg" for stem in ("over-sigma", "trade-off", "over-rounds", "over-distance")
    }
    rows = json.loads((page.parent / "attacks.json").read_text())["runs"]
    alone = infer_membership([open_run(page.parent / f"plain,seed={seed}") for seed in (0, 1)], "threshold")
    assert rows[0]["attacks"]["threshold"]["auc"]["value"] == alone.auc.value
    first = page.read_text()
    before = {path: path.stat().st_mtime_ns for path in page.parent.glob("*/attack.json")}
    assert sotto(words)[0] == 0
    assert page.read_text() == first
    assert {path: path.stat().st_mtime_ns for path in page.parent.glob("*/attack.json")} == before
    stored = page.parent / "plain,seed=0" / "attack.json"
    right, edited = stored.read_text(), json.loads(stored.read_text())
    edited["threshold"]["auc"]["value"] = 0.5
    stored.write_text(json.dumps(edited))
    assert sotto(words)[0] == 0
    assert (page.read_text(), stored.read_text()) == (first, right), "found again, by this user's own attack"


def test_unknown_attacks_of_a_sweep_are_refused(sotto, tmp_path):
    recipe = tmp_path / "study.toml"
    recipe.write_text('name = "s"\nattacks = ["magic"]\ntopology.graph = "ring:5"\ntraining.rounds = 5\n')
    code, out, err = sotto(f"run {recipe} --out {tmp_path / 'runs'}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "attacks = ['magic']; known: threshold, classifier, likelihood, pooled" in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["attack", "plain", "--attack", "pooled", "--view", "everyone"], "everyone: node 1 was not recorded"),
        (["attack", "plain", "--attack", "pooled", "--view", "node:9"], "nodes are 0..4"),
        (
            ["attack", "plain", "--attack", "pooled", "--view", "eavesdropper:0>1"],
            "only what nodes received was recorded",
        ),
        (["attack", "plain", "--view", "node:0"], "view node:0 with threshold; a view is for pooled"),
        (
            ["attack", "plain", "--attack", "inversion"],
            "a batch of 20 rows at node 1; inversion can separate from 1 to 8 rows",
        ),
        (["attack", "plain", "--attack", "inversion", "--attacker", "1"], "no neighbour's model of the first round"),
        (["attack", "mute"], "nothing was recorded; attacks need what attackers received; run again"),
        (["attack", "plain", "--attacker", "7"], "attacker 7; nodes are 0..4"),
        (["attack", "plain", "--attacker", "1"], "attacker 1; what was recorded is what 0, 2 received"),
        (["attack", "plain", "--samples", "6"], "too few to score"),
        (["attack", "plain", "--attack", "magic"], "--attack magic; known: threshold"),
        (["attack", "plain", "--attack", "likelihood", "--shadows", "3"], "3 shadow runs; "),
        (["attack", "plain", "--attack", "inversion", "--attacker", "9"], "nodes are 0..4"),
        (["attack", "plain", "--confidence", "2"], "confidence 2.0; "),
        (["attack", "nowhere"], "no run; the folder of a run has a config.json"),
        (["audit", "nowhere"], "no run; the folder of a run has a config.json"),
        (["audit", "plain", "--attacker", "9"], "node 9 in view node:9; nodes are 0..4"),
    ],
)
def test_bad_input_gets_one_clear_line(words, line, sotto, finished):
    code, out, err = sotto(words[0], str(finished / words[1]), *words[2:])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert line in err
