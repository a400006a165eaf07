"""Whether what the files of a run state is what its settings give.

`contradictions` compares every figure with those that it follows from: it needs neither data nor torch.
`unlike_settings` computes guarantees anew, by the code that made them: they follow from settings, the graph and the
number of rows of each node, so the same version gives the same ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sottovoce.privacy.gaussian_dp import epsilon_of, is_epsilon_of
from sottovoce.privacy.guarantee import Kind, PrivacyFigure
from sottovoce.run.privacy_document import EarlierEnd, PrivacyDocument, StoredView
from sottovoce.support.config import Document, Experiment
from sottovoce.support.json_numbers import JSON, from_json, to_json
from sottovoce.support.text import parse_json

if TYPE_CHECKING:
    from sottovoce.run.run_accountant import RunAccountant

RELATIVE_TOLERANCE = 1e-9
"""Figures that lie closer together are the same: another machine may round differently."""

LISTED = 5
"""Of so many differences each is named; the rest is counted."""


def agree(one: float, other: float) -> bool:
    """Whether two figures are the same but for rounding."""
    return one == other or math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE)


def contradictions(experiment: Experiment, privacy: PrivacyDocument) -> list[str]:
    """What in `privacy.json` contradicts itself or the settings, each in a sentence."""
    return [
        f"privacy.json: {sentence}"
        for part in (_unlike_settings(experiment, privacy), _wrong_epsilons(privacy), _wrong_headlines(privacy))
        for sentence in part
    ]


def result_contradictions(
    experiment: Experiment, privacy: PrivacyDocument, result: Document, lines: Sequence[Document]
) -> list[str]:
    """What in `result.json` and in lines of metrics contradicts `privacy.json`, the settings or the last line."""
    headline = privacy.headline if result["headline"] is None else PrivacyFigure.read(result["headline"])
    pairs = {
        "name": (result["name"], experiment.name),
        "seed": (result["seed"], experiment.seed),
        "algorithm": (result["algorithm"], privacy.algorithm),
        "topology": (result["topology"], privacy.topology),
        "rounds": (result["rounds"], privacy.rounds),
        "sigma": (result["sigma"], privacy.sigma),
        "adjacency": (result["adjacency"], privacy.adjacency),
        "delta": (result["delta"], privacy.delta),
        "headline": (_shown(headline), _shown(privacy.headline)),
        "metrics": (result["metrics"], lines[-1]),
    }
    found = [
        f"result.json: {key} is {mine}, but the run's other files say {theirs}"
        for key, (mine, theirs) in pairs.items()
        if mine != theirs
    ]
    return found + [
        f"metrics.jsonl: epsilon after round {line['round']} is {line['epsilon']}, but privacy.json gives {given}"
        for line in lines
        if line["epsilon"] != (given := epsilon_in_line(privacy, line["round"]))
    ]


def epsilon_in_line(privacy: PrivacyDocument, round: int) -> Document | None:
    """What a line of metrics says of epsilon: what has been spent by then, and what will have been at the end."""
    spent, planned = (privacy.epsilon_after(at) for at in (round, privacy.rounds))
    return None if spent is None else {"spent": to_json(spent), "planned": to_json(planned)}


def _shown(figure: PrivacyFigure | None) -> str:
    return "none" if figure is None else f"epsilon {figure.epsilon:g} with mu {figure.mu} against {figure.view}"


def _unlike_settings(experiment: Experiment, privacy: PrivacyDocument) -> Iterator[str]:
    wanted = experiment.privacy
    pairs = {
        "rounds": (privacy.rounds, experiment.training.rounds),
        "delta": (privacy.delta, wanted.delta),
        "adjacency": (privacy.adjacency, wanted.adjacency),
        "clipping": (privacy.clipping, experiment.training.clip),
    }
    for key, (stated, setting) in pairs.items():
        if stated != setting:
            yield f"{key} is {stated}, but the settings say {setting}"
    target = wanted.epsilon if wanted.view == "everyone" and wanted.epsilon is not None else math.inf
    if not privacy.headline.proves_nothing and privacy.headline.epsilon > target * (1 + RELATIVE_TOLERANCE):
        yield f"the headline is epsilon {privacy.headline.epsilon:g}, but the settings ask for {target:g} at most"


def _wrong_epsilons(privacy: PrivacyDocument) -> Iterator[str]:
    """Figures whose epsilon is not that of their mu at the delta of the run."""
    for where, figure in _figures(privacy):
        if figure.mu is None or is_epsilon_of(figure.mu, figure.epsilon, privacy.delta, tolerance=RELATIVE_TOLERANCE):
            continue
        epsilon = epsilon_of(figure.mu, privacy.delta)
        yield f"{where} says epsilon {figure.epsilon:g}, but its mu of {figure.mu:g} gives epsilon {epsilon:.6g}"
    last = privacy.over_rounds[-1:]
    if last and (privacy.headline.proves_nothing or not _is_last(last[0], privacy)):
        yield f"epsilon over rounds ends with {last[0].epsilon:g}, which is not the headline's"
    epsilons = [one.epsilon for one in privacy.over_rounds]
    if epsilons != sorted(epsilons):
        yield "epsilon over rounds decreases"


def _is_last(end: EarlierEnd, privacy: PrivacyDocument) -> bool:
    return end.round == privacy.rounds and agree(end.epsilon, privacy.headline.epsilon)


def _figures(privacy: PrivacyDocument) -> Iterator[tuple[str, PrivacyFigure]]:
    """Every figure, with where it stands."""
    for where, figure in (("the headline", privacy.headline), ("the sampled figure", privacy.sampled)):
        if figure is not None:
            yield where, figure
    for view in privacy.views:
        yield f"the headline of {view.view}", view.headline
        for figure in view.guarantees:
            yield f"{view.view} about node {figure.victim}, {figure.kind},", figure


def _wrong_headlines(privacy: PrivacyDocument) -> Iterator[str]:
    """Headlines that are not the worst of the best proven figures, and a run's headline that is nobody's."""
    for view in privacy.views:
        expected = _headline_mu(view)
        stated = None if view.headline.proves_nothing else view.headline.mu
        if (stated is None) != (expected is None) or (
            stated is not None and expected is not None and not agree(stated, expected)
        ):
            yield f"the headline of {view.view} has mu {stated}, but its figures give {expected}"
    headline = privacy.headline
    if headline.proves_nothing:
        return
    others = [view.headline for view in privacy.views]
    others += [] if privacy.sampled is None else [privacy.sampled]
    if not any(one.view == headline.view and agree(one.epsilon, headline.epsilon) for one in others):
        yield f"the headline, epsilon {headline.epsilon:g} against {headline.view}, is none of its other figures"


def _headline_mu(view: StoredView) -> float | None:
    """For each victim the least mu that is proven; of those the largest."""
    best: dict[int | None, float] = {}
    for figure in view.guarantees:
        if figure.proven_for_training and figure.kind is not Kind.AS_PUBLISHED and figure.mu is not None:
            best[figure.victim] = min(best.get(figure.victim, math.inf), figure.mu)
    return max(best.values(), default=None)


def _leaves_that_differ(stated: object, given: object, place: str = "") -> Iterator[tuple[str, object, object]]:
    """Where two documents differ, with both values; numbers may differ by rounding."""
    if isinstance(stated, dict) and isinstance(given, dict):
        for key in dict.fromkeys((*stated, *given)):
            where = f"{place}.{key}" if place else str(key)
            yield from _leaves_that_differ(stated.get(key), given.get(key), where)
    elif isinstance(stated, list) and isinstance(given, list) and len(stated) == len(given):
        for at, (one, other) in enumerate(zip(stated, given, strict=True)):
            yield from _leaves_that_differ(one, other, f"{place}[{at}]")
    elif not _same(stated, given):
        yield place, stated, given


def _same(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool) or not isinstance(one, int | float | str):
        return type(one) is type(other) and one == other
    if isinstance(one, str) or not isinstance(other, int | float):
        return one == other
    return agree(from_json(one), from_json(other))


# --- computed anew ---------------------------------------------------------------------------------------------------


def unlike_settings(
    stated: Document, accountant: RunAccountant, experiment: Experiment, *, every_view: bool = False
) -> list[str]:
    """Where `privacy.json` differs from what the settings give: in its headline and what belongs to it, or anywhere."""
    from sottovoce.run.privacy_report import report_wanted

    if every_view:
        return _differences(stated, report_wanted(accountant, experiment).document())
    alone = experiment.model_copy(update={"privacy": experiment.privacy.model_copy(update={"attackers": "none"})})
    return _differences(stated, report_wanted(accountant, alone).summary())


def _differences(stated: Document, given: dict[str, JSON]) -> list[str]:
    as_read = parse_json(json.dumps(given))
    compared = {key: value for key, value in stated.items() if key in as_read}
    found = [
        f"privacy.json: {place} is {one!r}, but the settings give {other!r}"
        for place, one, other in _leaves_that_differ(compared, as_read)
    ]
    rest = len(found) - LISTED
    return found if rest <= 0 else [*found[:LISTED], f"{rest} more differ"]
