"""The settings of a run, as a TOML file holds them.

    >>> experiment = parse_experiment({"name": "try", "topology": {"graph": "ring:8"}, "training": {"rounds": 20}})
    >>> experiment.algorithm.name, experiment.data.name, experiment.privacy.delta
    ('dp-d-sgd', 'digits', 1e-05)
    >>> parse_experiment({"name": "try", "topology": {"graph": "ring:8"}, "training": {"round": 20}})
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: training.round; there is no such key; did you mean training.rounds?

Settings that only decide how fast a run is stand apart from the others, in `machine`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from sottovoce.errors import InputError, shortened
from sottovoce.support.files import read_text
from sottovoce.support.text import parse_json, visible

Document: TypeAlias = dict[str, Any]

AnySection = TypeVar("AnySection", bound="Section")

LARGEST_SEED = 2**63 - 1

LONGEST_NUMBER = 4096
"""Bits of a number that a message can show; settings have far fewer."""

LONGEST_FILE, LONGEST_KEY = 10**6, 200
"""Characters of a TOML file, and dots in a key: the parser takes time by the square of these."""

DEEPEST = 16
"""Levels of tables and lists; no setting needs more than five."""

SEVERAL_LINES = frozenset(("about", "certificate", "tls_key"))
"""Keys whose texts may have several lines."""

NAME = r"[A-Za-z0-9][A-Za-z0-9._=,+-]*"


class Section(BaseModel):
    """A table of settings in which every key is known and every value has its type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, str_strip_whitespace=True, allow_inf_nan=False)


