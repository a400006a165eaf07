"""Many runs at once, each in a process of its own, on as many cores as there are."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TypeVar

from sottovoce.config import Document, Experiment
from sottovoce.core.limits import limits_are_lifted, limits_lifted
from sottovoce.core.own_code import code_folder, code_from
from sottovoce.core.processes import STOPPING_SIGNALS, end_with_parent, signals_blocked, unblock_signals
from sottovoce.core.threads import WORKERS
from sottovoce.errors import Diverged, SottovoceError
from sottovoce.run.callbacks import Progress
from sottovoce.run.execute import run_experiment
from sottovoce.run.layout import RunFiles
from sottovoce.run.sweep import SweepRun
from sottovoce.run.sweep_results import FinishedSweepRun

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def run_experiments(
    runs: Sequence[SweepRun],
    out: Path,
    *,
    data: Path | None = None,
    resume: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[FinishedSweepRun]:
    """Carry out all runs of a sweep. Finished ones are only read; one that diverges is noted, any other failure
    stops the rest. Runs that are stopped save where they are, and go on with `resume`.
    """
    results: dict[str, Document] = {}
    act = partial(_attempt, out=out, data=data, resume=resume)
    for experiment, result in map_in_processes(act, [run.experiment for run in runs], min(jobs or WORKERS, len(runs))):
        results[experiment.name] = result
        if progress is not None:
            progress(len(results), len(runs))
    return [
        FinishedSweepRun(run, results[run.experiment.name], RunFiles(out / run.experiment.name).lines()) for run in runs
    ]


def _attempt(experiment: Experiment, out: Path, data: Path | None, resume: bool) -> Document:
    """The result of a run, or of one that diverged the reason and its guarantee."""
    folder = out / experiment.name
    try:
        return run_experiment(experiment, folder, data=data, resume=resume)
    except Diverged as error:
        privacy = RunFiles(folder).document(RunFiles(folder).privacy) or {}
        return {
            "name": experiment.name, "diverged": error.found, "headline": privacy.get("headline"),
            "sigma": privacy.get("sigma"), "delta": experiment.privacy.delta, "seconds": 0.0,
        }  # fmt: skip


def map_in_processes(act: Callable[[Item], Answer], items: Sequence[Item], jobs: int) -> Iterator[tuple[Item, Answer]]:
    """Each item with what `act` makes of it, as they are ready; one failure, or an interrupt, stops the rest."""
    if jobs == 1:
        for item in items:
            yield item, act(item)
        return
    others, context = set(multiprocessing.active_children()), multiprocessing.get_context("spawn")
    stopped = context.Event()
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(stopped,)) as pool:
        with signals_blocked():
            lifted, code = limits_are_lifted(), code_folder()
            waiting = {pool.submit(_interruptible, act, item, lifted, code): item for item in items}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BrokenProcessPool:
            raise SottovoceError(
                "a process of the sweep was ended from outside, perhaps because memory ran out; go on with --resume, "
                "with fewer --jobs"
            ) from None
        except BaseException:
            stopped.set()
            for process in set(multiprocessing.active_children()) - others:
                if process.pid is not None:
                    os.kill(process.pid, signal.SIGINT)
            pool.shutdown(cancel_futures=True)  # waits: a process that has only begun still needs what it was handed
            raise


class _Stopped:
    """In a process of its own: whether the sweep was stopped; runs that wait for it must not begin."""

    event: Event | None = None


def _begin(stopped: Event) -> None:
    """In a process of its own: it ends with its parent, and heeds signals only while it acts."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with_parent(parent.sentinel)
    _Stopped.event = stopped
    _heed_signals(signal.SIG_IGN)
    unblock_signals()


def _heed_signals(handler: Callable[..., None] | signal.Handlers) -> None:
    for kind in STOPPING_SIGNALS:
        signal.signal(kind, handler)


def _interruptible(act: Callable[[Item], Answer], item: Item, lifted: bool, code: Path | None) -> Answer:
    """In a process of its own: one signal stops what is done, which then saves undisturbed."""

    def stop(*_: object) -> None:
        _heed_signals(signal.SIG_IGN)
        raise KeyboardInterrupt

    _heed_signals(stop)
    try:
        if (
            _Stopped.event is not None and _Stopped.event.is_set()
        ):  # set before interrupts are sent, so that nothing misses both
            raise KeyboardInterrupt
        with limits_lifted(lifted), code_from(code):
            return act(item)
    finally:
        _heed_signals(signal.SIG_IGN)
