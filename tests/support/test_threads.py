"""Blocks on several threads: each is acted on once, errors arrive, and two threads do work at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from sottovoce.algorithms.registry import algorithm
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.topologies import metropolis
from sottovoce.errors import InputError
from sottovoce.support.threads import OPENBLAS_THREADS, chunks, for_each, one_thread, threads, workers


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_block_is_acted_on_once(count):
    seen: list[int] = []
    with threads(count) as used:
        assert used == count == workers()
        for_each(seen.append, range(100))
        for_each(seen.append, range(100, 101))
        for_each(seen.append, [])
    assert sorted(seen) == list(range(101))
    assert workers() == 1


def test_two_threads_work_at_the_same_time_with_one_of_torch_each():
    together, found = threading.Barrier(2, timeout=60), []

    def act(block: int) -> None:
        together.wait()
        found.append((threading.get_ident(), torch.get_num_threads()))

    before = torch.get_num_threads()
    with threads(2):
        for_each(act, range(2))
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before
    assert len({thread for thread, _ in found}) == 2
    assert {count for _, count in found} == {1}


def test_blocks_that_cannot_be_taken_at_once_stay_in_one_thread():
    found: set[int] = set()
    with threads(3):
        for_each(lambda block: found.add(threading.get_ident()), range(50), alone=True)
    assert found == {threading.get_ident()}


@pytest.mark.parametrize("given", [None, 2])
@pytest.mark.parametrize("blocks", [1, 4])
def test_torch_takes_one_thread_in_rounds_but_for_what_it_divides(given, blocks):
    """Its threads wait in a loop for milliseconds, on the cores that ours need."""
    net, seen, divided = metropolis("path:3"), [], []

    def gradient(round: int, points: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        for_each(lambda block: divided.append(torch.get_num_threads()), range(blocks), alone=True)
        return points

    before = torch.get_num_threads()
    with nullcontext() if given is None else threads(given):
        for _ in iterate_rounds(algorithm("d-psgd"), net, torch.ones(3, 2), gradient, rounds=2):
            assert torch.get_num_threads() == (given or before)
    assert set(seen) == {1 if given else before}
    assert set(divided) == {given or before}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("bad", [0, 1, 7])
def test_what_a_block_raises_is_raised(count, bad):
    def act(block: int) -> None:
        if block == bad:
            raise InputError("a block", "it must work", "repair it")

    with threads(count), pytest.raises(InputError, match="a block"):
        for_each(act, range(8))


def test_threads_help_only_the_one_that_asked():
    seen: list[int] = []
    with threads(2):
        other = threading.Thread(target=lambda: seen.append(workers()))
        other.start()
        other.join()
    assert seen == [1]


def test_chunks_cover_everything():
    assert list(chunks(10, 4)) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert list(chunks(2, 0)) == [slice(0, 1), slice(1, 2)]
    assert list(chunks(0, 2)) == []


def test_one_thread_within_one_thread_changes_nothing_until_the_outer_one_ends():
    with threadpool_limits(2, user_api="blas"):
        with one_thread():
            with one_thread():
                assert _blas_threads() == {1}
            assert _blas_threads() == {1}
        assert _blas_threads() == {2}


def _blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_a_command_begins_with_one_thread():
    code = (
        "from sottovoce.support.threads import begin_with_one_thread; begin_with_one_thread()\n"
        "import numpy\n"
        "from threadpoolctl import threadpool_info\n"
        "print({part['num_threads'] for part in threadpool_info() if part['internal_api'] == 'openblas'} <= {1})"
    )
    unset = {name: value for name, value in os.environ.items() if name != OPENBLAS_THREADS}
    out = subprocess.run([sys.executable, "-c", code], env=unset, capture_output=True, text=True, check=True).stdout
    assert out.split() == ["True"]
