"""TOML that is written is read back as it was."""

from __future__ import annotations

import tomllib

import pytest

from sottovoce.support.text import to_toml

DOCUMENTS = [
    {},
    {"a": 1, "b": [1.5, -1e-30, 1e22], "c": True, "d": "two\nlines\n", "e": 'tab\t \x7f "quoted" \\ \u00e9 \U0001f600'},
    {"x": {"y": {"z": 1}}, "w": {"one": {}, "v": "0"}, "plain": "stands before tables"},
    {"edges": [["a", "b"], ["b", "c"]], "members": [{"name": "a", "more": {"k": 1}}, {"name": "b"}], "none": []},
    {"odd key": {"dotted.key": {"": "empty"}}, "'''": '"""\n'},
    {"text": "-----BEGIN-----\nabc=\n-----END-----\n", "ends in quotes": 'a"\n', "crlf": "a\r\nb\n"},
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_what_is_written_is_read_back(document):
    assert tomllib.loads(to_toml(document)) == document


def test_nothing_that_is_written_can_move_a_cursor_or_turn_letters_round():
    """Names of columns come from tables of others, and a file is looked at on a terminal."""
    hidden = "".join(map(chr, (0, 7, 27, 127, 0x9B, 0x200E, 0x202E, 0x2028, 0xE0001)))
    written = to_toml({"name": f"a{hidden}b", f"c{hidden}": 1, "é": "ü"})
    assert written.replace("\n", "").isprintable()
    assert tomllib.loads(written) == {"name": f"a{hidden}b", f"c{hidden}": 1, "é": "ü"}


def test_none_is_left_out():
    assert to_toml({"a": None, "b": {"c": None, "d": 1}}) == "[b]\nd = 1\n"
