"""Tables: cells become numbers by public columns alone, and what does not fit is said with its row and column."""

from __future__ import annotations

import importlib.util
import tomllib

import numpy as np
import pytest

from sottovoce.errors import InputError
from sottovoce.learning.columns import columns_text, guess_columns, parse_columns, read_all_cells
from sottovoce.learning.tables import join_tables, read_table, table_dataset

COLUMNS = """
target = "again"
drop = ["patient"]
missing_words = ["NA"]

[[columns]]
name = "age"
range = [20, 100]
missing = 40

[[columns]]
name = "ward"
categories = ["east", "west", "other"]
unknown = "other"
missing = "west"

[[columns]]
name = "again"
categories = ["no", "yes"]
"""

CSV = '''patient,again,age,ward
"Doe, J",yes,60,east
"Roe ""R""",no,20,west
3,no,,cellar
4,yes,120.5,
5,yes,NA,other
6,no,-3, east
'''

ROWS = [[0.5, 1, 0, 0], [0, 0, 1, 0], [0.25, 0, 0, 1], [1, 0, 1, 0], [0.25, 0, 0, 1], [0, 1, 0, 0]]


def columns(text: str = COLUMNS, **changes):
    return parse_columns({**tomllib.loads(text), **changes}, "here")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    return path


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_cells_become_numbers_by_their_columns(tmp_path, mark):
    path = tmp_path / "table.csv"
    path.write_bytes((mark + CSV).replace("\n", "\r\n").encode())
    found = read_table(path, columns())
    np.testing.assert_array_equal(found.inputs, np.array(ROWS, dtype=np.float32))
    assert found.targets.tolist() == [1, 0, 0, 1, 1, 0]
    assert (found.inputs.dtype, found.targets.dtype, found.clipped) == (np.float32, np.int64, 2)


def test_scaled_from_minus_one_to_one(table):
    found = read_table(table, columns(scale_to=[-1, 1]))
    np.testing.assert_array_equal(found.inputs[:, 0], [0, -1, -0.5, 1, -0.5, -1])
    np.testing.assert_array_equal(found.inputs[:, 1:], np.array(ROWS)[:, 1:])


def test_a_target_may_be_a_number(table):
    text = COLUMNS.replace('target = "again"', 'target = "age"').replace("missing = 40\n", "")
    table.write_text(CSV.replace("3,no,,", "3,no,36,").replace("NA", "84"))
    found = read_table(table, columns(text))
    assert found.targets.tolist() == pytest.approx([0.5, 0, 0.2, 1, 0.8, 0])
    assert (found.inputs.shape, found.targets.dtype, found.clipped) == ((6, 5), np.float32, 2)


def test_a_row_becomes_the_same_whatever_the_others_are(table, tmp_path):
    heading, *lines = CSV.splitlines()
    for number, line in enumerate(lines):
        alone = tmp_path / "alone.csv"
        alone.write_text(f"{heading}\n{line}\n")
        np.testing.assert_array_equal(read_table(alone, columns()).inputs, np.array(ROWS[number : number + 1]))


def test_all_formats_give_the_same_rows(table, tmp_path):
    wanted = read_table(table, columns())
    words = {"again": ["yes", "no", "no", "yes", "yes", "no"], "ward": ["east", "west", "cellar", "", "other", "east"]}
    ages = [60.0, 20.0, np.nan, 120.5, np.nan, -3.0]
    np.savez(tmp_path / "table.npz", age=ages, **{name: np.array(cells) for name, cells in words.items()})
    found = read_table(tmp_path / "table.npz", columns())
    np.testing.assert_array_equal(found.inputs, wanted.inputs)
    np.testing.assert_array_equal(found.targets, wanted.targets)
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install -e .[parquet]")
    parquet = pytest.importorskip("pyarrow.parquet")
    cells = {
        "patient": list(range(6)), "age": [None if np.isnan(age) else age for age in ages],
        "again": words["again"], "ward": [word or None for word in words["ward"]],
    }  # fmt: skip
    parquet.write_table(pyarrow.table(cells), tmp_path / "table.parquet")
    found = read_table(tmp_path / "table.parquet", columns())
    np.testing.assert_array_equal(found.inputs, wanted.inputs)
    np.testing.assert_array_equal(found.targets, wanted.targets)


