"""`sotto account` and `sotto calibrate`: what a view, or every single node, learns about others.

Of runs: what several of them tell together, or of one what any view learns.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Argument, Context, Option

from sottovoce._version import __version__
from sottovoce.cli.account_rounds import answer_over_rounds
from sottovoce.cli.app import app
from sottovoce.cli.options import (
    Code,
    Json,
    Setting,
    Yes,
    options_given,
    refuse_given,
    settings_document,
    with_options,
)
from sottovoce.cli.output import answer, facts, print_sentence, print_sentences, show, verbosity
from sottovoce.cli.printed_figures import (
    account_words,
    declared_nodes,
    headline_words,
    join_distances,
    joint_table,
    joint_words,
    node_lines,
    published_table,
    sampled_words,
    table_words,
)
from sottovoce.cli.progress import activity
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.rounding import round_up, sigma_text
from sottovoce.support.processes import ends_when_stopped

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm
    from sottovoce.core.noise import PerNode
    from sottovoce.privacy.guarantee import Kind
    from sottovoce.tracing.linear_system import LinearSystem

OTHER_FORMATS = (".csv", ".tsv", ".npz", ".npy", ".parquet", ".xlsx")
"""Names of files that promise another format than that of stored pairs."""

PRINTED = 1_000_000
"""JSON has the figures of up to so many pairs; of more they are in the file of --out only."""

OF_RUNS = {"runs", "view", "delta", "data", "code", "yes", "as_json"}
"""What can be asked of runs, which have settings of their own; of one run and one view, `and_final_models` as well."""

NOT_OF_PAIRS = {
    "kind", "optimised", "published", "view", "and_final_models", "convex", "victim", "records",
}  # fmt: skip
"""What cannot be asked of all pairs."""

Kinds = Annotated[
    list[str] | None,
    Option(help="Only this kind of guarantee; may be repeated."),
]


@app.command("account")
@with_options
def account_(
    setting: Setting,
    context: Context,
    runs: list[Path] | None = Argument(None, help="Folders of runs, to account for together."),
    sigma: float = Option(1.0, help="Standard deviation of the noise divided by the sensitivity."),
    kind: Kinds = None,
    optimised: bool = Option(
        False, "--optimised", help="convex-training: find the tightest policy, however long it takes."
    ),
    published: bool = Option(False, "--published", help="Also show the papers' formulas, for comparison."),
    lipschitz: float | None = Option(None, help="zip-dl: L of its Assumption 5.6, for --published."),
    all_pairs: bool = Option(False, "--all-pairs", help="Take every node as the attacker."),
    sample: int | None = Option(
        None, min=1, help="--all-pairs: only this many attackers, drawn at random with --seed."
    ),
    out: Path | None = Option(None, help="--all-pairs: file to store figures in and to resume from."),
    figures: Path | None = Option(None, help="With several --rounds: folder for a drawing, as SVG and PDF."),
    data: Path | None = Option(None, help="With RUN and --view: folder of the files that the run names."),
    code: Code = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Show what a view can learn about every node. Example: sotto account --graph ring:30 --rounds 40 --view node:0"""
    from sottovoce.privacy.guarantee import Kind

    given = options_given(context)
    if runs:
        asks = len(runs) == 1 and setting.view != "everyone"
        taken = OF_RUNS | {"and_final_models"} if asks else OF_RUNS
        refuse_given(
            {given[name]: name not in taken for name in given}, "runs have settings of their own",
            "keep --view and --delta", beside=" with runs",
        )  # fmt: skip
        _check_folders(runs)
        if asks:
            _answer_for_view(runs[0], setting, setting.delta if "delta" in given else None, data)
        else:
            _answer_for_runs(runs, setting, data)
        return
    refuse_given(
        {"--data": data, "--code": code}, "it is the folder of what a run names",
        "name the folder of a run, or leave it out: --algorithm FILE.py:NAME is looked for in the current folder",
        beside=" without a run",
    )  # fmt: skip
    kinds = _asked_kinds(kind, published)
    published = Kind.AS_PUBLISHED in kinds
    if all_pairs:
        refuse_given(
            {given[name]: name in NOT_OF_PAIRS for name in given},
            "--all-pairs is about every node, by fixed streams", "drop one", beside=" with --all-pairs",
        )  # fmt: skip
    else:
        refuse_given(
            {"--out": out, "--sample": sample}, "it is about the attackers of --all-pairs", "add it",
            beside=" without --all-pairs",
        )  # fmt: skip
    if out is not None and out.suffix.lower() in OTHER_FORMATS:
        raise InputError(
            f"--out {out}", "figures are stored as lines of JSON", f"write --out {out.with_suffix('.jsonl')}"
        )
    if figures is not None and len(setting.every_length) < 2:
        raise InputError("--figures with one number of rounds", "a line has several points", "add --rounds 10,20,50")
    if lipschitz is not None and not published:
        raise InputError("--lipschitz without --published", "only the papers' formulas use it", "add --published")
    if lipschitz is not None and not 0 <= lipschitz < math.inf:
        raise InputError(f"--lipschitz {lipschitz}", "it must be finite and not negative", "give 1.0, for example")
    if len(setting.every_length) > 1 and not all_pairs:
        answer_over_rounds(setting, sigma, kinds, lipschitz, figures)
        return
    with activity(f"tracing {setting.algorithm} on {setting.graph}"):
        system = setting.system(sigma)
    if all_pairs:
        _answer_for_pairs(setting, system, sigma, sample, out)
    else:
        _answer_for_setting(setting, system, sigma, kinds, lipschitz, optimised=optimised)


