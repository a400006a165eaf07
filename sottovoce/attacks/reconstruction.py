"""Reconstruction: what a view can solve for, from the linear system that its messages are.

Messages are `O = A G + B Z`. A combination `l^T O` is an unbiased estimate of one unknown, a node's value or a node's
gradient of one round, whatever all the other unknowns are, if `A^T l` picks just that one. Among these the best is that
whose noise `|B^T l|` is least. Where there is none, the unknown cannot be solved for by itself.

    >>> import numpy as np
    >>> from sottovoce import algorithm, metropolis, trace
    >>> system = trace(algorithm("muffliato", sigma=2.0), metropolis("path:4"), rounds=2)
    >>> attack = reconstruct(system, "node:0")
    >>> round(attack.deviation_of(1), 6), attack.deviation_of(3)    # node 1 up to its noise; node 3 not at all
    (2.0, inf)

Shapes: R observations, T gradient rounds, V nodes, P = T V unknowns, D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from sottovoce.attacks.received_messages import need_messages, receive
from sottovoce.attacks.registry import AttackOptions
from sottovoce.core.release import Gradient
from sottovoce.core.sensitivity import largest, relative
from sottovoce.errors import InputError
from sottovoce.privacy import views
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.views import View, parse_view
from sottovoce.support.text import to_json
from sottovoce.support.threads import one_thread
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.tracer import trace

if TYPE_CHECKING:  # the attack on traced systems does without torch
    from sottovoce.run.finished_run import FinishedRun
    from sottovoce.support.config import Document

Array = NDArray[np.float64]

RANK = 1e-10
"""Singular values of A below this share of the largest are taken for nothing: double precision cannot use them."""

SOLVED = 1e-8
"""How much of other unknowns an estimate may hold, as rounding."""

ENTRIES, NOISE_ENTRIES = 6e6, 5e7
"""Largest number of messages times unknowns, and times noise sources: half a minute, half a gigabyte."""

EXACT = 1e-9
"""Below this error a gradient is reconstructed exactly, up to rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstruction:
    """What a view can solve for: for each gradient round and node the deviation of the best unbiased linear estimate.

    `deviation_TV[t, i]` is in the units of gradients (or values): 0 is exact recovery, infinity no estimate at all.
    `rounds` and `nodes` name its rows and columns. Values to average enter in round 0.
    """

    observation: Observation
    rounds: tuple[int, ...]
    nodes: tuple[int, ...]
    deviation_TV: Array
    weights_RTV: Array

    def deviation_of(self, node: int, round: int = 0) -> float:
        """The error with which one node's gradient of a round, or its value, can be estimated."""
        for name, found, there in (("node", node, self.nodes), ("round", round, self.rounds)):
            if found not in there:
                raise InputError(f"{name} {found}", f"the attack covers {_shown(there)}", "choose one of them")
        return float(self.deviation_TV[self.rounds.index(round), self.nodes.index(node)])

    def solved(self) -> list[tuple[int, int, float]]:
        """(round, node, deviation) of everything that can be solved for, the smallest deviation first."""
        where = np.argwhere(np.isfinite(self.deviation_TV))
        found = [(self.rounds[t], self.nodes[i], float(self.deviation_TV[t, i])) for t, i in where]
        return sorted(found, key=lambda one: (one[2], one[:2]))

    def estimates(self, received_RD: Array) -> Array:
        """Estimates from what `receive` returned, T x V x D; NaN where nothing can be solved for."""
        R = self.weights_RTV.shape[0]
        rows = np.asarray(received_RD, dtype=float)
        if rows.ndim != 2 or len(rows) != R:
            raise InputError(
                f"messages of shape {rows.shape}", f"the view receives {R} rows", "give what receive returns"
            )
        found = (
            np.einsum("rtv,rd->tvd", self.weights_RTV, rows, optimize=True)
            / self.observation.system.algorithm.step_size
        )
        found[~np.isfinite(self.deviation_TV)] = np.nan
        return found

    def attack(self, gradient: Gradient, x0: Array, *, seed: int = 0) -> Array:
        """Estimates from one run of the loop, T x V x D."""
        return self.estimates(receive(self.observation, gradient, x0, seed=seed))


