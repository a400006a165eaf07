"""How far the policies of the absorption bound are searched for, and when that is too much: from sizes alone."""

from __future__ import annotations

from sottovoce.core.participation import Participation
from sottovoce.privacy.absorption_policy import IN_CACHE, Policy
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.threads import WORKERS
from sottovoce.tracing.linear_system import LinearSystem

OPTIMISED_WEIGHTS = 6.25e7
"""Policies are optimised where a pass through all rounds goes through no more weights than this."""

NODE, ROUND = 15, 37_500
"""How many weights a node of a victim, and a round by itself, are worth."""

WEIGHTS = 1.25e9
"""Weights in a second, for limits."""

PASSES = {Policy.OPTIMISED: 60.0, Policy.SWEPT: 2.5}
"""How often a search usually goes forth and back through all rounds."""


def policy_for(system: LinearSystem, victims: int, scheme: Participation, *, optimised: bool) -> Policy:
    """Which policies of the absorption bound are affordable for so many victims."""
    affordable = _weights(system, victims, scheme) <= OPTIMISED_WEIGHTS
    return Policy.OPTIMISED if optimised or affordable else Policy.SWEPT


def check_policy_cost(system: LinearSystem, victims: int, scheme: Participation, *, optimised: bool) -> None:
    """Refuse a search for policies that takes too much memory or work."""
    policy = policy_for(system, victims, scheme, optimised=optimised)
    at_once = min(victims, max(1, IN_CACHE // system.n)) * WORKERS
    cost = Cost(
        memory=72.0 * at_once * system.rounds * system.n,
        seconds=PASSES[policy] * _weights(system, victims, scheme) / WEIGHTS,
    )
    less = (
        "ask for other kinds, as with --kind any-training, about fewer nodes, as with --within 1, or take fewer rounds"
    )
    check_cost(f"convex-training for {victims:,} victims over {system.rounds:,} rounds", cost, less)


def _weights(system: LinearSystem, victims: int, scheme: Participation) -> float:
    """Through how many weights a pass through all rounds goes, for all victims and patterns of participation."""
    links = max(int(step.split(step.state_out)[0].nnz) for step in dict.fromkeys(system.steps))
    return scheme.count(system.rounds) * system.rounds * float(ROUND + victims * (links + NODE * system.n))
