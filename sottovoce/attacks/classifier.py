"""The classifier attack: the losses of a candidate on models of many rounds tell whether it is a member.

For each pair of attacker and victim a net with two hidden layers learns from 70 % of the candidates, whose membership
the attacker is told, and is tried on the others (zip-dl, section 6.1 and A.7). So it is a strong attacker. The
classes have the same weight. All nets are trained at once.

A member and the candidate of the same label that stands beside it are learnt from together or tried together. Shuffled
apart, labels of which more members are learnt from would have fewer members to be tried, and nets would do worse than
guess.

The paper leaves widths and optimiser open: here 32 and 16 units, Adam, logarithms of losses scaled round by round.

Shapes: P pairs, B candidates, M rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.attacks.candidate_losses import LossSeries, losses_on_runs
from sottovoce.attacks.evaluation import MembershipResult, Scores, evaluate_scores
from sottovoce.attacks.registry import AttackOptions
from sottovoce.learning.engines import Stack, engine_for
from sottovoce.learning.models import mlp
from sottovoce.run.finished_run import FinishedRun
from sottovoce.support.threads import threads

MODELS = 26
HIDDEN = (32, 16)
SHARE = 0.7
STEPS, RATE, DECAY = 200, 0.01, 1e-3


def spaced(rounds: Sequence[int], count: int = MODELS) -> tuple[int, ...]:
    """So many of some rounds, at fixed intervals as far as possible, the first and the last among them.

    >>> spaced(range(0, 101, 2), 5)
    (0, 24, 50, 76, 100)
    """
    at = np.unique(np.linspace(0, len(rounds) - 1, min(count, len(rounds))).round().astype(int))
    return tuple(rounds[number] for number in at)


class Examples(NamedTuple):
    """Features P x B x M, whether members, and which are learnt from; neither learnt nor tried is padding."""

    features: NDArray[np.float32]
    member: NDArray[np.bool_]
    learnt: NDArray[np.bool_]
    tried: NDArray[np.bool_]


def classifier(found: Sequence[LossSeries], *, confidence: float = 0.95, seed: int = 0) -> MembershipResult:
    """The attack on every pair of attacker and victim, scored on the candidates it did not learn from."""
    examples = _examples(found, np.random.default_rng(seed))
    outputs = _outputs(examples, seed)
    scores = [
        Scores((one.run, one.victim), *(outputs[p, examples.tried[p] & kind] for kind in _kinds(examples.member[p])))
        for p, one in enumerate(found)
    ]
    return evaluate_scores("classifier", scores, confidence=confidence, seed=seed)


def attack_runs(finished_runs: Sequence[FinishedRun], options: AttackOptions) -> MembershipResult:
    """The attack on finished runs."""
    return classifier(losses_on_runs(finished_runs, options), confidence=options.confidence, seed=options.seed)


def _kinds(member: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    return member, ~member


def _examples(found: Sequence[LossSeries], rng: np.random.Generator) -> Examples:
    rounds = spaced(found[0].rounds)
    columns = [found[0].rounds.index(round) for round in rounds]
    longest = max(one.members.shape[1] + one.nonmembers.shape[1] for one in found)
    shape = (len(found), longest)
    features = np.zeros((*shape, len(rounds)), dtype=np.float32)
    member, learnt, tried = (np.zeros(shape, dtype=bool) for _ in range(3))
    shuffled: dict[tuple[int, int], NDArray[np.intp]] = {}  # alike for all who attack a victim
    for p, one in enumerate(found):
        values = np.concatenate([one.members, one.nonmembers], axis=1)
        m, B = one.members.shape[1], values.shape[1]
        member[p, :m] = True
        assert 2 * m == B, "members and non-members come in pairs"
        chosen = shuffled.setdefault((one.run, one.victim), rng.permutation(m))
        for kind in (chosen, chosen + m):
            cut = int(SHARE * m)
            learnt[p, kind[:cut]], tried[p, kind[cut:]] = True, True
        features[p, :B] = _scaled(_last_received(values)[columns].T, learnt[p, :B])
    return Examples(features, member, learnt, tried)


def _last_received(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where nothing was received in a round, the losses before; before the first model, those on that one."""
    received = np.isfinite(values[:, 0])
    last = np.maximum.accumulate(np.where(received, np.arange(len(values)), -1))
    return values[np.where(last < 0, int(np.argmax(received)), last)]


def _scaled(losses_BM: NDArray[np.float64], learnt: NDArray[np.bool_]) -> NDArray[np.float64]:
    values = np.log(losses_BM + 1e-6)
    return (values - values[learnt].mean(axis=0)) / (values[learnt].std(axis=0) + 1e-6)


def _outputs(examples: Examples, seed: int) -> NDArray[np.float64]:
    """Train all nets together, and ask each about all of its candidates."""
    net = mlp((examples.features.shape[2], *HIDDEN, 1), loss="logistic")
    engine = engine_for(net)
    points = net.start(len(examples.features), torch.Generator().manual_seed(seed), same=False)
    inputs = torch.from_numpy(examples.features)
    stack = Stack(inputs, torch.from_numpy(examples.member.astype(np.float32)), _weights(examples))
    adam = torch.optim.Adam([points], lr=RATE, weight_decay=DECAY)
    with threads():
        for _ in range(STEPS):
            points.grad = engine.total(points, stack)
            adam.step()
        return engine.outputs(points, inputs).squeeze(-1).double().numpy()


def _weights(examples: Examples) -> Tensor:
    """Half of the weight to each class, none to what is not learnt from."""
    weights = np.zeros(examples.member.shape, dtype=np.float32)
    for kind in _kinds(examples.member):
        learnt = examples.learnt & kind
        weights += learnt / (2 * np.maximum(learnt.sum(axis=1, keepdims=True), 1))
    return torch.from_numpy(weights)
