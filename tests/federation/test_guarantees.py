"""What an agreement guarantees does not depend on anybody's rows, and is what its simulation reports."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

from sottovoce.errors import InputError, Unaccountable
from sottovoce.federation.agreement import parse_agreement
from sottovoce.federation.guarantees import agreed_guarantees, build_agreement
from sottovoce.learning.tables import read_table
from sottovoce.run.execute import run_experiment
from sottovoce.run.privacy_report import report_wanted
from sottovoce.support.config import set_key
from tests.federation.federation import ROWS, agreement_in, write_tables

FIXED = {"privacy.epsilon": None, "algorithm.sigma": 3.0, "privacy.attackers": "none"}

VARIED = {
    "target": {},
    "poisson": {**FIXED, "training.batch": "poisson:0.5", "training.rounds": 2},
    "cycle": {**FIXED, "training.batch": "cycle:2x3"},
    "bounded": {"privacy.attackers": [0], "training.clip": "bounded", "training.bound": None, "training.rounds": 2},
    "user": {**FIXED, "privacy.adjacency": "user", "training.clip": "whole-gradient"},
    "shared secrets": {**FIXED, "algorithm.name": "decor", "algorithm.sigma_pair": 1.0, "training.rounds": 2},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("clinics")


@pytest.fixture(scope="module")
def plain(place):
    return agreement_in(place)


@pytest.fixture(scope="module")
def tables(place, plain):
    """The tables of two different sets of patients."""
    folders = [write_tables(place, seed) for seed in (0, 1)]
    return [{name: read_table(folder / f"{name}.csv", plain.data.columns) for name in ROWS} for folder in folders]


def varied(agreement, settings):
    document = agreement.document
    for key, value in settings.items():
        document = set_key(document, key.split("."), value)
    return parse_agreement(document, "here")


@pytest.mark.parametrize("settings", VARIED.values(), ids=VARIED)
def test_figures_do_not_depend_on_whose_rows_are_here(plain, tables, settings):
    agreement = varied(plain, settings)
    wanted = agreed_guarantees(agreement).document
    assert wanted["headline"] is not None
    one, other = tables
    for here in ({"Mercy": one["Mercy"]}, other):
        accountant = build_agreement(agreement, here)
        assert report_wanted(accountant, agreement.experiment).document() == wanted


def test_the_simulation_reports_what_was_agreed(plain, place, tmp_path):
    wanted = agreed_guarantees(plain)
    folder = write_tables(tmp_path, seed=2)
    run_experiment(plain.experiment, tmp_path / "run", data=folder)
    found = json.loads((tmp_path / "run" / "privacy.json").read_text())
    agreed = json.loads(json.dumps(wanted.document))
    secret = [one for one in agreed["headline"]["assumptions"] if one.startswith("secret noise")]
    agreed["headline"]["assumptions"].remove(*secret)  # members have it, a simulation has a key
    assert {key: found[key] for key in agreed} == agreed
    assert set(wanted.members) == set(ROWS)
    assert "epsilon 3 at delta 1e-05" in wanted.sentence


def test_rows_of_the_others_take_no_memory(plain, tables):
    document = plain.document
    document["members"] = [{**member, "rows": 10**9} for member in document["members"]]
    agreement = parse_agreement({**document, "privacy": {}, "algorithm": {"name": "dp-d-sgd", "sigma": 1.0}}, "here")
    tracemalloc.start()
    built = build_agreement(agreement, {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert built.training_run.gradients.batches.sizes.tolist() == [1e9] * 3
    assert peak < 50e6


def test_own_rows_are_the_same_whether_the_others_are_here_or_not(plain, tables):
    one, _ = tables
    alone = build_agreement(plain, {"Mercy": one["Mercy"]}).training_run.gradients.hosted(np.array([1]))
    together = build_agreement(plain, one).training_run.gradients.hosted(np.array([1]))
    np.testing.assert_array_equal(alone.task.dataset.inputs, together.task.dataset.inputs)
    np.testing.assert_array_equal(alone.task.dataset.targets, together.task.dataset.targets)
    assert len(alone.task.dataset.inputs) == ROWS["Mercy"]
    assert len(alone.task.dataset.test_inputs) == 5
    held = {tuple(row) for row in alone.task.dataset.test_inputs.tolist()}
    assert held <= {tuple(row) for row in one["Mercy"].inputs.tolist()}


def test_fewer_rows_than_declared_are_refused(plain, tmp_path):
    folder = write_tables(tmp_path, more=0)
    table = read_table(folder / "Hill.csv", plain.data.columns)
    with pytest.raises(InputError, match="Hill: a table of 12 rows; 12 are declared"):
        build_agreement(plain, {"Hill": table})


def test_an_algorithm_without_a_proof_meets_no_target_and_the_remedy_is_named(plain):
    document = {**plain.document, "algorithm": {"name": "zip-dl"}}
    document["privacy"] = {**document["privacy"], "epsilon": 4.0, "view": "everyone"}
    with pytest.raises(Unaccountable, match=r"with zip-dl no epsilon is proven.*give algorithm\.sigma"):
        agreed_guarantees(parse_agreement(document, "agreement.toml"))


TRIANGLE = {"topology.graph": "edges:Hill--Mercy,Hill--North,Mercy--North", "training.rounds": 2}


@pytest.mark.parametrize("name", ["dp-d-sgd", "secure-gossip"])
def test_secure_sums_are_agreed_on_by_their_key_or_by_the_algorithm(plain, name):
    agreement = varied(plain, {**FIXED, **TRIANGLE, "algorithm.name": name, "secure_sum": True})
    found = agreed_guarantees(agreement)
    assert (agreement.has_secure_sums, agreement.secure_sum) == (True, True)
    assert agreement.document["secure_sum"] is True
    assert found.document["algorithm"] == "secure-gossip"
    assert "every 1 node" in found.sentence or "coalition" in found.sentence, found.sentence
    without = varied(plain, {**FIXED, **TRIANGLE, "algorithm.name": "dp-d-sgd"})
    assert (without.has_secure_sums, without.secure_sum) == (False, None)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"algorithm.name": "zip-dl", "secure_sum": True}, "secure sums exist for dp-fedavg and dp-d-sgd"),
        ({"algorithm.name": "secure-gossip", "secure_sum": False}, "it has secure sums; use dp-d-sgd"),
        ({"topology.graph": "edges:Hill--Mercy,Mercy--North", "secure_sum": True}, "Hill gets a sum over Mercy"),
        ({"secure_sum": True, "privacy.colluders": 2}, "with 2 colluders every sum is over at least 3 others"),
        ({"algorithm.name": "dp-fedavg", "topology.weights": "uniform"}, "added by a trusted server"),
    ],
)
def test_secure_sums_that_cannot_be_are_refused_when_they_are_agreed_on(plain, changes, refusal):
    with pytest.raises(InputError, match=refusal):
        agreed_guarantees(varied(plain, {**FIXED, **TRIANGLE, **changes}))


CORRELATED = {"anti-pgd": {}, "mafalda": {}, "decor": {"algorithm.sigma_pair": 1.0}}


@pytest.mark.parametrize(("name", "settings"), CORRELATED.items(), ids=CORRELATED)
def test_members_release_multiples_of_a_step_also_with_noise_over_rounds_and_of_pairs(plain, name, settings):
    agreement = varied(plain, {**FIXED, **settings, "algorithm.name": name, "training.batch": "cycle:2x3"})
    found = agreed_guarantees(agreement).document
    assert found["grid_step"] > 0
    assert any("rounding is covered" in assumption for assumption in found["headline"]["assumptions"])


def test_noise_on_single_messages_is_on_a_grid_in_float64_and_refused_in_float32(plain):
    settings = {"algorithm.name": "zip-dl", "privacy.adjacency": "user", "training.clip": "whole-gradient"}
    with pytest.raises(InputError, match=r'zip-dl with precision = "float32"; .*; set precision = "float64"'):
        agreed_guarantees(varied(plain, {**FIXED, **settings}))
    found = agreed_guarantees(varied(plain, {**FIXED, **settings, "precision": "float64"})).document
    assert found["grid_step"] > 0
    assert "rounding is covered, and adds 0." in json.dumps(found["headline"])


def test_noise_in_models_is_that_of_averages(plain):
    everyone = {"topology.graph": "edges:Hill--Mercy,Hill--North,Mercy--North", "topology.weights": "uniform"}
    agreement = varied(plain, {**FIXED, **everyone, "training.rounds": 6})
    found = agreed_guarantees(agreement)
    noise = np.array([found.privacy.noise_of(node) for node in range(3)])
    each_round = agreement.algorithm.step_size * np.sqrt((noise**2).sum()) / 3
    np.testing.assert_allclose(found.noise_in_models, np.sqrt(6) * each_round, rtol=1e-9)
