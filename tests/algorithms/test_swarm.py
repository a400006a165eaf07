"""A rotating aggregator: its figures against dense linear algebra that shares no code with the package."""

import json
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from sottovoce import InputError, Unaccountable, account, algorithm, dropout, trace, weigh
from sottovoce.privacy.views import parse_view


def turns(n, rounds):
    return [round % n for round in range(rounds)]


def rows_of(n, aggregators, members, *, present=None, shares=None, sums=False):
    """What a coalition sees of a swarm, and where gradients are taken, over columns (kind, round, node)."""
    T = len(aggregators)
    column = {(kind, t, v): k for k, (kind, t, v) in enumerate(np.ndindex(2, T, n))}
    unit = np.eye(len(column))
    x, seen, asked = np.zeros((n, len(column))), [], []
    shares = np.ones(n) if shares is None else np.asarray(shares, dtype=float)
    for t, a in enumerate(aggregators):
        there = range(n) if present is None else present[t]
        if a is None:
            continue
        asked += [(len(seen), v, x[v].copy()) for v in there if v not in members]
        y = {v: x[v] - unit[column[0, t, v]] - unit[column[1, t, v]] for v in there}
        others = [v for v in there if v != a]
        if a in members:
            seen += [sum(shares[v] * y[v] for v in others)] if sums else [y[v] for v in others]
        mean = sum(shares[v] * y[v] for v in there) / sum(shares[v] for v in there)
        seen.append(mean)
        x = np.tile(mean, (n, 1))
    hidden = [column[key] for key in column if key[2] not in members]
    return np.array(seen), asked, column, hidden


def oracle(n, aggregators, members, victim, sigma, **where):
    """mu of a victim at user level. The loss has no terms between rounds, so no direction is better than another."""
    seen, asked, column, hidden = rows_of(n, aggregators, members, **where)
    T = len(aggregators)
    O = np.zeros_like(seen)
    O[:, hidden] = seen[:, hidden]
    for before, _, point in asked:  # every point that is asked about is known: closed, so proven for any training
        unknown = np.zeros_like(point)
        unknown[hidden] = point[hidden]
        fitted = O[:before].T @ np.linalg.lstsq(O[:before].T, unknown, rcond=None)[0] if before else 0 * unknown
        assert np.abs(unknown - fitted).max() < 1e-9
    B = sigma * O[:, [k for (kind, _, _), k in column.items() if kind]]
    A = O[:, [column[0, t, victim] for t in range(T)]]
    M = A.T @ np.linalg.pinv(B @ B.T, rcond=1e-10) @ A
    assert np.abs(M - np.diag(np.diag(M))).max() < 1e-9
    return np.sqrt(np.trace(M))


def figures(net, view, rounds, sigma=1.0, **settings):
    found = account(trace(algorithm("swarm", sigma=sigma), net, rounds=rounds), view, covering=False, **settings)
    return {one.victim: one.mu for one in found.guarantees if one.kind == "any-training"}


@pytest.mark.parametrize(
    ("options", "mu"),
    [
        ("", 24**0.5),
        ("--view node:3", 6**0.5),
        ("--view coalition:2,5", 3.0),
        ("--view node:3 --secure-sum", (24 / 7) ** 0.5),
        ("--view coalition:2,5 --secure-sum", 2.0),
    ],
)
def test_eight_nodes_over_24_rounds(sotto, options, mu):
    code, out, err = sotto(f"account --algorithm swarm --graph complete:8 --rounds 24 --sigma 1 --json {options}")
    assert code == 0, err
    best = json.loads(out)["headline"]
    assert best["kind"] == "any-training"
    assert mu * (1 - 1e-15) <= best["mu"] <= mu * (1 + 1e-9)


def test_everyone_means_single_nodes_where_only_sums_are_seen(sotto):
    """As a view of an algorithm, and as an algorithm of sums: wires carry nothing but masks."""
    code, out, err = sotto("account --algorithm swarm --graph complete:4 --rounds 6 --sigma 1 --secure-sum --json")
    assert code == 0, err
    net, built = weigh("complete:4", "rotating"), algorithm("swarm", sigma=1.0)
    for view in ("everyone", parse_view("everyone", secure_sum=True)):
        found = account(trace(replace(built, secure_sum=view == "everyone"), net, rounds=6), view)
        assert found.mu == json.loads(out)["headline"]["mu"] == pytest.approx(2**0.5)
        assert (found.coverage.everyone, found.coverage.colluders) == (False, 1)