def _answer_for_setting(
    setting: Setting,
    system: "LinearSystem",
    sigma: float,
    kinds: "tuple[Kind, ...]",
    lipschitz: float | None,
    *,
    optimised: bool,
) -> None:
    """The account of a view of what would run, and the figure that counts on chance."""
    from sottovoce.privacy.accountant import account
    from sottovoce.privacy.guarantee import Kind

    sampled, unsampled = None, list[str]()
    with activity(f"accounting for {setting.view}"), ends_when_stopped():
        terms = setting.terms(kinds=kinds, lipschitz=lipschitz, optimised=optimised)
        result = account(system, setting.adversary, **terms)
        if setting.sampled_nodes is not None:
            from sottovoce.privacy.amplification import sampled_figure
            from sottovoce.privacy.covering_views import covering_views

            try:
                if len(covering_views(setting.adversary, system)) > 1:
                    raise Unaccountable("nodes share secrets, and learn more than an outsider; take node:0")
                sampled = sampled_figure(system, setting.adversary, setting.sampled_nodes, setting.delta)
            except Unaccountable as refusal:
                unsampled = [f"Sampling is not counted: {refusal}."]
    nodes = declared_nodes(setting, sigma)
    with activity(f"epsilon of {len(result.guarantees):,} guarantees and the headline"):
        if verbosity.json:
            shown = {"nodes": nodes, "sampled": None if sampled is None else sampled.document()}
            answer({**settings_document(setting, sigma), **result.document(setting.delta), **shown}, [])
            return
        tables = [result.table(setting.delta), *([published_table(result)] if Kind.AS_PUBLISHED in kinds else [])]
        lines = account_words(result, sampled, setting.delta, setting.labels)
    for number, table in enumerate(one for one in tables if len(one) > 1):
        if number:
            print_sentence()
        show(table if verbosity.csv else join_distances(table))
    print_sentences([*lines, *unsampled, *node_lines(setting, nodes)])


