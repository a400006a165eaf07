"""The certificate of a run: in every round, what nodes send and hold is what was traced, seen along a secret direction.

Let r be a random unit vector that nobody but this process knows. Maps are linear, so what they make of `<x, r>` is what
they make of x, seen along r. So every point, message and state is compared with the traced combination of what entered
the round: the state before it, gradients, noise, and what gossip gave. This says that they are linear in what entered,
with the traced coefficients, and no more; gradients are clipped, and noise is drawn, by the package.

Rounds are compared one by one, from the state that the round began with, so errors do not add up. A difference d shows
as `<d, r>`, of about |d| / sqrt(D), whoever chose it without knowing r. So do rounding errors, and they are tolerated:
`ROUNDINGS` times half a unit in the last place of all that a value is made of. Where noise is not exact, that has to
stay below a thousandth of the noise, or the run is refused.

A direction, and what is seen along it, are in memory only, and of one round at a time.

Shapes: N nodes of the run, n nodes here, D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from os import urandom
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.algorithm import Algorithm, Message, State, Weighted, is_own, leaves
from sottovoce.core.arrays import Plain, Rows, column, is_plain, is_torch, numpy_dtype, to_numpy
from sottovoce.core.compression import Compression, Identity
from sottovoce.core.messages import RoundWatch, value_of
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import NoiseTerm
from sottovoce.core.release import GossipStep
from sottovoce.core.sparsity import same_matrix
from sottovoce.errors import Diverged, Uncertified
from sottovoce.tracing.round_maps import ClassMaps, Combination, Facts, RoundMaps

ROUNDINGS = 6.0
"""How far values may be away. A few operations err by half a unit each, and across a direction they add up like noise:
this is eight standard deviations and more."""

LEAST = 1e-3
"""Share of the least noise that a tolerance may be."""

DOUBLE = 2.0**-53
HALF_UNIT = {4: 2.0**-24, 8: DOUBLE}
"""Half a unit in the last place of 1, by the bytes of a number; what is seen is summed up in float64."""

SMALLEST = {2.0**-24: 2.0**-126, DOUBLE: 2.0**-500}
"""Below, numbers have fewer digits, or their squares none: differences of this size are rounding. By half a unit of 1;
noise that is declared is at least 1e-50."""

AT_ONCE = 1 << 15
"""So many numbers are seen along the direction at once."""

NEAR = 1e-3
"""Share by which public weights beside messages may be away from what was traced, of which rounding takes far less."""

SAMPLED, FEWEST = 1024, 64
"""Most and fewest parameters of a node from which the variance of its noise is told."""

DEVIATIONS = 12.0
"""Standard deviations of its estimate that the variance of noise may be away; rounding to a grid is far less."""

RULE = "a run does what was traced and accounted for, in every round"

REMEDY = "keep memory and schedules in the state; nothing of this message was sent"


class Seen(NamedTuple):
    """Rows along the direction, and how long they are: one number each for every node here."""

    along: NDArray[np.float64]
    length: NDArray[np.float64]
    version: int | None


def what_is_checked(compression: Compression, rounds: int) -> str:
    """What the certificate of a run compares, as documents say it."""
    messages = "messages" if isinstance(compression, Identity) else "messages before they are compressed"
    when = f"all {rounds:,} rounds" if rounds > 1 else "its one round"
    return f"checked in {when}: points, {messages}, states and final models are what was traced"


class Certificate(RoundWatch):
    """Watches the rounds of a run, each class of coordinates by itself.

    `local` takes loop rows to the plain rows of the nodes here.
    """

    def __init__(
        self, classes: Sequence[ClassMaps], name: str, nodes: NDArray[np.intp], local: Callable[[Rows], Rows]
    ) -> None:
        self._classes = [ClassCertificate(one, name, nodes, local) for one in classes]

    def begins(self, algorithm: Algorithm, round: int, state: State) -> None:
        """Begin from the state as it was compared, or as a checkpoint holds it."""
        for one in self._classes:
            one.begins(algorithm, round, state)

    def takes(self, mixing: Mixing, point: Rows, gradient: Rows, entering: Rows, noise: Rows | float) -> None:
        """Compare where gradients were taken; note what enters the local step."""
        for one in self._classes:
            one.takes(mixing, point, gradient, entering, noise)

    def steps(self, direction: Rows) -> None:
        """Note what enters the local step, where a rule that is not linear made it of the noisy gradient."""
        for one in self._classes:
            one.steps(direction)

    def sends(self, gossip_step: GossipStep, message: Message) -> Message:
        """Compare a message before it is sent, and the noise that the loop will add to it."""
        for one in self._classes:
            message = one.sends(gossip_step, message)
        return message

    def receives(self, gossip_step: GossipStep, mixed: Rows) -> None:
        """Note what a step gave."""
        for one in self._classes:
            one.receives(gossip_step, mixed)

    def ends(self, state: State) -> None:
        """Compare the state, which the next round begins from."""
        for one in self._classes:
            one.ends(state)

    def compare_models(self, played: int, state: State, models: Rows) -> None:
        """Compare models with the state after so many rounds, whoever played them."""
        for one in self._classes:
            one.compare_models(played, state, models)


class ClassCertificate(RoundWatch):
    """Watches a class of coordinates."""

    def __init__(self, maps: ClassMaps, name: str, nodes: NDArray[np.intp], local: Callable[[Rows], Rows]) -> None:
        self._class, self._maps, self._name, self._nodes, self._local = maps, maps.rounds, name, nodes, local
        self._coordinates = maps.coordinates
        self._direction = np.zeros(0)
        self._inputs: list[Seen] = []
        self._slots: tuple[list[Rows], list[Seen]] = ([], [])
        self._mixed: tuple[list[Rows], list[Seen]] = ([], [])
        self._last_noise = np.zeros(0)
        self._round, self._unit = 0, 0.0
        self._algorithm: Algorithm | None = None

    # --- what the loop tells ---------------------------------------------------------------------------------------

    def begins(self, algorithm: Algorithm, round: int, state: State) -> None:
        """Begin from the state as it was compared, or as a checkpoint holds it."""
        self._algorithm, self._round = algorithm, round
        self._check_facts()
        self._begin_from(_slots(state, self._now.private))

    def takes(self, mixing: Mixing, point: Rows, gradient: Rows, entering: Rows, noise: Rows | float) -> None:
        """Compare where gradients were taken; note what enters the local step."""
        now = self._now
        self._check_facts(mixing)
        self._check_same(mixing is now.mixings[0] or _same_mixing(mixing, now.mixings[0]), "mixes by other weights")
        if now.point is not None:
            what = "takes a gradient at another point than was traced"
            self._compare(what, now.point, self._see(point, *self._slots), self._drift_of_weights())
        self._inputs.append(self._see(entering))
        if now.adds_noise:
            added = cast("Rows", noise)
            self._check_same(not isinstance(noise, float), "adds less noise")
            self._inputs.append(self._see(added))
            self._check_fresh(self._inputs[-1].along)
            self._check_variance(self._inputs[-1].length ** 2 / len(self._direction), len(self._direction))
        elif entering is not gradient:
            self._check_variance(*self._squares_released(entering, gradient))

    def steps(self, direction: Rows) -> None:
        """Note what enters the local step in place of what was released, which has its noise: it is exact."""
        self._check_same(not self._now.adds_noise, "adds noise beside gradients")
        self._inputs[self._now.gradient] = self._see(direction)

    def sends(self, gossip_step: GossipStep, message: Message) -> Message:
        """Compare a message before it is sent, and the noise that the loop will add to it."""
        now, step = self._now, gossip_step.step
        self._check_facts()
        self._check_same(_same_mixing(gossip_step.mixing, now.mixings[step]), "mixes by other weights")
        self._check_same(_same_terms(gossip_step.edge_noise, now.edge_noise[step]), "adds other noise to messages")
        tolerance = self._compare(
            "would send another message than was traced", now.sent[step], self._see(value_of(message))
        )
        if now.adds_noise:
            self._check_precision(dict(now.sent[step]).get(now.gradient + 1), tolerance)
        return self._with_public_weight(message, now.weights[step])

    def receives(self, gossip_step: GossipStep, mixed: Rows) -> None:
        """Note what a step gave."""
        self._inputs.append(self._see(mixed))
        self._mixed = [mixed], self._inputs[-1:]

    def ends(self, state: State) -> None:
        """Compare the state, which the next round begins from."""
        now = self._now
        self._check_facts()
        rows = _slots(state, now.private_out)
        found = [self._see(slot, *self._mixed) for slot in rows]
        self._check_same(len(found) == len(now.state_out), "holds another state")
        for expected, seen in zip(now.state_out, found, strict=True):
            self._compare("holds another state than was traced", expected, seen)
        self._slots = rows, found

    def compare_models(self, played: int, state: State, models: Rows) -> None:
        """Compare models with the state after so many rounds, whoever played them."""
        combination, private = self._class.models(played)
        self._round = min(played, len(self._maps) - 1)
        self._begin_from(_slots(state, private))
        if combination is not None:
            what = "has other models than were traced"
            self._compare(what, combination, self._see(models, *self._slots), self._drift_of_weights())

    # --- along the direction ---------------------------------------------------------------------------------------

    def _begin_from(self, rows: list[Rows]) -> None:
        """See the slots of a state, and by how much numbers of their precision are rounded."""
        self._unit = max(HALF_UNIT[numpy_dtype(self._local(slot)).itemsize] for slot in rows)
        self._inputs = [self._see(slot, *self._slots) for slot in rows]
        self._slots = rows, [*self._inputs]

    @property
    def _now(self) -> RoundMaps:
        return self._maps[self._round]

    def _see(self, rows: Rows, known: Sequence[Rows] = (), seen: Sequence[Seen] = ()) -> Seen:
        """Rows along the direction; of an object that was seen, and has not been written to since, as it was."""
        here = self._local(rows)
        assert is_plain(here)
        for one, found in zip(known, seen, strict=True):
            if one is rows and found.version is not None and found.version == _version(here):
                return found
        chosen = here if self._coordinates is None else here[:, self._coordinates]
        if len(self._direction) != chosen.shape[1]:
            self._direction = _secret_direction(chosen.shape[1])
        return _seen(chosen, self._direction, _version(here))

    def _drift_of_weights(self) -> float:
        """By how many roundings a public number of the state, by which points are divided, may be off by now.

        Such a number, as the weight of push-sum, goes from round to round by itself. Each mix of it rounds in the same
        way, so that errors may add up.
        """
        if all(self._now.private):
            return 0.0
        mixed = max(int(np.diff(mixing.weights.indptr).max()) for mixing in self._now.mixings)
        return float((self._round + 1) * len(self._now.mixings) * (mixed + 1))

    def _compare(self, what: str, combination: Combination, seen: Seen, more: float = 0.0) -> NDArray[np.float64]:
        """Refuse what differs from the combination of what entered by more than rounding, which is returned."""
        expected, terms = np.zeros(len(self._nodes)), seen.length.copy()
        for number, coefficients in combination:
            here = coefficients[self._nodes]
            expected += here * self._inputs[number].along
            terms += np.abs(here) * self._inputs[number].length
        D = len(self._direction)
        if not np.isfinite(terms).all():  # nothing would differ from it by more than infinity
            raise Diverged(
                f"values with nan or infinity in round {self._round}",
                "they cannot be compared with what was traced",
                "lower the step size, or the noise",
            )
        unit = self._unit + DOUBLE * math.sqrt(D)
        tolerance = terms * ((ROUNDINGS * (1 + more) * unit) / math.sqrt(D)) + SMALLEST[self._unit]
        near = np.abs(seen.along - expected) <= tolerance
        if not near.all():
            node = int(self._nodes[int(np.argmin(near))])
            raise Uncertified(f"node {node} of {self._name} {what}, in round {self._round}", RULE, REMEDY)
        return tolerance

    def _check_facts(self, mixing: Mixing | None = None) -> None:
        """The loop asks the algorithm in every round how large noise is, among other facts; its answers stay the same.

        They are asked for here where no map lies between this and the loop's own asking.
        """
        assert self._algorithm is not None
        known, found = self._now.facts, Facts.of(self._algorithm, self._now.mixings[0] if mixing is None else mixing)
        same = found.correlation == known.correlation
        self._check_same(same and _same_terms(found.local_noise, known.local_noise), "has other noise")
        self._check_same(found.settings == known.settings, "has other settings")

    def _with_public_weight(self, message: Message, known: NDArray[np.floating] | None) -> Message:
        """The weight beside a message of somebody's own algorithm is sent as it was traced: so it tells nothing else.

        Rounding could hide in it what no tolerance finds.
        """
        self._check_same(isinstance(message, Weighted) == (known is not None), "sends another kind of message")
        assert self._algorithm is not None
        if not isinstance(message, Weighted) or not is_own(self._algorithm):
            return message
        found, wanted = to_numpy(cast("Plain", message.weight)).ravel(), cast("NDArray[np.floating]", known)
        wanted = wanted if len(found) == len(wanted) else wanted[self._nodes]
        near = np.allclose(found, wanted, rtol=NEAR, atol=0)
        self._check_same(near, "sends another weight beside its message")
        return message._replace(weight=column(wanted, message.weight))

    def _check_same(self, same: bool, what: str) -> None:
        if not same:
            raise Uncertified(f"{self._name} {what} than was traced, in round {self._round}", RULE, REMEDY)

    def _check_fresh(self, along: NDArray[np.float64]) -> None:
        """Noise of the last round is not added again."""
        last, self._last_noise = self._last_noise, along
        repeated = len(last) == len(along) and bool(((along == last) & (along != 0)).any())
        self._check_same(not repeated, "adds noise again that it has added before, rather")

    def _check_variance(self, squares: NDArray[np.float64], parameters: int) -> None:
        """Noise has the size that was traced, as far as the mean squares of so many parameters of each node tell."""
        deviation = self._now.deviation
        if deviation is not None and parameters >= FEWEST:
            wanted = deviation[self._nodes] ** 2
            near = np.abs(squares - wanted) <= DEVIATIONS * math.sqrt(2 / parameters) * wanted
            self._check_same(bool(near.all()), "adds noise of another size")

    def _squares_released(self, released: Rows, gradient: Rows) -> tuple[NDArray[np.float64], int]:
        """Mean squares of some of the noise that is in what was released, of any class."""
        some, without = self._local(released), self._local(gradient)
        assert is_plain(some)
        assert is_plain(without)
        noise = to_numpy(some[:, :SAMPLED]).astype(np.float64) - to_numpy(without[:, :SAMPLED])
        return (noise**2).mean(axis=1), noise.shape[1]

    def _check_precision(self, coefficients: NDArray[np.floating] | None, tolerance: NDArray[np.float64]) -> None:
        """What is tolerated is far below the noise, where noise is not exact: else rounding may tell what it hides."""
        if coefficients is None:
            return
        noise = np.abs(coefficients[self._nodes]) * self._inputs[self._now.gradient + 1].length
        least = LEAST * noise / math.sqrt(len(self._direction))
        if (tolerance > least)[noise > 0].any():
            raise Uncertified(
                f"noise of {self._name} is smaller than a thousand rounding errors of its models, "
                f"in round {self._round}",
                "what a message holds is told from its noise in the precision of the run",
                'set machine.precision = "float64", or use an algorithm with exact noise',
            )


def _secret_direction(dimension: int) -> NDArray[np.float64]:
    """A unit vector whose key nobody keeps."""
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(urandom(16))))
    found = generator.standard_normal(dimension)
    return np.asarray(found / np.linalg.norm(found))


def _seen(rows: Plain, direction: NDArray[np.float64], version: int | None) -> Seen:
    """In float64, as many numbers at a time as a cache holds."""
    values, D = to_numpy(rows), len(direction)
    along, squares = np.empty(len(values)), np.empty(len(values))
    wide = np.empty((max(1, AT_ONCE // D), D))
    for start in range(0, len(values), len(wide)):
        some = wide[: len(values) - start]
        some[:] = values[start : start + len(wide)]
        with np.errstate(invalid="ignore", over="ignore"):
            along[start : start + len(some)] = some @ direction
            squares[start : start + len(some)] = np.vecdot(some, some)
    return Seen(along, np.sqrt(squares), version)


def _version(rows: Plain) -> int | None:
    """How often a tensor was written to; arrays of numpy do not count it."""
    return int(rows._version) if is_torch(rows) else None


def _slots(state: State, private: Sequence[bool]) -> list[Rows]:
    """The leaves of a state that are no public numbers."""
    return [leaf for leaf, hidden in zip(leaves(state), private, strict=True) if hidden]


def _same_mixing(one: Mixing, other: Mixing) -> bool:
    return one is other or (
        same_matrix(one.weights, other.weights)
        and same_matrix(one.planned, other.planned)
        and np.array_equal(_or_all(one.active), _or_all(other.active))
    )


def _or_all(active: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    return np.ones(0, dtype=bool) if active is None else active


def _same_terms(some: Sequence[NoiseTerm], others: Sequence[NoiseTerm]) -> bool:
    return len(some) == len(others) and all(
        one is other
        or (
            one.sources.kind == other.sources.kind
            and same_matrix(one.matrix.plain, other.matrix.plain)
            and same_matrix(one.matrix.left, other.matrix.left)
            and same_matrix(one.matrix.right, other.matrix.right)
        )
        for one, other in zip(some, others, strict=True)
    )
