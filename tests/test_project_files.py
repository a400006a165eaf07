"""What stands beside the package: one version and one licence everywhere, and links that lead somewhere."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from sottovoce import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_citation_is_of_this_version_and_licence():
    assert CITATION["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= CITATION.keys()
    assert CITATION["version"] == __version__
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["keywords"] == PROJECT["keywords"]


def test_the_changelog_begins_with_what_is_unreleased_then_this_version():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[:2] == ["[Unreleased]", f"[{__version__}] - {CITATION['date-released']}"]


def test_make_installs_a_torch_that_the_package_allows():
    (installed,) = re.findall(r"^TORCH \?= (\S+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    (allowed,) = [
        found for found in map(Requirement, PROJECT["optional-dependencies"]["learning"]) if found.name == "torch"
    ]
    assert allowed.specifier.contains(installed)


def test_hooks_before_a_commit_call_programs_of_the_environment():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].startswith(".venv/bin/")


@pytest.mark.parametrize("page", ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text()):
        assert (ROOT / target).exists(), target


def test_the_artifact_pins_what_the_package_needs():
    lock = (ROOT / "artifact" / "requirements.lock").read_text().splitlines()
    pinned = {}
    for line in lock:
        name, version = re.fullmatch(r"(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}", line).groups()
        pinned[name] = version
    for needed in map(Requirement, PROJECT["dependencies"]):
        assert needed.specifier.contains(pinned[needed.name])


@pytest.mark.slow
def test_figures_of_the_artifact_are_as_expected(capsys):
    code = runpy.run_path(str(ROOT / "artifact" / "check.py"))["main"]()
    assert code == 0, capsys.readouterr().out
