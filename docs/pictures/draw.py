"""The computed pictures of the documentation: `python docs/pictures/draw.py` draws them again.

A test draws them too and wants the same, so that no picture says what the accountant or an attack no longer does.
Those of the page (`page-*.png`) are of the demo: `python docs/pictures/draw.py runs/demo/report.html` takes them.
"""

from __future__ import annotations

import ast
import math
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

from scipy import sparse
from scipy.stats import norm

from sottovoce import Account, account, algorithm, metropolis, trace
from sottovoce.attacks.inversion import Inversion, attack_runs
from sottovoce.attacks.registry import AttackOptions
from sottovoce.core.graphs import graph
from sottovoce.privacy.gaussian_dp import mu_of
from sottovoce.privacy.rounding import round_up
from sottovoce.report.figures import Line, line_chart
from sottovoce.report.page_pdf import BROWSERS
from sottovoce.report.picture_gallery import gallery
from sottovoce.run.execute import run_experiment
from sottovoce.run.finished_run import open_run
from sottovoce.support.config import parse_experiment

DELTA = 1e-5
GREY, QUIET, BETWEEN, LOUD = "#808080", (86, 180, 233), (240, 228, 160), (213, 94, 0)
HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13" '
    'fill="#808080" role="img"><title>{title}</title>'
)


def account_of(graph: str, attacker: int, victims: Iterable[int], *, rounds: int, sigma: float = 4.0) -> Account:
    """What one node learns about some others by DP-D-SGD."""
    system = trace(algorithm("dp-d-sgd", sigma=sigma), metropolis(graph), rounds=rounds)
    return account(system, f"node:{attacker}", victims=tuple(victims))


def leak_by_distance() -> str:
    """Epsilon over hops on a ring, by kind of guarantee."""
    hops = list(range(1, 16))
    found = account_of("ring:30", 0, hops, rounds=40)
    kinds = {
        "any-training": "any training",
        "convex-training": "convex training",
        "fixed-streams": "fixed streams (averaging)",
    }
    series = [Line(name, hops, [found.of(u, kind).epsilon(DELTA) for u in hops]) for kind, name in kinds.items()]
    title = "What node 0 learns about others on a ring of 30, 40 rounds, sigma 4"
    return line_chart(series, x="hops from node 0", y="epsilon at delta 1e-5", title=title, y_range=(0.0, 7.5))


def leak_over_rounds() -> str:
    """Epsilon over rounds on a ring, by hops."""
    rounds = [5, 10, 20, 30, 45, 60]
    found = {T: account_of("ring:30", 0, (1, 2, 3, 5, 10), rounds=T) for T in rounds}

    def of(u: int, kind: str) -> list[float]:
        return [found[T].of(u, kind).epsilon(DELTA) for T in rounds]

    series = [Line("1 hop, or any training", rounds, of(1, "any-training"))]
    series += [Line(f"{hops} hops, convex training", rounds, of(hops, "convex-training")) for hops in (2, 3, 5, 10)]
    title = "The same over rounds"
    return line_chart(series, x="rounds", y="epsilon at delta 1e-5", title=title, y_range=(0.0, 10.0))


def what_epsilon_means() -> str:
    """How often the best guess between two data sets is right, over epsilon."""
    at = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 20.0]
    right = [100 * float(norm.cdf(mu_of(epsilon, DELTA) / 2)) for epsilon in at]
    guess = Line("best attack", at, right)
    coin = Line("a coin", at, [50.0] * len(at))
    title = "Of 100 guesses between two equally likely data sets, how many are right"
    return line_chart(
        [guess, coin],
        x="epsilon at delta 1e-5",
        y="right guesses of 100",
        title=title,
        log_x=True,
        y_range=(45.0, 100.0),
    )


