"""The files in the folder of a run: what each is, who may see it, and how they are read.

Nothing in a folder is trusted: files are read only where they are regular files of it, and as their schema says
(`sottovoce/schemas/files`). All of them are their owner's alone on disk; `Audience` says which may be handed on.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, NoReturn

from sottovoce.errors import InputError
from sottovoce.schemas.validation import problem_in
from sottovoce.support.config import Document
from sottovoce.support.files import check_no_link, explaining, write_text
from sottovoce.support.regular_files import read_bytes
from sottovoce.support.text import json_text, parse_json

RULE, REMEDY = "it is written by sotto run", "restore the file, or run again in another folder"
"""About a file of a run that the system does not let us read."""


class Audience(StrEnum):
    """Who may see a file of a run.

    `PUBLIC` files may be handed on: they depend on training rows through noisy values at most. `RESULTS` were found by
    comparing with the rows themselves, and are handed on where these may be seen. `PRIVATE` files stay with whoever
    ran it. Pages and comparisons read the first two only.
    """

    PUBLIC = "public"
    RESULTS = "results"
    PRIVATE = "private"


class FileKind(NamedTuple):
    """A file, or folder, that lies in the folder of a run; see docs/run.md."""

    name: str
    audience: Audience


CONFIG = FileKind("config.json", Audience.PUBLIC)
GRAPH = FileKind("graph.json", Audience.PUBLIC)
PRIVACY = FileKind("privacy.json", Audience.PUBLIC)
METRICS = FileKind("metrics.jsonl", Audience.PUBLIC)
RESULT = FileKind("result.json", Audience.PUBLIC)
PAGE = FileKind("report.html", Audience.PUBLIC)
EXPORT = FileKind("export", Audience.PUBLIC)
BASELINES = FileKind("baselines.json", Audience.RESULTS)
ATTACK = FileKind("attack.json", Audience.RESULTS)
AUDIT = FileKind("audit.json", Audience.RESULTS)
NOISE_KEY = FileKind("noise.key", Audience.PRIVATE)
PRIVATE = FileKind("private.json", Audience.PRIVATE)
CHECKPOINT = FileKind("checkpoint.npz", Audience.PRIVATE)
MEMBER_MODEL = FileKind("model.npz", Audience.PRIVATE)
MESSAGES = FileKind("messages", Audience.PRIVATE)
RERUNS = FileKind("reruns", Audience.PRIVATE)
SHADOWS = FileKind("shadows", Audience.PRIVATE)
LOCK = FileKind("lock", Audience.PRIVATE)

FILES = (
    CONFIG, GRAPH, PRIVACY, METRICS, RESULT, PAGE, EXPORT, BASELINES, ATTACK, AUDIT, NOISE_KEY, PRIVATE, CHECKPOINT,
    MEMBER_MODEL, MESSAGES, RERUNS, SHADOWS, LOCK,
)  # fmt: skip
"""All that a run's folder holds, what may be handed on first."""


