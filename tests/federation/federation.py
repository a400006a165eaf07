"""A small federation: three clinics with tables of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sottovoce.federation.assembly import assemble_agreement
from sottovoce.federation.identity import create_identity

ROWS = {"Hill": 12, "Mercy": 20, "North": 15}

SETTINGS = """
name = "clinics"
seed = 3

[rows]
Hill = 12
Mercy = 20
North = 15

[topology]
graph = "path:3"

[data]
columns = "patients.columns.toml"

[model]
name = "logistic"

[algorithm]
name = "dp-d-sgd"
step_size = 0.5

[training]
rounds = 4
clip = "per-example"
bound = 1.0

[privacy]
epsilon = 3.0
"""

COLUMNS = """
target = "readmitted"
drop = ["patient"]

[[columns]]
name = "age"
range = [0, 120]
missing = 60

[[columns]]
name = "ward"
categories = ["east", "west"]

[[columns]]
name = "readmitted"
categories = ["no", "yes"]
"""


def prepare(folder: Path, settings: str = SETTINGS, columns: str = COLUMNS) -> list[Path]:
    """Settings, columns and the public files of three members; returns the latter."""
    (folder / "settings.toml").write_text(settings)
    (folder / "patients.columns.toml").write_text(columns)
    for name in ROWS:
        create_identity(name, folder / name, address=f"{name.lower()}.example:7443")
    return member_files(folder)


def member_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.member.toml"))


def agreement_in(folder: Path, settings: str = SETTINGS, columns: str = COLUMNS):
    return assemble_agreement(Path(folder / "settings.toml"), prepare(folder, settings, columns))


def write_tables(folder: Path, seed: int = 0, more: int = 5) -> Path:
    """Tables of random patients, some more than declared; returns their folder."""
    rng = np.random.default_rng(seed)
    place = folder / f"data-{seed}"
    place.mkdir()
    for name, rows in ROWS.items():
        lines = ["patient,age,ward,readmitted"]
        for number in range(rows + more):
            age, ward, again = rng.integers(20, 95), rng.choice(["east", "west"]), rng.choice(["no", "yes"])
            lines.append(f'"{name}, {number}",{age},{ward},{again}')
        (place / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return place
