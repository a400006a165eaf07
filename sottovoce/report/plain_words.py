"""A run in plain words, for readers who must decide and have never heard of epsilon.

Six questions, in the order in which they are asked: what was done, what could be found out and how surely, what several
adversaries together could do, what is not covered, what the noise cost, and whom to ask. Numbers are those of
`privacy.json` and of the run's measurements; nothing is computed here that they do not say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sottovoce.algorithms.registry import algorithm_specs
from sottovoce.config import Document
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.privacy.rounding import round_up
from sottovoce.report.rounding import percent
from sottovoce.report.wording import adversary, not_covered
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.run_documents import RunDocuments
from sottovoce.run.sweep_results import LESS_IS_BETTER

COIN = "Somebody who tosses a coin is right 50 % of the time."
NO_CONTACT = 'Nobody is named. The run file, or the agreement of a federation, can: contact = "..." under [about].'
SENT = {
    "models": "There was no central server: each sent its model{noise} to its neighbours only.",
    "sums": "There was no central server: each sent masked messages, of which others learned nothing but sums.",
    "trusted sums": "A party whom all trust saw every gradient, and gave back nothing but their sum, with noise added.",
}
NO_BASELINES = "What it would be without noise, or for each alone, was not computed: sotto run --baselines does it."
ALONE_AT_A_MEMBER = (
    "What this member would reach by itself was not computed: sotto peer join --baselines does it, at home. What all "
    "would reach without noise, nobody can compute who lacks the others' rows."
)
MOST_NOT_COVERED = 6
TASKS = {"accuracy": "the share of rows that are classified rightly", "rmse": "the root of the mean squared error"}


def plain_words(run: RunDocuments, names: Sequence[str] | None, n: int, without_noise: RunDocuments | None) -> Document:
    """Questions with their answers, and a line for each member. `without_noise` is the same training with no noise."""
    about, privacy = run.experiment.about, run.privacy
    return {
        "title": about.title,
        "purpose": about.purpose,
        "questions": [
            ["What was trained, and by whom?", _what_was_done(run, names, n)],
            ["What could somebody find out, and how surely?", _findable(privacy, names)],
            ["What if several of them work together?", [_together(privacy, n)]],
            ["What is not covered?", _uncovered(run)],
            ["What did the noise cost?", _cost_of_noise(run, without_noise)],
            ["Whom can I ask?", [about.contact or NO_CONTACT]],
        ],
        "guess_about": "its data" if privacy.adjacency == "user" else "one of its records",
        "members": _members(run, names, n),
    }


def _what_was_done(run: RunDocuments, names: Sequence[str] | None, n: int) -> list[str]:
    settings, member = run.experiment, run.result.get("member")
    held = _records(run, names)
    who = f"{n} nodes of a graph" if names is None else f"{n} members ({', '.join(names)})"
    records = "" if not held else f" with {_between(sorted(held.values()))} records each"
    trained = f"{who}{records} trained one model ({settings.model.name}) together in {run.privacy.rounds} rounds"
    noise = "" if run.privacy.sigma is None else ", with noise added,"
    lines = [f"{trained}{_on_data(run)}. {SENT[_seen(run)].format(noise=noise)}"]
    if member:
        lines.append(f"This is the page of {member}. No other member ever held its rows.")
    else:
        lines.append(
            "This was a simulation: one machine held everybody's rows. In a federation (sotto peer) nobody does."
        )
    return lines


def _seen(run: RunDocuments) -> str:
    spec = algorithm_specs().get(run.experiment.algorithm.name)
    if run.experiment.secure_sum or (spec is not None and spec.sums_of is not None):
        return "sums"
    return "trusted sums" if spec is not None and spec.needs_trust else "models"


def _on_data(run: RunDocuments) -> str:
    """A data set that is known by its name; names of files say nothing to a reader."""
    name = run.experiment.data.name
    return "" if "member" in run.result or ":" in name else f", on {name}"


def _findable(privacy: PrivacyDocument, names: Sequence[str] | None) -> list[str]:
    """Who could find out what, with a number and what it compares with."""
    headline = privacy.headline
    if headline is None:
        return ["Nothing is proven for this run, so count on everything being found out."]
    whose = "all data of one member" if privacy.adjacency == "user" else "one record"
    if math.isinf(headline.epsilon):
        return [
            f"Everything: this run is not protected. Whoever hears the messages may find out {whose} exactly.",
            "Rows themselves were not sent, but models are enough to learn about them.",
        ]
    right = percent(headline.guessing_accuracy(privacy.delta))
    question = (
        f"They are told that {whose} was either used or left out, and must say which."
        if headline.change == "zero-out"
        else f"They are shown {whose} in two versions, the true one and another, and must say which was trained on."
    )
    more = (
        ""
        if headline.change == "zero-out"
        else (f"The same holds for every question about {whose} that has two equally likely answers. ")
    )
    return [
        f"Imagine {_who(headline, privacy, names)}, knowing all the rest of the data already. {question}",
        f"{COIN} This listener is right at most {right:g} % of the time, whatever they compute and however long. This "
        f"is proven, not measured; experts call it epsilon {round_up(headline.epsilon)} at delta {privacy.delta:g}.",
        f"{more}The nearer the number is to 50 %, the less can be found out; near 100 % hardly anything is protected.",
    ]


def _who(headline: PrivacyFigure, privacy: PrivacyDocument, names: Sequence[str] | None) -> str:
    """Whom the number is about: whoever hears everything, or nobody but the adversary that the headline names."""
    if privacy.covers is not None and privacy.covers.everyone:
        return "somebody who hears every message of every round"
    return adversary(headline.view, names)


def _together(privacy: PrivacyDocument, n: int) -> str:
    covers = privacy.covers
    if privacy.headline is None or covers is None:
        return "Nothing is proven, neither for one nor for several."
    if math.isinf(privacy.headline.epsilon):
        return "It makes no difference: one alone may find out everything."
    if covers.colluders is None:
        return (
            f"It makes no difference: the number above holds even if all other {n - 1} work together and share all "
            "that they heard."
        )
    if covers.colluders == 0:
        return "That is not covered: the number above is about one adversary alone."
    worked = "one member alone" if covers.colluders == 1 else f"up to {covers.colluders} members together"
    return f"The number above holds against {worked}. If more of them share what they heard, it does not hold."


def _uncovered(run: RunDocuments) -> list[str]:
    """What readers must know first; the page has the whole list below."""
    every = not_covered(run.privacy, of_member="member" in run.result)
    if len(every) <= MOST_NOT_COVERED:
        return every
    rest = len(every) - MOST_NOT_COVERED
    return [*every[:MOST_NOT_COVERED], f"And {rest} more: see “What is guaranteed, and what is not”."]


def _cost_of_noise(run: RunDocuments, without_noise: RunDocuments | None) -> list[str]:
    metric, own = run.metric, run.final_metric("average")
    measured = f"The model's test {metric} is {own:.3f} ({TASKS[metric]})."
    if run.privacy.headline is not None and math.isinf(run.privacy.headline.epsilon):
        return [measured, "No noise was added, so it cost nothing and protects nobody."]
    found = run.baselines
    if found is not None and found["without_noise"] is None:
        alone = found["alone"]["mean"]
        return [measured, f"This member by itself, with neither noise nor the others, reaches {alone:.3f}."]
    if found is not None:
        alone = "{mean:.3f} ({min:.3f} to {max:.3f})".format(**found["alone"])
        return [
            measured,
            _without_noise(metric, own, found["without_noise"]["average"]),
            f"A member that trains by itself, with neither noise nor the others, reaches {alone}.",
        ]
    if without_noise is not None:
        return [measured, _without_noise(metric, own, without_noise.final_metric("average"))]
    return [measured, ALONE_AT_A_MEMBER if "member" in run.result else NO_BASELINES]


def _without_noise(metric: str, own: float, other: float) -> str:
    """What the same training reaches without noise, and what noise cost if the figures show it."""
    cost = own - other if metric in LESS_IS_BETTER else other - own
    lost = f"Noise cost {cost:.3f}." if round(cost, 3) > 0 else "Here noise cost nothing that shows in this figure."
    return f"The same training without noise reaches {other:.3f}, and protects nobody. {lost}"


# --- members -------------------------------------------------------------------------------------------------------


def _members(run: RunDocuments, names: Sequence[str] | None, n: int) -> list[Document]:
    """A line for each: its records, how often a guess about one of them is right at most, and who could learn most."""
    held, privacy = _records(run, names), run.privacy
    own = _by_victim(privacy)
    return [
        {
            "name": str(node) if names is None else names[node],
            "records": held.get(str(node) if names is None else names[node]),
            "guess": _guess(own.get(node, _of_others(privacy)) if own else privacy.headline, privacy.delta),
            "closest": _closest(privacy, node, names, n),
        }
        for node in range(n)
    ]


def _of_others(privacy: PrivacyDocument) -> PrivacyFigure | None:
    """What holds for the nodes of the headline's own coalition: that of any other of its size."""
    return privacy.headline if privacy.covers is not None and privacy.covers.colluders else None


