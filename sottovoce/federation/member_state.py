"""The state of a member's loop as bytes, for its ledger: its own rows, copies of others, and public numbers."""

from __future__ import annotations

import json
import math
from typing import TypeAlias

import numpy as np

from sottovoce.core import arrays
from sottovoce.core.algorithm import State
from sottovoce.core.arrays import Reals
from sottovoce.distributed.sharded_rows import Halo, ShardedRows, as_tensor
from sottovoce.support.text import parse_json

Numbers: TypeAlias = list[float]
"""The leaves of a state that are no arrays, in their order."""


def encode_arrays(named: dict[str, Reals]) -> bytes:
    """Arrays by name as bytes: the length of a header, the header, and the numbers one array after the other.

    They are copied once; an archive of numpy copies and adds them up three times, which a ledger feels.
    """
    whole = {name: np.ascontiguousarray(values) for name, values in named.items()}
    header = json.dumps({name: [values.dtype.str, values.shape] for name, values in whole.items()}).encode()
    numbers = (values.reshape(-1).view(np.uint8).data for values in whole.values() if values.size)
    return b"".join((len(header).to_bytes(8, "big"), header, *numbers))


def decode_arrays(stored: bytes) -> dict[str, Reals]:
    """What `encode_arrays` made; nothing is ever unpickled."""
    start = 8 + int.from_bytes(stored[:8], "big")
    named: dict[str, Reals] = {}
    for name, (kind, shape) in parse_json(stored[8:start].decode()).items():
        count = math.prod(shape)
        named[name] = np.frombuffer(stored, np.dtype(kind), count, start).reshape(shape).copy()
        start += named[name].nbytes
    assert start == len(stored), "arrays of another form"
    return named


def encode_state(state: State) -> bytes:
    """All that the loop needs to go on."""
    named: dict[str, Reals] = {}
    numbers: Numbers = []
    _collect(state, named, numbers)
    return encode_arrays({"numbers": np.array(numbers), **named})


def decode_state(stored: bytes, like: State) -> State:
    """The state that was encoded, nested as `like`, the state of the same loop before its first round."""
    named = decode_arrays(stored)
    numbers: Numbers = named.pop("numbers").tolist()
    state = _restored(like, named, numbers)
    assert not named, "a state of another loop"
    assert not numbers, "a state of another loop"
    return state


def _collect(value: State, named: dict[str, Reals], numbers: Numbers) -> None:
    if value is None or isinstance(value, bool | int | float):
        numbers.append(np.nan if value is None else float(value))
    elif isinstance(value, tuple):
        for part in value:
            _collect(part, named, numbers)
    elif isinstance(value, ShardedRows):
        if value.halo is not None:
            named[f"{len(named)}"] = arrays.to_numpy(value.halo.rows)
        named[f"{len(named)}"] = arrays.to_numpy(value.own)
    else:
        named[f"{len(named)}"] = arrays.to_numpy(value)


def _restored(like: State, named: dict[str, Reals], numbers: Numbers) -> State:
    if like is None or isinstance(like, bool | int | float):
        found = numbers.pop(0)
        return None if like is None else type(like)(found)
    if isinstance(like, tuple):
        parts = [_restored(part, named, numbers) for part in like]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    if isinstance(like, ShardedRows):
        halo = None if like.halo is None else Halo(like.halo.nodes, as_tensor(_next(named, like.halo.rows)))
        return ShardedRows(like.shard, as_tensor(_next(named, like.own)), halo)
    return _next(named, like)


def _next(named: dict[str, Reals], like: arrays.Rows) -> arrays.Rows:
    values = named.pop(next(iter(named)))
    assert values.shape == tuple(like.shape), "a state of another loop"
    return arrays.convert(values, like)
