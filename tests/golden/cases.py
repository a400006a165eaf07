"""What is recorded: small training runs, and command lines that answer with one JSON document.

Everything here is input to the command line, so that the same cases run before and after a refactoring.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

Document = dict[str, Any]

BAND, TABLE = "band.npz", "table.npz"
"""Input files of some cases: a correlation matrix C, and a data set with values to predict."""

ROUNDS = 8

COMMON: Document = {
    "seed": 7,
    "data": {"name": "digits", "rows": 24},
    "noise_key": 16 * "5a",
    "topology": {"graph": "ring:6"},
    "training": {"rounds": ROUNDS, "clip": "per-example", "bound": 1.0},
    "privacy": {"attackers": [0], "exact_noise": False},
    "metrics": {"every": 2, "test_rows": 120},
}
"""Settings of every run, unless it says otherwise. Attackers are named: `auto` depends on what is cheap.

Exact noise is off but in one run in float64: where a gradient differs in its last bit, as float32 does from processor
to processor, a released value may be rounded to the next multiple of a step.
"""


def _algorithm(name: str, **settings: Any) -> Document:
    return {"name": name, "step_size": 0.5, **settings}


INDEPENDENT = _algorithm("dp-d-sgd", sigma=1.5)
UNCLIPPED = {"rounds": ROUNDS, "clip": "none", "bound": None}
DIRECTED = {"graph": "exponential:6"}
RANDOM = {"graph": "erdos-renyi:7,p=0.5,seed=1"}
ALL_MESSAGES = {"attackers": "all", "every": 3}

RUNS: dict[str, Document] = {
    "d-psgd": {"algorithm": _algorithm("d-psgd"), "training": UNCLIPPED, "record": ALL_MESSAGES},
    "d-psgd-while-speaking": {
        "algorithm": _algorithm("d-psgd", order="while-speaking"), "training": UNCLIPPED, "topology": RANDOM,
    },
    "d-psgd-poisson": {"algorithm": _algorithm("d-psgd"), "training": UNCLIPPED | {"batch": "poisson:0.4"}},
    "d-psgd-directed": {"algorithm": _algorithm("d-psgd"), "topology": DIRECTED | {"weights": "uniform"}},
    "dp-d-sgd": {"algorithm": INDEPENDENT, "record": ALL_MESSAGES, "privacy": {"attackers": "all"}},
    "dp-d-sgd-exact": {
        "algorithm": INDEPENDENT, "machine": {"precision": "float64"}, "privacy": {"exact_noise": True},
    },
    "dp-d-sgd-user": {"algorithm": INDEPENDENT, "topology": RANDOM, "privacy": {"adjacency": "user"}},
    "dp-d-sgd-cycle": {"algorithm": INDEPENDENT, "training": {"batch": "cycle:2x4"}, "seed": 8},
    "dp-d-sgd-poisson": {"algorithm": INDEPENDENT, "training": {"batch": "poisson:0.4"}},
    "dp-d-sgd-fixed": {"algorithm": INDEPENDENT, "training": {"batch": "fixed:6"}},
    "dp-d-sgd-epsilon": {
        "algorithm": _algorithm("dp-d-sgd"), "topology": RANDOM, "training": {"batch": "cycle:4x2"},
        "privacy": {"epsilon": 4.0, "attackers": "all"},
    },
    "dp-d-sgd-epsilon-node": {
        "algorithm": _algorithm("dp-d-sgd"), "privacy": {"epsilon": 3.0, "view": "node:0", "adjacency": "user"},
    },
    "dp-d-sgd-poisson-epsilon": {
        "algorithm": _algorithm("dp-d-sgd"), "training": {"batch": "poisson:0.25"}, "privacy": {"epsilon": 2.0},
    },
    "dp-d-sgd-fresh": {
        "algorithm": INDEPENDENT, "topology": {"graph": "erdos-renyi:6,p=0.6", "fresh": True}, "record": ALL_MESSAGES,
    },
    "dp-d-sgd-dropout": {
        "algorithm": INDEPENDENT, "topology": {"dropout": 0.25, "dropout_correlation": 0.2}, "record": ALL_MESSAGES,
    },
    "dp-d-sgd-random-edges": {"algorithm": INDEPENDENT, "topology": {"random_edges": True}},
    "dp-d-sgd-local-steps": {
        "algorithm": INDEPENDENT, "training": {"clip": "whole-gradient", "local_steps": 3, "batch": "fixed:8"},
        "privacy": {"adjacency": "user"},
    },
    "dp-d-sgd-whole-gradient": {"algorithm": INDEPENDENT, "training": {"clip": "whole-gradient"}},
    "dp-d-sgd-sigma-per-node": {"algorithm": _algorithm("dp-d-sgd", sigma=[1.0, 1.5, 2.0, 2.5, 3.0, 3.5])},
    "dp-d-sgd-unclipped": {"algorithm": INDEPENDENT, "training": UNCLIPPED},
    "dp-d-sgd-mlp": {
        "algorithm": INDEPENDENT, "model": {"name": "mlp", "hidden": [16]}, "training": {"same_start": False},
        "data": {"partition": "dirichlet:0.5", "unit_norm": True},
    },
    "dp-d-sgd-mlp-functional": {
        "algorithm": INDEPENDENT, "model": {"name": "mlp", "hidden": [12, 8], "activation": "tanh"},
        "machine": {"engine": "functional", "precision": "float64"},
    },
    "dp-d-sgd-cnn": {
        "algorithm": INDEPENDENT, "model": {"name": "cnn", "filters": [4, 8], "groups": 2}, "data": {"rows": 8},
        "topology": {"graph": "path:5"}, "metrics": {"every": 4, "test_rows": 40},
    },
    "dp-d-sgd-logistic": {
        "algorithm": _algorithm("dp-d-sgd", sigma=2.0), "data": {"name": "breast-cancer", "unit_norm": True},
        "model": {"name": "logistic"}, "topology": RANDOM, "privacy": {"attackers": "all"}, "record": ALL_MESSAGES,
    },
    "dp-d-sgd-linear": {
        "algorithm": _algorithm("dp-d-sgd", sigma=2.0, step_size=0.05), "model": {"name": "linear"},
        "data": {"name": f"file:{TABLE}", "partition": "user", "rows": None},
    },
    "dp2sgd": {"algorithm": _algorithm("dp2sgd", sigma=1.5), "topology": RANDOM},
    "dp2sgd-directed": {"algorithm": _algorithm("dp2sgd", sigma=1.5), "topology": DIRECTED | {"weights": "uniform"}},
    "muffliato-sgd": {"algorithm": _algorithm("muffliato-sgd", sigma=1.5), "topology": {"random_edges": True}},
    "muffliato-sgd-gossip": {
        "algorithm": _algorithm("muffliato-sgd", sigma=1.5, gossip_steps=3), "topology": RANDOM,
        "record": ALL_MESSAGES,
    },
    "muffliato-sgd-chebyshev": {
        "algorithm": _algorithm("muffliato-sgd", sigma=1.5, gossip_steps=3, chebyshev=True), "topology": RANDOM,
    },
    "zip-dl": {
        "algorithm": _algorithm("zip-dl", sigma=1.5), "privacy": {"adjacency": "user", "attackers": "all"},
        "record": ALL_MESSAGES,
    },
    "zip-dl-message-sigma": {"algorithm": _algorithm("zip-dl", message_sigma=0.5), "training": {"batch": "cycle:4x2"}},
    "zip-dl-dropout": {"algorithm": _algorithm("zip-dl", sigma=1.5), "topology": {"dropout": 0.25, "announced": True}},
    "dp-csgp": {"algorithm": _algorithm("dp-csgp", sigma=1.5), "topology": DIRECTED, "record": ALL_MESSAGES},
    "dp-csgp-rand": {
        "algorithm": _algorithm("dp-csgp", sigma=1.5, compression="rand:0.5"),
        "topology": DIRECTED | {"weights": "push,lazy=0.5"}, "record": ALL_MESSAGES,
    },
    "dp-csgp-gsgd": {"algorithm": _algorithm("dp-csgp", sigma=1.5, compression="gsgd:8"), "topology": DIRECTED},
    "dp-csgp-top": {
        "algorithm": _algorithm("dp-csgp", sigma=1.5, compression="top:0.3"),
        "topology": DIRECTED | {"weights": "push,lazy=0.5"},
    },
    "anti-pgd": {"algorithm": _algorithm("anti-pgd", sigma=1.5), "topology": RANDOM},
    "mf-d-sgd": {"algorithm": _algorithm("mf-d-sgd", sigma=1.5, correlation=BAND)},
    "mafalda": {"algorithm": _algorithm("mafalda", sigma=1.5), "training": {"batch": "cycle:2x4"}},
    "mafalda-correlation": {"algorithm": _algorithm("mafalda", sigma=1.5, correlation=BAND), "topology": RANDOM},
    "decor": {
        "algorithm": _algorithm("decor", sigma=1.5, sigma_pair=3.0), "topology": RANDOM,
        "privacy": {"attackers": "all"},
    },
    "dp-fedavg": {
        "algorithm": _algorithm("dp-fedavg", sigma=1.5), "topology": {"graph": "complete:5"}, "record": ALL_MESSAGES,
    },
    "secure-average": {"algorithm": _algorithm("secure-average", sigma=1.5), "topology": {"graph": "complete:5"}},
    "secure-mafalda": {"algorithm": _algorithm("secure-mafalda", sigma=1.5), "topology": {"graph": "complete:5"}},
    "secure-gossip": {"algorithm": _algorithm("secure-gossip", sigma=1.5)},
    "swarm": {
        "algorithm": _algorithm("swarm", sigma=1.5), "topology": {"graph": "complete:5"},
        "privacy": {"attackers": "all"},
    },
    "rss-nb": {"algorithm": _algorithm("rss-nb", sigma=1.5), "record": ALL_MESSAGES},
    "rss-lb": {"algorithm": _algorithm("rss-lb", sigma=1.5), "topology": RANDOM},
}  # fmt: skip
"""Each run by its name: the sections that differ from `COMMON`."""


def settings(name: str) -> Document:
    """All settings of a run; a setting of None is left out."""
    found: Document = {"name": name, **COMMON}
    for key, given in RUNS[name].items():
        found[key] = COMMON.get(key, {}) | given if isinstance(given, dict) else given
    return found


def toml(document: Document) -> str:
    """Settings as TOML, which writes these values as JSON does.

    >>> print(toml({"name": "try", "data": {"rows": 24, "seed": None}}), end="")
    name = "try"
    [data]
    rows = 24
    """
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in document.items() if key not in tables]
    for section, table in tables.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
    return "".join(f"{line}\n" for line in lines)


def write_inputs(folder: Path) -> None:
    """The files that cases read, and the settings of all runs."""
    C = np.eye(ROUNDS) + 0.5 * np.eye(ROUNDS, k=-1) + 0.3 * np.eye(ROUNDS, k=-2)
    np.savez(folder / BAND, C=C)
    rng = np.random.default_rng(0)
    inputs, groups = rng.normal(size=(180, 5)), np.arange(180) % 6
    np.savez(folder / TABLE, inputs=inputs, targets=inputs @ [1.0, -2.0, 0.5, 0.0, 1.5] + 0.25, groups=groups)
    for name in RUNS:
        (folder / f"{name}.toml").write_text(toml(settings(name)))
    (folder / "sweep.toml").write_text(SWEEP)


SWEEP = """
name = "sweep"
noise_key = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
seeds = [0, 1]
grid = {"algorithm.sigma" = [1.0, 2.0]}
attacks = ["threshold"]
variants = [{name = "independent"}, {name = "optimised", algorithm.name = "mafalda"}]
data.rows = 20
topology.graph = "ring:5"
training = {rounds = 4, batch = "cycle:2x2", clip = "per-example", bound = 1.0}
privacy.attackers = "none"
record = {attackers = [0], every = 2}
metrics.test_rows = 60
"""

# --- documents -------------------------------------------------------------------------------------------------------

PLAIN = {
    "d-psgd": "ring:6",
    "dp-d-sgd": "ring:6",
    "dp2sgd": "ring:6",
    "muffliato": "ring:6",
    "muffliato --chebyshev": "ring:6",
    "muffliato --randomized": "ring:6",
    "muffliato-sgd": "ring:6",
    "muffliato-sgd --gossip-steps 3": "ring:6",
    "muffliato-sgd --gossip-steps 3 --chebyshev": "ring:6",
    "zip-dl": "ring:6",
    "zip-dl-averaging": "ring:6",
    "dp-csgp": "exponential:6",
    "dp-csgp --compression rand:0.5": "exponential:6",
    "dp-csgp --compression gsgd:8": "exponential:6",
    "dp-csgp --compression top:0.5": "exponential:6",
    "anti-pgd": "ring:6",
    f"mf-d-sgd --correlation {BAND}": "ring:6",
    "mafalda": "ring:6",
    "decor --sigma-pair 4": "ring:6",
    "dp-fedavg": "complete:5",
    "secure-average": "complete:5",
    "secure-mafalda": "complete:5",
    "secure-gossip": "ring:6",
    "swarm": "complete:5",
    "rss-nb": "ring:6",
    "rss-lb": "ring:6",
}
"""Every algorithm with its options, and a graph that it takes."""

VIEWS = ("everyone", "node:0", "coalition:0,1", "eavesdropper:0>1")
"""The coalition and the eavesdropper are at an edge that all graphs of `PLAIN` have."""

ELSEWHERE = (
    "dp-d-sgd",
    "dp2sgd",
    "muffliato",
    "muffliato-sgd --gossip-steps 2",
    "zip-dl",
    "anti-pgd",
    "decor --sigma-pair 2",
)

ACCOUNTS = [
    *(
        f"account --graph {graph} --algorithm {name} --rounds 5 --sigma 1.5 --view {view}"
        for name, graph in PLAIN.items()
        for view in VIEWS
    ),
    *(
        f"account --graph erdos-renyi:8,p=0.4,seed=3 --algorithm {name} --rounds 6 --sigma 2 --view {view}"
        for name in ELSEWHERE
        for view in ("node:2", "coalition:0,3")
    ),
    "account --graph florentine --weights uniform --rounds 8 --sigma 3 --view node:0 --victim 5 --victim 7",
    "account --graph star:6 --algorithm dp2sgd --weights max-degree --rounds 6 --view node:3",
    "account --graph exponential:8 --weights uniform --rounds 6 --view node:1",
    "account --graph exponential:6 --algorithm dp-csgp --weights push,lazy=0.5 --rounds 5 --view node:1",
    "account --graph path:5 --algorithm zip-dl --rounds 6 --view coalition:1,3",
    "account --graph ring:6 --algorithm dp2sgd --rounds 12 --randomized --seed 4 --view node:0",
    "account --graph ring:6 --rounds 5 --view node:0 --secure-sum",
    "account --graph ring:6 --rounds 5 --view coalition:0,2 --secure-sum",
    "account --graph ring:6 --algorithm zip-dl --rounds 5 --view node:0 --secure-sum",
    "account --graph ring:6 --algorithm muffliato --rounds 5 --view node:0 --secure-sum",
    "account --graph ring:6 --algorithm decor --sigma-pair 3 --rounds 5 --view node:0 --secure-sum",
    "account --graph ring:6 --rounds 6 --view node:0 --convex",
    "account --graph ring:6 --rounds 6 --view coalition:0,3 --convex --adjacency record",
    "account --graph florentine --algorithm dp2sgd --rounds 6 --view node:0 --convex",
    "account --graph ring:6 --algorithm muffliato-sgd --gossip-steps 2 --rounds 4 --view node:0 --convex",
    "account --graph ring:6 --algorithm zip-dl --rounds 4 --view node:0 --convex",
    "account --graph ring:6 --algorithm mafalda --rounds 6 --participation 2x3 --view node:0 --convex",
    "account --graph ring:6 --rounds 6 --adjacency record --participation 2x3",
    "account --graph ring:6 --rounds 6 --adjacency record --participation 2x3 --view node:0",
    "account --graph ring:6 --algorithm anti-pgd --rounds 6 --adjacency record --participation 3x2",
    "account --graph ring:6 --algorithm mafalda --rounds 6 --adjacency record --participation 2x3",
    "account --graph ring:6 --algorithm zip-dl --rounds 6 --adjacency record --participation 2x3",
    f"account --graph ring:6 --algorithm mf-d-sgd --correlation {BAND} --rounds 8 --participation 2x4 --view node:1",
    f"account --graph ring:6 --algorithm mafalda --correlation {BAND} --rounds 8 --adjacency record",
    "account --graph ring:6 --algorithm dp-d-sgd --rounds 4 --view node:0 --published",
    "account --graph ring:6 --algorithm muffliato --rounds 6 --view node:0 --published",
    "account --graph ring:6 --algorithm muffliato-sgd --gossip-steps 3 --rounds 4 --view node:0 --published",
    "account --graph ring:6 --algorithm zip-dl --rounds 4 --view node:0 --published --lipschitz 1",
    "account --graph ring:6 --algorithm decor --sigma-pair 4 --rounds 4 --published",
    "account --graph ring:6 --algorithm mafalda --rounds 6 --participation 2x3 --published",
    "account --graph exponential:6 --algorithm dp-csgp --rounds 4 --published",
    "account --graph ring:6 --rounds 6 --all-pairs",
    "account --graph erdos-renyi:7,p=0.5,seed=1 --algorithm zip-dl --rounds 4 --all-pairs",
    "account --graph grid:3x3 --algorithm muffliato --rounds 5 --all-pairs",
    "account --graph ring:6 --algorithm anti-pgd --rounds 6 --participation 2x3 --all-pairs --secure-sum",
    "account --graph ring:6 --rounds 1 --sigma 0",
    "account --graph path:1 --rounds 3",
    "account --graph erdos-renyi:6,p=0 --rounds 4",
]

QUESTIONS = [
    "calibrate --graph ring:6 --rounds 5 --epsilon 1",
    "calibrate --graph ring:6 --rounds 6 --epsilon 4 --adjacency record --participation 2x3",
    "calibrate --graph karate --rounds 4 --epsilon 2 --view node:0 --convex --victim 33",
    "calibrate --graph florentine --weights uniform --rounds 5 --epsilon 2 --view coalition:0,3",
    "calibrate --graph ring:6 --algorithm muffliato --rounds 6 --epsilon 1 --view node:0 --victim 3",
    "calibrate --graph ring:6 --algorithm zip-dl --rounds 5 --epsilon 5",
    "calibrate --graph ring:6 --algorithm anti-pgd --rounds 5 --epsilon 5 --delta 1e-6",
    "calibrate --graph ring:6 --algorithm mafalda --rounds 6 --participation 2x3 --epsilon 5",
    "calibrate --graph ring:6 --algorithm decor --sigma-pair 2 --rounds 4 --epsilon 8",
    "calibrate --graph exponential:6 --algorithm dp-csgp --compression gsgd:8 --rounds 4 --epsilon 3",
    "calibrate --graph complete:5 --algorithm dp-fedavg --rounds 5 --epsilon 1",
    "calibrate --graph ring:6 --algorithm rss-nb --rounds 5 --epsilon 1",
    "noise --graph ring:5 --participation 2x3 --no-cache --out dense.npz",
    "noise --graph florentine --weights uniform --participation 2x6 --no-cache --out florentine.npz",
    "noise --graph ring:5 --participation 2x4 --objective last --structure banded --bands 2 --no-cache",
    "noise --graph ring:5 --participation 2x4 --objective average --no-cache",
    "plan --graph ring:6 --records 50 --rounds 6 --adjacency record --participation 2x3 --epsilon 4 --dimension 65",
    "plan --graph ring:5 --records 50 --rounds 4 --epsilon 4 --adjacency user --view node:0 --convex",
    "plan --graph exponential:6 --records 20 --rounds 4 --adjacency record --epsilon 2 --dimension 30",
    "graph ring:6",
    "graph path:7 --weights max-degree",
    "graph grid:3x4 --weights uniform",
    "graph hypercube:3",
    "graph exponential:10 --weights push,lazy=0.5",
    "graph erdos-renyi:20,p=0.2,seed=1",
    "graph regular:12,d=4,seed=0",
    "graph geometric:20,r=0.4,seed=0",
    "graph florentine",
    "graph karate --weights uniform",
]

ABOUT_RUNS = [
    "run sweep.toml --jobs 1",
    "attack runs/d-psgd --samples 20",
    "attack runs/d-psgd --attack pooled --view coalition:0,3 --samples 20",
    "attack runs/d-psgd --attack likelihood --shadows 4 --attacker 0 --samples 12 --jobs 1",
    "attack runs/d-psgd --attack classifier --samples 20",
    "attack runs/dp-d-sgd --samples 20 --seed 1",
    "attack runs/zip-dl --attack pooled --samples 20",
    "audit runs/dp-d-sgd --runs 2 --repetitions 200 --jobs 1",
    "audit runs/zip-dl --runs 0 --repetitions 200",
    "audit runs/mf-d-sgd --runs 0 --repetitions 200",
    "compare runs/d-psgd runs/dp-d-sgd runs/dp-d-sgd-cycle runs/zip-dl --out compare.html",
    "compare runs/sweep",
]
"""In this order, after the runs that they are about."""

PAGES = ("runs/d-psgd/report.html", "runs/dp-d-sgd/report.html", "compare.html", "runs/sweep/report.html")
"""Pages that attacks, audits and comparisons have written or written anew."""

# --- what the repository stores, for the test ------------------------------------------------------------------------

STORED_RUNS = (
    "d-psgd-while-speaking", "d-psgd-poisson", "dp-d-sgd", "dp-d-sgd-epsilon", "dp-d-sgd-dropout", "dp-d-sgd-mlp",
    "dp-d-sgd-linear", "dp2sgd-directed", "muffliato-sgd-chebyshev", "zip-dl", "dp-csgp-rand", "mf-d-sgd", "decor",
    "dp-fedavg",
)  # fmt: skip
"""None with a step that rounding can turn: quantised or largest coordinates, a search for C."""

STORED_DOCUMENTS = (
    *(
        f"account --graph {graph} --algorithm {name} --rounds 5 --sigma 1.5 --view node:0"
        for name, graph in PLAIN.items()
        if name not in ("mafalda", "secure-mafalda") and not name.endswith(("gsgd:8", "top:0.5"))
    ),
    "account --graph ring:6 --algorithm zip-dl --rounds 5 --sigma 1.5 --view everyone",
    "account --graph ring:6 --algorithm decor --sigma-pair 4 --rounds 5 --sigma 1.5 --view coalition:0,1",
    "account --graph ring:6 --rounds 5 --view node:0 --secure-sum",
    "account --graph florentine --algorithm dp2sgd --rounds 6 --view node:0 --convex",
    "account --graph ring:6 --rounds 6 --adjacency record --participation 2x3 --view node:0",
    "account --graph ring:6 --algorithm anti-pgd --rounds 6 --adjacency record --participation 3x2",
    "account --graph ring:6 --algorithm zip-dl --rounds 6 --adjacency record --participation 2x3",
    "calibrate --graph ring:6 --rounds 5 --epsilon 1",
    "calibrate --graph ring:6 --rounds 6 --epsilon 4 --adjacency record --participation 2x3",
    "calibrate --graph karate --rounds 4 --epsilon 2 --view node:0 --convex --victim 33",
    "calibrate --graph ring:6 --algorithm zip-dl --rounds 5 --epsilon 5",
)
