"""What algorithms declare about themselves: settings, roles, facts; and what wrong settings get."""

from __future__ import annotations

import re

import numpy as np
import pytest

from sottovoce import InputError, algorithm, algorithm_names, cite
from sottovoce.algorithms.registry import algorithm_spec, algorithm_specs, examples, settings_from_run
from sottovoce.algorithms.spec import Role

every_algorithm = pytest.mark.parametrize("name", algorithm_names())


@every_algorithm
def test_facts_of_a_spec_are_those_of_every_example(name):
    spec = algorithm_spec(name)
    for example in spec.examples:
        built = spec.build(**example.settings)
        assert (built.name, built.requires, built.averaging) == (name, spec.requires, spec.averaging)
        assert example.name == name


@every_algorithm
def test_every_setting_says_what_it_means_and_takes_its_default(name):
    spec = algorithm_spec(name)
    for setting in spec.settings:
        assert setting.meaning.text
        assert (setting.role is Role.FROM_RUN) == bool(setting.meaning.source)
        assert setting.required or setting.accepts(setting.default)
    assert cite(name) == "\n".join(spec.references)
    assert spec.references


def test_roles_are_these():
    specs = algorithm_specs()
    assert [name for name, spec in specs.items() if not spec.adds_noise] == ["d-psgd"]
    assert [name for name, spec in specs.items() if spec.shares_noise] == ["decor"]
    assert [name for name, spec in specs.items() if spec.needs_own_correlation] == ["mf-d-sgd"]
    assert [name for name, spec in specs.items() if spec.averaging] == ["muffliato", "zip-dl-averaging"]
    assert list(settings_from_run()) == ["sensitivity", "rounds", "participation", "colluders"]


def test_all_that_train_take_rounds_from_the_run_and_mafalda_more():
    run = {"rounds": 8, "participation": "2x4"}
    for name, spec in algorithm_specs().items():
        taken = {} if spec.averaging else run if name in ("mafalda", "secure-mafalda") else {"rounds": 8}
        assert spec.from_run({}, **run) == taken, name


def test_the_setting_of_the_noise_is_the_one_that_is_given():
    spec = algorithm_spec("zip-dl")
    assert (spec.noise_setting(), spec.noise_setting({"message_sigma": 1.0})) == ("sigma", "message_sigma")
    assert algorithm_spec("d-psgd").noise_setting() is None
    assert spec.build_at(2.0, {}).noise == algorithm("zip-dl", sigma=2.0).noise
    assert algorithm_spec("d-psgd").build_at(2.0, {}).noise == algorithm("d-psgd").noise


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("muffliato-sgd", {"sigma": 1.0, "chebyshev": 1}, "chebyshev = 1 of muffliato-sgd; it must be true or false"),
        (
            "muffliato-sgd",
            {"sigma": 1.0, "gossip_steps": 1.5},
            "gossip_steps = 1.5 of muffliato-sgd; it must be a whole",
        ),
        (
            "muffliato-sgd",
            {"sigma": 1.0, "gossip_steps": True},
            "gossip_steps = True of muffliato-sgd; it must be a whole",
        ),
        ("d-psgd", {"order": ["step-then-speak"]}, "order = ['step-then-speak'] of d-psgd; it must be a word"),
        ("d-psgd", {"order": "never"}, "order 'never'; known: step-then-speak, while-speaking"),
        ("d-psgd", {"sigma": 1.0}, "setting 'sigma' of d-psgd; its settings are: step_size, order, optimizer"),
        ("dp-fedavg", {"sigma": [1.0, 2.0]}, "sigma = [1.0, 2.0] of dp-fedavg; it must be a number"),
        ("mafalda", {"sigma": 1.0, "rounds": "many"}, "rounds = 'many' of mafalda; it must be a whole number"),
        ("mafalda", {"sigma": 1.0}, "mafalda without correlation or rounds"),
        ("decor", {"sigma_pair": 1.0}, "decor without sigma; it needs that setting; give sigma=1.5"),
    ],
)
def test_wrong_settings_get_one_line(name, settings, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        algorithm(name, **settings)
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_are_numbers():
    built = algorithm("muffliato-sgd", sigma=np.float32(1.5), gossip_steps=np.int64(3), step_size=np.float64(0.2))
    assert (built.gossip_steps, built.step_size) == (3, 0.2)


def test_examples_are_those_of_all_algorithms_in_order():
    assert [example.name for example in examples()] == sorted(example.name for example in examples())
    assert {example.name for example in examples()} == set(algorithm_names())
