"""Factorizations computed earlier, in the user's cache folder.

A file's name is a hash of all that the result follows from: the weights of every round, the number of rounds, the
participation, the objective, the structure, the gap, and the version. Files appear by renaming a finished one, so that
concurrent readers and writers never see half a file. A file that cannot be read, or does not hold what its name
says, is computed again: everything is checked, sensitivity above all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sottovoce._version import __version__
from sottovoce.core import files
from sottovoce.core.json_numbers import JSON
from sottovoce.core.participation import Participation
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError, SottovoceError
from sottovoce.matrix_factorization.result import Factorization, sensitivity_squared

FORMAT = 2
NUMBERS = ("objective", "lower_bound", "independent", "antipgd", "seconds", "workload_error")
WORDS = ("participation", "goal", "structure", "among")


def folder() -> Path | None:
    """Where factorizations are kept: $XDG_CACHE_HOME, or what the platform uses for caches; None without a home."""
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        base = Path(os.environ["LOCALAPPDATA"])
    else:
        try:
            base = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
        except RuntimeError:
            return None
    return base / "sottovoce" / "noise"


def key(topology: Topology, rounds: int, settings: Mapping[str, JSON]) -> str:
    """A hash of the weights of every round and of all settings."""
    digest = hashlib.blake2b(digest_size=20)
    digest.update(json.dumps([FORMAT, __version__, rounds, settings], sort_keys=True).encode())
    for part in _content(topology, rounds):
        digest.update(part)
    return digest.hexdigest()


def _content(topology: Topology, rounds: int) -> Iterator[bytes]:
    for t in range(1 if topology.static else rounds):
        mixing = topology.at(t)
        weights = mixing.weights.sorted_indices()
        yield str(weights.shape).encode()
        for part in (weights.indptr.astype(np.int64), weights.indices.astype(np.int64), weights.data):
            yield np.ascontiguousarray(part).tobytes()
        yield b"all" if mixing.active is None else mixing.active.tobytes()


def load(name: str, scheme: Participation, rounds: int) -> Factorization | None:
    """The stored result, or None; checked against what is asked for, not against its own fields."""
    place = folder()
    if place is None:
        return None
    try:
        stored = files.read_npz(place / f"{name}.npz")
        fields: dict[str, Any] = {part: float(stored[part]) for part in NUMBERS}
        fields |= {part: str(stored[part]) for part in WORDS}
        found = Factorization(C=stored["C"], errors=stored["errors"], rounds=len(stored["C"]), **fields)
    except (InputError, KeyError, ValueError, TypeError):
        return None
    ours = str(stored.get("key")) == name and found.rounds == rounds and found.participation == str(scheme)
    return replace(found, cached=True) if ours and _sound(found, scheme) else None


def _sound(found: Factorization, scheme: Participation) -> bool:
    """Whether C and its figures are what they should be."""
    C = found.C
    square = C.ndim == 2 and C.shape[0] == C.shape[1] and C.dtype == np.float64 and found.errors.shape == (len(C),)
    if not square or not np.isfinite(C).all() or np.triu(C, 1).any() or not np.diag(C).all():
        return False
    figures = np.array([found.objective, found.lower_bound, found.independent, found.antipgd])
    fine = np.isfinite(figures).all() and 0 <= found.lower_bound <= found.objective * (1 + 1e-9)
    return bool(fine and found.objective > 0 and sensitivity_squared(C, scheme) <= 1.0)


def store(name: str, found: Factorization) -> None:
    """Store a result; a folder that cannot be written is no error."""
    place = folder()
    if place is None:
        return
    with contextlib.suppress(OSError, SottovoceError):
        place.mkdir(parents=True, exist_ok=True)
        for left in place.glob("*.part"):  # of writers that were killed
            if time.time() - left.stat().st_mtime > 3600:
                left.unlink(missing_ok=True)
        files.write(place / f"{name}.npz", lambda file: write(file, found, key=name))


def write(file: BinaryIO, found: Factorization, **more: str) -> None:
    """As npz: C under that name, so that `--correlation FILE` reads it, and the figures beside it."""
    figures: dict[str, Any] = {name: np.array(getattr(found, name)) for name in (*NUMBERS, *WORDS)}
    figures |= {name: np.array(value) for name, value in more.items()}
    if found.for_view is not None:
        figures["view"] = np.array(found.for_view.view)
    np.savez_compressed(file, C=found.C, errors=found.errors, **figures)
