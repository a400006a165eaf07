"""Audits of finished runs: below their claims, above claims that are wrong, and what was rerun is not run again."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.auditing.canaries import _canaries, audit_inputs
from sottovoce.auditing.claim_checks import audit_gradients
from sottovoce.run.execute import run_experiment
from sottovoce.run.finished_run import open_run
from sottovoce.support.config import parse_experiment

DOCUMENT = {
    "name": "audited", "noise_key": 16 * "5a", "topology": {"graph": "ring:5"}, "data": {"rows": 20},
    "training": {"rounds": 12, "bound": 1.0, "clip": "per-example", "batch": "cycle:3x4"},
    "algorithm": {"name": "dp-d-sgd", "sigma": 1.0, "step_size": 0.5},
}  # fmt: skip


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "noisy"
    run_experiment(parse_experiment(DOCUMENT), folder)
    return folder


def test_lower_bounds_stand_beside_the_claims_of_a_run(sotto, noisy):
    code, out, err = sotto(f"audit {noisy} --runs 2 --jobs 1 --json")
    document = json.loads(out)
    assert (code, err, document["consistent"]) == (0, "", True)
    gradients = [one for one in document["audits"] if one["canaries"] == "gradients"]
    assert {one["audit"]["view"] for one in gradients} >= {"everyone"}
    everyone = gradients[0]
    kinds = {claim["kind"]: claim["mu"] for claim in everyone["claims"]}
    assert kinds["fixed-streams"] == pytest.approx(np.sqrt(3))  # three times, four rounds apart
    assert 0.9 * np.sqrt(3) < everyone["audit"]["mu"] < np.sqrt(3)
    assert json.loads((noisy / "audit.json").read_text()) == document
    assert "No claim is exceeded" in sotto(f"audit {noisy} --runs 2 --jobs 1")[1]


@pytest.mark.parametrize(("shrunk", "code"), [(1.0, 0), (0.8, 1)])
def test_a_claim_that_is_too_good_is_exceeded(shrunk, code, sotto, noisy, tmp_path):
    folder = shutil.copytree(noisy, tmp_path / "copy")
    privacy = json.loads((folder / "privacy.json").read_text())
    for found in privacy["views"]:
        for claim in found["guarantees"]:
            claim["mu"] = shrunk * float(claim["mu"])
    (folder / "privacy.json").write_text(json.dumps(privacy))
    got, out, _ = sotto(f"audit {folder} --runs 0")
    assert got == code
    assert ("exceeded" in out.partition("claim is")[0]) == bool(code)


def test_finished_reruns_are_kept_and_those_missing_are_run(noisy, tmp_path, monkeypatch):
    finished_run = open_run(shutil.copytree(noisy, tmp_path / "copy", ignore=shutil.ignore_patterns("reruns")))
    first = audit_inputs(finished_run, runs=2, jobs=1)
    (place,) = list((finished_run.folder / "reruns").iterdir())
    bits = (place / "0001.npz").read_bytes()
    (place / "0001.npz").unlink()
    reported = []
    assert audit_inputs(finished_run, runs=2, jobs=1, progress=lambda done, of: reported.append((done, of))) == first
    assert reported == [(2, 3), (3, 3)]
    assert (place / "0001.npz").read_bytes() == bits
    monkeypatch.setattr(sys.modules[audit_inputs.__module__], "with_other_rows", None)
    assert audit_inputs(finished_run, runs=2, jobs=1) == first


def test_input_canaries_without_noise_are_seen(tmp_path):
    silent = DOCUMENT | {"algorithm": {"name": "d-psgd", "step_size": 2.0}, "training": {"rounds": 60}}
    run_experiment(parse_experiment(silent), tmp_path / "run")
    finished_run = open_run(tmp_path / "run")
    rows, wrong = _canaries(finished_run, 1, 0)
    assert (len(rows), wrong.dtype) == (10, finished_run.training_run.task.targets.dtype)
    found = audit_inputs(finished_run, runs=6, jobs=1, confidence=0.95)
    assert found.audit.epsilon > 0.5
    assert not found.exceeded
    (claim,) = found.claims
    assert (claim.view, claim.kind, claim.mu) == ("everyone", "any-training", math.inf)
    wrong_claim = replace(found, claims=(replace(claim, mu=0.1, epsilon=0.3),))
    sampled = replace(found, claims=(replace(claim, kind="sampled", mu=None, epsilon=0.3),))
    assert wrong_claim.exceeded
    assert sampled.exceeded


def test_unclipped_noise_promises_nothing_and_is_audited_all_the_same(tmp_path):
    bare = DOCUMENT | {"training": {"rounds": 5}}
    run_experiment(parse_experiment(bare), tmp_path / "run")
    (found,), refused = audit_gradients(open_run(tmp_path / "run"), repetitions=500)
    assert (found.claims, found.exceeded, refused) == ((), False, [])


def test_compressed_messages_are_not_audited_and_that_is_said(tmp_path):
    packed = DOCUMENT | {"algorithm": {"name": "dp-csgp", "sigma": 1.0, "compression": "rand:0.5", "step_size": 0.5}}
    run_experiment(parse_experiment(packed), tmp_path / "run")
    found, refused = audit_gradients(open_run(tmp_path / "run"), repetitions=500)
    assert found == []
    assert "coordinates are not all sent" in refused[0]
