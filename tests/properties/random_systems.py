"""Random graphs and settings, and a simulator of a few algorithms that shares no code with the package.

It follows the published updates, x_u <- sum_v W_uv (x_v - g_v - noise), with a row of coefficients for each state.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from sottovoce import Graph, algorithm, metropolis, trace


@dataclass(frozen=True)
class System:
    """What was drawn: an algorithm on a graph, for some rounds, seen by some members (none: everyone)."""

    name: str
    n: int
    edges: tuple[tuple[int, int], ...]
    rounds: int
    sigma: float
    pair: float
    gossip_steps: int
    members: tuple[int, ...]

    @property
    def view(self) -> str:
        if not self.members:
            return "everyone"
        return f"node:{self.members[0]}" if len(self.members) == 1 else "coalition:" + ",".join(map(str, self.members))

    def traced(self, rounds: int | None = None):
        settings = {"sigma": self.sigma, "step_size": 1.0}
        if self.name == "decor":
            settings["sigma_pair"] = self.pair
        if self.name == "muffliato-sgd":
            settings["gossip_steps"] = self.gossip_steps
        net = metropolis(Graph.from_edges(np.array(self.edges), name="drawn", directed=False, nodes=self.n))
        return trace(algorithm(self.name, **settings), net, rounds=self.rounds if rounds is None else rounds)

    def weights(self) -> np.ndarray:
        """Metropolis: 1 / (1 + the larger degree), and the rest for oneself."""
        W = np.zeros((self.n, self.n))
        degree = np.bincount(np.ravel(self.edges), minlength=self.n)
        for a, b in self.edges:
            W[a, b] = W[b, a] = 1 / (1 + max(degree[a], degree[b]))
        return W + np.diag(1 - W.sum(axis=1))

    def hears(self, node: int) -> bool:
        if not self.members:
            return True
        return node not in self.members and any({node, member} in map(set, self.edges) for member in self.members)

    def matrices(self) -> tuple[np.ndarray, np.ndarray]:
        """A (messages, rounds, nodes) and B of what is heard, without the noise that members know."""
        n, T, E = self.n, self.rounds, len(self.edges)
        W, width = self.weights(), n + n + E
        state = np.zeros((n, T * width))
        heard = []
        for t in range(T):
            for u in range(n):
                state[u, t * width + u] -= 1.0
                state[u, t * width + n + u] -= self.sigma
            if self.name == "decor":
                for e, (a, b) in enumerate(self.edges):
                    state[a, t * width + 2 * n + e] -= self.pair
                    state[b, t * width + 2 * n + e] += self.pair
            for _ in range(self.gossip_steps if self.name == "muffliato-sgd" else 1):
                heard += [state[v].copy() for v in range(n) if self.hears(v)]
                state = W @ state
        rows = np.array(heard).reshape(len(heard), T, width)
        noise = rows[:, :, n:]
        secrets = [n + e for e, edge in enumerate(self.edges) if set(edge) & set(self.members)]
        known = [*self.members, *secrets]
        hidden = np.setdiff1d(np.arange(n + E), known)
        return rows[:, :, :n], noise[:, :, hidden].reshape(len(heard), -1)

    def loss_matrix(self, victim: int) -> np.ndarray:
        """M: what changes of the victim's gradients in each round tell, together."""
        A, B = self.matrices()
        basis, sizes, _ = np.linalg.svd(B, full_matrices=False)
        kept = sizes > 1e-9 * sizes[0]
        inside = (basis[:, kept] / sizes[kept]).T @ A[:, :, victim]
        return inside.T @ inside

    def victims(self) -> list[int]:
        return [node for node in range(self.n) if node not in self.members]


def attained(M: np.ndarray) -> float:
    """The largest loss of changes along one line: an attack that is there, whatever the dimension."""
    T = len(M)
    return max(float(np.array(s) @ M @ np.array(s)) for s in itertools.product((1, -1), repeat=T))


@st.composite
def systems(draw, names=("dp-d-sgd", "muffliato-sgd", "decor"), most_nodes=6, most_rounds=4) -> System:
    """A connected graph: a random tree and some more edges."""
    n = draw(st.integers(2, most_nodes))
    tree = {(draw(st.integers(0, node - 1)), node) for node in range(1, n)}
    others = [pair for pair in itertools.combinations(range(n), 2) if pair not in tree]
    more = set(draw(st.lists(st.sampled_from(others), max_size=4))) if others else set()
    members = draw(st.lists(st.integers(0, n - 1), max_size=min(2, n - 1), unique=True))
    return System(
        name=draw(st.sampled_from(names)), n=n, edges=tuple(sorted(tree | more)),
        rounds=draw(st.integers(1, most_rounds)),
        sigma=draw(st.sampled_from([1e-3, 0.3, 1.0, 7.0, 1e4])), pair=draw(st.sampled_from([0.1, 1.0, 30.0])),
        gossip_steps=draw(st.integers(1, 3)), members=tuple(sorted(members)),
    )  # fmt: skip
