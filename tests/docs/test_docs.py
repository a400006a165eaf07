"""What the documentation says works. Examples in README and docs are doctests besides."""

from __future__ import annotations

import doctest
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import sottovoce
import sottovoce.algorithms
from sottovoce import algorithm, algorithm_names, metropolis, trace, train
from sottovoce.algorithms.registry import algorithm_specs
from sottovoce.run.sweep import expand_sweep
from sottovoce.support.config import Experiment
from tests.cli.lines import command_lines

ROOT = Path(__file__).parents[2]


NUMBER = re.compile(r"\d+(?:\.\d+)?")
FOUND_BY_TRAINING = re.compile(r"test accuracy|average model on|\d+ +\d+ +\d\.\d\d ")
"""Lines with figures that training or an attack ends with: rounding, and so the processor, moves them a little."""


def close(one: str, other: str, within: Callable[[str], float]) -> bool:
    """Whether two texts are the same but for numbers that lie `within` each other."""
    numbers = zip(NUMBER.findall(one), NUMBER.findall(other), strict=False)
    near = all(abs(float(a) - float(b)) <= within(a) for a, b in numbers)
    return NUMBER.sub("#", one) == NUMBER.sub("#", other) and near


def prints(shown: str, out: str) -> bool:
    """Whether a command printed what a page shows."""
    lines = out.splitlines()
    for at, line in enumerate(shown.splitlines()[: len(lines)]):
        if FOUND_BY_TRAINING.match(line) and close(" ".join(line.split()), " ".join(lines[at].split()), lambda _: 0.02):
            lines[at] = line
    how = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(shown, "\n".join([*lines, ""]), how)


def test_pages_are_compared_to_the_digit_but_where_something_was_trained():
    shown = "epsilon 4.13\ntest accuracy  0.6685\n"
    assert prints(shown, "epsilon 4.13\ntest accuracy 0.6701\n")
    assert not prints(shown, "epsilon 4.13\ntest accuracy 0.6401\n")
    assert not prints(shown, "epsilon 4.12\ntest accuracy 0.6685\n")
    assert not prints(shown, "epsilon 4.13\n")
    assert close('y="10.2"', 'y="10.3"', unit_of_the_last_digit)
    assert not close('y="10.2"', 'y="10.4"', unit_of_the_last_digit)


def unit_of_the_last_digit(number: str) -> float:
    """0.1 for 10.2, and a little more for binary fractions."""
    return 1.001 * 10.0 ** -len(number.partition(".")[2])


@pytest.fixture
def lazy(tmp_path, monkeypatch):
    """The file of docs/add-an-algorithm.md, in a folder that discovery looks at."""
    text = (ROOT / "docs" / "add-an-algorithm.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL).group(1)
    (tmp_path / "lazy.py").write_text(code)
    monkeypatch.setattr(sottovoce.algorithms, "__path__", [*sottovoce.algorithms.__path__, str(tmp_path)])
    algorithm_specs.cache_clear()
    yield
    algorithm_specs.cache_clear()
    sys.modules.pop("sottovoce.algorithms.lazy", None)


@pytest.mark.usefixtures("lazy")
def test_one_file_adds_an_algorithm():
    assert "lazy" in algorithm_names()
    built = algorithm("lazy", sigma=1.0, a=0.5, step_size=1.0)
    A, B, _ = trace(built, metropolis("path:2"), rounds=2).dense()
    np.testing.assert_allclose(A[2:, :2], [[-0.75, -0.25], [-0.25, -0.75]])
    np.testing.assert_allclose(A, B)
    assert train(built, metropolis("path:2"), np.zeros((2, 1)), lambda t, x: x, rounds=3).shape == (2, 1)


def test_the_run_of_the_readme_prints_what_it_says(sotto, tmp_path):
    shown = re.search(r"\$ sotto run recipes/digits.toml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    line = f"run {ROOT}/recipes/digits.toml --out {tmp_path} --set privacy.attackers=none"
    code, out, err = sotto(line)
    assert (code, err) == (0, "")
    ours, theirs = ([row.rstrip() for row in text.splitlines()] for text in (out, shown.group(1)))
    named = {row.split("  ")[0] for row in theirs}
    assert len(theirs) >= 5
    assert prints("\n".join(theirs), "\n".join(row for row in ours if row.split("  ")[0] in named))


def test_the_page_about_runs_lists_every_setting_and_no_other():
    text = (ROOT / "docs" / "run.md").read_text()
    for section, field in Experiment.model_fields.items():
        table = re.search(rf"\| `\[{section}\]` \|.*?\n\n", text, flags=re.DOTALL)
        if table is None:
            assert section in ("name", "seed", "noise", "noise_key", "secure_sum", "member", "about")
            continue
        rows = [row.split("|")[1] for row in table.group().splitlines()[2:] if row]
        listed = {key for row in rows for key in re.findall(r"`([a-z_]+)`", row)}
        assert listed == set(field.annotation.model_fields), section


def test_the_sweep_of_the_page_about_runs_is_one():
    text = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "run.md").read_text(), flags=re.DOTALL).group(1)
    names = [run.experiment.name for run in expand_sweep(tomllib.loads(text))]
    assert len(names) == 2 * 2 * 3 + 3
    assert "study/optimised,epsilon=4.0,seed=2" in names


