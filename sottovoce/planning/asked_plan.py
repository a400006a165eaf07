"""One question of the planner page, answered by the accountant: the noise, its error, and the leak by distance.

>>> question = {"graph": "ring:6", "algorithm": "dp-d-sgd", "rounds": "20", "epsilon": "4", "batches": "5"}
>>> found = answer_plan({**question, "records": "50", "parameters": "100", "observer": "2", "colluders": "1"})
>>> [hops for hops, _ in found["leaks"]], found["leaks"][0][1] <= 4
([1, 2, 3], True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sottovoce.algorithms.registry import algorithm_specs
from sottovoce.core.graphs import graph
from sottovoce.core.sensitivity import largest
from sottovoce.errors import InputError
from sottovoce.planning.planner import plan_one
from sottovoce.planning.question import Question
from sottovoce.privacy.accountant import account
from sottovoce.privacy.guarantee import Guarantee, Kind
from sottovoce.privacy.views import parse_view
from sottovoce.support.config import Document
from sottovoce.support.text import to_json
from sottovoce.tracing.linear_system import LinearSystem

DELTA = 1e-5

MOST_NODES, MOST_ROUNDS = 200, 2000
"""Of a question on the page; `sotto plan` takes more."""

PROVEN = (Kind.ANY_TRAINING, Kind.CONVEX_TRAINING)


def planned_algorithms() -> list[str]:
    """Those that train with noise and find their settings by themselves."""
    specs = algorithm_specs().values()
    return [one.name for one in specs if one.adds_noise and not one.needs_own_correlation and not one.averaging]


def participation_of(rounds: int, batches: int) -> str:
    """How one record takes part if every record is in one of so many batches, which take turns."""
    return "every" if batches == 1 else f"{math.ceil(rounds / batches)}x{batches}"


def leak_by_distance(system: LinearSystem, observer: str, scheme: str) -> dict[int, Guarantee]:
    """What a node can learn about one record of the worst node at one hop, two and so on, in convex training.

    Of several proofs about a node the best counts.
    """
    seen = account(system, observer, adjacency="record", participation=scheme, convex=True, kinds=PROVEN)
    best: dict[int | None, Guarantee] = {}
    for one in seen.guarantees:
        best[one.victim] = min(best.get(one.victim, one), one, key=_mu)
    found: dict[int, Guarantee] = {}
    for one in best.values():
        if one.distance is not None:
            found[one.distance] = max(found.get(one.distance, one), one, key=_mu)
    return {hops: found[hops] for hops in sorted(found)}


def _mu(one: Guarantee) -> float:
    return one.mu


def answer_plan(asked: Mapping[str, str]) -> Document:
    """Sigma, root mean square errors of the average model and of a node's, and epsilon by hops from the observer."""
    rounds, batches = _count(asked, "rounds", MOST_ROUNDS), _count(asked, "batches", MOST_ROUNDS)
    if asked["algorithm"] not in planned_algorithms():
        known = ", ".join(planned_algorithms())
        raise InputError(f"algorithm {asked['algorithm']!r}", f"the page plans {known}", "choose one of them")
    network = graph(asked["graph"])
    if network.n > MOST_NODES:
        raise InputError(f"{network.n:,} nodes", f"the page plans for up to {MOST_NODES}", "ask sotto plan")
    scheme = participation_of(rounds, batches)
    observer = parse_view(f"node:{asked['observer']}", labels=network.names)
    observer.check(network.n)
    question = Question(
        graph=network, rounds=rounds, epsilon=_positive(asked, "epsilon"), delta=DELTA,
        records=_count(asked, "records", 10**9), dimension=_count(asked, "parameters", 10**12),
        participation=scheme, colluders=_count(asked, "colluders", network.n),
    )  # fmt: skip
    entry, system = plan_one(question, asked["algorithm"])
    most = math.inf if entry.covers.colluders == 0 else entry.epsilon(DELTA)  # a single node is among those covered
    leaks = leak_by_distance(system, str(observer), scheme)
    return {
        "sigma": largest(entry.sigma), "average": _root(entry.error_average), "node": _root(entry.error_node),
        "leaks": [[hops, to_json(min(most, one.epsilon(DELTA)))] for hops, one in leaks.items()],
        "convex": any(one.kind is Kind.CONVEX_TRAINING for one in leaks.values()),
        "covers": str(entry.covers),
    }  # fmt: skip


def _root(square: float | None) -> float | None:
    return None if square is None else math.sqrt(square)


def _count(asked: Mapping[str, str], name: str, most: int) -> int:
    text = asked[name]
    if not text.isdecimal() or not text.isascii() or not 1 <= len(text) <= 15 or not 1 <= int(text) <= most:
        raise InputError(f"{name} {text!r}", f"a whole number from 1 to {most:,} is needed", "give such a number")
    return int(text)


def _positive(asked: Mapping[str, str], name: str) -> float:
    try:
        value = float(asked[name])
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{name} {asked[name]!r}", "a number above 0 is needed", "give 1, say")
    return value
