"""Claims of others: refuted only by exact figures and lower bounds, about runs and about settings without a run."""

from __future__ import annotations

import json
import math
import re
import shutil
import tomllib

import numpy as np
import pytest
from scipy.special import ndtr

from sottovoce import InputError
from sottovoce.auditing.claim_checks import epsilon_at
from sottovoce.auditing.given_settings import _of_signs, given_settings, mechanism
from sottovoce.auditing.lower_bound import audit_scores
from sottovoce.auditing.outside_claims import LowerBound, Outcome, OutsideClaim, epsilon_at_least, judged
from sottovoce.privacy.amplification import epsilon_of_batches

SETTINGS = """
name = "paper"
noise_key = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
data = {rows = 24}
topology = {graph = "ring:4"}
training = {rounds = 4, batch = "cycle:2x2", clip = "per-example", bound = 1.0}
algorithm = {sigma = 1.0, step_size = 0.5}
metrics = {every = 2, test_rows = 20}
about = {paper = "A & B, 2025", claim = "at most 0.1"}
"""


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained(tomllib.loads(SETTINGS)), tmp_path / "paper")


def answer(sotto, line):
    code, out, _ = sotto(f"{line} --json")
    return code, json.loads(out)["claim"]


def test_a_claim_about_a_run_is_refuted_proven_or_open(sotto, run):
    line = f"audit {run} --runs 0 --repetitions 500 --no-rerun --claim"
    exact = math.sqrt(2)
    code, claim = answer(sotto, f"{line} 0.1")
    assert (code, claim["outcome"], claim["least"]["confidence"]) == (4, "refuted", None)
    delta = 1e-5
    least = claim["least"]["epsilon"]
    assert ndtr(exact / 2 - least / exact) - math.exp(least) * ndtr(-exact / 2 - least / exact) >= delta
    assert claim["most"] == pytest.approx(least, rel=1e-3)
    assert answer(sotto, f"{line} {claim['most'] * 1.01}")[0] == 0
    assert answer(sotto, f"{line} {claim['most'] * 1.01}")[1]["outcome"] == "proven"
    code, out, _ = sotto(f"{line} 0.1")
    assert (code, out.startswith("REFUTED: at least ")) == (4, True)
    page = (run / "claim.html").read_text()
    assert page.index("REFUTED") < page.index("What is claimed")
    assert "A &amp; B, 2025" in page
    assert f"sotto audit {run} --claim 0.1" in page
    assert re.search("<th>noise</th><td>sigma 1: ", page), "an editor sees what protects"
    assert json.loads((run / "audit.json").read_text())["claim"]["outcome"] == "refuted"


def test_only_bounds_about_the_claim_count(sotto, run):
    line = f"audit {run} --runs 0 --repetitions 500 --no-rerun --claim 0.1"
    record, user = (answer(sotto, f"{line} --adjacency {word}")[1] for word in ("record", "user"))
    assert (record["outcome"], user["outcome"], user["most"]) == ("refuted", "refuted", None)
    assert answer(sotto, f"{line} --change zero-out")[1]["outcome"] == "not proven here"
    everyone, far = (answer(sotto, f"{line} --view {view}")[1]["least"] for view in ("everyone", "node:3"))
    assert everyone is not None
    assert far is None or far["epsilon"] <= everyone["epsilon"]
    loose = answer(sotto, f"{line} --delta 0.9")[1]
    assert loose["delta"] == 0.9
    assert loose["outcome"] != "refuted"


def test_batches_from_a_secret_key_are_refuted_by_sampling_alone(sotto, trained, tmp_path):
    document = tomllib.loads(SETTINGS.replace("cycle:2x2", "poisson:0.25"))
    folder = shutil.copytree(trained(document), tmp_path / "sampled")
    line = f"audit {folder} --runs 0 --repetitions 500 --no-rerun --claim"
    _, claim = answer(sotto, f"{line} 0.1 --change zero-out")
    assert claim["least"]["how"].startswith("attained by a record")
    assert 0.95 * claim["most"] < claim["least"]["epsilon"] <= claim["most"]
    assert answer(sotto, f"{line} {claim['most']} --change zero-out")[1]["outcome"] == "proven"


