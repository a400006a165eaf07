"""Facts about guarantees are types: they decide by identity, and documents are written and read in one place."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

from sottovoce import InputError, account, algorithm, metropolis, trace
from sottovoce.core.final_models import FinalModels
from sottovoce.core.participation import Adjacency, Change, parse_adjacency
from sottovoce.privacy import calibration, views
from sottovoce.privacy.assumptions import Assumption, AssumptionKind
from sottovoce.privacy.calibration import least_noise
from sottovoce.privacy.covering_views import covering_views, lacks_secrets, stand_in_of
from sottovoce.privacy.guarantee import Figure, Guarantee, Kind, PrivacyFigure, TrainingProof
from sottovoce.support.text import from_json, is_number, to_json

PLACES = {
    "reason": "no noise",
    "largest_step": "2/L",
    "changed": "replaced by another",
    "by": " by a factor 2 in mu^2",
    "statistics": "which classes there are",
    "source": "a paper",
    "step": "0.0625",
    "model_step": "2^-40",
    "extra": "0.001 %",
}
RING = metropolis("ring:4")
DECOR, PLAIN = algorithm("decor", sigma=1.0, sigma_pair=1.0), algorithm("dp-d-sgd", sigma=1.0)


@pytest.mark.parametrize("kind", AssumptionKind)
def test_every_assumption_is_read_back_from_its_sentence(kind):
    assumption = kind.of(**PLACES)
    assert "{" not in str(assumption)
    assert Assumption.read(str(assumption)) == assumption


@pytest.mark.parametrize("view", [views.everyone(), views.node(0), views.everyone(secrets_of=(0, 1, 2, 3))])
@pytest.mark.parametrize("built", [DECOR, PLAIN, algorithm("d-psgd")])
def test_a_headline_is_read_as_it_was_written(built, view):
    found = account(trace(built, RING, rounds=3), view, convex=True)
    headline = PrivacyFigure.of(found.headline, 1e-5)
    document = json.loads(json.dumps(headline.document(), allow_nan=False))
    assert PrivacyFigure.read(document) == headline
    assert {key: document[key] for key in found.headline.document(1e-5)} == found.headline.document(1e-5)


def test_a_headline_may_have_no_mu_and_no_limit():
    headline = PrivacyFigure(
        view=views.everyone(), change=Change.ZERO_OUT, victim=None, distance=None, kind=Kind.ANY_TRAINING, mu=None,
        epsilon=math.inf, proven_for_training=TrainingProof.PROVEN, assumptions=(), final_models=FinalModels.AVERAGE,
        figure=Figure.BOUND,
    )  # fmt: skip
    document = json.loads(json.dumps(headline.document(), allow_nan=False))
    assert (document["mu"], document["epsilon"], document["proven_for_training"]) == (None, "inf", True)
    assert PrivacyFigure.read(document) == headline
    assert not headline.covers_final_models


def test_what_counts_as_proven():
    holds = {proof: [proof.holds(convex=convex) for convex in (False, True)] for proof in TrainingProof}
    assert holds == {
        TrainingProof.PROVEN: [True, True],
        TrainingProof.IF_CONVEX: [False, True],
        TrainingProof.NOT_PROVEN: [False, False],
    }
    assert [proof.value for proof in TrainingProof] == [True, "convex", False]
    assert [bool(proof) for proof in TrainingProof] == [True, True, False]


def test_documents_hold_plain_words():
    document = Guarantee(
        0, 1, Kind.FIXED_STREAMS, 1.0, TrainingProof.NOT_PROVEN, (), views.node(1), FinalModels.NONE, Figure.EXACT
    ).document(1e-5)
    assert type(document["kind"]) is str
    assert document["kind"] == "fixed-streams"
    assert type(document["figure"]) is str
    assert document["figure"] == "exact"
    assert parse_adjacency("user") is Adjacency.USER
    with pytest.raises(InputError, match="adjacency 'people'; known: user, record; choose one of them"):
        parse_adjacency("people")


def test_infinite_numbers_in_documents():
    for number in (0.0, 2.5, math.inf):
        written = to_json(number)
        json.dumps(written, allow_nan=False)
        assert from_json(written) == number
        assert is_number(written)
    assert to_json(None) is None
    assert not is_number("many")


def test_who_must_be_covered_where_neighbours_share_secrets():
    everyone, informed = views.everyone(), views.everyone(secrets_of=(0, 1, 2, 3))
    plain, decor = (trace(built, RING, rounds=2) for built in (PLAIN, DECOR))
    assert covering_views(everyone, plain) == (everyone,)
    assert covering_views(everyone, decor) == (everyone, *map(views.node, range(4)))
    assert covering_views(everyone, trace(DECOR, RING, rounds=2501)) == (everyone, informed)
    for place, rounds, each in (
        ("ring:100", 100, True), ("ring:100", 101, False), ("ring:200", 100, False), ("ring:40", 200, False),
        ("star:100", 100, True), ("complete:20", 100, True), ("complete:40", 100, False),
    ):  # fmt: skip
        system = trace(DECOR, metropolis(place), rounds=rounds)
        assert len(covering_views(everyone, system)) == (system.n + 1 if each else 2), (place, rounds)
        assert (stand_in_of(everyone, system) is None) is each
    assert stand_in_of(everyone, trace(PLAIN, metropolis("ring:200"), rounds=100)) is None
    for view in (views.node(0), informed, views.eavesdropper((0, 1)), views.everyone(secrets_of=(0,))):
        assert covering_views(view, decor) == (view,)
    lacking = [everyone, views.eavesdropper((0, 1)), views.everyone(secrets_of=(0,))]
    assert all(lacks_secrets(view, decor) for view in lacking)
    assert not any(lacks_secrets(view, decor) for view in (views.node(0), informed))
    assert not any(lacks_secrets(view, plain) for view in lacking)


@pytest.mark.parametrize("least", [1e-7, 0.3, 1.0, 3.0, 1000.0])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_the_least_noise_is_enough_and_hardly_more(least, tolerance):
    found = least_noise(lambda noise: noise >= least, 1.0, tolerance=tolerance, smallest=1e-9)
    assert least <= found <= least * (1 + 2 * tolerance)


@pytest.mark.parametrize("pair", [0.5, 4.0, 40.0])
@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_a_search_takes_few_accounts_and_finds_the_least_sigma(monkeypatch, pair, epsilon):
    """Noise of which a part does not grow with sigma; 22 accounts and more by bisection alone."""
    tried = []

    def account_counted(system, view, **settings):
        tried.append(system)
        return account(system, view, **settings)

    monkeypatch.setattr(calibration, "account", account_counted)
    built, target = algorithm("decor", sigma=1.0, sigma_pair=pair), calibration.Target(epsilon, 1e-5)
    found = calibration.calibrated(built, RING, "node:0", rounds=3, epsilon=epsilon, delta=1e-5)
    assert len(tried) <= 10
    assert target.met_by(found.account)
    less = trace(calibration.with_sigma(built, found.sigma * (1 - 1e-5)), RING, rounds=3)
    assert not target.met_by(account(less, "node:0"))


def test_a_search_never_returns_a_sigma_that_was_not_seen_to_meet_the_target():
    """Figures that rounding makes uneven: the sigma at which bisection ends fails, and a smaller one is returned."""
    target = calibration.Target(1.0, 1e-5)

    class Uneven:
        def __init__(self, sigma):
            self.headline, self.sigma = SimpleNamespace(proves_nothing=False), sigma
            self.mu = target.mu * (3.0 / sigma if round(sigma * 1e7) % 2 else 2.9 / sigma)

        def epsilon(self, delta):
            return target.epsilon if self.mu <= target.mu else math.inf

    found = calibration.least_sigma(Uneven, DECOR.noise, target)
    assert found.account.sigma == found.sigma
    assert target.met_by(found.account)
