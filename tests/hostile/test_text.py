"""Text: a byte-order mark is no part of it, and nothing that cannot be seen reaches a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from sottovoce import InputError
from sottovoce.core.graphs import graph
from sottovoce.learning.readers import File
from sottovoce.support.text import visible
from tests.hostile.mutations import SETTINGS

MARK = "\ufeff"
TRIANGLE = ("0 1", "1 2", "2 0")
HIDDEN = ("\x1b[2J", "\x07", "\x9b2J", "\u202eabc", "\u2066", "\u200b", MARK, "\u2028", "\x7f", "\udc80", "\x00", "\r")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_marked_triangle_is_a_triangle(ends, tmp_path):
    path = tmp_path / "edges.txt"
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_bytes(ends.join(TRIANGLE).encode(encoding))
        found = graph(f"file:{path}")
        assert (found.n, found.edges) == (3, 3)


@pytest.mark.parametrize("line", range(3))
@pytest.mark.parametrize("hidden", [MARK, "\u200b", "\x1b[1m", "\u202e"])
def test_a_mark_inside_a_file_is_refused(line, hidden, tmp_path):
    """Of files that were put together each may have one, and a triangle became a path of four nodes."""
    path, lines = tmp_path / "edges.txt", list(TRIANGLE)
    lines[line] = hidden + lines[line]
    path.write_text("# edges\n" + "\n".join(lines))
    with pytest.raises(InputError, match=rf"line {line + 2}: .* has characters that cannot be seen") as refusal:
        graph(f"file:{path}")
    assert str(refusal.value).isprintable()


def test_every_text_file_may_have_a_mark(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("try.toml").write_text(MARK + SETTINGS)
    assert sotto("--quiet run try.toml")[0] == 0
    for path in (*Path("runs/try").glob("*.json"), *Path("runs/try").glob("*.jsonl")):
        path.write_text(MARK + path.read_text())
    assert sotto("--quiet run runs/try/config.json")[0] == 0, "settings, and a finished run"
    assert sotto("--quiet compare runs/try")[0] == 0
    Path("table.csv").write_text(MARK + "a,b\n1,2\n")
    assert File(("table.csv",), "", "").csv(Path(), ("a", "b"), 1).tolist() == [[1.0, 2.0]]
    line = "account --graph ring:4 --rounds 2 --all-pairs --json --out pairs"
    first = sotto(line)[1]
    Path("pairs").write_text(MARK + Path("pairs").read_text())
    assert sotto(line)[1] == first


def test_one_place_reads_text_and_one_writes_to_terminals():
    """Reading with another encoding, or printing past `visible`, would be a second way."""
    reading = re.compile(r"\.read_text\(|utf-8-sig|json\.loads?\(|tomllib\.load")
    printing = re.compile(r"typer\.echo|[^_.\w]print\(|sys\.std(out|err)\.write")
    own = {
        "support/text.py",
        "support/config.py",
        "schemas/__init__.py",
        "support/limits.py",
        "report/page.py",
        "distributed/communication.py",
        "cli/output.py",
    }
    for path in (ROOT / "sottovoce").rglob("*.py"):
        name = str(path.relative_to(ROOT / "sottovoce"))
        code = re.sub(r'"""[\s\S]*?"""', "", path.read_text(encoding="utf-8"))
        if name not in own:
            assert not reading.search(code), name
        if name != "cli/output.py":
            assert not printing.search(code), name


@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
def test_what_cannot_be_seen_is_shown_as_an_escape(hidden):
    shown = visible(f"Mercy{hidden}Hill")
    assert shown.isprintable()
    assert shown.startswith("Mercy\\")
    assert visible("Charité 北京 naïve\u00a0x") == "Charité 北京 naïve\u00a0x"


@pytest.mark.parametrize("hidden", [part for part in HIDDEN if part not in ("\x00", "\udc80")], ids=ascii)
def test_no_command_prints_what_cannot_be_seen(hidden, sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("try.toml").write_text(SETTINGS)
    name = f"a{hidden}b"
    np.savez(f"{name}.npz", inputs=np.zeros((2, 2)), targets=np.array([name, name]))
    Path(f"{name}.txt").write_text("0 1\n1 2\n")
    lines = [
        ["graph", name], ["graph", f"file:{name}"], ["graph", f"file:{name}.txt"], ["run", name], ["compare", name],
        ["account", "--graph", "ring:4", "--view", name], ["run", "try.toml", "--set", f"name={name}"], [name],
        ["run", "try.toml", "--set", f"data.name=file:{name}.npz"], ["run", "try.toml", "--only", name], ["data", name],
    ]  # fmt: skip
    for line in lines:
        _, out, err = sotto("", *line)
        assert out.replace("\n", "").isprintable(), line
        assert err.replace("\n", "").isprintable(), line
        assert "unexpected" not in err, line


def test_labels_of_a_graph_that_a_terminal_cannot_encode_are_escaped(sotto, tmp_path, monkeypatch):
    (tmp_path / "edges.txt").write_text("Charité Hill\nHill Mercy\n")
    code, out, _ = sotto(f"account --graph file:{tmp_path}/edges.txt --view node:Hill --rounds 2 --json")
    assert code == 0
    assert json.loads(out)["labels"] == ["Charité", "Hill", "Mercy"]
    assert out.isascii()
