"""What the certificate of a run takes of a round: seconds within it over seconds of the round, in one and the same run.

python benchmarks/certificate.py
"""

from __future__ import annotations

import statistics
import time

from sottovoce import algorithm, metropolis
from sottovoce.learning.datasets import load
from sottovoce.learning.models import model
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.run.training_run import TrainingRun, prepare_run
from sottovoce.tracing.certificate import Certificate

ROUNDS, NODES = 60, 16
TOLD = ("begins", "takes", "sends", "receives", "ends")


def share_of_rounds(run: TrainingRun) -> tuple[float, float]:
    """The median share of a round that the certificate takes, and the median milliseconds of a round."""
    spent = [0.0]

    def timed(name):
        told = getattr(Certificate, name)

        def method(self, *given):
            begun = time.thread_time()
            result = told(self, *given)
            spent[0] += time.thread_time() - begun
            return result

        return method

    originals = {name: getattr(Certificate, name) for name in TOLD}
    for name in TOLD:
        setattr(Certificate, name, timed(name))
    try:
        shares, rounds, last = [], [], time.thread_time()
        for _ in run.play(run.before()):
            now = time.thread_time()
            shares.append(spent[0] / (now - last - spent[0]))
            rounds.append(now - last)
            spent[0], last = 0.0, time.thread_time()
    finally:
        for name, told in originals.items():
            setattr(Certificate, name, told)
    return statistics.median(shares[1:]), 1e3 * statistics.median(rounds[1:])


def main() -> None:
    """Digits as in its recipe, with a linear model and with a network of some 25,000 parameters."""
    digits = load("digits")
    for name, settings in (("softmax", {}), ("mlp", {"hidden": [330]})):
        built = model(name, digits, **settings)
        job = task(digits, partition(digits, nodes=NODES), built)
        net = metropolis(f"erdos-renyi:{NODES},p=0.3,seed=1")
        noisy = algorithm("dp-d-sgd", sigma=2.0, step_size=0.5)
        run = prepare_run(noisy, net, job.gradients("cycle:20x5", "per-example", 1.0), rounds=ROUNDS)
        share, milliseconds = share_of_rounds(run)
        print(f"{name}, {built.layout.size:,} parameters: {share:.1%} of a round of {milliseconds:.2f} ms without it")


if __name__ == "__main__":
    main()
