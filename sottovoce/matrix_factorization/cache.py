"""Factorizations computed earlier, in the user's cache folder.

A file's name is a hash of all that the result follows from: the weights of every round, the number of rounds, the
participation, the objective, the structure, the gap, and the version. Files appear by renaming a finished one, so that
concurrent readers and writers never see half a file. Anybody may have written a file: one that cannot be read, is of
something else or has another sensitivity is refused here; `factorization` computes every figure again from C and proof.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sottovoce._version import __version__
from sottovoce.core.participation import Participation
from sottovoce.core.topologies import Topology
from sottovoce.errors import SottovoceError
from sottovoce.matrix_factorization.result import Factorization, sensitivity_squared
from sottovoce.support import files
from sottovoce.support.json_numbers import JSON

FORMAT = 3
NUMBERS = ("objective", "lower_bound", "independent", "antipgd", "seconds", "workload_error")
ARRAYS = ("C", "errors", "proof")
WORDS = ("participation", "goal", "structure", "among")


LARGEST = 1e100
"""Numbers beyond this have no square that can be computed with."""


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


def path(name: str) -> Path | None:
    """Where the result of that name lies, or would."""
    place = folder()
    return None if place is None else place / f"{name}.npz"


@dataclass(frozen=True)
class Refused:
    """A file that is there, and does not hold what its name says."""


def load(name: str, scheme: Participation, rounds: int) -> Factorization | Refused | None:
    """The stored result; None where there is none. Its figures are those of the file: they need not be true."""
    file = path(name)
    if file is None or not os.path.exists(file):  # False, not an error, where the folder cannot be looked into
        return None
    try:
        stored = files.read_npz(file)
        fields: dict[str, Any] = {part: float(stored[part]) for part in NUMBERS}
        fields |= {part: str(stored[part]) for part in WORDS} | {part: stored[part] for part in ARRAYS}
        found = Factorization(rounds=len(stored["C"]), **fields)
    except (SottovoceError, MemoryError, KeyError, ValueError, TypeError):
        return Refused()
    ours = str(stored.get("key")) == name and found.rounds == rounds and found.participation == str(scheme)
    return found if ours and _is_sound(found, scheme) else Refused()


def _is_sound(found: Factorization, scheme: Participation) -> bool:
    """Whether C is a triangular matrix of sensitivity 1, and all other arrays and numbers are of the right kind."""
    C, proof, errors = found.C, found.proof, found.errors
    square = (len(C), len(C))
    if (C.shape, proof.shape, errors.shape) != (square, square, square[:1]):
        return False
    if any(array.dtype != np.float64 or not np.isfinite(array).all() for array in (C, proof, errors)):
        return False
    if np.triu(C, 1).any() or not np.diag(C).all() or not (np.abs(proof) < LARGEST).all():
        return False
    numbers = np.array([getattr(found, name) for name in NUMBERS])
    return bool(np.isfinite(numbers).all() and found.seconds >= 0 and sensitivity_squared(C, scheme) <= 1.0)


def store(name: str, found: Factorization) -> None:
    """Store a result; a folder that cannot be written is no error."""
    file = path(name)
    if file is None:
        return
    with contextlib.suppress(OSError, SottovoceError):
        file.parent.mkdir(parents=True, exist_ok=True)
        for left in file.parent.glob("*.part"):  # of writers that were killed
            if time.time() - left.stat().st_mtime > 3600:
                left.unlink(missing_ok=True)
        files.write(file, lambda part: write(part, found, key=name))


def write(file: BinaryIO, found: Factorization, **more: str) -> None:
    """As npz: C under that name, so that `--correlation FILE` reads it, and the figures beside it."""
    figures: dict[str, Any] = {name: np.array(getattr(found, name)) for name in (*NUMBERS, *WORDS)}
    figures |= {name: np.array(value) for name, value in more.items()}
    if found.for_view is not None:
        figures["view"] = np.array(found.for_view.view)
    np.savez_compressed(file, **{name: getattr(found, name) for name in ARRAYS}, **figures)
