"""All pairs: what every node learns about every other, one attacker at a time, resumable.

A store is a text file with one line per attacker, written as soon as it is done; a link in its place is refused. Its
first line says what it belongs to; figures of another system are never mixed in. Every other line is signed by the
user's own key: one that was edited, or that somebody else made, is computed anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.participation import Participation
from sottovoce.core.sensitivity import relative
from sottovoce.core.topologies import Rotating
from sottovoce.errors import InputError, Unaccountable
from sottovoce.privacy import views
from sottovoce.privacy.exact import routes
from sottovoce.privacy.guarantee import Figure
from sottovoce.privacy.observation import observe
from sottovoce.support.files import (
    check_writable,
    explaining,
    irregular,
    is_signed,
    open_to_append,
    read_text,
    sign,
    write_text,
)
from sottovoce.support.limits import Cost, limits_are_lifted, limits_lifted
from sottovoce.support.processes import signals_wait
from sottovoce.support.text import JSON, from_json, parse_json, to_json
from sottovoce.support.threads import WORKERS, one_thread
from sottovoce.tracing.linear_system import LinearSystem

_Mus: TypeAlias = NDArray[np.float64]

Progress = Callable[[int, int], None]
"""Called with how many attackers are done, and how many there are."""

STORE = "figures are stored in a text file", "name another file"
"""The rule that a store breaks where it cannot be read or written, and the remedy."""


def all_pairs(
    system: LinearSystem,
    scheme: Participation,
    *,
    secure_sum: bool = False,
    attackers: Sequence[int] | None = None,
    store: Path | None = None,
    begin: Callable[[list[int]], None] | None = None,
    progress: Progress | None = None,
    bounds: set[int] | None = None,
) -> NDArray[np.float64]:
    """mu of the exact loss (fixed streams): a row for each attacker (None: every node), a column for each node.

    Row a, column u is what a learns about u; 0 where they are the same.
    `begin` is called with those attackers that are not in the store, before anything is computed or written. To
    `bounds` are added the attackers whose rows are bounds.
    """
    if isinstance(system.topology, Rotating):
        raise Unaccountable(f"{system.topology.name}: whoever may be missing differs by pair; ask about single views")
    scheme.check(sum(bool(step.gradients) for step in system.steps))
    who = range(system.n) if attackers is None else attackers
    out, bounds = np.zeros((len(who), system.n)), set() if bounds is None else bounds
    title = _title(system, scheme, secure_sum)
    done = {} if store is None else _stored(store, title)
    left = [place for place, attacker in enumerate(who) if attacker not in done]
    if begin is not None:
        begin([who[place] for place in left])
    if store is not None:
        _prepare(store, title, done)
    for place, attacker in enumerate(who):
        if attacker in done:
            out[place] = [from_json(mu) for mu in done[attacker]["mu"]]
            bounds |= {attacker} if done[attacker]["figure"] == Figure.BOUND else set()
    lifted, kept = limits_are_lifted(), len(who) - len(left)

    def row(attacker: int) -> _Mus:
        observation = observe(system, views.node(attacker, secure_sum=secure_sum))
        found = np.zeros(system.n)
        with limits_lifted(lifted):  # threads of their own do not know
            loss = routes.exact_loss(observation, scheme)
        found[observation.victims] = np.sqrt(loss.squares)
        if loss.figure is Figure.BOUND:
            bounds.add(attacker)
        return found

    def keep(place: int, found: _Mus) -> None:
        nonlocal kept
        with signals_wait(lambda: None):  # no line is cut short, and what is stored is told
            out[place], kept = found, kept + 1
            if store is not None:
                _append(
                    store, _signed_row(title, who[place], found, Figure.BOUND if who[place] in bounds else Figure.EXACT)
                )
            if progress is not None:
                progress(kept, len(who))

    if progress is not None:
        progress(kept, len(who))
    with one_thread(), ThreadPoolExecutor(WORKERS) as pool:
        _keep_each({pool.submit(row, who[place]): place for place in left}, keep)
    return out


def _keep_each(rows: Mapping[Future[_Mus], int], keep: Callable[[int, _Mus], None]) -> None:
    """Keep every row as soon as it is there. Whoever stops that keeps those that are done, and begins no others."""
    left = dict(rows)
    try:
        for row in as_completed(rows):
            keep(left.pop(row), row.result())
    except BaseException as error:
        for row in left:
            row.cancel()
        if isinstance(error, KeyboardInterrupt):
            for row, place in left.items():
                if row.done() and not row.cancelled() and row.exception() is None:
                    keep(place, row.result())
        raise


def pairs_cost(
    system: LinearSystem, scheme: Participation, attackers: Sequence[int], *, secure_sum: bool = False
) -> Cost:
    """What all pairs with these attackers take, from sizes: memory of the one who hears most, work of the middle one
    for each of them."""
    heard = np.diff(system.topology.at(0).weights.indptr)
    in_order = sorted(attackers, key=lambda attacker: heard[attacker])
    middle, most = (
        routes.loss_cost(observe(system, views.node(attacker, secure_sum=secure_sum)), scheme)
        for attacker in (in_order[len(in_order) // 2], in_order[-1])
    )
    return Cost(memory=WORKERS * most.memory, seconds=len(in_order) * middle.seconds)


def sampled_attackers(n: int, count: int, seed: int) -> list[int]:
    """So many nodes at random, in order."""
    if count > n:
        raise InputError(f"a sample of {count} attackers", f"there are {n} nodes", "sample at most that many")
    return sorted(np.random.default_rng(seed).choice(n, count, replace=False).tolist())


def _title(system: LinearSystem, scheme: Participation, secure_sum: bool) -> dict[str, JSON]:
    """What figures depend on, by content: the step matrices themselves."""
    digest = hashlib.blake2b(digest_size=16)
    for step in dict.fromkeys(system.steps):
        for matrix in (step.state_out, *(sent.rows for sent in step.sent)):
            for part in (matrix.data, matrix.indices, matrix.indptr):
                digest.update(np.ascontiguousarray(part).tobytes())
    order = [list(dict.fromkeys(system.steps)).index(step) for step in system.steps]
    digest.update(json.dumps(order).encode())
    if relative(system.algorithm.sensitivity) is not None:
        digest.update(repr(system.algorithm.sensitivity).encode())
    if system.correlation is not None:
        digest.update(system.correlation.numbers(system.rounds).tobytes())
    return {
        "algorithm": system.algorithm.name,
        "noise": str(system.algorithm.noise),
        "topology": system.topology.name,
        "rounds": system.rounds,
        "participation": str(scheme),
        "secure_sum": secure_sum,
        "content": digest.hexdigest(),
    }


def _stored(store: Path, title: dict[str, JSON]) -> dict[int, Any]:
    """Rows that are there already, by attacker; lines that were cut short, or that nobody here has signed, are none."""
    text, found = _text(store), {}
    if text:
        first, *lines = text.splitlines()
        _same(store, _read(first), title)
        for line in lines:
            row = _read(line)
            if _is_ours(title, row):
                found[row["attacker"]] = row
    return found


def _prepare(store: Path, title: dict[str, JSON], rows: Mapping[int, object]) -> None:
    """Make the store begin with its title and hold these rows only."""
    text = "".join(json.dumps(line) + "\n" for line in (title, *rows.values()))
    if text != _text(store):
        with explaining(store, *STORE):
            write_text(store, text, private=True)


def _text(store: Path) -> str:
    check_writable(store)
    if store.is_symlink():
        raise irregular(store, os.lstat(store).st_mode)
    return read_text(store, *STORE) if store.exists() else ""


def _same(store: Path, found: object, title: dict[str, JSON]) -> None:
    if found == title:
        return
    rule, remedy = "its first line must say which system it is about", "name another file"
    if not isinstance(found, dict):
        raise InputError(f"{store} is not a store of figures", rule, remedy)
    differing = [f"{key} {found.get(key)}, not {title[key]}" for key in title if found.get(key) != title[key]]
    differing += [f"its first line also has {key!r:.60}" for key in found if key not in title]
    raise InputError(
        f"{store} holds figures of another system ({differing[0]})", "a store belongs to one system", remedy
    )


def _signed_row(title: Mapping[str, JSON], attacker: int, mus: _Mus, figure: Figure) -> dict[str, JSON]:
    row: dict[str, JSON] = {
        "attacker": attacker, "figure": figure.value, "mu": [to_json(mu) for mu in mus.tolist()]
    }  # fmt: skip
    return row | {"signature": sign(_content(title, row))}


def _is_ours(title: Mapping[str, JSON], row: Any) -> bool:
    """Whether this user has signed a row of this system; then it is as `_signed_row` made it."""
    try:
        return is_signed(_content(title, row), row["signature"])
    except (TypeError, KeyError, AttributeError):
        return False


def _content(title: Mapping[str, JSON], row: Mapping[str, object]) -> bytes:
    """What is signed: a row, and what it belongs to."""
    return f"all pairs {json.dumps([title, row['attacker'], row['mu'], row['figure']])}".encode()


def _read(line: str) -> Any:
    try:
        return parse_json(line)
    except ValueError:
        return None


def _append(store: Path, row: Mapping[str, JSON]) -> None:
    with explaining(store, *STORE), open_to_append(store) as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())
