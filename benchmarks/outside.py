"""What code of others says: figures and training steps beside those of packages that we did not write.

`make outside` builds an environment of its own for it, in build/outside, and writes docs/outside-evidence.md. A package
that is not there is skipped, and the page names it.

    python -m benchmarks.outside [PAGE]
"""

from __future__ import annotations

import importlib.metadata
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sottovoce.privacy.amplification import epsilon_of_batches
from sottovoce.privacy.gaussian_dp import delta_of, epsilon_of

DELTA = 1e-5
POISSON = [(1.0, 0.01, 1000), (2.0, 0.05, 300), (0.8, 0.001, 5000), (5.0, 0.3, 200)]
"""Noise multiplier, share, rounds."""


class Row(NamedTuple):
    """One figure: what it is, ours, theirs."""

    what: str
    ours: float
    theirs: float


def poisson_name(noise: float, share: float, rounds: int) -> str:
    return f"epsilon at {DELTA:g}: Poisson share {share:g}, noise multiplier {noise:g}, {rounds:,} rounds"


def of_dp_accounting() -> Iterator[Row]:
    """Composed loss distributions, as they are and below what their Fourier transforms can tell."""
    import dp_accounting
    from dp_accounting import pld

    for noise, share, rounds in POISSON:
        event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))
        theirs = pld.PLDAccountant().compose(event, rounds).get_epsilon(DELTA)
        ours = epsilon_of_batches(noise=noise, share=share, rounds=rounds, delta=DELTA)
        yield Row(poisson_name(noise, share, rounds), ours, theirs)
    for delta in (1e-5, 1e-11):
        noise, rounds = 27.224161203846133, 5000
        one = pld.privacy_loss_distribution.from_gaussian_mechanism(noise, value_discretization_interval=1e-4)
        theirs = one.self_compose(rounds).get_epsilon_for_delta(delta)
        what = f"epsilon at {delta:g}: {rounds:,} plain releases, noise multiplier {noise:.2f}"
        yield Row(what, epsilon_of(math.sqrt(rounds) / noise, delta), theirs)


def of_pld_accounting() -> Iterator[Row]:
    """Its upper bounds; its lower bounds are in the names."""
    from PLD_accounting import gaussian_allocation_epsilon_range

    for noise, among, epochs in ((1.0, 100, 1), (0.6, 100, 1), (2.0, 10, 10)):
        above, below = gaussian_allocation_epsilon_range(delta=DELTA, sigma=noise, num_steps=among, num_epochs=epochs)
        ours = epsilon_of_batches(noise=noise, share=1.0, rounds=epochs, delta=DELTA, among=among)
        what = f"epsilon at {DELTA:g}: one of {among} rounds, {epochs} epochs, noise multiplier {noise:g}"
        yield Row(f"{what} (at least {below:.4g})", ours, above)


def of_prv_accountant() -> Iterator[Row]:
    """Its estimates; its intervals are 0.01 to both sides."""
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    for noise, share, rounds in POISSON:
        one = PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=share)
        found = PRVAccountant(prvs=[one], max_self_compositions=[rounds], eps_error=0.01, delta_error=1e-10)
        _, estimate, _ = found.compute_epsilon(delta=DELTA, num_self_compositions=[rounds])
        ours = epsilon_of_batches(noise=noise, share=share, rounds=rounds, delta=DELTA)
        yield Row(poisson_name(noise, share, rounds), ours, float(estimate))


def of_riskcal() -> Iterator[Row]:
    """Advantage of the best test, of Gaussian losses."""
    from riskcal.analysis import get_advantage_from_gdp

    for mu in (0.1, 1.0, 4.0):
        yield Row(f"advantage of the best attack at mu {mu:g}", delta_of(mu, 0.0), float(get_advantage_from_gdp(mu)))


def of_opacus() -> Iterator[Row]:
    """Its accountant; and the parameters of one node alone after DP-SGD without its noise, step for step."""
    import torch
    from opacus import GradSampleModule
    from opacus.accountants import PRVAccountant
    from opacus.optimizers import DPOptimizer
    from torch import nn

    from sottovoce import algorithm, from_arrays, metropolis, model, partition, task, train

    for noise, share, rounds in POISSON:
        accountant = PRVAccountant()
        accountant.history = [(noise, share, rounds)]
        ours = epsilon_of_batches(noise=noise, share=share, rounds=rounds, delta=DELTA)
        yield Row(poisson_name(noise, share, rounds), ours, accountant.get_epsilon(DELTA))

    inputs, classes = blobs(records=60)
    data = from_arrays(inputs, classes, test=(inputs, classes))
    job = task(data, partition(data, nodes=1), model("softmax", data), dtype=torch.float64)
    gradients = job.gradients("full", "per-example", 0.5)
    start = np.zeros((1, 3 * (inputs.shape[1] + 1)))
    for steps in (1, 30):
        ours = train(
            algorithm("d-psgd", step_size=0.3), metropolis("complete:1"), torch.tensor(start), gradients, rounds=steps
        )
        module = GradSampleModule(nn.Linear(inputs.shape[1], 3).double())
        for parameter in module.parameters():
            parameter.data.zero_()
        plain = torch.optim.SGD(module.parameters(), lr=0.3)
        private = DPOptimizer(plain, noise_multiplier=0.0, max_grad_norm=0.5, expected_batch_size=len(inputs))
        for _ in range(steps):
            private.zero_grad()
            nn.functional.cross_entropy(module(torch.tensor(inputs)), torch.tensor(classes)).backward()
            private.step()
        theirs = torch.cat([parameter.detach().ravel() for parameter in module.parameters()])
        found = torch.as_tensor(np.asarray(ours)).ravel()
        yield Row(f"norm of the parameters after {steps} clipped steps", float(found.norm()), float(theirs.norm()))
        apart = float((found - theirs).norm())
        yield Row(f"distance of the parameters after {steps} clipped steps", apart, 0.0)


