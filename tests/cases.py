"""The pairs of algorithm and topology that the laws run over, and a nonlinear task to run them on.

Every discovered example meets every topology whose weights it admits; what is refused is listed by name in laws.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from sottovoce import InputError, Topology, dropout, fresh_erdos_renyi, graph, random_edges, weigh
from sottovoce.algorithms.registry import algorithm, examples
from sottovoce.algorithms.spec import Example
from sottovoce.core.algorithm import Algorithm
from sottovoce.core.loop import start_run
from sottovoce.core.topologies import Changing

ROUNDS = 4
DIMENSION = 3


@dataclass(frozen=True)
class Case:
    example: Example
    place: str

    def __str__(self) -> str:
        return f"{self.example} on {self.place}"

    @property
    def topology(self) -> Topology:
        return topology(self.place, weights_for(self.example, self.place))

    @property
    def algorithm(self) -> Algorithm:
        return algorithm(self.example.name, **self.example.settings)


@dataclass(frozen=True)
class Silenced(Case):
    """The same with noise off, nothing lost, one gossip step, on a doubly stochastic W."""

    @property
    def topology(self) -> Topology:
        return topology(self.place, "uniform" if self.place in ("exponential:6", "complete:4") else "metropolis")

    @property
    def algorithm(self) -> Algorithm:
        off = dict.fromkeys(("sigma", "message_sigma", "sigma_pair"), 0.0)
        off |= {"compression": "identity", "gossip_steps": 1}
        settings = self.example.settings
        return algorithm(self.example.name, **(settings | {k: v for k, v in off.items() if k in settings}))

    @property
    def order(self) -> str:
        """The order of D-PSGD that this algorithm follows."""
        return (
            "while-speaking" if self.example.name == "dp2sgd" else self.example.settings.get("order", "step-then-speak")
        )


FIXED = ("ring:5", "path:4", "star:5", "complete:4", "exponential:6")
PLACES = (*FIXED, "fresh", "edges", "dropout", "announced")


def weights_for(example: Example, place: str) -> str:
    if example.name in ("dp-fedavg", "secure-average", "secure-mafalda"):
        return "uniform"
    if example.weights == "push":
        return "push"
    return "uniform" if place == "exponential:6" else example.weights


@cache
def topology(place: str, weights: str) -> Topology:
    """A topology by its short name; `directed` and the changing ones are small on purpose."""
    if place == "fresh" and weights == "push":
        two = [weigh(graph("exponential:5"), "push").at(0), weigh(graph("star:5"), "push").at(0)]
        return Changing(lambda round, step: two[round % 2], n=5, name="two directed graphs in turn")
    if place == "fresh":
        return fresh_erdos_renyi(6, 0.5, seed=3, weights=weights)
    if place == "edges":
        return random_edges(graph("ring:5"), seed=1)
    if place in ("dropout", "announced"):
        return dropout("ring:6", rate=0.3, correlation=0.2, seed=5, weights=weights, announced=place == "announced")
    return weigh(place, weights)


def refused(case: Case) -> bool:
    try:
        start_run(case.algorithm, case.topology, np.zeros((case.topology.n, DIMENSION)), ROUNDS)
    except InputError:
        return True
    return False


@cache
def cases(kind: type[Case] = Case) -> tuple[Case, ...]:
    """Every example on every topology that it admits."""
    pairs = (kind(example, place) for example in examples() for place in PLACES)
    return tuple(case for case in pairs if not refused(case))


def task(n: int, dimension: int = DIMENSION, seed: int = 0):
    """Gradients that depend on where they are taken, nonlinearly, and differ from node to node and round to round."""
    rng = np.random.default_rng(seed)
    A_NDD, b_ND = rng.standard_normal((n, dimension, dimension)), rng.standard_normal((n, dimension))

    def gradient(round, x):
        x = np.asarray(x)
        return (np.tanh(np.einsum("nij,nj->ni", A_NDD, x) + b_ND) + np.cos(round + x)).astype(x.dtype)

    return gradient
