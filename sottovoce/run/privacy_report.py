"""What a run promises: the figures of its own algorithm, clipping, batches and data, known before it starts.

The headline is what whoever hears every message can learn at most, by the best kind of proof that holds for this run
(ACCOUNTING, section 5). Beside it stand the other kinds, and the views of single nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sottovoce.core.compression import Identity
from sottovoce.core.noise import CombinedNoise, Noise, NoNoise, ZeroSum
from sottovoce.core.threads import one_thread
from sottovoce.errors import InputError, Unaccountable
from sottovoce.learning.batches import Sampling
from sottovoce.privacy import views
from sottovoce.privacy.accountant import SECRETS, Account, account, shares_secrets
from sottovoce.privacy.amplification import noise_for, noise_multiplier, sampled_epsilon
from sottovoce.privacy.calibration import calibrate, with_sigma
from sottovoce.privacy.convexity import least_weight, non_expansive
from sottovoce.privacy.final_models import KEPT, models_follow_from_messages
from sottovoce.privacy.guarantee import KINDS
from sottovoce.privacy.noisy_gradients import trace_noisy_gradients
from sottovoce.privacy.views import View, parse_view
from sottovoce.run.training_run import TrainingRun
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.tracer import trace

NODE_ROUNDS = 40_000
"""Attackers times nodes times rounds that are accounted for unasked: some seconds to a minute."""

LARGEST = 10 * NODE_ROUNDS
"""Runs with more nodes times rounds than this get no attacker unasked."""

STAGES = 8
"""How often epsilon is told on the way to the last round, in runs of up to NODE_ROUNDS nodes times rounds."""

CUBES, SQUARES = 5e9, 1e8
"""Beyond so many cubed, or squared, numbers of nodes over all different rounds, messages are not traced unasked."""

UNCLIPPED = "gradients are not clipped: nothing bounds what a change of data does, so nothing is promised"
SAMPLED = "one record is {change}; batches are drawn anew in each round, and nobody learns who was drawn"
CHANGED = {"replace": "replaced by another", "zero-out": "made to count as nothing (how many there are is public)"}


@dataclass(frozen=True, eq=False)
class PrivacyReport:
    """The guarantees of a trial at one delta: for everyone as the adversary, and for single nodes.

    `attackers` says which nodes were taken as adversaries; `convexity` which check established that local steps are
    non-expansive, or why none did.
    """

    training_run: TrainingRun
    delta: float
    accounts: tuple[Account, ...]
    sampled: float | None
    attackers: str
    convexity: str
    refusals: tuple[str, ...]
    kept: bool = False

    @cached_property
    def headline(self) -> dict[str, Any] | None:
        """The least epsilon that is proven for the everyone view, with its kind, and the change that it is about.

        Data is replaced by other data; with Poisson batches it may be one record that is made to count as nothing, a
        change half as large. `change` says which. Where neighbours share secrets (DECOR), one of them can learn more
        than whoever hears everything: the headline is then the worst of all views, among which is either every node
        or one that hears everything and knows all secrets. `kept` models at the end are named among its assumptions.
        """
        best = self._proven()
        if best is not None and self.kept:
            best["assumptions"].append(KEPT)
        return best

    def _proven(self) -> dict[str, Any] | None:
        if shares_secrets(self.training_run.algorithm, self.training_run.topology):
            if not self.accounts or any(view.headline is None for view in self.accounts):
                return None
            return _headline(max(self.accounts, key=lambda view: view.mu), self.delta)
        options = [self._sampled_document()] if self.sampled is not None else []
        if self.accounts and self.accounts[0].headline is not None:
            options.append(_headline(self.accounts[0], self.delta))
        return min(options, key=lambda found: float(found["epsilon"]), default=None)

    @property
    def epsilon(self) -> float:
        """Epsilon of the headline; infinite where nothing is proven."""
        return math.inf if self.headline is None else float(self.headline["epsilon"])

    def over_rounds(self) -> list[dict[str, Any]]:
        """The headline, as it would be if the run had ended earlier; empty where none is proven and in large runs.

        Who has seen more rounds has seen these, so that no figure need be above a later one.
        """
        last, training_run = self.headline, self.training_run
        if last is None or training_run.topology.n * training_run.rounds > NODE_ROUNDS:
            return []
        found = [{"round": training_run.rounds, "epsilon": last["epsilon"]}]
        for rounds in reversed(
            np.unique(np.linspace(1, training_run.rounds, STAGES).round().astype(int)).tolist()[:-1]
        ):
            epsilon = min(self._after(replace(training_run, rounds=rounds)), float(found[0]["epsilon"]))
            found.insert(0, {"round": rounds, "epsilon": "inf" if epsilon == math.inf else epsilon})
        return found

    @one_thread()
    def _after(self, shorter: TrainingRun) -> float:
        """The headline's epsilon, by its own way and for its own adversary, of the first rounds."""
        assert self.headline is not None
        system = traced_run(shorter)
        if self.headline["mu"] is None:
            sampled, _ = _sampled(shorter, system, self.delta)
            return math.inf if sampled is None else sampled
        kinds = {found.kind for found in self.accounts[0].guarantees if found.proven_for_training}
        whom = next(found.view for found in self.accounts if str(found.view) == self.headline["view"])
        return account(
            system, whom, adjacency=shorter.adjacency, participation=shorter.participation,
            convex="convex-training" in kinds, kinds=[kind for kind in KINDS if kind in kinds],
        ).epsilon(self.delta)  # fmt: skip

    def _sampled_document(self) -> dict[str, Any]:
        change = _change(next(iter(_samplings(self.training_run))))
        shared = [SECRETS] if shares_secrets(self.training_run.algorithm, self.training_run.topology) else []
        return {
            "view": "everyone", "change": change, "victim": None, "distance": None, "kind": "any-training", "mu": None,
            "epsilon": "inf" if self.sampled == math.inf else self.sampled, "proven_for_training": True,
            "assumptions": [SAMPLED.format(change=CHANGED[change]), *shared],
        }  # fmt: skip

    def document(self) -> dict[str, Any]:
        """As JSON: `privacy.json` of a run."""
        algorithm = self.training_run.algorithm
        return {
            "algorithm": algorithm.name,
            "topology": self.training_run.topology.name,
            "rounds": self.training_run.rounds,
            "sigma": sigma_of(algorithm.noise),
            "sensitivity": self.training_run.gradients.sensitivity(self.training_run.adjacency)
            if self.training_run.clipped
            else "inf",
            "clipping": self.training_run.gradients.clipping.kind,
            "adjacency": self.training_run.adjacency,
            "participation": str(self.training_run.participation),
            "delta": self.delta,
            "headline": self.headline,
            "over_rounds": self.over_rounds(),
            "sampled": None if self.sampled is None else self._sampled_document(),
            "attackers": self.attackers,
            "convexity": self.convexity,
            "refusals": list(self.refusals),
            "views": [_view_document(found, self.delta) for found in self.accounts],
        }


