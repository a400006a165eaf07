"""What one site of another framework releases: clipped, with the noise of its account, once a round, within budget."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from sottovoce import InputError, Unaccountable, algorithm, load, model, partition, simulate, task, weigh
from sottovoce.adapters.guard import Guard
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import Budget
from sottovoce.ledger.spending import Spending
from sottovoce.report.page import read_checked_runs
from sottovoce.report.run_summary import run_summary

AGREED = """
name = "mammography"
sites = ["Hill", "Mercy", "North"]
rounds = 6
bound = 0.5
{more}
[privacy]
{privacy}
"""


@pytest.fixture
def agreement(tmp_path):
    def write(more="", privacy="epsilon = 8.0"):
        path = tmp_path / "agreement.toml"
        path.write_text(AGREED.format(more=more, privacy=privacy))
        return path

    return write


def update(value, numbers=20_000, dtype=np.float32):
    return {"w": np.full((numbers // 10, 10), value, dtype=dtype), "b": np.full(7, value, dtype=dtype)}


def flat(model):
    return np.concatenate([part.ravel() for part in model.values()]).astype(float)


def test_noise_is_what_is_accounted_for(agreement, tmp_path):
    """Two-sided: the standard deviation is sigma times the sensitivity, twice the bound, within five of its errors."""
    with Guard(agreement(privacy="sigma = 3.0"), "Hill", tmp_path / "hill") as guard:
        noise = np.concatenate([flat(guard.release(round, update(0.0))) for round in range(6)])
    expected, error = 3.0 * 2 * 0.5, 3.0 / np.sqrt(2 * len(noise))
    assert abs(noise.std() - expected) < 5 * error < 0.1 * expected
    assert np.array_equal(noise, np.rint(noise * 2**10) / 2**10)  # on a grid


def test_frameworks_may_ask_from_any_thread(agreement, tmp_path):
    """Each round is released once, whoever asks for it again, and all of them are booked."""
    with Guard(agreement(), "Hill", tmp_path / "hill") as guard, ThreadPoolExecutor(4) as threads:
        rounds = range(guard.rounds)
        found = [flat(threads.submit(guard.release, round, update(0.1)).result()).tobytes() for round in rounds]
        again = [threads.submit(guard.release, round, update(0.2)) for round in rounds]
        assert found == [flat(one.result()).tobytes() for one in again]
        assert threads.submit(guard.finish, loss=1.0, accuracy=0.5).result().exists()
    with open_ledger(tmp_path / "hill" / "ledger.db") as ledger:
        assert Spending(ledger).lineages()[0].runs[0].round == 6


@pytest.mark.parametrize("value", [1e-3, 1.0, 1e30, np.nan, np.inf, -np.inf, 1e-45])
def test_an_update_is_clipped_and_what_is_not_finite_is_nothing(agreement, tmp_path, value):
    numbers = 20_007
    with Guard(agreement(privacy="sigma = 0.001"), "Hill", tmp_path / "hill") as guard:
        length = np.linalg.norm(flat(guard.release(0, update(value))))
    rest = 0.001 * np.sqrt(numbers)
    expected = min(0.5, abs(value) * np.sqrt(numbers)) if np.isfinite(value) else 0.0
    assert np.hypot(expected, 0.9 * rest) < length < np.hypot(expected, 1.1 * rest)


def test_a_round_has_one_release_whoever_asks_again(agreement, tmp_path):
    with Guard(agreement(), "Hill", tmp_path / "hill") as guard:
        first = flat(guard.release(2, update(1.0)))
        assert np.array_equal(first, flat(guard.release(2, update(-1.0))))
    with Guard(agreement(), "Hill", tmp_path / "hill") as guard:
        assert np.array_equal(first, flat(guard.release(2, update(0.0))))
        with pytest.raises(InputError):
            guard.release(1, update(1.0))  # an earlier round was left out, and stays so
        assert not np.array_equal(first, flat(guard.release(3, update(1.0))))
    with Guard(agreement(), "Mercy", tmp_path / "mercy") as guard:
        assert not np.array_equal(first, flat(guard.release(2, update(1.0))))


def test_rounds_end_with_the_agreement_or_with_the_budget(agreement, tmp_path):
    with Guard(agreement(), "Hill", tmp_path / "hill") as guard:
        whole = guard.report.headline.epsilon
        for round in (-1, 6):
            with pytest.raises(Unaccountable):
                guard.release(round, update(1.0))
    budget = Budget(whole * 0.6, 1e-5)
    with Guard(agreement(), "Hill", tmp_path / "poor", budget=budget) as guard:
        assert 1 < guard.rounds < 6
        assert guard.report.headline.epsilon <= budget.epsilon
        with pytest.raises(Unaccountable):
            guard.check(guard.rounds)
        fitting = guard.rounds
    with Guard(agreement(), "Hill", tmp_path / "poor", budget=budget) as guard:
        assert guard.rounds == fitting
    with pytest.raises(Unaccountable):
        Guard(agreement(), "Hill", tmp_path / "poorest", budget=Budget(whole / 100, 1e-5))


def test_figures_are_those_of_account_and_ledger(agreement, tmp_path, sotto):
    with Guard(agreement(), "Hill", tmp_path / "hill") as guard:
        stated = guard.report.stated
        for round in range(6):
            guard.release(round, update(1.0))
        guard.finish(loss=0.4, accuracy=0.9)
    line = f"account --graph complete:3 --weights uniform --rounds 6 --sigma {stated.sigma!r} --json"
    assert json.loads(sotto(line)[1])["headline"]["epsilon"] == pytest.approx(stated.headline.epsilon, rel=1e-10)
    (lineage,) = json.loads(sotto(f"ledger {tmp_path / 'hill' / 'ledger.db'} --json")[1])["lineages"]
    assert lineage["spent"] == stated.headline.epsilon
    (folder,) = (tmp_path / "hill" / "runs").iterdir()
    (run,) = read_checked_runs([folder])
    assert (run.member, run.check.findings) == ("Hill", [])
    assert (run.result["member"], run.privacy.headline.epsilon) == ("Hill", stated.headline.epsilon)
    assert (folder / "report.html").stat().st_size > 10_000
    plain = run_summary(run)["plain"]
    said = " ".join(line for question, lines in plain["questions"] if question.startswith("What was") for line in lines)
    assert ("No server" in said, "to a server" in said, "softmax" in said, "records." in said.split("This is")[0]) == (
        False, True, False, False,
    )  # fmt: skip
    assert {one["records"] for one in plain["members"]} == {None}


def test_a_ledger_that_was_lost_releases_no_round_twice(agreement, tmp_path):
    with Guard(agreement(), "Hill", tmp_path / "hill") as guard:
        guard.release(0, update(1.0))
    for path in (tmp_path / "hill").glob("ledger.db*"):
        path.unlink()
    with pytest.raises(InputError, match=r"ledger\.db"):
        Guard(agreement(), "Hill", tmp_path / "hill")


def test_a_swarm_is_held_to_its_order(agreement, tmp_path):
    turns = agreement('aggregators = "in turn"', 'sigma = 2.0\nview = "coalition:any-1"')
    with Guard(turns, "Hill", tmp_path / "hill") as guard:
        assert [guard.agreement.aggregator(round) for round in range(4)] == ["Hill", "Mercy", "North", "Hill"]
        guard.release(0, update(1.0), aggregator="Hill")
        for other in ("North", None):
            with pytest.raises(Unaccountable):
                guard.release(1, update(1.0), aggregator=other)
        alone = next(one.headline.mu for one in guard.report.stated.views if str(one.view) == "coalition:any-1")
    assert alone == pytest.approx(np.sqrt(2 + 4 / 2) / 2)  # two rounds as aggregator, four among two others' noise
    assert guard.report.headline.mu == pytest.approx(np.sqrt(6) / 2)


def test_sites_that_may_be_missing_hide_nobody(agreement, tmp_path):
    some = agreement('aggregators = "in turn"\nleast = 2', 'sigma = 2.0\nview = "coalition:any-1"')
    with Guard(some, "Hill", tmp_path / "hill") as guard:
        # two rounds are the other's, two the victim's beside it alone; in two a third aggregates, and must be there
        alone = next(one.headline.mu for one in guard.report.stated.views if str(one.view) == "coalition:any-1")
    assert alone == pytest.approx(np.sqrt(2 + 2 + 2 / 2) / 2)


@pytest.mark.parametrize(
    ("more", "privacy"),
    [
        ("", 'sigma = 1.0\nview = "coalition:any-1"'),
        ('aggregators = ["Hill", "West"]', "sigma = 1.0"),
        ("weights = [1.0, 2.0]", "sigma = 1.0"),
        ("least = 4", "sigma = 1.0"),
        ("", "sigma = 1.0\nepsilon = 3.0"),
        ("", "delta = 1e-6"),
        ("secret = 5", "sigma = 1.0"),
    ],
)
def test_agreements_that_prove_less_than_they_say_are_refused(agreement, tmp_path, more, privacy):
    with pytest.raises((InputError, Unaccountable)):
        Guard(agreement(more, privacy), "Hill", tmp_path / "hill")


def test_whole_numbers_stay_and_parameters_must_not_change(agreement, tmp_path):
    before = {**update(0.0), "batches": np.array(3)}
    after = {**update(1.0), "batches": np.array(9)}
    with Guard(agreement(), "Hill", tmp_path / "hill") as guard:
        sent = guard.trained(0, before, lambda _: after)
        assert sent.keys() == before.keys()
        assert sent["batches"] == 3
        with pytest.raises(Unaccountable):
            guard.trained(6, before, lambda _: pytest.fail("trained for a round that is over"))
        for odd in (np.ones(7, dtype=complex), np.array(["row"] * 7)):
            with pytest.raises(InputError):
                guard.release(1, update(0.0) | {"b": odd})
        assert guard.release(1, {"w": update(0.0)["w"], "b": [0.0] * 7})["b"].shape == (7,)


@pytest.mark.parametrize(
    "after",
    [
        {"w": update(1.0)["w"]},  # as a trainer may that has seen no row of a class
        update(1.0) | {"w": np.ones((2_001, 10))},
        update(1.0) | {"more": np.ones(3)},
        update(1.0) | {"b": np.ones(7, dtype=complex)},
        update(1.0) | {"b": np.array(["row"] * 7)},
        None,
    ],
)
def test_what_a_trainer_leaves_is_not_told_from_what_it_fails_at(agreement, tmp_path, after):
    """Noise alone, in the types of the model that was given: a trainer's own are float64 here."""
    with Guard(agreement(privacy="sigma = 3.0"), "Hill", tmp_path / "hill") as guard:
        plain = guard.trained(
            0, update(0.0), lambda given: {name: 1.0 + part.astype(float) for name, part in given.items()}
        )
        found = guard.trained(1, update(0.0), lambda _: after)
    assert {name: (part.shape, part.dtype) for name, part in found.items()} == {
        name: (part.shape, part.dtype) for name, part in plain.items()
    }
    assert abs(flat(found).std() / 3.0 - 1) < 5 / np.sqrt(2 * len(flat(found)))
    assert (tmp_path / "hill" / "failure.txt").exists()


