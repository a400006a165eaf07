"""Settings, and what becomes of them in careless or hostile hands: seeded, so that each number is one file."""

from __future__ import annotations

import random

SETTINGS = """
name = "try"
noise_key = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
data = {rows = 12}
topology = {graph = "ring:4"}
training = {rounds = 1, batch = "full", clip = "per-example", bound = 1.0}
algorithm = {sigma = 1.0, step_size = 0.5}
privacy = {attackers = "none"}
metrics = {every = 1, test_rows = 20}
record = {attackers = [0], every = 1}
machine = {checkpoint_seconds = 0.0}
"""
"""A run that takes no time, and writes every kind of file."""

KEYS = {
    "name": '"try"', "seed": "3", "noise_key": '"5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"', "topology.graph": '"ring:4"',
    "topology.weights": '"metropolis"', "topology.dropout": "0.0", "topology.fresh": "false", "training.rounds": "4",
    "training.batch": '"cycle:2x2"', "training.clip": '"per-example"', "training.bound": "1.0",
    "training.local_steps": "1", "data.name": '"digits"', "data.partition": '"iid"', "data.rows": "48",
    "data.unit_norm": "true", "model.name": '"softmax"', "model.bias": "true", "algorithm.name": '"dp-d-sgd"',
    "algorithm.sigma": "1.0", "algorithm.step_size": "0.5", "privacy.delta": "1e-5", "privacy.view": '"everyone"',
    "privacy.adjacency": '"record"', "privacy.attackers": '"all"', "metrics.every": "2", "metrics.test_rows": "10",
    "record.attackers": "[0, 1]", "record.every": "1", "record.limit_mb": "10.0", "machine.threads": "1",
    "machine.precision": '"float32"', "machine.device": '"cpu"', "machine.checkpoint_seconds": "30.0",
    "about.claim": '"none"',
}  # fmt: skip
"""A setting of nearly every kind."""

MORE_KEYS = (
    "algorithm.sigma_pair", "algorithm.compression", "algorithm.correlation", "algorithm.gossip_steps", "model.hidden",
    "topology.random_edges", "topology.seed", "data.max_norm", "privacy.epsilon", "privacy.exact_noise",
    "privacy.and_final_models", "metrics.final_rounds", "machine.engine", "seeds", "grid", "tune", "variants",
    "attacks", 'grid."privacy.epsilon"', 'tune."algorithm.step_size"', 'grid."a.b.c"', "grid.name", "x", "topology",
    "about", "training", '"\\u001b[2J"', '""', "a." * 3000 + "a",
)  # fmt: skip

VALUES = (
    "0", "-1", "1e400", "nan", "inf", "-0.0", "1e-320", "true", '""', "9223372036854775808", "9" * 30, "9" * 5000,
    "0x" + "f" * 5000, "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "[]", "[[]]", "{}", "{a = {}}",
    '[1, "a", {b = 1}]', "[nan, 1.0, 1.0, 1.0]", "[0, 0, 0, 0]", "[" * 3000 + "]" * 3000, "[" * 40 + "]" * 40,
    '"\\u0000"', '"\\u001b[2J"', '"\\u202eabc"', '"\\ufeffring:4"', '"ä"', '"' + "a" * 300 + '"', "'''\na'''",
    '"file:"', '"file:\\u0000"', '"file:/"', '"file:/dev/null"', '"file:' + "x" * 5000 + '"',
    '"file:../x,component=giant"',
    '"node:0"', '"node:99999999999999999999"', '"coalition:any-99999999"', '"ring:99999999999999999999999"',
    '"erdos-renyi:4,p=0.5,seed=99999999999999999999"', '"geometric:4,r=1e400"', '"path:1"', '"hypercube:-1"',
    '"cycle:0x0"', '"cycle:99999999999x99999999999"', '"fixed:0"', '"poisson:nan"', '"dirichlet:1e-300"',
    '"classes:99999999"', '"mlp"', '"cnn"', '"zip-dl"', '"mafalda"', '"decor"', '"dp-csgp"', '"muffliato"', '"push"',
)  # fmt: skip

SCRAPS = ("\0", "\x1b", "\ufeff", '"', "[", "[[", "=", ".", "\n", "{", "#", "\u202e", "'''", "\r", "\\", "\ud800")


def mutated(number: int) -> bytes:
    """The file of that number: some values, keys, lines or characters are not what they were."""
    rng = random.Random(number)
    lines = [f"{key} = {value}" for key, value in KEYS.items()]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at, kind = rng.randrange(len(lines)), rng.randrange(6)
        if kind <= 1:
            lines[at] = f"{lines[at].partition(' = ')[0]} = {rng.choice(VALUES)}"
        elif kind == 2:
            lines.insert(at, f"{rng.choice(MORE_KEYS)} = {rng.choice(VALUES)}")
        elif kind == 3:
            lines.append(f"{rng.choice(list(KEYS))} = {rng.choice(VALUES)}")
        elif kind == 4:
            cut = rng.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:cut] + rng.choice(SCRAPS) + lines[at][cut + rng.choice((0, 1, 5)) :]
        else:
            del lines[at]
    return "\n".join(lines).encode("utf-8", "surrogatepass")
