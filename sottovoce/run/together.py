"""Many runs at once, each in a process of its own, on as many cores as there are."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import TypeVar

from sottovoce.config import Document, Experiment
from sottovoce.errors import Diverged
from sottovoce.run.folder import Files, Tell, carry_out
from sottovoce.run.results import Finished
from sottovoce.run.sweep import Planned
from sottovoce.threads import WORKERS

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def carry_out_all(
    runs: Sequence[Planned],
    out: Path,
    *,
    data: Path | None = None,
    resume: bool = False,
    jobs: int | None = None,
    tell: Tell | None = None,
) -> list[Finished]:
    """Carry out all runs of a sweep. Finished ones are only read; one that goes astray is noted, any other
    failure stops the rest."""
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
    act = partial(_attempt, out=out, data=data, resume=resume)
    for experiment, result in in_processes(act, [run.experiment for run in runs], jobs):
        yield experiment.name, result


def in_processes(act: Callable[[Item], Answer], items: Sequence[Item], jobs: int) -> Iterator[tuple[Item, Answer]]:
    """Each item with what `act` makes of it, as they are ready; one failure stops the rest."""
    if jobs == 1:
        for item in items:
            yield item, act(item)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(act, item): item for item in items}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _attempt(experiment: Experiment, out: Path, data: Path | None, resume: bool) -> Document:
    """The result of a run; one that went astray says so instead."""
    folder = out / experiment.name
    try:
        return carry_out(experiment, folder, data=data, resume=resume)
    except Diverged as error:
        privacy = Files(folder).document(Files(folder).privacy) or {}
        return {
            "name": experiment.name, "diverged": error.found, "headline": privacy.get("headline"),
            "sigma": privacy.get("sigma"), "delta": experiment.privacy.delta, "seconds": 0.0,
        }  # fmt: skip
