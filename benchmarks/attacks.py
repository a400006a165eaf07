"""Membership attacks against a plain loop over models: `python -m benchmarks.attacks`."""

from __future__ import annotations

import time

import numpy as np
import torch

from benchmarks.loop import peak_gigabytes
from sottovoce.attacks.candidate_losses import Candidates, candidates_of, loss_series
from sottovoce.attacks.classifier import classifier
from sottovoce.attacks.threshold import threshold
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.models import mlp
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import Task, task
from sottovoce.run.recording import Messages, RecordedRound
from sottovoce.support.threads import threads

VICTIMS, MODELS, SAMPLES = 100, 26, 1000


def job_of(features: int = 8) -> Task:
    """Made-up rows with random labels: speed does not depend on what is learned."""
    rng = np.random.default_rng(0)
    rows = VICTIMS * SAMPLES // 2
    inputs = rng.standard_normal((rows, features), dtype=np.float32)
    data = Dataset(
        name="made-up", kind="classes", examples=Examples(inputs), targets=rng.integers(0, 2, rows),
        test_inputs=inputs[:SAMPLES],
        test_targets=rng.integers(0, 2, SAMPLES), shape=(features,), classes=("0", "1"), groups=None,
        test_groups=None, entities=(), licence="", source="", notes=(),
    )  # fmt: skip
    return task(data, partition(data, VICTIMS), mlp((features, 64, 1), loss="logistic"))


def received(job: Task) -> Messages:
    """One attacker that hears everybody in each of the rounds."""
    draw = torch.Generator().manual_seed(0)
    every = np.arange(VICTIMS, dtype=np.int32)
    found = {}
    for round in range(MODELS):
        models = job.model.start(VICTIMS, draw, same=False).numpy()
        found[round] = RecordedRound(every, np.full_like(every, VICTIMS), every, models)
    return Messages((VICTIMS,), found)


@torch.no_grad()
def plain_loop(job: Task, messages: Messages, chosen: dict[int, Candidates]) -> dict[tuple[int, int], np.ndarray]:
    """The same losses, a model after the other."""
    found = {}
    for round in messages.rounds:
        for victim, row in enumerate(messages.at(round).rows):
            own = chosen[victim]
            inputs = torch.cat([job.inputs[own.members], job.test_inputs[own.nonmembers]])
            targets = torch.cat([job.targets[own.members], job.test_targets[own.nonmembers]])
            found[round, victim] = job.model.loss.each(
                job.model.outputs(torch.from_numpy(row), inputs), targets
            ).numpy()
    return found


def main() -> None:
    """Seconds of each part."""
    job = job_of()
    messages = received(job)
    chosen = candidates_of(job, messages.pairs)
    print(f"{VICTIMS} victims x {MODELS} models x {SAMPLES} samples, MLP 8-64-1, one thread")
    with threads():
        took = {}
        for _ in range(3):
            for name, act in (
                ("losses, batched", lambda: loss_series(job, messages, messages.pairs, chosen)),
                ("losses, a model after the other", lambda: plain_loop(job, messages, chosen)),
            ):
                begun = time.perf_counter()
                act()
                took.setdefault(name, []).append(time.perf_counter() - begun)
        found = loss_series(job, messages, messages.pairs, chosen)
        plain = plain_loop(job, messages, chosen)
        ours = np.concatenate([found[3].members[5], found[3].nonmembers[5]])
        np.testing.assert_allclose(ours, plain[5, 3], rtol=1e-4, atol=1e-5)
        for attack in (threshold, classifier):
            begun = time.perf_counter()
            attack(found)
            took[f"{attack.__name__} attack on them"] = [time.perf_counter() - begun]
    for name, times in took.items():
        print(f"  {name:34} {np.median(times):7.2f} s   ({min(times):.2f} to {max(times):.2f})")
    ratio = np.median(took["losses, a model after the other"]) / np.median(took["losses, batched"])
    print(f"  plain loop / batched: {ratio:.2f}; peak memory {peak_gigabytes():.2f} GB")


if __name__ == "__main__":
    main()