def test_a_folder_that_contradicts_itself_is_that_first(sotto, run):
    text = (run / "result.json").read_text()
    (run / "result.json").write_text(text.replace('"seed": 0', '"seed": 3'))
    assert sotto(f"audit {run} --runs 0 --repetitions 500 --no-rerun --claim 0.1")[0] == 1


def test_an_upper_bound_refutes_nothing():
    claim = OutsideClaim(epsilon=1.0, delta=1e-5, adjacency="record", view="everyone")
    assert judged(claim, [], 50.0).outcome is Outcome.OPEN
    assert judged(claim, [LowerBound(1.0, "x")], 50.0).outcome is Outcome.OPEN
    assert judged(claim, [LowerBound(0.2, "x"), LowerBound(1.1, "y", 0.999)], 50.0).outcome is Outcome.REFUTED
    assert judged(claim, [], 1.0).outcome is Outcome.PROVEN
    for epsilon in (-1.0, math.nan):
        with pytest.raises(InputError):
            OutsideClaim(epsilon=epsilon, delta=1e-5, adjacency="record", view="everyone")


def test_the_same_counts_bound_epsilon_at_every_delta():
    rng = np.random.default_rng(0)
    without, there = rng.standard_normal(2000), 2 + rng.standard_normal(2000)
    for delta in (1e-5, 0.01, 0.2):
        wanted = audit_scores(without, there, threshold=1.0, delta=delta, confidence=0.99)
        assert epsilon_at(audit_scores(without, there, threshold=1.0, confidence=0.99), delta) == wanted.epsilon


# --- without a run ---------------------------------------------------------------------------------------------------

CENTRAL = "clip={},sigma={},sigma-unit={},noise-on={},rounds=1,batch=full,records=50,adjacency={}"

MULTIPLIERS = {
    (2.0, 3.0, "clip", "sum", "add-remove"): 3.0,
    (2.0, 3.0, "clip", "sum", "replace"): 1.5,
    (2.0, 3.0, "sensitivity", "sum", "replace"): 3.0,
    (2.0, 3.0, "absolute", "sum", "add-remove"): 1.5,
    (2.0, 3.0, "absolute", "mean", "add-remove"): 75.0,
    (2.0, 3.0, "clip", "mean", "replace"): 75.0,
    (2.0, 3.0, "sensitivity", "mean", "replace"): 3.0,
}


@pytest.mark.parametrize("given", MULTIPLIERS)
def test_units_of_sigma_decide_the_noise_multiplier(given):
    assert given_settings(CENTRAL.format(*given)).noise_multiplier == pytest.approx(MULTIPLIERS[given])


def test_a_full_batch_has_the_exact_figure_of_the_gaussian_mechanism():
    least, most = given_settings(CENTRAL.format(1, 0.7, "clip", "sum", "add-remove")).epsilon(1e-5)
    for epsilon, sign in ((least, 1), (most, -1)):
        delta = ndtr(0.5 / 0.7 - epsilon * 0.7) - math.exp(epsilon) * ndtr(-0.5 / 0.7 - epsilon * 0.7)
        assert sign * (delta - 1e-5) >= -1e-13
    assert least == pytest.approx(most, rel=1e-8)


def test_the_lower_bound_of_many_rounds_is_just_below_that_of_another_library():
    from dp_accounting.pld import privacy_loss_distribution

    for noise, share, rounds, delta in ((1.1, 0.02, 200, 1e-5), (0.6, 0.3, 20, 1e-6)):
        one = privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=share, value_discretization_interval=1e-4
        )
        other = one.self_compose(rounds).get_epsilon_for_delta(delta)
        least = epsilon_at_least(noise=noise, share=share, rounds=rounds, delta=delta)
        assert other - 0.015 < least < other


@pytest.mark.parametrize("rounds", [1, 9])
def test_without_chance_the_lower_bound_is_just_below_the_gaussian_one(rounds):
    least = epsilon_at_least(noise=2.0, share=1.0, rounds=rounds, delta=1e-5)
    mu = math.sqrt(rounds) / 2
    delta = ndtr(mu / 2 - least / mu) - math.exp(least) * ndtr(-mu / 2 - least / mu)
    assert 1e-5 <= delta < 1.2e-5


def by_quadrature(noise, share, epsilon):
    """delta of one Poisson batch, both directions, by a sum over a fine grid."""
    x = np.linspace(-12 * noise, 1 + 12 * noise, 400_001)
    zero, one = (np.exp(-((x - at) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi)) for at in (0.0, 1.0))
    mixed, step = (1 - share) * zero + share * one, x[1] - x[0]
    pairs = ((mixed, zero), (zero, mixed))
    return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * step) for p, q in pairs)


