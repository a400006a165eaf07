"""Tables that somebody made to stop a machine, or to deceive a terminal: one line, at once."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sottovoce.learning.table_cells import MOST_COLUMNS
from sottovoce.support import limits


def _wide(path: Path) -> None:
    width = 10 * MOST_COLUMNS
    path.write_text(f"{','.join(f'c{column}' for column in range(width))}\n{','.join(width * '1')}\n")


def _tall(path: Path) -> None:
    path.write_text("a,b\n" + 100_000 * "1,0\n")


def _unfolding(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as file:
        np.lib.format.write_array(file, np.zeros(2_000_000))


def _packed(path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"a": np.zeros(2_000_000), "b": np.zeros(2_000_000)}), path)


TABLES = {
    "wide.csv": (_wide, "when it is read, takes about"),
    "tall.csv": (_tall, "when it is read, takes about"),
    "unfolding.npz": (_unfolding, "16.0 MB unpacked, takes about 32.0 MB of memory"),
    "packed.parquet": (_packed, "when it is read, takes about"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_too_large_is_refused_before_it_is_read(name, sotto, tmp_path, monkeypatch):
    write, found = TABLES[name]
    write(tmp_path / name)
    monkeypatch.setattr(limits, "free_memory", lambda: 2e7)
    monkeypatch.setattr(limits, "LITTLE_SHARE", 0.0)
    begun = time.process_time()
    code, out, err = sotto("data inspect", str(tmp_path / name))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert found in err
    assert time.process_time() - begun < 10
    assert not list(tmp_path.glob("*.toml"))


def test_a_heading_of_a_million_columns_is_refused_at_once(sotto, tmp_path):
    _wide(tmp_path / "wide.csv")
    begun = time.process_time()
    code, out, err = sotto("data inspect", str(tmp_path / "wide.csv"))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "wide.csv: 1,000,000 columns; a table has at most 100,000" in err
    assert time.process_time() - begun < 10
