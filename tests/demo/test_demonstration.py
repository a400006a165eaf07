"""`sotto demo`: its table, its files, that a second time only reads, and in whole what it shows."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.browser import inside
from tests.cli.test_schemas import fits

SMALLER = [
    "training.rounds=3", "training.batch=cycle:1x3", "data.rows=12", "topology.graph=ring:4",
    "privacy.attackers=[0]", 'grid={"privacy.epsilon" = [50.0]}',
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pages(monkeypatch):
    """A page that only says which runs it was asked for."""
    asked = []

    def write_page(out: Path, runs, *, title: str | None = None) -> Path:
        asked.append((title, [str(run) for run in runs]))
        out.write_text("page")
        return out

    monkeypatch.setattr("sottovoce.report.page.write_page", write_page)
    return asked


def test_a_small_demo_trains_accounts_attacks_and_reads_the_second_time(sotto, here, pages, monkeypatch):
    small = [word for setting in SMALLER for word in ("--set", setting)]
    code, out, err = sotto("demo --jobs 1", *small)
    assert code == 0
    assert (
        "Page: runs/demo/report.html\nThree things to try:\n  sotto audit runs/demo/dp-d-sgd,epsilon=50.0,seed=0" in err
    )
    heading, *rows = out.splitlines()
    assert "pictures reconstructed  members told from others" in heading
    assert [row.split(",")[0] for row in rows] == [
        "D-PSGD", "DP-D-SGD", "MAFALDA", "secure average", "features: D-PSGD", "features: secure average"
    ]  # fmt: skip
    assert ["no limit" in row for row in rows] == [True, False, False, False, True, False]
    assert ["sees only sums" in row for row in rows] == [False, False, False, True, False, True]
    assert ["not tried" in row for row in rows] == [False, False, False, False, True, False]
    assert Path("runs/demo/report.html").read_text() == "page"
    assert len(pages[0][1]) == 6

    def fail(*_, **__):
        pytest.fail("ran again")

    monkeypatch.setattr("sottovoce.run.execute.measured_rounds", fail)
    monkeypatch.setattr("sottovoce.attacks.run_attacks.infer_membership", fail)
    assert sotto("demo --jobs 1", *small)[:2] == (0, out)
    code, out, err = sotto("--quiet demo --jobs 1 --json", *small)
    assert (code, err) == (0, "")
    document = json.loads(out)
    fits(document, "demo")
    for one in document["runs"]:
        assert (one["everyone"]["epsilon"] == "inf") == (one["algorithm"] == "d-psgd")
        for name in ("privacy.json", "result.json", *(["attack.json"] if one["attack"] else [])):
            fits(json.loads((Path(one["folder"]) / name).read_text()), name)
    for line in document["next"]:
        assert sotto(line.removeprefix("sotto "))[0] == 0, line


@pytest.mark.parametrize("words", [["--out", "file"], ["--set", "training.rounds=0"], ["--set", "nonsense"]])
def test_what_is_wrong_is_said_before_anything_is_written(words, sotto, here, pages):
    (here / "file").write_text("mine")
    code, out, err = sotto("demo", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert [path.name for path in here.iterdir()] == ["file"]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The whole demo, carried out once: its documents, by algorithm and whether on features, and its page."""
    from sottovoce.demo.demonstration import demonstrate

    quiet = SimpleNamespace(tell=lambda done, of: None)
    found = demonstrate(tmp_path_factory.mktemp("demo") / "runs", [], lambda what: nullcontext(quiet))
    documents = [run.document() for run in found.runs]
    named = {f"{'features ' if one['features'] else ''}{one['algorithm']}": one for one in documents}
    return named, found.page


@pytest.mark.slow
def test_without_noise_neighbours_see_pictures_and_members_and_with_it_neither(story):
    runs, page = story
    assert runs["d-psgd"]["likeness"] > 0.95
    assert runs["d-psgd"]["attack"]["auc"]["value"] > 0.6
    for name in ("dp-d-sgd", "mafalda"):
        assert runs[name]["likeness"] < 0.3
        assert runs[name]["attack"]["auc"]["value"] < 0.56
    assert runs["secure-average"]["attack"] is runs["secure-average"]["likeness"] is None
    shown = inside(page)
    assert shown["pictures"].count("<text") == 4
    assert page.stat().st_size < 1_500_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_with_other_seeds_pictures_are_seen_too_and_noise_hides_them(seed, tmp_path):
    """Whichever digits meet in a batch. Nobody is accounted for but everyone, which takes less time."""
    from sottovoce.demo.demonstration import RECIPE, _show
    from sottovoce.run.sweep import expand_sweep
    from sottovoce.support.config import apply_overrides, read_settings_file

    settings = apply_overrides(read_settings_file(RECIPE), [f"seeds=[{seed}]", "privacy.attackers=[]"])
    plain, noisy, correlated = (_show(run, tmp_path) for run in expand_sweep(settings)[:3])
    assert plain.likeness > 0.96
    assert max(noisy.likeness, correlated.likeness) < 0.3
    assert plain.membership["auc"]["value"] > 0.6


@pytest.mark.slow
def test_at_one_epsilon_correlated_noise_is_more_accurate_and_secure_sums_most(story):
    runs, _ = story
    for name in ("dp-d-sgd", "mafalda", "secure-average"):
        assert runs[name]["everyone"]["epsilon"] == pytest.approx(10.0, abs=0.01)
        assert runs[name]["proven_for"] == "record"
    average = {name: one["accuracy"]["average"] for name, one in runs.items()}
    assert average["d-psgd"] > 0.85
    assert average["mafalda"] > average["dp-d-sgd"] + 0.1
    assert average["secure-average"] > average["mafalda"] + 0.01
    assert average["secure-average"] > average["d-psgd"] - 0.15


@pytest.mark.slow
def test_on_features_an_epsilon_of_3_costs_less_than_4_points(story):
    runs, _ = story
    plain, private = runs["features d-psgd"], runs["features secure-average"]
    assert private["everyone"]["epsilon"] == pytest.approx(3, abs=0.01)
    assert private["proven_for"] == "record"
    assert plain["likeness"] is private["attack"] is None
    assert private["accuracy"]["average"] > plain["accuracy"]["average"] - 0.04 > 0.87


@pytest.mark.slow
def test_what_is_proven_falls_with_distance_and_the_page_opens_there(story, opened):
    runs, page = story
    epsilons = [one["epsilon"] for one in runs["dp-d-sgd"]["by_distance"]]
    assert len(epsilons) == 8
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[0] > 9 > 1 > epsilons[-1]
    shown = opened(page)
    assert shown.locator("#run option:checked").inner_text() == "DP-D-SGD, ε = 10"
    colours = shown.locator("#graph .plot .dot path").evaluate_all("all => all.map(one => one.getAttribute('fill'))")
    assert len(set(colours)) > 4
    assert shown.locator("#pictures svg rect").count() == 4 * 8 * 64
