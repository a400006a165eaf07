"""Options that commands share, and what they name: a graph, an algorithm, a view."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from typer import Argument, Context, Option

from sottovoce._version import __version__
from sottovoce.cli.output import node_name, picked, verbosity
from sottovoce.errors import InputError

if TYPE_CHECKING:
    from sottovoce.algorithms.spec import AlgorithmSettings, AlgorithmSpec
    from sottovoce.core.algorithm import Algorithm
    from sottovoce.core.noise import PerNode
    from sottovoce.core.participation import Participation
    from sottovoce.core.topologies import Topology
    from sottovoce.learning.declared_records import DeclaredRecords
    from sottovoce.privacy.accountant import AccountSettings
    from sottovoce.privacy.amplification import SampledNodes
    from sottovoce.privacy.views import View
    from sottovoce.tracing.linear_system import LinearSystem


SPEC = "e.g. ring:30, erdos-renyi:100,p=0.2,seed=1, file:edges.txt.gz"
KINDS_OF_WEIGHTS = "metropolis, max-degree, uniform, push, rotating or walking"


def _lift_limits(context: Context, yes: bool) -> bool:
    from sottovoce.support.limits import limits_lifted

    context.with_resource(limits_lifted(yes))
    return yes


Yes = Annotated[
    bool,
    Option("--yes", callback=_lift_limits, help="Go ahead even if it needs much memory, or more than ten minutes."),
]


def _allow_code(context: Context, folder: Path | None) -> Path | None:
    from sottovoce.support.own_code import code_from

    context.with_resource(code_from(folder))
    return folder


Code = Annotated[
    Path | None,
    Option(
        "--code",
        callback=_allow_code,
        help="Folder of code that settings name, such as mine.py:Momentum; the code is run.",
    ),
]


def code_beside(file: Path) -> Path | None:
    """Where code is that a run file names: beside it. Settings that others wrote load none by themselves.

    Those are the settings in a run's folder, and agreements.
    """
    from sottovoce.run.layout import RunFiles
    from sottovoce.support.config import read_settings_file

    written_by_run = file.suffix == ".json" or RunFiles(file.parent).config.exists()
    return None if written_by_run or not file.is_file() or "members" in read_settings_file(file) else file.parent


def _print_document(as_json: bool) -> bool:
    verbosity.json = as_json
    return as_json


Json = Annotated[bool, Option("--json", callback=_print_document, help="Print one JSON document instead of a table.")]
Data = Annotated[Path | None, Option("--data", help="Folder of data sets; default: SOTTOVOCE_DATA.")]
Changes = Annotated[
    list[str] | None, Option("--set", help="Change a setting, for example training.rounds=50; may be repeated.")
]
Seed = Annotated[int, Option(min=0, help="Seed for sampling.")]
Jobs = Annotated[int | None, Option(min=1, max=64, help="Number of runs at once; default: one per core.")]


def _find_trackers(words: list[str] | None) -> list[str]:
    """The programs that are named; refused before any work where one is not installed."""
    if not words:
        return []
    from sottovoce.report.tracking import parse_tracker

    return [parse_tracker(word) for word in dict.fromkeys(words)]


Track = Annotated[
    list[str] | None,
    Option(
        "--track",
        callback=_find_trackers,
        help="Also write runs to local files for tensorboard or mlflow; may be repeated.",
    ),
]


def check_one_form(as_csv: bool) -> None:
    """Refuse to print one answer in two forms."""
    if as_csv and verbosity.json:
        raise InputError("--csv with --json", "the answer is printed in one form", "leave one of them out")


def options_given(context: Context) -> dict[str, str]:
    """What stands on the command line, by its name in the code, as help has it: `--view`, or `RUNS`."""
    found = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            typed = parameter.opts[0]
            found[str(parameter.name)] = typed if typed.startswith("-") else typed.upper()
    return found


def refuse_given(options: Mapping[str, object], rule: str, remedy: str, *, beside: str = "") -> None:
    """Refuse the first of some options that was given, because of a rule; `beside` another one."""
    for option, given in options.items():
        if given:
            raise InputError(f"{option}{beside}", rule, remedy.format(option))


Weights = Annotated[str, Option(help=f"{KINDS_OF_WEIGHTS}.")]
GraphSpec = Annotated[str, Option("--graph", help=SPEC)]
GraphName = Annotated[str, Argument(help=SPEC)]
MOST_ROUNDS = 10**7
Delta = Annotated[float, Option(help="Delta of (epsilon, delta)-DP.")]
Part = Annotated[
    str,
    Option(
        "--participation",
        help="every; KxB: K times, exactly B rounds apart; shuffle:B: once in each B rounds; or random batches: "
        "poisson:SHARE, fixed:SIZE, allocate:KxB (in each of K times B rounds one, at random), cyclic-poisson:SHARExB.",
    ),
]


@dataclass(frozen=True)
class Asked:
    """What is asked about: a graph, an adversary, what is protected, and for how many rounds."""

    graph: GraphSpec = ""
    rounds: Annotated[
        str, Option(help="Number of rounds; for averaging, of gossip steps. account takes several: 10,20,50.")
    ] = "100"
    view: Annotated[
        str,
        Option(
            help="everyone, node:A, coalition:A,B, coalition:any-K (the worst one) or eavesdropper:A>B; by number or "
            "name.",
        ),
    ] = "everyone"
    and_final_models: Annotated[
        str,
        Option(
            help="average or all: the adversary also sees the models after the last round.",
        ),
    ] = "none"
    weights: Annotated[
        str | None,
        Option(
            help=f"{KINDS_OF_WEIGHTS}; default: what the algorithm needs.",
        ),
    ] = None
    convex: Annotated[
        bool, Option("--convex", help="Local steps are non-expansive, so convex-training may be the headline.")
    ] = False
    adjacency: Annotated[
        str,
        Option(
            help="What is protected: user (all data of a node, the stronger promise) or record.",
        ),
    ] = "user"
    participation: Part = "every"
    records: Annotated[
        str | None,
        Option(help="Number of records of each node, which is public: 80 for all, or 17,24,126 for three nodes."),
    ] = None
    delta: Delta = 1e-5

    @functools.cached_property
    def every_length(self) -> list[int]:
        """Every number of rounds that is asked about, the least first."""
        words, rule = self.rounds.split(","), f"rounds are whole numbers from 1 to {MOST_ROUNDS:,}"
        if not all(word.isdecimal() and len(word) < 20 and 1 <= int(word) <= MOST_ROUNDS for word in words):
            raise InputError(f"--rounds {self.rounds:.60}", rule, "give 100, or 10,20,50")
        return sorted(set(map(int, words)))

    @property
    def length(self) -> int:
        """The number of rounds, where one is asked about."""
        if len(self.every_length) > 1:
            raise InputError(f"--rounds {self.rounds}", "here one number of rounds is asked about", "give one of them")
        return self.every_length[0]


@dataclass(frozen=True)
class Setting(Asked):
    """What is accounted for."""

    algorithm: Annotated[
        str,
        Option(
            "--algorithm",
            help="e.g. dp-d-sgd, zip-dl, muffliato; see docs/algorithms.md",
        ),
    ] = "dp-d-sgd"
    victim: Annotated[list[str] | None, Option(help="Only about this node; may be repeated.")] = None
    secure_sum: Annotated[bool, Option("--secure-sum", help="Receivers learn only sums of what they receive.")] = False
    seed: Annotated[int, Option(min=0, help="Seed for random topologies.")] = 0
    chebyshev: Annotated[bool, Option("--chebyshev", help="muffliato: accelerated gossip.")] = False
    randomized: Annotated[bool, Option("--randomized", help="One random edge per gossip step.")] = False
    gossip_steps: Annotated[int | None, Option(min=1, help="muffliato-sgd, zip-dl: gossip steps per gradient.")] = None
    optimizer: Annotated[str | None, Option(help="momentum:0.9, adam or adamw; default: sgd.")] = None
    schedule: Annotated[
        str | None, Option(help="Of step sizes: linear, cosine, step:0.5x30; also after warmup:10,")
    ] = None
    weight_decay: Annotated[float | None, Option(help="Share of the model in its direction.")] = None
    compression: Annotated[
        str | None, Option("--compression", help="dp-csgp: identity, rand:0.5, gsgd:8, top:0.1.")
    ] = None
    correlation: Annotated[str | None, Option("--correlation", help="mf-d-sgd, mafalda: .npz file with C.")] = None
    classes: Annotated[
        int | None, Option(min=1, help="mafalda: number of classes of nodes, by degree, each with its own C.")
    ] = None
    sigma_pair: Annotated[float | None, Option(help="decor: size of the noise that neighbours share.")] = None
    colluders: Annotated[
        int | None,
        Option(min=1, help="secure-average, secure-gossip: how many nodes may collude; default: 1."),
    ] = None

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise InputError(f"delta = {self.delta}", "it must lie between 0 and 1", "give 1e-5, for example")

    @functools.cached_property
    def spec(self) -> "AlgorithmSpec[AlgorithmSettings]":
        """What is known of the algorithm; code that the user names in the command is looked for here."""
        from sottovoce.algorithms.registry import algorithm_spec
        from sottovoce.support.own_code import code_from

        with code_from(Path()):
            return algorithm_spec(self.algorithm)

    @functools.cached_property
    def topology(self) -> "Topology":
        """The graph with the weights that the algorithm needs."""
        from sottovoce.core.topologies import random_edges, weigh, weights_for

        if not self.graph:
            raise InputError(
                "no --graph", "messages travel along the edges of a graph", "add --graph ring:30, for example"
            )
        net = weigh(self.graph, weights_for(self.spec.requires, self.weights))
        return random_edges(net, seed=self.seed) if self.randomized else net

    def algorithm_at(self, sigma: float) -> "Algorithm":
        """The algorithm with noise of this size, as options and what follows from them set it."""
        from sottovoce.core.grid import with_exact_noise

        spec, declared, scheme = self.spec, self.declared, self.scheme
        named = {
            "chebyshev": self.chebyshev or None,
            **picked(self, "gossip_steps", "compression", "correlation", "sigma_pair", "classes"),
            **picked(self, "optimizer", "schedule", "weight_decay"),
        }
        given: dict[str, object] = {key: value for key, value in named.items() if value is not None}
        for key in given:
            if spec.setting(key) is None:
                option = "--" + key.replace("_", "-")
                raise InputError(f"{option} with {self.algorithm}", "it has no such setting", f"leave out {option}")
        noise = spec.noise_setting()
        lacking = spec.missing(given if noise is None else {**given, noise: None})
        if lacking is not None and lacking in named:
            option = "--" + lacking.replace("_", "-")
            value = spec.shown_value(lacking) or "FILE"
            raise InputError(f"{self.algorithm} without {option}", "it needs that setting", f"add {option} {value}")
        given |= spec.from_run(given, rounds=self.length, participation=str(scheme), colluders=self.colluders)
        if declared is not None and spec.setting("sensitivity") is not None:
            given["sensitivity"] = declared.sensitivity
        return with_exact_noise(spec.build_at(sigma, given), self.topology)

    @functools.cached_property
    def declared(self) -> "DeclaredRecords | None":
        """The records that nodes declare; None where neither their number nor how they are drawn is given."""
        from sottovoce.core.participation import draws_by_chance

        by_chance = draws_by_chance(self.participation)
        if self.records is None and not by_chance:
            return None
        from sottovoce.learning.declared_records import declare_records, fewest_records, parse_records

        if by_chance and self.adjacency != "record":
            raise InputError(
                f"--participation {self.participation} with --adjacency {self.adjacency}",
                "if all data of a node changes, it shows in every round", "add --adjacency record",
            )  # fmt: skip
        records = [fewest_records(self.participation)] if self.records is None else parse_records(self.records)
        return declare_records(self.participation, nodes=self.topology.n, records=records, adjacency=self.adjacency)

    @property
    def sampled_nodes(self) -> "SampledNodes | None":
        """What is known of nodes whose batches are drawn by chance; None where none are."""
        return None if self.declared is None else self.declared.sampled_nodes

    @property
    def scheme(self) -> "str | Participation":
        """In which rounds a change can show, whatever chance does."""
        return self.participation if self.declared is None else self.declared.participation.within(self.length)

    def terms(self, **more: "Unpack[AccountSettings]") -> "AccountSettings":
        """What is asked, besides the system and the adversary: settings of `account`, with more of them."""
        return {
            "adjacency": self.adjacency, "participation": self.scheme, "convex": self.convex, "victims": self.victims,
            **more,
        }  # fmt: skip

    def system(self, sigma: float) -> "LinearSystem":
        """What runs, traced."""
        from sottovoce.tracing.policy import trace_possible

        return trace_possible(self.algorithm_at(sigma), self.topology, rounds=self.length)

    @property
    def adversary(self) -> "View":
        """The view, names turned into numbers, with the final models that it sees."""
        from sottovoce.privacy.views import parse_view, with_final_models

        view = parse_view(self.view, labels=self.labels, secure_sum=self.secure_sum)
        return with_final_models(view, self.and_final_models)

    @property
    def victims(self) -> list[int] | None:
        """Only these nodes; None for all."""
        from sottovoce.privacy.views import node_number

        return None if self.victim is None else sorted({node_number(name, self.labels) for name in self.victim})

    @property
    def labels(self) -> list[str] | None:
        """The names that the graph's file gives its nodes; None where they are 0..n-1 anyway."""
        names = self.topology.names
        return None if names is None else list(names)

    def name(self, node: int | None) -> str:
        """A node as its user calls it."""
        return node_name(node, self.labels)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first parameter is `Asked`, or a `Setting`: its fields become options, before its own."""
    first, *own = inspect.signature(command).parameters.values()
    shared = inspect.signature(first.annotation).parameters

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        command(first.annotation(**{name: given.pop(name) for name in shared}), **given)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*shared.values(), *own)]
    parameters.sort(key=lambda one: one.default is not inspect.Parameter.empty)
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapper


def settings_document(setting: Setting, sigma: "PerNode") -> dict[str, object]:
    """What the figures are about, besides what an account says itself: enough to repeat it."""
    return {
        "version": __version__, "sigma": sigma,
        **picked(setting, "adjacency", "participation", "convex", "seed", "labels"),
    }  # fmt: skip
