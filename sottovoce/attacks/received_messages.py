"""What a view really receives in a run of the loop, less what it knows already.

Messages are linear, so what the view knows of them (its members' gradients and noise, secrets it shares, the public
start) is the same run with everything else set to zero. The loop is run a second time with only these, and taken off.

    >>> import numpy as np
    >>> from sottovoce import algorithm, metropolis, trace, views
    >>> from sottovoce.privacy.observation import observe
    >>> seen = observe(trace(algorithm("muffliato", sigma=0.0), metropolis("path:3"), rounds=1), views.node(0))
    >>> values = np.array([[10.0], [20.0], [30.0]])
    >>> receive(seen, lambda round, x: values, np.zeros((3, 1)))          # node 1 sends its value, -(-1) * 20
    array([[20.]])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.core.arrays import Rows, to_numpy
from sottovoce.core.compression import Compression, Identity
from sottovoce.core.correlation import Correlation
from sottovoce.core.grid import NoiseOnGrid
from sottovoce.core.loop import play_round, start_run
from sottovoce.core.noise import FactoredMatrix
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.noise_sources import Sources
from sottovoce.core.random_streams import NoiseKey, RandomSource
from sottovoce.core.release import Gradient, LoopInputs
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.observation import Observation, known_of
from sottovoce.privacy.views import View

Array = NDArray[np.float64]

MakeFeed: TypeAlias = Callable[[int, RandomSource, Gradient, Array], LoopInputs]
"""What draws the noise of a run, from seed, noise key, gradient and an array like the models: `NoiseFeed`, say."""


def receive(
    observation: Observation, gradient: Gradient, x0: Array, *, seed: int = 0, feed: MakeFeed = NoiseFeed
) -> Array:
    """The messages of one run as the view gets them, one row for each row of `observation`, one column per parameter.

    `gradient` and `x0` are those of `iterate_rounds`; what the view knows is subtracted.
    """
    members = list(observation.view.members)
    need_messages(observation)
    x0 = _checked_start(x0, observation)
    own: list[Array] = []

    def noted(round: int, point: Array) -> Rows:
        grad = gradient(round, point)
        if round == len(own):
            own.append(np.asarray(grad)[members])
        return grad

    def replayed(round: int, point: Array) -> Array:
        grad = np.zeros_like(point)
        grad[members] = own[round]
        return grad

    key = NoiseKey.of_seed(seed)
    received = _received(observation, feed(seed, key, noted, x0), x0)
    if not members and not observation.view.secrets_of and not x0.any():
        return received
    return received - _received(observation, _KnownOnly(feed(seed, key, replayed, x0), observation.view), x0)


def need_messages(observation: Observation) -> None:
    """Refuse compression: then what is sent differs by coordinate or is not linear."""
    operator = observation.system.algorithm.compression
    if not isinstance(operator, Identity):
        raise Unaccountable(
            f"{operator.name}: coordinates are not all sent in the same way, so what is received is not one linear "
            "system; "
            "attack a run with identity compression"
        )


def _checked_start(x0: Array, observation: Observation) -> Array:
    if not isinstance(x0, np.ndarray) or x0.dtype.kind != "f" or x0.ndim != 2 or len(x0) != observation.system.n:
        shape = getattr(x0, "shape", type(x0).__name__)
        raise InputError(
            f"a starting point of {shape}",
            f"it must be an array of floats with {observation.system.n} rows",
            "give np.zeros",
        )
    return x0


def _received(observation: Observation, feed: LoopInputs, x0: Array) -> Array:
    system = observation.system
    algorithm, loop_state = start_run(system.algorithm, system.topology, x0, system.rounds)
    rows = []
    for round, pick in enumerate(observation.picks):
        played = play_round(algorithm, system.topology, loop_state, feed, round)
        loop_state = played.loop_state
        rows.append(pick @ np.concatenate([to_numpy(step.sent_messages().rows) for step in played.steps]))
    return np.concatenate(rows)


class _KnownOnly:
    """Loop inputs that are zero but for the noise that a view knows."""

    def __init__(self, inner: LoopInputs, view: View) -> None:
        self._inner, self._view = inner, view

    def gradient(self, round: int, point: Rows) -> Rows:
        """What the view knows of gradients, which the inner feed was given."""
        return self._inner.gradient(round, point)

    def noise(self, sources: Sources, matrix: FactoredMatrix, round: int, step: int) -> Rows:
        """Only what comes from known sources."""
        return self._inner.noise(*self._known(sources, matrix), round, step)

    def correlated(self, correlation: Correlation, sources: Sources, matrix: FactoredMatrix, round: int) -> Rows:
        """Only what comes from known sources."""
        return self._inner.correlated(correlation, *self._known(sources, matrix), round)

    def released(self, values: Rows, noise: NoiseOnGrid, round: int) -> Rows:
        """Only with noise from known sources."""
        return self._inner.released(values, noise.among(self._known), round)

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> Rows:
        """As in the run itself."""
        return self._inner.compress(operator, rows, round, step)

    def _known(self, sources: Sources, matrix: FactoredMatrix) -> tuple[Sources, FactoredMatrix]:
        keep = sparse.diags_array(known_of(sources, self._view).astype(float), format="csr")
        right = None if matrix.right is None else _nonzero(matrix.right @ keep)
        return sources, FactoredMatrix(_nonzero(matrix.plain @ keep), matrix.left, right)


def _nonzero(matrix: sparse.csr_array) -> sparse.csr_array:
    matrix = sparse.csr_array(matrix)
    matrix.eliminate_zeros()
    return matrix
