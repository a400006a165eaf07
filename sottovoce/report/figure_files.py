"""Figures as files: SVG and PDF by ourselves, PNG with the extra `figures`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path

from sottovoce.errors import InputError
from sottovoce.report.figures import Figure
from sottovoce.report.pdf_figures import as_pdf
from sottovoce.support.extras import require_extra
from sottovoce.support.files import write_bytes, write_text

PIXELS = 1560
"""Width of a PNG: twice that of the drawing, so that it is sharp in print."""


FONTS = ("DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica", "FreeSans", "Ubuntu", "Roboto")
"""Of which one is on most machines."""


class Format(StrEnum):
    """Of the file of a figure."""

    SVG = "svg"
    PDF = "pdf"
    PNG = "png"


def parse_format(word: str) -> Format:
    """The format of that name; refuses PNG where its extra is not installed."""
    if word not in Format.__members__.values():
        raise InputError(f"format {word!r}", f"known: {', '.join(Format)}", "choose one of them")
    if word == Format.PNG:
        require_extra("figures", "resvg_py")
    return Format(word)


def write_figures(folder: Path, figures: Sequence[Figure], formats: Sequence[Format] = (Format.SVG,)) -> list[Path]:
    """Each figure as a file of each format in a folder; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for figure in figures:
        for wanted in formats:
            path = folder / f"{figure.stem}.{wanted}"
            if wanted is Format.SVG:
                write_text(path, figure.svg)
            else:
                write_bytes(path, as_pdf(figure.svg) if wanted is Format.PDF else as_png(figure.svg))
            found.append(path)
    return found


def as_png(svg: str) -> bytes:
    """A drawing as PNG, on white: its ink is for light and dark ground."""
    return _rendered(svg.replace(' stroke-dasharray=""', ""), _font(), PIXELS)


@cache
def _font() -> str:
    """A font that this machine has; without one, letters would be left out without a word."""
    word = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 20"{}>{}</svg>'
    blank = _rendered(word.format("", ""), FONTS[0], 40)
    for family in FONTS:
        if (
            _rendered(word.format(' font-family="sans-serif"', '<text x="2" y="15">epsilon</text>'), family, 40)
            != blank
        ):
            return family
    raise InputError(
        "no font was found on this machine", f"letters of PNG figures need one, such as {FONTS[0]}",
        "install one, or take --format pdf",
    )  # fmt: skip


def _rendered(svg: str, family: str, width: int) -> bytes:
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, width=width, background="white", sans_serif_family=family))
