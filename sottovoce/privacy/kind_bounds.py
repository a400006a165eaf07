"""Bounds on what each victim of a view can lose: one for each kind of guarantee, with what it assumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.final_models import FinalModels
from sottovoce.core.grid import MessageGrid, message_grid
from sottovoce.core.integer_sums import sum_grid
from sottovoce.core.participation import Participation
from sottovoce.errors import Unaccountable
from sottovoce.privacy.absorption import Coupling, all_step_with_noise, couple, may_couple
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
from sottovoce.privacy.closedness import Closedness, closedness, is_plainly_open
from sottovoce.privacy.convexity import least_weight
from sottovoce.privacy.covering_views import hides_in_sums, lacks_secrets
from sottovoce.privacy.discrete_noise import discrete_factor
from sottovoce.privacy.exact import routes
from sottovoce.privacy.exact.averaging import averaging_loss
from sottovoce.privacy.final_models import covered_final_models
from sottovoce.privacy.guarantee import Figure, Guarantee, Kind, TrainingProof
from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.reactions import reaching_gradients
from sottovoce.privacy.views import View, ViewKind
from sottovoce.tracing.linear_system import LinearSystem

NEAR = 1e-6
"""A figure this close to one that covers rounding is rounded up to it."""


NEEDED_FOR_ANY = "any training needs noise on gradients themselves, or a view that has seen all that nodes react to"

AT_USER_LEVEL = "the view is closed only where a user's data may change in every round"

ADD_NOISE = "use dp-d-sgd, for example"
PROTECT_USERS = "take adjacency user, and participation every"
TAKE_LESS = "take fewer rounds or a smaller graph"

PLAINLY_OPEN = Closedness(False, reason="nodes react in the second round to noise the view has not seen")


class _ClosedView(NamedTuple):
    """A view that is closed; or, of views that are open, why they are, and what to do."""

    view: View | None
    open_because: tuple[str, ...]
    remedy: str


class _Bound(NamedTuple):
    """mu^2 of every victim and what these figures are, whether it is proven for training, and what it assumes."""

    squares: NDArray[np.float64]
    figures: list[Figure]
    proof: TrainingProof
    assumptions: tuple[Assumption, ...]


class _Squares(NamedTuple):
    """mu^2 of every victim, and what these figures are."""

    squares: NDArray[np.float64]
    figures: list[Figure]

    @classmethod
    def bounds(cls, squares: NDArray[np.float64]) -> _Squares:
        """Of the view itself nothing smaller is known."""
        return cls(squares, [Figure.BOUND] * len(squares))


def _least(options: Sequence[_Squares]) -> _Squares:
    """The least of several figures for each victim; of those that are alike one that is no bound."""
    each_OV = np.array([option.squares for option in options])
    squares = each_OV.min(axis=0)
    figures = []
    for victim, least in enumerate(squares.tolist()):
        alike = [
            one.figures[victim]
            for one, square in zip(options, each_OV[:, victim].tolist(), strict=True)
            if square <= (1 + NEAR) * least
        ]
        figures.append(next((one for one in alike if one is not Figure.BOUND), Figure.BOUND))
    return _Squares(squares, figures)


class _Reactions(NamedTuple):
    """Which (gradient round, victim) reach the view, and whether structure alone shows that the view is open."""

    reaching: NDArray[np.bool_]
    plainly_open: bool


def _require_messages(system: LinearSystem) -> None:
    if system.only_gradients:
        raise Unaccountable(system.only_gradients)


def _require_training(system: LinearSystem) -> None:
    if system.algorithm.averaging:
        raise Unaccountable(f"{system.algorithm.name} averages and does not train; its proof is fixed-streams")


class KindBounds:
    """The bounds of one view, kind by kind: what kinds share is computed once."""

    def __init__(self, system: LinearSystem, view: View, observation: Observation, terms: Terms) -> None:
        self.system, self.view, self.observation = system, view, observation
        self.scheme, self.adjacency, self.lipschitz = terms.scheme, terms.adjacency, terms.lipschitz
        self.optimised = terms.optimised
        self.policy: Policy | None = None
        self._exact: dict[View, _Squares] = {}
        self._couplings: dict[View, tuple[Coupling, ...]] = {}

    def check(self, kinds: Sequence[Kind]) -> None:
        """Refuse a search for policies that is too large, before anything is computed."""
        if Kind.CONVEX_TRAINING in kinds and not self.system.only_gradients and may_couple(self.system, self.view):
            check_policy_cost(self.system, len(self.observation.victims), self.scheme, optimised=self.optimised)

    def guarantees(self, kind: Kind) -> list[Guarantee]:
        """The guarantees of one kind for every victim; refused where it does not apply."""
        if kind is Kind.AS_PUBLISHED:
            return self._as_published()
        bounds: dict[Kind, Callable[[], _Bound]] = {
            Kind.ANY_TRAINING: self._any_training,
            Kind.CONVEX_TRAINING: self._convex_training,
            Kind.FIXED_STREAMS: self._fixed_streams,
        }
        found_squares, figures, proof, assumptions = bounds[kind]()
        of_sums = self.view.secure_sum or self.view.final_models is FinalModels.AVERAGE
        by_absorption = kind is Kind.CONVEX_TRAINING and not of_sums
        squares, covered = self._rounded_up(found_squares)
        larger = (squares > (1 + 2 * NEAR) * found_squares).tolist()
        if lacks_secrets(self.view, self.system):
            unknown = AssumptionKind.OUTSIDE_OF_SUMS if hides_in_sums(self.system) else AssumptionKind.NO_SHARED_SECRETS
            assumptions = (*assumptions, unknown.of())
        final_models = covered_final_models(self.system, self.view)
        assumed = {
            is_covered: (
                *assumptions,
                *(() if is_covered else self._about_weights()),
                rounding(self.system, covered=is_covered, by_absorption=by_absorption),
            )
            for is_covered in set(covered.tolist())
        }
        nothing = (*assumptions, AssumptionKind.NOTHING_OBSERVED.of())
        figures = [Figure.BOUND if more else figure for more, figure in zip(larger, figures, strict=True)]
        each = zip(
            self.observation.victims.tolist(), self._distances, np.sqrt(squares).tolist(), covered.tolist(), figures,
            strict=True,
        )  # fmt: skip
        found = []
        for number, (victim, distance, mu, is_covered, figure) in enumerate(each):
            unobserved = mu == 0 and not self._observed[number]
            assumes = nothing if unobserved else assumed[is_covered]
            found.append(Guarantee(victim, distance, kind, mu, proof, assumes, self.view, final_models, figure))
        return found

    def _about_weights(self) -> tuple[Assumption, ...]:
        """What figures of averaging take the weights for, where they depend on these."""
        averaged = averaging_loss(self.observation)
        if averaged is None or (self.view.kind is ViewKind.EVERYONE and not self.view.secure_sum):
            return ()
        return ((AssumptionKind.MEANT_WEIGHTS if averaged.rational else AssumptionKind.STORED_WEIGHTS).of(),)

    @cached_property
    def _distances(self) -> list[int | None]:
        return self.observation.distances()

    def _rounded_up(self, squares: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """mu^2, and for which victims it covers rounding: where it is not below what the noisy gradients tell.

        With exact noise all that is seen is a function of the noisy gradients that reach it, on their grid, in any
        arithmetic.
        Smaller figures count on sums of several nodes' noise, which on grids, and in floating point, tell more.
        """
        if not self.system.algorithm.exact_noise:
            return squares, np.zeros(len(squares), dtype=bool)
        if sums_over_all(self.system.algorithm):
            factor = discrete_factor(sum_grid(self.system.algorithm, self.system.topology.at(0)))
            return squares * factor**2, np.ones(len(squares), dtype=bool)
        messages = message_grid(self.system.algorithm, self.system.topology.at(0))
        if messages is not None:
            return self._on_message_grid(squares, messages)
        enough = self._given_noisy_gradients()
        covered = squares >= (1 - NEAR) * enough
        return np.where(covered, np.maximum(squares, enough), squares), covered

    def _on_message_grid(
        self, squares: NDArray[np.float64], grid: MessageGrid
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """mu^2, and for which victims it covers rounding: where it is not below what all messages together tell.

        The proof gives the adversary all messages as real numbers. It takes a sensitivity that bounds a victim's
        gradients wherever it stands, unless there is only one of them, at a public point.
        """
        once = self.system.algorithm.averaging or self.observation.gradient_rounds == 1
        if not (once or self._reacts_freely()):
            return squares, np.zeros(len(squares), dtype=bool)
        enough = self._exact_losses(replace(self.view, kind=ViewKind.EVERYONE, edges=(), secure_sum=False))
        covered = squares >= (1 - NEAR) * enough
        factor = (1 + grid.extra(self.system.rounds)) ** 2
        return np.where(covered, np.maximum(squares, enough) * factor, squares), covered

    @cached_property
    def _observed(self) -> NDArray[np.bool_]:
        """Which victims' gradients reach the view, directly or through the reactions of others."""
        return np.asarray(self._reactions.reaching.any(axis=0))

    @cached_property
    def _reactions(self) -> _Reactions:
        """All nodes react, those that are not asked about too."""
        whole, victims = self.observation, self.observation.victims
        if len(victims) < self.system.n - len(self.view.members):
            whole = observe(self.system, self.view)
        reaching = reaching_gradients(whole)
        return _Reactions(reaching[:, np.searchsorted(whole.victims, victims)], is_plainly_open(whole, reaching))

    def _exact_losses(self, view: View) -> NDArray[np.float64]:
        """mu^2 of every victim, exact for fixed streams; of each view once."""
        return self._exact_figures(view)[0]

    def _exact_figures(self, view: View) -> _Squares:
        """The same, and what these figures are."""
        if view not in self._exact:
            seen = self.observation
            if view != self.view:
                seen = observe(self.system, view, victims=self.observation.victims.tolist())
            squares = routes.squared(seen, self.scheme)
            figure = routes.figure_of(seen, self.scheme)
            self._exact[view] = _Squares(squares, [figure if square else Figure.EXACT for square in squares.tolist()])
        return self._exact[view]

    def _fixed_streams(self) -> _Bound:
        """The exact loss of fixed streams."""
        _require_messages(self.system)
        if self.system.algorithm.averaging:
            assumed: tuple[AssumptionKind, ...] = (AssumptionKind.BOUNDED_VALUES,)
        else:
            assumed = (AssumptionKind.BOUNDED_GRADIENTS, AssumptionKind.FIXED_STREAMS)
        found = self._exact_figures(self.view)
        return _Bound(*found, TrainingProof.NOT_PROVEN, tuple(kind.of() for kind in assumed))

    def _any_training(self) -> _Bound:
        """The best of: noisy gradients that reach the view, clipped growth, the exact loss where it is closed.

        The exact loss of a closed view is what a change of fixed streams costs: nothing that is proven is below it.
        """
        _require_training(self.system)
        options: list[_Squares] = []
        is_open = bool(self.system.only_gradients) or self._reactions.plainly_open
        closed = None if is_open else self._closed_view([self.view]).view
        no_noise: Unaccountable | None = None
        try:
            options.append(_Squares.bounds(self._given_noisy_gradients()))
        except Unaccountable as refusal:
            no_noise = refusal
        if closed is None:
            with suppress(Unaccountable):  # it, too, needs noise that is added to gradients
                options.append(_Squares.bounds(self._clipped_growth()))
        if closed is None and not options:
            found = self._closed_view([self.view, *self._all_messages])
            if found.view is None:
                raise Unaccountable(
                    "; ".join([str(no_noise), *dict.fromkeys(found.open_because), NEEDED_FOR_ANY, found.remedy])
                )
            closed = found.view
        if closed is not None:
            exact = self._exact_figures(closed)
            options.append(exact if closed == self.view else _Squares.bounds(exact.squares))
        return _Bound(*_least(options), TrainingProof.PROVEN, (AssumptionKind.BOUNDED_GRADIENTS.of(),))

    def _given_noisy_gradients(self) -> NDArray[np.float64]:
        return self._noisy_gradient_losses

    @cached_property
    def _noisy_gradient_losses(self) -> NDArray[np.float64]:
        reaching = None if self.system.only_gradients else self._reactions.reaching
        return loss_given_noisy_gradients(self.system, self.view, self.observation.victims, self.scheme, reaching)

    def _clipped_growth(self) -> NDArray[np.float64]:
        _require_messages(self.system)
        growth = 2.0 if self.adjacency is Adjacency.USER else UNBOUNDED
        published = self.view.final_models is not FinalModels.NONE
        hearing_more = replace(  # sums and averages are made of what it would hear and see
            self.view, secure_sum=False, final_models=FinalModels.ALL if published else FinalModels.NONE
        )
        victims = self.observation.victims
        coupled = self.view.kind is ViewKind.COALITION and self.system.correlation is None
        hopeless = coupled and growth >= UNBOUNDED and all_step_with_noise(self.system)
        if hopeless or not may_gain(rounds := self._coupled(hearing_more), len(victims), growth):
            raise Unaccountable("clipped growth gives no better figure than the noisy gradients that reach the view")
        return late_cost(rounds, victims, self.scheme, growth)

    def _coupled(self, view: View) -> tuple[Coupling, ...]:
        """The rounds as the coupling sees them; of each view once."""
        if view not in self._couplings:
            self._couplings[view] = couple(self.system, view)
        return self._couplings[view]

    @property
    def _all_messages(self) -> list[View]:
        """All messages with what the view knows, if it does not get them anyhow."""
        if self.system.only_gradients or self.view.kind is ViewKind.EVERYONE:
            return []
        return [replace(self.view, kind=ViewKind.EVERYONE, edges=(), secure_sum=False)]

    def _closed_view(self, views: Sequence[View]) -> _ClosedView:
        """The first of these views that is closed; or why none is, and what to do."""
        if self.system.only_gradients:
            return _ClosedView(None, (self.system.only_gradients,), ADD_NOISE)
        reasons, remedy = [], ADD_NOISE
        for view in views:
            own = view == self.view
            if own and self._reactions.plainly_open:
                status = PLAINLY_OPEN
            else:
                status = closedness(self.system, view, self.observation if own else None)
            at_user_level = status.closed and status.user_level_only and not self._reacts_freely()
            if status.closed and not at_user_level:
                return _ClosedView(view, (), "")
            reasons.append(
                f"{'' if own else 'given all messages, '}{AT_USER_LEVEL if at_user_level else status.reason}"
            )
            remedy = PROTECT_USERS if at_user_level else ADD_NOISE if status.decided else TAKE_LESS
        return _ClosedView(None, tuple(reasons), remedy)

    def _reacts_freely(self) -> bool:
        """Whether Delta bounds the difference of a victim's gradients in every round, whatever it reacts to.

        A victim that reacts to its own past changes in rounds in which its changed data takes no part, too, so that
        only the figure for all rounds covers it.
        """
        return self.adjacency is Adjacency.USER and self.scheme == Participation()

    def _convex_training(self) -> _Bound:
        """The absorption bound."""
        _require_training(self.system)
        _require_messages(self.system)
        if self.system.classes > 1:
            raise Unaccountable(
                "coordinates are scaled differently, so no condition on the loss keeps steps from expanding"
            )
        views = dict.fromkeys([self.view, replace(self.view, secure_sum=False)])
        victims = self.observation.victims
        policy = policy_for(self.system, len(victims), self.scheme, optimised=self.optimised)
        costs = [least_cost(self._coupled(option), victims, self.scheme, policy) for option in views]
        weight = least_weight(self.system)
        largest_step = "2/L" if weight >= 1 else f"{2 * weight:.6g}/L (2 w/L with the least push-sum weight w)"
        assumptions = (
            AssumptionKind.BOUNDED_GRADIENTS.of(),
            AssumptionKind.NON_EXPANSIVE_STEPS.of(largest_step=largest_step),
        )
        self.policy = policy
        return _Bound(*_Squares.bounds(np.min(costs, axis=0)), TrainingProof.IF_CONVEX, assumptions)

    def _as_published(self) -> list[Guarantee]:
        """Every formula of the papers that applies, with a word where it is below the exact loss."""
        from sottovoce.privacy.published_formulas import published

        _require_messages(self.system)
        found = published(self.system, self.view, lipschitz=self.lipschitz, victims=self.observation.victims.tolist())
        if not found:
            raise Unaccountable(f"no paper has a formula for {self.system.algorithm.name} and the view {self.view}")
        return [guarantee for figure in found for guarantee in figure.guarantees]


class Terms(NamedTuple):
    """What may change, in which rounds it shows, what is known of local steps, and how far policies are searched."""

    adjacency: Adjacency
    scheme: Participation
    convex: bool = False
    lipschitz: float | None = None
    optimised: bool = False
