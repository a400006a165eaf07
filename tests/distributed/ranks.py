"""Ranks for tests: as many processes as asked for, started once, that carry out one thing after the other together."""

from __future__ import annotations

import os
import tempfile
import traceback
from pathlib import Path

from tests.forked import forking

TIMEOUT = 60.0


class Pool:
    """`pool(act, *arguments)` is what `act(ranks, *arguments)` returns at each rank; what one raises, the test raises.

    `act` is a function of a module, which every rank imports.
    """

    def __init__(self, size):
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        context = forking()
        self._pipes, self._processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            meeting = str(Path(self._folder.name) / "meeting")
            process = context.Process(target=_serve, args=(theirs, rank, size, meeting), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def __call__(self, act, *arguments):
        for pipe in self._pipes:
            pipe.send((act, arguments))
        answers = [pipe.recv() for pipe in self._pipes]
        for _, trouble in answers:
            if trouble is not None:
                raise AssertionError(trouble)
        return [answer for answer, _ in answers]

    def close(self):
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(20)
            process.kill()
        self._folder.cleanup()


def environment(rank, size, meeting):
    """What a rank is told."""
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "SOTTOVOCE_MEETING": meeting, "GLOO_SOCKET_IFNAME": "lo"}


def _serve(pipe, rank, size, meeting):
    os.environ |= environment(rank, size, meeting)
    from sottovoce.distributed.ranks import join_ranks

    with join_ranks(TIMEOUT) as ranks:
        while (wanted := pipe.recv()) is not None:
            act, arguments = wanted
            try:
                pipe.send((act(ranks, *arguments), None))
            except Exception:
                pipe.send((None, f"rank {rank}: {traceback.format_exc()}"))
