"""How good a model is, what noise cost it and what training together brought, in words: each figure with its interval
and its rows, and nothing said to differ unless an interval says so.

>>> figure_text(0.81, [0.72, 0.88]), figure_text(1.0, None)
('0.810 (0.720 to 0.880)', '1.000 (too few rows to say how surely)')
"""

from __future__ import annotations

import math

from sottovoce.errors import InputError
from sottovoce.learning.prediction_scores import Leading, leading_figure
from sottovoce.learning.score_intervals import Interval, difference_interval
from sottovoce.run.run_documents import LESS_IS_BETTER, RunDocuments, final_average_text
from sottovoce.support.config import Document

NAMES = {
    "auc": "AUC",
    "balanced_accuracy": "balanced accuracy",
    "rmse": "rmse",
    "brier": "Brier score",
    "concordance": "concordance",
}
DECISIONS = ("alerts per 100", "sensitivity", "specificity", "PPV", "NPV", "net benefit")
"""What a table of thresholds tells: so many rows are decided for, how many of them rightly, and whether that helps."""
MOST_CLASSES = 10
"""Confusion matrices of more classes are in `result.json` only."""

NO_BASELINES = (
    "How good it would be without noise, or for each alone, was not computed. Whoever ran this can do it: "
    "sotto run FILE --baselines"
)
ALONE_AT_A_MEMBER = (
    "How good all would be without noise, nobody can compute without everybody's records. How good {member} would be "
    "by itself was not computed. {member} can do it: sotto peer join --baselines"
)
OF_MODEL, OF_NOISE = "How good is the model?", "What did the noise cost?"


def figure_text(value: float | None, interval: Interval, digits: int = 3) -> str:
    """A figure with its interval."""
    if value is None:
        return "- (no rows to say)"
    ends = None if interval is None else [f"{end:.{digits}f}" for end in interval]
    return f"{value:.{digits}f} ({'too few rows to say how surely' if ends is None else ' to '.join(ends)})"


def _named(found: Leading) -> str:
    return NAMES.get(found.figure, found.figure)


def _told(scores: Document, name: str) -> str:
    return figure_text(scores[name], scores.get("intervals", {}).get(name))


def _right(scores: Document) -> tuple[int, int]:
    """So many rows are taken for what they are, and so many would be by always naming the largest class."""
    return sum(counts[at] for at, counts in enumerate(scores["confusion"])), max(map(sum, scores["confusion"]))


# --- for terminals, cards, and the facts of a page -------------------------------------------------------------------


def constant_rows(scores: Document | None) -> dict[str, str]:
    """That a model answers the same whatever the row, if it does."""
    constant = (scores or {}).get("constant")
    return {} if constant is None else {"held-out answers": f"always {constant!r}: this model is a constant"}


def quality_rows(scores: Document | None) -> dict[str, str]:
    """Figures on held-out rows; that a model is a constant comes first."""
    if scores is None:
        return {}
    counted = f"{scores['rows']:,}, with 95 % intervals in brackets"
    if "confusion" not in scores:
        names = [name for name in ("concordance", "rmse", "mae", "r2") if name in scores]
        counted += f"; {scores['events']:,} had the event" if "events" in scores else ""
        return {"held-out rows": counted, **{f"held-out {name}": _told(scores, name) for name in names}}
    right, largest = _right(scores)
    found = {**constant_rows(scores), "held-out rows": counted}
    usual = f"{right:,} right; {largest:,} by always naming the largest class"
    found["held-out accuracy"] = f"{_told(scores, 'accuracy')}, {usual}"
    for name in ("auc", "balanced_accuracy", "brier", "overconfidence"):
        if name in scores:
            found[f"held-out {NAMES.get(name, name)}"] = _told(scores, name)
    found["held-out calibration error"] = f"{scores['calibration_error']:.4f}"
    if len(scores["by_class"]) == 2:
        for one in scores["by_class"]:
            found[f"sensitivity for {one['class']}"] = f"{_told(one, 'sensitivity')} on {one['rows']:,} rows"
    if (own := own_decision(scores)) is not None:
        found["decided for"] = f"{_positive(scores)} above a probability of {own['threshold']:g}"
        told = dict(zip(DECISIONS, _decision_texts(own), strict=True))
        found |= {f"held-out {name}": told[name] for name in ("alerts per 100", "PPV", "NPV")}
        found["held-out net benefit"] = f"{told['net benefit']}; alerting all has {own['treat_all']:.3f}, nobody 0"
    return found


