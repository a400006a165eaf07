"""Figures as files: SVG, PDF, and the numbers as CSV.

PDF has vectors, and text that stays text, in a font that every reader has. Only what `figures` draws is known there:
lines, polygons, circles and text. Anything else is refused by its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree

from sottovoce.errors import InputError, SottovoceError
from sottovoce.report.figures import Figure, points_of
from sottovoce.support.files import write_bytes, write_text
from sottovoce.support.text import csv_text


class Format(StrEnum):
    """Of the file of a figure."""

    SVG = "svg"
    PDF = "pdf"
    CSV = "csv"


def parse_format(word: str) -> Format:
    """The format of that name."""
    if word not in Format.__members__.values():
        raise InputError(f"format {word!r}", f"known: {', '.join(Format)}", "choose one of them")
    return Format(word)


def write_figures(
    folder: Path,
    figures: Sequence[Figure],
    formats: Sequence[Format] = (Format.SVG, Format.CSV),
    *,
    width: float | None = None,
) -> list[Path]:
    """Each figure as a file of each format in a folder, for screens or so many millimetres wide; returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for figure in figures:
        for wanted in formats:
            path = folder / f"{figure.stem}.{wanted}"
            if wanted is Format.CSV:
                write_text(path, csv_text(points_of(figure.series, figure.x, figure.y)))
            elif wanted is Format.SVG:
                write_text(path, figure.drawn(width))
            else:
                write_bytes(path, as_pdf(figure.drawn(width)))
            found.append(path)
    return found


# --- PDF -------------------------------------------------------------------------------------------------------------

_WIDTHS = (
    "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556 556 278 278 "
    "584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778 722 667 611 722 667 944 "
    "667 667 611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 "
    "278 556 500 722 500 500 500 334 260 334 584"
)
WIDTHS = dict(zip(map(chr, range(32, 127)), map(int, _WIDTHS.split()), strict=True))
"""Thousandths of the font size that the characters of Helvetica take, as Adobe states them."""

QUARTER = 4 / 3 * (math.sqrt(2) - 1)
"""How long the handles of a Bezier curve are that draws a quarter of a circle."""


def as_pdf(svg: str) -> bytes:
    """A drawing as a PDF file of one page."""
    root = ElementTree.fromstring(svg)
    *_, width, height = map(float, root.attrib["viewBox"].split())
    size = float(root.attrib.get("font-size", 12))
    alphas: dict[float, str] = {}
    lines = [f"1 0 0 -1 0 {height:g} cm"]
    for part in root:
        lines += ["q", *_drawn(part, root.attrib["fill"], size, alphas), "Q"]
    content = "\n".join(lines).encode("cp1252", errors="replace")
    states = " ".join(f"/{name} << /ca {alpha:g} /CA {alpha:g} >>" for alpha, name in alphas.items())
    fonts = " ".join(
        f"/{name} << /Type /Font /Subtype /Type1 /BaseFont /{face} /Encoding /WinAnsiEncoding >>"
        for name, face in (("F", "Helvetica"), ("B", "Helvetica-Bold"))
    )
    return _file([
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width:g} {height:g}] /Contents 4 0 R "
        f"/Resources << /Font << {fonts} >> /ExtGState << {states} >> >> >>".encode(),
        b"<< /Length %d >>\nstream\n" % len(content) + content + b"\nendstream",
    ])  # fmt: skip


def _file(objects: list[bytes]) -> bytes:
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(out + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start))


def _drawn(part: ElementTree.Element, ink: str, size: float, alphas: dict[float, str]) -> Iterator[str]:
    """The operators that draw one element; `ink` is the colour of text."""
    kind, given = part.tag.rpartition("}")[2], part.attrib
    if kind == "title":
        return
    if kind == "text":
        yield from _colour(given.get("fill", ink), 1.0, alphas)
        yield _text(part.text or "", given, float(given.get("font-size", size)))
        return
    paths = {"line": _line, "polyline": _polyline, "polygon": _polyline, "circle": _circle, "rect": _rectangle}
    if kind not in paths:
        raise SottovoceError(f"<{kind}> in a drawing; PDF figures have lines, polygons, circles and text only")
    colour = given.get("stroke") or given.get("fill", ink)
    yield from _colour(colour, float(given.get("opacity", 1)), alphas)
    yield f"{given.get('stroke-width', '1')} w [{given.get('stroke-dasharray', '')}] 0 d"
    yield from paths[kind](given)
    yield "S" if "stroke" in given else "f"


def _colour(colour: str, opacity: float, alphas: dict[float, str]) -> Iterator[str]:
    red, green, blue, *rest = (int(pair, 16) / 255 for pair in re.findall("..", colour.removeprefix("#")))
    alpha = round(opacity * (rest[0] if rest else 1.0), 4)
    mixed = f"{red:.4g} {green:.4g} {blue:.4g}"
    yield f"{mixed} rg {mixed} RG /{alphas.setdefault(alpha, f'A{len(alphas)}')} gs"


def _text(text: str, given: dict[str, str], size: float) -> str:
    width = sum(WIDTHS.get(letter, 556) for letter in text) * size / 1000
    shift = {"middle": -width / 2, "end": -width}.get(given.get("text-anchor", ""), 0.0)
    x, y, turn = float(given.get("x", 0)), float(given.get("y", 0)), 0.0
    moved = re.fullmatch(r"translate\(([-\d.]+) ([-\d.]+)\) rotate\(([-\d.]+)\)", given.get("transform", ""))
    if moved:
        x, y, turn = x + float(moved[1]), y + float(moved[2]), math.radians(float(moved[3]))
    cos, sin = math.cos(turn), math.sin(turn)
    escaped = re.sub(r"([\\()])", r"\\\1", text)
    font = "B" if given.get("font-weight") == "bold" else "F"
    place = f"{cos:.4f} {sin:.4f} {sin:.4f} {-cos:.4f} {x + shift * cos:.2f} {y + shift * sin:.2f} Tm"
    return f"BT /{font} {size:g} Tf {place} ({escaped}) Tj ET"


def _line(given: dict[str, str]) -> Iterator[str]:
    yield f"{given['x1']} {given['y1']} m {given['x2']} {given['y2']} l"


def _polyline(given: dict[str, str]) -> Iterator[str]:
    points = [point.replace(",", " ") for point in given["points"].split()]
    yield " ".join(f"{point} {'l' if number else 'm'}" for number, point in enumerate(points))


def _circle(given: dict[str, str]) -> Iterator[str]:
    x, y, r = (float(given[key]) for key in ("cx", "cy", "r"))
    h = QUARTER * r
    yield f"{x + r:.2f} {y:.2f} m"
    for a, b in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        c, d = -b, a
        ends = (x + a * r + c * h, y + b * r + d * h, x + c * r + a * h, y + d * r + b * h, x + c * r, y + d * r)
        yield " ".join(f"{value:.2f}" for value in ends) + " c"


def _rectangle(given: dict[str, str]) -> Iterator[str]:
    yield " ".join(given[key] for key in ("x", "y", "width", "height")) + " re"
