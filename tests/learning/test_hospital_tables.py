"""Tables as hospitals write them: what `data inspect` says of each column, and that a run reads what it says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sottovoce.errors import InputError
from sottovoce.learning.columns import parse_columns
from sottovoce.learning.table_cells import read_cells
from sottovoce.learning.tables import read_table
from tests.cli.test_schemas import fits

HEADING = "Fall;geboren;Aufnahme;Entlassung;Größe;Kalium;Notiz;Klinik;Gewicht;leer;wieder"


@pytest.fixture
def export(tmp_path, monkeypatch):
    """Semicolons, decimal commas, latin-1, dates, missing cells, free text; one person in three has two rows."""
    monkeypatch.chdir(tmp_path)
    rng, rows = np.random.default_rng(0), [HEADING]
    for at in range(90):
        size = f"{rng.uniform(1.5, 2):.2f}".replace(".", ",") if at != 7 else ""
        potassium = f"{rng.uniform(3, 6):.1f}".replace(".", ",") if at != 50 else "n. b."
        weight = f"{rng.integers(1, 9)},{rng.integers(100, 999)}"
        born = f"{at % 28 + 1}.{at % 12 + 1}.{1940 + at % 60}"
        rows.append(
            f"F-{at % 60};{born};2025-03-{at % 27 + 1:02};2025-04-01;{size};{potassium};"
            f"hat Schmerzen {at};{'MÄX'[at % 3]};{weight};;{'ja' if at % 9 == 0 else 'nein'}"
        )
    (tmp_path / "export.csv").write_bytes("\r\n".join(rows).encode("latin-1"))
    return tmp_path


def test_every_column_is_used_or_dropped_with_a_reason(sotto, export):
    code, out, err = sotto("data inspect export.csv --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    fits(found, "data-inspect")
    used = {column["name"]: column for column in found["columns"]}
    assert set(used) == {"Größe", "Klinik", "Gewicht", "wieder"}
    assert used["Größe"]["missing_cells"] == 1
    assert 1.5 <= used["Größe"]["range"][0] < used["Größe"]["range"][1] <= 2
    assert used["Gewicht"]["range"][1] < 10, "no thousands"
    assert used["Klinik"]["categories"] == ["M", "X", "Ä"]
    assert found["decimal"] == ","
    said = {
        "Fall": "60 different words",
        "geboren": "years_until", "Aufnahme": "days_until", "Entlassung": "same in all rows",
        "Kalium": "'n. b.' is not a number", "Notiz": "free text", "leer": "no cells",
    }  # fmt: skip
    assert found["drop"] == list(found["reasons"]) == list(said)
    described = (export / "export.columns.toml").read_text()
    for name, words in said.items():
        assert words in found["reasons"][name]
        assert f"# {name!r} is dropped: {found['reasons'][name]}." in described


def test_repeated_people_are_counted(sotto, export):
    text = (export / "export.csv").read_bytes().replace(b"Fall;", b"patient_id;")
    (export / "export.csv").write_bytes(text)
    remarks = json.loads(sotto("data inspect export.csv --json")[1])["remarks"]
    assert any("30 of 60 values of patient_id" in remark for remark in remarks)


def test_dates_become_years_and_days(export):
    columns = [
        {"name": "geboren", "years_until": "2025-01-01", "range": [0, 100]},
        {"name": "Aufnahme", "days_until": "Entlassung", "range": [0, 100]},
        {"name": "wieder", "categories": ["nein", "ja"]},
    ]
    others = [name for name in HEADING.split(";") if name not in ("geboren", "Aufnahme", "wieder")]
    described = {"target": "wieder", "columns": columns, "drop": others}
    found = read_table(export / "export.csv", parse_columns(described, "here"))
    assert found.inputs[0].tolist() == pytest.approx([0.85, 0.31], abs=1e-3)  # born 1.1.1940; 1 March to 1 April
    assert found.clipped == 0
    columns[0]["years_until"] = "soon"
    with pytest.raises(InputError, match="row 1, column 'geboren'"):
        read_table(export / "export.csv", parse_columns(described, "here"))
    columns[0]["days_until"] = "2025-01-01"
    with pytest.raises(InputError, match="years_until and days_until"):
        parse_columns(described, "here")


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_marks_between_cells_and_decimal_commas(tmp_path, mark):
    path = tmp_path / "table.csv"
    path.write_text(mark.join("ab") + "\n" + mark.join(['"1,25"', "yes"]) + "\n" + mark.join(["1.25", "no"]))
    described = {
        "target": "b", "decimal": ",",
        "columns": [{"name": "a", "range": [0, 2]}, {"name": "b", "categories": ["no", "yes"]}],
    }  # fmt: skip
    assert read_cells(path)["a"].tolist() == ["1,25", "1.25"]
    with pytest.raises(InputError, match="row 2, column 'a'"):  # a point is no part of a number there
        read_table(path, parse_columns(described, "here"))


def test_numbers_that_may_be_thousands_are_not_guessed(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f'"{at},{100 + at}";{at};{at / 4};{at % 2}' for at in range(1, 40))
    (tmp_path / "table.csv").write_text("pay;row;age;again\n" + rows)
    reasons = json.loads(sotto("data inspect table.csv --json")[1])["reasons"]
    assert reasons.keys() == {"pay", "row"}
    assert "thousand" in reasons["pay"]
    assert "name rows" in reasons["row"]
