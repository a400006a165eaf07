"""The folder of a run: what each of its files is, who may see it, how they are read, and who has locked it.

Nothing in a folder is trusted: files are read only where they are regular files of it, and as their schema says
(`sottovoce/schemas/files`). All of them are their owner's alone on disk; `Audience` says which may be handed on.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, NoReturn

from sottovoce.core.random_streams import NoiseKey, RandomSource
from sottovoce.core.secret_source import SecretSource
from sottovoce.errors import InputError
from sottovoce.schemas.validation import problem_in
from sottovoce.support.config import Document, Experiment
from sottovoce.support.files import (
    check_no_link,
    explaining,
    make_private_folder,
    open_file,
    open_to_append,
    read_bytes,
    write_text,
)
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


@dataclass(frozen=True)
class FileKind:
    """A file, or folder, that lies in the folder of a run, see docs/run.md; as an attribute of `RunFiles` its path."""

    name: str
    audience: Audience
    is_folder: bool = False

    def __get__(self, files: RunFiles, _: type[RunFiles]) -> Path:
        path = files.folder / self.name
        return check_no_link(path) if self.is_folder else path  # in place of a folder, no link is followed


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
MESSAGES = FileKind("messages", Audience.PRIVATE, is_folder=True)
RERUNS = FileKind("reruns", Audience.PRIVATE, is_folder=True)
SHADOWS = FileKind("shadows", Audience.PRIVATE, is_folder=True)
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

    config = CONFIG
    graph = GRAPH
    privacy = PRIVACY
    metrics = METRICS
    result = RESULT
    page = PAGE
    baselines = BASELINES
    attack = ATTACK
    audit = AUDIT
    noise_key = NOISE_KEY
    private = PRIVATE
    checkpoint = CHECKPOINT
    member_model = MEMBER_MODEL
    messages = MESSAGES
    reruns = RERUNS
    shadows = SHADOWS
    lock = LOCK

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
        write_text(path, json_text(document), private=True)

    def lines(self) -> list[Document]:
        """The lines of `metrics.jsonl`, one for each time that the models were measured."""
        found = self._stored_lines()
        return [_parsed(line, self.metrics, METRICS.name, f"line {at}: ") for at, line in enumerate(found, 1)]

    def last_line(self) -> Document:
        """The last of them."""
        return _parsed(self._stored_lines()[-1], self.metrics, METRICS.name)

    def _stored_lines(self) -> list[bytes]:
        with explaining(self.metrics, RULE, REMEDY):
            found = read_bytes(self.metrics).splitlines()
        if not found:
            raise _damaged(self.metrics, "no line in it")
        return found


def _parsed(content: bytes, path: Path, name: str, where: str = "") -> Document:
    """A document; settings have a schema of their own kind, and are checked by `parse_experiment`."""
    try:
        found = parse_json(content, parse_constant=_not_finite, unique_keys=True)
    except ValueError:
        raise _damaged(path, f"{where}it is not JSON, or has a key twice") from None
    if not isinstance(found, dict):
        raise _damaged(path, f"{where}it is no document")
    problem = None if name == CONFIG.name else problem_in(found, name)
    if problem is not None:
        raise _damaged(path, f"{where}{problem}")
    return found


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
    return None if document is None else PrivateFacts(**{key: document[key] for key in PrivateFacts.__match_args__})


# --- one process, or one group of ranks, at a time --------------------------------------------------------------------

ASKING = 0.05
"""Seconds in which whoever only asks about a lock has let go of it."""


def write_token(files: RunFiles) -> str:
    """Leave a random token in the lock: a folder of the same name that another machine has for itself lacks it."""
    token = secrets.token_hex(8)
    with writing_into_run(files.lock), open_to_append(files.lock) as file:
        file.truncate(0)
        file.write(token)
        file.flush()
        os.fsync(file.fileno())
    return token


def check_token(files: RunFiles, token: str) -> None:
    """Refuse a folder that is not the one that rank 0 has made."""
    with writing_into_run(files.lock):
        same = files.lock.exists() and read_bytes(files.lock) == token.encode()
    if not same:
        raise InputError(
            f"{files.folder}: not visible to all ranks", "all ranks write into one folder", "share it as --out"
        )


def make_folder(folder: Path) -> None:
    """Make the folder of a run, for its owner alone, and those above it."""
    with writing_into_run(folder):
        make_private_folder(folder)


def writing_into_run(path: Path) -> AbstractContextManager[None]:
    """While a file of a run is written: what the system refuses becomes one line."""
    return explaining(path, "a run writes into its folder", "use another --out")


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock now. To ask takes it for an instant, together with others who ask."""
    if not path.exists():
        return False
    with open_file(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock dies with its process."""
    with writing_into_run(path):
        file = open_to_append(path)  # what is written there stays, for the run that another process is at
    with file:
        if not _take_lock(file):
            raise InputError(
                f"{path.parent}: another process uses it",
                "only one run at a time can use a folder",
                "wait until the other process has ended",
            )
        yield


def _take_lock(file: IO[str]) -> bool:
    """Take the lock, if nobody has it for longer than `is_locked` does."""
    for pause in (ASKING, 0.0):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(pause)
        else:
            return True
    return False


# --- the noise key ----------------------------------------------------------------------------------------------------

KEY_WARNING = "private: whoever has this key can remove the noise from the run's messages"

IN_FILE = NOISE_KEY.name
"""What `config.json` has in place of a key that the settings name: the file beside it that holds the key."""


def public_settings(experiment: Experiment) -> Document:
    """All settings as they may be handed on: of a key that they name, only that it is named."""
    return experiment.document() | {"noise_key": None if experiment.noise_key is None else IN_FILE}


def with_key_from_file(settings: Document, folder: Path) -> Document:
    """Settings of a `config.json` in a folder, with the noise key that lies beside it if they say so."""
    if settings.get("noise_key") != IN_FILE:
        return settings
    files = RunFiles(folder)
    stored = files.document(files.noise_key)
    if stored is None:
        raise InputError(
            f"{files.noise_key}: not there", "the settings take their noise key from it",
            """restore it, or add --set "noise_key='...'" with the 32 digits of a key""",
        )  # fmt: skip
    return settings | {"noise_key": stored["noise_key"]}


def named_source(experiment: Experiment) -> RandomSource | None:
    """The source that the settings name: secret, or a key, for the run's seed; None where each run makes a key."""
    if experiment.noise == "secret":
        return SecretSource()
    return None if experiment.noise_key is None else _run_key(experiment.noise_key, experiment)


def write_noise_key(files: RunFiles, experiment: Experiment, fingerprint: str) -> None:
    """Keep the key of a run that begins: the one that its settings name, or a fresh one; secret noise has none."""
    if experiment.noise == "secret" or files.noise_key.exists():
        return
    if any(path.exists() for path in (files.privacy, files.private, files.checkpoint)):
        raise InputError(
            f"{files.noise_key}: not there", "the run has begun, and goes on with the noise that it began with",
            "restore the file, or start a new run with another --out",
        )  # fmt: skip
    key = NoiseKey.fresh() if experiment.noise_key is None else NoiseKey.parse(experiment.noise_key)
    document = {"about": KEY_WARNING, "noise_key": key.hexadecimal, "check": key.check, "run": fingerprint}
    files.write_document(files.noise_key, document)


def read_noise_key(files: RunFiles, experiment: Experiment, fingerprint: str) -> RandomSource:
    """The source of a run's noise: secret, or the key in its folder.

    The key must be this run's own, and the one that the settings name if they do.
    """
    if experiment.noise == "secret":
        return SecretSource()
    found = files.document(files.noise_key) or {}
    if found.get("run") != fingerprint:
        raise _wrong_key(files, "not the key of this run")
    key = NoiseKey.parse(found["noise_key"])
    if key.check != found["check"]:
        raise _wrong_key(files, "damaged")
    if experiment.noise_key not in (None, IN_FILE) and NoiseKey.parse(str(experiment.noise_key)) != key:
        raise InputError(
            f"{files.folder} holds a run with another noise_key", "a folder holds one run",
            "use another --out, or remove it",
        )  # fmt: skip
    return _run_key(key.hexadecimal, experiment)


def planned_source(files: RunFiles, experiment: Experiment, fingerprint: str) -> RandomSource:
    """The source that a run will have: one that was killed before its first round has a key in its folder already."""
    if files.noise_key.exists():
        return read_noise_key(files, experiment, fingerprint)
    return named_source(experiment) or NoiseKey.fresh()


def noise_check(files: RunFiles, experiment: Experiment) -> str | None:
    """What two runs with the same noise have in common; None where the folder holds no key."""
    found = None if experiment.noise == "secret" else files.document(files.noise_key)
    return None if found is None else _run_key(found["noise_key"], experiment).check


def _wrong_key(files: RunFiles, what: str) -> InputError:
    return InputError(
        f"{files.noise_key}: {what}", "noise is drawn once, from one key",
        "restore the file, or start a new run with another --out",
    )  # fmt: skip


def _run_key(text: str, experiment: Experiment) -> NoiseKey:
    """Settings that name the key of an earlier run repeat that run."""
    return NoiseKey.parse(text).for_run(experiment.name, experiment.seed)
