"""Published figures beside the exact loss: which formula applies to what, and where it falls short.

>>> from sottovoce import algorithm, metropolis, trace
>>> system = trace(algorithm("muffliato", sigma=1.0), metropolis("path:10"), rounds=10)
>>> theorem_1 = published(system, "node:0")[0]
>>> print(theorem_1.guarantees[-1].assumptions[-1])
BELOW the exact loss by a factor 6.89e+05 in mu^2: not a bound
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.class_correlation import ClassCorrelation
from sottovoce.core.final_models import FinalModels
from sottovoce.core.noise import Independent, Temporal, ZeroSum
from sottovoce.core.participation import Participation
from sottovoce.core.sensitivity import relative
from sottovoce.core.topologies import Topology
from sottovoce.errors import Unaccountable
from sottovoce.privacy.assumptions import Assumption, AssumptionKind
from sottovoce.privacy.exact import routes
from sottovoce.privacy.guarantee import Figure, Guarantee, Kind, TrainingProof
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.published_formulas import (
    mafalda_theorem_8,
    muffliato_corollary_1,
    muffliato_theorem_1,
    muffliato_theorem_4,
    muffliato_theorem_6,
    threat_local_bound,
    threat_theorem_8,
    threat_theorem_9,
    threat_theorem_10,
    zip_dl_theorem_5_9,
    zip_dl_theorem_5_12,
)
from sottovoce.privacy.views import View, ViewKind, parse_view
from sottovoce.privacy.worst_case import GAP
from sottovoce.tracing.linear_system import LinearSystem

Array = NDArray[np.float64]


class Formula(NamedTuple):
    """A formula evaluated: its name, where it stands and how it was read, and mu^2 of every node."""

    name: str
    source: str
    squares: Array


@dataclass(frozen=True, eq=False)
class Published:
    """A published figure for every victim of a view, with the exact loss of fixed streams beside it, both as mu^2.

    Where that loss is known as a bound only, nothing is said to be below it: `exact` is 0 there.
    """

    name: str
    victims: NDArray[np.intp]
    squares: Array
    exact: Array
    guarantees: tuple[Guarantee, ...]

    @property
    def below(self) -> NDArray[np.bool_]:
        """For which victims the figure is below the exact loss, and so no bound."""
        return _below(self.squares, self.exact)


def published(
    system: LinearSystem,
    adversary: str | View = "everyone",
    *,
    lipschitz: float | None = None,
    victims: Sequence[int] | None = None,
) -> list[Published]:
    """Every formula that its paper states for this algorithm and view: one node, or everyone.

    `lipschitz` is L of ZIP-DL's Assumption 5.6, which nothing in a run determines. For small systems: the formulas of
    the threat models and of MAFALDA are dense.
    """
    adversary = parse_view(adversary, labels=system.topology.names)
    plain = adversary.kind in (ViewKind.EVERYONE, ViewKind.COALITION) and not adversary.secrets_of
    if not plain or len(adversary.members) > 1 or adversary.final_models is not FinalModels.NONE:
        return []
    figures = list(_figures(system, adversary, lipschitz))
    if not figures:
        return []
    observation = observe(system, adversary, victims=victims)
    squares, distances = routes.squared(observation, Participation()), observation.distances()
    if routes.figure_of(observation, Participation()) is Figure.BOUND:
        squares = np.zeros(len(squares))
    return [_beside(figure, observation, squares, distances) for figure in figures]


def _figures(system: LinearSystem, adversary: View, lipschitz: float | None) -> Iterator[Formula]:
    name, noise, net = system.algorithm.name, system.algorithm.noise, system.topology
    if relative(system.algorithm.sensitivity) is not None:
        raise Unaccountable(
            f"{name} on nodes with different sensitivities: the published formulas need one for all nodes"
        )
    attacker = adversary.members[0] if adversary.members else None
    plain = not adversary.secure_sum
    if isinstance(noise, ZeroSum) and attacker is not None and plain and net.static:
        yield from _of_zip_dl(system, attacker, noise, lipschitz)
    if not isinstance(noise, Independent | Temporal):
        return
    sigma = _one_size(noise.sigma, name)
    if name == "muffliato" and attacker is not None and plain:
        yield from _of_averaging(net, attacker, system.rounds, sigma)
    if name in ("dp-d-sgd", "muffliato-sgd"):
        squares = threat_local_bound(net, system.rounds, sigma)
        yield Formula("local bound", "gossip threat models, Lemma 4", squares)
        if attacker is not None and net.static:
            yield from _of_training(system, attacker, sigma, plain)
    if isinstance(system.correlation, ClassCorrelation):
        return
    if name in ("dp-d-sgd", "anti-pgd", "mf-d-sgd", "mafalda") and plain and (net.static or attacker is None):
        C = None if system.correlation is None else system.correlation.matrix(system.rounds)
        formula = partial(mafalda_theorem_8, net, attacker, system.rounds, sigma, correlation=C)
        yield from _variants("mafalda Theorem 8", "MAFALDA, Theorem 8, eq (8)", "no root taken", formula)


def _of_averaging(net: Topology, attacker: int, T: int, sigma: float) -> Iterator[Formula]:
    squares = muffliato_theorem_1(net, attacker, T, sigma)
    yield Formula("muffliato Theorem 1", "Muffliato, Theorem 1, eq (6): losses of single messages added up", squares)
    if not net.static:
        return
    squares = muffliato_corollary_1(net, attacker, T, sigma)
    yield Formula("muffliato Corollary 1", "Muffliato, Corollary 1: by the random walk on the graph", squares)
    if net.graph is not None and net.graph.name.startswith("erdos-renyi"):
        source = "Muffliato, Theorem 4: for a secret random graph and orders with alpha (alpha - 1) <= 2 sigma^2"
        yield Formula("muffliato Theorem 4", source, muffliato_theorem_4(net, attacker, T, sigma))


def _of_training(system: LinearSystem, attacker: int, sigma: float, plain: bool) -> Iterator[Formula]:
    where, K = (system.topology, attacker, system.rounds, sigma), system.algorithm.gossip_steps
    if plain:
        squares = muffliato_theorem_6(*where, gossip_steps=K)
        yield Formula("muffliato Theorem 6", "Muffliato, Theorem 6, eq (9)", squares)
        if K == 1:
            source = "gossip threat models, Theorem 10: the victim's messages alone, own noise removed"
            yield Formula("threat models Theorem 10", source, threat_theorem_10(*where))
    elif K == 1:
        for number, formula in ((8, threat_theorem_8), (9, threat_theorem_9)):
            source = f"gossip threat models, Theorem {number}, own noise removed"
            yield from _variants(
                f"threat models Theorem {number}", source, "x_T one power short", partial(formula, *where)
            )


def _of_zip_dl(system: LinearSystem, attacker: int, noise: ZeroSum, lipschitz: float | None) -> Iterator[Formula]:
    name, net = system.algorithm.name, system.topology
    where = (net, attacker, system.rounds, noise.zetas(net.at(0)))
    if name == "zip-dl-averaging":
        slip = "the share without its square"
        formula = partial(zip_dl_theorem_5_12, *where)
        yield from _variants("zip-dl Theorem 5.12", "ZIP-DL, Theorem 5.12", slip, formula)
    if name == "zip-dl":
        if lipschitz is None:
            raise Unaccountable(
                "zip-dl Theorem 5.9 needs L of its Assumption 5.6; give lipschitz (for example --lipschitz 1)"
            )
        source = f"ZIP-DL, Theorem 5.9, Assumption 5.6 with L = {lipschitz:g}"
        trained = partial(zip_dl_theorem_5_9, *where, lipschitz=lipschitz, step_size=system.algorithm.step_size)
        yield from _variants("zip-dl Theorem 5.9", source, "variances without the square of the step size", trained)


def _variants(name: str, source: str, slip: str, formula: Callable[..., Array]) -> Iterator[Formula]:
    """A formula as printed, and with its slip mended."""
    yield Formula(name, f"{source}, as printed: {slip}", formula())
    yield Formula(f"{name}, mended", f"{source}, mended", formula(mended=True))


def _beside(figure: Formula, observation: Observation, known: Array, distances: list[int | None]) -> Published:
    victims = observation.victims
    squares, paper = figure.squares[victims], AssumptionKind.PAPER.of(source=figure.source)
    guarantees = tuple(
        Guarantee(
            int(victim), distance, Kind.AS_PUBLISHED, math.sqrt(square), TrainingProof.NOT_PROVEN,
            (paper, *_shortfall(square, loss)), observation.view, FinalModels.NONE, Figure.CLOSED_FORM,
        )
        for victim, distance, square, loss in zip(victims, distances, squares, known, strict=True)
    )  # fmt: skip
    return Published(figure.name, victims, squares, known, guarantees)


def _below(squares: Array, known: Array) -> NDArray[np.bool_]:
    """The exact figure is rounded up by at most GAP; a shortfall within that proves nothing."""
    return squares < known * (1 - 2 * GAP)


def _shortfall(square: float, loss: float) -> tuple[Assumption, ...]:
    """By how much a figure is below the exact loss, if it is."""
    if not _below(np.array(square), np.array(loss)):
        return ()
    by = f" by a factor {loss / square:.3g} in mu^2" if square else f", 0 against mu = {math.sqrt(loss):.3g}"
    return (AssumptionKind.BELOW_EXACT_LOSS.of(by=by),)


def _one_size(sigma: float | tuple[float, ...], name: str) -> float:
    sizes = np.unique(sigma)
    if len(sizes) > 1:
        raise Unaccountable(
            f"{name} with sigma {sizes[0]:g} to {sizes[-1]:g}: the published formulas need one for all nodes"
        )
    if sizes[0] == 0:
        raise Unaccountable(f"{name} without noise: the published formulas divide by sigma")
    return float(sizes[0])
