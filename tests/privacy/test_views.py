"""Views, closedness and the view given all noisy gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sottovoce import (
    InputError,
    Unaccountable,
    account,
    algorithm,
    dropout,
    metropolis,
    push,
    random_edges,
    trace,
    uniform,
    views,
)
from sottovoce.core.final_models import FinalModels
from sottovoce.core.participation import parse_participation
from sottovoce.privacy import closedness as closedness_module
from sottovoce.privacy import covering_views
from sottovoce.privacy.closedness import closedness
from sottovoce.privacy.exact import deflation, routes
from sottovoce.privacy.exact.deflation import Entering
from sottovoce.privacy.guarantee import Figure
from sottovoce.privacy.noisy_gradients import loss_given_noisy_gradients
from sottovoce.privacy.observation import observe
from sottovoce.privacy.views import View, ViewKind, coalition, node, parse_view, read_view, with_final_models
from sottovoce.tracing.policy import trace_noisy_gradients
from tests.privacy.losses import dense

EVERY = parse_participation("every")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("everyone", views.everyone()),
        ("node:3", views.node(3)),
        ("coalition:5,3", views.coalition(3, 5)),
        ("eavesdropper:0>1,1>0", views.eavesdropper((0, 1), (1, 0))),
    ],
)
def test_views_by_name(spec, expected):
    assert parse_view(spec) == expected


@pytest.mark.parametrize(
    "spec", ["nobody", "node", "node:", "node:0,1", "everyone:0", "coalition:", "coalition:1,", "eavesdropper:1"]
)
def test_unknown_views(spec):
    with pytest.raises(InputError, match="known: everyone, node:A"):
        parse_view(spec)


@pytest.mark.parametrize("spec", ["node:x", "node:-1", "coalition:0,x", "eavesdropper:0>x"])
def test_nodes_that_no_graph_has(spec):
    with pytest.raises(InputError, match=r"there is no node called '(x|-1)' in this graph; its nodes are numbers"):
        parse_view(spec)


def test_views_by_the_names_of_nodes():
    labels = ["Charite", "Hill", "Mercy"]
    assert parse_view("coalition:Mercy,0", labels=labels) == views.coalition(0, 2)
    assert parse_view("eavesdropper:Hill>Mercy", labels=labels) == views.eavesdropper((1, 2))
    with pytest.raises(InputError, match=r"no node called 'Rest' in this graph; its nodes are: Charite, Hill, Mercy;"):
        parse_view("node:Rest", labels=labels)


@pytest.mark.parametrize("secrets", [(), (1, 3), tuple(range(20))])
def test_views_are_read_as_they_are_written(secrets):
    for view in (views.everyone(secrets_of=secrets), views.coalition(2, 5), views.eavesdropper((0, 1), (2, 1))):
        assert read_view(str(view)) == view


def test_views_must_leave_somebody():
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("path:3"), rounds=2)
    with pytest.raises(InputError, match=r"node 7 in view node:7; nodes are 0..2"):
        observe(system, views.node(7))
    with pytest.raises(InputError, match="at least one node must be left"):
        observe(system, views.coalition(0, 1, 2))
    with pytest.raises(Unaccountable, match="ciphertext"):
        parse_view("eavesdropper:0>1", secure_sum=True)


def test_a_node_hears_its_neighbours_and_knows_itself():
    system = trace(algorithm("dp-d-sgd", sigma=1.0, step_size=1.0), metropolis("path:4"), rounds=1)
    seen = observe(system, views.node(1))
    assert seen.victims.tolist() == [0, 2, 3]
    A, B = seen.dense()
    np.testing.assert_array_equal(A[:, 0], [[-1, 0, 0], [0, -1, 0]])
    np.testing.assert_array_equal(B, [[-1, 0, 0], [0, -1, 0]])


def test_taps_hear_their_edges_only():
    system = trace(algorithm("zip-dl", sigma=1.0), metropolis("path:3"), rounds=1)
    assert observe(system, views.eavesdropper((1, 0))).steps[0].observed.state.shape[0] == 1
    assert observe(system, views.eavesdropper((1, 0), (1, 2))).steps[0].observed.state.shape[0] == 2
    assert observe(system, views.everyone()).steps[0].observed.state.shape[0] == 4
    for edge in ((0, 2), (1, 1)):
        with pytest.raises(InputError, match="no such edge"):
            observe(system, views.eavesdropper(edge))


def test_taps_hear_what_left_its_sender_even_if_nobody_took_it():
    net = dropout("ring:3", rate=0.5, seed=12)
    assert net.at(0).active.tolist() == [True, False, True]
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=1)
    assert account(system, "eavesdropper:0>1").of(0, "fixed-streams").mu == pytest.approx(1.0)


def test_secure_sums_are_weighted_sums():
    net = metropolis("star:4")
    system = trace(algorithm("dp-d-sgd", sigma=1.0, step_size=1.0), net, rounds=1)
    A, _ = observe(system, views.node(0, secure_sum=True)).dense()
    np.testing.assert_allclose(A[:, 0], -net.at(0).weights.toarray()[:1, 1:])


@pytest.mark.parametrize("which", [FinalModels.AVERAGE, FinalModels.ALL])
@pytest.mark.parametrize("name", ["dp-d-sgd", "muffliato-sgd", "zip-dl", "dp2sgd"])
@pytest.mark.parametrize("net", [metropolis("path:4"), dropout("ring:5", rate=0.4, seed=2)], ids=str)
def test_models_are_seen_after_all_that_is_seen_without_them(name, net, which):
    """As in the system that publishes them, whose last messages they are; without them nothing else changes."""
    system = trace(algorithm(name, sigma=1.0), net, rounds=3)
    for view in (views.node(0), views.coalition(1, 2), views.node(1, secure_sum=name != "zip-dl")):
        seeing = replace(view, final_models=which)
        seen = observe(system, seeing)
        of_published, without = observe(system.publishing(which), seeing), observe(system, view)
        for ours, theirs, fewer in zip(seen.dense(), of_published.dense(), without.dense(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
            np.testing.assert_array_equal(ours[: len(fewer)], fewer)
            assert len(ours) - len(fewer) in (1, net.n - len(view.members))


CLOSED = [
    ("dp-d-sgd", metropolis("ring:5"), views.everyone(), {}),
    ("dp-d-sgd", metropolis("star:5"), views.node(0), {}),
    ("dp-d-sgd", metropolis("complete:5"), views.node(3), {}),
    ("muffliato-sgd", metropolis("ring:6"), views.everyone(), {"gossip_steps": 3}),
    ("muffliato-sgd", metropolis("ring:6"), views.everyone(), {"gossip_steps": 3, "chebyshev": True}),
    ("anti-pgd", metropolis("path:4"), views.everyone(), {}),
    ("mf-d-sgd", metropolis("path:4"), views.everyone(), {"correlation": np.tril(np.ones((4, 4))) + np.eye(4)}),
    ("decor", metropolis("ring:5"), views.everyone(), {"sigma_pair": 2.0}),
    ("dp-csgp", push("exponential:6"), views.everyone(), {}),
    ("dp2sgd", metropolis("ring:5"), views.everyone(), {}),
    ("dp-fedavg", uniform("complete:4"), views.everyone(), {}),
]


@pytest.mark.parametrize("case", CLOSED, ids=lambda case: f"{case[0]} on {case[1].name} {case[2]}")
def test_closed_views(case):
    name, net, adversary, settings = case
    status = closedness(trace(algorithm(name, **({"sigma": 1.0} | settings)), net, rounds=4), adversary)
    assert status.closed
    assert not status.user_level_only


def test_zip_dl_is_closed_at_user_level_only():
    status = closedness(trace(algorithm("zip-dl", sigma=1.0), metropolis("ring:6"), rounds=3), views.everyone())
    assert status.closed
    assert status.user_level_only


def test_many_rounds_are_checked_without_holding_all_of_their_noise():
    status = closedness(trace(algorithm("zip-dl", sigma=1.0), metropolis("ring:24"), rounds=120), views.everyone())
    assert (status.closed, status.user_level_only, status.decided) == (True, True, True)


@pytest.mark.parametrize("limit", ["ENTRIES", "MULTIPLICATIONS"])
def test_a_view_that_is_too_large_to_be_checked_is_refused_without_a_word_about_reactions(limit, monkeypatch):
    monkeypatch.setattr(closedness_module, "SMALL", 10)
    assert closedness(trace(algorithm("zip-dl", sigma=1.0), metropolis("ring:6"), rounds=3), views.everyone()).closed
    monkeypatch.setattr(closedness_module, limit, 10)
    system = trace(algorithm("zip-dl", sigma=1.0), metropolis("ring:6"), rounds=3)
    status = closedness(system, views.everyone())
    assert (status.closed, status.decided) == (False, False)
    [refusal] = account(system, kinds=["any-training"]).refusals
    assert "it could not be checked whether nodes react to what the view has not seen: 36 messages" in refusal
    assert refusal.endswith("; take fewer rounds or a smaller graph")
    [refusal] = account(system, "node:0", kinds=["any-training"]).refusals
    assert refusal.count("it could not be checked") == 2


OPEN = [
    ("dp-d-sgd", metropolis("path:4"), views.node(3), {}, "node 0 reacts"),
    ("dp-d-sgd", metropolis("star:5"), views.node(1), {}, "node 0 reacts"),
    ("zip-dl", metropolis("ring:6"), views.node(0), {}, "reacts in round 1 to noise"),
    ("dp-d-sgd", random_edges("ring:6"), views.everyone(), {}, "reacts in round"),
    (
        "dp-d-sgd",
        metropolis("path:3"),
        views.eavesdropper((1, 2)),
        {"sigma": [0.0, 1.0, 0.0]},
        "node 1 reacts in round 1",
    ),
]


@pytest.mark.parametrize("case", OPEN, ids=lambda case: f"{case[0]} on {case[1].name} {case[2]}")
def test_open_views_say_whose_reaction_breaks_them(case):
    name, net, adversary, settings, reason = case
    status = closedness(trace(algorithm(name, **({"sigma": 1.0} | settings)), net, rounds=4), adversary)
    assert not status.closed
    assert reason in status.reason


class Remembering(Entering):
    """The noise of all rounds, none of it forgotten."""

    def __init__(self, observation):
        super().__init__(observation)
        self.turned = False
        self._Z, self._G = observation.sources, len(observation.victims) * observation.gradient_rounds
        self.unknown = deflation.Unknown(*self._nothing(observation.steps[0].observed.state.shape[1]))


@pytest.mark.parametrize(
    ("name", "net", "adversary"),
    [
        ("zip-dl", metropolis("ring:6"), views.everyone()),
        ("zip-dl", metropolis("path:4"), views.node(0)),
        ("dp2sgd", metropolis("grid:2x3"), views.everyone()),
        ("dp-d-sgd", random_edges("ring:6"), views.everyone()),
        ("dp-d-sgd", dropout("star:5", rate=0.4, seed=2), views.coalition(0, 2)),
        ("muffliato-sgd", metropolis("star:5"), views.node(0)),
    ],
)
def test_forgetting_what_was_seen_decides_as_remembering_it_does(monkeypatch, name, net, adversary):
    """Over many rounds: what is left of a state is compared with all that was seen, and with the last round alone."""
    system = trace(algorithm(name, sigma=1.0), net, rounds=25)
    seen = observe(system, adversary)
    found, losses = closedness(system, adversary), deflation.deflated(seen)
    monkeypatch.setattr(closedness_module, "Entering", Remembering)
    monkeypatch.setattr(deflation, "Entering", Remembering)
    assert closedness(system, adversary) == found
    remembered = deflation.deflated(seen)
    np.testing.assert_allclose(losses.losses, remembered.losses, rtol=1e-9, atol=1e-10)
    assert losses[1:] == remembered[1:]


def test_large_views_are_closed_by_their_step_matrices():
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("regular:2000,d=4"), rounds=50)
    assert closedness(system, views.everyone()).closed
    assert not closedness(system, views.node(0)).closed


def released(name, net, adversary, rounds=4, **settings):
    system = trace(algorithm(name, **({"sigma": 1.0} | settings)), net, rounds=rounds)
    return loss_given_noisy_gradients(system, adversary, observe(system, adversary).victims, EVERY)


def test_noisy_gradients_bound_every_topology():
    for net in (metropolis("ring:5"), push("exponential:6")):
        name = "dp-csgp" if "push" in net.name else "dp-d-sgd"
        np.testing.assert_allclose(released(name, net, views.node(0), sigma=2.0), 1.0)
    few = random_edges("ring:5")  # whom nobody hears in the last round keeps that gradient
    weights = few.at(3).weights.toarray()
    speaking = (weights - np.diag(np.diag(weights))).any(axis=0)[1:]
    np.testing.assert_allclose(released("dp-d-sgd", few, views.node(0), sigma=2.0), np.where(speaking, 1.0, 0.75))
    np.testing.assert_allclose(released("dp2sgd", metropolis("ring:5"), views.everyone()), 3.0)
    np.testing.assert_allclose(released("anti-pgd", metropolis("ring:5"), views.node(1)), 1 + 4 + 9 + 16)


def test_absent_nodes_release_nothing():
    net = dropout("ring:6", rate=0.4, seed=5)
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=4)
    there = sum(net.at(t).active.astype(int) for t in range(4))
    np.testing.assert_allclose(loss_given_noisy_gradients(system, views.everyone(), np.arange(6), EVERY), there)


def test_pair_secrets_protect_until_they_are_known():
    ring = metropolis("ring:5")
    outside = released("decor", ring, views.everyone(), rounds=1, sigma_pair=3.0)
    laplacian = 2 * np.eye(5) - ring.graph.adjacency.toarray()
    np.testing.assert_allclose(outside, np.diag(np.linalg.inv(np.eye(5) + 9 * laplacian)))
    inside = released("decor", ring, views.coalition(1, 4), rounds=1, sigma_pair=3.0)
    assert inside[0] == pytest.approx(1.0)  # node 0 shares both of its secrets with the coalition


def test_masks_alone_cover_nothing():
    assert np.isinf(released("rss-nb", metropolis("ring:5"), views.everyone())).all()
    with pytest.raises(Unaccountable, match="nothing is added to gradients"):
        released("zip-dl", metropolis("ring:5"), views.everyone())


def test_compression_does_not_matter_given_noisy_gradients():
    built = algorithm("dp-csgp", sigma=2.0, compression="gsgd:8")
    system = trace_noisy_gradients(built, push("exponential:6"), rounds=8)
    np.testing.assert_allclose(loss_given_noisy_gradients(system, views.everyone(), np.arange(6), EVERY), 2.0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: View(ViewKind.COALITION), InputError, "without members"),
        (views.coalition, InputError, "without members"),
        (lambda: View(ViewKind.EAVESDROPPER), InputError, "without edges"),
        (lambda: View(ViewKind.EAVESDROPPER, edges=((0, 1),), secure_sum=True), Unaccountable, "sees only ciphertext"),
        (lambda: View("listener", members=(0,)), InputError, "view of kind 'listener'"),
    ],
)
def test_a_view_that_would_hear_nothing_is_refused_however_it_is_made(make, error, message):
    """A guarantee against it would be a proven epsilon of 0."""
    with pytest.raises(error, match=message):
        make()


# --- any coalition, and final models ---------------------------------------------------------------------------------


def test_any_coalition_is_the_worst_of_all():
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("path:5"), rounds=3)
    found = account(system, "coalition:any-2", convex=True)
    every = [account(system, coalition(a, b), convex=True) for a in range(5) for b in range(a)]
    assert found.mu == max(one.mu for one in every)
    for guarantee in found.guarantees:
        others = [one for one in every if guarantee.victim not in one.view.members]
        assert guarantee.mu == max(one.of(guarantee.victim, guarantee.kind).mu for one in others)
        assert guarantee.mu == account(system, guarantee.view, convex=True).of(guarantee.victim, guarantee.kind).mu


def test_any_single_node_is_every_node():
    system = trace(algorithm("decor", sigma=1.0, sigma_pair=3.0), metropolis("star:4"), rounds=3)
    found = account(system, "coalition:any-1")
    assert found.mu == max(account(system, node(a)).mu for a in range(4))
    assert found.headline.view == node(0), "the hub shares a secret with everybody"


def test_more_coalitions_than_can_be_asked_are_bounded_by_whoever_knows_everything(monkeypatch):
    system = trace(algorithm("decor", sigma=1.0, sigma_pair=3.0), metropolis("ring:6"), rounds=2)
    exact = account(system, "coalition:any-2")
    monkeypatch.setattr(covering_views, "COALITIONS", 10)
    bound = account(system, "coalition:any-2")
    assert {one.figure for one in (*bound.guarantees, bound.headline)} == {Figure.BOUND}, "of those that it stands for"
    assert bound.mu >= exact.mu * (1 - 1e-9)
    assert str(bound.headline.view) == "everyone with the secrets of 0,1,2,3,4,5"
    assert bound.coverage == covering_views.Coverage(everyone=True, colluders=None)


@pytest.mark.parametrize(
    ("spec", "match"), [("coalition:any-0", "coalitions of 0 nodes"), ("coalition:any-4", "at most 3")]
)
def test_coalitions_of_nobody_or_of_all_are_refused(spec, match):
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:4"), rounds=2)
    with pytest.raises(InputError, match=match):
        account(system, spec)


def test_one_adversary_is_asked_for_where_many_make_no_sense():
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:4"), rounds=2)
    with pytest.raises(InputError, match="this needs one adversary, and the view stands for many; name its nodes"):
        observe(system, parse_view("coalition:any-2"))


@pytest.mark.parametrize("which", ["average", "all"])
@pytest.mark.parametrize("name", ["dp-d-sgd", "dp2sgd", "anti-pgd", "muffliato-sgd"])
def test_every_route_counts_published_models(name, which):
    system = trace(algorithm(name, sigma=1.0), metropolis("path:4"), rounds=4)
    seen = observe(system, with_final_models(node(0), which))
    plain = observe(system, node(0))
    expected = dense(seen)
    assert routes.losses(seen) == pytest.approx(expected, abs=1e-9)
    assert np.trace(expected, axis1=1, axis2=2).sum() > np.trace(dense(plain), axis1=1, axis2=2).sum() + 0.1