def test_examples_import_from_the_package_itself():
    """All but a file that is added to the package."""
    imports = re.compile(r"^>>> (?:from|import) (sottovoce[.\w]+)", re.M)
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert [found for page in pages for found in imports.findall(page.read_text())] == []


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def shown_commands(page: str) -> list[str]:
    """Every `$ sotto ...` of a page, as words for a shell."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line.removeprefix("$ sotto ") for line in lines if line.startswith("$ sotto ")]


def test_the_page_about_commands_shows_every_command():
    assert {line.split()[0] for line in shown_commands("docs/commands.md")} == {
        line.split()[0] for line in command_lines()
    }


@pytest.mark.parametrize("page", ["docs/commands.md", pytest.param("docs/plan.md", marks=pytest.mark.slow)])
def test_commands_that_a_page_shows_work(page, sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for line in shown_commands(page):
        if line.split()[0] in ("demo", "predict"):  # test_demonstration.py and the page about tables run them
            continue
        code, out, _ = sotto("", *shlex.split(line))
        assert code == 0, line
        assert out


# --- what is typed on a page ---------------------------------------------------------------------------------------

TYPED = sorted(page for page in (ROOT / "docs").glob("*.md") if re.search('^```.* title="', page.read_text(), re.M))
TYPED += [ROOT / "docs" / "index.md"]
LONG = {"eight-hospitals": pytest.mark.slow}
BEFORE = ("make ", "source ")
"""Commands that set up what tests have already."""


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Fenced blocks of a page: language, the file that they are to be saved as, text."""
    for found in re.finditer(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', page.read_text(), flags=re.DOTALL | re.M):
        yield found[1], found[2] or "", found[3]


def typed(session: str) -> list[tuple[str, str]]:
    """Commands of a console block, each with what it is said to print."""
    return [(line, said) for line, said in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, flags=re.M)]


