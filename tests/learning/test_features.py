"""Fixed features: what they are, that each row is mapped by itself, and what they promise to gradients."""

from __future__ import annotations

import cmath
import math
import stat
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from sottovoce import InputError, load, model, partition, task
from sottovoce.learning import features
from sottovoce.learning.datasets import from_arrays
from sottovoce.learning.features import parse_features
from sottovoce.learning.lazy_rows import UNIT_NORM, Examples
from sottovoce.learning.scattering import Scattering
from sottovoce.support.files import cache_folder
from sottovoce.support.own_code import code_from

MAPS = ("scattering:J=1,L=4", "scattering", "fourier:D=30,gamma=0.2", "mine.py:halves")
OWN = """
seen = []

def halves(row):
    return (row.ravel()[:32] - 0.5).tolist()

def counts(row):
    seen.append(row.sum())
    return [len(seen), row.sum()]

def grid(row):
    return row

def breaks(row):
    raise ValueError(row.shape)
"""


@pytest.fixture(autouse=True)
def _own_code(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    with code_from(tmp_path):
        yield


def images(rows=12, shape=(1, 16, 16), seed=0):
    return np.random.default_rng(seed).random((rows, math.prod(shape)), dtype=np.float32)


def of(rows, name, shape=(1, 16, 16)):
    data = from_arrays(rows.reshape(-1, *shape), np.arange(len(rows)) % 2, test=(rows[:2].reshape(-1, *shape), [0, 1]))
    return parse_features(name, data).rows(Examples(rows))


# --- scattering against a sum over pixels ----------------------------------------------------------------------------


def wavelet_by_pixels(side, scale, turned, directions):
    """Sampled on a circle: copies one circle apart are added up."""
    deviation, frequency = 0.8 * 2**scale, 3 * math.pi / 4 / 2**scale
    angle, slant = math.pi * turned / directions, 4 / directions
    wave, still = np.zeros((side, side), complex), np.zeros((side, side), complex)
    for down, across in product(range(side), repeat=2):
        for turn, turn_across in product(range(-1, 2), repeat=2):
            y, x = down + turn * side, across + turn_across * side
            along, aside = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
            size = (
                math.exp(-(along**2 + (slant * aside) ** 2) / (2 * deviation**2)) * slant / (2 * math.pi * deviation**2)
            )
            wave[down, across] += size * cmath.exp(1j * frequency * along)
            still[down, across] += size
    return wave - still * wave.sum() / still.sum()


def convolved(picture, wavelet):
    side = len(picture)
    return np.array([
        [sum(picture[a, b] * wavelet[(y - a) % side, (x - b) % side] for a, b in product(range(side), repeat=2))
         for x in range(side)] for y in range(side)
    ])  # fmt: skip


def blurred(picture, coarse, kept, scales):
    """At the centres of squares of the image, which begins one square into the circle."""
    side, squares = len(picture), 1 << scales
    around, deviation = side << coarse, 0.8 * 2 ** (scales - 1)
    found = np.zeros((kept, kept))
    for row, column in product(range(kept), repeat=2):
        centre = [squares * (1.5 + at) - 0.5 for at in (row, column)]
        weights = np.zeros((side, side))
        for a, b in product(range(side), repeat=2):
            away = [
                min(abs((at << coarse) - c), around - abs((at << coarse) - c))
                for at, c in zip((a, b), centre, strict=True)
            ]
            weights[a, b] = math.exp(-(away[0] ** 2 + away[1] ** 2) / (2 * deviation**2))
        found[row, column] = (weights * picture).sum() / weights.sum()
    return found


def test_scattering_is_a_sum_over_pixels():
    """Mirrored by hand, convolved by hand, and every second or fourth pixel kept by hand."""
    picture, directions = np.random.default_rng(3).random((9, 9)), 2
    circle = np.pad(picture, ((4, 7), (4, 7)), mode="reflect")[:20, :20]
    maps, fine = [blurred(circle, 0, 2, 2)], []
    for turned in range(directions):
        fine.append(abs(convolved(circle, wavelet_by_pixels(20, 0, turned, directions))))
        maps.append(blurred(fine[-1], 0, 2, 2))
    second = [
        abs(convolved(one, wavelet_by_pixels(20, 1, turned, directions)))[::2, ::2]
        for one in fine for turned in range(directions)
    ]  # fmt: skip
    first = [
        abs(convolved(circle, wavelet_by_pixels(20, 1, turned, directions)))[::2, ::2] for turned in range(directions)
    ]
    made = Scattering((1, 9, 9), 2, directions)
    padded = torch.from_numpy(circle).float()[None, None]
    found = torch.cat([*made._responses(padded, 0, 0)], dim=1)[0].numpy()
    wanted = maps + [blurred(one, 1, 2, 2) for one in (*second, *first)]
    assert made.width == 4 * (1 + 4 + 4)
    np.testing.assert_allclose(found, np.array(wanted), rtol=2e-5, atol=2e-6)
    flat = torch.from_numpy(picture).float().view(1, -1)
    groups = found.reshape(3, -1)
    groups = (groups - groups.mean(1, keepdims=True)) / np.sqrt(groups.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(made(flat).numpy().reshape(3, -1), groups, rtol=1e-4, atol=1e-5)


# --- each row by itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAPS)
def test_a_row_has_the_same_features_in_any_company(name):
    rows = images()
    together, turned = of(rows, name), of(rows[::-1].copy(), name)[::-1]
    alone = np.concatenate([of(np.concatenate([row[None], rows[:3]]), name)[:1] for row in rows])
    for other in (turned, alone):
        np.testing.assert_allclose(together, other, atol=1e-5)


@pytest.mark.parametrize("name", MAPS)
def test_hostile_rows_have_features_of_norm_one_or_zero(name):
    rows = images()
    rows[:7] = np.array([0, 1e30, -1e30, 3e38, 1e-42, 1e-30, 1])[:, None]
    rows[7, ::2] = 1e30
    found = of(rows, name).astype(np.longdouble)
    lengths = np.linalg.norm(found, axis=1)
    assert np.isfinite(found).all()
    assert ((lengths == 0) | (abs(lengths - 1) <= UNIT_NORM - 1)).all()
    assert (lengths[8:] > 0.99).all()


def test_fourier_features_have_the_products_of_their_kernel():
    rows = images()
    found = of(rows, "fourier:D=40000,gamma=0.02")
    wanted = np.exp(-0.02 * np.square(rows[:, None] - rows[None]).sum(-1))
    np.testing.assert_allclose(found @ found.T, wanted, atol=0.03)
    assert not np.array_equal(of(rows, "fourier:D=9"), of(rows, "fourier:D=9,seed=1"))


def test_pca_is_of_another_data_set(monkeypatch):
    other = from_arrays(images(200, seed=1), np.arange(200) % 2, name="other").examples
    monkeypatch.setattr(
        features, "load", lambda name, folder: from_arrays(other[:].reshape(-1, 1, 16, 16), [0, 1] * 80)
    )
    rows = images()
    found = of(rows, "pca:digits,D=5")
    train = features.load("", None).inputs.astype(float)
    _, _, directions = np.linalg.svd(train - train.mean(0), full_matrices=False)
    wanted = (rows - train.mean(0)) @ directions[:5].T
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(abs(found), abs(wanted), atol=1e-4)
    with pytest.raises(InputError, match="both must have one shape"):
        of(images(shape=(1, 8, 8)), "pca:digits", (1, 8, 8))


def test_nothing_is_fitted_to_training_rows():
    digits = load("digits")
    for data, fitted in ((digits, "digits"), (replace(digits, name="mnist"), "mnist-writers")):
        with pytest.raises(InputError, match="no figure covers what is fitted to training rows"):
            parse_features(f"pca:{fitted},D=5", data)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("scattering:J=3", "sides of more than"), ("scattering:M=3", "options here: J, L"), ("scattering:J=0", "J=0"),
        ("fourier:gamma=-1", "a positive number"), ("wavelets", "known: scattering, fourier, pca"),
        ("pca:mine", "public data set"), ("mine.py:grid", "list of numbers"), ("mine.py:breaks", "own code raised"),
        ("mine.py:counts", "must not remember"), (3, "name of a map"),
    ],
)  # fmt: skip
def test_other_maps_are_refused(name, reason):
    digits = load("digits")
    with pytest.raises(InputError, match=reason):
        task(digits, partition(digits, 4), model("linear", digits, features=name))


