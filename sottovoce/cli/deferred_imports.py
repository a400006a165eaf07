"""Parts of libraries that commands load only once something uses them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

DEFERRED = frozenset({"numpy.f2py", "numpy.testing"})
"""scipy imports all names of numpy, and with them a translator of Fortran and numpy's helpers for tests."""


class DeferredImports(MetaPathFinder):
    """Finds the modules of `DEFERRED`, which then run at the first use of a name in them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname in DEFERRED else None
        if spec is not None and isinstance(spec.loader, Loader):
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_imports() -> None:
    """Defer them from now on, in this process."""
    if not any(isinstance(finder, DeferredImports) for finder in sys.meta_path):
        sys.meta_path.insert(0, DeferredImports())
