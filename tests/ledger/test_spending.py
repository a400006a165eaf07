"""Budgets: compared to the last bit, reserved before anything is sent, and given back only where that is proven."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sottovoce.core.participation import Adjacency
from sottovoce.errors import InputError, Unaccountable
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import EVERYBODY, Budget, Stage
from sottovoce.ledger.spending import Spending
from sottovoce.privacy.composition import GaussianLoss, SampledLoss, StatedLoss, compose
from sottovoce.privacy.covering_views import Coverage
from sottovoce.privacy.gaussian_dp import epsilon_of
from tests.ledger.writer import planned

DELTA = 1e-5


@pytest.fixture
def spending(tmp_path):
    with open_ledger(tmp_path / "ledger") as database:
        yield Spending(database)


def after(mu, rounds):
    return lambda at: GaussianLoss(mu * (at / rounds) ** 0.5)


def test_a_budget_of_exactly_what_is_needed_passes_and_one_ulp_less_does_not(spending):
    first, second = planned(mu=1.0, run="a"), planned(mu=0.7, run="b")
    spending.reserve(first)
    needed = compose([first.loss, second.loss]).epsilon(DELTA)
    spending.set_budget(Budget(math.nextafter(needed, 0.0), DELTA))
    with pytest.raises(Unaccountable, match="5 of its 6 rounds would still fit") as refused:
        spending.reserve(second, loss_after=after(0.7, 6))
    assert refused.value.exit_code == 3
    assert "\n" not in str(refused.value)
    assert len(spending.lineage("data").runs) == 1
    spending.set_budget(Budget(needed, DELTA))
    spending.reserve(second)
    assert spending.lineage("data").counted.epsilon(DELTA) == needed
    with pytest.raises(Unaccountable, match="not one round would still fit"):
        spending.reserve(planned(mu=0.1, run="c"), loss_after=after(0.1, 6))


def test_the_rounds_that_would_still_fit_do_fit(spending):
    spending.set_budget(Budget(epsilon_of(1.0, DELTA), DELTA))
    loss_after = after(2.0, 100)
    with pytest.raises(Unaccountable, match=r"\b25 of its 100 rounds"):
        spending.reserve(planned(rounds=100, mu=2.0), loss_after=loss_after)
    spending.reserve(planned(rounds=25, mu=loss_after(25).mu, run="b"))


def test_a_gaussian_run_gives_back_what_was_not_sent(spending):
    spending.reserve(planned(mu=1.0))
    assert spending.lineage("data").counted.mu == 1.0
    assert spending.spend("a" * 64, 1) == 1
    assert spending.spend("a" * 64, 3) == 3
    assert spending.spend("a" * 64, 2) == 3
    found = spending.lineage("data")
    assert (found.counted.mu, found.spent.mu) == (1.0, pytest.approx(0.5**0.5))
    spending.settle("a" * 64)
    found = spending.lineage("data")
    assert found.counted.mu == found.spent.mu == pytest.approx(0.5**0.5)
    assert found.runs[0].state == "stopped"
    with pytest.raises(InputError, match="it has ended"):
        spending.spend("a" * 64, 4)
    spending.reserve(planned(mu=1.0))
    assert spending.lineage("data").counted.mu == 1.0
    assert spending.lineage("data").runs[0].round == 3


def test_a_run_of_which_no_proof_gives_back_counts_in_full_once_it_sent(spending):
    for run in ("sent", "silent"):
        spending.reserve(planned(mu=1.0, run=run, refundable=False))
    spending.spend("sent", 1)
    for run in ("sent", "silent"):
        spending.settle(run)
    assert spending.lineage("data").counted.mu == 1.0


def test_what_was_given_back_is_asked_for_again(spending):
    spending.set_budget(Budget(epsilon_of(1.0, DELTA), DELTA))
    spending.reserve(planned(mu=1.0, run="a"))
    spending.spend("a", 3)
    spending.settle("a")
    spending.reserve(planned(mu=0.7, run="b"))
    with pytest.raises(Unaccountable, match="would bring lineage data"):
        spending.reserve(planned(mu=1.0, run="a"))


def test_budgets_belong_to_lineages(spending):
    spending.set_budget(Budget(1.0, DELTA))
    with pytest.raises(InputError, match="--new-lineage other"):
        spending.reserve(planned(mu=3.0), "other")
    spending.add_lineage("other")
    spending.reserve(planned(mu=3.0), "other")
    assert [one.name for one in spending.lineages()] == ["data", "other"]
    assert (spending.lineage("data").runs, spending.lineage("other").budget) == ((), None)
    with pytest.raises(InputError, match="a run belongs to one lineage"):
        spending.reserve(planned(mu=3.0), "data")


def test_data_is_known_by_a_salted_hash_and_stays_the_same(spending, tmp_path):
    spending.reserve(planned(data="fingerprint of rows"))
    spending.spend("a" * 64, 1)
    with pytest.raises(InputError, match="other data than it began with"):
        spending.reserve(planned(data="fingerprint of other rows"))
    assert b"fingerprint of rows" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_wrong_table_is_replaced_before_the_first_message_and_frees_nothing(spending):
    spending.add_lineage("other")
    spending.set_budget(Budget(epsilon_of(1.0, DELTA), DELTA))
    spending.reserve(planned(mu=0.8, data="wrong"))
    before = spending.lineage("data").counted.mu
    with pytest.raises(InputError, match="a run belongs to one lineage"):
        spending.reserve(planned(mu=0.8, data="right"), "other")
    spending.reserve(planned(mu=0.8, data="right"))
    assert (len(spending.lineage("data").runs), spending.lineage("data").counted.mu) == (1, before)
    with pytest.raises(Unaccountable, match="would bring lineage data"):
        spending.reserve(planned(mu=1.2, data="right"))
    spending.spend("a" * 64, 1)
    with pytest.raises(InputError, match="other data than it began with"):
        spending.reserve(planned(mu=0.8, data="wrong"))


@pytest.mark.parametrize("read_only", [False, True])
def test_a_link_is_no_ledger(tmp_path, read_only):
    """Whoever names the file itself holds another lock."""
    with open_ledger(tmp_path / "ledger"):
        pass
    (tmp_path / "link").symlink_to("ledger")
    with pytest.raises(InputError, match="is a link"), open_ledger(tmp_path / "link", read_only=read_only):
        pass


def test_what_was_reserved_and_never_used_is_free_again(spending):
    spending.set_budget(Budget(epsilon_of(1.0, DELTA), DELTA))
    spending.reserve(planned(mu=0.9, run="a"))
    spending.withdraw("a")
    spending.reserve(planned(mu=0.9, run="b"))
    spending.spend("b", 1)
    spending.withdraw("b")
    assert spending.lineage("data").counted.mu == pytest.approx(0.9)
    with pytest.raises(Unaccountable, match="would bring lineage data"):
        spending.reserve(planned(mu=0.9, run="a"))


def test_a_ledger_says_the_same_when_it_is_opened_again(tmp_path):
    path = tmp_path / "ledger"
    with open_ledger(path) as database:
        spending = Spending(database)
        spending.set_budget(Budget(3.0, DELTA))
        spending.reserve(planned(mu=0.5))
        spending.spend("a" * 64, 4)
        before = spending.lineages()
    with open_ledger(path, read_only=True) as database:
        again = Spending(database)
        assert again.lineages() == before
        assert [(run.round, lineage.spent.mu) for lineage, run in again.history()] == [
            (4, pytest.approx(0.5 * (4 / 6) ** 0.5))
        ]
        left = before[0]
        assert compose([*(run.counted for run in left.runs), GaussianLoss(left.mu_left())]).epsilon(DELTA) <= 3.0
        assert left.epsilon_left() == pytest.approx(3.0 - epsilon_of(0.5, DELTA))


def test_no_budget_is_silly():
    for epsilon, delta in ((0.0, DELTA), (math.inf, DELTA), (math.nan, DELTA), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(InputError, match="a budget"):
            Budget(epsilon, delta)


# --- can a total come out too small? -------------------------------------------------------------------------------


def test_two_runs_with_the_same_noise_are_refused_in_whatever_lineage(spending):
    """Their messages, subtracted, have none: no composition counts that."""
    spending.reserve(planned(run="a", noise="key"))
    spending.reserve(planned(run="a", noise="key"))
    spending.add_lineage("other")
    for lineage in ("data", "other"):
        with pytest.raises(InputError, match="its noise key was used by run try; if two runs have the same noise"):
            spending.reserve(planned(run="b", noise="key"), lineage)
    spending.reserve(planned(run="b", noise="another key"))
    spending.reserve(planned(run="c"))
    spending.reserve(planned(run="d"))


def test_a_run_that_goes_on_at_another_cost_is_asked_for_it(spending):
    """Another version may find that the same run costs more."""
    spending.set_budget(Budget(epsilon_of(1.0, DELTA), DELTA))
    spending.reserve(planned(mu=0.5, run="a"))
    spending.spend("a", 3)
    with pytest.raises(Unaccountable, match="would bring lineage data"):
        spending.reserve(planned(mu=1.1, run="a"))
    spending.reserve(planned(mu=0.9, run="a"))
    found = spending.lineage("data")
    assert (found.counted.mu, len(found.runs), found.runs[0].round) == (0.9, 1, 3)
    assert found.spent.mu == pytest.approx(0.9 * 0.5**0.5)


def test_a_run_resumed_again_and_again_counts_once_and_never_less_than_it_sent(spending):
    for round in (2, 2, 5, 4, 6):
        spending.reserve(planned(mu=1.0))
        spending.reserve(planned(mu=1.0))
        spending.spend("a" * 64, round)
        spending.settle("a" * 64)
        spending.settle("a" * 64)
    found = spending.lineage("data")
    assert (len(found.runs), found.counted.mu, found.runs[0].state) == (1, 1.0, "finished")


def test_what_is_said_to_fit_fits_however_little_is_left(spending):
    spending.set_budget(Budget(epsilon_of(1.0, DELTA), DELTA))
    for run in range(40):
        left = spending.lineage("data").mu_left()
        spending.reserve(planned(mu=left, run=f"fits {run}"))
        assert spending.lineage("data").counted.epsilon(DELTA) <= epsilon_of(1.0, DELTA)
        spending.settle(f"fits {run}")
        spending.reserve(planned(mu=left * 2**-0.5, run=f"half {run}"))


def test_runs_about_users_and_about_records_together_are_about_a_record(spending):
    """A figure for all data of a node covers one of its records; never the other way round."""
    spending.reserve(planned(run="a", adjacency=Adjacency.USER))
    assert spending.lineage("data").adjacency is Adjacency.USER
    spending.reserve(planned(run="b", adjacency=Adjacency.RECORD))
    assert spending.lineage("data").adjacency is Adjacency.RECORD


def test_a_total_holds_against_those_whom_all_runs_cover(spending):
    assert spending.lineage("data").covers == EVERYBODY
    spending.reserve(planned(run="a"))
    spending.reserve(planned(run="b", covers=Coverage(everyone=True, colluders=2)))
    spending.reserve(planned(run="c", covers=Coverage(everyone=False, colluders=3)))
    assert Spending(spending.database).lineage("data").covers == Coverage(everyone=False, colluders=2)


def test_a_budget_at_another_delta_compares_at_its_own(spending):
    loss = StatedLoss(0.5, 1e-6)
    run = replace(planned(run="a", refundable=False), loss=loss, stages=(Stage(6, loss),))
    spending.set_budget(Budget(10.0, 1e-7))
    with pytest.raises(Unaccountable, match="to epsilon inf"):
        spending.reserve(run)
    spending.set_budget(Budget(0.5, 1e-6))
    spending.reserve(run)


def test_a_second_process_waits_outside(tmp_path):
    with (
        open_ledger(tmp_path / "ledger"),
        pytest.raises(InputError, match="another process uses it"),
        open_ledger(tmp_path / "ledger"),
    ):
        pass


def test_a_budget_for_sampled_runs_is_compared_to_the_last_bit_too(spending):
    sampled = SampledLoss(2.0, 0.05, 6)
    first = replace(planned(run="a", refundable=False), loss=sampled, stages=(Stage(6, sampled),))
    spending.reserve(first)
    second = planned(mu=0.3, run="b")
    needed = compose([second.loss, sampled]).epsilon(DELTA)
    spending.set_budget(Budget(math.nextafter(needed, 0.0), DELTA))
    with pytest.raises(Unaccountable):
        spending.reserve(second)
    spending.set_budget(Budget(needed, DELTA))
    spending.reserve(second)
    for run in ("a", "b"):
        spending.spend(run, 1)
        spending.settle(run)
    losses = [sampled, GaussianLoss(0.3 * (1 / 6) ** 0.5)]
    assert spending.lineage("data").counted.epsilon(DELTA) == compose(losses).epsilon(DELTA), (
        "sampled gives nothing back"
    )