def _positive(scores: Document) -> str:
    return str(scores["by_class"][1]["class"])


def own_decision(scores: Document | None) -> Document | None:
    """What the run's own threshold does, where two classes are decided between."""
    found: list[Document] = (scores or {}).get("decisions", [])
    return next((one for one in found if scores is not None and one["threshold"] == scores["threshold"]), None)


def _decision_texts(one: Document) -> list[str]:
    keys = (name.lower().replace(" ", "_") for name in DECISIONS)
    return [figure_text(one[key], one["intervals"][key], 1 if key == "alerts_per_100" else 3) for key in keys]


def decision_table(scores: Document | None) -> list[list[str]]:
    """What each threshold would do, with its heading; nothing where there are not two classes."""
    found = [] if scores is None else scores.get("decisions", [])
    rows = [[f"{one['threshold']:g}", *_decision_texts(one), f"{one['treat_all']:.3f}"] for one in found]
    return [["threshold", *DECISIONS, "alerting all"], *rows] if rows else []


def calibration_table(scores: Document | None) -> list[list[str]]:
    """Of rows for which about the same was predicted: what was predicted, and what was found."""
    found = [] if scores is None else scores.get("calibration", [])
    rows = [[f"{one['predicted']:.3f}", figure_text(one["found"], one["interval"]), str(one["rows"])] for one in found]
    until = [[f"{one['until']:g}"] if "until" in one else [] for one in found]
    head = ["until", "predicted", "found", "rows still there" if until and until[0] else "rows"]
    return [head[not until[0] :], *(at + row for at, row in zip(until, rows, strict=True))] if rows else []


def confusion_rows(scores: Document | None) -> dict[str, str]:
    """The confusion matrix in words: of each class, how many rows are taken for which; nothing of many classes."""
    if scores is None or not 0 < len(scores.get("by_class", ())) <= MOST_CLASSES:
        return {}
    names, counted = [one["class"] for one in scores["by_class"]], scores["confusion"]
    if [len(counts) for counts in counted] != [len(names)] * len(names):
        raise InputError(
            f"a confusion matrix of {len(counted)} rows for {len(names)} classes",
            "it has a row and a column for each class", "restore result.json, or run again",
        )  # fmt: skip
    text = "; ".join(
        f"{name}: {', '.join(f'{count:,} as {other}' for other, count in zip(names, counts, strict=True) if count)}"
        for name, counts in zip(names, counted, strict=True)
        if any(counts)
    )
    return {"confusion matrix": text}


def baseline_rows(baselines: Document | None, scores: Document | None) -> dict[str, str]:
    """What noise cost and training together brought, by the figure that matters most; nothing if not computed."""
    if baselines is None:
        return {}
    metric, together = baselines["metric"], baselines["without_noise"]
    found = {} if together is None else {f"{metric} without noise": f"{together['average']:.4f} of the average model"}
    found[f"{metric} of each node alone" if together else f"{metric} of this member alone"] = (
        "{mean:.4f} ({min:.4f} to {max:.4f})".format(**baselines["alone"])
    )
    own = leading_figure(scores)
    if own is None or "held_out" not in baselines:
        return found
    plain, alone = leading_figure(baselines["held_out"]["without_noise"]), Leading(**_value(baselines))
    name = _named(own)
    if plain is not None:
        found["cost of noise"] = (
            f"{name} {figure_text(own.value, own.interval)} with it, {_of(plain)} without: {_cost(own, plain)}"
        )
    found["training together"] = f"{name} {_of(alone)} alone: {_gain(own, alone)}"
    return found


def _value(baselines: Document) -> Document:
    return {key: baselines["held_out"]["alone"][key] for key in ("figure", "value", "interval")}


def _of(found: Leading) -> str:
    return figure_text(found.value, found.interval)


# --- comparisons -----------------------------------------------------------------------------------------------------