@pytest.mark.usefixtures("repeatable_keys")
@pytest.mark.parametrize("page", [pytest.param(page, marks=LONG.get(page.stem, ()), id=page.stem) for page in TYPED])
def test_commands_of_a_page_print_what_it_says(page, sotto, tmp_path, monkeypatch, capsys):
    """In the order of the page, with the files that it tells to save, in a folder where recipes are at hand."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    for language, name, text in blocks(page):
        if name:
            Path(name).write_text(text)
        for line, said in typed(text) if language == "console" else []:
            if line.startswith(BEFORE):
                assert not line.startswith("make ") or f"\n{line.split()[1]}:" in (ROOT / "Makefile").read_text(), line
                continue
            code, out, err = _run(line, sotto, capsys)
            refused = said.startswith("sotto: ")
            assert code in ((2, 3) if refused else (0,)), f"{line}: {err}"
            assert not said or prints(said, err if refused else out), f"{line}\n{out}"


def _run(line, sotto, capsys):
    """`sotto ...` or `python FILE`, in this process."""
    command, *words = shlex.split(line)
    assert command in ("sotto", "python"), line
    if command == "sotto":
        return sotto("", *words)
    runpy.run_path(words[0], run_name="__main__")
    return 0, *capsys.readouterr()


def test_tests_that_pages_name_are_there():
    written = "".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    for page in (ROOT / "docs").rglob("*.md"):
        for name in re.findall(r"`(test(?:_[a-z0-9]+){3,})`", page.read_text()):
            assert f"def {name}(" in written, f"{page.name}: {name}"


# --- pictures and the site -----------------------------------------------------------------------------------------

DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
DRAWING = runpy.run_path(str(PICTURES / "draw.py"))
DRAWN = DRAWING["PICTURES"]


@pytest.mark.parametrize("name", DRAWN)
def test_pictures_are_what_the_accountant_says(name):
    drawn, stored = DRAWN[name](), (PICTURES / name).read_text()
    assert close(drawn, stored, unit_of_the_last_digit), "run docs/pictures/draw.py"


def shades(drawn: str) -> np.ndarray:
    """Pictures of a gallery in grey, one a row: of two neighbours, line by line."""
    found = [int(level, 16) for level in re.findall(r'fill="#([0-9a-f]{2})[0-9a-f]{4}"/>', drawn)]
    return np.reshape(found, (-1, 64)).astype(float)


def test_the_picture_of_an_inversion_is_of_todays_attack():
    """Levels of grey may differ a little between processors; what noise hides is not compared."""
    found = DRAWING["inversions"]()
    drawn, stored = (shades(one) for one in (DRAWING["inversion"](found), (PICTURES / "inversion.svg").read_text()))
    assert drawn.shape == stored.shape == (2 * (1 + len(found)), 64)
    assert all(np.corrcoef(*pair)[0, 1] > 0.98 for pair in zip(drawn[:6], stored[:6], strict=True))
    told = re.search(r"at sigma 0.05 the correlation is ([0-9.]+) and ([0-9.]+)", (DOCS / "attacks.md").read_text())
    without, little, much = ([one for batch in each.batches for one in batch.correlations] for each in found.values())
    assert min(without) > 0.99
    assert little == pytest.approx([float(one) for one in told.groups()], abs=0.02)
    assert max(much) < 0.2


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation as a site; any warning, a page that no menu leads to or a broken link stops the building."""
    pytest.importorskip("mkdocs", reason="mkdocs not installed: pip install -e .[docs]")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    return folder


def test_a_page_that_no_menu_leads_to_stops_the_building():
    assert re.search(r"^    omitted_files: warn$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)


def test_the_site_asks_nobody_for_anything(site):
    """What a page loads lies beside it; links for readers may lead away."""
    loads = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?([^\"'\s>]+)", flags=re.I)
    pages = [*site.rglob("*.html")]
    assert len(pages) > 30
    for page in pages:
        for target in loads.findall(page.read_text()):
            assert not re.match(r"(https?:)?//", target), f"{page.name}: {target}"
            place = (page.parent / target.partition("#")[0].partition("?")[0]).resolve()
            assert target.startswith(("data:", "#")) or place.exists() or page.name == "404.html", f"{page}: {target}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet.name


def test_the_reference_has_every_public_name(site):
    raw = (site / "objects.inv").read_bytes()
    listed = {line.split()[0] for line in zlib.decompress(raw.split(b"\n", 4)[4]).decode().splitlines()}
    public = {name for names in (sottovoce._MODULE_OF | sottovoce._WITH_TORCH).values() for name in names}
    assert public - {found.rpartition(".")[2] for found in listed} == set()


def test_sessions_are_shown_as_sessions(site):
    page = (site / "api" / "graphs.html").read_text()
    assert '<span class="gp">&gt;&gt;&gt; </span>' in page
    assert "<blockquote>" not in page


def test_the_site_works_from_disk(site):
    """In a browser, without a server: search finds, nothing is asked for elsewhere, no script complains."""
    browsers = pytest.importorskip("playwright.sync_api", reason="playwright not installed")
    chromium = shutil.which("chromium") or pytest.skip("browser not found: chromium")
    asked, complaints = [], []
    with browsers.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((site / "api" / "graphs.html").as_uri())
        page.locator(".md-search__input").fill("spectral ga")  # the theme may complain of "spectral g"
        page.locator(".md-search__input").press_sequentially("p")
        page.wait_for_selector(".md-search-result__item", state="attached")
        assert "spectral" in page.text_content(".md-search-result__list").lower()
        browser.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