def test_numbers_and_truth_values_may_be_categories(tmp_path):
    described = [{"name": "t", "categories": ["false", "true"]}, {"name": "n", "categories": ["1", "2.5"]}]
    np.savez(tmp_path / "table.npz", t=np.array([True, False]), n=np.array([2.5, 1.0]))
    found = read_table(tmp_path / "table.npz", parse_columns({"target": "t", "columns": described}, "here"))
    assert (found.targets.tolist(), found.inputs.tolist()) == ([1, 0], [[0, 1], [1, 0]])


def test_parquet_without_its_package_is_refused(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("sottovoce.errors.find_spec", lambda name: None if name == "pyarrow" else found(name))
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"sottovoce\[parquet\]"):
        read_table(tmp_path / "table.parquet", columns())


MISFITS = [
    ("60,east", "sixty,east", "table.csv, row 1, column 'age': 'sixty'; a finite number is needed here"),
    ("60,east", "nan,east", "row 1, column 'age': 'nan'; a finite number is needed here"),
    ("120.5,", "1e999,", "row 4, column 'age': '1e999'; a finite number is needed here"),
    ("3,no", "3,maybe", "row 3, column 'again': 'maybe'; categories are no, yes; correct it, or leave that row out"),
    (
        "4,yes",
        "4,",
        "row 4, column 'again': ''; no replacement for a missing cell is given; fill it, or leave that row out",
    ),
    (
        "cellar",
        200_000 * "c",
        "column 'ward', row 3: 200,000 characters, 'cccccccccccccccccccc' first; a cell has at most",
    ),
    ("60,east", "60", "row 1: 3 of 4 cells"),
    ("age,", "years,", "no column 'age'; a table must have exactly the columns"),
    ("patient,", "person,", "column 'person'; a table must have exactly the columns"),
    ("age,ward", "age,age", "two columns called 'age'"),
    ("patient,", ",", "a column without a name"),
    ('"Roe ""R"""', '"Roe', "table.csv, row 2: unexpected end of data; a .csv file is needed"),
    ("east", "\udc81", "a .csv file is needed"),
]


@pytest.mark.parametrize(("old", "new", "reason"), MISFITS, ids=[reason for *_, reason in MISFITS])
def test_what_does_not_fit_is_named(table, old, new, reason):
    table.write_bytes(CSV.replace(old, new, 1).encode(errors="surrogateescape"))
    with pytest.raises(InputError) as refusal:
        read_table(table, columns())
    assert reason in str(refusal.value)


def test_a_file_of_a_spreadsheet_where_semicolons_are_between_cells(table):
    table.write_text(CSV.replace(",", ";"))
    found = read_table(table, columns())
    np.testing.assert_array_equal(found.inputs, np.array(ROWS, dtype=np.float32))


def test_a_long_cell_of_a_column_that_is_dropped_disturbs_nobody(table):
    table.write_text(CSV.replace("3,no", f"{200_000 * 'x'},no"))
    assert len(read_table(table, columns())) == 6


WRONG_ARRAYS = [
    ("age", np.array([True, False]), "row 1, column 'age': True; a finite number is needed here"),
    ("age", np.array([1.0, np.inf]), "row 2, column 'age': inf; a finite number is needed here"),
    ("age", np.array(["60", "sixty"]), "row 2, column 'age': 'sixty'; a finite number is needed here"),
    ("age", np.array([1j, 2]), "column 'age' holds complex; columns hold numbers, words or truth values"),
    ("age", np.array(["2020-01-01"] * 2, dtype="M8[D]"), "column 'age' holds date;"),
    ("age", np.ones((2, 1)), "column 'age' of shape (2, 1); a column has one value for each row"),
    (
        "ward",
        np.array(["east"]),
        "column 'ward' has 1 of 2 cells",
    ),
    ("again", np.array([0, 1]), "row 1, column 'again': 0; categories are no, yes; correct it, or leave that row out"),
]