@one_thread()
def reconstruct(
    system: LinearSystem, adversary: str | View = "everyone", *, victims: Sequence[int] | None = None
) -> Reconstruction:
    """The linear attack of a view on some nodes (None: all that it does not know)."""
    observation = observe(system, parse_view(adversary, labels=system.topology.names))
    need_messages(observation)
    nodes = _chosen(observation, victims)
    rounds = tuple(t for t, step in enumerate(observation.steps) if step.takes_gradients)
    _check_size(observation)
    A_RTV, B_RZ = observation.dense()
    R, T, V = A_RTV.shape
    columns = np.flatnonzero(np.tile(np.isin(observation.victims, nodes), T))
    weights_RP, deviation_P = _best(A_RTV.reshape(R, T * V), B_RZ, columns)
    own = relative(system.algorithm.sensitivity)
    shares_V = np.ones(len(nodes)) if own is None else own[list(nodes)]
    return Reconstruction(
        observation=observation,
        rounds=rounds,
        nodes=nodes,
        deviation_TV=largest(system.algorithm.sensitivity) * shares_V * deviation_P.reshape(T, len(nodes)),
        weights_RTV=shares_V * weights_RP.reshape(R, T, len(nodes)),
    )


def _best(A_RP: Array, B_RZ: Array, columns: NDArray[np.intp]) -> tuple[Array, Array]:
    """Weights and deviation of the best estimate of each of some unknowns; zero and infinity where there is none."""
    weights, deviation = np.zeros((len(A_RP), len(columns))), np.full(len(columns), np.inf)
    if not A_RP.size:
        return weights, deviation
    left, sizes, right = linalg.svd(A_RP, full_matrices=False, check_finite=False)
    rank = int(np.sum(sizes > RANK * sizes[0])) if sizes[0] > 0 else 0
    picked = right[:rank, columns]
    solvable = np.flatnonzero(1 - np.einsum("kp,kp->p", picked, picked) <= SOLVED)
    if not solvable.size:
        return weights, deviation
    found = left[:, :rank] @ (picked[:, solvable] / sizes[:rank, None])
    if rank < len(A_RP) and B_RZ.any():
        found -= _cancelling(left, rank, B_RZ, found)
    weights[:, solvable] = found
    deviation[solvable] = np.linalg.norm(B_RZ.T @ found, axis=0)
    return weights, deviation


def _cancelling(left: Array, rank: int, B_RZ: Array, plain: Array) -> Array:
    """What to take off so that least noise is left: combinations of messages that hold no unknown at all."""
    noise_KR = linalg.qr(B_RZ.T, mode="r", check_finite=False)[0][: len(B_RZ)] if B_RZ.shape[1] > len(B_RZ) else B_RZ.T
    square = left.shape[1] == len(left)
    free = left[:, rank:] if square else linalg.qr(left[:, :rank], check_finite=False)[0][:, rank:]
    U, sizes, V = linalg.svd(noise_KR @ free, full_matrices=False, check_finite=False)
    used = sizes > RANK * np.linalg.norm(B_RZ)  # below, it is the rounding of combinations that hold no noise either
    return free @ (V[used].T @ ((U[:, used].T @ (noise_KR @ plain)) / sizes[used, None]))


def _chosen(observation: Observation, victims: Sequence[int] | None) -> tuple[int, ...]:
    """The victims, checked; all other unknown gradients stay unknown."""
    if victims is None:
        return tuple(observation.victims.tolist())
    return tuple(observe(observation.system, observation.view, victims=victims).victims.tolist())


def _check_size(observation: Observation) -> None:
    rows = observation.rows
    unknowns = len(observation.victims) * observation.gradient_rounds
    sources = sum(len(step.noise_columns) for step in observation.steps)
    for count, most, what in ((unknowns, ENTRIES, "unknowns"), (sources, NOISE_ENTRIES, "noise sources")):
        if rows * count > most:
            raise InputError(
                f"{rows} messages with {count} {what}",
                f"solving takes at most {most:g} of their products",
                "attack fewer rounds, or use a view that receives less",
            )


