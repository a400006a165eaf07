"""Which figures of a run's folder are shown to anybody, and what an audit compares each of them with.

Pages, tables, model cards and trackers show what the files of a folder say, and whoever sends a folder can write there
what he likes. `SHOWN` says of every field what it is compared with; a field that no row names is not checked, and an
audit lists it as such. The table in docs/audit.md is this one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from sottovoce.run.layout import (
    ATTACK,
    AUDIT,
    BASELINES,
    CHECKPOINT,
    CONFIG,
    EXPORT,
    GRAPH,
    METRICS,
    NOISE_KEY,
    PAGE,
    PRIVACY,
    PRIVATE,
    RESULT,
)
from sottovoce.run.stated_guarantees import RELATIVE_TOLERANCE
from sottovoce.support.text import parse_json


class Source(StrEnum):
    """What the value of a field is compared with."""

    GIVEN = "taken as given: everything else is computed from it, and fingerprints must fit"
    SETTINGS = "computed again from settings and graph"
    TOPOLOGY = "counted again by sending messages of zeros along the graph"
    MODELS = "computed again from the models in checkpoint.npz and the test rows"
    RERUN = "computed again by a rerun with the run's own noise key"
    COPY = "compared with the file that it was copied from"
    RENEWED = "written anew by every audit"


class Shown(NamedTuple):
    """Some fields of a file: all that begin with these keys, unless a longer row names them; and their sources.

    Each source that is at hand is compared. Without sources they are not checked, for the reason that is given.
    """

    file: str
    keys: tuple[str, ...]
    sources: tuple[Source, ...]
    reason: str = ""


def _each(file: str, words: str, *sources: Source, reason: str = "") -> Iterator[Shown]:
    return (Shown(file, tuple(word.split(".")), sources, reason) for word in words.split())


EXPORTED = f"{EXPORT.name}/model.json"
EXPORTED_CARD = f"{EXPORT.name}/README.md"
EXPORTED_PARAMETERS = f"{EXPORT.name}/model.safetensors"
EXPORTED_STATE = f"{EXPORT.name}/model.pt"

MODELS = "models"
"""What a checkpoint holds beside what it says of itself."""

CLOCK, WORDS = "no clock can be read again", "words and names of whoever ran it"

SHOWN: tuple[Shown, ...] = (
    Shown(CONFIG.name, (), (Source.GIVEN,)),
    *_each(CONFIG.name, "about", reason=WORDS),
    *_each(CONFIG.name, "record machine.checkpoint_seconds", reason="it decides no figure"),
    Shown(GRAPH.name, (), (Source.GIVEN,)),
    *_each(GRAPH.name, "labels", reason=WORDS),
    Shown(NOISE_KEY.name, (), (Source.GIVEN,)),
    Shown(PRIVACY.name, (), (Source.SETTINGS,)),
    *_each(PRIVACY.name, "versions", reason="nothing tells which versions ran"),
    *_each(METRICS.name, "round epsilon", Source.SETTINGS),
    *_each(METRICS.name, "messages bytes", Source.TOPOLOGY),
    *_each(METRICS.name, "loss accuracy rmse consensus", Source.RERUN, Source.MODELS),
    *_each(METRICS.name, "seconds wire_bytes", reason=CLOCK),
    *_each(RESULT.name, "name seed algorithm topology rounds sigma adjacency delta headline", Source.SETTINGS),
    *_each(RESULT.name, "metrics", Source.COPY),
    *_each(RESULT.name, "held_out", Source.MODELS),
    *_each(RESULT.name, "seconds", reason=CLOCK),
    *_each(RESULT.name, "folder", reason=WORDS),
    Shown(BASELINES.name, (), (Source.RERUN,)),
    Shown(ATTACK.name, (), (), "an attack is repeated by sotto attack"),
    Shown(AUDIT.name, (), (Source.RENEWED,)),
    *_each(PRIVATE.name, "fingerprint", Source.GIVEN),
    *_each(PRIVATE.name, "nonfinite", Source.RERUN, Source.COPY),
    *_each(PRIVATE.name, "private in_ledger", reason="it decides no figure"),
    *_each(CHECKPOINT.name, "fingerprint format carry parts", Source.GIVEN),
    *_each(CHECKPOINT.name, "rounds lines", Source.SETTINGS),
    *_each(CHECKPOINT.name, "sent", Source.TOPOLOGY),
    *_each(CHECKPOINT.name, MODELS, Source.RERUN),
    *_each(CHECKPOINT.name, "nonfinite", Source.RERUN),
    *_each(CHECKPOINT.name, "seconds wire", reason=CLOCK),
    Shown(PAGE.name, (), (Source.COPY,)),
    *_each(PAGE.name, "runs.audit", Source.RENEWED),
    *_each(PAGE.name, "title runs.graph.positions runs.folder", reason="words, and where nodes are drawn"),
    Shown(EXPORTED, (), (Source.COPY,)),
    Shown(EXPORTED_CARD, (), (Source.COPY,)),
    Shown(EXPORTED_PARAMETERS, (), (Source.MODELS,)),
    Shown(EXPORTED_STATE, (), (Source.MODELS,)),
)
"""Every file that is read when something is shown, by file and field."""

NO_ROW = "nothing computes it again"

MEASURED_TOLERANCE = 1e-6
"""Relative, of losses and scores: another machine adds in another order."""


@dataclass
class FolderCheck:
    """What speaks against a folder, and which of its fields nothing was compared with, each with the reason."""

    findings: list[str] = field(default_factory=list)
    not_checked: dict[str, str] = field(default_factory=dict)

    def leave_out(self, file: str, keys: Sequence[str], reason: str) -> None:
        """Note a field that is not checked."""
        self.not_checked.setdefault(": ".join([file, *([".".join(keys)] if keys else [])]), reason)

    def compare(
        self,
        file: str,
        stated: object,
        given: Mapping[Source, object],
        missing: Mapping[Source, str],
    ) -> None:
        """Compare a file with what each source gives for it; `missing` says why a source gives nothing."""
        found: dict[tuple[str, ...], list[str]] = {}
        for keys, place, value in _leaves(stated):
            row = row_of(file, keys)
            if row.sources in ((Source.GIVEN,), (Source.RENEWED,)):
                continue
            there = [(source, _at(given[source], place)) for source in row.sources if source in given]
            compared = [(source, other) for source, other in there if other is not _ABSENT]
            longer = [source for source in row.sources if source in given and _is_one_more(given[source], place)]
            if longer and not compared:
                more = f"{file}: {_shown(place)} is {value!r}, and {SAID[longer[0]]} has no such entry"
                found.setdefault(row.keys or keys[:1], []).append(more)
            elif not compared:
                why = [missing[source] for source in row.sources if source in missing]
                self.leave_out(file, row.keys or keys[:1], "; ".join(why) or row.reason or NO_ROW)
            for source, other in compared:
                if not _same(value, other, MEASURED_TOLERANCE if source in MEASURED else RELATIVE_TOLERANCE):
                    different = f"{file}: {_shown(place)} is {value!r}, but {other!r} is {SAID[source]}"
                    found.setdefault(row.keys or keys[:1], []).append(different)
                    break
        for source, other in given.items():
            for keys, place, value in _leaves(other):
                if source in row_of(file, keys).sources and _at(stated, place) is _ABSENT:
                    missed = f"{file}: {_shown(place)} is not there, but {value!r} is {SAID[source]}"
                    found.setdefault(keys[:1], []).append(missed)
        for each in found.values():
            self.findings.append(each[0] + (f", and {len(each) - 1} more of it differ" if len(each) > 1 else ""))


MEASURED = (Source.RERUN, Source.MODELS)

SAID = {
    Source.SETTINGS: "what the settings give",
    Source.TOPOLOGY: "what the graph gives",
    Source.MODELS: "what the models in checkpoint.npz give",
    Source.RERUN: "what a rerun gives",
    Source.COPY: "what it was copied from",
}


@cache
def row_of(file: str, keys: tuple[str, ...]) -> Shown:
    """The row that names a field most closely; one that nothing is compared with where there is none."""
    rows = [row for row in SHOWN if row.file == file and row.keys == keys[: len(row.keys)]]
    return max(rows, key=lambda row: len(row.keys), default=Shown(file, keys[:1], (), NO_ROW))


def shown_table() -> list[tuple[str, str, str]]:
    """File, fields and what they are compared with, rows that say the same joined: for docs/audit.md."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in SHOWN:
        said = "; ".join(row.sources) or f"**not checked**: {row.reason}"
        found.setdefault((row.file, said), []).append(".".join(row.keys) or "all other fields")
    return [(file, ", ".join(fields), said) for (file, said), fields in found.items()]


