"""The linear attack on finished runs: whose gradients one node can reconstruct from the messages it receives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce.attacks.reconstruction import ENTRIES, NOISE_ENTRIES, reconstruct
from sottovoce.attacks.registry import AttackOptions
from sottovoce.privacy import views
from sottovoce.run.finished_run import FinishedRun
from sottovoce.support.config import Document
from sottovoce.tracing.tracer import trace

EXACT = 1e-9
"""Below this error a gradient is reconstructed exactly, up to rounding."""


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
        deviation = "inf" if math.isinf(self.error) else self.error
        return {
            "node": self.node, "distance": self.distance, "solved_rounds": self.solved_rounds, "deviation": deviation,
            "round": self.round,
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


@dataclass(frozen=True)
class Reconstructions:
    """The result for one or several runs."""

    runs: tuple[RunReconstruction, ...]

    def document(self) -> Document:
        """As JSON."""
        documents = [run.document() for run in self.runs]
        return documents[0] if len(documents) == 1 else {"each": documents}

    def table(self) -> list[list[str]]:
        """The nodes of the first run."""
        first = self.runs[0]
        heading = [f"node seen by {first.attacker}", "hops", "gradients reconstructed", "smallest error", "in round"]
        rows = [
            [
                str(one.node), str(one.distance), f"{one.solved_rounds} of {first.attacked_rounds}",
                error_text(one.error), "" if one.round is None else str(one.round),
            ]
            for one in first.nodes
        ]  # fmt: skip
        return [heading, *rows]

    def notes(self) -> list[str]:
        """Says that only one run is shown where there are several."""
        return [] if len(self.runs) == 1 else ["Only the first run is shown."]


def error_text(error: float, otherwise: str = "not reconstructed") -> str:
    """A gradient reconstruction error for reading.

    >>> error_text(0.0), error_text(0.08165), error_text(math.inf)
    ('exactly', '± 0.08165', 'not reconstructed')
    """
    if math.isinf(error):
        return otherwise
    return "exactly" if error < EXACT else f"± {error:.4g}"


def attack_runs(finished_runs: Sequence[FinishedRun], options: AttackOptions) -> Reconstructions:
    """The attack of one node, node 0 unless given, on each run by itself."""
    attacker = 0 if options.attacker is None else options.attacker
    return Reconstructions(tuple(reconstruct_run(run, attacker) for run in finished_runs))


def reconstruct_run(finished_run: FinishedRun, attacker: int) -> RunReconstruction:
    """For each other node the error with which the attacker can reconstruct its gradients, in units of gradients.

    Long runs are attacked in as many first rounds as can be solved.
    """
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
