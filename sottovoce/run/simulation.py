"""Simulation: all nodes in one process, with metrics as it goes and the privacy guarantees of the run.

    >>> from sottovoce import algorithm, metropolis
    >>> from sottovoce.learning.datasets import load
    >>> from sottovoce.learning.models import model
    >>> from sottovoce.learning.partitioning import partition
    >>> from sottovoce.learning.tasks import task
    >>> digits = load("digits")
    >>> job = task(digits, partition(digits, nodes=8), model("softmax", digits))
    >>> clipped = job.gradients("cycle:10x5", "per-example", 1.0)
    >>> run = simulate(algorithm("dp-d-sgd", sigma=2.0, step_size=0.5), metropolis("ring:8"), clipped, rounds=50)
    >>> run.metrics[-1].metric.average > 0.7, run.metrics[-1].messages
    (True, 800)
    >>> round(run.guarantees.headline.mu, 3), str(run.guarantees.headline.kind)
    (1.581, 'any-training')

Noise and batches are drawn from a key of 128 secret bits, a fresh one for each run. With the same seed and the same
`noise_key` models are the same after every round, however often a run is interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from sottovoce.core.algorithm import Algorithm
from sottovoce.core.grid import ExactNoiseChoice
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.row_memory import ROW_MEMORY
from sottovoce.core.topologies import Topology
from sottovoce.distributed.coordinator import Coordinator
from sottovoce.errors import InputError
from sottovoce.learning.tasks import Gradients, Task
from sottovoce.privacy.rounding import round_up
from sottovoce.run.metrics import Measurement, is_measured, measure
from sottovoce.run.privacy_report import PrivacyReport, report_privacy
from sottovoce.run.recording import Messages, Recorder
from sottovoce.run.run_accountant import calibrate_run
from sottovoce.run.training_run import RoundCallback, RunState, TrainingRun, call_all, prepare_run
from sottovoce.support.config import RecordingSettings
from sottovoce.support.notebook_html import html_table
from sottovoce.support.threads import threads as torch_threads


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A finished run: where every node ended (N x D), what was measured, and, when asked, its privacy guarantees.

    `nonfinite` is the number of gradients that were left out; it depends on the data itself, and no figure covers it.
    """

    training_run: TrainingRun
    models: Tensor
    metrics: tuple[Measurement, ...]
    delta: float
    nonfinite: int
    messages: Messages | None = None

    def __repr__(self) -> str:
        run, last = self.training_run, self.metrics[-1]
        measured = f"{last.metric_name} {last.metric.average:.4f} of the average model"
        return f"Run({run.algorithm.name} on {run.topology.name}, {run.rounds} rounds: {measured})"

    def _repr_html_(self) -> str:
        """For notebooks: what was measured, and what is proven if it was asked for."""
        metric = self.metrics[-1].metric_name
        rows = [
            [
                one.round,
                *(f"{value:.4f}" for value in (one.metric.average, one.metric.mean, one.loss.average)),
                one.messages,
            ]
            for one in self.metrics
        ]
        heading = ["round", f"{metric}, average model", f"{metric}, nodes", "test loss", "messages"]
        proven = self.guarantees.headline if "guarantees" in self.__dict__ else None
        epsilon = (
            "" if proven is None else f"; epsilon {round_up(proven.epsilon)} at delta {self.delta:g}, {proven.kind}"
        )
        return html_table([heading, *rows], f"{self!r}{epsilon}")

    @cached_property
    def guarantees(self) -> PrivacyReport:
        """The account of this run, for everyone as the adversary and for nodes where that is cheap."""
        return report_privacy(self.training_run, delta=self.delta)


def simulate(
    algorithm: Algorithm,
    topology: Topology,
    task: Task | Gradients,
    *,
    rounds: int,
    seed: int = 0,
    noise_key: RandomSource | None = None,
    adjacency: str = "record",
    epsilon: float | None = None,
    delta: float = 1e-5,
    view: str = "everyone",
    same_start: bool = True,
    exact_noise: ExactNoiseChoice = "auto",
    every: int = 10,
    test_rows: int | None = None,
    threads: int | None = None,
    on_round: RoundCallback | None = None,
    record: RecordingSettings | None = None,
) -> Run:
    """Train, and measure every few rounds. `task.gradients(...)` says which batches are drawn and how they are clipped.

    The algorithm's sensitivity is set to that of the clipped gradients under `adjacency`; its noise is in units of it.
    With `epsilon`, sigma is replaced by the smallest that meets it at `delta` against `view`, as with `privacy.epsilon`
    in a run file: sampling is counted. `exact_noise` says whether nodes release values on a grid, so that guarantees
    cover rounding; by default `with_exact_noise` decides. `threads` says how many threads train, one by default.
    `on_round` is called after each round. `record` says which nodes keep the models they receive, in `run.messages`.
    With a `noise_key` the run can be repeated, and whoever knows the key knows the noise; with a `SecretSource()` in
    its place nobody can repeat it.
    """
    if every < 1:
        raise InputError(
            f"metrics every {every} rounds", "it must be a whole number, 1 or more", "give 10, for example"
        )
    training_run = prepare_run(
        algorithm, topology, task, rounds=rounds, seed=seed, noise_key=noise_key, adjacency=adjacency,
        same_start=same_start, exact_noise=exact_noise,
    )  # fmt: skip
    if epsilon is not None:
        training_run = calibrate_run(training_run, epsilon=epsilon, delta=delta, view=view).training_run
    recorder = None if record is None else Recorder(training_run, record)
    metrics, callback = [], call_all(on_round, recorder)
    with torch_threads(threads):
        played = measured_rounds(
            training_run, training_run.before(), every=every, test_rows=test_rows, on_round=callback
        )
        for state, measurement in played:
            last = state
            if measurement is not None:
                metrics.append(measurement)
    messages = None if recorder is None else recorder.messages
    return Run(training_run, training_run.models(last), tuple(metrics), delta, last.nonfinite, messages)


def measured_rounds(
    training_run: TrainingRun,
    state: RunState,
    *,
    every: int,
    test_rows: int | None = None,
    seconds: float = 0.0,
    start: bool = True,
    on_round: RoundCallback | None = None,
    coordinator: Coordinator | None = None,
) -> Iterator[tuple[RunState, Measurement | None]]:
    """Each state after `state`, with metrics every few rounds, the starting point among them unless not `start`.

    `seconds` is what the run has taken before. The `coordinator` gathers the metrics of a run over several processes.
    """
    begun = time.perf_counter() - seconds
    if state.rounds == 0 and start:
        yield state, measure(training_run, state, 0.0, test_rows, coordinator)
    for played, now in training_run.play(state):
        if on_round is not None:
            on_round(played, now)
        measurement = None
        if is_measured(now.rounds, every, training_run.rounds):
            ROW_MEMORY.drop_unused()
            measurement = measure(training_run, now, time.perf_counter() - begun, test_rows, coordinator)
        yield now, measurement
