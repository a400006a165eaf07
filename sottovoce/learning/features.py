"""Features of rows that nothing private decides: a map that is fixed before any row is seen, of each row by itself.

    >>> from sottovoce.learning.datasets import load
    >>> digits = load("digits")
    >>> found = parse_features("scattering:J=1,L=8", digits)
    >>> found.width, found.rows(digits.examples).shape
    (144, (1438, 144))

Every row of features is scaled to norm one, so a linear model on them has bounded gradients and a known smoothness.
Maps are `scattering` (see there), `fourier` (Rahimi and Recht 2007: `D` cosines of random directions, whose products
are near `exp(-gamma ||x - y||^2)`), `pca` of a public data set, and functions in files of the user's own. The latter
get one row at a time, so they can be fitted to none.

Large features are computed once and stored in the user's cache, named after a digest of rows, map and version.

Shapes: N rows, F inputs, D features.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch

from sottovoce._version import __version__
from sottovoce.core.graphs import parse_options
from sottovoce.errors import InputError, SottovoceError
from sottovoce.learning.catalogue import CATALOGUE
from sottovoce.learning.datasets import Dataset, call_own_code, load
from sottovoce.learning.lazy_rows import UNIT_NORM, Examples, Floats
from sottovoce.learning.scattering import Scattering
from sottovoce.support.files import cache_folder, make_private_folder, write
from sottovoce.support.own_code import Offered, code_digest, named_object
from sottovoce.support.threads import threads

KEPT = 1 << 24
"""Fewer numbers than these take a second at most, and are computed each time."""


@dataclass(frozen=True, eq=False)
class Features:
    """A map of rows by its name, and how many features it gives; `code` is a digest of the user's own code."""

    name: str
    width: int
    act: Callable[[Floats], Floats]
    code: str | None = None

    def of(self, examples: Examples) -> Examples:
        """Features of rows, computed when they are asked for."""
        return examples.then(self.act, self.width).unit_norm()

    def rows(self, examples: Examples) -> Floats:
        """Features of all rows: from the cache, or else computed and stored there, on one thread."""
        with threads():
            return self._rows(examples)

    def _rows(self, examples: Examples) -> Floats:
        seen, folder = self.of(examples), cache_folder("features")
        if folder is None or len(seen) * self.width < KEPT:
            return seen[:]
        digest = hashlib.blake2b(repr((__version__, self.name, self.code, self.width)).encode(), digest_size=20)
        digest.update(examples.digest())
        file = folder / f"{digest.hexdigest()}.npy"
        found = _read(file, (len(seen), self.width))
        if found is None:
            with contextlib.suppress(OSError, SottovoceError):
                _write(file, seen)
            found = _read(file, (len(seen), self.width))
        return seen[:] if found is None else found

    def described(self, dataset: Dataset) -> Dataset:
        """A data set of features, without their rows: what a model is built for."""
        return replace(dataset, examples=Examples(np.empty((0, self.width), dtype=np.float32)), shape=(self.width,))


def _read(file: Path, shape: tuple[int, int]) -> Floats | None:
    """What is stored, mapped into memory; None unless it has the shape, and no row is longer than one."""
    try:
        found = np.load(file, mmap_mode="c")
    except (OSError, ValueError, EOFError):
        return None
    if found.shape != shape or found.dtype != np.float32:
        return None
    norms = (np.linalg.norm(some.astype(np.float64), axis=1) for some in Examples(found).chunks())
    return found if all((some <= UNIT_NORM).all() for some in norms) else None


def _write(file: Path, seen: Examples) -> None:
    """Some rows at a time; only their owner can read them."""

    def write_to(stream: BinaryIO) -> None:
        described = {"descr": "<f4", "fortran_order": False, "shape": (len(seen), seen.width)}
        np.lib.format.write_array_header_1_0(stream, described)
        for some in seen.chunks():
            stream.write(some.astype("<f4").tobytes())

    make_private_folder(file.parent)
    write(file, write_to, private=True)


# --- the maps --------------------------------------------------------------------------------------------------------


def parse_features(name: object, dataset: Dataset) -> Features:
    """The map of that name for the rows of a data set, of which only the shape is used."""
    if not isinstance(name, str):
        raise InputError(f"features = {name!r:.60}", "it must be the name of a map", 'write "scattering:J=2,L=8"')
    if dataset.entities:
        raise InputError(f"features of {dataset.name}", "its rows are positions, not numbers", "leave features out")
    kind, _, options = name.partition(":")
    if kind not in MAPS:
        return _own(name, dataset)
    return MAPS[kind](name, [option for option in options.split(",") if option], dataset)


