"""Bounds on what each victim of a view can lose: one for each kind of guarantee, with what it assumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.final_models import FinalModels
from sottovoce.core.grid import message_grid
from sottovoce.core.participation import Adjacency, Participation
from sottovoce.core.rotation import Rotation
from sottovoce.core.topologies import Rotating
from sottovoce.errors import Unaccountable
from sottovoce.privacy.absorption import couple, steps_to_couple
from sottovoce.privacy.absorption_policy import (
    UNBOUNDED,
    Policy,
    check_policy_cost,
    late_cost,
    least_cost,
    may_gain,
    policy_for,
)
from sottovoce.privacy.assumptions import Assumption, AssumptionKind, rounding
from sottovoce.privacy.closedness import closedness
from sottovoce.privacy.convexity import least_weight
from sottovoce.privacy.covering_views import hides_in_sums, lacks_secrets
from sottovoce.privacy.discrete_noise import factor_of_sums
from sottovoce.privacy.exact import routes
from sottovoce.privacy.exact.averaging import averaging_loss
from sottovoce.privacy.final_models import covered_final_models
from sottovoce.privacy.guarantee import Figure, Guarantee, Kind, TrainingProof
from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.reactions import reaching_gradients
from sottovoce.privacy.views import View, ViewKind
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.round_maps import noise_deviation

Array = NDArray[np.float64]

NEAR = 1e-6
"""A figure this close to one that covers rounding is rounded up to it."""

PROOFS = {
    Kind.ANY_TRAINING: TrainingProof.PROVEN,
    Kind.CONVEX_TRAINING: TrainingProof.IF_CONVEX,
    Kind.FIXED_STREAMS: TrainingProof.NOT_PROVEN,
}

NEEDED_FOR_ANY = "any training needs noise on gradients themselves, or a view that has seen all that nodes react to"

AT_USER_LEVEL = "the view is closed only where a user's data may change in every round"

ADD_NOISE = "use dp-d-sgd, for example"
PROTECT_USERS = "take adjacency user, and participation every"
TAKE_LESS = "take fewer rounds or a smaller graph"


class Terms(NamedTuple):
    """What may change, in which rounds it shows, what is known of local steps, and how far policies are searched."""

    adjacency: Adjacency
    scheme: Participation
    convex: bool = False
    lipschitz: float | None = None
    optimised: bool = False


class _Squares(NamedTuple):
    """mu^2 of every victim, and what these figures are."""

    squares: Array
    figures: list[Figure]

    @classmethod
    def bounds(cls, squares: Array) -> _Squares:
        """Of the view itself nothing smaller is known."""
        return cls(squares, [Figure.BOUND] * len(squares))


def _least(options: Sequence[_Squares]) -> _Squares:
    """The least of several figures for each victim; of those that are alike one that is no bound."""
    each_OV = np.array([option.squares for option in options])
    squares, figures = each_OV.min(axis=0), []
    for victim, alike in enumerate((each_OV <= (1 + NEAR) * squares).T.tolist()):
        found = [one.figures[victim] for one, is_alike in zip(options, alike, strict=True) if is_alike]
        figures.append(next((one for one in found if one is not Figure.BOUND), Figure.BOUND))
    return _Squares(squares, figures)


class KindBounds:
    """The bounds of one view, kind by kind: what kinds share is computed once."""

    def __init__(self, system: LinearSystem, view: View, observation: Observation, terms: Terms) -> None:
        self.system, self.view, self.observation, self.terms = system, view, observation, terms
        self.scheme, self.victims = terms.scheme, observation.victims
        self.policy: Policy | None = None
        self._exact_of: dict[View, _Squares] = {}

    def check(self, kinds: Sequence[Kind]) -> None:
        """Refuse a search for policies that is too large, before anything is computed."""
        if Kind.CONVEX_TRAINING in kinds and not self.system.only_gradients:
            with suppress(Unaccountable):
                steps_to_couple(self.system, self.view)
                check_policy_cost(self.system, len(self.victims), self.scheme, optimised=self.terms.optimised)

    def guarantees(self, kind: Kind) -> list[Guarantee]:
        """The guarantees of one kind for every victim; refused where it does not apply."""
        if kind is Kind.AS_PUBLISHED:
            return self._as_published()
        if kind is not Kind.FIXED_STREAMS and self.system.algorithm.averaging:
            raise Unaccountable(f"{self.system.algorithm.name} averages and does not train; its proof is fixed-streams")
        if kind is not Kind.ANY_TRAINING:
            self._require_messages()
        bounds: dict[Kind, Callable[[], _Squares]] = {
            Kind.ANY_TRAINING: self._any_training,
            Kind.CONVEX_TRAINING: self._convex_training,
            Kind.FIXED_STREAMS: lambda: self._exact(self.view),
        }
        found, figures = bounds[kind]()
        squares, covered = self._rounded_up(found)
        assumptions = self._assumptions(kind)
        sees_sums = self.view.secure_sum or self.view.final_models is FinalModels.AVERAGE
        assumed = {
            is_covered: (
                *assumptions,
                *(() if is_covered else self._about_weights()),
                rounding(self.system, covered=is_covered, by_absorption=kind is Kind.CONVEX_TRAINING and not sees_sums),
            )
            for is_covered in set(covered.tolist())
        }
        final_models = covered_final_models(self.system, self.view)
        nothing_seen = (squares == 0) & ~self._reaching.any(axis=0)
        is_bound = squares > (1 + 2 * NEAR) * found
        return [
            Guarantee(
                victim, distance, kind, mu, PROOFS[kind],
                (*assumptions, AssumptionKind.NOTHING_OBSERVED.of()) if unseen else assumed[is_covered],
                self.view, final_models, Figure.BOUND if more else figure,
            )
            for victim, distance, mu, unseen, is_covered, more, figure in zip(
                self.victims.tolist(), self.observation.distances(), np.sqrt(squares).tolist(), nothing_seen.tolist(),
                covered.tolist(), is_bound.tolist(), figures, strict=True,
            )
        ]  # fmt: skip

    def _require_messages(self) -> None:
        if self.system.only_gradients:
            raise Unaccountable(self.system.only_gradients)

    def _assumptions(self, kind: Kind) -> tuple[Assumption, ...]:
        """All but those about weights and rounding."""
        averaging = self.system.algorithm.averaging
        found = [(AssumptionKind.BOUNDED_VALUES if averaging else AssumptionKind.BOUNDED_GRADIENTS).of()]
        if kind is Kind.FIXED_STREAMS and not averaging:
            found.append(AssumptionKind.FIXED_STREAMS.of())
        if kind is Kind.CONVEX_TRAINING:
            weight = least_weight(self.system)
            largest_step = "2/L" if weight >= 1 else f"{2 * weight:.6g}/L (2 w/L with the least push-sum weight w)"
            found.append(AssumptionKind.NON_EXPANSIVE_STEPS.of(largest_step=largest_step))
        if lacks_secrets(self.view, self.system):
            in_sums = hides_in_sums(self.system)
            found.append((AssumptionKind.OUTSIDE_OF_SUMS if in_sums else AssumptionKind.NO_SHARED_SECRETS).of())
        return tuple(found)

    def _about_weights(self) -> tuple[Assumption, ...]:
        """What figures of averaging take the weights for, where they depend on these."""
        averaged = averaging_loss(self.observation)
        if averaged is None or self.view.kind is ViewKind.EVERYONE:
            return ()
        return ((AssumptionKind.MEANT_WEIGHTS if averaged.rational else AssumptionKind.STORED_WEIGHTS).of(),)

    def _rounded_up(self, squares: Array) -> tuple[Array, NDArray[np.bool_]]:
        """mu^2, and for which victims it covers rounding: where it is not below what the noisy gradients tell.

        With exact noise all that is seen is a function of the noisy gradients that reach it, on their grid, in any
        arithmetic. Smaller figures count on sums of several nodes' noise, which on grids, and in floating point, tell
        more. Where messages are on a grid, the proof gives the adversary all of them as real numbers. It takes a
        sensitivity that bounds a victim's gradients wherever it stands, unless there is only one of them, at a public
        point.
        """
        algorithm, mixing, uncovered = self.system.algorithm, self.system.topology.at(0), np.zeros(len(squares), bool)
        if not algorithm.exact_noise:
            return squares, uncovered
        if sums_over_all(algorithm):
            return squares * factor_of_sums(self.system) ** 2, ~uncovered
        grid = message_grid(algorithm, mixing)
        if grid is None:
            enough, factor = self._given_noisy_gradients, 1.0
        elif algorithm.averaging or self.observation.gradient_rounds == 1 or self._reacts_freely:
            enough, factor = self._exact(self._all_messages).squares, (1 + grid.extra(self.system.rounds)) ** 2
        else:
            return squares, uncovered
        covered = squares >= (1 - NEAR) * enough
        return np.where(covered, np.maximum(squares, enough) * factor, squares), covered

    @property
    def _all_messages(self) -> View:
        """All messages with what the view knows."""
        return replace(self.view, kind=ViewKind.EVERYONE, edges=(), secure_sum=False)

    @property
    def _reacts_freely(self) -> bool:
        """Whether Delta bounds the difference of a victim's gradients in every round, whatever it reacts to.

        A victim that reacts to its own past changes in rounds in which its changed data takes no part, too, so that
        only the figure for all rounds covers it.
        """
        return self.terms.adjacency is Adjacency.USER and self.scheme == Participation()

    @cached_property
    def _reaching(self) -> NDArray[np.bool_]:
        """Which (gradient round, victim) reach the view. All nodes react, those that are not asked about too."""
        whole = self.observation
        if len(self.victims) < self.system.n - len(self.view.members):
            whole = observe(self.system, self.view)
        return reaching_gradients(whole)[:, np.searchsorted(whole.victims, self.victims)]

    def _exact(self, view: View) -> _Squares:
        """The exact loss of fixed streams; of each view once."""
        if view not in self._exact_of:
            seen = self.observation
            if view != self.view:
                seen = observe(self.system, view, victims=self.victims.tolist())
            squares, figure = routes.exact_loss(seen, self.scheme)
            if isinstance(self.system.topology, Rotating):
                squares = np.maximum(squares, self._where_others_are_missing(self.system.topology.rotation, view))
                figure = figure if view.kind is ViewKind.COALITION else Figure.BOUND
            figures = [figure if square else Figure.EXACT for square in squares.tolist()]
            self._exact_of[view] = _Squares(squares, figures)
        return self._exact_of[view]

    def _where_others_are_missing(self, rotation: Rotation, view: View) -> Array:
        """The sum over rounds of the most that each can cost, whoever is missing in it.

        So it is where that is chosen as the run goes on, by what was sent before; not by rows, or by noise of the same
        round. A view of no nodes is taken to hear everybody alone.
        """
        algorithm, n = self.system.algorithm, self.system.n
        deviation = noise_deviation(algorithm.noise, algorithm.sensitivity, self.system.topology.at(0))
        if deviation is None:
            raise Unaccountable(f"{self.system.topology.name}: noise of a round depends on others; leave out least")
        noise = np.array(deviation, dtype=float)
        moved = np.broadcast_to(algorithm.sensitivity, n)[self.victims]
        hiding = np.array([
            [
                rotation.least_noise(round, view.members, victim, noise, sums=view.secure_sum)
                if view.kind is ViewKind.COALITION else noise[victim] ** 2
                for victim in self.victims.tolist()
            ]
            for round in range(self.system.rounds)
        ])  # fmt: skip
        each = np.divide(moved**2, hiding, out=np.full(hiding.shape, np.inf), where=hiding > 0)
        return self.scheme.largest_sum(each)

    def _any_training(self) -> _Squares:
        """The best of: noisy gradients that reach the view, clipped growth, the exact loss where it is closed.

        The exact loss of a closed view is what a change of fixed streams costs: nothing that is proven is below it.
        """
        options: list[_Squares] = []
        open_because, closed, no_noise = self._open_because(self.view), self.view, ""
        try:
            options.append(_Squares.bounds(self._given_noisy_gradients))
        except Unaccountable as refusal:
            no_noise = str(refusal)
        if open_because is not None:
            with suppress(Unaccountable):  # it, too, needs noise that is added to gradients
                options.append(_Squares.bounds(self._clipped_growth()))
        if open_because is not None and not options:
            reasons, closed = [open_because], self._all_messages
            if not self.system.only_gradients and self.view.kind is not ViewKind.EVERYONE:
                open_because = self._open_because(closed)
            if open_because is not None:
                reasons.append(open_because)
                why = dict.fromkeys(reason for reason, _ in reasons)
                raise Unaccountable("; ".join([no_noise, *why, NEEDED_FOR_ANY, open_because[1]]))
        if open_because is None:
            exact = self._exact(closed)
            options.append(exact if closed == self.view else _Squares.bounds(exact.squares))
        return _least(options)

    def _open_because(self, view: View) -> tuple[str, str] | None:
        """Why a view is open, and what to do; None where it is closed."""
        if self.system.only_gradients:
            return self.system.only_gradients, ADD_NOISE
        own = view == self.view
        status, given = closedness(self.system, view, self.observation if own else None), "given all messages, "
        if not status.closed:
            return ("" if own else given) + status.reason, ADD_NOISE if status.decided else TAKE_LESS
        if status.user_level_only and not self._reacts_freely:
            return ("" if own else given) + AT_USER_LEVEL, PROTECT_USERS
        return None

    @cached_property
    def _given_noisy_gradients(self) -> Array:
        reaching = None if self.system.only_gradients else self._reaching
        return loss_given_noisy_gradients(self.system, self.view, self.victims, self.scheme, reaching)

    def _clipped_growth(self) -> Array:
        self._require_messages()
        growth = 2.0 if self.terms.adjacency is Adjacency.USER else UNBOUNDED
        published = self.view.final_models is not FinalModels.NONE
        hearing_more = replace(  # sums and averages are made of what it would hear and see
            self.view, secure_sum=False, final_models=FinalModels.ALL if published else FinalModels.NONE
        )
        rounds = couple(self.system, hearing_more)
        if not may_gain(rounds, len(self.victims), growth):
            raise Unaccountable("clipped growth gives no better figure than the noisy gradients that reach the view")
        return late_cost(rounds, self.victims, self.scheme, growth)

    def _convex_training(self) -> _Squares:
        """The absorption bound."""
        if isinstance(self.system.topology, Rotating):
            raise Unaccountable(f"{self.system.topology.name}: any-training is exact, whoever is missing")
        if self.system.classes > 1:
            raise Unaccountable(
                "coordinates are scaled differently, so no condition on the loss keeps steps from expanding"
            )
        policy = policy_for(self.system, len(self.victims), self.scheme, optimised=self.terms.optimised)
        costs = [
            least_cost(couple(self.system, option), self.victims, self.scheme, policy)
            for option in dict.fromkeys([self.view, replace(self.view, secure_sum=False)])
        ]
        self.policy = policy
        return _Squares.bounds(np.min(costs, axis=0))

    def _as_published(self) -> list[Guarantee]:
        """Every formula of the papers that applies, with a word where it is below the exact loss."""
        from sottovoce.privacy.published_formulas import published

        self._require_messages()
        found = published(self.system, self.view, lipschitz=self.terms.lipschitz, victims=self.victims.tolist())
        if not found:
            raise Unaccountable(f"no paper has a formula for {self.system.algorithm.name} and the view {self.view}")
        return [guarantee for figure in found for guarantee in figure.guarantees]
