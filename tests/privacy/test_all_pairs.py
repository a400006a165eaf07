"""All pairs: the same as one attacker at a time, resumable, never mixed up."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sottovoce import InputError, account, algorithm, metropolis, trace
from sottovoce.core.participation import parse_participation
from sottovoce.privacy.all_pairs import all_pairs, pairs_cost, sampled_attackers
from sottovoce.support import limits

EVERY = parse_participation("every")
SYSTEM = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("florentine"), rounds=4)


def test_rows_are_what_account_says():
    mu = all_pairs(SYSTEM, EVERY)
    assert not mu.diagonal().any()
    for attacker in (0, 7):
        result = account(SYSTEM, f"node:{attacker}", kinds=["fixed-streams"])
        for guarantee in result.guarantees:
            assert mu[attacker, guarantee.victim] == pytest.approx(guarantee.mu)


def test_a_store_is_resumed_after_any_cut(tmp_path):
    store, calls = tmp_path / "pairs.jsonl", []
    whole = all_pairs(SYSTEM, EVERY, store=store, progress=lambda done, of: calls.append((done, of)))
    assert calls[-1] == (15, 15)
    lines = store.read_text().splitlines(keepends=True)
    assert len(lines) == 16
    for cut in (1, 5, len(lines)):
        store.write_text("".join(lines[:cut]) + lines[3][:20])
        np.testing.assert_array_equal(all_pairs(SYSTEM, EVERY, store=store), whole)
        assert len(store.read_text().splitlines()) == 16


def test_a_store_that_lacks_its_last_line_end_is_resumed(tmp_path):
    store = tmp_path / "pairs.jsonl"
    whole = all_pairs(SYSTEM, EVERY, store=store)
    lines = store.read_text().splitlines(keepends=True)
    store.write_text("".join(lines[:6])[:-1])
    np.testing.assert_array_equal(all_pairs(SYSTEM, EVERY, store=store), whole)
    assert store.read_text().splitlines(keepends=True)[:6] == lines[:6]
    assert len(store.read_text().splitlines()) == 16


def test_attackers_that_are_stored_are_counted_first_and_the_rest_is_named_before_it_begins(tmp_path):
    store, calls = tmp_path / "pairs.jsonl", []
    some = sampled_attackers(15, 4, seed=3)
    all_pairs(SYSTEM, EVERY, attackers=some, store=store)
    before = store.read_text()

    def refuse(left):
        calls.append(left)
        raise InputError("too much", "it takes long", "take less")

    with pytest.raises(InputError, match="too much"):
        all_pairs(SYSTEM, EVERY, store=store, begin=refuse, progress=lambda *reached: calls.append(reached))
    assert calls == [[attacker for attacker in range(15) if attacker not in some]]
    assert store.read_text() == before
    with pytest.raises(InputError, match="too much"):
        all_pairs(SYSTEM, EVERY, store=tmp_path / "new", begin=refuse)
    assert not (tmp_path / "new").exists()
    calls.clear()
    all_pairs(SYSTEM, EVERY, store=store, begin=calls.append, progress=lambda *reached: calls.append(reached))
    assert calls[1:] == [(done, 15) for done in range(4, 16)]


def test_what_is_stored_is_not_computed_again(tmp_path, monkeypatch):
    store = tmp_path / "pairs.jsonl"
    whole = all_pairs(SYSTEM, EVERY, store=store)
    monkeypatch.setattr("sottovoce.privacy.all_pairs.observe", None)
    np.testing.assert_array_equal(all_pairs(SYSTEM, EVERY, store=store), whole)


@pytest.mark.parametrize(
    "edit",
    [
        lambda row: row | {"mu": [mu / 100 for mu in row["mu"]]},
        lambda row: row | {"attacker": (row["attacker"] + 1) % 15},
        lambda row: row | {"mu": [10**400] * 15},
        lambda row: row | {"mu": [-1] * 15, "signature": None},
        lambda row: row | {"signature": "\ud800"},
        lambda row: {"attacker": row["attacker"], "mu": [0.0] * 15},
    ],
)
def test_a_forged_line_of_a_store_is_computed_anew(tmp_path, edit):
    store = tmp_path / "pairs.jsonl"
    whole = all_pairs(SYSTEM, EVERY, store=store)
    title, *rows = store.read_text().splitlines()
    store.write_text("\n".join([title, *(json.dumps(edit(json.loads(row))) for row in rows)]) + "\n")
    np.testing.assert_array_equal(all_pairs(SYSTEM, EVERY, store=store), whole)
    np.testing.assert_array_equal(all_pairs(SYSTEM, EVERY, store=store), whole)


def test_a_store_belongs_to_one_system(tmp_path):
    store = tmp_path / "pairs.jsonl"
    all_pairs(SYSTEM, EVERY, store=store)
    for other in (
        trace(algorithm("dp-d-sgd", sigma=2.0), metropolis("florentine"), rounds=4),
        trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("florentine"), rounds=5),
    ):
        with pytest.raises(InputError, match="figures of another system"):
            all_pairs(other, EVERY, store=store)
    with pytest.raises(InputError, match="figures of another system"):
        all_pairs(SYSTEM, parse_participation("2x2"), store=store)


def test_a_store_with_an_unknown_key_is_refused_with_the_key(tmp_path):
    store = tmp_path / "pairs.jsonl"
    all_pairs(SYSTEM, EVERY, store=store)
    title, rows = store.read_text().split("\n", 1)
    store.write_text(json.dumps(json.loads(title) | {"sold_to": "nobody"}) + "\n" + rows)
    with pytest.raises(InputError, match=r"another system \(its first line also has 'sold_to'\)"):
        all_pairs(SYSTEM, EVERY, store=store)


@pytest.mark.parametrize("there", [True, False])
def test_a_store_that_is_a_link_is_refused_and_what_it_leads_to_stays(tmp_path, there):
    target, store = tmp_path / "elsewhere", tmp_path / "pairs.jsonl"
    if there:
        all_pairs(SYSTEM, EVERY, store=target)
    before = target.read_bytes() if there else None
    store.symlink_to(target)
    with pytest.raises(InputError, match=r"pairs\.jsonl is a link; a regular file is needed here"):
        all_pairs(SYSTEM, EVERY, store=store)
    assert store.is_symlink()
    assert (target.read_bytes() if there else None) == before
    assert target.exists() is there


def test_a_sample_of_attackers_is_a_part_of_all(tmp_path):
    store = tmp_path / "pairs.jsonl"
    some = sampled_attackers(15, 4, seed=3)
    assert some == sorted(set(some))
    rows = all_pairs(SYSTEM, EVERY, attackers=some, store=store)
    assert len(store.read_text().splitlines()) == 5
    whole = all_pairs(SYSTEM, EVERY, store=store)  # goes on from there
    np.testing.assert_array_equal(whole[some], rows)
    assert len(store.read_text().splitlines()) == 16
    with pytest.raises(InputError, match="a sample of 16 attackers"):
        sampled_attackers(15, 16, seed=0)


def test_limits_that_are_lifted_are_lifted_in_every_thread(monkeypatch):
    monkeypatch.setattr(limits, "SECONDS", 0.0)
    with pytest.raises(InputError, match="--yes"):
        all_pairs(SYSTEM, EVERY)
    with limits.limits_lifted():
        assert all_pairs(SYSTEM, EVERY).shape == (15, 15)


def test_the_estimate_of_pairs_grows_with_attackers():
    few, many = (pairs_cost(SYSTEM, EVERY, range(count)).seconds for count in (3, 15))
    assert 3 * few < many