def leak_on_a_graph() -> str:
    """The Florentine families around the Medici, coloured by what the Medici learn."""
    families = graph("florentine")
    labels = list(families.labels or ())
    centre = labels.index("Medici")
    others = [u for u in range(families.n) if u != centre]
    found = account_of("florentine", centre, others, rounds=30)
    hops = hops_from(families.adjacency, centre)
    places = around(families.adjacency, hops, centre)
    parts = [HEAD.format(width=700, height=470, title="What the Medici learn about each family")]
    row, column = families.adjacency.nonzero()
    for u, v in zip(row.tolist(), column.tolist(), strict=True):
        if u < v:
            (a, b), (c, d) = places[u], places[v]
            parts.append(f'<line x1="{a:.0f}" y1="{b:.0f}" x2="{c:.0f}" y2="{d:.0f}" stroke="#80808080"/>')
    epsilons = {u: found.of(u, "convex-training").epsilon(DELTA) for u in others}
    least, most = min(epsilons.values()), max(epsilons.values())
    for u, (x, y) in places.items():
        share = 1.0 if u == centre else (epsilons[u] - least) / (most - least)
        colour = "#404040" if u == centre else mixed(share)
        word = "listens" if u == centre else round_up(epsilons[u], 2)
        ink = "#ffffff" if u == centre else "#000000"
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="25" fill="{colour}" stroke="{GREY}"/>')
        parts.append(f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle" fill="{ink}">{word}</text>')
        parts.append(f'<text x="{x:.0f}" y="{y + 41:.0f}" text-anchor="middle">{labels[u]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def hops_from(adjacency: sparse.csr_array, centre: int) -> list[int]:
    """Hops from a node to every other."""
    return sparse.csgraph.shortest_path(adjacency, unweighted=True, indices=centre).astype(int).tolist()


def around(adjacency: sparse.csr_array, hops: list[int], centre: int) -> dict[int, tuple[float, float]]:
    """Nodes on circles around one of them by hops, each near those it hears on the circle within."""
    angles, places = {centre: 0.0}, {centre: (450.0, 190.0)}
    for ring in range(1, max(hops) + 1):
        here = [u for u in range(len(hops)) if hops[u] == ring]
        if ring > 1:
            here.sort(key=lambda u: toward(adjacency, angles, hops, u))
        wanted = [2 * math.pi * k / len(here) for k in range(len(here))]
        if ring > 1:
            wanted = spread([toward(adjacency, angles, hops, u) for u in here], 0.62 / ring)
        for u, angle in zip(here, wanted, strict=True):
            angles[u] = angle
            places[u] = (450 + 114 * ring * math.cos(angle), 190 + 78 * ring * math.sin(angle))
    return places


def toward(adjacency: sparse.csr_array, angles: dict[int, float], hops: list[int], u: int) -> float:
    """The direction of those whom a node hears on the circle within."""
    within = [v for v in adjacency[[u]].indices.tolist() if hops[v] == hops[u] - 1]
    x, y = (sum(turn(angles[v]) for v in within) for turn in (math.cos, math.sin))
    return math.atan2(y, x) % (2 * math.pi)


def spread(angles: list[float], apart: float) -> list[float]:
    """Sorted angles, pushed apart where they are too near."""
    found = list(angles)
    for _ in range(50):
        for k in range(1, len(found)):
            lack = apart - (found[k] - found[k - 1])
            if lack > 0:
                found[k - 1], found[k] = found[k - 1] - lack / 2, found[k] + lack / 2
    return found


def mixed(share: float) -> str:
    """From quiet to loud, told apart by colour-blind readers."""
    low, high, part = (QUIET, BETWEEN, 2 * share) if share < 0.5 else (BETWEEN, LOUD, 2 * share - 1)
    return "#" + "".join(f"{round(a + part * (b - a)):02x}" for a, b in zip(low, high, strict=True))


def one_round() -> str:
    """The three parts of a gossip round at four nodes."""
    parts = [HEAD.format(width=780, height=250, title="A round: step and add noise, speak, average")]
    steps = (
        ("1. step on your own data, add noise", "noise"),
        ("2. say your model to your neighbours", "speak"),
        ("3. average what you hear", "average"),
    )
    for panel, (caption, kind) in enumerate(steps):
        left = 260 * panel
        parts.append(f'<text x="{left + 125}" y="238" text-anchor="middle">{caption}</text>')
        parts += square(left, kind)
    return "\n".join([*parts, "</svg>"]) + "\n"


def square(left: int, kind: str) -> list[str]:
    """Four nodes on a ring, in one of the three parts."""
    at = [(left + 65, 60), (left + 185, 60), (left + 185, 165), (left + 65, 165)]
    models = (0.0, 0.4, 1.0, 0.6)
    if kind == "average":
        models = tuple((models[k - 1] + models[k] + models[(k + 1) % 4]) / 3 for k in range(4))
    line = 'stroke="#d55e00" stroke-width="3" stroke-dasharray="7 5"' if kind == "speak" else 'stroke="#80808080"'
    parts = []
    for k in range(4):
        (a, b), (c, d) = at[k], at[(k + 1) % 4]
        parts.append(f'<line x1="{a}" y1="{b}" x2="{c}" y2="{d}" {line}/>')
    for k, (x, y) in enumerate(at):
        parts.append(f'<circle cx="{x}" cy="{y}" r="20" fill="{mixed(models[k])}" stroke="{GREY}"/>')
        parts.append(f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="#000000">x{k}</text>')
        if kind == "noise":
            beside = y - 30 if k < 2 else y + 40
            parts.append(f'<text x="{x}" y="{beside}" text-anchor="middle" fill="#d55e00">+ noise</text>')
    return parts


def rooms() -> str:
    """The rooms of the package, the highest first, each with the first sentence of its docstring."""
    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    parts = [HEAD.format(width=780, height=34 * len(layers) + 46, title="The rooms of the package and their layers")]
    for number, layer in enumerate(layers):
        names = [name.strip().removeprefix("sottovoce.") for name in layer.split("|")]
        shown = [name for name in names if not name.startswith("_")]
        y = 12 + 34 * number
        width = 236 / len(shown) - 4 * (len(shown) - 1)
        for place, name in enumerate(shown):
            x = 12 + place * (width + 8)
            parts.append(
                f'<rect x="{x:g}" y="{y}" width="{width:g}" height="26" rx="4" fill="#56b4e940" stroke="{GREY}"/>'
            )
            parts.append(f'<text x="{x + width / 2:g}" y="{y + 18}" text-anchor="middle">{name}</text>')
        about = " | ".join(escape(purpose(root / "sottovoce" / name)) for name in shown)
        parts.append(f'<text x="266" y="{y + 18}" font-size="12">{about}</text>')
    bottom = 34 * len(layers) + 30
    parts.append(f'<text x="12" y="{bottom}" font-size="12">Each room may import from the rooms below it.</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def purpose(place: Path) -> str:
    """What a room is for, from the first line of its docstring."""
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
    return docstring.partition("\n")[0].rstrip(".").replace("`", "")


INVERTED = {"without noise": None, "sigma 0.05": 0.05, "sigma 1": 1.0}
NOISE_KEY = "0534d7cd72bc5000ac3f20fa8fb9d89c"


def inversions() -> dict[str, Inversion]:
    """What node 0 makes of first messages in the run of docs/get-started.md, at three sizes of noise."""
    page = (Path(__file__).parents[1] / "get-started.md").read_text()
    written = re.search(r'```toml title="one-row.toml"\n(.*?)```', page, re.DOTALL)
    assert written is not None
    settings, found = {**tomllib.loads(written[1]), "noise_key": NOISE_KEY}, {}
    with tempfile.TemporaryDirectory() as place:
        for number, (name, sigma) in enumerate(INVERTED.items()):
            noisy = settings["algorithm"] | ({} if sigma is None else {"name": "dp-d-sgd", "sigma": sigma})
            folder = Path(place) / str(number)
            run_experiment(parse_experiment(settings | {"algorithm": noisy}), folder)
            found[name] = attack_runs([open_run(folder)], AttackOptions(attacker=0))
    return found


def inversion(found: dict[str, Inversion]) -> str:
    """Two neighbours' digits, and below them what was made of their messages."""
    rows = {name: one.pictures()["found"] for name, one in found.items()}
    first = next(iter(found.values()))
    return gallery({"a neighbour's row": first.pictures()["batches"], **rows}, first.picture_shape)


SCREENS = {
    "page-wide.png": (1280, 900, "light", "#who"),
    "page-dark.png": (1280, 900, "dark", "#attacks"),
    "page-phone.png": (390, 844, "light", "header"),
}
"""How the page is shown: width, height, colours, and what stands at the top."""


def take_screens(page: Path, folder: Path) -> None:
    """Pictures of a page in a browser."""
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, BROWSERS)))
    above = "c => c.getBoundingClientRect().height * (getComputedStyle(c).position === 'sticky')"
    with sync_playwright() as started:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        running = started.chromium.launch(executable_path=browser, args=sandbox)
        for name, (width, height, colours, top) in SCREENS.items():
            shown = running.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
            shown.goto(page.resolve().as_uri())
            hidden = shown.locator("#controls").evaluate(above)
            shown.locator(top).evaluate(f"place => scrollTo(0, place.offsetTop - {hidden} - 32)")
            shown.screenshot(path=folder / name)


PICTURES = {
    "rooms.svg": rooms,
    "one-round.svg": one_round,
    "leak-on-a-graph.svg": leak_on_a_graph,
    "leak-by-distance.svg": leak_by_distance,
    "leak-over-rounds.svg": leak_over_rounds,
    "what-epsilon-means.svg": what_epsilon_means,
}

if __name__ == "__main__":
    here = Path(__file__).parent
    for name, draw in PICTURES.items():
        (here / name).write_text(draw())
    (here / "inversion.svg").write_text(inversion(inversions()))
    for page in sys.argv[1:]:
        take_screens(Path(page), here)
