"""`sotto account --all-pairs`: what every node, or a sample of them, learns about every other."""

from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.cli.options import Setting, settings_document
from sottovoce.cli.output import answer, facts, progress_kept, show_elapsed
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy.rounding import round_up

if TYPE_CHECKING:
    from sottovoce.core.participation import Participation
    from sottovoce.tracing.linear_system import LinearSystem

PRINTED = 1_000_000
"""JSON has the figures of up to so many pairs; of more they are in the file of --out only."""


def answer_for_pairs(
    setting: Setting, system: "LinearSystem", sigma: float, sample: int | None, out: Path | None, as_json: bool
) -> None:
    """Fixed-streams figures for attackers and victims, and what is proven for training."""
    import numpy as np

    from sottovoce.core.participation import parse_participation
    from sottovoce.privacy import all_pairs
    from sottovoce.privacy.accountant import account
    from sottovoce.privacy.gaussian_dp import epsilon_of
    from sottovoce.privacy.guarantee import Figure, Kind
    from sottovoce.support.json_numbers import to_json

    if system.only_gradients:
        raise Unaccountable(f"{system.only_gradients}: single messages have no exact loss; leave out --all-pairs")
    if system.n < 2:
        raise InputError("--all-pairs on one node", "a pair needs two nodes", "use a larger graph")
    delta, averaging = setting.delta, system.algorithm.averaging
    scheme = parse_participation(setting.scheme)
    attackers = list(range(system.n)) if sample is None else all_pairs.sampled_attackers(system.n, sample, setting.seed)

    def begin(left: list[int]) -> None:
        _check_pairs_cost(setting, system, scheme, left, len(attackers) - len(left))

    bounds = set[int]()
    with progress_kept("attackers", lambda count: _what_is_kept(out, count)) as advance:
        mu = all_pairs.all_pairs(
            system, scheme, secure_sum=setting.secure_sum, attackers=attackers, store=out, begin=begin,
            progress=advance, bounds=bounds,
        )  # fmt: skip
    with show_elapsed("accounting for everyone"):
        whole = account(system, adjacency=setting.adjacency, participation=setting.scheme)
    others = mu[np.asarray(attackers)[:, None] != np.arange(system.n)]
    least, mean, most = (float(x) for x in (others.min(), others.mean(), others.max()))
    figures = {"mu_min": least, "mu_mean": mean, "mu_max": most, "epsilon_max": epsilon_of(most, delta)}
    proven = None if whole.headline.proves_nothing else whole.headline.document(delta)
    rows = None if len(others) > PRINTED else [[to_json(value) for value in row] for row in mu.tolist()]
    document = {
        **settings_document(setting, sigma), "algorithm": system.algorithm.name, "topology": system.topology.name,
        "rounds": system.rounds, "secure_sum": setting.secure_sum, "delta": delta, "kind": Kind.FIXED_STREAMS.value,
        "figure": (Figure.BOUND if bounds else Figure.EXACT).value,
        "proven_for_training": averaging, "pairs": len(others),
        "sampled_attackers": None if sample is None else attackers,
        **{name: to_json(value) for name, value in figures.items()},
        "proven_for_everyone": proven,
        "mu": rows,
    }  # fmt: skip
    shown = {key: document[key] for key in ("algorithm", "topology", "rounds", "delta", "kind", "figure", "pairs")}
    table = [*facts(shown), *([name.replace("_", " "), round_up(value)] for name, value in figures.items())]
    lines = [] if averaging else ["These are about fixed streams, an idealisation of training; do not promise them."]
    if sample is not None:
        lines.append(
            f"A sample: {sample} of {system.n:,} attackers, drawn with seed {setting.seed}; others may learn more."
        )
    if not (whole.headline.proves_nothing or averaging):
        best = whole.headline
        lines.append(
            f"Proven for any pair: epsilon {round_up(best.epsilon(delta))} (mu {round_up(best.mu)}), {best.kind}."
        )
    legend = "Row: who learns. Column: about whom. Darker is more, on a logarithmic scale."
    answer(document, as_json, table, *lines, legend, all_pairs.heat_map(mu))


def _check_pairs_cost(
    setting: Setting, system: "LinearSystem", scheme: "Participation", left: list[int], stored: int
) -> None:
    """Refuse what takes too long, with a sample as what takes less.

    About attackers that are `left`, besides those whose figures are stored.
    """
    from sottovoce.privacy.all_pairs import pairs_cost
    from sottovoce.support.limits import SECONDS, check_cost

    if not left:
        return
    cost = pairs_cost(system, scheme, left, secure_sum=setting.secure_sum)
    count = "1 attacker" if len(left) == 1 else f"{len(left):,} attackers"
    count += f" ({stored:,} more are stored already)" if stored else ""
    fewer = int(len(left) * SECONDS / max(cost.seconds, SECONDS))
    sample = f"--sample {fewer}, " if 0 < fewer < len(left) and not stored else ""
    what = f"accounting for all pairs of {count} on {system.topology.name}, {system.rounds:,} rounds,"
    check_cost(what, cost, f"take {sample}fewer rounds or a smaller graph")


def _what_is_kept(out: Path | None, count: int) -> str:
    if out is None:
        return "Nothing is kept without --out FILE."
    if not count:
        return f"{out} has no attacker yet."
    return f"{out} has all attackers that were done; the same command goes on from there."
