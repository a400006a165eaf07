"""Line charts as plain SVG, for light and dark ground; series differ by dashes and marks as well as by colour.

>>> chart = line_chart([Line("a", [1.0, 2.0], [0.5, 0.7])], x="round", y="accuracy", title="Training")
>>> chart.startswith("<svg") and chart.count("<polyline") == 1
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np

from sottovoce.support.config import Document
from sottovoce.support.text import JSON

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777", "#a0522d", "#5b4ea0", "#7a8b00")
"""Distinct for colour-blind readers (after Okabe and Ito), and visible on white and on black."""

DASHES = ("", "6 3", "2 2", "8 2 2 2", "1 3")
MILLIMETRE = 72 / 25.4
"""Points that it has."""

PANEL = 10
"""So many lines differ by colour and dashes; more are drawn in several figures."""


@dataclass(frozen=True)
class Line:
    """Points of one series; what lies within `spread` of them, or between the pairs of `ends`, is drawn as a band."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    ends: Sequence[tuple[float, float]] | None = None

    @property
    def band(self) -> list[tuple[float, float]]:
        """From where to where the band reaches at each point; without one, the points alone."""
        wide = self.spread or [0.0] * len(self.y)
        return list(self.ends or [(y - w, y + w) for y, w in zip(self.y, wide, strict=True)])


@dataclass(frozen=True)
class Layout:
    """Where the parts of a drawing are. The legend is beside it, or, where `legend` is 0, a line for each below it."""

    width: float = 780
    height: float = 380
    left: float = 64
    bottom: float = 48
    top: float = 34
    font: float = 12
    legend: float = 250

    @staticmethod
    def for_paper(millimetres: float, lines: int) -> Layout:
        """A figure as wide as a column, in points: its text is of the size of captions, which say what its title would.

        >>> round(Layout.for_paper(85, lines=3).width)
        241
        """
        width = millimetres * MILLIMETRE
        return Layout(width, 0.62 * width + 12 * lines + 26, 36, 26 + 12 * lines, 6, 8, 0)

    @property
    def size(self) -> str:
        """What makes a drawing for paper as wide as it is meant to be."""
        return "" if self.legend else f'width="{self.width:.2f}pt" height="{self.height:.2f}pt" '

    @property
    def letter(self) -> float:
        """The width of a letter, on average."""
        return 0.55 * self.font

    def of_line(self, number: int) -> tuple[float, float]:
        """Where its entry in the legend begins."""
        if self.legend:
            return self.width - self.legend + 14, self.top + 8 + 18 * number
        return self.left, self.height - self.bottom + 30 + 12 * number


SCREEN = Layout()


@dataclass(frozen=True)
class Figure:
    """Lines over an axis, with a caption; `stem` is the name of its file, `y_range` what the scale has to show."""

    stem: str
    caption: str
    series: Sequence[Line]
    x: str
    y: str
    y_range: tuple[float, float]
    log_x: bool = False
    log_y: bool = False

    def drawn(self, width: float | None = None) -> str:
        """As SVG, for screens or as so many millimetres of a paper."""
        layout = SCREEN if width is None else Layout.for_paper(width, len(self.series))
        return line_chart(
            self.series, x=self.x, y=self.y, title=self.caption, log_x=self.log_x, log_y=self.log_y,
            y_range=self.y_range, layout=layout,
        )  # fmt: skip


def points_of(lines: Sequence[Line], x: str = "x", y: str = "y") -> list[dict[str, JSON]]:
    """Every point that is drawn, with where its band reaches."""
    return [
        {"line": line.name, x: at, y: value, "low": low, "high": high}
        for line in lines
        for at, value, (low, high) in zip(line.x, line.y, line.band, strict=True)
    ]


def over_seeds(
    runs: Sequence[Sequence[Document]], pick: Callable[[Document], float]
) -> tuple[list[float], list[float]]:
    """Of a figure in the lines of metrics of runs with other seeds: mean and sample deviation, line by line."""
    length = min(map(len, runs))
    values = np.array([[pick(line) for line in lines[:length]] for lines in runs], dtype=float)
    spread = values.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(length)
    return values.mean(axis=0).tolist(), spread.tolist()


def panels(
    stem: str,
    caption: str,
    series: Sequence[Line],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    most: float = math.inf,
) -> list[Figure]:
    """A chart of all series; of more than one can tell apart several, on the same scale. Nothing ends above `most`.

    With `log_y` what is not positive is left out.
    """
    finite = _heights(series, log_y)
    if not finite:
        return []
    parts = [series[at : at + PANEL] for at in range(0, len(series), PANEL)]
    found = []
    for number, part in enumerate(parts, 1):
        which = f" ({number} of {len(parts)})" if len(parts) > 1 else ""
        y_range = min(finite), min(max(finite), most)
        name = stem if number == 1 else f"{stem}-{number}"
        found.append(Figure(name, caption + which, part, x, y, y_range, log_x, log_y))
    return found


