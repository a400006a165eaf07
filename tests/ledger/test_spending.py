"""Budgets: compared to the last bit, reserved before anything is sent, and given back only where that is proven."""

from __future__ import annotations

import math

import pytest

from sottovoce.errors import InputError, Unaccountable
from sottovoce.ledger.database import open_ledger
from sottovoce.ledger.lineages import Budget
from sottovoce.ledger.spending import Spending
from sottovoce.privacy.composition import GaussianLoss, compose
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
    with pytest.raises(InputError, match="a run is in one"):
        spending.reserve(planned(mu=3.0), "data")


def test_data_is_known_by_a_salted_hash_and_stays_the_same(spending, tmp_path):
    spending.reserve(planned(data="fingerprint of rows"))
    with pytest.raises(InputError, match="other data than it began with"):
        spending.reserve(planned(data="fingerprint of other rows"))
    assert b"fingerprint of rows" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


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
