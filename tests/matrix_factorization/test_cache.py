"""The cache of factorizations: keyed by content, safe when damaged and when many write."""

from __future__ import annotations

import os

import numpy as np
import pytest

from sottovoce import (
    factorize,
    fresh_erdos_renyi,
    metropolis,
    uniform,
)
from sottovoce.matrix_factorization import cache
from tests.forked import forking


def test_cache_gives_the_same_again(own_cache):
    first, second = (factorize(metropolis("ring:5"), participation="2x4") for _ in range(2))
    assert (first.cached, second.cached) == (False, True)
    np.testing.assert_array_equal(first.C, second.C)
    assert {**first.document(), "cached": True} == second.document()
    assert not factorize(metropolis("ring:5"), participation="2x4", cache=False).cached
    assert len(list(own_cache.iterdir())) == 1


def test_cache_is_keyed_by_content(own_cache, monkeypatch):
    base = {"participation": "2x4"}
    for net, settings in (
        (metropolis("ring:5"), base), (metropolis("ring:6"), base), (uniform("star:5"), base),
        (metropolis("ring:5"), {"participation": "1x8"}), (metropolis("ring:5"), base | {"rounds": 7}),
        (metropolis("ring:5"), base | {"objective": "average"}), (metropolis("ring:5"), base | {"gap": 1e-5}),
        (metropolis("ring:5"), base | {"structure": "banded"}), (metropolis("ring:5"), base | {"probes": 9}),
        (fresh_erdos_renyi(5, 0.5, seed=1), base), (fresh_erdos_renyi(5, 0.5, seed=2), base),
    ):  # fmt: skip
        assert not factorize(net, **settings).cached
    monkeypatch.setattr(cache, "__version__", "another")
    assert not factorize(metropolis("ring:5"), **base).cached


@pytest.mark.parametrize("damage", ["cut", "empty", "words", "too large", "upper"])
def test_damaged_files_are_computed_again(own_cache, damage):
    net = metropolis("ring:5")
    right = factorize(net, participation="2x4")
    (file,) = own_cache.iterdir()
    if damage in ("cut", "empty", "words"):
        file.write_bytes({"cut": file.read_bytes()[:-40], "empty": b"", "words": b"not an archive"}[damage])
    else:
        with np.load(file) as stored:
            parts = dict(stored)
        parts["C"] = parts["C"] * 1.01 if damage == "too large" else parts["C"].T
        np.savez(file, **parts)
    again = factorize(net, participation="2x4")
    assert not again.cached
    np.testing.assert_allclose(again.C, right.C)
    assert factorize(net, participation="2x4").cached


@pytest.mark.parametrize("other", [{"participation": "1x8"}, {"participation": "2x3"}])
def test_a_file_of_something_else_is_not_taken(own_cache, other):
    net = metropolis("ring:5")
    right = factorize(net, participation="2x4")
    (mine,) = own_cache.iterdir()
    factorize(net, **other)
    (theirs,) = set(own_cache.iterdir()) - {mine}
    mine.write_bytes(theirs.read_bytes())
    again = factorize(net, participation="2x4")
    assert not again.cached
    np.testing.assert_allclose(again.C, right.C)


def test_any_flipped_byte_is_computed_again_or_harmless(own_cache):
    net = metropolis("ring:5")
    right = factorize(net, participation="2x4")
    (file,) = own_cache.iterdir()
    whole = file.read_bytes()
    for at in range(0, len(whole), 97):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        np.testing.assert_allclose(factorize(net, participation="2x4").C, right.C)


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("complete:4", {"participation": "1x1", "rounds": 6, "structure": "banded", "bands": 2}),
        ("ring:8", {"participation": "every", "rounds": 9, "structure": "toeplitz", "bands": 3}),
    ],
)
def test_no_structure_is_worse_than_independent_noise(spec, settings):
    found = factorize(metropolis(spec), cache=False, **settings)
    assert found.objective <= found.independent * (1 + 1e-9)


def test_a_home_is_not_needed(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert not factorize(metropolis("ring:5"), participation="2x4").cached


def setenv(name, value):
    """In a process that was forked before the test chose its cache."""
    os.environ[name] = value


def _at_once(_):
    return factorize(metropolis("ring:5"), participation="2x6").objective


def test_cache_is_safe_when_many_write(own_cache):
    with forking().Pool(3, setenv, ["XDG_CACHE_HOME", os.environ["XDG_CACHE_HOME"]]) as pool:
        values = pool.map(_at_once, range(9))
    assert len(set(values)) == 1
    assert [file.suffix for file in own_cache.iterdir()] == [".npz"]


def test_folder_that_cannot_be_written_is_no_failure(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert factorize(metropolis("ring:5"), participation="2x4").objective > 0