class _OpenSection(BaseModel):
    """A name, and settings that only whatever bears the name can check."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    @property
    def settings(self) -> Document:
        """All but the name."""
        return dict(self.model_extra or {})


class DataSettings(Section):
    """Which data set, and who holds which rows.

    `columns` says what the columns of tables are, or which file does. `shards` are the training rows of each node, by
    name, where every node has a table of its own.
    """

    name: str = "digits"
    partition: str = "iid"
    unit_norm: bool = False
    max_norm: float | None = Field(default=None, gt=0)
    rows: int | None = Field(default=None, ge=1)
    columns: str | dict[str, Any] | None = None
    shards: dict[str, int] | None = None
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)


class ModelChoice(_OpenSection):
    """A model by name, with its own settings beside it."""

    name: str = "softmax"


class TopologySettings(Section):
    """A graph and its weights; a fresh graph each round, one random edge a step, or nodes that drop out."""

    graph: str
    weights: str | None = None
    fresh: bool = False
    random_edges: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)
    dropout_correlation: float = Field(default=0.0, ge=0, lt=1)
    announced: bool = False
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)


class AlgorithmChoice(_OpenSection):
    """An algorithm by name, with its own settings, such as sigma and step_size, beside it."""

    name: str = "dp-d-sgd"


ClassWeight = Annotated[float, Field(gt=0, le=1e6)]


class TrainingSettings(Section):
    """How many rounds, on which batches, with which clipping.

    `weigh_nodes`: whether every node counts alike in the average, or by the number of its records. Of two classes, the
    second is decided for above the `threshold` on its probability. `class_weights` are public numbers by class.
    Gradients are averaged over so many `views` of each image, which differ by what `augment` says, and then clipped.
    """

    rounds: int = Field(ge=1, le=10**7)
    batch: str = "full"
    clip: Literal["none", "per-example", "bounded", "whole-gradient"] = "none"
    bound: float | None = Field(default=None, gt=0)
    local_steps: int = Field(default=1, ge=1)
    weigh_nodes: Literal["equal", "size"] = "equal"
    augment: str = ""
    views: int = Field(default=1, ge=1, le=1024)
    same_start: bool = True
    threshold: float = Field(default=0.5, gt=0, lt=1)
    class_weights: dict[str, ClassWeight] | None = None

    def undone_by_clipping(self) -> str | None:
        """What to say of weights of classes that clipping takes back."""
        largest = max((self.class_weights or {}).values(), default=1.0)
        if largest <= 1 or self.clip != "per-example":
            return None
        return (
            f"class_weights of {largest:g}: clipping per example shortens what a weight above 1 lengthens, so that it "
            f"may do nothing. Divide all weights by {largest:g}."
        )

    @field_validator("class_weights", mode="before")
    @classmethod
    def _are_public(cls, given: object) -> object:
        if isinstance(given, str):
            raise ValueError(
                "must be public numbers by class, such as {no = 0.1, yes = 1.0}: how many rows a class has is private, "
                "and no figure covers weights that are read from rows"
            )
        return given


class PrivacySettings(Section):
    """Against which adversary, at which delta; with `epsilon`, the noise is chosen to meet it.

    `exact_noise`: whether nodes release values on a grid, so that figures cover rounding; `auto`: where the noise is
    fresh and each node adds its own. With `and_final_models`, adversaries also see the models after the last round:
    their average, or all of them. `colluders`: how many nodes may work together against the others of secure sums.
    """

    adjacency: Literal["record", "user"] = "record"
    delta: float = Field(default=1e-5, gt=0, lt=1)
    epsilon: float | None = Field(default=None, gt=0)
    view: str = "everyone"
    and_final_models: Literal["none", "average", "all"] = "none"
    exact_noise: bool | Literal["auto", "where-possible"] = "auto"
    colluders: int | None = Field(default=None, ge=1)
    attackers: Literal["auto", "all", "none"] | int | list[int | str] = "auto"


class MetricsSettings(Section):
    """How often nodes are tested, on how many of the test rows, and over how many last rounds results are averaged."""

    every: int = Field(default=10, ge=1)
    final_rounds: int | None = Field(default=None, ge=1)
    test_rows: int | None = Field(default=None, ge=1)


class RecordingSettings(Section):
    """Which nodes record what they receive, how often, and how many megabytes at most."""

    attackers: Literal["all", "none"] | list[int | str] = "none"
    every: int = Field(default=10, ge=1)
    limit_mb: float = Field(default=500.0, gt=0)


class AdversarySettings(Section):
    """Nodes of a simulation that send something else than they hold: `scale:F` times it, or `constant:C` everywhere."""

    nodes: list[int | str] = []
    poison: str = Field(default="scale:1000", pattern=r"^(scale|constant):-?[0-9.]+(e-?[0-9]+)?$")


class MachineSettings(Section):
    """What decides speed only."""

    threads: int = Field(default=1, ge=1, le=1024)
    engine: str | None = None
    precision: Literal["float32", "float64"] = "float32"
    device: str = Field(default="cpu", max_length=40)
    checkpoint_seconds: float = Field(default=30.0, ge=0)


class About(Section):
    """For readers: a title, what for, whom to ask; of a paper what it did, what is smaller here, and what it claims."""

    title: str = ""
    purpose: str = ""
    contact: str = ""
    paper: str = ""
    scaled: str = ""
    takes: str = ""
    claim: str = ""


class Experiment(Section):
    """All settings of one run. The seed is public; noise and batches come from a secret key, unless one is named.

    `noise = "secret"`: they come from the operating system's random bytes, and nobody can draw them again.
    `secure_sum = true`: the algorithm in the form in which single messages stay hidden. `member`: whose part of a
    federation the folder with these settings holds; it is written by that member, and nobody else can run it.
    """

    name: str = Field(pattern=f"^{NAME}(/{NAME})*$", max_length=200)
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    noise: Literal["secret"] | None = None
    noise_key: str | None = Field(default=None, repr=False)
    secure_sum: bool | None = None
    member: str | None = None
    topology: TopologySettings
    training: TrainingSettings
    data: DataSettings = DataSettings()
    model: ModelChoice = ModelChoice()
    algorithm: AlgorithmChoice = AlgorithmChoice()
    privacy: PrivacySettings = PrivacySettings()
    metrics: MetricsSettings = MetricsSettings()
    record: RecordingSettings = RecordingSettings()
    machine: MachineSettings = MachineSettings()
    about: About = About()
    adversaries: AdversarySettings = AdversarySettings()

    def document(self) -> Document:
        """All settings, defaults included, as JSON takes them."""
        return self.model_dump(mode="json", exclude={"member"} if self.member is None else None)


def read_settings_file(path: Path) -> Document:
    """A TOML file, or the `config.json` that a run leaves behind."""
    text = read_text(path, "settings are read from a TOML file", "check the path")
    if path.suffix != ".json":
        check_length(text, str(path))
    try:
        found = parse_json(text) if path.suffix == ".json" else _parse_toml(text)
    except ValueError as error:
        kind, reason = "JSON" if path.suffix == ".json" else "TOML", shortened(str(error))
        raise InputError(f"{path}: {reason}", f"it is not valid {kind}", "correct that line") from None
    check_document(found, str(path))
    return cast("Document", found)


def check_length(text: str, where: str) -> None:
    """Refuse the text of a TOML file that would keep the parser busy for minutes; whoever writes one asks first."""
    if len(text) > LONGEST_FILE:
        raise InputError(
            f"{where}: {len(text):,} characters", f"a TOML file has at most {LONGEST_FILE:,} here", "make it shorter"
        )


def _parse_toml(text: str) -> Document:
    """A TOML document; whatever is wrong is a `ValueError`, also what would keep the parser busy for minutes."""
    if any(line.partition("=")[0].count(".") > LONGEST_KEY for line in text.splitlines()):
        raise ValueError("a key of too many parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check_document(document: object, where: str = "") -> None:
    """Refuse what no setting is, before anything is read from a document; `where` names it in errors.

    Settings are tables of a few levels, lists, words without hidden characters, and numbers that can be shown.
    """
    if not isinstance(document, dict):
        raise InputError(
            f"{where or 'settings'}: a {type(document).__name__}", "settings must be a table of keys", "see docs/run.md"
        )
    key, problem = next(_problems(document, ()), ((), ""))
    if problem:
        at = visible(shortened(".".join(map(str, key))))
        raise InputError(f"{where}: {at}" if where else at, problem, "correct it; see docs/run.md")


def _problems(value: object, key: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], str]]:
    """Keys of which the value can be no setting, and why."""
    if len(key) > DEEPEST:
        yield key, f"settings are nested at most {DEEPEST} deep"
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _problems(name, ()) if isinstance(name, str) else ((key, f"{name!r} is no key"),)
            yield from _problems(inner, (*key, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _problems(inner, (*key, number))
    elif isinstance(value, str):
        shown = re.sub(r"[\n\t]", "", value) if SEVERAL_LINES.intersection(key) else value
        if visible(shown) != shown:
            yield key or (value,), "it has characters that cannot be seen"
    elif isinstance(value, int) and value.bit_length() > LONGEST_NUMBER:
        yield key, f"a whole number of {value.bit_length()} bits is not a valid setting"


def apply_overrides(document: Document, settings: list[str]) -> Document:
    """A copy with `a.b=value` applied; values are TOML, and anything else is taken as a word.

    >>> apply_overrides({"training": {"rounds": 5}}, ["training.rounds=7", "algorithm.name=zip-dl"])
    {'training': {'rounds': 7}, 'algorithm': {'name': 'zip-dl'}}
    >>> apply_overrides({}, ['grid."privacy.epsilon"=[1.0, 2.0]'])
    {'grid': {'privacy.epsilon': [1.0, 2.0]}}
    """
    for setting in settings:
        key, equals, text = setting.partition("=")
        try:
            if not equals or len(setting.splitlines()) != 1:
                raise ValueError
            path = _path(_parse_toml(f"{key} = 0"))
        except ValueError:
            raise InputError(
                f"--set {shortened(setting)}",
                "it must have the form key=value",
                "write --set training.rounds=50, for example",
            ) from None
        document = set_key(document, path, _value(text))
    return document


def _path(table: object) -> tuple[str, ...]:
    if not isinstance(table, dict):
        return ()
    ((key, inner),) = table.items()
    return key, *_path(inner)


def _value(text: str) -> Any:
    try:
        return _parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text.strip()


def merge(one: Document, other: Document) -> Document:
    """`other` over `one`, table by table."""
    out = dict(one)
    for key, value in other.items():
        old = out.get(key)
        out[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def set_key(document: Document, path: Sequence[str], value: object) -> Document:
    """A copy with the value at a path of keys."""
    first, *rest = path
    if not rest:
        return {**document, first: value}
    inner = document.get(first, {})
    if not isinstance(inner, dict):
        raise InputError(".".join(path), f"{first} is a value and has no keys", "correct the key")
    return {**document, first: set_key(inner, rest, value)}


def parse_experiment(document: Document, where: str = "") -> Experiment:
    """Check all keys and values; `where` names the file in messages.

    `run.protocol` checks the settings of the algorithm, `learning.models` those of the model.
    """
    found = parse_section(Experiment, document, where)
    if found.noise == "secret" and found.noise_key is not None:
        at = f"{where}: " if where else ""
        raise InputError(f"{at}noise = 'secret' with a noise_key", "secret noise has no key", "leave one of them out")
    return found


def parse_section(section: type[AnySection], document: Document, where: str = "") -> AnySection:
    """A section from its document, with all keys and values checked; `where` names the file in messages."""
    check_document(document, where)
    try:
        return section.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
        first, *others = unknown or problems
        alternatives = [one for one in others if _key_of(one) == _key_of(first)]
        raise _input_error(section, first, alternatives, where) from None


def _key_of(problem: ErrorDetails) -> list[str]:
    """The key that a problem is about, whichever of the value's allowed types it comes from."""
    key = _without_union_types([str(part) for part in problem["loc"]])
    return key[:-1] if key[-1].isdigit() else key


