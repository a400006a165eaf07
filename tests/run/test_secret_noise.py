"""Runs with `noise = "secret"`: no key anywhere, no two runs alike, and what cannot go on is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sottovoce import SecretSource, algorithm, metropolis, simulate
from sottovoce.core.transport import InProcess
from sottovoce.errors import InputError
from sottovoce.privacy.assumptions import AssumptionKind
from sottovoce.run.build import build_run
from sottovoce.run.execute import run_experiment
from sottovoce.run.finished_run import open_run
from sottovoce.support.config import parse_experiment
from tests.run.test_noise_key import DOCUMENT, NAMED
from tests.run.test_simulation import job

SECRET = DOCUMENT | {"noise": "secret", "metrics": {"every": 4, "test_rows": 20}}
SENTENCE = "secret noise: drawn from the operating system's random bytes, and erased after use"


def models(folder):
    with np.load(folder / "checkpoint.npz") as stored:
        return stored["0"]


def stop_after(rounds):
    def on_round(played, state):
        if played.round + 1 == rounds:
            raise KeyboardInterrupt

    return on_round


def test_a_run_has_no_key_and_says_where_its_noise_is_from(tmp_path, sotto, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "try.json").write_text(json.dumps(SECRET))
    code, shown, _ = sotto("run try.json --out runs")
    assert (code, SENTENCE in shown) == (0, True)
    assert "sigma" in dict(line.split("  ", 1) for line in shown.splitlines())["noise"]
    folder = tmp_path / "runs" / "try"
    assert not (folder / "noise.key").exists()
    assert SENTENCE in json.loads((folder / "privacy.json").read_text())["headline"]["assumptions"]
    assert SENTENCE in (folder / "report.html").read_text()
    assert not open_run(folder).has_key
    run_experiment(parse_experiment(SECRET), tmp_path / "other")
    assert not np.array_equal(models(folder), models(tmp_path / "other"))


def test_a_run_of_the_api_says_it_too():
    gradients = job(3).gradients("poisson:0.5", "per-example", 1.0)
    run = simulate(
        algorithm("dp-d-sgd", sigma=1.0), metropolis("path:3"), gradients, rounds=2, test_rows=5,
        noise_key=SecretSource(),
    )  # fmt: skip
    kinds = {one.kind for one in run.guarantees.headline.assumptions}
    assert AssumptionKind.SECRET_NOISE in kinds
    assert AssumptionKind.REPRODUCIBLE_RUN not in kinds


def test_a_run_goes_on_from_its_checkpoint_with_noise_that_is_drawn_anew(tmp_path):
    experiment = parse_experiment(SECRET)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "run", on_round=stop_after(2))
    begun = models(tmp_path / "run")
    ends = []
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        for path in (tmp_path / "run").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        run_experiment(experiment, folder, resume=True)
        ends.append(models(folder))
        assert not np.array_equal(ends[-1], begun)
    assert not np.array_equal(*ends)


def test_noise_that_goes_on_from_earlier_rounds_cannot_be_resumed(tmp_path):
    experiment = parse_experiment(SECRET | {"algorithm": {"name": "anti-pgd", "sigma": 1.0}})
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path, on_round=stop_after(2))
    with pytest.raises(InputError, match="anti-pgd with secret noise, from round"):
        run_experiment(experiment, tmp_path, resume=True)


@pytest.mark.parametrize(("document", "message"), [
    (SECRET | {"noise_key": NAMED}, "noise = 'secret' with a noise_key; secret noise has no key; leave"),
    (SECRET | {"noise": "public"}, "noise = 'public'; it should be 'secret'"),
])  # fmt: skip
def test_other_settings_are_refused(document, message):
    with pytest.raises(InputError, match=message):
        parse_experiment(document)


class Half(InProcess):
    """The first half of the nodes lives here, the rest elsewhere."""

    networked = True

    @property
    def nodes(self):
        return np.arange(self.n // 2)


@pytest.mark.parametrize(("name", "more", "allowed"), [
    ("dp-d-sgd", {}, True), ("zip-dl", {}, True), ("decor", {"sigma_pair": 2.0}, False), ("dp-fedavg", {}, False),
])  # fmt: skip
def test_over_processes_noise_must_not_be_shared(name, more, allowed):
    graph = "complete:4" if name == "dp-fedavg" else "ring:4"
    document = SECRET | {"algorithm": {"name": name, "sigma": 1.0, **more}, "topology": {"graph": graph}}
    training_run = build_run(parse_experiment(document))
    if allowed:
        assert len(training_run.hosted_by(Half(4)).gradients.nodes) == 2
        return
    with pytest.raises(InputError, match=f"secret noise of {name} over processes; nodes share some of it"):
        training_run.hosted_by(Half(4))
    build_run(parse_experiment(document | {"noise": None})).hosted_by(Half(4))