def test_trainers_that_work_in_place_are_clipped_as_all_others(agreement, tmp_path):
    """The model and the one after training are the same arrays; also where training never looks at what it is given."""
    model = update(0.0)

    def given(model):
        model["w"] += 100.0
        return model

    def own(_):
        model["w"] += 100.0
        return {name: part.copy() for name, part in model.items()}

    with Guard(agreement(privacy="sigma = 0.001"), "Hill", tmp_path / "hill") as guard:
        for round, train in enumerate((given, own)):
            model["w"][:] = 0.0
            assert np.linalg.norm(flat(guard.trained(round, model, train))) < 0.55


def test_training_that_fails_sends_noise_alone(agreement, tmp_path, caplog):
    """Whoever sees what is sent cannot tell that a row made it fail; whoever runs the site can."""

    def fails(_):
        raise ValueError("row 17")

    with Guard(agreement(privacy="sigma = 3.0"), "Hill", tmp_path / "hill") as guard:
        sent = flat(guard.trained(0, update(0.0), fails))
        assert guard._spending.recorded(guard._run_id) == 1
    assert abs(sent.std() / 3.0 - 1) < 5 / np.sqrt(2 * len(sent))
    why = tmp_path / "hill" / "failure.txt"
    assert "row 17" in why.read_text()
    assert "row 17" not in caplog.text  # frameworks collect logs
    assert str(why) in caplog.text
    assert why.stat().st_mode & 0o077 == 0


