"""Many runs at once, each in a process of its own, on as many cores as there are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sottovoce.config import Document, Experiment
from sottovoce.errors import Diverged, SottovoceError
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
    """Carry out all runs of a sweep. Finished ones are only read; one that goes astray is noted, any other failure
    stops the rest. Runs that are stopped save where they are, and go on with `resume`.
    """
    results: dict[str, Document] = {}
    size = min(jobs or WORKERS, len(runs))
    experiments = [run.experiment for run in runs]
    found: Iterator[tuple[str, Document]]
    if size == 1:
        found = ((one.name, _attempt(one, out / one.name, data, resume)) for one in experiments)
    else:
        found = _in_processes(experiments, out, size, data, resume)
    for name, result in found:
        results[name] = result
        if tell is not None:
            tell(len(results), len(runs))
    return [Finished(run, results[run.experiment.name], Files(out / run.experiment.name).lines()) for run in runs]


def _attempt(run: Experiment, folder: Path, data: Path | None, resume: bool) -> Document:
    """The result of a run; one that went astray says so instead."""
    try:
        return carry_out(run, folder, data=data, resume=resume)
    except Diverged as error:
        privacy = Files(folder).document(Files(folder).privacy) or {}
        return {
            "name": run.name, "diverged": error.found, "headline": privacy.get("headline"),
            "sigma": privacy.get("sigma"), "delta": run.privacy.delta, "seconds": 0.0,
        }  # fmt: skip


def _in_processes(
    runs: Sequence[Experiment], out: Path, size: int, data: Path | None, resume: bool
) -> Iterator[tuple[str, Document]]:
    """Results as they come."""
    others, context = set(multiprocessing.active_children()), multiprocessing.get_context("spawn")
    stopped = context.Event()
    with ProcessPoolExecutor(size, mp_context=context, initializer=_Stopped.learn, initargs=(stopped,)) as pool:
        with _uninterrupted():  # which the processes inherit: they listen only while they carry out a run
            waiting: dict[Future[Document], str] = {
                pool.submit(_carry_out, run, out / run.name, data, resume): run.name for run in runs
            }
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BrokenProcessPool:
            raise SottovoceError(
                "a process of the sweep was ended from outside, perhaps for want of memory; go on with --resume, "
                "with fewer --jobs"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stopped.set()
            for process in set(multiprocessing.active_children()) - others:
                if process.pid is not None:
                    os.kill(process.pid, signal.SIGINT)
            raise


class _Stopped:
    """In a process of its own: whether the sweep was stopped; runs that wait for it must not begin."""

    event: Any = None

    @classmethod
    def learn(cls, event: Any) -> None:
        """What tells."""
        cls.event = event


def _carry_out(run: Experiment, folder: Path, data: Path | None, resume: bool) -> Document:
    """In a process of its own: one interrupt stops the run, which then saves undisturbed."""

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    try:
        if _Stopped.event.is_set():  # set before interrupts are sent, so that no run misses both
            raise KeyboardInterrupt
        return _attempt(run, folder, data, resume)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Without interrupts, where they can be turned off: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
