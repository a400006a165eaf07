"""Files of code that are no files, or do harm when they are loaded: one line, and nothing outside is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.mutations import SETTINGS

OUTSIDE = "open('ran', 'w')\nclass Mine: pass\n"
FILES = {
    "a link to itself": (lambda mine: mine.symlink_to(mine), "there is no mine.py in "),
    "a link outside": (lambda mine: mine.symlink_to(mine.absolute().parents[1] / "outside.py"), " is outside "),
    "zeros": (lambda mine: mine.write_bytes(bytes(99)), "mine.py: SyntaxError: "),
    "an exit": (lambda mine: mine.write_text("raise SystemExit(0)"), "mine.py, line 1: SystemExit: 0; "),
    "a generator's end": (lambda mine: mine.write_text("raise GeneratorExit"), "mine.py, line 1: GeneratorExit: ; "),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_code_that_cannot_be_loaded_is_one_line(kind, sotto, tmp_path, monkeypatch):
    (tmp_path / "outside.py").write_text(OUTSIDE)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("own.toml").write_text(SETTINGS.replace("{sigma", '{name = "mine.py:Mine", sigma'))
    make, said = FILES[kind]
    make(Path("mine.py"))
    code, out, err = sotto("run own.toml")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert said in err
    assert "unexpected" not in err
    assert not Path("ran").exists()