@dataclass(frozen=True)
class RunFiles:
    """The paths of a run's files."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / CONFIG.name

    @property
    def graph(self) -> Path:
        return self.folder / GRAPH.name

    @property
    def privacy(self) -> Path:
        return self.folder / PRIVACY.name

    @property
    def noise_key(self) -> Path:
        return self.folder / NOISE_KEY.name

    @property
    def private(self) -> Path:
        return self.folder / PRIVATE.name

    @property
    def metrics(self) -> Path:
        return self.folder / METRICS.name

    @property
    def checkpoint(self) -> Path:
        return self.folder / CHECKPOINT.name

    @property
    def result(self) -> Path:
        return self.folder / RESULT.name

    @property
    def baselines(self) -> Path:
        return self.folder / BASELINES.name

    @property
    def attack(self) -> Path:
        return self.folder / ATTACK.name

    @property
    def audit(self) -> Path:
        return self.folder / AUDIT.name

    @property
    def page(self) -> Path:
        return self.folder / PAGE.name

    @property
    def lock(self) -> Path:
        return self.folder / LOCK.name

    @property
    def messages(self) -> Path:
        return check_no_link(self.folder / MESSAGES.name)

    @property
    def reruns(self) -> Path:
        return check_no_link(self.folder / RERUNS.name)

    @property
    def shadows(self) -> Path:
        return check_no_link(self.folder / SHADOWS.name)

    def document(self, path: Path) -> Document | None:
        """A JSON file of the run, which fits its schema, or None where it is not there."""
        with explaining(path, RULE, REMEDY):
            try:
                content = read_bytes(path)
            except FileNotFoundError:
                return None
        return _parsed(content, path, path.name)

    def write_document(self, path: Path, document: Document) -> None:
        """Write a JSON file of the run, its owner's alone."""
        text = json_text(document)
        write_text(path, text, private=True)
        _note_fitting(path.name, text.encode())

    def lines(self) -> list[Document]:
        """The lines of `metrics.jsonl`, one for each time that the models were measured."""
        return [
            _parsed(line, self.metrics, METRICS.name, f"line {at}: ") for at, line in enumerate(self._stored_lines(), 1)
        ]

    def note_line(self, line: str) -> None:
        """A line that this process writes, so that it need not be checked when it is read again."""
        _note_fitting(METRICS.name, line.encode())

    def last_line(self) -> Document:
        """The last of them."""
        return _parsed(self._stored_lines()[-1], self.metrics, METRICS.name)

    def _stored_lines(self) -> list[bytes]:
        with explaining(self.metrics, RULE, REMEDY):
            found = read_bytes(self.metrics).splitlines()
        if not found:
            raise _damaged(self.metrics, "no line in it")
        return found


MOST_FITTING = 1000
_fitting: set[tuple[str, bytes]] = set()
"""Files that fit their schemas, by name and digest: found to, or written by this process. A run reads them often."""


def _parsed(content: bytes, path: Path, name: str, where: str = "") -> Document:
    """A document; settings have a schema of their own kind, and are checked by `parse_experiment`."""
    fits = _seen(name, content) in _fitting
    try:
        found = parse_json(content, parse_constant=_not_finite, unique_keys=not fits)
    except ValueError:
        raise _damaged(path, f"{where}it is not JSON, or has a key twice") from None
    if not isinstance(found, dict):
        raise _damaged(path, f"{where}it is no document")
    if name != CONFIG.name and not fits:
        problem = problem_in(found, name)
        if problem is not None:
            raise _damaged(path, f"{where}{problem}")
        _note_fitting(name, content)
    return found


def _note_fitting(name: str, content: bytes) -> None:
    if len(_fitting) == MOST_FITTING:
        _fitting.clear()
    _fitting.add(_seen(name, content))


def _seen(name: str, content: bytes) -> tuple[str, bytes]:
    return name, hashlib.sha256(content).digest()


def _not_finite(word: str) -> NoReturn:
    raise ValueError(word)


def _damaged(path: Path, what: str) -> InputError:
    return InputError(
        f"{path}: damaged: {what}", "sotto does not write such a file", "restore it, or remove the run's folder"
    )


@dataclass(frozen=True)
class PrivateFacts:
    """`private.json`: what depends on the data itself, so that pages, logs and comparisons never read it.

    The fingerprint of the run with its data, and how many gradients were left out because they were not finite.
    The count is None until the run ends. `in_ledger` says whether the run is entered in a ledger.
    """

    fingerprint: str
    nonfinite: int | None = None
    in_ledger: bool = False


def write_private_facts(files: RunFiles, facts: PrivateFacts) -> None:
    """Write `private.json`, for its owner alone."""
    warning = "Do not hand this file on: it depends on the data itself, and no privacy figure covers it."
    files.write_document(files.private, {"private": warning, **asdict(facts)})


def read_private_facts(files: RunFiles) -> PrivateFacts | None:
    """What `private.json` holds; None where it is not there."""
    document = files.document(files.private)
    if document is None:
        return None
    return PrivateFacts(document["fingerprint"], document["nonfinite"], document["in_ledger"])
