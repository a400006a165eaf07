"""Every document that a command prints or a run leaves behind fits its schema, and no key is left out."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from sottovoce.schemas import names, schema
from tests.cli.lines import command_lines
from tests.cli.test_run import SWEEP
from tests.support.test_config import SMALL

LINES = [
    "account --graph ring:6",
    "account --graph ring:6 --sigma 0",
    "account --graph ring:6 --rounds 2,4 --view node:0 --published",
    "account --graph ring:6 --rounds 4 --view node:0 --convex --adjacency record --participation 2x2",
    "account --graph ring:6 --rounds 3 --view coalition:0,2 --secure-sum --victim 4",
    "account --graph florentine --rounds 3 --view eavesdropper:0>1",
    "account --graph path:3 --algorithm dp2sgd --rounds 3 --randomized --view node:0",
    "account --graph ring:6 --algorithm zip-dl --view node:0 --rounds 3 --published",
    "account --graph ring:6 --algorithm muffliato --rounds 4 --chebyshev --view node:1",
    "account --graph ring:6 --algorithm mafalda --rounds 6 --participation 2x3",
    "account --graph ring:6 --algorithm decor --sigma-pair 3 --rounds 3 --view node:2",
    "account --graph exponential:6 --algorithm dp-csgp --compression rand:0.5 --rounds 3",
    "account --graph complete:4 --algorithm dp-fedavg --rounds 3",
    "account --graph path:1 --rounds 3",
    "account --graph ring:5 --rounds 4 --all-pairs",
    "account --graph star:4 --algorithm d-psgd --rounds 2 --all-pairs",
    "account --graph ring:5 --algorithm zip-dl-averaging --rounds 2 --all-pairs",
    "calibrate --graph ring:6 --rounds 4 --epsilon 1",
    "calibrate --graph karate --rounds 4 --epsilon 2 --view node:0 --convex --victim 33",
    "noise --graph ring:5 --participation 2x3 --no-cache",
    "noise --graph ring:5 --rounds 6 --sampled 0.5 --epsilon 4 --no-cache",
    "noise --graph florentine --weights uniform --rounds 6 --structure banded --bands 3 --no-cache",
    "noise --graph ring:5 --participation 2x3 --objective last --structure banded --bands 2 --no-cache",
    "graph grid:3x4 --weights uniform",
    "graph exponential:7 --weights push",
    "graph exponential:10 --weights push --compression rand:0.75",
    "graph florentine",
    "graph erdos-renyi:6,p=0 --weights metropolis",
    "data",
    "plan --graph ring:3 --records 20 --rounds 2 --epsilon 3 --participation 1x2 --dimension 30",
    "plan --graph exponential:5 --records 20 --rounds 3 --epsilon 3 --adjacency user",
    "schema",
]


@cache
def checker(name: str) -> jsonschema.Draft202012Validator:
    found = schema(name)
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


def fits(document, name: str) -> None:
    problem = next(iter(checker(name).iter_errors(document)), None)
    assert problem is None, f"{name}: {problem.message[:300]} at {list(problem.absolute_path)}"


@pytest.mark.parametrize("line", LINES)
def test_what_commands_print_fits(line, sotto):
    code, out, err = sotto(line + " --json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    fits(json.loads(out), line.split()[0])


VARIED = [
    [],
    ["algorithm.name=d-psgd", "algorithm={name='d-psgd'}"],
    ["training.batch=poisson:0.5", "privacy.attackers=[1]"],
    ["training.batch=fixed:4"],
    ["training={rounds=3}"],
    ["privacy.adjacency=user", "algorithm={name='decor', sigma=2.0, sigma_pair=1.0}"],
    ["algorithm={name='zip-dl'}", "privacy={epsilon=8.0, adjacency='user', view='node:0'}"],
    ["topology.dropout=0.3"],
]


@pytest.mark.parametrize("settings", VARIED, ids=lambda settings: settings[-1] if settings else "plain")
def test_what_a_run_leaves_behind_fits(settings, sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "try.toml").write_text(SMALL)
    more = [word for setting in settings for word in ("--set", setting)]
    code, out, err = sotto("run try.toml --json", *more)
    assert (code, err) == (0, "")
    fits(json.loads(out), "run")
    folder = Path("runs/try")
    for name in ("config.json", "privacy.json", "result.json"):
        fits(json.loads((folder / name).read_text()), name)
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        fits(json.loads(line), "metrics.jsonl")


def test_sweeps_attacks_and_audits_fit(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    code, out, _ = sotto("run sweep.toml --jobs 1 --json --set record.attackers=all --set record.every=1")
    assert code == 0
    fits(json.loads(out), "run")
    one, two = (f"runs/try/noisy,seed={seed}" for seed in (0, 1))
    attacks = [
        f"attack {one}", f"attack {one} {two} --attacker 1", f"attack {one} --attack classifier",
        f"attack {one} --attack likelihood --shadows 2 --jobs 1",
    ]  # fmt: skip
    for line in attacks:
        code, out, err = sotto(line + " --json")
        assert (code, err) == (0, ""), line
        fits(json.loads(out), "attack")
        fits(json.loads((Path(one) / "attack.json").read_text()), "attack.json")
    assert len(json.loads((Path(one) / "attack.json").read_text())) == 3
    for line in (f"audit {one} --runs 0 --repetitions 200", f"audit {one} --runs 2 --repetitions 200 --jobs 1"):
        code, out, _ = sotto(line + " --json")
        assert code == 0
        fits(json.loads(out), "audit")
        fits(json.loads((Path(one) / "audit.json").read_text()), "audit.json")


def test_every_command_has_a_schema_and_every_schema_prints(sotto):
    commands = {line.replace(" ", "-") for line in command_lines()}
    assert commands <= set(names()), f"no schema: {commands - set(names())}"
    for name in names():
        code, out, err = sotto(f"schema {name}")
        assert (code, err) == (0, "")
        assert json.loads(out)["title"]
        checker(name)


def test_drift_is_seen():
    """An added, a missing and a changed key each break a schema."""
    document = {"schemas": ["account"]}
    fits(document, "schema")
    for wrong in ({}, {**document, "more": 1}, {"schemas": [1]}):
        with pytest.raises(AssertionError):
            fits(wrong, "schema")


def _objects(part):
    if isinstance(part, dict):
        if part.get("type") == "object":
            yield part
        for value in part.values():
            yield from _objects(value)
    elif isinstance(part, list):
        for value in part:
            yield from _objects(value)


@pytest.mark.parametrize("name", [name for name in names() if name != "config.json"])
def test_objects_admit_no_other_keys_and_need_all_but_a_few(name):
    for part in _objects(schema(name)):
        free = "properties" not in part and "additionalProperties" not in part
        assert free or part["additionalProperties"] is not True
        if "properties" in part:
            assert part["additionalProperties"] is False
            assert set(part["properties"]) - set(part["required"]) <= {
                "accuracy",
                "among",
                "consensus",
                "heard",
                "held_out",
                "member",
                "rmse",
                "run",
                "wire_bytes",
                "attacks",
                "pictures",
                "signature",
                "sums_known",
                "spent_in_all",
                "code",
                *("intervals", "constant", "balanced_accuracy", "overconfidence", "r2"),  # not in runs before 0.3
                *("calibration", "decisions", "threshold", "until", "log_loss"),
            }


def test_schemas_come_with_the_package():
    import tomllib

    listed = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["setuptools"]
    folder = Path(schema.__code__.co_filename).parent
    covered = {path for pattern in listed["package-data"]["sottovoce"] for path in folder.parent.glob(pattern)}
    there = {
        Path(base) / file for base, _, files in os.walk(folder) for file in files if not file.endswith((".py", "c"))
    }
    assert there <= covered
    assert folder.parent / "demo" / "demo.toml" in covered