# --- what they promise -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["scattering:J=1,L=8", "fourier:D=50"])
def test_features_bound_gradients_and_use_no_statistics_of_rows(name):
    digits = load("digits")
    job = task(digits, partition(digits, 4), model("linear", digits, features=name))
    assert job.convex_model == "softmax"
    assert job.feature_norm == pytest.approx(math.sqrt(2), rel=1e-4)
    assert job.gradients("full", "bounded").clipping.bound == pytest.approx(2, rel=1e-4)
    assert not any("pixels" in str(one) for one in job.public_statistics)
    assert job.dataset.inputs.min() == 0
    assert job.dataset.inputs.max() == 1
    gradient = job.gradients("full", "per-example", 0.3)
    assert gradient.sensitivity() == pytest.approx(2 * 0.3 / 359)
    hosted = gradient.hosted(np.array([2]))
    start = job.start(torch.Generator().manual_seed(0))
    torch.testing.assert_close(hosted(0, start[:1]), gradient(0, start)[2:3])


def test_linear_means_what_the_targets_ask_for():
    digits, cancer = load("digits"), load("breast-cancer")
    assert [model("linear", data).loss.name for data in (digits, cancer)] == ["cross-entropy", "logistic"]
    values = from_arrays(np.eye(10), np.linspace(0, 1, 10))
    assert model("linear", values).loss.name == "squared"


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_cache")
def test_large_features_are_computed_once(monkeypatch):
    monkeypatch.setattr(features, "KEPT", 1)
    rows, acted = images(), []
    original = Scattering.__call__
    monkeypatch.setattr(Scattering, "__call__", lambda self, some: acted.append(len(some)) or original(self, some))
    first = of(rows, "scattering").copy()  # what is mapped into memory ends when its file is damaged
    assert sum(acted) == 12
    second = of(rows, "scattering")
    assert sum(acted) == 12
    np.testing.assert_array_equal(first, second)
    (file,) = cache_folder("features").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for damage in (b"", file.read_bytes()[:-4], np.full(4, 9e9, dtype="<f4").tobytes()):
        acted.clear()
        with file.open("r+b") as stream:
            stream.seek(-len(damage) if len(damage) == 16 else 0, 2 if len(damage) == 16 else 0)
            stream.write(damage)
            if len(damage) != 16:
                stream.truncate()
        np.testing.assert_array_equal(of(rows, "scattering"), first)
        assert sum(acted) == 12
    rows[3] += 1
    of(rows, "scattering")
    of(rows, "scattering:L=4")
    assert len(list(cache_folder("features").iterdir())) == 3


@pytest.mark.usefixtures("own_cache")
def test_stored_features_are_of_rows_as_they_are_read(monkeypatch):
    monkeypatch.setattr(features, "KEPT", 1)
    rows = load("digits").only(np.arange(12))
    scaled = replace(rows, examples=rows.examples.then(lambda some: some - 0.5))
    found = [parse_features("fourier:D=30", one).rows(one.examples) for one in (rows, scaled)]
    assert np.abs(found[0] - found[1]).max() > 0.01
    assert len(list(cache_folder("features").iterdir())) == 2


def test_features_without_a_cache_are_computed(monkeypatch):
    monkeypatch.setattr(features, "KEPT", 1)
    monkeypatch.setattr(features, "cache_folder", lambda kind: None)
    assert of(images(), "scattering:J=1,L=4").shape == (12, 320)
