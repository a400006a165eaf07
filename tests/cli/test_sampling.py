"""Sampling and records of unequal nodes in `account`, `calibrate` and `plan`, and questions about a run."""

from __future__ import annotations

import json

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from sottovoce.privacy.gaussian_dp import mu_of

RUN = """
name = "asked"
noise_key = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
[data]
name = "breast-cancer"
unit_norm = true
rows = 20
[model]
name = "logistic"
[topology]
graph = "edges:Hill--Mercy,Mercy--North,North--West"
[training]
rounds = 4
batch = "{batch}"
clip = "per-example"
bound = 1.0
[algorithm]
sigma = 2.0
[privacy]
attackers = "none"
"""


def poisson(noise, share, rounds, delta=1e-5):
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    return accountant.compose(event, rounds).get_epsilon(delta)


def answered(sotto, line):
    code, out, err = sotto(f"{line} --json")
    assert code == 0, err
    return json.loads(out)


def test_poisson_batches_count_against_everyone_and_so_against_each_node(sotto):
    asked = "account --graph ring:4 --rounds 30 --sigma 1.5 --adjacency record --participation poisson:0.1"
    found = answered(sotto, asked)
    assert found["sampled"]["epsilon"] == pytest.approx(poisson(3.0, 0.1, 30), rel=1e-5)  # a record moves half as far
    assert found["sampled"]["change"] == "zero-out"
    assert found["headline"]["mu"] == pytest.approx(np.sqrt(30) / 1.5)
    one = answered(sotto, f"{asked} --view node:0")
    assert one["sampled"]["epsilon"] == found["sampled"]["epsilon"]
    assert one["sampled"]["view"] == "node:0"
    code, out, _ = sotto(f"{asked} --view node:0")
    assert code == 0
    assert "counting on batches that are drawn at random" in out


def test_a_target_with_poisson_batches_takes_less_noise(sotto):
    asked = "calibrate --graph ring:4 --rounds 30 --adjacency record --epsilon 2 --participation"
    sampled, every = answered(sotto, f"{asked} poisson:0.1"), answered(sotto, f"{asked} every")
    assert sampled["sigma"] < 0.2 * every["sigma"]
    assert 1.95 < sampled["sampled"]["epsilon"] <= 2.0
    assert poisson(2 * sampled["sigma"], 0.1, 30) <= 2.0
    assert every["sampled"] is None


def test_records_of_nodes_give_each_its_own_noise(sotto):
    found = answered(sotto, "calibrate --graph ring:3 --rounds 40 --adjacency record --records 17,40,126 --epsilon 5")
    least = np.sqrt(40) / mu_of(5.0, 1e-5)
    assert [one["records"] for one in found["nodes"]] == [17, 40, 126]
    assert [one["noise"] for one in found["nodes"]] == pytest.approx([least * 2 / held for held in (17, 40, 126)])
    assert found["sigma"] == pytest.approx(least)
    code, out, _ = sotto("account --graph ring:3 --rounds 4 --adjacency record --records 17,40,126 --sigma 2")
    assert code == 0
    assert "Node 2 with 126 records adds noise of standard deviation 0.03175" in out


@pytest.mark.slow
def test_a_plan_counts_on_chance_and_on_the_records_of_each_node(sotto):
    asked = "plan --graph complete:3 --rounds 6 --adjacency record --epsilon 2 --dimension 20 --records 20,40,80"
    plans = {how: answered(sotto, f"{asked} --participation {how}") for how in ("every", "poisson:0.1")}
    every, sampled = (
        {entry["algorithm"]: entry for entry in found["ranked"]} for found in (plans["every"], plans["poisson:0.1"])
    )
    assert plans["every"]["sensitivity"] == pytest.approx([2 / 20, 2 / 40, 2 / 80])
    noise = every["dp-d-sgd"]["sigma"] * np.array([2 / 20, 2 / 40, 2 / 80])
    assert every["dp-d-sgd"]["error_average_model"] == pytest.approx(20 * 6 * (noise**2).sum() / 9, rel=1e-6)
    assert every["dp-d-sgd"]["sampled"] is None
    assert sampled["dp-d-sgd"]["sampled"]["epsilon"] <= 2.0
    assert sampled["dp-d-sgd"]["sigma"] < 0.5 * every["dp-d-sgd"]["sigma"]
    assert poisson(2 * sampled["dp-d-sgd"]["sigma"], 0.1, 6) <= 2.0


def test_any_view_of_a_run_is_answered_with_its_own_settings(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN.format(batch="full"))
    assert sotto("run run.toml")[0] == 0
    found = answered(sotto, "account runs/asked --view coalition:Hill,North")
    again = answered(
        sotto,
        "account --graph edges:Hill--Mercy,Mercy--North,North--West --rounds 4 --sigma 2 --adjacency record --convex "
        "--view coalition:Hill,North",
    )
    assert found["view"] == "coalition:0,2"
    assert found["labels"] == ["Hill", "Mercy", "North", "West"]
    assert found["headline"]["mu"] == pytest.approx(again["headline"]["mu"], rel=1e-9)
    assert [one["mu"] for one in found["guarantees"]] == pytest.approx([one["mu"] for one in again["guarantees"]])
    any_two = answered(sotto, "account runs/asked --view coalition:any-2")
    assert any_two["headline"]["mu"] >= found["headline"]["mu"]
    code, _, err = sotto("account runs/asked --view coalition:Nowhere,North")
    assert code == 2
    assert "there is no node called 'Nowhere'" in err
    code, _, err = sotto("account runs/asked --view node:Hill --rounds 3")
    assert code == 2
    assert "runs have settings of their own" in err


def test_the_delta_that_was_typed_counts_also_where_it_is_the_usual_one(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN.format(batch="full"))
    assert sotto("run run.toml --set privacy.delta=1e-3")[0] == 0
    figures = {}
    for typed, delta in (("", 1e-3), (" --delta 1e-5", 1e-5), (" --delta 1e-3", 1e-3)):
        found = answered(sotto, f"account runs/asked --view node:Hill{typed}")
        assert found["delta"] == delta
        figures[typed] = found["headline"]["epsilon"]
        assert f"delta {delta:g}" in sotto(f"account runs/asked --view node:Hill{typed}")[1]
    assert figures[""] == figures[" --delta 1e-3"] < figures[" --delta 1e-5"]
    code, _, err = sotto("account runs/asked --view node:Hill --rounds 100")  # the usual number
    assert (code, "runs have settings of their own" in err) == (2, True)


def test_a_view_of_a_run_with_batches_by_chance_learns_no_more_than_everyone(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN.format(batch="poisson:0.2"))
    assert sotto("run run.toml")[0] == 0
    found = answered(sotto, "account runs/asked --view node:Hill")
    assert found["sampled"]["epsilon"] == pytest.approx(poisson(4.0, 0.2, 4), rel=1e-5)
    privacy = json.loads((tmp_path / "runs/asked/privacy.json").read_text())
    assert found["sampled"]["epsilon"] == pytest.approx(privacy["headline"]["epsilon"])
    path = tmp_path / "runs/asked/privacy.json"
    path.write_text(path.read_text().replace(privacy["fingerprint"], "0" * 64))
    code, _, err = sotto("account runs/asked --view node:Hill")
    assert code == 2
    assert "not those of these settings and this version" in err