def _shown(names: tuple[int, ...]) -> str:
    return ", ".join(map(str, names[:8])) + (", ..." if len(names) > 8 else "")


# --- finished runs: whose gradients one node can reconstruct from the messages it receives ---------------------------


@dataclass(frozen=True)
class ReconstructedNode:
    """A victim: in how many rounds its gradient can be solved for, and the round with the smallest error, if any."""

    node: int
    distance: int | None
    solved_rounds: int
    error: float
    round: int | None

    def document(self) -> Document:
        """As JSON; an infinite deviation is the word "inf"."""
        return {
            "node": self.node, "distance": self.distance, "solved_rounds": self.solved_rounds,
            "deviation": to_json(self.error), "round": self.round,
        }  # fmt: skip


@dataclass(frozen=True)
class RunReconstruction:
    """One run: the attack solves for gradients of its first `attacked_rounds` rounds."""

    attacker: int
    attacked_rounds: int
    all_rounds: int
    nodes: tuple[ReconstructedNode, ...]

    def document(self) -> Document:
        """As JSON."""
        return {
            "attack": "reconstruction", "attacker": self.attacker, "rounds": self.attacked_rounds,
            "of": self.all_rounds, "nodes": [node.document() for node in self.nodes],
        }  # fmt: skip

    def table(self) -> list[list[str]]:
        """A row for each node."""
        heading = [f"node seen by {self.attacker}", "hops", "gradients reconstructed", "smallest error", "in round"]
        rows = [
            [
                str(one.node), str(one.distance), f"{one.solved_rounds} of {self.attacked_rounds}",
                error_text(one.error), "" if one.round is None else str(one.round),
            ]
            for one in self.nodes
        ]  # fmt: skip
        return [heading, *rows]

    def notes(self) -> list[str]:
        """The table says it all."""
        return []


def error_text(error: float) -> str:
    """A gradient reconstruction error for reading.

    >>> error_text(0.0), error_text(0.08165), error_text(math.inf)
    ('exactly', '± 0.08165', 'not reconstructed')
    """
    if math.isinf(error):
        return "not reconstructed"
    return "exactly" if error < EXACT else f"± {error:.4g}"


def attack_runs(finished_runs: Sequence[FinishedRun], options: AttackOptions) -> RunReconstruction:
    """For each other node the error with which one node, node 0 unless given, can reconstruct its gradients.

    Long runs are attacked in as many first rounds as can be solved.
    """
    finished_run, attacker = finished_runs[0], options.attacker or 0
    training_run = finished_run.training_run
    views.node(attacker).check(training_run.topology.n)
    rounds = _solvable_rounds(finished_run, attacker)
    found = reconstruct(trace(training_run.algorithm, training_run.topology, rounds=rounds), views.node(attacker))
    solved: dict[int, list[tuple[float, int]]] = {victim: [] for victim in found.nodes}
    for round, victim, error in found.solved():
        solved[victim].append((error, round))
    distances = dict(zip(found.observation.victims.tolist(), found.observation.distances(), strict=True))
    nodes = [
        ReconstructedNode(victim, distances[victim], len(errors), *min(errors, default=(math.inf, None)))
        for victim, errors in solved.items()
    ]
    return RunReconstruction(attacker, rounds, training_run.rounds, tuple(nodes))


def _solvable_rounds(finished_run: FinishedRun, attacker: int) -> int:
    last = finished_run.beginning(views.node(attacker))
    rows = max(1, last.steps[-1].observed.state.shape[0])
    sources = max(1, len(last.steps[-1].noise_columns))
    most = min(ENTRIES / (rows * len(last.victims)), NOISE_ENTRIES / (rows * sources))
    return min(finished_run.training_run.rounds, max(1, math.isqrt(int(most))))