def _difference(better: Leading, than: Leading, what: str, gain: str, loss: str) -> str:
    """By how much one is better than another, in the words for a gain and for a loss, or that it does not show."""
    found = None
    if better.value is not None and than.value is not None:
        found = difference_interval(better.value, better.interval, than.value, than.interval)
    if found is None:
        return f"too few rows to say whether {what}"
    low, high = (-found[1], -found[0]) if better.figure in LESS_IS_BETTER else found
    if low > 0:
        return f"{gain} {low:.3f} to {high:.3f}"
    if high < 0:
        return f"{loss} {-high:.3f} to {-low:.3f}"
    return f"whether {what} does not show: the difference is {low:.3f} to {high:.3f}"


def _cost(own: Leading, plain: Leading) -> str:
    return _difference(plain, own, "noise cost anything", "noise cost", "with noise it is better, by")


def _gain(own: Leading, alone: Leading) -> str:
    helped = "training together helped"
    return _difference(own, alone, helped, f"{helped}, by", "training together did harm, by")


# --- for the page, in sentences --------------------------------------------------------------------------------------


def quality_answers(run: RunDocuments, noun: str, unprotected: RunDocuments | None) -> list[list[str | list[str]]]:
    """Questions about the model with their answers. `unprotected` is the same training with no noise, if there is."""
    answers: list[list[str | list[str]]] = [
        [OF_MODEL, _how_good(run, noun)],
        [OF_NOISE, _noise(run, noun, unprotected)],
    ]
    constant = (run.result.get("held_out") or {}).get("constant")
    if constant is None:
        return answers
    first = f"The model answers “{constant}” whatever the record: as it is, it is worthless."
    found = leading_figure(run.result["held_out"])
    if found is not None and found.figure == "auc" and found.interval is not None and found.interval[0] > 0.5:
        first += f" Its probabilities do rank records, with an AUC of {_of(found)}: set another training.threshold."
    return [["Read this first", [first]], *answers]


def good(metric: str, value: float) -> str:
    """How good a model is, as the rest of a sentence.

    >>> good("accuracy", 0.9027), good("rmse", 0.43219)
    ('is right for 90.3 %', 'is off by 0.432')
    """
    said = {"rmse": f"is off by {value:.3f}", "log_loss": f"has a log loss of {value:.3f}"}
    return said.get(metric, f"is right for {100 * value:.1f} %")


def _how_good(run: RunDocuments, noun: str) -> list[str]:
    """How good the model is, on how many rows, and over which rounds if it is a mean over several."""
    scores, settings, member = run.result.get("held_out"), run.experiment.metrics, run.member
    own, averaged = run.final_metric("average"), final_average_text([settings.final_rounds])
    rows = f"{scores['rows']:,} records" if scores else "records"
    model, where = (f"the model of {member}", " of its own") if member else (f"the average of all {noun}s' models", "")
    task = {"rmse": "root mean square error", "log_loss": "on average"}.get(run.metric, "test accuracy")
    named = f"{task} {own:.3f}{f', {averaged}' if averaged else ''}"
    found = [f"On {rows}{where} that were kept back from training, {model} {good(run.metric, own)} ({named})."]
    if averaged:
        found.append(f"After the last round it {good(run.metric, run.lines[-1][run.metric]['average'])}.")
    if scores is None:
        return found
    leading = leading_figure(scores)
    if leading is not None and leading.figure == "concordance":
        counted = f"The event happened to {scores['events']:,}. In brackets, below, a 95 % interval."
        return [*found, counted, _against_chance(leading, 2)]
    if leading is None or "confusion" not in scores:
        return [*found, *([f"Its error is {_of(leading)}: in brackets a 95 % interval."] if leading else [])]
    right, largest = _right(scores)
    found.append(
        f"That is {right:,} of {scores['rows']:,}, or {_told(scores, 'accuracy')}: in brackets, here and below, a 95 % "
        f"interval. Always naming the largest class would be right for {largest:,}."
    )
    if len(scores["by_class"]) == 2:
        each = (
            f"{_told(one, 'sensitivity')} of the {one['rows']:,} that are {one['class']}" for one in scores["by_class"]
        )
        found.append(f"It recognises {' and '.join(each)}.")
    if run.experiment.training.class_weights:
        found.append("Classes were weighed in training, which moves its probabilities: see calibration below.")
    return [*found, _against_chance(leading, len(scores["by_class"])), *_of_use(scores)]