def of_scikit_learn() -> Iterator[Row]:
    """No noise, complete graph: the optimum of logistic regression over all records."""
    import torch
    from sklearn.linear_model import LogisticRegression

    from sottovoce import algorithm, from_arrays, metropolis, model, partition, task, train

    inputs, classes = blobs(records=240)
    data = from_arrays(inputs, classes, test=(inputs, classes))
    job = task(data, partition(data, nodes=4), model("softmax", data), dtype=torch.float64)
    start = torch.zeros((4, 3 * (inputs.shape[1] + 1)), dtype=torch.float64)
    gradients = job.gradients("full")
    end = train(algorithm("d-psgd", step_size=0.5), metropolis("complete:4"), start, gradients, rounds=3000)
    theirs = LogisticRegression(C=1e10, tol=1e-12, max_iter=10_000).fit(inputs, classes)
    log_likely = np.log(theirs.predict_proba(inputs)[np.arange(len(classes)), classes])
    found = job.evaluate(torch.as_tensor(np.asarray(end)))
    yield Row(
        "cross-entropy of logistic regression on 240 records, 4 nodes", found.average_loss, float(-log_likely.mean())
    )


def of_jax_privacy() -> Iterator[Row]:
    """Mean squared error of prefix sums with the best factorisation of each, at one sensitivity."""
    import jax
    from jax_privacy.matrix_factorization import dense

    from sottovoce import factorize, metropolis

    jax.config.update("jax_enable_x64", True)
    for rounds, times in ((32, 1), (64, 4)):
        C = dense.optimize(rounds, epochs=times)
        theirs = float(np.mean(np.asarray(dense.per_query_error(strategy_matrix=C))))
        alone = metropolis("complete:1")
        ours = factorize(alone, participation=f"{times}x{rounds // times}", cache=False, gap=1e-8)
        yield Row(
            f"mean squared error of {rounds} prefix sums, each record {times} times", ours.objective / rounds, theirs
        )


def blobs(records: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that overlap."""
    rng = np.random.default_rng(0)
    classes = np.arange(records) % 3
    return rng.standard_normal((records, 4)) + 1.2 * np.eye(3, 4)[classes], classes


SOURCES: dict[str, Callable[[], Iterator[Row]]] = {
    "dp-accounting": of_dp_accounting,
    "PLD-accounting": of_pld_accounting,
    "prv-accountant": of_prv_accountant,
    "riskcal": of_riskcal,
    "opacus": of_opacus,
    "scikit-learn": of_scikit_learn,
    "jax-privacy": of_jax_privacy,
}


def page() -> str:
    """The table, and which packages are missing."""
    lines, missing = [], []
    for name, rows in SOURCES.items():
        try:
            version = importlib.metadata.version(name)
            found = list(rows())
        except (ImportError, importlib.metadata.PackageNotFoundError) as reason:
            missing.append(f"{name} ({reason})")
            continue
        for row in found:
            apart = row.ours - row.theirs
            share = f" ({apart / row.theirs:+.1e})" if row.theirs else ""
            lines.append(f"| {name} {version} | {row.what} | {row.ours:.8g} | {row.theirs:.8g} | {apart:+.1e}{share} |")
    skipped = (
        f"Skipped, because they were not installed: {', '.join(missing)}." if missing else "No package was skipped."
    )
    return "\n".join([*HEAD, *lines, "", skipped, ""])


HEAD = [
    "# Outside evidence",
    "",
    "Figures and training steps of Sottovoce beside those of code that we did not write. `make outside` installs these",
    "packages into an environment of their own and writes this page. In parentheses: the difference as a share of the",
    "figure. Composed losses are rounded up by up to 1e-4, on either side. prv-accountant's column has its estimate,",
    "Opacus' the upper end of an interval, which is 0.01 above. dp-accounting is too small at tiny delta: the row of",
    "1e-11 has a closed form, which is ours. PLD-accounting's column has its upper bounds.",
    "",
    "| package | figure | Sottovoce | theirs | difference |",
    "|---|---|---|---|---|",
]


def main() -> None:
    warnings.simplefilter("ignore")
    text = page()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
