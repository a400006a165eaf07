"""What guarantees say, in words for readers who know no differential privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sottovoce.algorithms.registry import has_independent_noise
from sottovoce.core.final_models import FinalModels
from sottovoce.privacy.assumptions import FINAL_MODELS, Assumption, AssumptionKind
from sottovoce.privacy.covering_views import together
from sottovoce.privacy.rounding import round_up
from sottovoce.privacy.views import View, ViewKind
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.support.config import Document
from sottovoce.support.text import from_json, join_names

KINDS = {
    "any-training": "Proven for any training: whatever the model is, and however nodes react to what they hear.",
    "convex-training": (
        "Proven for this training: the loss is convex, the norm of rows is declared, and steps are so small that none "
        "drives two models apart."
    ),
    "fixed-streams": (
        "An idealisation, no proof for training: exact if what nodes send did not depend on what they receive. "
        "The true leak can be larger."
    ),
}
"""What each kind of proof means, for the page; see docs/guarantees.md."""

FIGURES = {"exact": "exact", "bound": "a bound", "closed-form": "a closed form"}
"""What each figure is, in words."""

NOT_COVERED = (
    "What is true of people in general: the model is meant to learn that, and it can be applied to anybody, whether "
    "their record was used or not.",
    "Further training on the same data: what each run reveals adds up. If several runs are tried and the best is kept, "
    "all of them count.",
    "Participants who break the rules: they can spoil the model. A figure that counts on the noise of others does not "
    "hold if these add none.",
    "What participants tell each other outside this training.",
    "How many records each of them holds: that is public.",
)
SIMULATION_FOLDER = (
    "Whoever can read the folder of this simulation: it holds every node's model, and messages if any were recorded."
)
MEMBER_FOLDER = (
    "Whoever can read the folder of this member: it holds its keys, its ledger, and what it measured on its own rows."
)
SEVERAL_RECORDS = "People with several records: each record is protected by itself, not all those of a person together."
ROUNDING = (
    "Rounding: the last bits of floating-point numbers can betray what figures about real numbers say is hidden. Set "
    "privacy.exact_noise = true, if the algorithm has it."
)
ROUNDING_OF_SOME = (
    "Rounding, in figures for single nodes that do not say that they cover it: they count on noise of several "
    "nodes that adds up, and the last bits of floating-point numbers can undo that."
)
SINGLE_NODES = (
    "Several nodes together, in figures for single nodes: two that share what they received can learn more than these "
    "say. A figure for everyone covers them."
)
WITHOUT_MODELS = (
    "Figures for single nodes leave out the final models unless they say otherwise. "
    "Publishing these tells every node more."
)
SAMPLING = "Figures for single nodes do not count on the chance by which batches are drawn; that for everyone may."


def adversary(view: View, names: Sequence[str] | None = None) -> str:
    """Whom a view stands for, with the `names` of a graph's nodes where they have any.

    >>> from sottovoce.privacy import views
    >>> adversary(views.node(3)), adversary(views.coalition(3, 5))
    ('node 3, with what it receives', 'nodes 3 and 5 together, with what they receive')
    >>> adversary(views.node(1), ["Hill", "Mercy"])
    'node 1 (Mercy), with what it receives'
    >>> adversary(views.everyone(secrets_of=tuple(range(20))))
    'whoever hears every message and knows the secrets of 20 nodes'
    >>> adversary(views.with_final_models(views.node(3), "average"))
    'node 3, with what it receives, and the average of the final models'
    """
    if view.final_models is not FinalModels.NONE:
        heard = replace(view, final_models=FinalModels.NONE)
        return f"{adversary(heard, names)}, and {view.final_models.noun}"
    if view.kind is ViewKind.EVERYONE:
        _, knows, secrets = str(view).partition(" with ")
        return "whoever hears every message" + (f" and knows {secrets}" if knows else "")
    if view.kind is ViewKind.ANY_COALITION:
        return f"{together(view.size)}, with what they receive"
    if view.kind is ViewKind.COALITION:
        members = join_names([_node(member, names) for member in view.members])
        if len(view.members) == 1:
            return f"node {members}, with what it receives"
        return f"nodes {members} together, with what they receive"
    edges = ",".join(f"{_node(sender, names)}>{_node(receiver, names)}" for sender, receiver in view.edges)
    return f"eavesdropper:{edges}"


def _node(number: int, names: Sequence[str] | None) -> str:
    return str(number) if names is None else f"{number} ({names[number]})"


def noise_text(privacy: PrivacyDocument) -> str:
    """How much noise there is, by the one definition of sigma, and as users of Opacus count it.

    Opacus divides by the clipping bound: replacing a record moves a sum of clipped gradients by twice the bound.
    """
    sigma = privacy.sigma
    if privacy.is_silent or sigma is None:
        return "none"
    least, most = _ends(sigma)
    whose = "each node's own sensitivity," if isinstance(privacy.sensitivity, list) else "the sensitivity of"
    text = f"sigma {_range(least, most)}: standard deviation over {whose} {_range(*_ends(privacy.sensitivity))}"
    per_record = privacy.adjacency == "record" or privacy.clipping == "whole-gradient"
    clipped = not math.isinf(privacy.largest_sensitivity)
    if not (has_independent_noise(privacy.algorithm) and per_record and clipped):
        return text
    return f"{text}; noise multiplier as in Opacus: {_range(2 * least, 2 * most)}, over the clipping bound"


def _ends(values: float | list[float]) -> tuple[float, float]:
    return (min(values), max(values)) if isinstance(values, list) else (values, values)


def _range(least: float, most: float) -> str:
    return f"{least:.4g}" if least == most else f"from {least:.4g} to {most:.4g}"


def protects(adjacency: str, change: str) -> str:
    """What may change without being noticed much."""
    if adjacency == "user":
        return "all data of one node, replaced by other data"
    return "one record, " + ("replaced by another" if change == "replace" else "made to count as nothing")


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def not_covered(privacy: PrivacyDocument, *, of_member: bool) -> list[str]:
    """What no figure of a run is about; of a simulation, or of a member of a federation."""
    found = [*NOT_COVERED, MEMBER_FOLDER if of_member else SIMULATION_FOLDER, *privacy.not_covered]
    if not (privacy.headline.proves_nothing or privacy.headline.covers_final_models):
        found.insert(0, _sentence(FINAL_MODELS))
    found += [_sentence(one.sentence) for one in _assumed(privacy, AssumptionKind.PUBLIC_STATISTICS)]
    found += [_sentence(one.sentence) for one in _assumed(privacy, AssumptionKind.REPRODUCIBLE_RUN)]
    if not (privacy.headline.proves_nothing or privacy.headline.covers_rounding):
        found.insert(0, ROUNDING)
    elif any(not one.covers_rounding for view in privacy.node_views.values() for one in view.guarantees):
        found.append(ROUNDING_OF_SOME)
    protects_records = math.isfinite(privacy.headline.epsilon)
    if privacy.adjacency == "record" and protects_records:
        found.insert(0, SEVERAL_RECORDS)
    if privacy.node_views:
        found += [SINGLE_NODES, WITHOUT_MODELS]
    if privacy.sampled is not None:
        found.append(SAMPLING)
    return found


def _assumed(privacy: PrivacyDocument, kind: AssumptionKind) -> list[Assumption]:
    """What the headline assumes of a kind."""
    return [one for one in privacy.headline.assumptions if one.kind is kind]


def headline_sentence(privacy: PrivacyDocument, names: Sequence[str] | None = None) -> str:
    """The headline guarantee of a run as a sentence, or why there is none."""
    headline = privacy.headline
    if headline.proves_nothing:
        reasons = privacy.refusals or [line for view in privacy.views[:1] for line in view.refusals]
        why = "; ".join(reasons) or "no kind of proof applies"
        return f"Epsilon is infinite: nothing is proven for this run. {_sentence(why)}"
    about = protects(privacy.adjacency, headline.change)
    if math.isinf(headline.epsilon):
        who = adversary(headline.view, names)
        return f"Nothing is hidden: epsilon is infinite. No figure limits what can be learned about {about}, by {who}."
    accuracy = percent(headline.guessing_accuracy(privacy.delta))
    return (
        f"Proven: guessing which of two data sets was used ({about}), {_who_is(headline.view, names)} right at most "
        f"{accuracy:g} % of the time. That is epsilon {round_up(headline.epsilon)} at delta {privacy.delta:g}. "
        f"It holds {privacy.covers}."
    )


def _who_is(view: View, names: Sequence[str] | None) -> str:
    """The adversary as the subject of a sentence, with its verb."""
    several = view.size > 1 if view.kind is ViewKind.ANY_COALITION else len(view.members) > 1
    pause = "" if view.kind is ViewKind.EVERYONE and view.final_models is FinalModels.NONE else ","
    return f"{adversary(view, names)}{pause} {'are' if several else 'is'}"


def spent_text(result: Document) -> dict[str, str]:
    """What the same records have spent in all, by run, where a ledger knew it; nothing of other runs.

    >>> spent_text({"spent_in_all": {"runs": [{"run": "a", "epsilon": 2.0}], "epsilon": 2.0, "delta": 1e-05}})
    {'spent on the same records': 'epsilon 2 in all, at delta 1e-05: a 2'}
    """
    found = result.get("spent_in_all")
    if found is None:
        return {}
    runs = ", ".join(f"{one['run']} {round_up(from_json(one['epsilon']))}" for one in found["runs"])
    total = round_up(from_json(found["epsilon"]))
    return {"spent on the same records": f"epsilon {total} in all, at delta {found['delta']:g}: {runs}"}


def sums_text(result: Document) -> dict[str, str]:
    """Of a member with secure sums: in how many rounds it knew its sum; nothing of other runs.

    >>> sums_text({"rounds": 40, "sums_known": 38})
    {'secure sums': 'known in 38 of 40 rounds'}
    """
    known = result.get("sums_known")
    return {} if known is None else {"secure sums": f"known in {known:,} of {result['rounds']:,} rounds"}


def heard_text(heard: Document) -> str:
    """Whom a member of a federation has heard, and how often: the schedule that was realised.

    >>> heard_text({"steps": 40, "members": {"Mercy": 40, "North": 38}})
    'Mercy in 40, North in 38 of 40 steps'
    """
    members = ", ".join(f"{name} in {steps:,}" for name, steps in heard["members"].items())
    return f"{members} of {heard['steps']:,} steps" if members else "nobody"


# --- figures: privacy rounded up, what is not finite as JSON can say it ----------------------------------------------


def rounded(epsilon: float) -> float | str:
    """A privacy figure rounded up to four digits; the word inf where it is infinite.

    >>> rounded(0.70710678), rounded(math.inf)
    (0.7072, 'inf')
    """
    return "inf" if math.isinf(epsilon) else float(round_up(epsilon))


def percent(share: float) -> float:
    """A share in percent, rounded up to one decimal.

    >>> percent(0.5), percent(0.50001)
    (50.0, 50.1)
    """
    return math.ceil(share * 1000) / 10


def finite(value: float) -> float | None:
    """A measured figure; None where a run diverged."""
    return value if math.isfinite(value) else None


def deviation_text(mean: float | None, deviation: float | None) -> str:
    """A mean over seeds with its deviation, for tables.

    >>> deviation_text(0.25, 0.01), deviation_text(0.25, None), deviation_text(None, None)
    ('0.2500 ± 0.0100', '0.2500', 'diverged')
    """
    if mean is None:
        return "diverged"
    return f"{mean:.4f}" + ("" if deviation is None else f" ± {deviation:.4f}")