def test_a_folder_has_one_guard_at_a_time_and_one_ledger_for_all_agreements(agreement, tmp_path):
    first = agreement()
    with Guard(first, "Hill", tmp_path / "hill", budget=Budget(100.0, 1e-5)) as guard:
        alone = guard.report.headline.epsilon
        with pytest.raises(InputError):
            Guard(first, "Hill", tmp_path / "hill")
        with pytest.raises(InputError):
            Guard(first, "Mercy", tmp_path / "hill")
        for round in range(6):
            guard.release(round, update(0.0))
    again = agreement('again = "second"')
    with pytest.raises(Unaccountable):  # what was spent stays spent, whatever is agreed on anew
        Guard(again, "Hill", tmp_path / "hill", budget=Budget(1.01 * alone, 1e-5))


def test_accuracy_is_that_of_a_simulation(tmp_path):
    """FedAvg by guards and by `simulate`, with the same clipping and noise, on the same rows: within error bars."""
    noisy, sites, rounds = 0.05, [f"s{site}" for site in range(4)], 4
    digits = load("digits")
    job = task(digits, partition(digits, nodes=4), model("softmax", digits))
    local = {"local_steps": 5, "step_size": 0.5}
    alone = [job.gradients("full", **local).hosted(np.array([site])) for site in range(4)]
    bound = 2.0  # of the sum of gradients; an update is that times the step size
    reached = {"guards": [], "simulated": []}
    for seed in range(3):
        (tmp_path / f"{seed}.toml").write_text(
            f'name = "digits"\nagain = "{seed}"\nsites = {json.dumps(sites)}\nrounds = {rounds}\n'
            f"bound = {bound * 0.5}\n[privacy]\nsigma = {noisy}\n"
        )
        now = job.start(torch.Generator().manual_seed(seed))[0].numpy()
        for round in range(rounds):
            sent = []
            for site, name in enumerate(sites):

                def train(given, site=site, round=round):
                    moved = alone[site](round, torch.from_numpy(given["w"])[None])[0].numpy()
                    return {"w": given["w"] - 0.5 * moved}

                with Guard(tmp_path / f"{seed}.toml", name, tmp_path / f"{seed}" / name) as guard:
                    sent.append(guard.trained(round, {"w": now}, train)["w"])
            now = np.mean(sent, axis=0)
        reached["guards"].append(float(job.evaluate(torch.from_numpy(now)[None]).average_metric))
        found = simulate(
            algorithm("dp-d-sgd", sigma=noisy, step_size=0.5), weigh("complete:4", "uniform"),
            job.gradients("full", "whole-gradient", bound, **local), rounds=rounds, seed=seed, adjacency="user",
        )  # fmt: skip
        reached["simulated"].append(float(job.evaluate(found.models).average_metric))
    means = {name: np.mean(each) for name, each in reached.items()}
    error = np.sqrt(sum(np.var(each, ddof=1) / len(each) for each in reached.values()))
    assert 0.6 < means["simulated"] < 0.99
    assert abs(means["guards"] - means["simulated"]) < 5 * error + 0.005


