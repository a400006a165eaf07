"""Sottovoce: private learning without a server. See README.md for the two commands to start with.

Names load their module when first used, so that the command line starts quickly and never loads torch unasked.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.algorithms import Algorithm, algorithm, cite, names
    from sottovoce.attacks.received import receive
    from sottovoce.attacks.reconstruction import Reconstruction, reconstruct
    from sottovoce.audit import Audit, audit, audit_guesses, audit_one_run, audit_scores
    from sottovoce.compression import compression
    from sottovoce.errors import InputError, SottovoceError, Unaccountable
    from sottovoce.factorize import Factorization, factorize, factorize_by_class
    from sottovoce.graphs import Graph, graph
    from sottovoce.loop import final, rounds_of
    from sottovoce.mixing import Mixing
    from sottovoce.privacy.account import Account, Guarantee, account
    from sottovoce.privacy.calibrate import calibrate
    from sottovoce.privacy.views import View, coalition, eavesdropper, everyone, node
    from sottovoce.run.simulate import Run as Run
    from sottovoce.run.simulate import simulate as simulate
    from sottovoce.system import LinearSystem
    from sottovoce.topology import (
        Changing,
        Topology,
        dropout,
        fresh_erdos_renyi,
        from_matrix,
        max_degree,
        metropolis,
        push,
        random_edges,
        uniform,
        weigh,
    )
    from sottovoce.trace import Coordinate, trace

_HOME = {
    "algorithms": ("Algorithm", "algorithm", "cite", "names"),
    "attacks.received": ("receive",),
    "attacks.reconstruction": ("Reconstruction", "reconstruct"),
    "audit": ("Audit", "audit", "audit_guesses", "audit_one_run", "audit_scores"),
    "compression": ("compression",),
    "errors": ("InputError", "SottovoceError", "Unaccountable"),
    "factorize": ("Factorization", "factorize", "factorize_by_class"),
    "graphs": ("Graph", "graph"),
    "loop": ("final", "rounds_of"),
    "mixing": ("Mixing",),
    "privacy.account": ("Account", "Guarantee", "account"),
    "privacy.calibrate": ("calibrate",),
    "privacy.views": ("View", "coalition", "eavesdropper", "everyone", "node"),
    "system": ("LinearSystem",),
    "topology": (
        *("Changing", "Topology", "dropout", "fresh_erdos_renyi", "from_matrix"),
        *("max_degree", "metropolis", "push", "random_edges", "uniform", "weigh"),
    ),
    "trace": ("Coordinate", "trace"),
}

_WITH_TORCH = {"run.simulate": ("Run", "simulate")}
"""Not among what a star imports, for that would load torch."""

__all__ = [
    "Account",
    "Algorithm",
    "Audit",
    "Changing",
    "Coordinate",
    "Factorization",
    "Graph",
    "Guarantee",
    "InputError",
    "LinearSystem",
    "Mixing",
    "Reconstruction",
    "SottovoceError",
    "Topology",
    "Unaccountable",
    "View",
    "account",
    "algorithm",
    "audit",
    "audit_guesses",
    "audit_one_run",
    "audit_scores",
    "calibrate",
    "cite",
    "coalition",
    "compression",
    "dropout",
    "eavesdropper",
    "everyone",
    "factorize",
    "factorize_by_class",
    "final",
    "fresh_erdos_renyi",
    "from_matrix",
    "graph",
    "max_degree",
    "metropolis",
    "names",
    "node",
    "push",
    "random_edges",
    "receive",
    "reconstruct",
    "rounds_of",
    "trace",
    "uniform",
    "weigh",
]

__version__ = "0.1.0"


class _Package(ModuleType):
    """Keeps `sottovoce.trace` the function when the module of that name is loaded, which would take its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in __all__):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    for module, exported in (_HOME | _WITH_TORCH).items():
        if name in exported:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *(name for names in _WITH_TORCH.values() for name in names), "__version__"]
