"""Imports of commands: garbage is not sought in what they make, and is sought again in all that comes later."""

from __future__ import annotations

import gc
import importlib
import sys

import pytest

from sottovoce.cli.deferred_imports import lasting_imports


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that nobody has imported."""
    (tmp_path / "imported_for_a_test.py").write_text("made = [[]]\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imported_for_a_test", raising=False)
    yield "imported_for_a_test"
    sys.modules.pop("imported_for_a_test", None)
    gc.unfreeze()


def is_searched(thing):
    return any(one is thing for one in gc.get_objects())


def test_what_an_import_makes_is_not_searched(module):
    with lasting_imports():
        assert not gc.isenabled()
        found = importlib.import_module(module)
    later = [[]]
    assert gc.isenabled()
    assert not is_searched(found.made)
    assert is_searched(later)


def test_without_an_import_everything_is_searched_as_before(module):
    importlib.import_module(module)
    before, mine = gc.get_freeze_count(), [[]]
    with lasting_imports():
        importlib.import_module(module)
    assert gc.get_freeze_count() == before
    assert is_searched(mine)


def test_a_failing_import_leaves_collection_as_it_was(module):
    with pytest.raises(ModuleNotFoundError), lasting_imports():
        importlib.import_module(f"{module}_that_is_not_there")
    assert gc.isenabled()
    gc.disable()
    try:
        with lasting_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
