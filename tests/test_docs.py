"""What the documentation says works. Examples in README and docs are doctests besides."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import sottovoce.algorithms
from sottovoce import algorithm, final, metropolis, names, trace
from sottovoce.cli import app
from sottovoce.config import Experiment
from sottovoce.run.sweep import planned

ROOT = Path(__file__).parents[1]


@pytest.fixture
def lazy(tmp_path, monkeypatch):
    """The file of docs/add-an-algorithm.md, in a folder that discovery looks at."""
    text = (ROOT / "docs" / "add-an-algorithm.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL).group(1)
    (tmp_path / "lazy.py").write_text(code)
    monkeypatch.setattr(sottovoce.algorithms, "__path__", [*sottovoce.algorithms.__path__, str(tmp_path)])
    sottovoce.algorithms.examples.cache_clear()
    yield
    sottovoce.algorithms.examples.cache_clear()
    sys.modules.pop("sottovoce.algorithms.lazy", None)


@pytest.mark.usefixtures("lazy")
def test_one_file_adds_an_algorithm():
    assert "lazy" in names()
    built = algorithm("lazy", sigma=1.0, a=0.5, step_size=1.0)
    A, B, _ = trace(built, metropolis("path:2"), rounds=2).dense()
    np.testing.assert_allclose(A[2:, :2], [[-0.75, -0.25], [-0.25, -0.75]])
    np.testing.assert_allclose(A, B)
    assert final(built, metropolis("path:2"), np.zeros((2, 1)), lambda t, x: x, rounds=3).shape == (2, 1)


def test_the_run_of_the_readme_prints_what_it_says(sotto, tmp_path):
    shown = re.search(r"\$ sotto run recipes/digits.toml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    line = f"run {ROOT}/recipes/digits.toml --out {tmp_path} --set privacy.attackers=none"
    code, out, err = sotto(line)
    assert (code, err) == (0, "")
    ours, theirs = ([row.rstrip() for row in text.splitlines()] for text in (out, shown.group(1)))
    assert ours[:-2] == theirs[:-2]
    assert [row.split()[0] for row in ours] == [row.split()[0] for row in theirs]


def test_the_page_about_runs_lists_every_setting_and_no_other():
    text = (ROOT / "docs" / "run.md").read_text()
    for section, field in Experiment.model_fields.items():
        table = re.search(rf"\| `\[{section}\]` \|.*?\n\n", text, flags=re.DOTALL)
        if table is None:
            assert section in ("name", "seed", "about")
            continue
        rows = [row.split("|")[1] for row in table.group().splitlines()[2:] if row]
        listed = {key for row in rows for key in re.findall(r"`([a-z_]+)`", row)}
        assert listed == set(field.annotation.model_fields), section


def test_the_sweep_of_the_page_about_runs_is_one():
    text = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "run.md").read_text(), flags=re.DOTALL).group(1)
    names = [run.experiment.name for run in planned(tomllib.loads(text))]
    assert len(names) == 2 * 2 * 3 + 3
    assert "study/optimised,epsilon=4.0,seed=2" in names


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def shown_commands(*pages: str) -> list[str]:
    """Every `$ sotto ...` of these pages, as words for a shell."""
    found = []
    for page in pages:
        for block in re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL):
            found += [line.removeprefix("$ sotto ") for line in block.splitlines() if line.startswith("$ sotto ")]
    return found


def test_the_pages_about_commands_show_every_command_and_all_of_them_work(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    shown = shown_commands("docs/commands.md", "docs/plan.md")
    assert {line.split()[0] for line in shown} == commands
    for line in shown:
        if line.split()[0] == "demo":  # test_demo.py runs it
            continue
        code, out, _ = sotto("", *shlex.split(line))
        assert code == 0, line
        assert out
