"""Memory is used again when nobody refers to it, and never before: not while a view, or a part of a tensor, lives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sottovoce import algorithm, iterate_rounds, metropolis
from sottovoce.core.row_memory import ROW_MEMORY, SMALLEST, RowMemory

SHAPE = (4, SMALLEST // 4)

HOLDERS = {
    "the array": lambda array: array,
    "a view": lambda array: array[1:3, ::2],
    "a view of a view": lambda array: array[1:][:, 1:].T,
    "a tensor": torch.from_numpy,
    "a part of a tensor": lambda array: torch.from_numpy(array)[2].view(-1, 2),
    "a tensor's array": lambda array: torch.from_numpy(array)[1].numpy(),
}


def address(array) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_is_taken_again_only_when_nobody_refers_to_it(holder):
    memory = RowMemory()
    array = memory.take(SHAPE, np.float32)
    first, held = address(array), HOLDERS[holder](array)
    del array
    second = memory.take(SHAPE, np.float32)
    assert address(second) != first
    del held
    assert address(memory.take(SHAPE, np.float32)) == first


def test_memory_of_another_size_is_not_taken_and_of_another_type_is():
    memory = RowMemory()
    first = address(memory.take(SHAPE, np.float32))
    assert address(memory.take((2, *SHAPE), np.float32)) != first
    again = memory.take((SHAPE[0], SHAPE[1] // 2), np.float64)
    assert address(again) == first
    assert (again.shape, again.dtype) == ((SHAPE[0], SHAPE[1] // 2), np.dtype(np.float64))


def test_only_unused_memory_is_dropped():
    memory = RowMemory()
    kept, dropped = (memory.take(SHAPE, np.float32) for _ in range(2))
    first = address(kept)
    del dropped
    memory.drop_unused()
    assert len(memory._arrays) == 1
    del kept
    assert address(memory.take(SHAPE, np.float32)) == first


def test_what_is_in_use_outlives_the_memory_that_is_kept():
    memory = RowMemory()
    array = memory.take(SHAPE, np.float32)
    array[:] = 3.0
    memory.clear()
    memory.take(SHAPE, np.float32)[:] = 4.0
    assert (array == 3.0).all()


def test_rounds_that_somebody_keeps_are_not_written_over():
    """Every played round is kept; models after each are those of a run of which only the last is looked at."""
    net, x0 = metropolis("ring:4"), torch.zeros(4, SMALLEST // 4)

    def played():
        return iterate_rounds(algorithm("d-psgd", step_size=0.5), net, x0, lambda t, x: x - t - 1.0, rounds=6)

    kept = list(played())
    for one, again in zip(kept, played(), strict=True):
        assert torch.equal(one.models, again.models)
    assert ROW_MEMORY._arrays == []