@pytest.mark.parametrize(("noise", "share"), [(1.0, 0.1), (0.7, 0.5), (3.0, 0.9)])
def test_sampled_batches_lie_between_both_bounds(noise, share):
    least = epsilon_at_least(noise=noise, share=share, rounds=1, delta=1e-5)
    most = epsilon_of_batches(noise=noise, share=share, rounds=1, delta=1e-5)
    assert by_quadrature(noise, share, least) >= 1e-5 * (1 - 1e-6)
    assert by_quadrature(noise, share, most) <= 1e-5 * (1 + 1e-6)
    assert 0.985 * most <= least <= most


@pytest.mark.parametrize("rounds", [10, 300])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_many_rounds_keep_both_bounds_in_order(rounds, adjacency):
    text = "clip=1,sigma=2,sigma-unit=clip,noise-on=sum,batch=30,records=300"
    least, most = given_settings(f"{text},rounds={rounds},adjacency={adjacency}").epsilon(1e-5)
    assert 0 < least <= most


def test_settings_and_their_claim_are_answered(sotto, tmp_path):
    line = f"audit --settings {CENTRAL.format(1, 1, 'clip', 'sum', 'add-remove')} --out {tmp_path}/page.html --claim"
    code, out, _ = sotto(f"{line} 1")
    assert (code, out.startswith("REFUTED: at least 4.37")) == (4, True)
    assert "in units of the clipping norm" in out
    assert "REFUTED" in (tmp_path / "page.html").read_text()
    assert sotto(f"{line} 5")[0] == 0


WRONG = (
    "clip=1", "clip=1,clip=2", "x", "", CENTRAL.format(1, "nan", "clip", "sum", "replace"),
    CENTRAL.format(0, 1, "clip", "sum", "replace"), CENTRAL.format(1, 1, "C", "sum", "replace"),
    CENTRAL.format(1, 1, "clip", "both", "replace"), CENTRAL.format(1, 1, "clip", "sum", "record"),
    CENTRAL.format(1, 1, "clip", "sum", "replace").replace("full", "51"),
    CENTRAL.format(1, 1, "clip", "sum", "replace").replace("sigma-unit=clip,", ""),
)  # fmt: skip


@pytest.mark.parametrize("size", ["1e300", "1e-300", "1e51"])
def test_sizes_whose_squares_are_no_numbers_are_refused_where_they_enter(size, sotto):
    for text in (
        CENTRAL.format(size, 1, "absolute", "mean", "replace"),
        CENTRAL.format(1, size, "clip", "sum", "replace"),
    ):
        code, out, err = sotto("audit --settings", text, "--claim", "1")
        assert (code, out, err.count("\n"), "between" in err) == (2, "", 1, True), err


@pytest.mark.parametrize("sigma", [1e-50, 1e-8, 1e50])
def test_extreme_noise_is_accounted_for_in_numbers(sigma):
    found = mechanism(CENTRAL.format(1, sigma, "clip", "sum", "add-remove"), None).epsilon(1e-5)
    assert 0 <= found.least <= found.most
    assert found.least < math.inf
    assert found.least > 1e15 or sigma > 1


@pytest.mark.parametrize("text", WRONG)
def test_wrong_settings_are_refused(text, sotto):
    code, _, err = sotto("audit --settings", text, "--claim", "1")
    assert (code, err.count("\n")) == (2, 1), err


def test_a_run_or_settings():
    with pytest.raises(InputError):
        mechanism("clip=1", "keras")


def test_one_of_a_run_and_settings_is_audited(sotto, run):
    assert sotto("audit")[0] == 2
    assert sotto(f"audit {run} --settings clip=1")[0] == 2
    assert sotto(f"audit {run} --preset opacus")[0] == 2


# --- presets ---------------------------------------------------------------------------------------------------------