def test_a_release_comes_back_after_later_ones(agreement, tmp_path):
    long = agreement().read_text().replace("rounds = 6", "rounds = 40")
    (tmp_path / "agreement.toml").write_text(long)
    with Guard(tmp_path / "agreement.toml", "Hill", tmp_path / "hill") as guard:
        first = flat(guard.release(0, update(1.0)))
        for round in range(1, 4):
            guard.release(round, update(1.0))
        assert np.array_equal(first, flat(guard.release(0, update(-1.0))))
        with pytest.raises(InputError):
            guard.release(0, {"w": np.zeros(3)} | {"b": np.zeros(7)})
        for round in range(4, 40):
            guard.release(round, update(1.0))
        with pytest.raises(InputError):  # its bytes are gone, and are not drawn again
            guard.release(0, update(1.0))


def test_nothing_is_said_to_be_compared_that_another_framework_played(agreement, tmp_path):
    with Guard(agreement(), "Hill", tmp_path / "hill") as guard:
        guard.release(0, update(1.0))
        for wrong in (np.nan, np.inf):
            with pytest.raises(InputError):
                guard.finish(loss=wrong, accuracy=0.5)
        guard.finish(loss=0.4, accuracy=0.9)
    (folder,) = (tmp_path / "hill" / "runs").iterdir()
    stated = json.loads((folder / "privacy.json").read_text())["certificate"]
    assert "checked" not in stated
    assert "checked in all" not in (folder / "report.html").read_text()
    (run,) = read_checked_runs([folder])
    assert run.check.findings == []


@pytest.mark.parametrize(
    ("sites", "aggregators"),
    [
        (["0", "1", "10", "2"], ["2"]),  # graphs number such nodes by size: another site than 2 would aggregate
        (["1", "2", "3"], ["1"]),  # node:1 is the second site
        (["A", "B,A--C,B--C"], "in turn"),
        (["../A", "B"], "in turn"),  # folders are called after sites
        (["/A", "B"], "in turn"),
        (["A", "B", "C"], "coin:7,shares=1:1:5"),  # weights that the mean would not have
        (["A", "B", "C"], ["A", "B,least=1"]),
        (["A", "B", "C"], ["0"]),
    ],
)
def test_sites_and_aggregators_mean_what_they_say(tmp_path, sites, aggregators):
    path = tmp_path / "agreement.toml"
    path.write_text(
        f'name = "turns"\nsites = {json.dumps(sites)}\nrounds = 6\nbound = 1.0\n'
        f'aggregators = {json.dumps(aggregators)}\n[privacy]\nsigma = 1.0\nview = "coalition:any-1"\n'
    )
    with pytest.raises(InputError):
        Guard(path, sites[0], tmp_path / "guard")
