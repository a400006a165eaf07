"""Do the tests notice wrong code? `python -m benchmarks.mutants sample=600 seed=1 out=build/mutants.csv`.

A mutant is the package with one operator, number, comparison or condition changed, in the accountant, the tracer or the
drawing of noise. The tests that pass through its line are run on it, the quick ones first; it survives if all of them
pass. Which tests pass through which line is recorded first, with `coverage`, once for each state of the code.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parents[1]
MUTATED = ("privacy/**/*.py", "tracing/*.py", "core/*noise*.py", "core/*gaussian*.py")
TESTS = ("algorithms", "auditing", "core", "golden", "hostile", "privacy", "properties", "tracing")
MOST_TESTS, SECONDS = 40, 240
LOADED = 0
"""Stands for all lines of a file."""

LEFT_OUT = (".git", ".venv", "build", "site", "runs", ".*cache")
SWAPPED: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Pow: "*", ast.MatMult: "*",
    ast.And: "or", ast.Or: "and",
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}


@dataclass(frozen=True)
class Mutant:
    """The text between two offsets of a file, and what stands there instead."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str


def mutants(file: Path) -> list[Mutant]:
    """All mutants of one file: code that runs, without annotations and messages of errors."""
    source = file.read_bytes()
    starts = [0]
    for row in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    found: list[Mutant] = []

    def add(node: ast.AST, start: int, end: int, new: str) -> None:
        found.append(Mutant(str(file.relative_to(ROOT)), node.lineno, start, end, source[start:end].decode(), new))  # type: ignore[attr-defined]

    def span(node: ast.AST) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def between(node: ast.AST, left: ast.AST, right: ast.AST, operator: ast.AST) -> None:
        """The operator stands somewhere between its two operands, among blanks and brackets."""
        if type(operator) in SWAPPED:
            start, end = span(left)[1], span(right)[0]
            text = source[start:end].decode()
            word = text.strip(" ()\n\\")
            if word and "#" not in word and "\n" not in word and text.count(word) == 1:
                at = start + text.index(word)
                add(left, at, at + len(word), SWAPPED[type(operator)])

    def visit(node: ast.AST) -> None:
        match node:
            case ast.Raise() | ast.JoinedStr() | ast.AnnAssign(value=None):
                return
            case ast.BinOp():
                between(node, node.left, node.right, node.op)
            case ast.BoolOp():
                between(node, node.values[0], node.values[1], node.op)
            case ast.Compare(ops=[operator]):
                between(node, node.left, node.comparators[0], operator)
            case ast.Constant(value=bool() as value):
                add(node, *span(node), str(not value))
            case ast.Constant(value=int() as value):
                add(node, *span(node), str(value + 1))
            case ast.Constant(value=float() as value):
                add(node, *span(node), repr(value * 2 if value else 1.0))
            case ast.UnaryOp(op=ast.USub() | ast.Not() as operator):
                start = span(node)[0]
                add(node, start, start + (1 if isinstance(operator, ast.USub) else 3), "")
            case ast.If() | ast.IfExp() | ast.While():
                start, end = span(node.test)
                add(node.test, start, end, f"(not ({source[start:end].decode()}))")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in NAMES:
                end = span(node.func)[1]
                add(node.func, end - len(name), end, NAMES[name])
        for field, child in ast.iter_fields(node):
            if field in {"annotation", "returns", "msg"} or (isinstance(node, ast.keyword) and node.arg == "strict"):
                continue
            for each in child if isinstance(child, list) else [child]:
                if isinstance(each, ast.AST):
                    visit(each)

    visit(ast.parse(source))
    return found


def recorded(folder: Path) -> dict[tuple[str, int], list[str]]:
    """Which tests pass through each line, quick ones first."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "lines.json"
    if not kept.exists():
        options = ["-p", "benchmarks.mutants_recorder", "-p", "no:cacheprovider", "-m", "not slow"]
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *options, *(f"tests/{each}" for each in TESTS)],
            cwd=ROOT,
            env=os.environ | {"MUTANTS_RECORD": str(folder.resolve()), "PYTHONPATH": str(ROOT)},
            check=False,
            stdout=(folder / "record.log").open("w"),
            stderr=subprocess.STDOUT,
        )
    seconds, passed = json.loads(kept.read_text())
    by_line: dict[tuple[str, int], list[str]] = defaultdict(list)
    for test in sorted(passed, key=seconds.__getitem__):
        for file, numbers in passed[test].items():
            for number in (*numbers, LOADED):
                by_line[file, number].append(test)
    return by_line


def outcome(mutant: Mutant, tests: list[str], copy: Path) -> str:
    """`killed`, `survived`, `timed out`, or `uncovered` if no test passes through its line."""
    if not tests:
        return "uncovered"
    file = copy / mutant.file
    source = file.read_bytes()
    file.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
    chosen = tests[: MOST_TESTS // 2] + tests[MOST_TESTS // 2 :: max(1, len(tests) // MOST_TESTS)][: MOST_TESTS // 2]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *chosen]
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "timed out"
    finally:
        file.write_bytes(source)
    return "survived" if run.returncode == 0 else "killed"


def interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's interval at 95 %."""
    z = 1.96
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return centre - half, centre + half


def main() -> None:
    """Draw the sample, run it in copies of the package, and print the score."""
    asked = dict(word.split("=", 1) for word in sys.argv[1:])
    sample, seed, workers = (int(asked.get(*each)) for each in (("sample", "600"), ("seed", "1"), ("workers", "1")))
    out = Path(asked.get("out", "build/mutants.csv"))
    files = sorted({file for pattern in MUTATED for file in ROOT.glob(f"sottovoce/{pattern}")})
    every = [mutant for file in files for mutant in mutants(file)]
    chosen = random.Random(seed).sample(every, min(sample, len(every)))
    by_line = recorded(out.parent / "mutants")
    out.parent.mkdir(parents=True, exist_ok=True)
    copies: Queue[Path] = Queue()
    score = Counter[str]()
    # Beside the project, because tests look for data beside it.
    with ExitStack() as stack, out.open("w", newline="") as file:
        for _ in range(workers):
            copy = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT.parent, prefix="mutants-")))
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)
            copies.put(copy)
        table = csv.writer(file)
        table.writerow(("outcome", "file", "line", "old", "new"))

        def judge(mutant: Mutant) -> tuple[str, Mutant]:
            copy = copies.get()
            try:
                tests = by_line.get((mutant.file, mutant.line)) or by_line.get((mutant.file, LOADED), [])
                return outcome(mutant, tests, copy), mutant
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(workers) as pool:
            for result, mutant in pool.map(judge, chosen):
                score[result] += 1
                table.writerow((result, mutant.file, mutant.line, mutant.old, mutant.new))
                file.flush()
    count = score.total()
    share = score["killed"] / count
    low, high = interval(share, count)
    print(f"{count} of {len(every)} mutants: {dict(score)}; {share:.1%} noticed ({low:.1%} to {high:.1%})")


if __name__ == "__main__":
    main()