def test_flower_promises_its_epsilon_for_one_round_and_a_sensitivity_that_fits():
    text = "clipping_norm=1,sensitivity={},epsilon=1,delta=1e-5,rounds={}"
    fitting = mechanism(text.format(2, 1), "flower")
    assert fitting.stated_epsilon == 1
    assert fitting.epsilon(1e-5).most < 1
    assert mechanism(text.format(1, 1), "flower").epsilon(1e-5).least > 1
    assert mechanism(text.format(2, 50), "flower").epsilon(1e-5).least > 5
    deviation = 2 * math.sqrt(2 * math.log(1.25e5))
    assert fitting.noise_multiplier == pytest.approx(deviation / 2)
    assert mechanism(text.format(0, 1), "flower").epsilon(1e-5).least == math.inf


def test_opacus_is_noise_on_the_sum_in_units_of_the_clipping_norm():
    found = mechanism("noise_multiplier=1.1,max_grad_norm=0.5,rounds=10,batch=64,records=640", "opacus")
    assert (found.noise_multiplier, found.share, found.adjacency) == (pytest.approx(1.1), 0.1, "add-remove")


ROOT = math.sqrt(2 * math.log(1.25e5))
AT_LIBRARYS = {
    "clipping_norm=1,sensitivity=1,epsilon=1,delta=1e-5,rounds=1": ("flower", ROOT / 2, 1, 1.0),
    "clipping_norm=3,sensitivity=2,epsilon=0.5,delta=1e-5,rounds=50": ("flower", 2 * ROOT / 0.5 / 6, 50, 1.0),
    "noise_multiplier=1.1,max_grad_norm=2,rounds=100,batch=100,records=1050": ("opacus", 1.1, 100, 1 / 11),
    "noise_multiplier=1.1,max_grad_norm=2,rounds=100,batch=100,records=1050,drop_last=true": (
        "opacus", 1.1, 100, 1 / 10,
    ),
    "noise_multiplier=0.8,max_grad_norm=1,rounds=3,batch=full,records=7": ("opacus", 0.8, 3, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("text", AT_LIBRARYS)
def test_presets_enclose_the_figure_of_another_library(text):
    from dp_accounting.pld import privacy_loss_distribution

    preset, multiplier, rounds, share = AT_LIBRARYS[text]
    one = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=share, value_discretization_interval=1e-4
    )
    epsilon = one.self_compose(rounds).get_epsilon_for_delta(1e-5)
    least, most = mechanism(text, preset).epsilon(1e-5)
    assert least <= epsilon * (1 + 1e-4)
    assert most >= epsilon * (1 - 2e-3)  # the library rounds up, and its steps add 1e-4 a round
    assert most - least < 0.02 * most


def test_signs_by_counting_every_outcome():
    e, count = 0.8, 5
    shares = {e: 0.5, -e: math.exp(-e) / 2, 0.0: 0.5 - math.exp(-e) / 2}
    outcomes = {0.0: 1.0}
    for _ in range(count):
        added = {}
        for total, chance in outcomes.items():
            for loss, share in shares.items():
                key = round(total + loss, 9)
                added[key] = added.get(key, 0.0) + chance * share
        outcomes = added
    least = _of_signs(e, count, 0.01)
    delta = sum(chance * max(0.0, 1 - math.exp(least - loss)) for loss, chance in outcomes.items())
    assert 0.01 <= delta <= 0.0101


def test_nvflare_filters_are_read_from_their_configuration(sotto, tmp_path):
    filters = [
        {"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy", "args": {"fraction": 0.5, "replace": False}}
    ]
    place = tmp_path / "config_fed_client.json"
    place.write_text(json.dumps({"task_result_filters": [{"tasks": ["train"], "filters": filters}]}))
    found = mechanism(f"config={place},parameters=1000,rounds=1", "nvflare")
    assert (found.kept, found.stated_epsilon, found.noise_var) == (500, 0.1, 0.1)
    least, most = found.epsilon(1e-5)
    assert 0.1 < least < 500 * 0.1
    assert most == math.inf
    drawn = mechanism("parameters=1000,rounds=1,fraction=0.5", "nvflare")
    assert 0.1 < drawn.epsilon(1e-5).least < least
    assert sotto(f"audit --preset nvflare --settings config={place},parameters=1000,rounds=1")[0] == 4
    bare = mechanism("filter=PercentilePrivacy,parameters=10,rounds=1", "nvflare")
    assert bare.epsilon(1e-5).least == math.inf
    place.write_text("{}")
    with pytest.raises(InputError):
        mechanism(f"config={place},parameters=10,rounds=1", "nvflare")
