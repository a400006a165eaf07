"""The least noise for a target, whatever the batches: those that are drawn by chance count where that is proven.

>>> from sottovoce import algorithm, metropolis
>>> plain, ring = algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:8")
>>> target = {"rounds": 100, "epsilon": 1.0, "delta": 1e-5, "adjacency": "record"}
>>> batches = ("every", "shuffle:10", "poisson:0.1")
>>> [round(calibrate(plain, ring, participation=how, **target), 2) for how in batches]
[37.31, 11.8, 1.97]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from sottovoce.core.algorithm import Algorithm
from sottovoce.core.noise import PerNode
from sottovoce.core.participation import Participation, draws_by_chance
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.learning.declared_records import DeclaredRecords, declare_records, fewest_records
from sottovoce.privacy import calibration
from sottovoce.privacy.account_settings import AccountSettings
from sottovoce.privacy.calibration import Target, calibrated_system, with_sigma
from sottovoce.privacy.sampled_batches import calibrate_sampled, saves_noise
from sottovoce.privacy.views import View, parse_view
from sottovoce.tracing.policy import trace_possible


def calibrate(
    algorithm: Algorithm,
    topology: Topology,
    adversary: str | View = "everyone",
    *,
    rounds: int,
    epsilon: float,
    delta: float,
    records: int | Sequence[int] | None = None,
    **settings: Unpack[AccountSettings],
) -> PerNode:
    """The smallest sigma that is proven to give (epsilon, delta)-DP, rounded up; `settings` are those of `account`.

    The algorithm's own sigma is replaced. `participation` may also be `poisson:SHARE`, `fixed:SIZE` or
    `cyclic-poisson:SHARExB`, with `adjacency="record"`: then sampling is counted if that is proven. `fixed` needs
    `records`, one number or one for each node, and gives a sigma for each node if they differ.
    """
    how = settings.get("participation", "every")
    if isinstance(how, Participation) or not draws_by_chance(how):
        if records is not None:
            raise InputError(
                f"records with participation {how}", "the number of records has no effect there", "leave it out"
            )
        return calibration.calibrate(
            algorithm, topology, adversary, rounds=rounds, epsilon=epsilon, delta=delta, **settings
        )
    declared = _declared(how, topology.n, records, settings)
    built = replace(with_sigma(algorithm, 1.0), sensitivity=declared.sensitivity)  # type: ignore[type-var]
    reference, target = trace_possible(built, topology, rounds=rounds), Target(epsilon, delta)
    settings["participation"] = declared.participation.within(rounds)
    plain = calibrated_system(reference, adversary, target, **settings).sigma
    view = parse_view(adversary, labels=topology.names)
    nodes = declared.sampled_nodes
    chance = None if nodes is None else calibrate_sampled(reference, view, nodes, target)
    return chance.sigma if chance is not None and saves_noise(chance.sigma, plain) else plain


def _declared(how: str, nodes: int, records: int | Sequence[int] | None, settings: AccountSettings) -> DeclaredRecords:
    if settings.get("adjacency") != "record":
        raise InputError(
            f"participation {how} with adjacency {settings.get('adjacency', 'user')!r}",
            "if all data of a node changes, it shows in every round", 'give adjacency="record"',
        )  # fmt: skip
    held = [fewest_records(how)] if records is None else [records] if isinstance(records, int) else list(records)
    return declare_records(how, nodes=nodes, records=held)
