"""What examples in docstrings and on pages need; fixtures of tests are in tests/conftest.py."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import count

import pytest
from _pytest.doctest import DoctestItem

collect_ignore = [
    module
    for module, framework in (
        ("sottovoce/adapters/flower.py", "flwr"),
        ("sottovoce/adapters/nvflare.py", "nvflare"),
        ("tests/adapters/nvflare_trainer.py", "nvflare"),
    )
    if find_spec(framework) is None
]


@pytest.fixture
def repeatable_keys(monkeypatch):
    """Keys that runs make for themselves are the same in every test: what pages print was printed with them."""
    from sottovoce.core.random_streams import NoiseKey  # loads numpy, whose threads tests/conftest.py limits first

    numbers = count(1)
    monkeypatch.setattr(NoiseKey, "fresh", classmethod(lambda cls: cls.of_seed(next(numbers))))


@pytest.fixture(autouse=True)
def _repeatable_examples(request):
    """Examples of docstrings and pages draw the same noise each time."""
    if isinstance(request.node, DoctestItem):
        request.getfixturevalue("repeatable_keys")
