"""Many runs at once, each in a process of its own, on as many cores as there are."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from sottovoce.config import Document, Experiment
from sottovoce.run.folder import Files, Tell, carry_out
from sottovoce.run.sweep import summary
from sottovoce.threads import WORKERS


def carry_out_all(
    runs: Sequence[Experiment],
    out: Path,
    *,
    data: Path | None = None,
    resume: bool = False,
    jobs: int | None = None,
    tell: Tell | None = None,
) -> list[Document]:
    """Carry out all runs of a sweep and sum them up. Finished ones are only read; the first failure stops the rest."""
    results: dict[str, Document] = {}
    size = min(jobs or WORKERS, len(runs))
    if size == 1:
        for run in runs:
            results[run.name] = carry_out(run, out / run.name, data=data, resume=resume)
            if tell is not None:
                tell(len(results), len(runs))
    else:
        with ProcessPoolExecutor(size, mp_context=multiprocessing.get_context("spawn")) as pool:
            waiting = {pool.submit(carry_out, run, out / run.name, data=data, resume=resume): run for run in runs}
            try:
                for done in as_completed(waiting):
                    results[waiting[done].name] = done.result()
                    if tell is not None:
                        tell(len(results), len(runs))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return summary((results[run.name], Files(out / run.name).lines()) for run in runs)
