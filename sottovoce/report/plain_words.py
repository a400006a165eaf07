"""A run in plain words, for readers who must decide and have never heard of epsilon.

Six questions, in the order in which they are asked: what was done, who could learn what and how surely, what if some
work together, what is not covered, what the noise cost, and whom to ask. Numbers are those of
`privacy.json` and of the run's measurements; nothing is computed here that they do not say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce.algorithms.registry import algorithm_specs
from sottovoce.privacy.covering_views import NAMED_ONLY
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.privacy.rounding import round_up
from sottovoce.privacy.views import ViewKind
from sottovoce.report.wording import adversary, not_covered, percent
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.run_documents import LESS_IS_BETTER, RunDocuments, final_average_text
from sottovoce.support.config import Document

TASKS = {"accuracy": "test accuracy", "rmse": "root mean square error"}
SENT = {
    "models": "In each round, each of them sent its model to its neighbours, with whom it is linked in a graph",
    "sums": "In each round they sent masked messages, of which others learned only sums",
    "nothing": "There was nobody to send anything to",
    "trusted sums": "One party whom all trust saw what each of them contributed, and gave back nothing but sums",
}
NO_SERVER = "No server collected anything. "
NOISE = ", with noise added. Noise means random numbers that hide what a single {thing} changed."
MOST_NOT_COVERED = 7
NO_BASELINES = (
    "How good it would be without noise, or for each alone, was not computed. Whoever ran this can do it: "
    "sotto run FILE --baselines"
)
ALONE_AT_A_MEMBER = (
    "How good all would be without noise, nobody can compute without everybody's records. How good {member} would be "
    "by itself was not computed. {member} can do it: sotto peer join --baselines"
)
ENDS = ("min", "max")
NOBODY_NAMED = "This report names nobody to ask."
NAME_SOMEBODY = 'To have a name here, whoever makes the report types: sotto report {folder} --contact "Name, telephone"'


def plain_words(run: RunDocuments, names: Sequence[str] | None, n: int, without_noise: RunDocuments | None) -> Document:
    """Questions with their answers, and a line for each member. `without_noise` is the same training with no noise."""
    about, privacy = run.experiment.about, run.privacy
    who = Parties(n, names)
    return {
        "title": about.title,
        "purpose": about.purpose,
        "questions": [
            ["What was trained, and by whom?", _what_was_done(run, who)],
            ["Who could learn what, and how surely?", _learnable(privacy, who)],
            ["What if some of them work together?", [_together(privacy, who)]],
            ["What is not covered?", _uncovered(run)],
            ["What did the noise cost?", _cost_of_noise(run, who, without_noise)],
            ["Whom can I ask?", [about.contact] if about.contact else _no_contact(run)],
        ],
        "guess_about": "its data" if privacy.adjacency == "user" else "one of its records",
        "members": _members(run, names, n),
    }


@dataclass(frozen=True)
class Parties:
    """Those who trained: members where they have names, else nodes with numbers."""

    n: int
    names: Sequence[str] | None

    @property
    def noun(self) -> str:
        """What one of them is called."""
        return "node" if self.names is None else "member"

    def __str__(self) -> str:
        if self.n == 1:
            return "One participant" if self.names is None else f"One member ({self.names[0]})"
        if self.names is None:
            return f"{self.n} participants (called nodes, numbered 0 to {self.n - 1})"
        return f"{self.n} members ({', '.join(self.names)})"


def _what_was_done(run: RunDocuments, who: Parties) -> list[str]:
    settings, member, privacy = run.experiment, run.result.get("member"), run.privacy
    sizes = sorted(_records(run, who.names).values())
    held = f" Each has {_between(sizes)} records." if sizes else ""
    thing = who.noun if privacy.adjacency == "user" else "record"
    noise = ", without noise." if privacy.is_silent else NOISE.format(thing=thing)
    together = "" if who.n == 1 else " together"
    model = f"{settings.model.name}){together}{_on_data(run)}"
    trained = f"trained one model ({model}, in {privacy.rounds} rounds.{held}"
    seen = _seen(run) if who.n > 1 else "nothing"
    sent = ("" if seen == "trusted sums" else NO_SERVER) + SENT[seen] + noise
    if member:
        own = f"This is the page of {member}. Its records were read by its own program only; others received messages."
        return [f"{who} {trained}", sent, own]
    return [
        f"This was a simulation: one machine held all records, and played every {who.noun}.",
        f"{who} {trained}", sent,
    ]  # fmt: skip


def _seen(run: RunDocuments) -> str:
    spec = algorithm_specs().get(run.experiment.algorithm.name)
    if run.experiment.secure_sum or (spec is not None and spec.sums_of is not None):
        return "sums"
    return "trusted sums" if spec is not None and spec.needs_trust else "models"


def _on_data(run: RunDocuments) -> str:
    """A data set that is known by its name; names of files say nothing to a reader."""
    name = run.experiment.data.name
    return "" if "member" in run.result or ":" in name else f" on the data set {name}"


def _learnable(privacy: PrivacyDocument, who: Parties) -> list[str]:
    """Who could learn what, with a number and what it compares with; the first two sentences are the answer."""
    headline = privacy.headline
    if headline.proves_nothing:
        return [
            "Epsilon is infinite, for nothing is proven for this run: assume that whoever reads the messages could "
            "learn everything.",
        ]
    whole = f"all data of one {who.noun}" if privacy.adjacency == "user" else "one record"
    if math.isinf(headline.epsilon):
        return [
            f"Epsilon is infinite: whoever reads the messages could learn {whole} exactly, nothing protects it. "
            "Records themselves were not sent, but models are enough to learn about them."
        ]
    right = percent(headline.guessing_accuracy(privacy.delta))
    left_out = headline.change == "zero-out"
    asked = f"Told that {whole} was either used or left out" if left_out else f"Shown two versions of {whole}"
    picked = "would say rightly which" if left_out else "would pick the one that was used"
    more = "" if left_out else f" The same holds for any question about {whole} that has two equally likely answers."
    return [
        f"{_adversary(headline, privacy, who)} could learn something about {whole}, but only up to a proven limit. "
        f"{asked}, they {picked} at most {right:g} % of the time; somebody who tosses a coin is right 50 % of the "
        "time.",
        f"This holds whatever they compute, and even if they know all the rest of the data.{more} The nearer the "
        "number is to 50 %, the less they can learn; near 100 % hardly anything is hidden.",
        f"Experts call this epsilon {round_up(headline.epsilon)} at delta {privacy.delta:g}. {_symbols(privacy.delta)}",
    ]


def _symbols(delta: float) -> str:
    """What epsilon and delta are, in a sentence."""
    one_in = 1 / delta
    probability = f"1 in {one_in:,.0f}" if math.isclose(one_in, round(one_in), rel_tol=1e-6) else f"{delta:g}"
    return (
        "Epsilon limits how far a change of the data can shift the odds of anything that is seen; delta is a small "
        f"probability, here {probability}, for which epsilon promises nothing. The percentage above has no such gap."
    )


def _adversary(headline: PrivacyFigure, privacy: PrivacyDocument, who: Parties) -> str:
    """Whom the number is about, as the subject of a sentence."""
    covers = privacy.covers or NAMED_ONLY
    if who.n == 1:
        return "Anybody who has the final model"
    anybody = "Anybody who reads every message that was sent"
    if covers.colluders is None:
        return f"{anybody}, the other {who.noun}s included,"
    several = f"any single {who.noun}" if covers.colluders == 1 else f"any {covers.colluders} {who.noun}s together"
    if covers.everyone:
        return f"{anybody}, or {several}," if covers.colluders else f"{anybody}"
    named = several if covers.colluders else f"{adversary(headline.view, who.names)},"
    return named[0].upper() + named[1:]


def _together(privacy: PrivacyDocument, who: Parties) -> str:
    covers = privacy.covers
    if privacy.headline.proves_nothing or covers is None:
        return "Nothing is proven, neither for one nor for several."
    if math.isinf(privacy.headline.epsilon):
        return "It makes no difference: one alone could learn everything."
    if who.n == 1:
        return "It makes no difference: everybody who has the model has the same."
    if covers.colluders is None:
        others = f"the other {who.noun} does" if who.n == 2 else f"all {who.n - 1} others do"
        return (
            f"It makes no difference: the number above holds for two who share everything they received, and even if "
            f"{others}."
        )
    if covers.colluders == 0:
        return "That is not covered: the number above is about one adversary alone."
    if covers.colluders == 1:
        return f"The number above is about one {who.noun} alone. If two share what they received, it does not hold."
    return (
        f"The number above holds for up to {covers.colluders} {who.noun}s together. If more of them share what they "
        "received, it does not hold."
    )


def _uncovered(run: RunDocuments) -> list[str]:
    """What readers must know first; the page has the whole list below."""
    every = not_covered(run.privacy, of_member="member" in run.result)
    if len(every) <= MOST_NOT_COVERED:
        return every
    rest = len(every) - MOST_NOT_COVERED
    return [*every[:MOST_NOT_COVERED], f"And {rest} more: see “What is guaranteed, and what is not” below."]


def _cost_of_noise(run: RunDocuments, who: Parties, without_noise: RunDocuments | None) -> list[str]:
    metric, own, found, member = run.metric, run.final_metric("average"), run.baselines, run.result.get("member")
    measured = _measured(run, who, own)
    if math.isinf(run.privacy.headline.epsilon):
        return [measured, "Nothing protects this run, so protection cost nothing."]
    if found is not None and found["without_noise"] is None:
        alone = good(metric, found["alone"]["mean"])
        return [measured, f"A model that {member} trains by itself, without noise, {alone}."]
    if found is not None:
        last = run.lines[-1][metric]
        averaged = final_average_text([run.experiment.metrics.final_rounds])
        after = [f"After the last round it {good(metric, last['average'])}."] if averaged else []
        return [
            measured, *after, _without_noise(metric, last["average"], found["without_noise"]["average"]),
            _alone(metric, last["mean"], found["without_noise"]["mean"], found["alone"], who),
        ]  # fmt: skip
    if without_noise is not None:
        return [measured, _without_noise(metric, own, without_noise.final_metric("average"))]
    return [measured, ALONE_AT_A_MEMBER.format(member=member) if member else NO_BASELINES]


def _measured(run: RunDocuments, who: Parties, own: float) -> str:
    """How good the model is, on how many rows, and over which rounds if it is a mean over several."""
    held_out, settings, member = run.result.get("held_out"), run.experiment.metrics, run.result.get("member")
    rows = f"{held_out['rows']:,} records" if held_out and settings.test_rows is None else "records"
    average = f"the average of all {who.noun}s' models"
    model, where = (f"the model of {member}", " of its own") if member else (average, "")
    averaged = final_average_text([settings.final_rounds])
    named = f"{TASKS[run.metric]} {own:.3f}{f', {averaged}' if averaged else ''}"
    measured = f"On {rows}{where} that were kept back from training, {model} {good(run.metric, own)} ({named})."
    return measured if held_out is None or averaged else measured + _of_two_classes(held_out)


def _of_two_classes(scores: Document) -> str:
    """How many of each of two classes are recognised, which is what mistakes cost; nothing where there are more."""
    found = [one for one in scores.get("by_class", []) if one["sensitivity"] is not None]
    if len(found) != 2:
        return ""
    shares = (f"{100 * one['sensitivity']:.1f} % of the {one['rows']:,} that are {one['class']}" for one in found)
    return f" It recognises {' and '.join(shares)}."


def good(metric: str, value: float) -> str:
    """How good a model is, as the rest of a sentence.

    >>> good("accuracy", 0.9027), good("rmse", 0.43219)
    ('is right for 90.3 %', 'is off by 0.432')
    """
    return f"is off by {value:.3f}" if metric in LESS_IS_BETTER else f"is right for {100 * value:.1f} %"


def _without_noise(metric: str, own: float, other: float) -> str:
    """What the same training reaches without noise, and what noise cost if the figures, as they are shown, differ."""
    if metric in LESS_IS_BETTER:
        cost = f"{round(own, 3) - round(other, 3):.3f}"
    else:
        cost = f"{round(100 * other, 1) - round(100 * own, 1):.1f} percentage points"
    lost = f"noise cost {cost}" if float(cost.split()[0]) > 0 else "here noise cost nothing that shows in this figure"
    return f"Trained without noise, which protects nobody, it {good(metric, other)}: {lost}."


def _alone(metric: str, together: float, without_noise: float, alone: Document, who: Parties) -> str:
    """What each reaches by itself, and whether training together was worth it for one in the mean."""
    least, most = (good(metric, alone[end]).partition(" for " if metric == "accuracy" else " by ")[2] for end in ENDS)

    def beats(one: float) -> bool:
        return one < alone["mean"] if metric in LESS_IS_BETTER else one > alone["mean"]

    if beats(together):
        worth = f"training together helped the average {who.noun}"
    elif beats(without_noise):
        worth = f"training together would help the average {who.noun}, but the noise takes more away"
    else:
        worth = f"training together did not help the average {who.noun}"
    return (
        f"A model that a {who.noun} trains by itself, without noise, {good(metric, alone['mean'])} on average (from "
        f"{least} to {most}). In this training a {who.noun}'s own model {good(metric, together)} on average; without "
        f"noise it {good(metric, without_noise)}. By these figures {worth}."
    )


def _no_contact(run: RunDocuments) -> list[str]:
    """Who is likely to know, and how a name gets here."""
    member = run.result.get("member")
    ask = f"It was made at {member}: ask whoever runs the training there." if member else "Ask whoever gave it to you."
    before = "the agreement of the federation" if member else "the run file"
    return [
        f"{NOBODY_NAMED} {ask}",
        NAME_SOMEBODY.format(folder=run.folder),
        f'For the next training, {before} can say it: contact = "Name, telephone", below a line [about].',
    ]


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
    """For each node the least figure about it, of those that are proven against whom the headline is about.

    Where that is the worst of several adversaries, another of them may learn more about a node: the headline's figure
    is then all that holds for every node.
    """
    kind, covers = privacy.headline.view.kind, privacy.covers
    of_everyone = kind is ViewKind.EVERYONE and covers is not None and covers.everyone
    if not of_everyone and kind is not ViewKind.ANY_COALITION:
        return {}
    if privacy.headline.proves_nothing or privacy.sampled is not None:
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
    if n == 1:
        return None
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
    return {
        "names": [str(one) if names is None else names[one] for one in worst], "guess": most,
        "with_models": bool(privacy.node_views_with_models),
    }  # fmt: skip


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
