"""Figures of this package on this machine beside those that were expected: `python artifact/check.py`.

`expected.json` has a command for each figure, where it is in what the command prints as JSON, and its value. The exit
code is 1 where a figure differs by more than one part in a million.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TOLERANCE, HERE = 1e-6, Path(__file__).parent


def figure(line: str, place: list[str | int]) -> float:
    """What a command answers at a place of its JSON."""
    command = [sys.executable, "-m", "sottovoce", *line.split(), "--json"]
    found = json.loads(subprocess.run(command, cwd=HERE, check=True, capture_output=True, text=True).stdout)
    for key in place:
        found = found[key]
    return float(found)


def main() -> int:
    expected = json.loads((HERE / "expected.json").read_text())
    wrong = 0
    for one in expected:
        found = figure(one["command"], one["place"])
        same = abs(found - one["value"]) <= TOLERANCE * abs(one["value"])
        wrong += not same
        sys.stdout.write(f"{'as expected' if same else 'DIFFERS'}: {found:.9g} ({one['value']:.9g})  {one['what']}\n")
    sys.stdout.write(f"{len(expected) - wrong} of {len(expected)} figures are as expected\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
