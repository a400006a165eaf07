"""Noise correlated over rounds, at each node by itself: MF-D-SGD with any C, AntiPGD, MAFALDA."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.algorithms.spec import AlgorithmSpec, Example, Meaning, NoisyStepSettings, Role
from sottovoce.core.algorithm import Gossip
from sottovoce.core.correlation import ClassCorrelation, Correlation, Differences, Triangular
from sottovoce.core.noise import Noise, Temporal
from sottovoce.core.participation import Participation, parse_participation
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.support.npz import read_npz


@runtime_checkable
class HasCorrelation(Protocol):
    """What brings a C along, as a `Factorization` does."""

    @property
    def correlation(self) -> Correlation:
        """Its C."""


CorrelationSource: TypeAlias = ArrayLike | Path | Correlation | HasCorrelation
"""A C, or where it is found."""

C_SOURCES = "C: a matrix, a `Correlation`, a `Factorization`, or the path of an npz file"


@dataclass(frozen=True, kw_only=True)
class MfDSgdSettings(NoisyStepSettings):
    """Noise, and the C that correlates it over rounds."""

    correlation: Annotated[CorrelationSource, Meaning(C_SOURCES, Role.CORRELATION)]


@dataclass(frozen=True, kw_only=True)
class MafaldaSettings(NoisyStepSettings):
    """Noise, and what decides the C that correlates it over rounds."""

    correlation: Annotated[
        CorrelationSource | None, Meaning(f"{C_SOURCES}; found for the graph unless given", Role.CORRELATION)
    ] = None
    participation: Annotated[
        str | Participation,
        Meaning("rounds in which the same data shows", Role.FROM_RUN, "it follows from training.batch"),
    ] = "every"
    classes: Annotated[int, Meaning("classes of nodes, by their degrees, each with a C of its own")] = 1


def _correlated(name: str, settings: NoisyStepSettings, correlation: Correlation) -> Gossip:
    return Gossip(
        name=name,
        noise=Temporal(settings.sigma, correlation),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
    )


def anti_pgd(settings: NoisyStepSettings) -> Gossip:
    """AntiPGD: each round takes back the noise of the last."""
    return _correlated("anti-pgd", settings, Differences())


def mf_d_sgd(settings: MfDSgdSettings) -> Gossip:
    """MF-D-SGD with your own lower-triangular C: a matrix, a `Correlation`, or the path of an npz file."""
    return _correlated("mf-d-sgd", settings, read_correlation(settings.correlation))


def mafalda(settings: MafaldaSettings) -> Gossip:
    """MAFALDA: MF-D-SGD with the C that suits the graph best, as `factorize` finds it.

    Either C is given (a `Factorization` will do), or the number of rounds and who takes part when: then C is found as
    soon as the topology is known, once, and what runs and what is accounted for both use that. Where a record is drawn
    by chance every B rounds, C has B bands, so that sampling counts.
    """
    if settings.correlation is not None:
        return _correlated("mafalda", settings, read_correlation(settings.correlation))
    if settings.rounds is None:
        raise InputError(
            "mafalda without correlation or rounds", "C is made for a given number of rounds", "give rounds"
        )
    return Mafalda(
        name="mafalda",
        noise=Temporal(
            settings.sigma, PendingCorrelation(settings.rounds, str(settings.participation), settings.classes)
        ),
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
    )


@dataclass(frozen=True)
class PendingCorrelation(Correlation):
    """A C that will be found once the topology is known; asking for it before is refused."""

    rounds: int
    participation: str
    classes: int = 1
    banded: bool = False

    @property
    def memory(self) -> int:
        return self.rounds - 1

    def matrix(self, rounds: int) -> NDArray[np.float64]:
        raise InputError("mafalda without a topology", "its C follows from the weights", "ask algorithm.on(topology)")


class Mafalda(Gossip):
    """MF-D-SGD that takes its C from the topology."""

    def on(self, topology: Topology) -> Gossip:
        """The algorithm with the C that `factorize` finds for this topology."""
        return super(Mafalda, replace(self, noise=noise_for(topology, self.noise))).on(topology)


def noise_for(topology: Topology, noise: Noise) -> Noise:
    """The noise with the C that was still to be found."""
    if isinstance(noise, Temporal) and isinstance(noise.over_rounds, PendingCorrelation):
        return replace(noise, over_rounds=_optimised_correlation(topology, noise.over_rounds))
    return noise


@lru_cache(maxsize=16)
def _optimised_correlation(topology: Topology, wanted: PendingCorrelation) -> Correlation:
    from sottovoce.matrix_factorization.factorization import degree_classes, factorize, factorize_by_class
    from sottovoce.matrix_factorization.sampled_noise import best_in_band, settings_in_band

    scheme, labels = parse_participation(wanted.participation), degree_classes(topology, wanted.classes)
    if max(labels) == 0:
        if scheme.share < 1 or wanted.banded:
            apart = 1 if scheme.shuffled else scheme.apart  # a record may show in rounds next to each other
            return best_in_band(topology, wanted.rounds, apart).correlation
        return factorize(topology, rounds=wanted.rounds, participation=wanted.participation).correlation
    settings = {"rounds": wanted.rounds, "participation": wanted.participation}
    if scheme.share < 1:
        settings = settings_in_band(wanted.rounds, scheme.apart)
    found = factorize_by_class(topology, labels, **settings)
    return ClassCorrelation(labels, tuple(part.correlation for part in found.parts))


def read_correlation(source: CorrelationSource) -> Correlation:
    """C from a matrix, a `Factorization`, or an npz file that holds one under the name `C`."""
    found = source.correlation if isinstance(source, HasCorrelation) else source
    if isinstance(found, Correlation):
        return found
    if not isinstance(found, str | Path):
        return Triangular(found)
    stored = read_npz(Path(found))
    if "C" not in stored:
        raise InputError(f"{found}: no array named C", "the file holds C under that name", "save it as C")
    return Triangular(stored["C"])


def _band(rounds: int, *below: float) -> NDArray[np.float64]:
    return np.eye(rounds) + sum(value * np.eye(rounds, k=-lag) for lag, value in enumerate(below, start=1))


REFERENCES = (
    "Unified privacy guarantees for decentralized learning via matrix factorization, under review, Algorithms 1 and 2 "
    "(MF-D-SGD, MAFALDA)",
    "Koloskova et al., Gradient descent with linearly correlated noise, NeurIPS 2023 (AntiPGD)",
)

ALGORITHMS = (
    AlgorithmSpec(
        "anti-pgd", NoisyStepSettings, anti_pgd, (Example({"sigma": 1.5}),), references=REFERENCES, written="AntiPGD"
    ),
    AlgorithmSpec(
        "mf-d-sgd",
        MfDSgdSettings,
        mf_d_sgd,
        examples=(
            Example({"sigma": 1.5, "correlation": Triangular(_band(12, 0.5, 0.3))}),
            Example({"sigma": 1.5, "correlation": Triangular(np.tril(np.ones((12, 12))) + np.eye(12))}),
        ),
        references=REFERENCES,
    ),
    AlgorithmSpec(
        "mafalda",
        MafaldaSettings,
        mafalda,
        examples=(
            Example({"sigma": 1.5, "correlation": Triangular(_band(12, 0.4))}),
            Example({"sigma": 1.5, "rounds": 12, "participation": "2x6"}),
            Example({"sigma": 1.5, "rounds": 12, "participation": "2x6", "classes": 2}),
        ),
        references=REFERENCES,
    ),
)
