"""Accounts of a run that has not begun, stored as they are finished: a second start does not compute them again.

They are kept until the run writes `privacy.json`. They lie outside of the run's folder, which is not made before all is
accounted for, in the user's own state folder, and each line is signed by the user's key: nobody else's are believed. A
line is about one run, its data, and these very files of code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

from sottovoce._version import __version__
from sottovoce.core.final_models import FinalModels
from sottovoce.errors import InputError
from sottovoce.privacy.accountant import Account
from sottovoce.privacy.assumptions import Assumption
from sottovoce.privacy.covering_views import coverage
from sottovoce.privacy.guarantee import Guarantee, Kind, TrainingProof
from sottovoce.privacy.views import View, read_view
from sottovoce.support.auditor_key import is_signed, sign, state_folder
from sottovoce.support.config import Document
from sottovoce.support.files import make_private_folder, open_to_append
from sottovoce.support.json_numbers import JSON, from_json, to_json
from sottovoce.support.regular_files import read_bytes
from sottovoce.support.text import parse_json
from sottovoce.tracing.linear_system import LinearSystem

INTERVAL = 5.0
"""Seconds of processor time between two writes: so much is done again after a kill, and short runs store nothing."""

KEPT_SECONDS = 7 * 24 * 3600.0
"""Files of runs that never began are removed when nobody has written to them for so long."""


class StoredAccounts:
    """The accounts of one run, by view. `fingerprint` says of which run: settings, graph, noise and data."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        folder, name = state_folder(), hashlib.sha256(fingerprint.encode()).hexdigest()[:32]
        self._path = None if folder is None else folder / "accounts" / f"{name}.jsonl"
        self._waiting: list[Account] = []
        self._written = time.process_time()

    def find(self, view: View, kinds: tuple[Kind, ...], system: LinearSystem) -> Account | None:
        """The account against a view, of these kinds, if it was finished before."""
        found = self._known.get(str(view))
        if found is None or found["kinds"] != [kind.value for kind in kinds]:
            return None
        guarantees = tuple(_guarantee(one) for one in found["guarantees"])
        headline = None if found["headline"] is None else _guarantee(found["headline"])
        return Account(system, view, guarantees, headline, tuple(found["refusals"]), kinds, coverage([view], system))

    def add(self, found: Account) -> None:
        """Store an account, at the latest together with one that is finished a little later."""
        if self._path is None:
            return
        self._waiting.append(found)
        if time.process_time() - self._written >= INTERVAL:
            with contextlib.suppress(OSError, InputError):  # without them a second start takes as long as the first
                self._append(self._path)
            self._waiting, self._written = [], time.process_time()

    def forget(self) -> None:
        """Remove them: the run has written its guarantees. Those of runs that never began are removed as well."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
            for other in self._path.parent.glob("*.jsonl"):
                if time.time() - other.lstat().st_mtime > KEPT_SECONDS:
                    other.unlink()

    def _append(self, path: Path) -> None:
        make_private_folder(path.parent)
        with open_to_append(path) as file:
            file.write("".join(f"{self._line(found)}\n" for found in self._waiting))

    def _line(self, found: Account) -> str:
        text = json.dumps(_document(found))
        return json.dumps({"signature": sign(self._content(text)), "account": text})

    @cached_property
    def _known(self) -> dict[str, Document]:
        """What is stored; a line that was cut off by a kill, or that this user has not signed, is passed over."""
        if self._path is None:
            return {}
        try:
            lines = read_bytes(self._path).splitlines()
        except (OSError, InputError):
            return {}
        stored = [found for line in lines if (found := self._signed(line)) is not None]
        return {found["view"]: found for found in stored}

    def _signed(self, line: bytes) -> Document | None:
        try:
            stored = parse_json(line)
            signed = is_signed(self._content(stored["account"]), stored["signature"])
            return dict(parse_json(stored["account"])) if signed else None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def _content(self, text: str) -> bytes:
        return f"account {self._fingerprint} {_code()} {text}".encode()


@cache
def _code() -> str:
    """Which code this is: its version, and the size and time of every file of it."""
    root = str(Path(__file__).parents[1])
    about = sorted((entry.path.removeprefix(root), entry.stat()) for entry in _source_files(root))
    named = [(name, one.st_size, one.st_mtime_ns) for name, one in about]
    return hashlib.sha256(json.dumps([__version__, named]).encode()).hexdigest()


def _source_files(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _source_files(entry.path)


def _document(found: Account) -> dict[str, JSON]:
    return {
        "view": str(found.view), "kinds": [kind.value for kind in found.kinds], "refusals": list(found.refusals),
        "guarantees": [_guarantee_document(one) for one in found.guarantees],
        "headline": None if found.headline is None else _guarantee_document(found.headline),
    }  # fmt: skip


def _guarantee_document(one: Guarantee) -> dict[str, JSON]:
    return {
        "view": str(one.view), "victim": one.victim, "distance": one.distance, "kind": one.kind.value,
        "mu": to_json(one.mu), "proven": one.proven_for_training.value, "final_models": one.final_models.value,
        "assumptions": [assumption.sentence for assumption in one.assumptions],
    }  # fmt: skip


def _guarantee(stored: Document) -> Guarantee:
    return Guarantee(
        victim=stored["victim"], distance=stored["distance"], kind=Kind(stored["kind"]), mu=from_json(stored["mu"]),
        proven_for_training=TrainingProof(stored["proven"]), view=read_view(stored["view"]),
        assumptions=tuple(Assumption.read(sentence) for sentence in stored["assumptions"]),
        final_models=FinalModels(stored["final_models"]),
    )  # fmt: skip