def _by_victim(privacy: PrivacyDocument) -> dict[int, PrivacyFigure]:
    """For each node the least figure about it, of those that are proven against whom the headline is about."""
    if privacy.headline is None or privacy.sampled is not None:
        return {}
    found: dict[int, PrivacyFigure] = {}
    for view in privacy.views:
        if view.view != privacy.headline.view:
            continue
        for one in view.guarantees:
            if one.proven_for_training and one.victim is not None:
                best = found.get(one.victim)
                found[one.victim] = one if best is None or one.epsilon < best.epsilon else best
    return found


def _closest(privacy: PrivacyDocument, victim: int, names: Sequence[str] | None, n: int) -> Document | None:
    """The single nodes that can learn most about another, and how often they guess right at most; None unless all
    others are accounted for.
    """
    found: dict[int, PrivacyFigure] = {}
    views = privacy.node_views_with_models or privacy.node_views
    for attacker in set(range(n)) - {victim}:
        view = views.get(attacker)
        proven = [one for one in view.guarantees if one.victim == victim and one.proven_for_training] if view else []
        if not proven:
            return None
        found[attacker] = min(proven, key=lambda one: one.epsilon)
    guesses = {attacker: _guess(figure, privacy.delta) for attacker, figure in found.items()}
    most = max(guesses.values(), key=lambda guess: math.inf if guess is None else guess)
    worst = sorted(attacker for attacker, guess in guesses.items() if guess == most)
    return {"names": [str(one) if names is None else names[one] for one in worst], "guess": most}


def _guess(figure: PrivacyFigure | None, delta: float) -> float | None:
    """In percent, rounded up; None where nothing is proven."""
    return None if figure is None or math.isinf(figure.epsilon) else percent(figure.guessing_accuracy(delta))


def _records(run: RunDocuments, names: Sequence[str] | None) -> dict[str, int]:
    """Records of each node as declared, by its name; empty where no setting says."""
    shards, rows = run.experiment.data.shards, run.experiment.data.rows
    if shards is not None:
        return dict(shards)
    return {} if rows is None or names is None else dict.fromkeys(names, rows)


def _between(sizes: Sequence[int]) -> str:
    return f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
