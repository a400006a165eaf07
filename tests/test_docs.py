"""What the documentation says works. Examples in README and docs are doctests besides."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import sottovoce.algorithms
from sottovoce import algorithm, final, metropolis, names, trace

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


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
