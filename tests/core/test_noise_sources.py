"""Keyed Gaussians: the right distribution out to the tails, independent streams, the same numbers in any blocks."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import stats

from sottovoce import algorithm, metropolis, train
from sottovoce.core.noise_sources import BLOCK, MANY, gaussians_
from sottovoce.core.random_streams import NoiseKey

SIZE = 1 << 22
SETTINGS = {
    "dp-d-sgd": {"sigma": 1.0},
    "decor": {"sigma": 1.0, "sigma_pair": 2.0},
    "anti-pgd": {"sigma": [1.0, 0.0, 2.0, 1.0, 1.0, 0.5]},
    "muffliato": {"sigma": 1.0},
    "zip-dl": {"sigma": 1.0},
}


def normals(ids, size=SIZE, dtype=np.float32):
    out = np.empty(size, dtype=dtype)
    gaussians_(NoiseKey.of_seed(0).stream("node", ids, 0), out)
    return out


def within(count, expected, level=1e-7):
    """Whether a count of rare events is one of that many expected, from both sides."""
    law = stats.poisson(expected)
    return 2 * min(law.cdf(count), law.sf(count - 1)) > level


@pytest.fixture(scope="module")
def samples():
    return normals([0]).astype(float)


def test_the_hash_of_the_name_under_the_secret_is_the_key_of_the_generator():
    secret = bytes(range(16))
    key = int.from_bytes(hashlib.blake2b(b"pair|3,4|5|6", key=secret, digest_size=16).digest(), "little")
    ours, theirs = NoiseKey(secret).stream("pair", (3, 4), 5, 6), np.random.Generator(np.random.Philox(key=key))
    np.testing.assert_array_equal(ours.words(9), theirs.bit_generator.random_raw(9))


@pytest.mark.parametrize(("size", "accepted"), [(1.0, True), (0.995, False), (1.005, False)])
def test_variance_is_one_from_both_sides(samples, size, accepted):
    share = stats.chi2.cdf(np.sum((size * samples) ** 2), samples.size)
    assert bool(1e-7 < share < 1 - 1e-7) is accepted


@pytest.mark.parametrize(("size", "accepted"), [(1.0, True), (0.99, False), (1.01, False)])
def test_shape_and_tails_are_gaussian(samples, size, accepted):
    scaled = size * samples
    beyond = all(within((side * scaled > k).sum(), SIZE * stats.norm.sf(k)) for side in (1, -1) for k in (2, 3, 4, 4.5))
    near = all(within((abs(scaled) < k).sum(), SIZE * (2 * stats.norm.cdf(k) - 1)) for k in (1e-3, 1e-2, 1e-1))
    assert bool(beyond and near and stats.kstest(scaled, "norm").pvalue > 1e-6) is accepted


def test_pairs_are_independent_within_and_between_streams(samples):
    half = BLOCK // 2
    blocks = samples.reshape(-1, BLOCK)
    cosines, sines = blocks[:, :half].ravel(), blocks[:, half:].ravel()
    others = [normals(ids).astype(float) for ids in ([1], [0, 1], [10])]
    limit = 5.5 / np.sqrt(half * len(blocks))
    for left, right in [(cosines, sines), (samples[:-1], samples[1:]), *((samples, other) for other in others)]:
        for power in (1, 2, 3):
            assert abs(np.corrcoef(left**power, right**power)[0, 1]) < limit
    assert abs(np.corrcoef(cosines, cosines**2 * sines)[0, 1]) < limit


class Fixed:
    """A stream whose words are all alike, and whose uniform numbers are given."""

    def __init__(self, word, uniform):
        self.words = lambda count: np.full(count, word, dtype=np.uint64)
        self.uniforms = lambda count: np.full(count, uniform)


@pytest.mark.parametrize(
    ("bits", "uniform"), [(0, 0.0), (0, 1 - 2.0**-53), (5, 0.5), (1 << 30, 0.5), ((1 << 32) - 1, 0.25)]
)
def test_tails_go_on_and_the_middle_has_no_hole(bits, uniform):
    out = np.empty(MANY, dtype=np.float32)
    gaussians_(Fixed(bits << 32 | bits, uniform), out)
    half = MANY // 2
    radius = np.hypot(out[:half].astype(float), out[half:])
    refined = bits < 1 << 24 or bits >= (1 << 32) - (1 << 24)
    u = (np.longdouble(bits) + (1 - uniform if refined else 0.5)) / 2**32
    np.testing.assert_allclose(radius, float(np.sqrt(-2 * np.log(u))), rtol=1e-5)


@pytest.mark.parametrize("size", [1, MANY - 1, MANY, MANY + 1, BLOCK, BLOCK + 1, 2 * BLOCK + 4801])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_place_is_filled_once(size, dtype):
    out = np.full(size + 2, np.nan, dtype=dtype)
    gaussians_(NoiseKey.of_seed(1).stream("node", [2], 3), out[1:-1])
    assert np.isnan(out[[0, -1]]).all()
    assert np.isfinite(out[1:-1]).all()
    assert len(np.unique(out[1:-1])) > 0.99 * size


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SETTINGS)
def test_drawn_in_any_blocks_it_is_the_same_run(name, dtype, monkeypatch):
    def ended():
        built = algorithm(name, **SETTINGS[name])
        return train(
            built,
            metropolis("ring:6"),
            np.zeros((6, 3000), dtype),
            lambda t, x: 0.5 * x,
            rounds=4,
            noise_key=NoiseKey.of_seed(8),
        )

    plain = ended()
    for chunk in (7000, 1):
        monkeypatch.setattr("sottovoce.core.noise_feed.CHUNK", chunk)
        if name in ("dp-d-sgd", "anti-pgd"):
            np.testing.assert_array_equal(ended(), plain)
        else:  # products with more than one source add up in another order
            np.testing.assert_allclose(ended(), plain, rtol=0, atol=1e-5 if dtype == np.float32 else 1e-12)
