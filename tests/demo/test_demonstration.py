"""`sotto demo`: its table, its files, that a second time only reads, and in whole what it shows."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cli.test_schemas import fits

SMALLER = [
    "training.rounds=2", "training.batch=cycle:1x2", "data.rows=12", "topology.graph=ring:4", "record.every=1",
    "privacy.attackers=[0, 2]", 'grid={"privacy.epsilon" = [50.0]}',
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
    assert "Page: runs/demo/report.html\nNext, try:\n  sotto audit runs/demo/dp-d-sgd,epsilon=50.0,seed=0" in err
    rows = [line.split()[0] for line in out.splitlines()[1:5]]
    assert rows == ["d-psgd", "dp-d-sgd", "zip-dl", "mafalda"]
    assert "no limit" in out.splitlines()[1]
    assert all(f"{least} any-training" in line for least, line in zip((50, 10, 50), out.splitlines()[2:5], strict=True))
    assert [line.split()[-1] for line in out.splitlines()[1:2]] == ["exactly"]
    assert "zip-dl: all data of a node replaced, so also one record." in out
    assert Path("runs/demo/report.html").read_text() == "page"
    assert len(pages[0][1]) == 4

    def fail(*_, **__):
        pytest.fail("ran again")

    monkeypatch.setattr("sottovoce.run.execute.build_accountant", fail)
    monkeypatch.setattr("sottovoce.attacks.run_attacks.infer_membership", fail)
    assert sotto("demo --jobs 1", *small)[:2] == (0, out)
    code, out, err = sotto("--quiet demo --jobs 1 --json", *small)
    assert (code, err) == (0, "")
    document = json.loads(out)
    fits(document, "demo")
    for one in document["runs"]:
        assert (one["everyone"]["epsilon"] == "inf") == (one["algorithm"] == "d-psgd")
        for name in ("privacy.json", "attack.json", "result.json"):
            fits(json.loads((Path(one["folder"]) / name).read_text()), name)
    for line in document["next"]:
        assert sotto(line.removeprefix("sotto "))[0] == 0, line


@pytest.mark.parametrize("words", [["--out", "file"], ["--set", "training.rounds=0"], ["--set", "nonsense"]])
def test_what_is_wrong_is_said_before_anything_is_written(words, sotto, here, pages):
    (here / "file").write_text("mine")
    code, out, err = sotto("demo", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert [path.name for path in here.iterdir()] == ["file"]


@pytest.mark.slow
def test_the_whole_demo_tells_its_story(sotto, here):
    """Without noise gradients lie open, with noise not; correlated noise costs less; zero-sum drowns single nodes."""
    begun = time.monotonic()
    code, out, _ = sotto("demo --json")
    took = time.monotonic() - begun
    assert code == 0
    document = json.loads(out)
    fits(document, "demo")
    runs = {one["algorithm"]: one for one in document["runs"] if "epsilon=3" not in one["folder"]}
    assert runs["d-psgd"]["sharpest_gradient"] < 1e-9 < 0.1 < runs["mafalda"]["sharpest_gradient"]
    for name in ("dp-d-sgd", "zip-dl", "mafalda"):
        assert runs[name]["attack"]["auc"]["low"] < 0.51
        assert runs[name]["everyone"]["epsilon"] == pytest.approx(10.0, abs=0.01)
    accuracy = {name: one["accuracy"] for name, one in runs.items()}
    assert accuracy["d-psgd"]["mean"] > accuracy["mafalda"]["mean"] > accuracy["dp-d-sgd"]["mean"] + 0.03
    assert accuracy["zip-dl"]["mean"] < 0.3
    assert Path(document["page"]).stat().st_size > 0
    assert took < 600, "two minutes on idle cores; this is for busy ones"
    begun = time.monotonic()
    assert sotto("demo --json")[1] == out
    assert time.monotonic() - begun < took