@pytest.mark.parametrize("members", [(0,), (1, 3), (0, 2, 4)])
@pytest.mark.parametrize("shares", [None, (1, 2, 3, 4, 5, 6)])
def test_coalitions_and_unequal_shares(members, shares):
    spec = "rotating" if shares is None else "rotating,shares=1:2:3:4:5:6"
    view = "coalition:" + ",".join(map(str, members)) if len(members) > 1 else f"node:{members[0]}"
    found = figures(weigh("complete:6", spec), view, 9, sigma=1.5)
    assert set(found) == set(range(6)) - set(members)
    for victim, mu in found.items():
        expected = oracle(6, turns(6, 9), members, victim, 1.5, shares=shares)
        assert expected * (1 - 1e-9) <= mu <= expected * (1 + 1e-6)


@pytest.mark.parametrize("spec", ["rotating,least=3", "rotating,order=4--1", "rotating,order=coin:11,least=4"])
def test_members_that_are_missing(spec):
    net = dropout("complete:5", rate=0.35, seed=3, weights=spec, announced=True)
    rounds, aggregators, present = 10, [], []
    for t in range(rounds):
        active, to_all = net.at(t, 0).active, net.at(t, 1).weights.toarray()
        active = np.ones(5, dtype=bool) if active is None else active
        there = np.flatnonzero(active)
        idle = not len(there)
        aggregators.append(None if idle else int(np.flatnonzero(to_all[0])[0]))
        present.append(there)
        assert idle or (aggregators[-1] in there and len(there) >= (3 if "least=3" in spec else 1))
    assert len({len(one) for one in present}) > 1
    assert None in aggregators  # nobody takes the turn of another
    for members in ((0,), (1, 3)):
        view = "node:0" if members == (0,) else "coalition:1,3"
        for victim, mu in figures(net, view, rounds).items():
            expected = oracle(5, aggregators, members, victim, 1.0, present=present)
            assert expected * (1 - 1e-9) <= mu <= expected * (1 + 1e-6)


@pytest.mark.parametrize("shares", [(1, 1, 1, 1), (5, 1, 2, 4)])
@pytest.mark.parametrize(("least", "members"), [(3, (1,)), (2, (1,)), (3, (0, 2)), (1, (3,)), (4, (1,))])
def test_whoever_is_missing_the_worst_is_accounted_for(shares, least, members):
    """The figure is that of the worst of all lists of who was there, each by dense linear algebra."""
    rounds, everybody = 3, range(4)
    spec = f"rotating,least={least},shares={':'.join(map(str, shares))}"
    view = f"coalition:{','.join(map(str, members))}" if len(members) > 1 else f"node:{members[0]}"
    for victim, mu in figures(weigh("complete:4", spec), view, rounds, sigma=1.3).items():
        there = [[set(one) for size in everybody for one in combinations(everybody, size + 1)
                  if size + 1 >= least and {a, victim} <= set(one)] for a in turns(4, rounds)]  # fmt: skip
        worst = max(
            oracle(4, turns(4, rounds), members, victim, 1.3, shares=shares, present=[sorted(one) for one in present])
            for present in product(*there)
        )
        assert worst * (1 - 1e-9) <= mu <= worst * (1 + 1e-9)


def test_who_was_there_may_follow_from_messages_but_not_from_noise_of_the_round():
    """Log likelihood ratios of whoever hears the means of 4 and keeps 2 others away: their mean is at most mu^2 / 2."""
    rng, rounds = np.random.default_rng(5), 12
    mu = figures(weigh("complete:4", "rotating,least=3"), "node:0", rounds)[3]

    def mean_ratio(by_noise, trials=100_000):
        found, heard = np.zeros(trials), np.zeros(trials)
        for a in turns(4, rounds):
            noise = rng.normal(size=(trials, 4))
            chosen = np.abs(noise[:, 1]) < np.abs(noise[:, 2]) if by_noise else heard > 0.3
            other = np.full(trials, a) if a in (1, 2) else np.where(chosen, 1, 2)
            hiding = noise[:, 3] if a == 0 else noise[:, 3] + noise[np.arange(trials), other]
            variance = 1.0 if a == 0 else 2.0
            heard = 1.0 + hiding
            found += (heard - 0.5) / variance
        return found.mean() / (mu**2 / 2), found.std() / np.sqrt(mu**2)

    honest, spread = mean_ratio(by_noise=False)
    assert honest < 1.01
    assert 0.99 < spread < 1.01
    assert mean_ratio(by_noise=True)[1] < 0.97  # less noise than was accounted for