def _answer_for_pairs(
    setting: Setting, system: "LinearSystem", sigma: float, sample: int | None, out: Path | None
) -> None:
    """Fixed-streams figures for attackers and victims, and what is proven for training."""
    import numpy as np

    from sottovoce.core.participation import parse_participation
    from sottovoce.privacy import all_pairs
    from sottovoce.privacy.accountant import account
    from sottovoce.privacy.gaussian_dp import epsilon_of
    from sottovoce.privacy.guarantee import Figure, Kind
    from sottovoce.support.limits import check_cost
    from sottovoce.support.text import to_json

    if system.only_gradients:
        raise Unaccountable(f"{system.only_gradients}: single messages have no exact loss; leave out --all-pairs")
    if system.n < 2:
        raise InputError("--all-pairs on one node", "a pair needs two nodes", "use a larger graph")
    delta, averaging, scheme = setting.delta, system.algorithm.averaging, parse_participation(setting.scheme)
    attackers = list(range(system.n)) if sample is None else all_pairs.sampled_attackers(system.n, sample, setting.seed)

    def begin(left: list[int]) -> None:
        if left:
            what = f"accounting for all pairs of {len(left):,} attackers on {system.topology.name}, "
            cost = all_pairs.pairs_cost(system, scheme, left, secure_sum=setting.secure_sum)
            check_cost(f"{what}{system.rounds:,} rounds,", cost, "take a --sample, fewer rounds or a smaller graph")

    bounds = set[int]()
    with activity("attackers") as work, ends_when_stopped():
        mu = all_pairs.all_pairs(
            system, scheme, secure_sum=setting.secure_sum, attackers=attackers, store=out, begin=begin,
            progress=work.tell, bounds=bounds,
        )  # fmt: skip
    with activity("accounting for everyone"):
        best = account(system, adjacency=setting.adjacency, participation=setting.scheme).headline
    others = mu[np.asarray(attackers)[:, None] != np.arange(system.n)]
    least, mean, most = (float(x) for x in (others.min(), others.mean(), others.max()))
    figures = {"mu_min": least, "mu_mean": mean, "mu_max": most, "epsilon_max": epsilon_of(most, delta)}
    shown = {
        "algorithm": system.algorithm.name, "topology": system.topology.name, "rounds": system.rounds, "delta": delta,
        "kind": Kind.FIXED_STREAMS.value, "figure": (Figure.BOUND if bounds else Figure.EXACT).value,
        "pairs": len(others),
    }  # fmt: skip
    document = {
        **settings_document(setting, sigma), **shown, "secure_sum": setting.secure_sum,
        "proven_for_training": averaging, "sampled_attackers": None if sample is None else attackers,
        **{name: to_json(value) for name, value in figures.items()},
        "proven_for_everyone": None if best.proves_nothing else best.document(delta),
        "mu": None if len(others) > PRINTED else [[to_json(value) for value in row] for row in mu.tolist()],
    }  # fmt: skip
    table = [*facts(shown), *([name.replace("_", " "), round_up(value)] for name, value in figures.items())]
    lines = [] if averaging else ["These are about fixed streams, an idealisation of training; do not promise them."]
    if sample is not None:
        lines.append(
            f"A sample: {sample} of {system.n:,} attackers, drawn with seed {setting.seed}; others may learn more."
        )
    if not (best.proves_nothing or averaging):
        proven = f"epsilon {round_up(best.epsilon(delta))} (mu {round_up(best.mu)}), {best.kind}"
        lines.append(f"Proven for any pair: {proven}.")
    answer(document, table, *lines)


def _asked_kinds(named: list[str] | None, published: bool) -> "tuple[Kind, ...]":
    from sottovoce.privacy.guarantee import KINDS, Kind, parse_kind

    asked = KINDS if not named else tuple(dict.fromkeys(parse_kind(kind) for kind in named))
    return tuple(kind for kind in Kind if kind in asked or (published and kind is Kind.AS_PUBLISHED))


def _proven_kinds(algorithm: "Algorithm", setting: Setting, named: list[str] | None) -> "tuple[Kind, ...]":
    """Those of the kinds that are asked for that can be a headline; refused where none of them can."""
    from sottovoce.privacy.accountant import headline_kinds

    asked, proven = _asked_kinds(named, False), headline_kinds(algorithm, convex=setting.convex)
    if not set(asked) & set(proven):
        raise InputError(
            " ".join(f"--kind {kind}" for kind in asked),
            f"a target is met by a figure that is proven for what runs: {', '.join(proven)}",
            "take one of these, or add --convex where local steps are convex",
        )
    return tuple(kind for kind in proven if kind in asked)


