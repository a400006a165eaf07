"""`sotto noise`."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sottovoce._version import __version__
from sottovoce.cli.app import app
from sottovoce.cli.options import GraphSpec, Json, Part, Weights, Yes
from sottovoce.cli.output import answer, facts, print_note, short
from sottovoce.cli.progress import activity, progress_kept, telling_when_stopped
from sottovoce.errors import InputError
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sottovoce.core.topologies import Topology


@app.command("noise")
def noise_(
    graph: GraphSpec,
    participation: Part = "every",
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Number of rounds; default: K times B of the participation.")
    ] = None,
    weights: Weights = "metropolis",
    objective: Annotated[
        str, typer.Option(help="Which error to minimise: of all models, of the last ones, or of their average.")
    ] = "all",
    structure: Annotated[str, typer.Option(help="dense, banded or toeplitz.")] = "dense",
    bands: Annotated[int | None, typer.Option(min=1, help="banded, toeplitz: number of bands; default: B.")] = None,
    restart: Annotated[int | None, typer.Option(min=1, help="Start with fresh noise every this many rounds.")] = None,
    view: Annotated[
        list[str] | None, typer.Option(help="Optimise for node:A or coalition:A,B; may be repeated.")
    ] = None,
    gap: Annotated[float, typer.Option(help="Relative distance to the optimum at which to stop.")] = 1e-3,
    probes: Annotated[
        int | None, typer.Option(min=2, help="Estimate the contribution of the graph from this many random vectors.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for --probes.")] = 0,
    sampled: Annotated[
        float | None,
        typer.Option(help="Find the best randomly drawn batches with this fraction of a node's records, for a target."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="--sampled: target epsilon.")] = None,
    delta: Annotated[float | None, typer.Option(help="--sampled: delta of the target; default: 1e-5.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the cache.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write C and its figures to this .npz file.")] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Find the correlation of noise that costs least, or with --sampled the best noise and batches.

    Example: sotto noise --graph florentine --weights uniform --participation 4x16
    """
    from sottovoce.cli import terminal_plots
    from sottovoce.core.topologies import weigh
    from sottovoce.matrix_factorization.factorization import factorize
    from sottovoce.support import files

    if out is not None:
        files.check_writable(out)
    net = weigh(graph, weights)
    if sampled is not None:
        given = {
            "--participation": participation != "every", "--structure": structure != "dense", "--bands": bands,
            "--restart": restart, "--view": view, "--probes": probes,
        }  # fmt: skip
        _fits_sampling({name: bool(value) for name, value in given.items()}, rounds, epsilon)
        assert rounds is not None
        assert epsilon is not None
        target = SampledTarget(sampled, rounds, epsilon, 1e-5 if delta is None else delta, objective, gap)
        _sampled(net, target, cache=not no_cache, out=out)
        return
    if epsilon is not None or delta is not None:
        raise InputError(
            "a target without --sampled", "without random batches, C does not depend on a target", "add --sampled"
        )
    reached = math.inf

    def tell(gap_now: float) -> None:
        nonlocal reached
        reached, work.part = gap_now, f"gap {gap_now:.2e}, until {gap:g}"

    with activity("search for the best correlation") as work, telling_when_stopped(lambda: _stopped_at(reached)):
        found = factorize(
            net, rounds=rounds, participation=participation, objective=objective, structure=structure, bands=bands,
            restart=restart, view=view or None, gap=gap, probes=probes, seed=seed, cache=not no_cache, progress=tell,
        )  # fmt: skip
    if found.refused_file is not None:
        print_note(f"{found.refused_file} does not hold what it should; computed again.")
    if out is not None:
        files.write(files.check_writable(out), found.write)
    document = {"graph": net.name, **found.document()}
    shown: dict[str, object] = {key: value for key, value in document.items() if key != "for_view"}
    if found.for_view is not None:
        shown |= asdict(found.for_view)
    times = f"{short(found.over_independent)} times less error than independent noise"
    answer(
        document,
        facts(shown),
        f"{times}, {short(found.over_antipgd)} times less than AntiPGD, at the same privacy.",
        f"\nC, darker for larger:\n{terminal_plots.matrix(found.C)}",
        f"\nerror over rounds, up to {found.errors.max():.4g}:\n{terminal_plots.curve(found.errors)}",
    )


def _stopped_at(gap: float) -> str:
    if not math.isfinite(gap):
        return "stopped before a first solution. Nothing is kept."
    again = next(text for part in (gap, 1.05 * gap) if float(text := f"{part:.1e}") >= gap)
    return f"stopped at a gap of {gap:.1e}. Nothing is kept; --gap {again} ends there."


class SampledTarget(NamedTuple):
    """What `--sampled` is asked about."""

    share: float
    rounds: int
    epsilon: float
    delta: float
    objective: str
    gap: float


def _fits_sampling(given: "Mapping[str, bool]", rounds: int | None, epsilon: float | None) -> None:
    for option, there in given.items():
        if there:
            raise InputError(
                f"{option} with --sampled", "--sampled chooses batches and bands itself", f"leave out {option}"
            )
    if rounds is None or epsilon is None:
        missing = "--rounds" if rounds is None else "--epsilon"
        raise InputError(f"--sampled without {missing}", "the best batches depend on it", f"add {missing}")


def _sampled(net: "Topology", target: SampledTarget, *, cache: bool, out: Path | None) -> None:
    """The trade-off between chance and correlation, number of parts by number of parts."""
    import numpy as np

    from sottovoce.matrix_factorization.factorization import LONGEST
    from sottovoce.matrix_factorization.sampled_noise import sampled_noise
    from sottovoce.support import files

    if out is not None and target.rounds > LONGEST:
        raise InputError(
            f"--out with {target.rounds} rounds", f"a file holds C for at most {LONGEST} rounds", "leave out --out"
        )
    kept = "What was found is stored; the same command takes it from there." if cache else "Nothing is kept."
    with progress_kept("numbers of parts", lambda _: kept) as tell:
        found = sampled_noise(
            net, rounds=target.rounds, share=target.share, epsilon=target.epsilon, delta=target.delta,
            objective=target.objective, gap=target.gap, cache=cache, progress=tell,
        )  # fmt: skip
    if out is not None:
        C = found.best.factorization.correlation.matrix(target.rounds)
        files.write(files.check_writable(out), lambda file: np.savez(file, C=C))
    document = {"version": __version__, "graph": net.name, "sampled": target.share, "rounds": target.rounds}
    document |= {"epsilon": target.epsilon, "delta": target.delta, "goal": target.objective, **found.document()}
    table = [["batches", "bands", "noise multiplier", "error", "at least"]]
    for choice in found.tried:
        bands = "any" if choice.share == 1 else str(choice.parts)
        errors = [short(value / found.independent) for value in (choice.error, choice.lower_bound)]
        table.append([choice.batches, bands, round_up(choice.noise), *errors])
    answer(
        document, table,
        "Error: squared, of noise in models; Poisson batches with independent noise = 1. "
        f"At epsilon {target.epsilon:g} and delta {target.delta:g} against everyone; one record is made to count as "
        "nothing.",
        f"Least error: {found.best.batches}, within {short(found.gap)} of the best of these numbers of parts.",
    )  # fmt: skip