def test_what_is_not_about_one_view_is_refused_where_members_may_be_missing(sotto):
    some = "--algorithm swarm --graph complete:4 --weights rotating,least=3 --rounds 4"
    code, _, err = sotto(f"account {some} --all-pairs")
    assert code != 0
    assert "least=3" in err
    code, out, _ = sotto(
        "account --algorithm swarm --graph complete:8 --weights rotating,least=2 --rounds 24 --view node:3 --json"
    )
    assert (code, json.loads(out)["headline"]["mu"]) == (0, pytest.approx(15**0.5))
    code, out, _ = sotto(
        "calibrate --algorithm swarm --graph complete:8 --weights rotating,least=6 --rounds 24 --view node:3 "
        "--epsilon 4 --json"
    )
    held = json.loads(out)["headline"]
    assert held["epsilon"] <= 4
    for secure, expected in (("", 3 + 21 / 5), (" --secure-sum", 24 / 5)):
        _, out, _ = sotto(
            f"account --algorithm swarm --graph complete:8 --weights rotating,least=6 --rounds 24 --view node:3{secure}"
            " --json"
        )
        assert json.loads(out)["headline"]["mu"] == pytest.approx(expected**0.5)


def test_who_is_missing_goes_on_from_the_mean_it_was_sent():
    net = dropout("complete:4", rate=0.5, seed=1, weights="rotating", announced=True)
    missing = next(t for t in range(20) if net.at(t, 0).active is not None and net.at(t, 0).active.any())
    assert (net.at(missing, 1).weights.toarray() == net.at(missing, 1).weights.toarray()[0]).all()
    assert net.at(missing, 1).active is None


def test_orders():
    def who(spec, rounds=6, graph="complete:5"):
        net = weigh(graph, spec)
        return [int(np.flatnonzero(net.at(t, 1).weights.toarray()[0])[0]) for t in range(rounds)]

    assert who("rotating") == [0, 1, 2, 3, 4, 0]
    assert who("rotating,order=3--1") == [3, 1] * 3
    assert who("rotating,order=0", graph="star:5") == [0] * 6
    coin = who("rotating,order=coin:7", 200)
    assert coin == who("rotating,order=coin:7", 200) != who("rotating,order=coin:8", 200)
    assert min(np.bincount(coin)) > 20
    assert who("rotating,order=North--Hill", 2, "edges:Hill--Mercy,Hill--North,Mercy--North") == [2, 0]
    assert who("rotating,order=1", 2, "edges:1--2,1--3,2--3") == [1, 1]  # node:1, as in views: a number is no name


def test_a_server_that_is_no_victim_sees_everything():
    """FedAvg with a server: the hub of a star hears all, every round; whom it serves learns only means."""
    net = weigh("star:9", "rotating,order=0")
    assert figures(net, "node:0", 24)[3] == pytest.approx(24**0.5)
    assert figures(net, "node:3", 24)[4] == pytest.approx((24 / 8) ** 0.5)


@pytest.mark.parametrize(
    "spec", ["rotating,order=9", "rotating,order=", "rotating,least=0", "rotating,least=7", "rotating,shares=1:2",
             "rotating,shares=1:1:1:0", "rotating,lazy=0.5", "rotating,order=coin:x", "rotating,order=coin:-1"]
)  # fmt: skip
def test_rotations_that_are_refused(spec):
    with pytest.raises(InputError, match="rotating"):
        weigh("complete:4", spec)


def test_graphs_and_weights_that_do_not_rotate_are_refused():
    with pytest.raises(InputError, match="aggregator"):
        weigh("ring:5", "rotating")
    with pytest.raises(InputError, match="announced"):
        dropout("complete:5", rate=0.2, weights="rotating")
    for other in ("metropolis", "uniform"):
        with pytest.raises((InputError, Unaccountable), match="rotating weights"):
            trace(algorithm("swarm", sigma=1.0), weigh("complete:5", other), rounds=2)
