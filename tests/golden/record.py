"""Record golden trajectories: `python -m tests.golden.record OUT.json`, from the root of a repository.

Every run and every document of `cases` is made by the command line and read from files with documented formats, so that
the same script records code before and after a refactoring. What depends on the clock (`seconds`), on the release
(`version`) or on how settings are hashed (`fingerprint`) is left out; everything else is recorded exactly: numbers of
JSON documents as they are, arrays by digest. Paths are relative to a temporary folder, in which all of this happens.

`--subset` records only what `golden.json` stores for the test.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from sottovoce.cli import main as sotto_main
from tests.golden import cases
from tests.golden.cases import Document

LEFT_OUT = {"seconds", "version", "versions", "fingerprint"}
DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', flags=re.DOTALL)
SAMPLE = 6
"""So many values of an array are recorded as they are."""

MEASURED = ("round", "loss", "accuracy", "rmse", "consensus", "messages", "bytes")
"""What `golden.json` holds of a line of metrics."""


def sotto(line: str) -> tuple[int, str, str]:
    """What a command does in this process: its exit code, what it prints, and on stderr."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["sotto", *line.split()]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            sotto_main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue(), err.getvalue()


def answer(line: str) -> Document:
    """The JSON document of a command, or the error in its place; refusals may come with both."""
    code, out, err = sotto(f"{line} --json")
    found: Document = {"code": code, "document": cleaned(json.loads(out)) if out else None, "error": err.strip()}
    written = re.search(r"--out (\S+\.npz)", line)
    return {**found, "C": arrays(Path(written[1]))["C"]} if written and not code else found


def trained(name: str, options: str = "") -> Document:
    """All that a run leaves behind."""
    code, _, err = sotto(f"run {name}.toml --json {options}")
    if code:
        return {"code": code, "error": err.strip()}
    folder = Path("runs") / name
    return {
        "config": _json(folder / "config.json"),
        "checkpoint": arrays(folder / "checkpoint.npz"),
        "metrics": [cleaned(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()],
        "privacy": _json(folder / "privacy.json"),
        "result": _json(folder / "result.json"),
        "messages": {path.name: arrays(path) for path in sorted(folder.glob("messages/*.npz"))},
        "page": page(folder / "report.html"),
    }


def _json(path: Path) -> Any:
    return cleaned(json.loads(path.read_text()))


def page(path: Path) -> Any:
    """The data that a report page carries with it; None where there is no page."""
    found = DATA.search(path.read_text(encoding="utf-8")) if path.exists() else None
    return None if found is None else cleaned(json.loads(found[1]))


def cleaned(part: Any) -> Any:
    """Without what is left out, at any depth.

    >>> cleaned({"rounds": 3, "version": "0.1.0", "metrics": [{"loss": 0.5, "seconds": 0.1}]})
    {'rounds': 3, 'metrics': [{'loss': 0.5}]}
    """
    if isinstance(part, dict):
        return {key: cleaned(value) for key, value in part.items() if key not in LEFT_OUT}
    return [cleaned(value) for value in part] if isinstance(part, list) else part


def arrays(path: Path) -> Document:
    """The arrays of numbers in an npz file; text, such as what a checkpoint says about itself, is left out."""
    with np.load(path) as stored:
        found = {name: stored[name] for name in stored.files}
    return {name: described(array) for name, array in found.items() if array.dtype.kind in "fib"}


def described(array: NDArray[Any]) -> Document:
    """A digest of an array, its norm, and values spread over it.

    The first values alone would tell little: they are weights of a pixel that is blank in every picture.
    """
    values = array.astype(np.float64).ravel()
    spread = values[np.linspace(0, values.size - 1, min(values.size, SAMPLE)).round().astype(int)]
    return {
        "dtype": str(array.dtype), "shape": list(array.shape),
        "sha256": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest(),
        "norm": float(np.linalg.norm(values)).hex(), "values": [float(value).hex() for value in spread],
    }  # fmt: skip


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder with the input files, in which commands run; nothing is read from the user's cache."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        cases.write_inputs(folder)
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")}):
            yield folder


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Sums do not depend on how many cores are free."""
    import scipy.linalg  # noqa: F401  limits apply to libraries that are loaded
    import torch
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        torch.set_num_threads(1)
        yield


# --- the subset that the repository stores ---------------------------------------------------------------------------


def brief_run(name: str) -> Document:
    """What `golden.json` holds of a run: the last models in short, what was measured, and the headline.

    Fewer rounds, and no single nodes as adversaries: accounting for them takes longer than training, and documents
    have them.
    """
    found = trained(name, "--set training.rounds=4 --set privacy.attackers=none")
    if "error" in found:
        raise RuntimeError(found["error"])
    models = {
        number: {"norm": float.fromhex(one["norm"]), "values": [float.fromhex(value) for value in one["values"]]}
        for number, one in found["checkpoint"].items()
    }
    metrics = [{key: line[key] for key in MEASURED if key in line} for line in found["metrics"]]
    return {"models": models, "metrics": metrics, "privacy": figures(found["privacy"])}


def brief_answer(line: str) -> Document:
    """What `golden.json` holds of an account or a calibration: the headline, and mu of every guarantee there is."""
    found = answer(line)
    document = found["document"]
    if document is None:
        raise RuntimeError(found["error"])
    every: dict[str, list[Any]] = {}
    for one in document.get("guarantees", []):
        every.setdefault(f"{one['kind']}, victim {one['victim']}", []).append(one["mu"])
    return {**figures(document), "guarantees": every}


def figures(document: Document) -> Document:
    """Sigma, and mu and epsilon of the headline; None where nothing is proven."""
    headline = document["headline"] or {}
    return {"sigma": document["sigma"], "mu": headline.get("mu"), "epsilon": headline.get("epsilon")}


# --- recording -------------------------------------------------------------------------------------------------------


def record() -> Document:
    """Everything: runs, documents, and the pages as they are in the end."""
    runs = {name: _timed(trained, name) for name in cases.RUNS}
    documents = {line: _timed(answer, line) for line in (*cases.ACCOUNTS, *cases.QUESTIONS, *cases.ABOUT_RUNS)}
    return {"runs": runs, "documents": documents, "pages": {path: page(Path(path)) for path in cases.PAGES}}


def record_subset() -> Document:
    """What the test reproduces."""
    return {
        "runs": {name: _timed(brief_run, name) for name in cases.STORED_RUNS},
        "documents": {line: _timed(brief_answer, line) for line in cases.STORED_DOCUMENTS},
    }


def _timed(make: Any, name: str) -> Document:
    begun = time.perf_counter()
    found: Document = make(name)
    sys.stderr.write(f"{time.perf_counter() - begun:6.2f} s  {name}\n")
    return found


def main() -> None:
    """Record, and write the recording."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.record", description=(__doc__ or "").partition(":")[0]
    )
    parser.add_argument("out", type=Path, help="the recording, a JSON file")
    parser.add_argument("--subset", action="store_true", help="only what golden.json stores")
    given = parser.parse_args()
    out, begun = given.out.resolve(), time.perf_counter()
    sys.stderr.write(f"recording {Path(sys.modules['sottovoce'].__file__ or '').parent}\n")
    with one_thread(), workplace():
        found = record_subset() if given.subset else record()
    out.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    counts = ", ".join(f"{len(part)} {name}" for name, part in found.items())
    sys.stderr.write(f"{counts} in {time.perf_counter() - begun:.0f} s: {out}\n")


if __name__ == "__main__":
    main()
