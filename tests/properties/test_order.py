"""The order of figures, for every algorithm: no lower value of what an adversary learns is above any upper bound of one
who learns at least as much.

Lower values are what a change of one sign a round attains, by the pseudo-inverse of the traced system. A longer search:
`pytest -m slow tests/properties`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sottovoce import InputError, SottovoceError, Unaccountable, account, trace
from sottovoce.core.algorithm import sums_over_neighbours
from sottovoce.core.participation import parse_participation
from sottovoce.privacy import views
from sottovoce.privacy.amplification import sampled_epsilon
from sottovoce.privacy.covering_views import hides_in_sums
from sottovoce.privacy.observation import observe
from sottovoce.privacy.views import ViewKind, with_final_models
from tests.cases import cases
from tests.privacy.losses import dense
from tests.properties.test_figures import LONG, MARGIN, QUICK

EVERY_CASE = [case for case in cases() if not case.example.settings.get("compression", "").startswith(("top", "gsgd"))]
SCHEMES = ("every", "1x3", "2x2", "3x1", "shuffle:2")
MODELS = ("none", "average", "all")


def attained(M: np.ndarray, scheme) -> float:
    """The largest loss over patterns of participation, of changes along one line with any signs."""
    most = 0.0
    for pattern in scheme.possible(len(M)):
        part = M[np.ix_(pattern, pattern)]
        signs = np.array(np.meshgrid(*[[1, -1]] * len(part))).reshape(len(part), -1)
        most = max(most, float(np.einsum("ts,tu,us->s", signs, part, signs).max(initial=0.0)))
    return most


def containing(system, view):
    """Adversaries who learn at least as much: they see models or single messages too, or are more, or hear all."""
    more = [with_final_models(view, which) for which in MODELS[MODELS.index(view.final_models.value) :]]
    if view.secure_sum:
        more.append(replace(view, secure_sum=False))
    if view.kind is ViewKind.COALITION and len(view.members) + 1 < system.n:
        others = np.setdiff1d(np.arange(system.n), view.members)
        more.append(replace(view, members=tuple(sorted((*view.members, int(others[-1]))))))
    in_sums = hides_in_sums(system) or sums_over_neighbours(system.algorithm)  # there members know what nobody hears
    if view.kind is not ViewKind.EVERYONE and not in_sums:
        more.append(replace(views.everyone(secrets_of=view.members), final_models=view.final_models))
    return more


def no_lower_value_is_above_an_upper_bound(case, members, tapped, secure_sum, models, spec, rounds):
    try:
        system = trace(case.algorithm, case.topology, rounds=rounds)
        view = views.coalition(*{node % system.n for node in members}) if members else views.everyone()
        edges = [(int(b), int(a)) for a, b in zip(*system.topology.at(0).weights.nonzero(), strict=True) if a != b]
        if tapped and edges:
            view = views.eavesdropper(edges[tapped % len(edges)])
        view = with_final_models(replace(view, secure_sum=secure_sum), models)
        scheme = parse_participation(spec)
        assume(view.members or not sums_over_neighbours(system.algorithm))
        seen = observe(system, view)
        scheme.check(seen.gradient_rounds)
    except (InputError, Unaccountable):
        assume(False)
    least = [attained(M, scheme) * (1 - MARGIN) if np.isfinite(M).all() else np.inf for M in dense(seen)]
    for larger in containing(system, view):
        try:
            found = account(system, larger, participation=scheme, convex=True, covering=False)
        except SottovoceError:
            continue
        for one in found.guarantees:
            if one.victim in seen.victims:
                below = least[int(np.searchsorted(seen.victims, one.victim))]
                assert below <= one.mu**2 + 1e-12, (one, below)


DRAWN = {
    "case": st.sampled_from(EVERY_CASE), "members": st.lists(st.integers(0, 5), max_size=2),
    "tapped": st.sampled_from([0, 0, 1, 2, 5]), "secure_sum": st.sampled_from([False, False, True]),
    "models": st.sampled_from(MODELS), "spec": st.sampled_from(SCHEMES), "rounds": st.integers(1, 5),
}  # fmt: skip


@settings(QUICK, max_examples=40)
@given(**DRAWN)
def test_no_lower_value_is_above_an_upper_bound(**drawn):
    no_lower_value_is_above_an_upper_bound(**drawn)


@settings(QUICK, max_examples=20)
@given(
    case=st.sampled_from([case for case in EVERY_CASE if case.example.name in ("dp-d-sgd", "muffliato-sgd")]),
    share=st.floats(0.01, 0.9), node=st.integers(0, 3), rounds=st.integers(1, 5),
)  # fmt: skip
def test_sampled_figures_of_nodes_are_not_below_one_round_and_not_above_unsampled_ones(case, share, node, rounds):
    """One round of a Poisson batch is known exactly, and more rounds tell no less."""
    system = trace(case.algorithm, case.topology, rounds=rounds)
    view, delta = views.node(node), 1e-4
    one = sampled_epsilon(system.first_rounds(1), view, share=share, delta=delta)
    found = sampled_epsilon(system, view, share=share, delta=delta)
    assert one * (1 - 1e-9) <= found <= account(system).epsilon(delta) * (1 + 1e-9)


@pytest.mark.slow
def test_the_order_of_figures_for_longer():
    settings(LONG, max_examples=3000)(given(**DRAWN)(no_lower_value_is_above_an_upper_bound))()