def as_read(document: object) -> object:
    """A document as it would be read back from a file."""
    return parse_json(json.dumps(document))


class _Absent:
    """Stands for a value that is not there, which None may be."""


_ABSENT = _Absent()

Place = tuple[str | int, ...]


def _leaves(
    value: object, keys: tuple[str, ...] = (), place: Place = ()
) -> Iterator[tuple[tuple[str, ...], Place, object]]:
    """Every value of a document that holds no other, with the keys above it, and with its place in lists as well."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _leaves(part, (*keys, key), (*place, key))
    elif isinstance(value, list) and value:
        for at, part in enumerate(value):
            yield from _leaves(part, keys, (*place, at))
    else:
        yield keys, place, value


def _at(document: Any, place: Place) -> object:
    for key in place:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return document


def _is_one_more(document: Any, place: Place) -> bool:
    """Whether a place is that of an entry beyond the end of a list."""
    for key in place:
        if isinstance(document, list):
            if not isinstance(key, int) or key >= len(document):
                return True
        elif not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return False


def _shown(place: Place) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).lstrip(".") or "it"


def _same(stated: object, given: object, tolerance: float) -> bool:
    """Whether two values are the same but for rounding; true is no number, and no number is a text."""
    if isinstance(stated, bool) or isinstance(given, bool):
        return stated is given
    if isinstance(stated, int | float) and isinstance(given, int | float):
        return stated == given or math.isclose(stated, given, rel_tol=tolerance)
    return type(stated) is type(given) and stated == given