@app.command("calibrate")
@with_options
def calibrate_(
    setting: Setting,
    epsilon: Annotated[float, Option(help="Target epsilon of the headline.")],
    kind: Kinds = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Find the sigma for a target epsilon. Example: sotto calibrate --graph ring:30 --rounds 40 --epsilon 1"""
    from sottovoce.privacy.accountant import account
    from sottovoce.privacy.amplification import calibrate_sampled
    from sottovoce.privacy.calibration import Target, calibrated_system

    with activity(f"reading {setting.graph}"):
        net = setting.topology
    with activity(f"calibrating {setting.algorithm} on {net.name}"), ends_when_stopped():
        reference, target, view = setting.system(1.0), Target(epsilon, setting.delta), setting.adversary
        terms = setting.terms(kinds=_proven_kinds(reference.algorithm, setting, kind))
        found = calibrated_system(reference, view, target, **terms)
        held, sigma = found.account, cast("PerNode", found.sigma)
        chance = calibrate_sampled(reference, view, setting.sampled_nodes, target, found.sigma)
        if chance is not None:
            held, sigma = account(chance.system, view, **terms), chance.sigma
    nodes = declared_nodes(setting, sigma)
    document = {
        **settings_document(setting, sigma), "algorithm": setting.algorithm, "graph": net.name, "view": str(view),
        "final_models": setting.and_final_models, "secure_sum": setting.secure_sum or held.system.algorithm.secure_sum,
        "rounds": setting.length, "epsilon": epsilon, "delta": setting.delta,
        "headline": held.headline.document(setting.delta), "covers": held.coverage.document(),
        "nodes": nodes, "sampled": None if chance is None else chance.figure.document(),
    }  # fmt: skip
    settings = ("algorithm", "graph", "view", "secure_sum", "convex", "adjacency", "participation", "rounds", "epsilon")
    table = [*facts({key: document[key] for key in (*settings, "delta")}), ["sigma", sigma_text(sigma)]]
    lines = headline_words(held, setting.delta, setting.labels)
    if chance is not None:
        lines = sampled_words(held, chance.figure, setting.delta)
    answer(document, table, *lines, *node_lines(setting, nodes))


# --- of runs ----------------------------------------------------------------------------------------------------------


def _check_folders(runs: list[Path]) -> None:
    """Refuse a graph that stands where the folder of a run is expected."""
    from sottovoce.core.graphs import kinds

    graph = next((str(one) for one in runs if not one.exists() and str(one).partition(":")[0] in kinds()), None)
    if graph is not None:
        raise InputError(f"{graph}: no run", "graphs are named by an option", f"write --graph {graph}")


def _answer_for_runs(runs: list[Path], setting: Setting, data: Path | None) -> None:
    """Print the joint figures of runs, for everyone and for the views that all have, or for one view."""
    from sottovoce.run.accounts_of_runs import joint_account

    with activity("guarantees"):
        found = joint_account(runs, setting.delta, data=data)
    figures = [one for one in found.figures if setting.view in ("everyone", str(one.view))]
    if not figures:
        known = ", ".join(str(one.view) for one in found.figures)
        raise InputError(f"--view {setting.view}", f"views that all runs have: {known}", "choose one of them")
    document = {
        "version": __version__, "runs": [str(folder) for folder in found.folders], "delta": setting.delta,
        "adjacency": found.adjacency.value, "figures": [one.document(setting.delta) for one in figures],
        "note": found.note,
    }  # fmt: skip
    answer(document, joint_table(figures, setting.delta), *joint_words(found, figures[0]))


def _answer_for_view(folder: Path, setting: Setting, delta: float | None, data: Path | None) -> None:
    """Print the account of one view of a run, by the run's own settings and, unless another is given, its delta."""
    from sottovoce.privacy.assumptions import CHANGED_RECORD
    from sottovoce.run.accounts_of_runs import ask_about_run
    from sottovoce.run.privacy_report import sigma_of

    with activity(f"accounting for {setting.view}"):
        asked = ask_about_run(folder, setting.view, delta=delta, final_models=setting.and_final_models, data=data)
    found, run, sampled = asked.account, asked.accountant.training_run, asked.sampled
    document = {
        "version": __version__, "run": str(folder), "sigma": sigma_of(run.algorithm.noise),
        "adjacency": run.adjacency.value, "participation": str(run.participation),
        "convex": asked.accountant.convexity.established, "seed": run.seed, "labels": asked.names,
        **found.document(asked.delta), "nodes": None, "sampled": None if sampled is None else sampled.document(),
    }  # fmt: skip
    lines = table_words(found) + headline_words(found, asked.delta, asked.names)
    if sampled is not None:
        lines.append(
            "Batches are drawn at random: whoever hears every message, and so this view too, learns at most "
            f"epsilon {round_up(sampled.epsilon)} about one record that is {CHANGED_RECORD[sampled.change]}."
        )
    answer(document, found.table(asked.delta), *lines)