def _input_error(
    section: type[Section], problem: ErrorDetails, alternatives: Sequence[ErrorDetails], where: str
) -> InputError:
    """The first problem in one line; `alternatives` are what the value's other allowed types would need."""
    path = [str(part) for part in problem["loc"]]
    key = ".".join(_without_union_types(path))
    at = f"{where}: {key}" if where else key
    if problem["type"] == "extra_forbidden":
        return InputError(at, "there is no such key", _near_key(section, path))
    if problem["type"] == "missing":
        return InputError(f"{at} is missing", "it has no default", f"give {path[-1]}")
    if problem["type"] == "model_type":
        return InputError(f"{at} = {problem['input']!r}", "it must be a table of keys", f"write [{key}]")
    if path == ["noise_key"]:
        return InputError(at, "it must be a string of 32 hexadecimal digits", "put it in quotes, or leave it out")
    message = re.sub(r"^(Input|String|Value error,|Value) ", "it ", problem["msg"])
    if problem["type"] == "string_pattern_mismatch":
        message = "letters, digits and . _ = , + - from a letter or digit on, parts divided by /"
    rules = [message[:1].lower() + message[1:], *(one["msg"].lower() for one in alternatives)]
    rule = " or ".join(dict.fromkeys(rules))
    return InputError(f"{at} = {problem['input']!r:.60}", re.sub(r" or input should be", ", or", rule), "correct it")


