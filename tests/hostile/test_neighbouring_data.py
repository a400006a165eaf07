"""Two data sets that differ in one record: nothing that is public tells them apart.

Public are the settings, `privacy.json`, what a run prints and logs, and the promises on its page. Kept apart are:

- metrics, which are functions of noisy models and of held-out rows, and times;
- what is used of the rows before a run begins (`PublicStatistic`, named in the assumptions of the headline): how
  features were scaled, which classes there are, which rows are held out. So here a record is replaced after that;
- that a run diverges, which its noisy models tell as well.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce import InputError, algorithm, metropolis
from sottovoce.learning import models
from sottovoce.learning.catalogue import CATALOGUE, PublicStatistic
from sottovoce.learning.datasets import Dataset, from_arrays, load
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import task
from sottovoce.papers.catalogue import figures_of, papers
from sottovoce.privacy import views
from sottovoce.privacy.assumptions import Assumption, AssumptionKind
from sottovoce.report.quality import OF_MODEL, OF_NOISE
from sottovoce.run import build
from sottovoce.run.privacy_report import report_privacy, sigma_of
from sottovoce.run.run_accountant import calibrate_run
from sottovoce.run.sweep import expand_sweep
from sottovoce.run.training_run import prepare_run
from sottovoce.support.config import Experiment, merge
from tests.report.test_page import inside

DELTA = 1e-5
LISTENER = views.node(0, secure_sum=True)
"""Convex training protects even direct neighbours from it."""

EXTREME = 1e4
"""The replaced record is so many times as long as it was; its label is another."""


def worlds(rows: np.ndarray, labels: np.ndarray) -> tuple[Dataset, Dataset]:
    """A data set, and the same with one record replaced by an extreme one."""
    longer, other = rows.copy(), labels.copy()
    longer[0], other[0] = EXTREME * longer[0], 1 - other[0]
    return made_of(rows, labels), made_of(longer, other)


def made_of(rows: np.ndarray, labels: np.ndarray) -> Dataset:
    return Dataset(
        name="clinics", kind="classes", examples=Examples(rows), targets=labels, test_inputs=rows[-4:],
        test_targets=labels[-4:], shape=rows.shape[1:], classes=("a", "b"), groups=None, test_groups=None, entities=(),
        licence="", source="", notes=(),
    )  # fmt: skip


def calibrated(data: Dataset, name: str, clip: str, bound: float | None):
    job = task(data, partition(data, 7), models.model(name, data))
    run = prepare_run(
        algorithm("dp-d-sgd", sigma=1.0, step_size=0.5), metropolis("ring:7"), job.gradients("full", clip, bound),
        rounds=4,
    )  # fmt: skip
    return calibrate_run(run, epsilon=1.0, delta=DELTA, view=LISTENER)


RNG = np.random.default_rng(0)
ROWS, LABELS = RNG.standard_normal((42, 3)).astype(np.float32), RNG.integers(0, 2, 42)
DECLARED = {
    "nothing declared": lambda data: data,
    "unit_norm": lambda data: data.unit_norm(),
    "max_norm": lambda data: data.max_norm(0.5),
}


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize(("name", "clip", "bound"), [("logistic", "per-example", 1.0), ("softmax", "bounded", None)])
def test_the_size_of_the_noise_does_not_tell_which_data_it_was_chosen_for(declared, name, clip, bound):
    """A record decided once whether training counts as convex, and so sigma: the first message gave it away."""
    if declared == "nothing declared" and clip == "bounded":
        with pytest.raises(InputError, match="without a declared norm"):
            calibrated(made_of(ROWS, LABELS), name, clip, bound)
        return
    found = [calibrated(DECLARED[declared](data), name, clip, bound) for data in worlds(ROWS, LABELS)]
    one, other = (sigma_of(each.training_run.algorithm.noise) for each in found)
    assert one == other
    first, second = (report_privacy(each, delta=DELTA, attackers="none", target=LISTENER).document() for each in found)
    assert first == second
    assert ("convex-training" in {each["kind"] for each in first["views"][1]["guarantees"]}) is (
        declared != "nothing declared"
    )


# --- every recipe, in small ------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
RUN_FILES = [path for path in sorted(ROOT.glob("recipes/*.toml")) if not path.name.startswith("hospitals")]
RECIPES = {path.stem: tomllib.loads(path.read_text()) for path in (*RUN_FILES, ROOT / "sottovoce/demo/demo.toml")}
RECIPES |= {
    f"{paper}-{name}": {"name": f"{paper}-{name}", **figure.runs}
    for paper in papers()
    for name, figure in figures_of(paper).items()
    if figure.training is not None and not figure.runs_of
}
GRAPHS = {
    r"erdos-renyi:\d+,p=[\d.]+": "erdos-renyi:6,p=0.9", r"regular:\d+,d=\d+": "regular:6,d=4",
    r"complete:\d+": "complete:6", r"ring:\d+": "ring:6", r"exponential:\d+": "exponential:6", r"file:.*": "ring:6",
}  # fmt: skip
BATCHES = {
    r"cycle:\d+x\d+": "cycle:2x2", r"poisson:.*": "poisson:0.5", r"cyclic-poisson:.*": "cyclic-poisson:0.5x2",
    r"fixed:\d+": "fixed:4", "full": "full",
}  # fmt: skip
MODELS = {"gn-resnet18": {"width": 4, "groups": 2}, "cnn": {"filters": [4, 8]}, "mlp": {"hidden": [8]}}


def in_small(experiment: Experiment) -> dict[str, Any]:
    """The settings of a run with six nodes, few rounds and a small model; all else is as it was."""
    found = experiment.document()
    graph, batch = found["topology"]["graph"], found["training"]["batch"]
    smaller = next(re.sub(f"^{old}", new, graph) for old, new in GRAPHS.items() if re.match(old, graph))
    recorded = found["record"]["attackers"]
    few = {"colluders": min(found["privacy"]["colluders"], 2)} if found["privacy"].get("colluders") else {}
    few |= {"attackers": [0]} if isinstance(found["privacy"]["attackers"], list) else {}
    model = MODELS.get(found["model"]["name"], {})
    model = {**model, "features": "scattering:J=1,L=8"} if "features" in found["model"] else model
    return merge(found, {
        "name": "small", "machine": {"checkpoint_seconds": 1000.0}, "data": {"rows": 8},
        "topology": {"graph": smaller},
        "training": {
            "rounds": 3, "batch": next(new for old, new in BATCHES.items() if re.fullmatch(old, batch)),
        },
        "model": model, "metrics": {"every": 2, "test_rows": 4},
        "record": {"attackers": [0] if isinstance(recorded, list) else recorded}, "privacy": few,
    })  # fmt: skip


def cases():
    """One run with noise of each recipe, and one of each other variant, which takes longer."""
    for name, document in RECIPES.items():
        fast = True
        variants = {}
        for run in expand_sweep(document, name):
            variants.setdefault(run.variant, run.experiment)
        for variant, experiment in variants.items():
            noisy = experiment.algorithm.name != "d-psgd"
            marks = () if noisy and fast else pytest.mark.slow
            fast = fast and not noisy
            yield pytest.param(experiment, id=f"{name}: {variant}", marks=marks)


SHAPES = {
    "mnist": (1, 8, 8),
    "fashion-mnist": (1, 8, 8),
    "mnist-writers": (1, 8, 8),
    "digits": (1, 8, 8),
    "cifar10": (3, 8, 8),
}


def drawn(name: str) -> Dataset:
    """Rows as those of a data set in the catalogue, made up: of the same kind, eight for each of six nodes."""
    rng, kind = np.random.default_rng(1), CATALOGUE[name].kind
    count, shape = 48, SHAPES.get(name, (8,))
    inputs = rng.standard_normal((count, *shape)).astype(np.float32)
    if kind == "ratings":
        inputs = np.stack([np.arange(count) % 12, rng.integers(0, 9, count)], axis=1).astype(np.float32)
    labels = 2 if "longitude" in name else 10
    targets = np.arange(count) % labels if kind == "classes" else 1 + 4 * rng.random(count).astype(np.float32)
    grouped = {"mnist-writers": np.arange(count) % 12, "movielens": np.arange(count) % 12}.get(name)
    return Dataset(
        name=name, kind=kind, examples=Examples(inputs.reshape(count, -1)), targets=targets,
        test_inputs=inputs.reshape(count, -1)[:8], test_targets=targets[:8], shape=inputs.shape[1:],
        classes=tuple(map(str, range(labels))) if kind == "classes" else (), groups=grouped, test_groups=None,
        entities=(12, 9) if kind == "ratings" else (), licence="", source="", notes=(),
    )  # fmt: skip


def with_another_record(data: Dataset, row: int = 5) -> Dataset:
    """One record replaced by an extreme one: far longer, another label; of ratings another movie and a high value."""
    rows, targets = data.inputs.copy(), data.targets.copy()
    rows[row] = [rows[row, 0], (rows[row, 1] + 1) % 9] if data.entities else 100 * rows[row]
    targets[row] = (targets[row] + 1) % len(data.classes) if data.classes else 1e3
    return replace(data, examples=Examples(rows), targets=targets)


METRICS = ("average_model", "mean_node", "worst_node", "held_out")
QUALITY, SCORES = (OF_MODEL, OF_NOISE, "Read this first"), ("held-out", "sensitivity", "confusion")


def public(place: Path, printed: str) -> dict[str, Any]:
    """All that may be handed on of a run and says something about privacy; metrics and times are masked."""
    folder = place / "runs" / "small"
    page = inside(folder / "report.html")
    summary = {key: value for key, value in page["runs"][0].items() if key not in METRICS}
    summary["facts"] = [one for one in summary["facts"] if not one[0].startswith(SCORES)]
    summary["plain"]["questions"] = [one for one in summary["plain"]["questions"] if one[0] not in QUALITY]
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "settings": (folder / "config.json").read_bytes(),
        "privacy": (folder / "privacy.json").read_bytes(),
        "result": {key: value for key, value in result.items() if key not in ("metrics", "held_out", "seconds")},
        "page": json.dumps(summary),
        "printed": re.sub(r"(?m)^ *(test .*|held-out .*|sensitivity .*|seconds of training.*)$", "", printed),
        "lines": [(line.keys(), line["round"], line["messages"], line["bytes"]) for line in lines],
    }


@pytest.mark.parametrize("experiment", [*cases()])
def test_nothing_public_tells_neighbouring_data_apart(experiment, sotto, tmp_path, monkeypatch):
    data = drawn(experiment.data.name)
    found, secrets = [], []
    for world, rows in (("one", data), ("other", with_another_record(data))):
        place = tmp_path / world
        place.mkdir()
        monkeypatch.chdir(place)
        monkeypatch.setattr(build, "find_dataset", lambda name, folder, rows=rows: rows)
        build.forget_data()
        (place / "small.json").write_text(json.dumps(in_small(experiment)))
        code, out, err = sotto("run small.json")
        assert code == 0, err
        found.append(public(place, out + err))
        secrets.append((place / "runs" / "small" / "private.json").read_text())
    build.forget_data()
    one, other = found
    for key, value in one.items():
        assert other[key] == value, key
    assert secrets[0] != secrets[1]


# --- what is used of the rows before a run begins --------------------------------------------------------------------


def test_what_is_used_before_a_run_is_named_where_it_is_not_covered(sotto, tmp_path, monkeypatch):
    """In the headline of `privacy.json`, with its kind, and on the page."""
    monkeypatch.chdir(tmp_path)
    settings = {
        "name": "skewed", "topology": {"graph": "ring:4"}, "data": {"partition": "dirichlet:1.0", "rows": 9},
        "training": {"rounds": 2, "clip": "per-example", "bound": 1.0}, "algorithm": {"name": "dp-d-sgd", "sigma": 2.0},
    }  # fmt: skip
    Path("skewed.json").write_text(json.dumps(settings))
    assert sotto("run skewed.json")[0] == 0
    headline = json.loads(Path("runs/skewed/privacy.json").read_text())["headline"]
    (named,) = [
        one for one in map(Assumption.read, headline["assumptions"]) if one.kind is AssumptionKind.PUBLIC_STATISTICS
    ]
    for statistic in ("PIXEL_SCALES", "HELD_OUT_LABELS", "PARTITION_LABELS"):
        assert PublicStatistic[statistic].value in named.sentence
    assert any(named.sentence[1:] in line for line in inside(Path("runs/skewed/report.html"))["runs"][0]["not_covered"])


def test_preparation_that_looks_at_rows_says_so():
    rows = np.random.default_rng(0).standard_normal((20, 3))
    assert load("breast-cancer").public_statistics == (PublicStatistic.FEATURE_SCALES, PublicStatistic.HELD_OUT_LABELS)
    split = from_arrays(rows, [0, 1] * 10)
    assert split.public_statistics == (PublicStatistic.CLASSES, PublicStatistic.HELD_OUT_LABELS)
    assert from_arrays(rows, [0, 1] * 10, test=(rows, [0, 1] * 10)).public_statistics == (PublicStatistic.CLASSES,)
    assert from_arrays(rows, np.linspace(0, 1, 20)).public_statistics == ()
    assert partition(split, 2).public_statistics == ()