def _headline(found: Account, delta: float) -> dict[str, Any]:
    assert found.headline is not None
    return {"view": str(found.view), "change": "replace", **found.headline.document(delta)}


def sigma_of(noise: Noise) -> Any:
    """The setting that decides how large a noise is, where there is one: of a node's own noise beside pair secrets."""
    if isinstance(noise, CombinedNoise):
        return sigma_of(noise.parts[0])
    if isinstance(noise, ZeroSum):
        return noise.message_sigma if noise.zeta is None else noise.zeta
    return getattr(noise, "sigma", None)


def _view_document(found: Account, delta: float) -> dict[str, Any]:
    document = found.document(delta)
    return {key: document[key] for key in ("view", "headline", "guarantees", "refusals")}


@one_thread()
def report_privacy(
    training_run: TrainingRun,
    *,
    delta: float = 1e-5,
    attackers: str | int | Sequence[int] = "auto",
    target: str | View = "everyone",
) -> PrivacyReport:
    """Account for a trial. `attackers` are node numbers, how many to sample, `all`, `none`, or `auto`: all if cheap.

    The view `target`, for which noise may have been chosen, is accounted for in any case.
    """
    if not training_run.clipped and not isinstance(training_run.algorithm.noise, NoNoise):
        return PrivacyReport(training_run, delta, (), None, "none", UNCLIPPED, (UNCLIPPED,))
    system = traced_run(training_run)
    chosen, said = _attackers(training_run, attackers)
    checked, convexity = _convexity(training_run, system)
    kinds = KINDS if checked else tuple(kind for kind in KINDS if kind != "convex-training")
    found = tuple(
        account(
            system,
            each,
            adjacency=training_run.adjacency,
            participation=training_run.participation,
            convex=checked,
            kinds=kinds,
        )
        for each in dict.fromkeys((*_views(training_run, chosen), parse_view(target)))
    )
    sampled, refusals = _sampled(training_run, system, delta)
    kept = not isinstance(training_run.algorithm.noise, NoNoise) and not models_follow_from_messages(system)
    return PrivacyReport(training_run, delta, found, sampled, said, convexity, refusals, kept)


