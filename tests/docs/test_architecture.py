"""Pages about the code name what is there: the walks of docs/architecture.md, and the members of docs/api."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)` `(\w+)`", PAGE)))


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize(("file", "name"), NAMED, ids=str)
def test_every_step_names_what_is_there(file, name):
    assert name in names_in(ROOT / "sottovoce" / file)


def test_every_file_that_is_named_exists():
    missing = [file for file in re.findall(r"`([\w/]+/[\w/]+\.py)`", PAGE) if not (ROOT / "sottovoce" / file).exists()]
    assert not missing


def test_walks_are_short():
    walks = [part for part in PAGE.split("\n## ") if re.search(r"^1\. ", part, re.MULTILINE)]
    assert len(walks) == 3
    assert all(len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) <= 15 for walk in walks)


def members() -> list[tuple[str, str]]:
    found, module = [], ""
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("::: "):
                module = line[4:].strip()
            elif member := re.fullmatch(r" {8}- (\w+)", line):
                found.append((module, member[1]))
    return found


@pytest.mark.parametrize(("module", "name"), members(), ids=str)
def test_every_member_of_the_api_pages_is_there(module, name):
    assert name in names_in(ROOT / Path(*module.split(".")).with_suffix(".py"))


TO_BE_WRITTEN = "sottovoce/algorithms/lazy.py"
"""The file that docs/add-an-algorithm.md asks its reader to write."""

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_pages_name_exist(page):
    text = page.read_text(encoding="utf-8")
    files = set(re.findall(r"`((?:sottovoce|tests|benchmarks|recipes)/[\w/.-]+\.(?:py|toml|json))`", text))
    modules = set(re.findall(r"\b(sottovoce(?:\.[a-z_]+)+)\b(?!/)", text))
    missing = [file for file in files - {TO_BE_WRITTEN} if not (ROOT / file).exists()]
    missing += [name for name in modules if not resolves(name)]
    assert not missing


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something that a module defines."""
    parts = name.split(".")
    for stop in range(len(parts), 0, -1):
        place = ROOT / Path(*parts[:stop])
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if source.exists():
            rest = parts[stop:]
            return not rest or rest[0] in names_in(source) or rest[0] in source.read_text(encoding="utf-8")
    return False
