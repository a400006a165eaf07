"""Matrices C that were found earlier, with their proofs, in the user's cache folder.

A file's name is a hash of all that the result follows from: the weights of every round, the number of rounds, the
participation, the objective, the structure, the gap, and the version. Files appear by renaming a finished one, so that
concurrent readers and writers never see half a file. Anybody may have written a file: one that cannot be read, is of
something else or has another sensitivity is refused here. It holds no figures: `factorization` computes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce._version import __version__
from sottovoce.core.participation import Participation
from sottovoce.core.topologies import Topology
from sottovoce.errors import SottovoceError
from sottovoce.matrix_factorization.result import sensitivity_squared
from sottovoce.support.files import cache_folder, write_bytes
from sottovoce.support.npz import read_npz
from sottovoce.support.text import JSON

Array = NDArray[np.float64]

FORMAT = 5

LARGEST = 1e100
"""Numbers beyond this have no square that can be computed with."""


class Stored(NamedTuple):
    """What a search ended with, and the seconds that it took."""

    C: Array
    proof: Array
    seconds: float


def file_of(topology: Topology, rounds: int, settings: Mapping[str, JSON]) -> Path | None:
    """Where the result for the weights of every round and these settings lies, or would."""
    place = cache_folder("noise")
    if place is None:
        return None
    digest = hashlib.blake2b(digest_size=20)
    digest.update(json.dumps([FORMAT, __version__, rounds, settings], sort_keys=True).encode())
    for part in _content(topology, rounds):
        digest.update(part)
    return place / f"{digest.hexdigest()}.npz"


def _content(topology: Topology, rounds: int) -> Iterator[bytes]:
    for t in range(1 if topology.static else rounds):
        mixing = topology.at(t)
        weights = mixing.weights.sorted_indices()
        yield str(weights.shape).encode()
        for part in (weights.indptr.astype(np.int64), weights.indices.astype(np.int64), weights.data):
            yield np.ascontiguousarray(part).tobytes()
        yield b"all" if mixing.active is None else mixing.active.tobytes()


def load(file: Path, scheme: Participation, rounds: int) -> Stored | None:
    """What a file holds; None where that is not what its name says."""
    try:
        parts = read_npz(file)
        found = Stored(parts["C"], parts["proof"], float(parts["seconds"]))
    except (SottovoceError, MemoryError, KeyError, ValueError, TypeError):
        return None
    return found if str(parts.get("key")) == file.stem and _is_sound(found, scheme, rounds) else None


def _is_sound(found: Stored, scheme: Participation, rounds: int) -> bool:
    """Whether C is a triangular matrix of sensitivity 1, and the proof a matrix of numbers as large."""
    for matrix in (found.C, found.proof):
        if matrix.shape != (rounds, rounds) or matrix.dtype != np.float64 or not (np.abs(matrix) < LARGEST).all():
            return False
    if np.triu(found.C, 1).any() or not np.diag(found.C).all() or not 0 <= found.seconds < np.inf:
        return False
    return sensitivity_squared(found.C, scheme) <= 1.0


def store(file: Path, found: Stored) -> None:
    """Store a result; a folder that cannot be written is no error."""
    with contextlib.suppress(OSError, SottovoceError):
        file.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        np.savez_compressed(content, key=np.array(file.stem), **found._asdict())
        write_bytes(file, content.getvalue())
