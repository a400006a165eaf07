"""`sotto noise`."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Context, Option

from sottovoce._version import __version__
from sottovoce.cli.app import app
from sottovoce.cli.options import GraphSpec, Json, Part, Weights, Yes, options_given, refuse_given
from sottovoce.cli.output import answer, facts, print_note, short
from sottovoce.cli.progress import activity
from sottovoce.errors import InputError
from sottovoce.privacy.rounding import round_up
from sottovoce.support.processes import ends_when_stopped

if TYPE_CHECKING:
    from sottovoce.core.topologies import Topology

CHOSEN = ("participation", "structure", "bands")
"""What --sampled chooses."""


@app.command("noise")
def noise_(
    context: Context,
    graph: GraphSpec,
    participation: Part = "every",
    rounds: int | None = Option(None, min=1, help="Number of rounds; default: K times B of the participation."),
    weights: Weights = "metropolis",
    objective: str = Option(
        "all", help="Which error to minimise: of all models, of the last ones, or of their average."
    ),
    structure: str = Option("dense", help="dense or banded."),
    bands: int | None = Option(None, min=1, help="banded: number of bands; default: B."),
    gap: float = Option(1e-3, help="Relative distance to the optimum at which to stop."),
    sampled: float | None = Option(
        None, help="Find the best randomly drawn batches with this fraction of a node's records, for a target."
    ),
    epsilon: float | None = Option(None, help="--sampled: target epsilon."),
    delta: float | None = Option(None, help="--sampled: delta of the target; default: 1e-5."),
    no_cache: bool = Option(False, "--no-cache", help="Neither read nor write the cache."),
    out: Path | None = Option(None, help="Write C and its figures to this .npz file."),
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Find the correlation of noise that costs least, or with --sampled the best noise and batches.

    Example: sotto noise --graph florentine --weights uniform --participation 4x16
    """
    from sottovoce.core.topologies import weigh
    from sottovoce.matrix_factorization.factorization import factorize
    from sottovoce.support import files

    if out is not None:
        files.check_writable(out)
    net = weigh(graph, weights)
    if sampled is not None:
        given = options_given(context)
        refuse_given(
            {given[name]: name in CHOSEN for name in given}, "--sampled chooses batches and bands itself",
            "leave out {}", beside=" with --sampled",
        )  # fmt: skip
        if rounds is None or epsilon is None:
            missing = "--rounds" if rounds is None else "--epsilon"
            raise InputError(f"--sampled without {missing}", "the best batches depend on it", f"add {missing}")
        _sampled(
            net, out, share=sampled, rounds=rounds, epsilon=epsilon, delta=1e-5 if delta is None else delta,
            objective=objective, gap=gap, cache=not no_cache,
        )  # fmt: skip
        return
    if epsilon is not None or delta is not None:
        raise InputError(
            "a target without --sampled", "without random batches, C does not depend on a target", "add --sampled"
        )
    with activity("search for the best correlation"), ends_when_stopped():
        found = factorize(
            net, rounds=rounds, participation=participation, objective=objective, structure=structure, bands=bands,
            gap=gap, cache=not no_cache,
        )  # fmt: skip
    if found.refused_file is not None:
        print_note(f"{found.refused_file} does not hold what it should; computed again.")
    if out is not None:
        files.write(files.check_writable(out), found.write)
    document = {"graph": net.name, **found.document()}
    times = f"{short(found.over_independent)} times less error than independent noise"
    blind = f"{short(found.over_graph_blind)} times less than correlation that knows no graph"
    answer(
        document,
        facts(document),
        f"{times}, {blind}, {short(found.over_antipgd)} times less than AntiPGD, at the same privacy.",
    )


def _sampled(
    net: "Topology", out: Path | None, *, share: float, rounds: int, epsilon: float, delta: float, objective: str,
    gap: float, cache: bool,
) -> None:  # fmt: skip
    """The trade-off between chance and correlation, number of parts by number of parts."""
    import numpy as np

    from sottovoce.matrix_factorization.factorization import LONGEST
    from sottovoce.matrix_factorization.sampled_noise import sampled_noise
    from sottovoce.support import files

    if out is not None and rounds > LONGEST:
        raise InputError(
            f"--out with {rounds} rounds", f"a file holds C for at most {LONGEST} rounds", "leave out --out"
        )
    with activity("numbers of parts") as work, ends_when_stopped():
        found = sampled_noise(
            net, rounds=rounds, share=share, epsilon=epsilon, delta=delta, objective=objective, gap=gap, cache=cache,
            progress=work.tell,
        )  # fmt: skip
    if out is not None:
        C = found.best.factorization.correlation.matrix(rounds)
        files.write(files.check_writable(out), lambda file: np.savez(file, C=C))
    document = {"version": __version__, "graph": net.name, "sampled": share, "rounds": rounds}
    document |= {"epsilon": epsilon, "delta": delta, "goal": objective, **found.document()}
    table = [["batches", "bands", "noise multiplier", "error", "at least"]]
    for choice in found.tried:
        bands = "any" if choice.share == 1 else str(choice.parts)
        errors = [short(value / found.independent) for value in (choice.error, choice.lower_bound)]
        table.append([choice.batches, bands, round_up(choice.noise), *errors])
    answer(
        document, table,
        "Error: squared, of noise in models; Poisson batches with independent noise = 1. "
        f"At epsilon {epsilon:g} and delta {delta:g} against everyone; one record is made to count as "
        "nothing.",
        f"Least error: {found.best.batches}, within {short(found.gap)} of the best of these numbers of parts.",
    )  # fmt: skip
