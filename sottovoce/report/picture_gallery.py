"""Small pictures as plain SVG, a square for each pixel.

>>> drawn = gallery({"truth": [[0.0, 1.0, 1.0, 0.0]]}, (2, 2))
>>> drawn.count("<rect"), "truth" in drawn
(4, True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.attacks.registry import PictureResult
from sottovoce.errors import InputError
from sottovoce.support.config import Document

SIDE, GAP, LABEL = 72, 8, 150

COMPARED = 8
"""So many pictures stand side by side on a page at most: as many as a batch has in the demonstration."""


def gallery(rows: Mapping[str, Sequence[ArrayLike]], shape: tuple[int, ...]) -> str:
    """Named rows of pictures, each scaled from its own least to its own largest value."""
    width = LABEL + (SIDE + GAP) * max(map(len, rows.values()))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {(SIDE + GAP) * len(rows)}" '
        'font-family="sans-serif" font-size="13" fill="#808080" role="img">'
    ]
    for line, (name, pictures) in enumerate(rows.items()):
        top = line * (SIDE + GAP)
        parts.append(f'<text x="0" y="{top + SIDE / 2}">{escape(name)}</text>')
        for number, values in enumerate(pictures):
            parts += _pixels(_colours(np.asarray(values, dtype=float), shape), LABEL + number * (SIDE + GAP), top)
    return "\n".join([*parts, "</svg>"]) + "\n"


def stored_pictures(result: PictureResult) -> Document:
    """The pictures of an attack's result for `attack.json`, as whole numbers up to 255.

    These are rows that were trained on: only for data that anybody may see.
    """
    rows = {name: [_levels(np.asarray(one, dtype=float)) for one in found] for name, found in result.pictures().items()}
    return {"shape": list(result.picture_shape), **rows}


def _levels(values: NDArray[np.float64]) -> list[int]:
    low, high = values.min(), values.max()
    found: list[int] = np.round(255 * (values - low) / ((high - low) or 1.0)).astype(int).tolist()
    return found


def compared_pictures(inversions: Mapping[str, Document]) -> str | None:
    """The rows of a neighbour's batch, and below them what inversion of each run, by its label, made of its message.

    Runs on other batches than the first are left out; None where no run has pictures.
    """
    stored = {label: one["pictures"] for label, one in inversions.items() if "pictures" in one}
    if not stored:
        return None
    first = next(iter(stored.values()))
    same = {label: one for label, one in stored.items() if one["batches"] == first["batches"]}
    rows = {"the pictures": first["batches"], **{label: one["found"] for label, one in same.items()}}
    return gallery({label: pictures[:COMPARED] for label, pictures in rows.items()}, tuple(first["shape"]))


def _colours(values: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Height x width x 3, from 0 to 255."""
    image = values.reshape(shape)
    if image.ndim == 3 and image.shape[0] in (1, 3):
        image = np.moveaxis(image, 0, -1)
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or image.shape[-1] not in (1, 3):
        raise InputError(f"rows of shape {shape}", "only images can be drawn", "leave --picture out")
    low, high = image.min(), image.max()
    scaled = np.round(255 * (image - low) / ((high - low) or 1.0)).astype(int)
    return np.broadcast_to(scaled, (*scaled.shape[:2], 3))


def _pixels(image: NDArray[np.int64], left: float, top: float) -> list[str]:
    size = SIDE / max(image.shape[:2])
    return [
        f'<rect x="{left + column * size:.2f}" y="{top + line * size:.2f}" width="{size:.2f}" height="{size:.2f}" '
        f'fill="#{red:02x}{green:02x}{blue:02x}"/>'
        for line, colours in enumerate(image.tolist())
        for column, (red, green, blue) in enumerate(colours)
    ]
