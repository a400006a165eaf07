"""The noise key of a run: fresh unless it is named, kept for the owner alone, and never anywhere else."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from sottovoce import NoiseKey, algorithm, metropolis, simulate
from sottovoce.errors import InputError
from sottovoce.privacy.assumptions import AssumptionKind
from sottovoce.run.build import build_run
from sottovoce.run.execute import run_experiment
from sottovoce.run.finished_run import open_run
from sottovoce.run.layout import RunFiles, with_key_from_file
from sottovoce.run.rerun import with_other_rows
from sottovoce.support.config import parse_experiment
from tests.run.test_simulation import job

NAMED = "c0ffee00c0ffee00c0ffee00c0ffee00"
DOCUMENT = {
    "name": "try", "data": {"rows": 12}, "topology": {"graph": "ring:4"}, "metrics": {"every": 2, "test_rows": 20},
    "algorithm": {"name": "dp-d-sgd", "sigma": 1.0}, "privacy": {"attackers": "none"},
    "training": {"rounds": 4, "batch": "poisson:0.5", "clip": "per-example", "bound": 1.0},
}  # fmt: skip


def run(folder, resume=False, **more):
    run_experiment(parse_experiment(DOCUMENT | more), folder, resume=resume)
    with np.load(folder / "checkpoint.npz") as stored:
        return stored["0"]


def key_of(folder):
    return json.loads((folder / "noise.key").read_text())["noise_key"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run with a key of its own that has guarantees and a checkpoint, and no result."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    run(folder)
    (folder / "result.json").unlink()
    return folder


def test_each_run_makes_its_own_key_and_whoever_names_it_repeats_the_run(tmp_path):
    models = {name: run(tmp_path / name) for name in ("one", "other")}
    assert key_of(tmp_path / "one") != key_of(tmp_path / "other")
    assert not np.array_equal(*models.values())
    np.testing.assert_array_equal(run(tmp_path / "again", noise_key=key_of(tmp_path / "one")), models["one"])


def test_the_key_is_for_the_owner_alone_and_in_no_other_file(begun, tmp_path):
    files = [path for path in begun.rglob("*") if path.is_file()]
    assert (begun / "noise.key").stat().st_mode & 0o777 == 0o600
    secret = NoiseKey.parse(key_of(begun))
    shapes = [shape for key in (secret, secret.for_run("try", 0)) for shape in (key.secret, key.hexadecimal.encode())]
    showing = {path.name for path in files if any(shape in path.read_bytes() for shape in shapes)}
    assert showing == {"noise.key"}


def test_a_key_that_is_named_is_in_no_page_and_makes_the_run_a_reproducible_one(tmp_path, sotto, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "try.json").write_text(json.dumps(DOCUMENT))
    sentence = "reproducible run: whoever knows the key knows the noise"
    said = {}
    for name, more in {"named": f"--set noise_key='{NAMED}'", "own": ""}.items():
        assert sotto(f"run try.json --out {name} {more}")[0] == 0
        said[name] = json.loads((tmp_path / name / "try" / "privacy.json").read_text())["headline"]["assumptions"]
    settings = json.loads((tmp_path / "named" / "try" / "config.json").read_text())
    assert settings["noise_key"] == "noise.key"
    assert key_of(tmp_path / "named" / "try") == NAMED
    assert (sentence in said["named"], sentence in said["own"]) == (True, False)
    page = (tmp_path / "named" / "try" / "report.html").read_text()
    assert NAMED not in page
    assert sentence in page


def test_a_run_of_the_api_says_whether_its_key_was_given():
    net, gradients = metropolis("path:3"), job(3).gradients("poisson:0.5", "per-example", 1.0)

    def ended(**more):
        return simulate(algorithm("dp-d-sgd", sigma=1.0), net, gradients, rounds=2, test_rows=5, **more)

    fresh, other, given, again = ended(), ended(), *(ended(noise_key=NoiseKey.parse(NAMED)) for _ in range(2))
    assert not np.array_equal(fresh.models, other.models)
    np.testing.assert_array_equal(given.models, again.models)
    kinds = [{one.kind for one in run.guarantees.headline.assumptions} for run in (fresh, given)]
    assert [AssumptionKind.REPRODUCIBLE_RUN in found for found in kinds] == [False, True]


def test_one_key_for_all_seeds_of_a_sweep_gives_each_its_own_noise():
    runs = [build_run(parse_experiment(DOCUMENT | {"noise_key": NAMED, "seed": seed})) for seed in (0, 1)]
    draws = [one.noise_key.stream("node", [0], 0).uniforms(4) for one in runs]
    batches = [one.gradients.batches.rows_of(0, 0).tolist() for one in runs]
    assert not np.isin(draws[0], draws[1]).any()
    assert batches[0] != batches[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "noise.key: not there; the run has begun"),
        (lambda path: path.write_text("{}"), "noise.key: damaged: about is missing"),
        (lambda path: path.write_text("x"), "noise.key: damaged"),
        (lambda path: _edit(path, run="of another"), "not the key of this run"),
        (lambda path: _edit(path, noise_key=5), "noise.key: damaged: noise_key has a value that is not allowed"),
        (lambda path: _edit(path, noise_key=16 * "5a"), "noise.key: damaged; noise is drawn once"),
        (lambda path: _edit(path, noise_key="5a"), "noise.key: damaged: noise_key has a value that is not allowed"),
    ],
)
def test_a_run_goes_on_with_its_own_key_or_not_at_all(change, message, begun, tmp_path):
    folder = shutil.copytree(begun, tmp_path / "run")
    change(folder / "noise.key")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(InputError, match=message):
        run(folder, resume=True)
    left = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {**left, "lock": before["lock"]} == before


def _edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("key", ["", "5a", 33 * "5", 31 * "5" + "g", 32 * "\N{DEVANAGARI DIGIT FIVE}"])
def test_a_wrong_key_in_the_settings_is_one_line_that_does_not_show_it(key, tmp_path):
    with pytest.raises(InputError, match=r"a noise key of \d+ characters; it has 32 hexadecimal digits") as refused:
        run(tmp_path / "run", noise_key=key)
    assert not key or key not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_run_that_left_a_checkpoint_has_begun(begun, tmp_path):
    folder = shutil.copytree(begun, tmp_path / "run")
    for name in ("noise.key", "privacy.json", "private.json"):
        (folder / name).unlink()
    with pytest.raises(InputError, match="the run has begun"):
        run(folder, resume=True)
    assert not (folder / "noise.key").exists()


def test_a_key_of_a_sweep_is_shown_nowhere(tmp_path, sotto, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "try.json").write_text(json.dumps(DOCUMENT))
    sigmas = ("--set", 'grid."algorithm.sigma"=[1.0, 2.0]')
    code, out, err = sotto("run try.json --jobs 1", "--set", f"noise_key='{NAMED}'", *sigmas)
    assert (code, NAMED in out + err) == (0, False)
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert {path.name for path in files if NAMED.encode() in path.read_bytes()} == {"noise.key"}
    folders = [path.parent for path in files if path.name == "config.json"]
    settings = [with_key_from_file(json.loads((folder / "config.json").read_text()), folder) for folder in folders]
    keys = {build_run(parse_experiment(one)).noise_key for one in settings}
    assert len(keys) == 2, "variants have noise of their own"
    digits = "12345678901234567890123456789012"
    for wrong in (f'grid.noise_key=["{NAMED}"]', f"noise_key={digits}", f'noise_key=["{NAMED}"]'):
        code, out, err = sotto("run try.json --out no", "--set", wrong)
        assert (code, err.count("\n"), NAMED in err, digits in err) == (2, 1, False, False), err


@pytest.mark.parametrize("secret", [b"", b"x" * 15, b"x" * 17, "x" * 16, None])
def test_a_key_has_sixteen_bytes(secret):
    with pytest.raises(InputError, match="it has 16 bytes"):
        NoiseKey(secret)


@pytest.mark.parametrize("text", [None, 5, b"5a" * 16])
def test_a_key_is_read_from_text(text):
    with pytest.raises(InputError, match="it is read from text"):
        NoiseKey.parse(text)


def test_reruns_do_not_draw_the_noise_of_the_run(tmp_path):
    run(tmp_path / "run")
    finished, files = open_run(tmp_path / "run"), RunFiles(tmp_path / "run")
    key = NoiseKey.parse(key_of(tmp_path / "run")).for_run("try", 0)
    reruns = [with_other_rows(finished, seed, {}) for seed in (0, 1)]
    assert len({key, *(one.noise_key for one in reruns)}) == 3
    assert all(one.gradients.batches.key == one.noise_key for one in reruns)
    files.noise_key.unlink()
    assert open_run(tmp_path / "run").privacy.sigma == 1.0


def test_reruns_take_the_gradients_of_the_run(tmp_path):
    """Whatever settings decide them: on the same rows only batches are drawn from another key."""
    seen = {"batch": "allocate:2x2", "clip": "per-example", "bound": 1.0, "augment": "shift:2,flip", "views": 3}
    run(tmp_path / "run", model={"name": "cnn", "filters": [4, 8]}, training={"rounds": 4, **seen})
    finished = open_run(tmp_path / "run")
    again, key = with_other_rows(finished, 5, {}), finished.training_run.gradients.batches.key
    points = finished.training_run.starting_models(np.arange(4))
    plain, found = (one(0, points) for one in (finished.training_run.gradients, again.gradients.keyed(key)))
    assert np.array_equal(plain.numpy(), found.numpy())