@dataclass(frozen=True)
class Axis:
    """From values to positions in the drawing."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False
    whole: bool = False

    def __call__(self, value: float) -> float:
        value = max(value, self.low / 2) if self.log else value
        low, high, value = (math.log10(part) if self.log else part for part in (self.low, self.high, value))
        share = (value - low) / ((high - low) or 1.0)
        return self.start + min(max(share, -0.02), 1.02) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Round numbers, about five."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            every = [step * 10.0**power for power in range(first, last + 1) for step in (1, 2, 5)]
            within = [value for value in every if self.low <= value * 1.0001 and value <= self.high * 1.0001]
            return within if len(within) <= 7 else [value for value in within if f"{value:e}"[0] == "1"]
        span = (self.high - self.low) or 1.0
        power = 10.0 ** math.floor(math.log10(span / 4))
        step = next(part * power for part in (1, 2, 5, 10) if span / (part * power) <= 6)
        step = max(1.0, step) if self.whole else step
        first = math.ceil(self.low / step - 1e-9)
        return [count * step for count in range(first, math.floor(self.high / step + 1e-9) + 1)]


def line_chart(
    series: Sequence[Line],
    *,
    x: str,
    y: str,
    title: str,
    log_x: bool = False,
    log_y: bool = False,
    y_range: tuple[float, float] | None = None,
    layout: Layout = SCREEN,
) -> str:
    """A chart of all series with axes, grid and legend."""
    across = [value for one in series for value in one.x]
    longest = math.ceil(46 + layout.letter * max(len(one.name) for one in series))
    right, floor = layout.width - (layout.legend or 8), layout.height - layout.bottom
    width = layout.width + (max(0, longest - layout.legend) if layout.legend else 0)
    up = _heights(series, log_y)
    low, high = y_range or (min(up), max(up))
    margin = 0.0 if log_y else 0.05 * (high - low or 1.0)
    horizontal = Axis(min(across), max(across), layout.left, right, log_x, all(float(at).is_integer() for at in across))
    vertical = Axis(low - margin, high + margin, floor, layout.top, log_y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {layout.size}viewBox="0 0 {width:g} {layout.height:g}" '
        f'font-family="sans-serif" font-size="{layout.font:g}" fill="{"#808080" if layout.legend else "#404040"}" '
        f'role="img"><title>{escape(title)}</title>',
        *_frame(horizontal, vertical, x, y, layout),
    ]
    if layout.legend:
        parts.append(f'<text x="{layout.left}" y="18" font-size="14" font-weight="bold">{escape(title)}</text>')
    for number, one in enumerate(series):
        parts += _series(one, number, horizontal, vertical, layout)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _heights(series: Sequence[Line], log_y: bool) -> list[float]:
    """All values that can be drawn, and the ends of their bands."""
    values = [value for one in series for point, band in zip(one.y, one.band, strict=True) for value in (point, *band)]
    return [value for value in values if math.isfinite(value) and (value > 0 or not log_y)]


def _frame(horizontal: Axis, vertical: Axis, x: str, y: str, layout: Layout) -> list[str]:
    right, floor, top, left, high = horizontal.stop, vertical.start, layout.top, layout.left, layout.font
    parts = []
    for value in horizontal.ticks():
        at = horizontal(value)
        parts.append(f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{floor}" stroke="#80808040"/>')
        parts.append(f'<text x="{at:.1f}" y="{floor + high + 4}" text-anchor="middle">{value:g}</text>')
    for value in vertical.ticks():
        at, label = vertical(value), f"{value:.0e}" if vertical.log and value < 0.01 else f"{round(value, 10):g}"
        parts.append(f'<line x1="{left}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" stroke="#80808040"/>')
        parts.append(f'<text x="{left - high / 2:g}" y="{at + high / 3:.1f}" text-anchor="end">{label}</text>')
    across, below = (left + right) / 2, floor + 2 * high + (16 if layout.legend else 6)
    up, beside = (top + floor) / 2, high + (4 if layout.legend else 0)
    parts.append(f'<text x="{across:.1f}" y="{below:g}" text-anchor="middle">{escape(x)}</text>')
    parts.append(
        f'<text transform="translate({beside:g} {up:.1f}) rotate(-90)" text-anchor="middle">{escape(y)}</text>'
    )
    return parts


def _series(one: Line, number: int, horizontal: Axis, vertical: Axis, layout: Layout) -> list[str]:
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
    finite = [at for at, value in enumerate(one.y) if math.isfinite(value) and (value > 0 or not vertical.log)]
    points = [(horizontal(one.x[index]), vertical(one.y[index])) for index in finite]
    parts = []
    if (one.spread is not None or one.ends is not None) and finite:
        above = [(horizontal(one.x[at]), vertical(one.band[at][1])) for at in finite]
        below = [(horizontal(one.x[at]), vertical(one.band[at][0])) for at in reversed(finite)]
        parts.append(f'<polygon points="{_points([*above, *below])}" fill="{colour}" opacity="0.18"/>')
    style = f'stroke="{colour}" stroke-width="{layout.font / 6:g}" stroke-dasharray="{dash}"'
    parts.append(f'<polyline points="{_points(points)}" fill="none" {style}/>')
    if len(points) <= 12:
        parts += [
            f'<circle cx="{left:.1f}" cy="{top:.1f}" r="{0.29 * layout.font:g}" fill="{colour}"/>'
            for left, top in points
        ]
    left, top = layout.of_line(number)
    parts.append(f'<line x1="{left}" y1="{top}" x2="{left + 26}" y2="{top}" {style}/>')
    parts.append(f'<text x="{left + 32}" y="{top + layout.font / 3}">{escape(one.name)}</text>')
    return parts


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