def _near_key(section: type[Section], path: list[str]) -> str:
    """What to type instead of an unknown key."""
    known = _keys(section, path[:-1])
    near = difflib.get_close_matches(path[-1], known, n=1)
    prefix = ".".join([*path[:-1], ""])
    return f"did you mean {prefix}{near[0]}?" if near else f"known here: {', '.join(known)}"


def _without_union_types(path: list[str]) -> list[str]:
    """A path of keys without the names of types that pydantic adds where a value may have several."""
    types = ("int", "str", "bool", "float", "constrained-int", "constrained-str")
    return [part for part in path if not part.startswith(("literal[", "list[", "dict[")) and part not in types]


def _keys(section: Any, path: list[str]) -> list[str]:
    """The keys of a section within a section; a part of the path may name one of several sections of a kind."""
    for part in path:
        fields = getattr(section, "model_fields", None)
        section = get_args(section)[-1] if fields is None else fields[part].annotation
    return list(section.model_fields)


def first_difference(one: Document, other: Document) -> tuple[str, object, object] | None:
    """The first key in which two documents differ, with both values; None where they do not.

    >>> first_difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    ('a.c', 2, 3)
    """
    for key in dict.fromkeys((*one, *other)):
        mine, theirs = one.get(key), other.get(key)
        if mine != theirs:
            deeper = first_difference(mine, theirs) if isinstance(mine, dict) and isinstance(theirs, dict) else None
            return (str(key), mine, theirs) if deeper is None else (f"{key}.{deeper[0]}", *deeper[1:])
    return None


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a document that are no tables, by key.

    >>> list(leaves({"privacy": {"epsilon": 1, "delta": 2}, "range": [0, 1]}))
    [('privacy.epsilon', 1), ('privacy.delta', 2), ('range', [0, 1])]
    """
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
