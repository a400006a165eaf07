"""`sotto noise`: what it prints and writes, and what account and calibrate make of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sottovoce import factorize, metropolis
from sottovoce.core.participation import parse_participation
from sottovoce.matrix_factorization.result import graph_blind_objective

FLORENTINE = ("noise", "--graph", "florentine", "--weights", "uniform", "--participation", "4x16")


def test_noise_command_prints_one_document(own_cache, sotto):
    code, out, err = sotto(*FLORENTINE, "--json", "--no-cache")
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert {"objective", "lower_bound", "gap", "independent", "antipgd", "graph_blind", "seconds"} <= set(facts)
    assert facts["lower_bound"] <= facts["objective"] <= 3257.7
    assert facts["objective"] < facts["graph_blind"] < facts["independent"]
    assert facts["gap"] <= 1e-3
    assert not own_cache.exists()


def test_noise_command_writes(own_cache, sotto, tmp_path):
    code, out, _ = sotto(*FLORENTINE, "--out", str(tmp_path / "c.npz"))
    assert code == 0
    assert "lower bound" in out
    assert "times less error than independent noise" in out
    assert len(list(own_cache.iterdir())) == 1
    _, out, _ = sotto("account", "--graph", "florentine", "--weights", "uniform", "--algorithm", "mf-d-sgd", "--json",
                 "--rounds", "64", "--participation", "4x16", "--correlation", str(tmp_path / "c.npz"))  # fmt: skip
    assert json.loads(out)["headline"]["mu"] == pytest.approx(1.0, rel=1e-6)


def test_account_and_calibrate_find_the_correlation_of_mafalda(sotto):
    common = ("--graph", "ring:6", "--algorithm", "mafalda", "--rounds", "16", "--participation", "2x8", "--json")
    headline = json.loads(sotto("account", *common, "--sigma", "2")[1])["headline"]
    assert headline["mu"] == pytest.approx(0.5, rel=1e-6)
    sigma = json.loads(sotto("calibrate", *common, "--epsilon", str(headline["epsilon"]))[1])["sigma"]
    assert sigma == pytest.approx(2.0, rel=1e-6)


@pytest.mark.slow
def test_noise_command_weighs_chance_against_correlation(sotto, tmp_path):
    line = "noise --graph ring:5 --rounds 12 --sampled 0.25 --epsilon 20 --no-cache"
    code, out, _ = sotto(f"{line} --json --out {tmp_path / 'c.npz'}")
    told = json.loads(out)
    assert code == 0
    assert told["error"] == min(one["error"] for one in told["tried"]) <= 1
    assert told["batches"] == min(told["tried"], key=lambda one: one["error"])["batches"]
    assert [one["parts"] for one in told["tried"]] == [1, 2, 3, 4]
    assert np.load(tmp_path / "c.npz")["C"].shape == (12, 12)
    code, out, _ = sotto(line)
    assert code == 0
    assert "Least error: cyclic-poisson:" in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--graph", "ring:5", "--sampled", "0.5"], "sotto: --sampled without --rounds; "),
        (["--graph", "ring:5", "--sampled", "0.5", "--rounds", "4"], "sotto: --sampled without --epsilon; "),
        (["--graph", "ring:5", "--rounds", "4", "--epsilon", "1"], "sotto: a target without --sampled; "),
        (
            ["--graph", "ring:5", "--sampled", "0.5", "--rounds", "4", "--epsilon", "1", "--bands", "2"],
            "sotto: --bands with --sampled; ",
        ),
        (["--graph", "ring:5"], "sotto: participation every without rounds; "),
        (["--graph", "ring:5", "--rounds", "4", "--objective", "x"], "sotto: objective 'x'; "),
        (["--graph", "star:5", "--weights", "push", "--rounds", "4"], "sotto: row "),
        (["--graph", "ring:5", "--rounds", "4", "--out", "none/here.npz"], "sotto: none/here.npz: no such folder"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(words, line, sotto):
    code, out, err = sotto("noise", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(line)


def test_a_correlation_that_knows_no_graph_by_hand():
    """Two rounds, one of them a record's: C = [[1, 0], [1/2, 1]], whose first column has the norm sqrt(1.25)."""
    H, C = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[1.0, 0.0], [0.5, 1.0]])
    expected = 1.25 * np.trace(np.linalg.inv(C).T @ H @ np.linalg.inv(C))
    assert graph_blind_objective(H, parse_participation("1x2")) == pytest.approx(expected)
    assert graph_blind_objective(H, parse_participation("every")) == pytest.approx(2 * np.trace(H))


def test_what_the_graph_adds_to_correlation():
    """As docs/noise.md has it: 12 % of the error on a ring of 30."""
    found = factorize(metropolis("ring:30"), participation="4x16", cache=False)
    assert found.over_graph_blind == pytest.approx(1.131, abs=0.002)