@pytest.mark.parametrize(("name", "array", "reason"), WRONG_ARRAYS, ids=[reason for *_, reason in WRONG_ARRAYS])
def test_arrays_that_do_not_fit_are_named(tmp_path, name, array, reason):
    right = {"age": np.array([60.0, 20.0]), "ward": np.array(["east", "west"]), "again": np.array(["yes", "no"])}
    np.savez(tmp_path / "table.npz", **{**right, name: array})
    with pytest.raises(InputError) as refusal:
        read_table(tmp_path / "table.npz", columns())
    assert reason in str(refusal.value)


def test_parquet_columns_that_do_not_fit_are_named(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install -e .[parquet]")
    parquet = pytest.importorskip("pyarrow.parquet")
    right = {"age": [60.0, 20.0], "ward": ["east", "west"], "again": ["yes", "no"]}
    wrong = {
        "row 2, column 'again': ''; no replacement for a missing cell is given": {"again": ["yes", None]},
        "row 1, column 'age': 'true'; a finite number is needed here": {"age": [True, False]},
        "row 2, column 'age': 'x'; a finite number is needed here": {"age": ["1", "x"]},
        "column 'age' of shape (2, 1)": {"age": [[1.0], [2.0]]},
        "column 'ward', row 1: 2,000 characters": {"ward": [2000 * "w", "west"]},
    }
    for reason, change in wrong.items():
        parquet.write_table(pyarrow.table({**right, **change}), tmp_path / "table.parquet")
        with pytest.raises(InputError) as refusal:
            read_table(tmp_path / "table.parquet", columns())
        assert reason in str(refusal.value)
    twice = pyarrow.table(right).rename_columns(["age", "age", "again"])
    parquet.write_table(twice, tmp_path / "table.parquet")
    with pytest.raises(InputError, match="two columns called 'age'"):
        read_table(tmp_path / "table.parquet", columns())


def test_a_missing_cell_is_refused_unless_something_stands_for_it(table):
    with pytest.raises(InputError, match=r"row 3, column 'age': ''; no replacement for a missing cell is given"):
        read_table(table, columns(COLUMNS.replace("missing = 40\n", "")))
    with pytest.raises(InputError, match=r"row 3, column 'ward': 'cellar'; categories are east, west, other"):
        read_table(table, columns(COLUMNS.replace('unknown = "other"\n', "")))


@pytest.mark.parametrize("name", ["table.txt", "nothing.csv", "nothing.npz", "nothing.parquet"])
def test_files_that_are_no_tables(tmp_path, name):
    with pytest.raises(InputError, match=name):
        read_table(tmp_path / name, columns())


WRONG = [
    ("missing = 40", 'missing = "mean"', "a value that is computed from rows is not public"),
    ("missing = 40", "missing = 200", "missing = 200; the range is"),
    ('missing = "west"', "missing = 3", "it must be one of the categories"),
    ('unknown = "other"', 'unknown = "others"', "it must be one of the categories"),
    ("range = [20, 100]", "range = [100, 20]", "less than the second"),
    ("range = [20, 100]", "range = [-1e308, 1e308]", "less than the second"),
    ("range = [20, 100]", "range = [20]", "columns.0.range"),
    ("range = [20, 100]", "", "a column has exactly one of them"),
    ("range = [20, 100]", 'range = [20, 100]\nunknown = "x"', "only columns with categories have it"),
    ('"east", "west", "other"', '"east", "east", "other"', "they must differ"),
    ('"no", "yes"', '"no", "yes"]\nunknown = "no"\nmore = [', "there is no such key"),
    ('"no", "yes"]', '"no", "yes"]\nunknown = "no"', "a substitute for the target"),
    ('target = "again"', 'target = "other"', "target 'other' among 3 columns"),
    ('drop = ["patient"]', 'drop = ["age"]', "column 'age' twice"),
    ('drop = ["patient"]', "scale_to = [0, 2]", "scale_to"),
]


@pytest.mark.parametrize(("old", "new", "reason"), WRONG, ids=[new for _, new, _ in WRONG])
def test_columns_that_say_something_wrong(old, new, reason):
    assert old in COLUMNS
    with pytest.raises(InputError) as refusal:
        columns(COLUMNS.replace(old, new, 1))
    assert str(refusal.value).startswith("here: ")
    assert reason in str(refusal.value)


def test_norms_stay_below_what_is_declared(table):
    """Rows at the ends of every range have the declared norm."""
    table.write_text("patient,again,age,ward\n" + "1,yes,100,east\n2,no,1000,west\n" * 3)
    dataset = table_dataset(read_table(table, columns()), columns(), "table", 0)
    norms = np.linalg.norm(dataset.inputs.astype(np.float64), axis=1)
    assert dataset.examples.norm_bound == np.sqrt(2)
    assert (norms <= np.sqrt(2)).all()
    assert norms == pytest.approx(np.sqrt(2))
    assert dataset.public_statistics == ()


def test_which_rows_are_held_out_depends_on_positions_alone(table):
    one = read_table(table, columns())
    table.write_text(CSV.replace("60,east", "61,west").replace("yes", "no"))
    other = read_table(table, columns())
    seen = []
    for found in (one, other):
        data = join_tables(columns(), {"Hill": 4}, {"Hill": found}, seed=1)
        again = [found.inputs.tolist().index(row) for row in data.dataset.test_inputs.tolist()]
        seen.append((len(data.dataset.inputs), data.shards.indices[0].tolist(), again))
    assert seen[0] == seen[1]
    assert seen[0][:2] == (5, [1, 2, 3, 4])


def test_a_guess_takes_words_among_numbers_for_missing_cells(tmp_path):
    folder = tmp_path / "wards"
    folder.mkdir()
    (folder / "East.csv").write_text("age,again\n61,no\nNA,yes\n")
    (folder / "West.csv").write_text("age,again\n,no\n34,NA\n")
    found = guess_columns(folder, read_all_cells(folder)).columns
    assert (found.missing_words, found.columns[0].range) == (["NA"], [34.0, 61.0])
    assert found.classes == ("no", "yes")
    (folder / "West.csv").write_text("years,again\n3,no\n")
    with pytest.raises(InputError, match=r"East.csv has a column 'age', and .*West.csv has none"):
        read_all_cells(folder)


def test_a_guess_says_which_class_is_decided_for(tmp_path):
    table = tmp_path / "stays.csv"
    table.write_text("age,again\n61,ja\n34,nein\n50,nein\n")
    guess = guess_columns(table, read_all_cells(table))
    (line,) = guess.remarks
    assert guess.columns.classes == ("ja", "nein")
    assert "about 'nein'" in line
    assert f"# {line}" in columns_text(guess).splitlines()
    table.write_text("age,again\n61,1.5\n34,2.5\n50,0.5\n")
    assert guess_columns(table, read_all_cells(table)).remarks == []


def test_a_dozen_numbers_of_patients_are_no_input(tmp_path):
    table = tmp_path / "stays.csv"
    table.write_text(
        "\n".join(["patient,case,age,again", *(f"{1000 + row},{row % 3},{row * row},{row % 2}" for row in range(12))])
    )
    guess = guess_columns(table, read_all_cells(table))
    assert guess.columns.drop == ["patient"]
    assert [column.name for column in guess.columns.columns] == ["case", "age", "again"]


def test_a_guess_fits_the_table_that_it_is_from(table):
    table.write_text(CSV.replace("NA", "").replace(" east", "east"))
    guess = guess_columns(table, read_all_cells(table), "again")
    guessed = guess.columns
    (age,) = [column for column in guessed.columns if column.name == "age"]
    assert age.range == [-3.0, 120.5]
    text = columns_text(guess)
    assert "not private" in text.splitlines()[0]
    assert parse_columns(tomllib.loads(text), "here") == guessed
    with pytest.raises(InputError, match="no replacement for a missing cell is given"):
        read_table(table, guessed)
    filled = CSV.replace("NA", "50").replace("3,no,,", "3,no,1,").replace("120.5,", "120.5,west")
    table.write_text(filled)
    assert read_table(table, guess_columns(table, read_all_cells(table), "again").columns).clipped == 0
