"""The papers' pseudo-code, written out node by node, against our compositions; only the noise draws are shared."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import algorithm, graph, iterate_rounds, metropolis, push, trace, train
from sottovoce.core.random_streams import NoiseKey

D = 3


def task(n, seed=0):
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((n, D, D)), rng.standard_normal((n, D))
    return lambda u, x: np.tanh(A[u] @ x + b[u])


def stacked(single, n):
    return lambda round, x: np.stack([single(u, x[u]) for u in range(n)])


def node_noise(seed, rounds, n):
    """One row per (round, node), as the loop draws them."""
    Z = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis(f"complete:{n}"), rounds=rounds).draw(
        NoiseKey.of_seed(seed), D
    )
    return Z.reshape(rounds, n, D)


@pytest.mark.parametrize("spec", ["star:4", "exponential:6", "path:5"])
def test_dp_csgp_algorithm_1(spec):
    """With x^1 = 0: send, mix, step; identity compression."""
    net, T, eta, sigma = push(spec), 6, 0.3, 0.7
    n = net.n
    A = net.at(0).weights.toarray()
    single, N = task(n), node_noise(5, T, n)
    x, x_hat, y = np.zeros((n, D)), np.zeros((n, D)), np.ones(n)
    points = []
    for t in range(T):
        q = x - x_hat
        x_hat = x_hat + q
        w = x - x_hat + A @ x_hat
        y = A @ y
        z = w / y[:, None]
        points.append(z)
        x = w - eta * (np.stack([single(u, z[u]) for u in range(n)]) + sigma * N[t])
    built = algorithm("dp-csgp", sigma=sigma, step_size=eta)
    played = list(
        iterate_rounds(built, net, np.zeros((n, D)), stacked(single, n), rounds=T, noise_key=NoiseKey.of_seed(5))
    )
    for ours, paper in zip(played, points, strict=True):
        np.testing.assert_allclose(ours.point, paper, atol=1e-12)
    np.testing.assert_allclose(played[-1].steps[-1].sent, x, atol=1e-12)


def chebyshev(W, t, gamma):
    """P_t(W) by Definition 3."""
    before, now = np.eye(len(W)), W
    if t == 0:
        return before
    for _ in range(t - 1):
        before, now = now, gamma * W @ now + (1 - gamma) * before
    return now


@pytest.mark.parametrize("accelerated", [False, True])
def test_muffliato_algorithms_1_and_3(accelerated):
    net, K, T, nu, sigma = metropolis("florentine"), 4, 3, 0.2, 0.5
    n, W = net.n, net.at(0).weights.toarray()
    gap = 1 - np.sort(abs(np.linalg.eigvalsh(W)))[-2]
    gamma = 2 * (1 - np.sqrt(gap * (1 - gap / 4))) / (1 - gap / 2) ** 2 if accelerated else 1.0
    single, N = task(n), node_noise(1, T, n)
    theta = np.zeros((n, D))
    for t in range(T):
        stepped = theta - nu * np.stack([single(v, theta[v]) for v in range(n)])
        theta = chebyshev(W, K, gamma) @ (stepped - nu * sigma * N[t])
    built = algorithm("muffliato-sgd", sigma=sigma, gossip_steps=K, chebyshev=accelerated, step_size=nu)
    ours = train(built, net, np.zeros((n, D)), stacked(single, n), rounds=T, noise_key=NoiseKey.of_seed(1))
    np.testing.assert_allclose(ours, theta, atol=1e-12)
    values = np.random.default_rng(0).standard_normal((n, D))
    averaging = algorithm("muffliato", sigma=sigma, chebyshev=accelerated)
    ours = train(
        averaging,
        net,
        np.zeros((n, D)),
        lambda t, x: values if t == 0 else 0 * x,
        rounds=K,
        noise_key=NoiseKey.of_seed(1),
    )
    np.testing.assert_allclose(ours, chebyshev(W, K, gamma) @ (values + sigma * N[0]), atol=1e-12)


def test_zip_dl_algorithms_1_and_2():
    net, T, gamma, zeta = metropolis("florentine"), 4, 0.3, 0.8
    n, W = net.n, net.at(0).weights.toarray()
    single = task(n)
    built = algorithm("zip-dl", sigma=zeta, step_size=gamma)
    Y_all = trace(built, net, rounds=T).draw(NoiseKey.of_seed(2), D).reshape(T, -1, D)
    x = np.zeros((n, D))
    for t in range(T):
        half = x - gamma * np.stack([single(a, x[a]) for a in range(n)])
        received, at = np.zeros((n, D)), 0
        for a in range(n):
            near = np.flatnonzero(W[a])
            Y = {v: gamma * zeta * Y_all[t, at + i] for i, v in enumerate(near)}
            at += len(near)
            total = sum(W[a, j] * Y[j] for j in near)
            for v in near:
                received[v] += W[v, a] * (half[a] + Y[v] - total / (len(near) * W[a, v]))
        x = received
    ours = train(built, net, np.zeros((n, D)), stacked(single, n), rounds=T, noise_key=NoiseKey.of_seed(2))
    np.testing.assert_allclose(ours, x, atol=1e-12)


@pytest.mark.parametrize("name", ["mf-d-sgd", "anti-pgd", "dp-d-sgd"])
def test_mf_d_sgd_equation_5(name):
    """theta = (I x W)(M theta_0 - eta W_T (G + C^+ Z))."""
    net, T, eta, sigma = metropolis("karate"), 5, 0.1, 0.6
    n, W = net.n, net.at(0).weights.toarray()
    C = {"mf-d-sgd": np.tril(np.ones((T, T))) + np.eye(T), "anti-pgd": np.tril(np.ones((T, T))), "dp-d-sgd": np.eye(T)}
    settings = {"correlation": C[name]} if name == "mf-d-sgd" else {}
    single = task(n)
    theta_0 = np.random.default_rng(3).standard_normal((n, D))
    built = algorithm(name, sigma=sigma, step_size=eta, **settings)
    played = list(iterate_rounds(built, net, theta_0, stacked(single, n), rounds=T, noise_key=NoiseKey.of_seed(4)))
    G = np.concatenate([stacked(single, n)(0, r.point) for r in played])
    Z = sigma * node_noise(4, T, n).reshape(T * n, D)
    powers = [np.linalg.matrix_power(W, k) for k in range(T)]
    workload = np.block([[powers[t - s] if s <= t else np.zeros((n, n)) for s in range(T)] for t in range(T)])
    M = np.concatenate(powers)
    theta = np.kron(np.eye(T), W) @ (
        M @ theta_0 - eta * workload @ (G + np.kron(np.linalg.inv(C[name]), np.eye(n)) @ Z)
    )
    np.testing.assert_allclose(played[-1].models, theta[-n:], atol=1e-11)


def test_decor_by_its_definition():
    net, T, eta, own, pair = metropolis("florentine"), 3, 0.2, 0.5, 2.0
    n, W = net.n, net.at(0).weights.toarray()
    single = task(n)
    built = algorithm("decor", sigma=own, sigma_pair=pair, step_size=eta)
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n) if graph("florentine").adjacency[u, v]]
    Z = trace(built, net, rounds=T).draw(NoiseKey.of_seed(9), D).reshape(T, n + len(pairs), D)
    x = np.zeros((n, D))
    for t in range(T):
        noise = own * Z[t, :n]
        for (u, v), secret in zip(pairs, Z[t, n:], strict=True):
            noise[u] += pair * secret
            noise[v] -= pair * secret
        x = W @ (x - eta * (np.stack([single(u, x[u]) for u in range(n)]) + noise))
    np.testing.assert_allclose(
        train(built, net, np.zeros((n, D)), stacked(single, n), rounds=T, noise_key=NoiseKey.of_seed(9)),
        x,
        atol=1e-12,
    )


def test_dp2sgd_steps_while_models_travel():
    net, T, eta, sigma = metropolis("path:4"), 5, 0.2, 0.5
    n, W = net.n, net.at(0).weights.toarray()
    single, N = task(n), node_noise(3, T, n)
    x = np.zeros((n, D))
    for t in range(T):
        x = W @ x - eta * (np.stack([single(u, x[u]) for u in range(n)]) + sigma * N[t])
    built = algorithm("dp2sgd", sigma=sigma, step_size=eta)
    np.testing.assert_allclose(
        train(built, net, np.zeros((n, D)), stacked(single, n), rounds=T, noise_key=NoiseKey.of_seed(3)),
        x,
        atol=1e-12,
    )
