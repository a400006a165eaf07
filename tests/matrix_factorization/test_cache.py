"""The cache of factorizations: keyed by content, safe when damaged and when many write."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from sottovoce import (
    algorithm,
    factorize,
    fresh_erdos_renyi,
    metropolis,
    uniform,
)
from sottovoce.algorithms.mafalda import _optimised_correlation
from sottovoce.core.participation import parse_participation
from sottovoce.matrix_factorization import cache
from sottovoce.matrix_factorization.result import normalised
from sottovoce.matrix_factorization.structures import Structure
from sottovoce.matrix_factorization.workload import workload
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
        (metropolis("ring:5"), base | {"structure": "banded"}),
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


def forge(file, **changed):
    """Change arrays of a file as somebody would who knows what it is: checksums and its key are right."""
    with np.load(file) as stored:
        parts = dict(stored) | {name: np.array(value) for name, value in changed.items()}
    np.savez(file, **parts)


@pytest.mark.parametrize("name", ["C", "proof"])
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_forged_matrix_is_computed_again(own_cache, sotto, name, factor):
    line = "noise --graph ring:5 --participation 2x4 --json"
    right = json.loads(sotto(line)[1])
    (file,) = own_cache.iterdir()
    with np.load(file) as stored:
        value = stored[name]
    bent = value * factor if name == "C" else value + 10 * (factor - 1) * np.tri(len(value))  # proves too little
    forge(file, **{name: bent})
    code, out, err = sotto(line)
    assert code == 0
    assert {**json.loads(out), "seconds": 0} == {**right, "seconds": 0}
    assert err == f"{file} does not hold what it should; computed again.\n"
    assert json.loads(sotto(line)[1])["cached"]


def test_a_worse_c_is_computed_again(own_cache):
    """C of a file may have the right sensitivity, and be another than the best."""
    net = metropolis("ring:5")
    right = factorize(net, participation="2x4")
    (file,) = own_cache.iterdir()
    forge(file, C=normalised(np.eye(8), parse_participation("2x4")))
    again = factorize(net, participation="2x4")
    assert (again.cached, again.objective) == (False, right.objective)


def test_mafalda_takes_no_worse_c_from_a_forged_file(own_cache):
    """Its sensitivity is right and so is epsilon, but models would be worse than the page says they can be."""
    net = metropolis("ring:5")
    right = factorize(net, participation="2x4")
    (file,) = own_cache.iterdir()
    forge(file, C=normalised(np.eye(8), parse_participation("2x4")))
    _optimised_correlation.cache_clear()
    run = algorithm("mafalda", sigma=1.0, rounds=8, participation="2x4").on(net)
    np.testing.assert_allclose(run.noise.over_rounds.matrix(8), right.C, rtol=1e-9)
    _optimised_correlation.cache_clear()


SEARCHES = [
    {"participation": "2x4"}, {"participation": "2x4", "rounds": 12}, {"participation": "every", "rounds": 7},
    {"participation": "2x4", "structure": "banded", "bands": 2}, {"participation": "2x4", "objective": "last"},
    {"participation": "2x4", "rounds": 12, "structure": "banded"},
]  # fmt: skip


@pytest.mark.parametrize("settings", SEARCHES, ids=str)
def test_results_of_every_search_are_taken_from_the_cache(own_cache, settings):
    first, second = (factorize(metropolis("path:5"), **settings) for _ in range(2))
    assert (second.cached, second.refused_file) == (True, None)
    assert {**first.document(), "cached": True} == second.document()


@pytest.mark.parametrize("settings", SEARCHES, ids=str)
def test_no_matrix_proves_more_than_is_true(settings):
    """Whatever numbers a file has for a proof, what they prove stays below the objective of the best C known."""
    found, rng = factorize(metropolis("path:5"), cache=False, gap=1e-6, **settings), np.random.default_rng(5)
    H = workload(metropolis("path:5"), found.rounds, found.goal)
    form = Structure(settings.get("bands", 4) if "structure" in settings else None)
    scheme = parse_participation(settings["participation"])
    assert form.bound_of(found.proof, H, scheme) == found.lower_bound
    assert found.lower_bound > 0.2 * found.objective
    for _ in range(20):
        shape = (found.rounds, found.rounds)
        kept, added = rng.choice([0.0, 1.0, -1.0], shape), rng.choice([0.0, 0.001, 1.0]) * rng.normal(size=shape)
        mixed = found.proof * kept + added
        for proof in (mixed, mixed @ mixed.T, found.proof * rng.uniform(0, 2, shape), np.abs(mixed)):
            assert form.bound_of(proof, H, scheme) <= found.objective * (1 + 1e-9)


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
        ("ring:8", {"participation": "every", "rounds": 9, "structure": "banded", "bands": 3}),
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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("x" * 300)))
    assert factorize(metropolis("ring:5"), participation="2x4").objective > 0
