"""`factorize`: from a topology, rounds and participation to a C with its proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.correlation import Triangular
from sottovoce.core.participation import Participation, parse_participation
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.matrix_factorization import cache as result_cache
from sottovoce.matrix_factorization.result import (
    Factorization,
    ForView,
    antipgd_objective,
    error_of,
    independent_objective,
    normalised,
    sensitivity_squared,
)
from sottovoce.matrix_factorization.structures import Structure
from sottovoce.matrix_factorization.workload import OBJECTIVES, Workload, workload
from sottovoce.privacy.views import View, parse_view
from sottovoce.support.json_numbers import JSON
from sottovoce.support.limits import Cost, check_cost
from sottovoce.support.progress import report_stage

Array = NDArray[np.float64]

GAP = 1e-3
FIGURES = ("objective", "lower_bound", "independent", "antipgd", "workload_error", "errors")
STRUCTURES = ("dense", "banded", "toeplitz")

ARRAYS, CUBE_SECONDS = 12, 6e-8
"""What a search takes: arrays of rounds by rounds, and seconds for the cube of rounds (measured up to 1,000)."""


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """All that a C follows from, besides the weights."""

    scheme: Participation
    rounds: int
    objective: str
    structure: str
    bands: int | None
    restart: int | None
    gap: float
    probes: int | None
    seed: int
    nodes: tuple[int, ...] | None = None

    def document(self) -> dict[str, JSON]:
        return {**vars(self), "scheme": str(self.scheme)}

    def check_cost(self) -> None:
        """Refuse a search that takes too long, before it begins; with restarts only one block is searched."""
        size = min(self.rounds, self.restart or self.rounds)
        cost = Cost(memory=8.0 * ARRAYS * size**2, seconds=CUBE_SECONDS * size**3)
        check_cost(f"a search for the best C of {size:,} rounds", cost, "use restarts with a shorter C")

    @property
    def form(self) -> Structure:
        """Which C are searched."""
        return Structure(name=self.structure, bands=self.bands, restart=self.restart)


def factorize(
    topology: Topology,
    *,
    rounds: int | None = None,
    participation: str | Participation = "every",
    objective: str = "all",
    structure: str = "dense",
    bands: int | None = None,
    restart: int | None = None,
    view: str | View | Sequence[str | View] | None = None,
    gap: float = GAP,
    probes: int | None = None,
    seed: int = 0,
    cache: bool = True,
    progress: Callable[[float], None] | None = None,
) -> Factorization:
    """Find the correlation over rounds with which noise costs least at a given privacy, with a proof of how close.

    Minimises `sens(C)^2 trace((C^T C)^-1 H)`, with H from the topology (see workload), over lower-triangular C.

    - `rounds`: the number of rounds; default: K times B of the participation `KxB`;
    - `objective`: error of `all` models of all rounds, of the `last` models, or of their `average`;
    - `structure`: `dense`; `banded`, looking back less than `bands` rounds; `toeplitz`, one coefficient for each lag;
    - `restart`: start with fresh noise every this many rounds, so that no larger matrix is optimised;
    - `view`: optimise for the exact loss of this adversary (or of several) instead of everyone's;
    - `gap`: the relative distance to the optimum at which to stop;
    - `probes`: estimate H from this many random vectors, drawn with `seed` (automatic for very large graphs).

    >>> from sottovoce.core.topologies import metropolis
    >>> found = factorize(metropolis("ring:8"), participation="4x16", gap=1e-6, cache=False)
    >>> round(found.objective / 64, 3), found.gap <= 1e-6
    (33.154, True)
    >>> round(found.over_independent, 2), round(found.over_antipgd, 1)
    (4.4, 46.0)

    References: unified privacy guarantees for decentralized learning via matrix factorization, Lemma 12 and
    Algorithm 2; H from eigenvalues and the certificate are ours (docs/noise.md).
    """
    settings = _settings(rounds, participation, objective, structure, bands, restart, gap, probes, seed)
    if view is not None:
        return _for_view(topology, settings, view, progress)
    return _factorize(topology, settings, cache, progress)


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
    if set(classes.tolist()) != set(range(int(classes.max()) + 1)):
        raise InputError(
            f"classes {sorted(set(classes.tolist()))}", "they must be numbered from 0 without gaps", "renumber them"
        )
    shared = factorize(topology, **settings)
    cache = settings.pop("cache", True)
    settings.pop("progress", None)
    if settings.pop("view", None) is not None:
        raise InputError(
            "classes of nodes together with a view",
            "only one of the two can be optimised at a time",
            "leave one of them out",
        )
    plain = _settings(**{**_DEFAULTS, **settings})
    parts = []
    for c in range(int(classes.max()) + 1):
        nodes = tuple(np.flatnonzero(classes == c).tolist())
        parts.append(_factorize(topology, replace(plain, nodes=nodes), cache, None))
    return ByClass(classes, tuple(parts), shared)


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


MOST_PROBES = 10**6
"""Their error falls with the root of their number: more say no more."""

LONGEST = 6000
"""Rounds of a C: its square in numbers, a dozen times over, must fit in memory."""

_DEFAULTS: dict[str, Any] = {
    "rounds": None, "participation": "every", "objective": "all", "structure": "dense", "bands": None, "restart": None,
    "gap": GAP, "probes": None, "seed": 0,
}  # fmt: skip


def _settings(
    rounds: int | None,
    participation: str | Participation,
    objective: str,
    structure: str,
    bands: int | None,
    restart: int | None,
    gap: float,
    probes: int | None,
    seed: int,
) -> _Settings:
    """The settings, checked, with what is left out filled in."""
    scheme = parse_participation(participation)
    if scheme.shuffled:
        raise InputError(
            f"participation {scheme}", "noise is optimised only for known patterns: every, or KxB",
            "use cycle batches, or an algorithm with independent noise",
        )  # fmt: skip
    if rounds is None:
        if scheme.times is None:
            raise InputError("participation every without rounds", "their number is needed", "give rounds")
        rounds = scheme.times * scheme.apart
    _whole("rounds", rounds, 1)
    if rounds > LONGEST:
        raise InputError(f"{rounds} rounds", f"a dense C has at most {LONGEST} rounds", "use restarts with a shorter C")
    scheme.check(rounds)
    for value, known, what in ((objective, OBJECTIVES, "objective"), (structure, STRUCTURES, "structure")):
        if value not in known:
            raise InputError(f"{what} {value!r}", f"known: {', '.join(known)}", "choose one of them")
    if not isinstance(gap, int | float) or not 1e-9 <= gap <= 1:
        raise InputError(f"gap {gap}", "it must lie between 1e-9 and 1", "give 0.001, for example")
    if structure == "dense" and bands is not None:
        raise InputError(f"{bands} bands of a dense C", "only banded and toeplitz have bands", "choose one of these")
    if restart is not None:
        _whole("restart", restart, 1)
        if structure != "dense":
            raise InputError(
                f"restarts of a {structure} C",
                "the blocks between restarts are dense",
                "leave out the structure or the restarts",
            )
    if structure != "dense":
        own = rounds if scheme.times is None else min(scheme.apart, rounds)
        bands = own if bands is None else bands
        _whole("bands", bands, 1)
        bands = min(bands, rounds)
    if probes is not None:
        _whole("probes", probes, 2)
        if probes > MOST_PROBES:
            raise InputError(f"{probes} probes", f"at most {MOST_PROBES:,} are drawn", "give fewer")
    _whole("seed", seed, 0)
    return _Settings(
        scheme=scheme, rounds=int(rounds), objective=objective, structure=structure, bands=bands, restart=restart,
        gap=float(gap), probes=probes, seed=int(seed),
    )  # fmt: skip


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(
            f"{name} = {value!r}", f"a whole number from {least}", f"give {name}={max(least, 1)}, for example"
        )


def _factorize(
    topology: Topology, settings: _Settings, cache: bool, progress: Callable[[float], None] | None
) -> Factorization:
    name = result_cache.key(topology, settings.rounds, settings.document())
    stored = result_cache.load(name, settings.scheme, settings.rounds) if cache else None
    started = time.perf_counter()
    if stored is None:
        settings.check_cost()
    report_stage(f"searching for the best noise correlation over {settings.rounds:,} rounds")
    work = _workload(topology, settings)
    if isinstance(stored, Factorization) and (known := _checked(stored, work, settings)) is not None:
        return known
    settings.check_cost()
    factor = settings.form.optimise(work.H, settings.scheme, settings.gap, progress)
    C = _no_worse_than_independent(normalised(factor.C, settings.scheme), work.H, settings.scheme)
    found = _with_figures(C, factor.proof, work, settings, time.perf_counter() - started)
    if cache:
        result_cache.store(name, found)
    return replace(found, refused_file=result_cache.path(name) if stored is not None else None)


def optimal_correlation(topology: Topology, *, rounds: int, participation: str) -> Triangular:
    """The C that `factorize` finds. One in the cache is taken where it is as good as it should be, and no other."""
    return factorize(topology, rounds=rounds, participation=participation).correlation


def _checked(stored: Factorization, work: Workload, settings: _Settings) -> Factorization | None:
    """A stored result with all figures computed again; None where its file has others, or its C is not good enough.

    Anybody may have written the file. Where a search cannot tell how good its own C is, no better one is asked for.
    """
    try:
        with np.errstate(all="ignore"):
            found = _with_figures(stored.C, stored.proof, work, settings, stored.seconds)
    except (ValueError, RuntimeError):  # what scipy raises about matrices that no search ends with
        return None
    same = all(np.allclose(getattr(stored, name), getattr(found, name), rtol=1e-9, atol=0.0) for name in FIGURES)
    same = same and all(getattr(stored, name) == getattr(found, name) for name in result_cache.WORDS)
    good = found.gap <= settings.gap * (1 + 1e-6) or not settings.form.is_provable(work.H, settings.scheme)
    return replace(found, cached=True) if same and good else None


def _workload(topology: Topology, settings: _Settings) -> Workload:
    nodes = None if settings.nodes is None else np.array(settings.nodes)
    return workload(
        topology, settings.rounds, settings.objective, nodes=nodes, probes=settings.probes, seed=settings.seed
    )


def _no_worse_than_independent(C: Array, H: Array, scheme: Participation) -> Array:
    """Independent noise has every structure: where a search over few shapes ends above it, it is taken instead."""
    plain = normalised(np.eye(len(H)), scheme)
    return plain if error_of(C, H) > error_of(plain, H) else C


def _with_figures(C: Array, proof: Array, work: Workload, settings: _Settings, seconds: float) -> Factorization:
    """A C of sensitivity 1 and its figures, computed from it, its proof and nothing else."""
    inverse = np.linalg.solve(C, np.eye(len(C)))
    return Factorization(
        C=C,
        proof=proof,
        objective=error_of(C, work.H),
        lower_bound=settings.form.bound_of(proof, work.H, settings.scheme),
        independent=independent_objective(work.H, settings.scheme),
        antipgd=antipgd_objective(work.H, settings.scheme),
        seconds=seconds,
        rounds=settings.rounds,
        participation=str(settings.scheme),
        goal=settings.objective,
        structure=str(settings.form),
        among=settings.form.among(settings.rounds),
        errors=work.errors(inverse @ inverse.T),
        workload_error=work.error,
    )


def _for_view(
    topology: Topology,
    settings: _Settings,
    view: str | View | Sequence[str | View],
    progress: Callable[[float], None] | None,
) -> Factorization:
    """The C for one adversary or several, and what it gains over the C for everyone."""
    from sottovoce.matrix_factorization import for_view

    if settings.structure != "dense" or settings.restart is not None:
        raise InputError(
            f"a {settings.structure} C for a view", "for a view, the search is over all C", "leave out the structure"
        )
    given = [view] if isinstance(view, str | View) else view
    views = [one for each in given for one in parse_view(each, labels=topology.names).coalitions(topology.n)]
    if not views:
        raise InputError("no view", "there must be at least one", "give node:0, for example")
    started = time.perf_counter()
    observed = for_view.observed_views(topology, views, settings.rounds)
    settings.check_cost()
    work = _workload(topology, settings)
    common = settings.form.optimise(work.H, settings.scheme, settings.gap)
    found = for_view.optimise_for_views(observed, work.H, settings.scheme, common.C, settings.gap, progress)
    best, usual, plain = (
        for_view.exact_loss(C, topology, views, settings.scheme) * error_of(C, work.H)
        for C in (found.C, common.C, np.eye(settings.rounds))
    )
    winner = found.C if best <= usual else common.C
    C = normalised(winner, settings.scheme)
    result = _with_figures(C, common.proof, work, settings, time.perf_counter() - started)
    closed = for_view.proven_for_training(winner, topology, views)
    against_views = ForView(
        view="; ".join(map(str, views)),
        loss=for_view.exact_loss(result.C, topology, views, settings.scheme),
        gain=usual / min(best, usual),
        gain_over_independent=plain / min(best, usual),
        kind="any-training" if closed else "fixed-streams",
        proven_for_training=closed,
        assumption=""
        if closed
        else "what a node contributes does not depend on what it received; this is not a proof for training",
    )
    assert sensitivity_squared(result.C, settings.scheme) <= 1.0
    return replace(
        result, objective=against_views.loss * result.objective, lower_bound=float(found.lower_bound),
        independent=plain, for_view=against_views,
        antipgd=_antipgd_for(topology, views, work.H, settings), seconds=time.perf_counter() - started,
    )  # fmt: skip


def _antipgd_for(topology: Topology, views: Sequence[View], H: Array, settings: _Settings) -> float:
    from sottovoce.matrix_factorization.for_view import exact_loss

    C = np.tril(np.ones((settings.rounds, settings.rounds)))
    return exact_loss(C, topology, views, settings.scheme) * error_of(C, H)
