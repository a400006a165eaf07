"""Accounts of a start that was killed are not computed again, and nobody else's are believed."""

from __future__ import annotations

import json

import pytest

from sottovoce.run import run_accountant, stored_accounts
from sottovoce.run.execute import run_experiment
from sottovoce.support.auditor_key import state_folder
from sottovoce.support.config import parse_experiment

DOCUMENT = {
    "name": "try", "noise_key": 16 * "5a", "topology": {"graph": "ring:5"}, "data": {"rows": 20},
    "training": {"rounds": 3, "bound": 1.0, "clip": "per-example", "batch": "full"},
    "algorithm": {"name": "dp-d-sgd", "sigma": 1.0}, "metrics": {"every": 2, "test_rows": 20},
    "privacy": {"attackers": "all"},
}  # fmt: skip


@pytest.fixture
def accounted(monkeypatch, tmp_path):
    """The views that are accounted for, in order; all of them are stored at once."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(stored_accounts, "INTERVAL", 0.0)
    views, before = [], run_accountant.account_for_each

    def counted(system, adversaries, **settings):
        accounts = before(system, adversaries, **settings)
        for view in adversaries:
            if system.rounds == 3:  # the others are about earlier rounds
                views.append(str(view))
            if len(views) == 7:
                raise KeyboardInterrupt
            yield next(accounts)

    monkeypatch.setattr(run_accountant, "account_for_each", counted)
    return views


def run(folder, **changes):
    return run_experiment(parse_experiment(DOCUMENT | changes), folder)


def stored():
    return sorted((state_folder() / "accounts").glob("*.jsonl"))


def test_a_second_start_goes_on_where_the_first_was_stopped(accounted, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "one")
    first, (path,) = accounted[:6], stored()
    assert [json.loads(json.loads(line)["account"])["view"] for line in path.read_text().splitlines()] == first
    assert not (tmp_path / "one").exists()
    path.write_text(path.read_text() + path.read_text()[:50])  # a kill while it was written
    accounted.clear()
    run(tmp_path / "one")
    assert set(accounted).isdisjoint(first)
    assert stored() == []
    accounted[:] = [""] * 20
    run(tmp_path / "two")
    assert (tmp_path / "one/privacy.json").read_text() == (tmp_path / "two/privacy.json").read_text()


@pytest.mark.parametrize("how", ["another user's", "edited", "another run's"])
def test_nothing_is_taken_that_was_not_signed_for_this_run(how, accounted, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "one")
    first, (path,) = accounted[:6], stored()
    if how == "another user's":
        (state_folder() / "auditor.key").write_bytes(bytes(32))
        stored_accounts.sign.__globals__["_key"].cache_clear()
    elif how == "edited":
        path.write_text(path.read_text().replace('\\"mu\\": ', '\\"mu\\": 0'))
    else:
        accounted.clear()
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "other", algorithm={"name": "dp-d-sgd", "sigma": 4.0})
        other = next(one for one in stored() if one != path)
        path.write_bytes(other.read_bytes())
    accounted.clear()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "one")
    assert accounted[:6] == first, "all anew"