def _views(training_run: TrainingRun, attackers: Sequence[int]) -> list[View]:
    """Everyone and the attackers. Where neighbours share secrets and not every node is among these, one that hears
    everything and knows all secrets stands for the rest.
    """
    found = [views.everyone(), *(views.node(attacker) for attacker in attackers)]
    if shares_secrets(training_run.algorithm, training_run.topology) and len(attackers) < training_run.topology.n:
        found.append(views.everyone(secrets_of=tuple(range(training_run.topology.n))))
    return found


def traced_run(training_run: TrainingRun) -> LinearSystem:
    """The linear system of what runs; of large topologies that change, only how noise is added to gradients."""
    algorithm, net, rounds = training_run.algorithm, training_run.topology, training_run.rounds
    if not isinstance(algorithm.compression, Identity):
        return trace_noisy_gradients(algorithm, net, rounds=rounds)
    different = 1 if net.static else rounds
    most = different * algorithm.gossip_steps * net.n**2 / SQUARES
    if different > 1:
        most = max(most, different * net.n**3 / CUBES)
    first = net.at(0)
    if most > 1 and not (algorithm.noise.local(first) or algorithm.noise.edge(first)):
        return trace(replace(algorithm, gossip_steps=1), net, rounds=rounds)  # type: ignore[type-var]
    if most > 1 and algorithm.noise.local(first):
        why = f"{net.name}, {rounds} rounds of {algorithm.gossip_steps} gossip steps: too many messages to trace"
        return trace_noisy_gradients(algorithm, net, rounds=rounds, why=why)
    return trace(algorithm, net, rounds=rounds)


