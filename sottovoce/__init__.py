"""Sottovoce: private learning without a server. See README.md for the two commands to start with.

Names load their module when first used, so that the command line starts quickly and never loads torch unasked.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "algorithms.registry": ("algorithm", "cite", "algorithm_names"),
    "attacks.received_messages": ("receive",),
    "attacks.reconstruction": ("Reconstruction", "reconstruct"),
    "auditing.lower_bound": ("Audit",),
    "auditing.mechanism": ("audit",),
    "auditing.one_run": ("audit_guesses", "audit_one_run"),
    "auditing.scores": ("audit_scores",),
    "core.algorithm": ("Algorithm",),
    "core.compression": ("parse_compression",),
    "core.graphs": ("Graph", "graph"),
    "core.loop": ("iterate_rounds", "train"),
    "core.mixing": ("Mixing",),
    "core.topologies": (
        *("Changing", "Topology", "dropout", "fresh_erdos_renyi", "from_matrix"),
        *("max_degree", "metropolis", "push", "random_edges", "uniform", "weigh"),
    ),
    "errors": ("InputError", "SottovoceError", "Unaccountable"),
    "matrix_factorization.factorization": ("factorize", "factorize_by_class"),
    "matrix_factorization.result": ("Factorization",),
    "privacy.accountant": ("Account", "account"),
    "privacy.calibration": ("calibrate",),
    "privacy.guarantee": ("Guarantee",),
    "privacy.views": ("View", "coalition", "eavesdropper", "everyone", "node"),
    "tracing.linear_system": ("LinearSystem",),
    "tracing.tracer": ("Coordinate", "trace"),
}

_WITH_TORCH = {"run.simulation": ("Run", "simulate")}
"""Not among what a star imports, for that would load torch."""

__all__ = sorted(name for names in _HOME.values() for name in names)

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    for module, exported in (_HOME | _WITH_TORCH).items():
        if name in exported:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *(name for names in _WITH_TORCH.values() for name in names), "__version__"]