def _count(text: str) -> int:
    if not 1 <= (found := int(text)) <= 10**6:
        raise ValueError(text)
    return found


def _positive(text: str) -> float:
    if not 0 < (found := float(text)) < math.inf:
        raise ValueError(text)
    return found


Options: TypeAlias = dict[str, tuple[Callable[[str], Any], str]]

WHOLE = _count, "a whole number from 1"


def _scattering(name: str, options: list[str], dataset: Dataset) -> Features:
    given = {"J": 2, "L": 8} | parse_options(f"features {name!r}", options, {"J": WHOLE, "L": WHOLE})
    made = Scattering(dataset.shape, given["J"], given["L"])
    return Features(name, made.width, lambda rows: made(torch.from_numpy(rows)).numpy())


def _fourier(name: str, options: list[str], dataset: Dataset) -> Features:
    known: Options = {"D": WHOLE, "gamma": (_positive, "a positive number"), "seed": (int, "a whole number")}
    inputs = dataset.examples.width
    given = {"D": 1000, "gamma": 1 / inputs, "seed": 0} | parse_options(f"features {name!r}", options, known)
    draw = np.random.default_rng(given["seed"])
    directions = math.sqrt(2 * given["gamma"]) * draw.standard_normal((inputs, given["D"]), dtype=np.float32)
    turns = np.asarray(draw.uniform(0, 2 * math.pi, given["D"]), dtype=np.float32)
    return Features(name, given["D"], lambda rows: np.asarray(np.cos(rows @ directions + turns)))


def _pca(name: str, options: list[str], dataset: Dataset) -> Features:
    """Along the directions in which a public data set varies most, from its mean."""
    of, *others = options or [""]
    given = {"D": 50} | parse_options(f"features {name!r}", others, {"D": WHOLE})
    if of not in CATALOGUE:
        raise InputError(f"features {name!r}", "they are fitted to a public data set", "write pca:fashion-mnist,D=50")
    trained = CATALOGUE[dataset.name].files if dataset.name in CATALOGUE else ()
    if of == dataset.name or {*trained} & {*CATALOGUE[of].files}:
        raise InputError(
            f"features {name!r} of {dataset.name}", "no figure covers what is fitted to training rows",
            "fit them to another data set, which is public",
        )  # fmt: skip
    public = load(of, dataset.folder).with_plain_pixels()
    if public.shape != dataset.shape or given["D"] > public.examples.width:
        raise InputError(
            f"features {name!r}: rows of shape {public.shape}, and {dataset.shape} to learn from",
            "both must have one shape, with D numbers or more", "use another data set, or a lower D",
        )  # fmt: skip
    mean = public.inputs.mean(0, dtype=np.float64)
    moments = sum((some - mean).T @ (some - mean) for some in public.examples.chunks())
    directions = np.linalg.eigh(moments)[1][:, : -given["D"] - 1 : -1]
    signs = np.sign(directions[abs(directions).argmax(0), range(given["D"])])
    return Features(name, given["D"], lambda rows: ((rows - mean) @ (directions * signs)).astype(np.float32))


def features_code(name: object) -> str | None:
    """A digest of the code of a map of the user's own; None for one of the package."""
    own = isinstance(name, str) and name.partition(":")[0] not in MAPS
    return code_digest(str(name), Offered.FEATURES) if own else None


def _own(name: str, dataset: Dataset) -> Features:
    """A function of one row, in the shape of its data set, that returns its features."""
    found = named_object(name, Offered.FEATURES)
    if found is None or not callable(found.value):
        raise InputError(
            f"features {name!r:.60}", f"known: {', '.join(MAPS)}, and functions such as features.py:fn",
            "see docs/models.md",
        )  # fmt: skip
    function = found.value

    def of_row(row: Floats) -> Floats:
        made = np.asarray(call_own_code(function, name, (row.reshape(dataset.shape).copy(),), {}), dtype=np.float32)
        if made.ndim != 1 or not made.size:
            raise InputError(f"{name} gives an array of shape {made.shape}", "it must be a list of numbers", "flatten")
        return made

    def act(rows: Floats) -> Floats:
        return np.stack([of_row(row) for row in rows])

    probes = (np.full(dataset.examples.width, value, dtype=np.float32) for value in (0, 1, 0))
    first, _, again = map(of_row, probes)
    if not np.array_equal(first, again, equal_nan=True):
        raise InputError(
            f"{name}: features of the same row differ", "a map must not remember other rows, or draw numbers",
            "compute what it needs when its file is loaded",
        )  # fmt: skip
    return Features(name, len(first), act, found.digest)


MAPS = {"scattering": _scattering, "fourier": _fourier, "pca": _pca}
"""The maps of the package, by the word before the colon."""
