"""How many files a command passes through, and how often it goes from one to another: `python -m benchmarks.walks`.

Counted are files of the package of which a function is called, and calls from one file to another. Modules are loaded
beforehand, so that what runs while they load is not counted; of a run a first one is played for that.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from sottovoce.cli import main

RUN = Path(__file__).parents[1] / "recipes" / "digits.toml"
SHOWN = 12
PACKAGE = str(Path(__file__).parents[1] / "sottovoce") + "/"

WALKS = {
    "account ring:30": ["account", "--graph", "ring:30", "--rounds", "40", "--view", "node:0"],
    "run digits": ["run", str(RUN)],
}
"""Lines of the command, by what tables call them."""


def walk(words: list[str]) -> Counter[tuple[str, str]]:
    """How often a call leads from one file to another, or stays in it, by both files."""
    calls = Counter[tuple[str, str]]()

    def count(frame: FrameType, event: str, _: Any) -> None:
        to = frame.f_code.co_filename
        if event == "call" and to.startswith(PACKAGE) and not frame.f_code.co_name.startswith("<"):
            back = frame.f_back
            while back is not None and not back.f_code.co_filename.startswith(PACKAGE):
                back = back.f_back
            calls["" if back is None else back.f_code.co_filename, to] += 1

    sys.argv = ["sotto", *words]
    sys.setprofile(count)
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
    return calls


def show(name: str, calls: Counter[tuple[str, str]]) -> None:
    """Files and calls between them, and the pairs of files with most."""
    between = Counter({pair: times for pair, times in calls.items() if pair[0] != pair[1]})
    files = {to for _, to in calls}
    print(f"{name}: {len(files)} files, {between.total():,} calls from one to another", file=sys.stderr)
    for (one, other), times in between.most_common(SHOWN):
        print(f"  {times:7,}  {one.removeprefix(PACKAGE)} -> {other.removeprefix(PACKAGE)}", file=sys.stderr)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, words in WALKS.items():
            for turn in ("first", "again"):
                out = ["--out", f"{folder}/{turn}"] if words[0] == "run" else []
                found = walk([*words, *out])
            show(name, found)
