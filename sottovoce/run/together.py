"""Many runs at once, each in a process of its own, on as many cores as there are."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from sottovoce.config import Document
from sottovoce.run.folder import Files, Tell, carry_out
from sottovoce.run.results import Finished
from sottovoce.run.sweep import Planned
from sottovoce.threads import WORKERS


def carry_out_all(
    runs: Sequence[Planned],
    out: Path,
    *,
    data: Path | None = None,
    resume: bool = False,
    jobs: int | None = None,
    tell: Tell | None = None,
) -> list[Finished]:
    """Carry out all runs of a sweep. Finished ones are only read; the first failure stops the rest."""
    results: dict[str, Document] = {}
    for name, result in _results(runs, out, data, resume, min(jobs or WORKERS, len(runs))):
        results[name] = result
        if tell is not None:
            tell(len(results), len(runs))
    names = [run.experiment.name for run in runs]
    return [Finished(run, results[name], Files(out / name).lines()) for run, name in zip(runs, names, strict=True)]


def _results(
    runs: Sequence[Planned], out: Path, data: Path | None, resume: bool, jobs: int
) -> Iterator[tuple[str, Document]]:
    if jobs == 1:
        for run in runs:
            name = run.experiment.name
            yield name, carry_out(run.experiment, out / name, data=data, resume=resume)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {
            pool.submit(carry_out, run.experiment, out / run.experiment.name, data=data, resume=resume): run
            for run in runs
        }
        try:
            for done in as_completed(waiting):
                yield waiting[done].experiment.name, done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