def _of_use(scores: Document) -> list[str]:
    """What is decided at the run's threshold, and whether that is better than to alert nobody, or everybody."""
    one = own_decision(scores)
    if one is None:
        return []
    alerts, _, _, right, spared, benefit = _decision_texts(one)
    positive, other = _positive(scores), scores["by_class"][0]["class"]
    found = [
        f"It names {positive} where the probability is above {one['threshold']:g}: {alerts} of 100 records. Of those "
        f"named, {right} are {positive}; of the others, {spared} are {other}."
    ]
    ends = [one["intervals"][name] for name in ("net_benefit", "more_than_all")]
    words, shown = ("nobody", "everybody"), f"Its net benefit there is {benefit}"
    if None in ends:
        return [*found, f"{shown}: too few records to say whether it is of use."]
    unproven = " or ".join(f"alerting {who}" for who, (low, _) in zip(words, ends, strict=True) if low <= 0)
    if unproven:
        return [*found, f"{shown}: that it is of more use than {unproven} does not show."]
    return [*found, f"{shown}: it is of more use than alerting nobody or everybody."]


def _against_chance(found: Leading, classes: int) -> str:
    chance, what = (0.5, "a coin") if classes == 2 else (1 / classes, "chance")
    begin = f"Its {_named(found)} is {_of(found)}, where {what} has {chance:.3g}"
    does = "tells who is first" if found.figure == "concordance" else "tells the classes apart"
    if found.interval is None or found.value is None:
        return f"{begin}: there are too few records to say whether it {does}."
    if found.interval[0] > chance:
        return f"{begin}: it {does}."
    return f"{begin}: that it {does} does not show."


def _noise(run: RunDocuments, noun: str, unprotected: RunDocuments | None) -> list[str]:
    """What protection cost, and whether training together was worth it."""
    metric, found, member = run.metric, run.baselines, run.member
    if math.isinf(run.privacy.headline.epsilon):
        return ["Nothing protects this run, so protection cost nothing."]
    if found is None and unprotected is None:
        return [ALONE_AT_A_MEMBER.format(member=member) if member else NO_BASELINES]
    own, said = leading_figure(run.result.get("held_out")), list[str]()
    value, plain = _without_noise(found, unprotected)
    if value is not None:
        what = (
            f": {NAMES.get(plain.figure, plain.figure)} {_of(plain)}. On these records {_cost(own, plain)}"
            if own and plain
            else ""
        )
        said.append(f"Trained without noise, which protects nobody, it {good(metric, value)}{what}.")
    if found is not None:
        said.append(_alone(found, own, metric, noun))
    return said


def _without_noise(baselines: Document | None, unprotected: RunDocuments | None) -> tuple[float | None, Leading | None]:
    """The metric without noise, and the figure that matters most; None where nobody knows them."""
    if baselines is None:
        assert unprotected is not None, "asked only where one of them is there"
        return unprotected.final_metric("average"), leading_figure(unprotected.result.get("held_out"))
    together = baselines["without_noise"]
    value = None if together is None else together["average"]
    return value, leading_figure(baselines.get("held_out", {}).get("without_noise"))


def _alone(baselines: Document, own: Leading | None, metric: str, noun: str) -> str:
    """What each reaches by itself, and whether training together was worth it for one in the mean."""
    alone = baselines["alone"]
    said = f"A model that a {noun} trains by itself, without noise, {good(metric, alone['mean'])}"
    if alone["min"] != alone["max"]:
        said += f" on average ({alone['min']:.3f} to {alone['max']:.3f})"
    if own is None or "held_out" not in baselines:
        return f"{said}."
    single, constant = Leading(**_value(baselines)), baselines["held_out"]["alone"]["constant"]
    said += f": {_named(own)} {_of(single)}. On these records {_gain(own, single)}."
    return said + (f" Of the models trained alone, {constant} always answer the same." if constant else "")
