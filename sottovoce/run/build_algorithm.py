"""From settings to an algorithm, without loading what only training needs."""

from __future__ import annotations

from typing import Any

from sottovoce.algorithms.registry import algorithm_spec, settings_from_run, spec_with_sums
from sottovoce.algorithms.spec import AlgorithmSettings, AlgorithmSpec
from sottovoce.core.algorithm import Algorithm
from sottovoce.core.participation import Participation
from sottovoce.errors import InputError
from sottovoce.support.config import Experiment


def check_algorithm(experiment: Experiment) -> None:
    """Refuse settings with which the algorithm cannot be built, before anything is loaded.

    Noise may still be missing: a target may decide it.
    """
    chosen_spec(experiment).build(**_settings(experiment, Participation()))
    for name, source in settings_from_run().items():
        if name in experiment.algorithm.settings:
            raise InputError(f"algorithm.{name}", source, "leave it out")


def build_algorithm(experiment: Experiment, participation: Participation) -> Algorithm:
    """The algorithm of a run in which data shows as `participation` says; its noise has size 1 where it is calibrated.

    The sensitivity is set once gradients are known.
    """
    check_algorithm(experiment)
    _check_noise(experiment)
    return chosen_spec(experiment).build(**_settings(experiment, participation))


def local_step_size(experiment: Experiment) -> float:
    """The step size of local steps: as given, or the algorithm's default; 1 for averaging, which takes no steps."""
    declared = chosen_spec(experiment).setting("step_size")
    default: Any = 1.0 if declared is None else declared.default
    return experiment.algorithm.settings.get("step_size", default)


def chosen_spec(experiment: Experiment) -> AlgorithmSpec[AlgorithmSettings]:
    """The algorithm that a run names, in the form with secure sums if it asks for them."""
    name = experiment.algorithm.name
    found = spec_with_sums(name) if experiment.secure_sum else algorithm_spec(name)
    if experiment.secure_sum is False and found.sums_of is not None:
        raise InputError(f"secure_sum = false with {name}", "it has secure sums", f"use {found.sums_of}")
    return found


def _settings(experiment: Experiment, participation: Participation) -> dict[str, object]:
    """The settings given, with those that a run fills in, and noise of size 1 where it is not given."""
    spec, from_run = chosen_spec(experiment), settings_from_run()
    given = {name: value for name, value in experiment.algorithm.settings.items() if name not in from_run}
    noise, rounds = spec.noise_setting(given), experiment.training.rounds
    standard = {} if noise is None else {noise: 1.0}
    shows, colluders = str(participation.within(rounds)), experiment.privacy.colluders
    return standard | given | spec.from_run(given, rounds=rounds, participation=shows, colluders=colluders)


def _check_noise(experiment: Experiment) -> None:
    """Exactly one of the algorithm's noise and a target decides how large the noise is."""
    spec, given, epsilon = chosen_spec(experiment), experiment.algorithm.settings, experiment.privacy.epsilon
    noise = spec.noise_setting(given)
    if noise is None:
        if epsilon is not None:
            raise InputError(
                f"privacy.epsilon with {spec.name}",
                "it has no noise to choose",
                "leave it out, or use dp-d-sgd, for example",
            )
    elif (epsilon is None) == (noise not in given):
        found = f"neither algorithm.{noise} nor" if noise not in given else f"both algorithm.{noise} and"
        raise InputError(f"{found} privacy.epsilon", "exactly one of them decides the noise", "give exactly one")
