"""Secret noise: keys that are made once and erased, streams of AES-256, and noise of the right size from both sides."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from sottovoce import InputError, NoiseKey, SecretSource, SottovoceError, algorithm, iterate_rounds, metropolis, train
from sottovoce.core.aes_stream import AesStream
from sottovoce.core.correlation import Triangular
from sottovoce.core.grid import noise_on_grid, with_exact_noise
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.random_streams import StreamName
from sottovoce.learning.batches import parse_batches
from sottovoce.tracing.tracer import trace

BAND = Triangular(np.eye(4) + 0.5 * np.eye(4, k=-1) - 0.3 * np.eye(4, k=-2))


@pytest.fixture(autouse=True)
def bytes_of_the_system(monkeypatch):
    """Bytes that are the same in every run of a test, so that statistics are; no two of them are alike."""
    count = itertools.count()

    def urandom(size):
        return hashlib.shake_256(next(count).to_bytes(8, "big")).digest(size)

    monkeypatch.setattr("sottovoce.core.secret_source.urandom", urandom)


# --- streams -------------------------------------------------------------------------------------------------------


def test_a_stream_is_what_aes_makes_of_counters():
    """FIPS 197, appendix C.3, with its plaintext as level and counter: the two last of the counter's four words."""
    stream = AesStream(bytes(range(32)))
    level, block = 0x0011223344556677, 0x8899AABBCCDDEEFF
    words = stream.words_at(np.array([block // 2 + 1], dtype=np.uint64), level)
    assert words[0, 2:].astype("<u8").tobytes().hex() == "8ea2b7ca516745bfeafc49904b496089"


def test_words_anywhere_are_those_of_the_stream():
    key = bytes(range(32))
    words = AesStream(key).words(400).reshape(100, 4)
    counters = np.array([1, 57, 100], dtype=np.uint64)
    np.testing.assert_array_equal(AesStream(key).words_at(counters, 0), words[[0, 56, 99]])
    deeper = AesStream(key).consecutive(56, 3, 5)
    np.testing.assert_array_equal(AesStream(key).words_at(np.array([57, 58, 59], dtype=np.uint64), 5), deeper)
    one_by_one = AesStream(key)
    np.testing.assert_array_equal(np.concatenate([one_by_one.words(7), one_by_one.words(9)]), words.ravel()[:16])


def test_a_key_is_the_hkdf_of_fresh_bytes_the_members_secret_and_the_place(monkeypatch):
    """RFC 5869, written out with HMAC."""
    monkeypatch.setattr("sottovoce.core.secret_source.urandom", lambda size: b"f" * size)
    source = SecretSource(secret=b"mine", context=b"agreement 7")
    extracted = hmac.digest(b"mine", b"f" * 32, "sha256")
    info = (11).to_bytes(8, "big") + b"agreement 7" + b"node|3|5|2"
    key = hmac.digest(extracted, info + b"\x01", "sha256")
    np.testing.assert_array_equal(source.stream("node", [3], 5, 2).words(4), AesStream(key).words(4))


# --- places --------------------------------------------------------------------------------------------------------


def first_words(source, *name):
    return source.stream(*name).words(2).tolist()


def test_a_place_keeps_its_stream_until_it_is_erased_and_is_then_refused():
    source = SecretSource()
    places = [("node", [0], 3), ("node", [1], 3), ("node", [0], 4), ("node", [0], 3, 1), ("edge", [0], 3)]
    before = [first_words(source, *place) for place in places]
    assert len(set(map(tuple, before))) == len(places)
    assert before == [first_words(source, *place) for place in places]
    names = [StreamName("node", (node,), 3, 0) for node in (0, 1)]
    at_once = source.words_at(names, np.array([1, 0]), np.ones(2, dtype=np.uint64), 0)
    assert at_once[:, :2].tolist() == [before[1], before[0]]
    source.erase(3)
    for place in places[:2] + places[3:]:
        with pytest.raises(SottovoceError, match="the secret noise of round 3 was erased after use"):
            source.stream(*place)
    assert first_words(source, *places[2]) == before[2]


def test_two_sources_have_nothing_in_common_but_what_pairs_share():
    shared = {(0, 1): bytes(32), (1, 2): b"s" * 32}
    one, other = (SecretSource(pair_secrets=shared, context=b"run") for _ in range(2))
    assert first_words(one, "pair", [1, 2], 6) == first_words(other, "pair", [1, 2], 6)
    backwards = SecretSource(pair_secrets={(2, 1): b"s" * 32}, context=b"run")
    assert first_words(one, "pair", [1, 2], 6) == first_words(backwards, "pair", [2, 1], 6)
    assert first_words(one, "pair", [1, 2], 6) != first_words(one, "pair", [1, 2], 7)
    assert first_words(one, "pair", [0, 1], 6) != first_words(one, "pair", [1, 2], 6)
    assert first_words(one, "node", [1], 6) != first_words(other, "node", [1], 6)
    assert first_words(one, "pair", [1, 2], 6) != first_words(
        SecretSource(pair_secrets=shared, context=b"other"), "pair", [1, 2], 6
    )
    assert first_words(SecretSource(), "pair", [1, 2], 6) != first_words(SecretSource(), "pair", [1, 2], 6)


def test_pairs_without_a_secret_and_short_secrets_are_refused():
    with pytest.raises(InputError, match="no secret of nodes 0 and 2; these nodes share noise"):
        SecretSource(pair_secrets={}).stream("pair", [2, 0], 0)
    with pytest.raises(InputError, match=r"the secret of nodes \(0, 1\); it has 32 bytes"):
        SecretSource(pair_secrets={(0, 1): b"short"})


def test_nothing_is_shown():
    assert repr(SecretSource(secret=b"mine")) == "SecretSource(secret)"


def test_both_ends_of_a_pair_draw_noise_that_cancels():
    """Two members, each with a source of its own and their secret: the mean of what they release has no pair noise."""
    net = metropolis("path:2")
    built = with_exact_noise(algorithm("decor", sigma=0.01, sigma_pair=100.0), net)
    noise, gradient = noise_on_grid(built, net.at(0)), np.zeros((2, 500), dtype=np.float32)
    members = [SecretSource(pair_secrets={(0, 1): b"k" * 32}) for _ in range(2)]
    released = [NoiseFeed(0, members[u], None, gradient).released(gradient, noise, 0)[u] for u in range(2)]
    assert np.std(released[0]) > 90
    assert np.std(released[0] + released[1]) < 0.05


# --- noise ---------------------------------------------------------------------------------------------------------

NOISES = {
    "own": algorithm("dp-d-sgd", sigma=1.5),
    "shared by pairs": algorithm("decor", sigma=0.7, sigma_pair=2.0),
    "on messages": algorithm("zip-dl", sigma=1.0),
    "differences": algorithm("anti-pgd", sigma=1.5),
    "correlated": algorithm("mf-d-sgd", sigma=1.5, correlation=BAND),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "exact"), [*((name, "auto") for name in NOISES), ("differences", True), ("correlated", True)]
)
def test_messages_have_the_covariance_that_is_accounted_for(name, exact, dtype):
    """What 4 nodes say in 4 rounds of zero gradients, against `B B'`: accepted, and not at 0.9 or 1.1 of the noise."""
    D, rounds, net = 6000, 4, metropolis("ring:4")
    built = with_exact_noise(NOISES[name], net, exact)
    _, B, labels = trace(built, net, rounds=rounds).dense()
    x0, said = np.zeros((4, D), dtype=dtype), []
    played = iterate_rounds(built, net, x0, lambda t, x: np.zeros_like(x), rounds=rounds, noise_key=SecretSource())
    for one in played:
        said.append(one.steps[0].sent_messages().rows)
    order = np.flatnonzero(np.linalg.norm(B, axis=1) > 1e-9)
    found, expected = np.concatenate(said).astype(float)[order], (B @ B.T)[np.ix_(order, order)]
    assert len(B) == len(labels.round) == sum(map(len, said))
    sizes = np.sqrt(np.diag(expected))
    apart = np.abs(found @ found.T / D - expected) / np.outer(sizes, sizes)
    assert apart.max() < 6 / np.sqrt(D)
    for size in (0.9, 1.1):
        assert np.abs(size**2 * (found**2).mean(axis=1) / sizes**2 - 1).min() > 6 / np.sqrt(D)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_few_and_many_gaussians_have_gaussian_shape(dtype):
    for size, repeats in ((50, 400), (20_000, 1)):
        x0 = np.zeros((1, size), dtype=dtype)
        feed = NoiseFeed(0, SecretSource(), None, x0)
        (term,) = algorithm("dp-d-sgd", sigma=1.0).noise.local(metropolis("path:1").at(0))
        drawn = np.concatenate([feed.noise(term.sources, term.matrix, t, 0).ravel() for t in range(repeats)])
        assert stats.kstest(drawn.astype(float), "norm").pvalue > 1e-6
        assert stats.kstest(1.1 * drawn.astype(float), "norm").pvalue < 1e-6
        assert stats.kstest(0.9 * drawn.astype(float), "norm").pvalue < 1e-6


def test_numbers_that_take_more_words_than_expected_are_the_same_too(monkeypatch):
    usual, scarce = np.empty(200), np.empty(200)
    AesStream(bytes(32)).gaussians_(usual)
    monkeypatch.setattr("sottovoce.core.noise_sources._tries", lambda size: 1 + size * 13 // 20)
    AesStream(bytes(32)).gaussians_(scarce)
    np.testing.assert_array_equal(usual, scarce)


@pytest.mark.parametrize("D", [100_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_what_is_released_is_a_function_of_the_real_sum(D):
    """With the same noise, gradients that differ by d steps release multiples that differ by d, rounded down or up."""
    net = metropolis("path:2")
    built = with_exact_noise(algorithm("dp-d-sgd", sigma=1.0, sensitivity=0.3), net)
    noise, rng, source = noise_on_grid(built, net.at(0)), np.random.default_rng(0), SecretSource()
    one = rng.uniform(-1, 1, (2, D)).astype(np.float32)
    other = (one + noise.step * rng.choice([0.0, 1.0, -3.0, 0.25, 1e-4, 2.7], (2, D))).astype(np.float32)
    apart = (other.astype(float) - one) / noise.step
    released = [NoiseFeed(0, source, None, one).released(one, noise, 0) for one in (one, other)]
    moved = (released[1].astype(float) - released[0]) / noise.step
    assert ((moved == np.floor(apart)) | (moved == np.ceil(apart))).all()
    assert len(np.unique(moved)) > 4


# --- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["poisson:0.3", "fixed:30"])
def test_rows_of_a_batch_are_drawn_once_and_can_be_recorded_before_the_gradient(spec):
    source = SecretSource()
    plan = parse_batches(spec, [100, 100], source)
    recorded = [[plan.rows_of(node, t).tolist() for node in (0, 1)] for t in range(300)]
    source.erase(299)
    assert recorded == [[plan.rows_of(node, t).tolist() for node in (0, 1)] for t in range(300)]
    batch = plan.draw(7)
    assert [rows[there].tolist() for rows, there in zip(batch.rows, batch.present, strict=True)] == recorded[7]
    assert recorded[0] != [parse_batches(spec, [100, 100], SecretSource()).rows_of(node, 0).tolist() for node in (0, 1)]
    times = np.bincount(np.concatenate([rows for both in recorded for rows in both]), minlength=200)
    assert np.abs(times.mean() / 300 - 0.3) < 0.01
    assert stats.chi2.cdf(((times - 90) ** 2 / 63).sum(), 200) < 1 - 1e-6
    assert all(len(set(rows)) == len(rows) for both in recorded for rows in both)


# --- what cannot be ------------------------------------------------------------------------------------------------


def test_noise_that_goes_on_from_earlier_rounds_is_not_taken_up_again():
    net, x0 = metropolis("ring:4"), np.zeros((4, 2))

    def played(name, **more):
        built = algorithm(name, sigma=1.0)
        return list(iterate_rounds(built, net, x0, lambda t, x: 0 * x, rounds=3, noise_key=SecretSource(), **more))

    for name in ("dp-d-sgd", "anti-pgd"):
        state = played(name)[0].loop_state
        if name == "dp-d-sgd":
            assert len(played(name, after=(1, state))) == 2
        else:
            with pytest.raises(InputError, match="anti-pgd with secret noise, from round 2 on; its noise depends on"):
                played(name, after=(1, state))


def test_a_message_of_an_erased_round_is_refused_and_not_drawn_anew():
    net = metropolis("ring:4")
    rounds = iterate_rounds(
        algorithm("zip-dl", sigma=1.0), net, np.zeros((4, 3)), lambda t, x: 0 * x, rounds=2, noise_key=SecretSource()
    )
    first = next(rounds)
    np.testing.assert_array_equal(first.steps[0].sent_messages().rows, first.steps[0].sent_messages().rows)
    next(rounds)
    with pytest.raises(SottovoceError, match="round 0 was erased"):
        first.steps[0].sent_messages()


def test_without_cryptography_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(InputError, match=r"secret noise without the package cryptography.*sottovoce\[peers\]"):
        SecretSource()


def test_a_noise_key_does_not_load_cryptography():
    code = """if True:
        import sys, numpy as np
        from sottovoce import SecretSource, algorithm, metropolis, train
        train(algorithm("dp-d-sgd", sigma=1.0), metropolis("path:2"), np.zeros((2, 2)), lambda t, x: x, rounds=1)
        raise SystemExit(any(name.startswith("cryptography") for name in sys.modules))
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_something_else_is_no_source_of_noise():
    with pytest.raises(InputError, match="a noise key of type str; it must be a NoiseKey or a SecretSource"):
        train(algorithm("d-psgd"), metropolis("path:2"), np.zeros((2, 2)), lambda t, x: x, rounds=1, noise_key="5a")
    assert NoiseKey.given_or_fresh(None).repeatable