def _attackers(training_run: TrainingRun, wanted: str | int | Sequence[int]) -> tuple[list[int], str]:
    n, silent = training_run.topology.n, isinstance(training_run.algorithm.noise, NoNoise)
    if wanted == "auto":
        size = n * training_run.rounds
        wanted = 0 if silent or n == 1 or size > LARGEST else min(n, max(1, NODE_ROUNDS // size))
    elif isinstance(wanted, str):
        if wanted not in ("all", "none"):
            raise InputError(f"attackers {wanted!r}", "known: auto, all, none, a number, node numbers", "choose one")
        wanted = n if wanted == "all" else 0
    if not isinstance(wanted, int):
        named = sorted(set(wanted))
        return named, f"nodes {', '.join(map(str, named))}" if named else "none"
    if not 0 <= wanted <= n:
        raise InputError(f"{wanted} attackers", f"there are {n} nodes", "sample at most so many")
    if wanted == n:
        return list(range(n)), f"all {n} nodes"
    sample = sorted(np.random.default_rng(training_run.seed).choice(n, wanted, replace=False).tolist())
    return sample, f"a sample of {wanted} of {n} nodes, drawn with the run's seed" if wanted else "none"


def _convexity(training_run: TrainingRun, system: LinearSystem) -> tuple[bool, str]:
    """Whether local steps are non-expansive on this run's data, with the sentence that says so or why not."""
    gradients, drawn = training_run.gradients, training_run.gradients.batches
    try:
        if gradients.local_steps > 1:
            raise Unaccountable("several local steps per round; convex-training covers single ones")
        if isinstance(training_run.algorithm.noise, NoNoise):
            raise Unaccountable("no noise")
        model = training_run.task.convex_model
        if model is None:
            raise Unaccountable(f"{training_run.task.model.name} is not known to be convex, as linear models are")
        return True, non_expansive(
            model,
            training_run.task.features(),
            step_size=training_run.algorithm.step_size,
            clipping=gradients.clipping.kind,
            full_batch=drawn.full,
            weight=least_weight(system),
            excess=float((drawn.largest / drawn.divisors).max()),
        )
    except Unaccountable as refusal:
        return False, f"convex-training is not offered: {refusal}"


# --- batches drawn by chance ---------------------------------------------------------------------------------------


def _samplings(training_run: TrainingRun) -> dict[Sampling, float]:
    """How records are sampled, with how far a change of that kind moves what a node releases."""
    drawn = training_run.gradients
    kinds = (
        {drawn.sampling(node) for node in range(training_run.topology.n)}
        if training_run.adjacency == "record"
        else {None}
    )
    if None in kinds:
        return {}
    return {found: drawn.sensitivity("record", _change(found)) for found in kinds if found is not None}


def _change(how: Sampling) -> str:
    """What amplification by this sampling is about."""
    return "zero-out" if how.size is None else "replace"


def _sampled(training_run: TrainingRun, system: LinearSystem, delta: float) -> tuple[float | None, tuple[str, ...]]:
    try:
        found = [
            sampled_epsilon(system, views.everyone(), share=how.share, size=how.size, delta=delta, sensitivity=most)
            for how, most in _samplings(training_run).items()
        ]
    except Unaccountable as refusal:
        return None, (str(refusal),)
    return max(found, default=None), ()


@one_thread()
def calibrate_run(
    training_run: TrainingRun,
    *,
    epsilon: float,
    delta: float,
    view: str | View = "everyone",
    attackers: str | int | Sequence[int] = "auto",
) -> TrainingRun:
    """The trial at the least sigma that meets a target, by the best kind that is proven for it.

    A view of nodes is met by the account of that view; for everyone, sampling counts too. Where neighbours share
    secrets, everyone's target is met for all views that the headline of `report_privacy` with these attackers is about.
    """
    if not training_run.clipped:
        raise Unaccountable(UNCLIPPED)
    checked, _ = _convexity(training_run, traced_run(training_run))
    kinds = ("any-training", "convex-training") if checked else ("any-training",)
    whom: list[str | View] = [view]
    if str(view) == "everyone" and shares_secrets(training_run.algorithm, training_run.topology):
        whom = [*_views(training_run, _attackers(training_run, attackers)[0])]
    sigmas = _sampled_sigma(training_run, epsilon, delta) if [str(one) for one in whom] == ["everyone"] else []
    try:
        found = max(
            calibrate(
                training_run.algorithm, training_run.topology, one, rounds=training_run.rounds, epsilon=epsilon, delta=delta,
                adjacency=training_run.adjacency, participation=training_run.participation, convex=checked, kinds=kinds,
                tracer=lambda built: traced_run(replace(training_run, algorithm=built)),
            )
            for one in whom
        )  # fmt: skip
        sigmas.append(found)
    except Unaccountable:
        if not sigmas:
            raise
    return replace(training_run, algorithm=with_sigma(training_run.algorithm, min(sigmas)))


def _sampled_sigma(training_run: TrainingRun, epsilon: float, delta: float) -> list[float]:
    """The sigma at which every node's sampling meets the target, where sampling counts."""

    def over_noise(sigma: float) -> float:
        """The noise there is over what is needed, for the node that has least of it."""
        system = traced_run(replace(training_run, algorithm=with_sigma(training_run.algorithm, sigma)))
        return min(noise_multiplier(system, views.everyone(), most) / noise for noise, most in needed)

    try:
        needed = [
            (noise_for(epsilon, share=how.share, size=how.size, rounds=training_run.rounds, delta=delta), most)
            for how, most in _samplings(training_run).items()
        ]
        if not needed or (over := over_noise(1.0)) in (0.0, math.inf):
            return []
    except Unaccountable:
        return []
    sigma = (1 + 1e-12) / over
    return [_least_sigma(over_noise, sigma) if isinstance(training_run.algorithm.noise, CombinedNoise) else sigma]


def _least_sigma(over_noise: Callable[[float], float], guess: float) -> float:
    """The least sigma with enough noise, up to one part in a thousand, where other noise does not grow with it."""
    low, high = guess / 2, guess
    while over_noise(high) < 1:
        low, high = high, 2 * high
    while low > 1e-9 and over_noise(low) >= 1:
        low, high = low / 2, low
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if over_noise(middle) >= 1 else (middle, high)
    return high
