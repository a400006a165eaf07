"""A run in plain words, for readers who must decide and have never heard of epsilon.

In the order in which they are asked: what was done, who could learn what and how surely, what if some work together,
what is not covered, how good the model is, what the noise cost, and whom to ask. Numbers are those of
`privacy.json` and of the run's measurements; nothing is computed here that they do not say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce.algorithms.registry import algorithm_specs
from sottovoce.learning.datasets import ELSEWHERE
from sottovoce.privacy.covering_views import NAMED_ONLY
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.privacy.rounding import round_up
from sottovoce.privacy.views import ViewKind
from sottovoce.report.quality import quality_answers
from sottovoce.report.wording import adversary, not_covered, percent, spent_text
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.run_documents import RunDocuments
from sottovoce.support.config import Document

SENT = {
    "models": "In each round, each of them sent its model to its neighbours, with whom it is linked in a graph",
    "sums": "In each round they sent masked messages, of which others learned only sums",
    "nothing": "There was nobody to send anything to",
    "trusted sums": "One party whom all trust saw what each of them contributed, and gave back nothing but sums",
}
UPDATES = {
    False: "In each round, each of them sent to a server how training had changed the model; the server saw them all",
    True: "In each round, each of them sent to the one whose turn it was how training had changed the model",
}
"""With another framework: to a server, or (True) to each other in turn."""
NO_SERVER = "No server collected anything. "
NOISE = ", with noise added. Noise means random numbers that hide what a single {thing} changed."
MOST_NOT_COVERED = 7
NOBODY_NAMED = "This report names nobody to ask."
NAME_SOMEBODY = 'To have a name here, whoever makes the report types: sotto report {folder} --contact "Name, telephone"'


def plain_words(run: RunDocuments, names: Sequence[str] | None, n: int, without_noise: RunDocuments | None) -> Document:
    """Questions with their answers, and a line for each member. `without_noise` is the same training with no noise."""
    about, privacy = run.experiment.about, run.privacy
    who = Parties(n, names)
    *first, good, cost = quality_answers(run, who.noun, without_noise)
    return {
        "title": about.title,
        "purpose": about.purpose,
        "questions": [
            *first,
            ["What was trained, and by whom?", _what_was_done(run, who)],
            ["Who could learn what, and how surely?", [*_learnable(privacy, who), *_in_all(run)]],
            ["What if some of them work together?", [_together(privacy, who)]],
            ["What is not covered?", _uncovered(run)],
            good,
            cost,
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
    settings, member, privacy = run.experiment, run.member, run.privacy
    sizes = sorted(_records(run, who.names).values())
    held = f" Each has {_between(sizes)} records." if sizes else ""
    thing = who.noun if privacy.adjacency == "user" else "record"
    noise = ", without noise." if privacy.is_silent else NOISE.format(thing=thing)
    together = "" if who.n == 1 else " together"
    model = f"{settings.model.name}){together}{_on_data(run)}"
    trained = f"trained one model ({model}, in {privacy.rounds} rounds.{held}"
    seen = _seen(run) if who.n > 1 else "nothing"
    sent = ("" if seen == "trusted sums" else NO_SERVER) + SENT[seen] + noise
    own = f"This is the page of {member}. Its records were read by its own program only; others received messages."
    if settings.data.columns == ELSEWHERE:
        rounds = f"another framework trained one model{together}, in {privacy.rounds} rounds at most."
        return [f"For {who} {rounds}", UPDATES[settings.algorithm.name == "swarm"] + noise, own]
    if member:
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
    return "" if run.member is not None or ":" in name else f" on the data set {name}"


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


def _in_all(run: RunDocuments) -> list[str]:
    """What other runs on the same records add, where a ledger knew them."""
    found = spent_text(run.result).items()
    return [
        f"That is of this run alone. Until its end, {name}: {text}. So its ledger said; that was not checked."
        for name, text in found
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
    every = not_covered(run.privacy, of_member=run.member is not None)
    if len(every) <= MOST_NOT_COVERED:
        return every
    rest = len(every) - MOST_NOT_COVERED
    return [*every[:MOST_NOT_COVERED], f"And {rest} more: see “What is guaranteed, and what is not” below."]


def _no_contact(run: RunDocuments) -> list[str]:
    """Who is likely to know, and how a name gets here."""
    member = run.member
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
    if run.experiment.data.columns == ELSEWHERE:
        return {}
    if shards is not None:
        return dict(shards)
    return {} if rows is None or names is None else dict.fromkeys(names, rows)


def _between(sizes: Sequence[int]) -> str:
    return f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
