"""Sottovoce: private learning without a server. See README.md for the two commands to start with.

Names load their module when first used, so that the command line starts quickly and never loads torch unasked.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sottovoce._version import __version__ as __version__

if TYPE_CHECKING:
    from sottovoce.algorithms.registry import algorithm, algorithm_names, cite
    from sottovoce.algorithms.spec import AlgorithmSpec, Example, Meaning, NoisyStepSettings
    from sottovoce.attacks.candidate_losses import attacked_pairs as attacked_pairs
    from sottovoce.attacks.candidate_losses import candidates_of as candidates_of
    from sottovoce.attacks.candidate_losses import loss_series as loss_series
    from sottovoce.attacks.received_messages import receive
    from sottovoce.attacks.threshold import threshold as threshold
    from sottovoce.auditing.lower_bound import Audit, audit_guesses, audit_one_run, audit_scores
    from sottovoce.auditing.mechanism import audit
    from sottovoce.core.algorithm import Algorithm, Gossip
    from sottovoce.core.arrays import Rows
    from sottovoce.core.compression import parse_compression
    from sottovoce.core.graphs import Graph, graph
    from sottovoce.core.loop import iterate_rounds, train
    from sottovoce.core.mixing import Mixing
    from sottovoce.core.noise import Independent
    from sottovoce.core.random_streams import NoiseKey
    from sottovoce.core.secret_source import SecretSource
    from sottovoce.core.topologies import (
        Changing,
        Topology,
        dropout,
        fresh_erdos_renyi,
        from_matrix,
        max_degree,
        metropolis,
        push,
        random_edges,
        rotating,
        uniform,
        weigh,
    )
    from sottovoce.errors import InputError, SottovoceError, Unaccountable
    from sottovoce.learning.datasets import Dataset as Dataset
    from sottovoce.learning.datasets import from_arrays as from_arrays
    from sottovoce.learning.datasets import load as load
    from sottovoce.learning.declared_records import calibrate
    from sottovoce.learning.exported_model import read_exported_model as read_exported_model
    from sottovoce.learning.models import model as model
    from sottovoce.learning.models import wrap_module as wrap_module
    from sottovoce.learning.partitioning import partition as partition
    from sottovoce.learning.tables import from_table as from_table
    from sottovoce.learning.tables import from_tables as from_tables
    from sottovoce.learning.tasks import task as task
    from sottovoce.matrix_factorization.factorization import factorize, factorize_by_class
    from sottovoce.matrix_factorization.result import Factorization
    from sottovoce.matrix_factorization.sampled_noise import sampled_noise
    from sottovoce.planning.noise_accumulation import noise_in_models
    from sottovoce.planning.planner import plan
    from sottovoce.planning.question import Question
    from sottovoce.planning.ranking import Plan
    from sottovoce.privacy import views
    from sottovoce.privacy.accountant import Account, account
    from sottovoce.privacy.amplification import sampled_epsilon
    from sottovoce.privacy.composition import Composition, GaussianLoss, SampledLoss, StatedLoss, compose
    from sottovoce.privacy.guarantee import Guarantee
    from sottovoce.privacy.views import View
    from sottovoce.report.model_export import export_model as export_model
    from sottovoce.report.page import write_page as write_page
    from sottovoce.run.build import build_run as build_run
    from sottovoce.run.execute import run_experiment as run_experiment
    from sottovoce.run.privacy_report import report_privacy as report_privacy
    from sottovoce.run.simulation import PrivateTraining as PrivateTraining
    from sottovoce.run.simulation import Run as Run
    from sottovoce.run.simulation import make_private as make_private
    from sottovoce.run.simulation import simulate as simulate
    from sottovoce.support.config import RecordingSettings, parse_experiment
    from sottovoce.support.own_code import code_from
    from sottovoce.tracing.basis import Coordinate
    from sottovoce.tracing.linear_system import LinearSystem
    from sottovoce.tracing.tracer import trace

_MODULE_OF = {
    "algorithms.registry": (
        "algorithm",
        "algorithm_names",
        "cite",
    ),
    "algorithms.spec": (
        "AlgorithmSpec",
        "Example",
        "Meaning",
        "NoisyStepSettings",
    ),
    "attacks.received_messages": ("receive",),
    "auditing.lower_bound": (
        "Audit",
        "audit_guesses",
        "audit_one_run",
        "audit_scores",
    ),
    "auditing.mechanism": ("audit",),
    "support.config": (
        "RecordingSettings",
        "parse_experiment",
    ),
    "core.algorithm": (
        "Algorithm",
        "Gossip",
    ),
    "core.arrays": ("Rows",),
    "core.compression": ("parse_compression",),
    "core.graphs": (
        "Graph",
        "graph",
    ),
    "core.loop": (
        "iterate_rounds",
        "train",
    ),
    "core.mixing": ("Mixing",),
    "core.noise": ("Independent",),
    "core.random_streams": ("NoiseKey",),
    "support.own_code": ("code_from",),
    "core.secret_source": ("SecretSource",),
    "core.topologies": (
        "Changing",
        "Topology",
        "dropout",
        "fresh_erdos_renyi",
        "from_matrix",
        "max_degree",
        "metropolis",
        "push",
        "random_edges",
        "rotating",
        "uniform",
        "walking",
        "weigh",
    ),
    "errors": (
        "InputError",
        "SottovoceError",
        "Unaccountable",
    ),
    "learning.declared_records": ("calibrate",),
    "matrix_factorization.factorization": (
        "factorize",
        "factorize_by_class",
    ),
    "matrix_factorization.result": ("Factorization",),
    "matrix_factorization.sampled_noise": ("sampled_noise",),
    "planning.noise_accumulation": ("noise_in_models",),
    "planning.planner": ("plan",),
    "planning.question": ("Question",),
    "planning.ranking": ("Plan",),
    "privacy.accountant": (
        "Account",
        "account",
    ),
    "privacy.amplification": ("sampled_epsilon",),
    "privacy.composition": (
        "Composition",
        "GaussianLoss",
        "SampledLoss",
        "StatedLoss",
        "compose",
    ),
    "privacy.guarantee": ("Guarantee",),
    "privacy.views": ("View",),
    "tracing.linear_system": ("LinearSystem",),
    "tracing.basis": ("Coordinate",),
    "tracing.tracer": ("trace",),
}

_WITH_TORCH = {
    "attacks.candidate_losses": (
        "attacked_pairs",
        "candidates_of",
        "loss_series",
    ),
    "attacks.threshold": ("threshold",),
    "learning.datasets": (
        "Dataset",
        "from_arrays",
        "load",
    ),
    "learning.exported_model": ("read_exported_model",),
    "learning.models": (
        "model",
        "wrap_module",
    ),
    "learning.partitioning": ("partition",),
    "learning.tables": (
        "from_table",
        "from_tables",
    ),
    "learning.tasks": ("task",),
    "report.model_export": ("export_model",),
    "report.page": ("write_page",),
    "run.build": ("build_run",),
    "run.execute": ("run_experiment",),
    "run.privacy_report": ("report_privacy",),
    "run.simulation": (
        "PrivateTraining",
        "Run",
        "make_private",
        "simulate",
    ),
}
"""Not among what `from sottovoce import *` takes, for that would load torch."""

__all__ = [
    "Account",
    "Algorithm",
    "AlgorithmSpec",
    "Audit",
    "Changing",
    "Composition",
    "Coordinate",
    "Example",
    "Factorization",
    "GaussianLoss",
    "Gossip",
    "Graph",
    "Guarantee",
    "Independent",
    "InputError",
    "LinearSystem",
    "Meaning",
    "Mixing",
    "NoiseKey",
    "NoisyStepSettings",
    "Plan",
    "Question",
    "RecordingSettings",
    "Rows",
    "SampledLoss",
    "SecretSource",
    "SottovoceError",
    "StatedLoss",
    "Topology",
    "Unaccountable",
    "View",
    "account",
    "algorithm",
    "algorithm_names",
    "audit",
    "audit_guesses",
    "audit_one_run",
    "audit_scores",
    "calibrate",
    "cite",
    "code_from",
    "compose",
    "dropout",
    "factorize",
    "factorize_by_class",
    "fresh_erdos_renyi",
    "from_matrix",
    "graph",
    "iterate_rounds",
    "max_degree",
    "metropolis",
    "noise_in_models",
    "parse_compression",
    "parse_experiment",
    "plan",
    "push",
    "random_edges",
    "receive",
    "rotating",
    "sampled_epsilon",
    "sampled_noise",
    "trace",
    "train",
    "uniform",
    "views",
    "walking",
    "weigh",
]


def __getattr__(name: str) -> Any:
    if name == "views":
        return importlib.import_module(f"{__name__}.privacy.views")
    for module, exported in (_MODULE_OF | _WITH_TORCH).items():
        if name in exported:
            return _exported(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *(name for names in _WITH_TORCH.values() for name in names), "__version__"]


def _exported(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        from sottovoce.errors import without_learning

        raise without_learning(error) or error from None
