"""`factorize`: from a topology, rounds and participation to a C with its proof."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.participation import Participation, parse_participation
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.matrix_factorization import cache as found_before
from sottovoce.matrix_factorization.cache import Stored
from sottovoce.matrix_factorization.result import (
    Factorization,
    antipgd_objective,
    error_of,
    graph_blind_objective,
    independent_objective,
    normalised,
)
from sottovoce.matrix_factorization.structures import Structure, require_whole
from sottovoce.matrix_factorization.workload import workload
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.progress import report_stage

Array = NDArray[np.float64]

GAP = 1e-3

ARRAYS, CUBE_SECONDS = 12, 6e-8
"""What a search takes: arrays of rounds by rounds, and seconds for the cube of rounds (measured up to 1,000)."""

LONGEST = 6000
"""Rounds of a C: its square in numbers, a dozen times over, must fit in memory."""


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """All that a C follows from, besides the weights."""

    scheme: Participation
    rounds: int
    objective: str
    form: Structure
    gap: float
    nodes: tuple[int, ...] | None

    def __post_init__(self) -> None:
        if not isinstance(self.gap, int | float) or not 1e-9 <= self.gap <= 1:
            raise InputError(f"gap {self.gap}", "it must lie between 1e-9 and 1", "give 0.001, for example")

    def check_cost(self) -> None:
        """Refuse a search that takes too long, before it begins."""
        cost = Cost(memory=8.0 * ARRAYS * self.rounds**2, seconds=CUBE_SECONDS * self.rounds**3)
        check_cost(f"a search for the best C of {self.rounds:,} rounds", cost, "take fewer rounds")

    def file(self, topology: Topology) -> Path | None:
        """Where the cache has the result, or would."""
        given = {**vars(self), "scheme": str(self.scheme), "form": vars(self.form)}
        return found_before.file_of(topology, self.rounds, given)

    def workload(self, topology: Topology) -> Array:
        """What the graph contributes."""
        nodes = None if self.nodes is None else np.array(self.nodes)
        return workload(topology, self.rounds, self.objective, nodes=nodes)


def factorize(
    topology: Topology,
    *,
    rounds: int | None = None,
    participation: str | Participation = "every",
    objective: str = "all",
    structure: str = "dense",
    bands: int | None = None,
    gap: float = GAP,
    nodes: Sequence[int] | None = None,
    cache: bool = True,
) -> Factorization:
    """Find the correlation over rounds with which noise costs least at a given privacy, with a proof of how close.

    Minimises `sens(C)^2 trace((C^T C)^-1 H)`, with H from the topology (see workload), over lower-triangular C.

    - `rounds`: the number of rounds; default: K times B of the participation `KxB`;
    - `objective`: error of `all` models of all rounds, of the `last` models, or of their `average`;
    - `structure`: `dense`, or `banded`, looking back less than `bands` rounds;
    - `gap`: the relative distance to the optimum at which to stop;
    - `nodes`: count the noise of these nodes only.

    >>> from sottovoce.core.topologies import metropolis
    >>> found = factorize(metropolis("ring:8"), participation="4x16", gap=1e-6, cache=False)
    >>> round(found.objective / 64, 3), found.gap <= 1e-6
    (33.154, True)
    >>> round(found.over_independent, 2), round(found.over_antipgd, 1)
    (4.4, 46.0)

    References: unified privacy guarantees for decentralized learning via matrix factorization, Lemma 12 and
    Algorithm 2; H from eigenvalues and the certificate are ours (docs/noise.md).
    """
    scheme = parse_participation(participation)
    rounds = _rounds(rounds, scheme)
    settings = _Settings(
        scheme=scheme, rounds=rounds, objective=objective, form=Structure.within(rounds, scheme, structure, bands),
        gap=gap, nodes=None if nodes is None else tuple(nodes),
    )  # fmt: skip
    return _factorize(topology, settings, cache)


def _rounds(rounds: int | None, scheme: Participation) -> int:
    """How many rounds there are: of K times B rounds unless others are given."""
    if scheme.shuffled:
        raise InputError(
            f"participation {scheme}", "noise is optimised only for known patterns: every, or KxB",
            "use cycle batches, or an algorithm with independent noise",
        )  # fmt: skip
    if rounds is None:
        if scheme.times is None:
            raise InputError("participation every without rounds", "their number is needed", "give rounds")
        rounds = scheme.times * scheme.apart
    require_whole("rounds", rounds, 1)
    if rounds > LONGEST:
        raise InputError(f"{rounds} rounds", f"C has at most {LONGEST} rounds here", "take fewer")
    scheme.check(rounds)
    return int(rounds)


@dataclass(frozen=True, eq=False)
class ByClass:
    """One C for each class of nodes. Classes add up: a node's noise is independent of every other's."""

    labels: NDArray[np.intp]
    parts: tuple[Factorization, ...]
    shared: Factorization

    @property
    def objective(self) -> float:
        """Error of all classes together, each at sensitivity 1."""
        return sum(part.objective for part in self.parts)

    @property
    def lower_bound(self) -> float:
        """No choice of one C for each class is better."""
        return sum(part.lower_bound for part in self.parts)

    @property
    def gain(self) -> float:
        """How many times less error than with one C for all nodes."""
        return self.shared.objective / self.objective


def factorize_by_class(topology: Topology, labels: Sequence[int], **settings: Any) -> ByClass:
    """One C for each class of nodes: node u belongs to class `labels[u]`, classes counted from 0.

    >>> from sottovoce.core.topologies import metropolis
    >>> star = factorize_by_class(metropolis("star:9"), [0] + 8 * [1], participation="2x8", cache=False)
    >>> star.gain > 1, star.lower_bound <= star.objective
    (True, True)
    """
    classes = np.asarray(labels)
    if classes.shape != (topology.n,) or classes.dtype.kind not in "iu":
        raise InputError(
            f"labels of shape {classes.shape} for {topology.n} nodes", "every node has one class", "give a list of them"
        )
    count = int(classes.max()) + 1
    if set(classes.tolist()) != set(range(count)):
        raise InputError(
            f"classes {sorted(set(classes.tolist()))}", "they must be numbered from 0 without gaps", "renumber them"
        )
    members = [np.flatnonzero(classes == c).tolist() for c in range(count)]
    parts = tuple(factorize(topology, nodes=nodes, **settings) for nodes in members)
    return ByClass(classes, parts, shared=factorize(topology, **settings))


def degree_classes(topology: Topology, classes: int) -> tuple[int, ...]:
    """The class of every node, by its degree, lowest first: each has as many of the degrees that there are.

    >>> from sottovoce.core.topologies import metropolis
    >>> degree_classes(metropolis("star:5"), 2), degree_classes(metropolis("ring:4"), 2)
    ((1, 0, 0, 0, 0), (0, 0, 0, 0))
    """
    if not 1 <= classes <= topology.n:
        raise InputError(
            f"{classes} classes of {topology.n} nodes",
            "there can be from one class to as many as there are nodes",
            "give 2, for example",
        )
    if classes > 1 and not topology.static:
        raise InputError("classes of nodes by degree", "degrees change with this topology", "leave out classes")
    degrees = np.diff(topology.at(0).weights.indptr)
    there = np.unique(degrees)
    firsts = [part[0] for part in np.array_split(there, min(classes, len(there)))]
    return tuple((np.searchsorted(firsts, degrees, side="right") - 1).tolist())


def _factorize(topology: Topology, settings: _Settings, cache: bool) -> Factorization:
    file = settings.file(topology) if cache else None
    there = file is not None and os.path.exists(file)  # False, not an error, where the folder cannot be looked into
    stored = found_before.load(file, settings.scheme, settings.rounds) if file is not None and there else None
    if stored is None:
        settings.check_cost()
    started = time.perf_counter()
    report_stage(f"searching for the best noise correlation over {settings.rounds:,} rounds")
    H = settings.workload(topology)
    if stored is not None and (known := _as_good_as_asked(stored, H, settings)) is not None:
        return replace(known, cached=True)
    factor = settings.form.optimise(H, settings.scheme, settings.gap)
    C = _no_worse_than_independent(normalised(factor.C, settings.scheme), H, settings.scheme)
    found = Stored(C, factor.proof, time.perf_counter() - started)
    if file is not None:
        found_before.store(file, found)
    return replace(_with_figures(found, H, settings), refused_file=file if there else None)


def _as_good_as_asked(stored: Stored, H: Array, settings: _Settings) -> Factorization | None:
    """What a file of the cache holds, which anybody may have written; None where its C is not good enough.

    Where a search cannot tell how good its own C is, no better one is asked for.
    """
    try:
        with np.errstate(all="ignore"):
            found = _with_figures(stored, H, settings)
    except (ValueError, RuntimeError):  # what scipy raises about matrices that no search ends with
        return None
    good = found.gap <= settings.gap * (1 + 1e-6) or not settings.form.is_provable(H, settings.scheme)
    return found if good and np.isfinite(found.objective) else None


def _no_worse_than_independent(C: Array, H: Array, scheme: Participation) -> Array:
    """Independent noise has every structure: where a search over few shapes ends above it, it is taken instead."""
    plain = normalised(np.eye(len(H)), scheme)
    return plain if error_of(C, H) > error_of(plain, H) else C


def _with_figures(found: Stored, H: Array, settings: _Settings) -> Factorization:
    """A C of sensitivity 1 and its figures, computed from it, its proof and nothing else."""
    return Factorization(
        C=found.C,
        proof=found.proof,
        objective=error_of(found.C, H),
        lower_bound=settings.form.bound_of(found.proof, H, settings.scheme),
        independent=independent_objective(H, settings.scheme),
        antipgd=antipgd_objective(H, settings.scheme),
        graph_blind=graph_blind_objective(H, settings.scheme),
        seconds=found.seconds,
        rounds=settings.rounds,
        participation=str(settings.scheme),
        goal=settings.objective,
        structure=str(settings.form),
        among=settings.form.among,
    )
