"""Views: who an adversary is. What it gets of a traced system, and what it knows of it, is in `observation`.

    >>> parse_view("coalition:3,5") == coalition(5, 3)
    True
    >>> str(parse_view("node:Ada", labels=["Bob", "Ada"]))
    'node:1'
    >>> [str(view) for view in parse_view("coalition:any-2").coalitions(3)]
    ['coalition:0,1', 'coalition:0,2', 'coalition:1,2']

A new kind of view needs an entry in `FORMS`, its text in `str`, and a rule in `observation.selected_messages`: which
messages it gets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple

from sottovoce.core.final_models import FinalModels, parse_final_models
from sottovoce.errors import InputError, Unaccountable

LISTED = 8
"""Of more nodes than this, text about a view gives the number only."""


class ViewKind(StrEnum):
    """Which messages an adversary gets: all of them, those to its members, or those on some edges.

    `any-coalition` is each of many adversaries, of which the worst counts.
    """

    EVERYONE = "everyone"
    COALITION = "coalition"
    ANY_COALITION = "any-coalition"
    EAVESDROPPER = "eavesdropper"


LONGEST_COUNT = 8
"""Digits of the number of nodes of the largest graph that is built."""


@dataclass(frozen=True)
class View:
    """An adversary.

    - `everyone`: sees all messages, and knows no shared secrets except those of `secrets_of` (the SecLDP adversary);
    - `coalition`: sees what its members receive, and knows their gradients, their noise and the secrets they share;
    - `any-coalition`: every coalition of `size` nodes, for each victim the one that learns most;
    - `eavesdropper`: sees what travels along some directed edges (sender, receiver).

    A view that would see nothing is refused: a guarantee against it would be a guarantee against nobody.

    With `secure_sum` a receiver learns only the weighted sum of what it receives in a step. `final_models` are those
    that it also sees after the last round.
    """

    kind: ViewKind
    members: tuple[int, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    secrets_of: tuple[int, ...] = ()
    secure_sum: bool = False
    size: int = 0
    final_models: FinalModels = FinalModels.NONE

    def __post_init__(self) -> None:
        if not isinstance(self.kind, ViewKind):
            raise InputError(f"view of kind {self.kind!r}", f"known: {', '.join(ViewKind)}", "choose one of them")
        if self.kind is ViewKind.COALITION and not self.members:
            raise InputError("a coalition without members", "it would see nothing", "name a node")
        if self.kind is ViewKind.EAVESDROPPER and not self.edges:
            raise InputError("an eavesdropper without edges", "it would see nothing", "name an edge")
        if self.kind is ViewKind.ANY_COALITION and self.size < 1:
            raise InputError(f"coalitions of {self.size} nodes", "they would see nothing", "take 1 or more")
        if self.kind is ViewKind.EAVESDROPPER and self.secure_sum:
            raise Unaccountable(
                f"{self} with secure summation: an eavesdropper sees only ciphertext; leave one of the two out"
            )

    def __str__(self) -> str:
        return _adversary(self) + _suffix(self.final_models)

    def check(self, n: int) -> None:
        """Refuse nodes that are not there."""
        for node in (*self.members, *self.secrets_of, *(end for edge in self.edges for end in edge)):
            if not 0 <= node < n:
                raise InputError(f"node {node} in view {self}", f"nodes are 0..{n - 1}", "choose one of them")
        if self.kind is ViewKind.COALITION and len(set(self.members)) >= n:
            raise InputError(
                f"view {self} has all {n} nodes", "at least one node must be left to protect", "leave one out"
            )
        if self.kind is ViewKind.ANY_COALITION and self.size >= n:
            raise InputError(
                f"view {self} of a graph with {n} nodes",
                "at least one node must be left to protect",
                f"take at most {n - 1}",
            )

    def coalitions(self, n: int) -> Iterator[View]:
        """The adversaries that it stands for among `n` nodes: itself, unless it is any coalition of a size."""
        if self.kind is not ViewKind.ANY_COALITION:
            yield self
            return
        for members in combinations(range(n), self.size):
            yield replace(self, kind=ViewKind.COALITION, members=members, size=0)


def everyone(*, secrets_of: tuple[int, ...] = ()) -> View:
    """Whoever hears all messages; with `secrets_of`, one who knows the secrets of these nodes besides."""
    return View(ViewKind.EVERYONE, secrets_of=secrets_of)


def node(a: int, *, secure_sum: bool = False) -> View:
    """One curious node: it hears what is sent to it, and knows its own gradients, noise and secrets."""
    return View(ViewKind.COALITION, (a,), secure_sum=secure_sum)


def coalition(*members: int, secure_sum: bool = False) -> View:
    """Several nodes that put together what they hear and know."""
    return View(ViewKind.COALITION, tuple(sorted(set(members))), secure_sum=secure_sum)


def any_coalition(size: int, *, secure_sum: bool = False) -> View:
    """Every coalition of so many nodes; of one node, every single node."""
    return View(ViewKind.ANY_COALITION, size=size, secure_sum=secure_sum)


def eavesdropper(*edges: tuple[int, int]) -> View:
    """Whoever taps some directed edges, (sender, receiver)."""
    return View(ViewKind.EAVESDROPPER, edges=tuple(edges))


def with_final_models(view: View, which: str) -> View:
    """The same adversary, which sees these models after the last round as well; `none` adds nothing.

    >>> str(with_final_models(node(3), "all"))
    'node:3 and all final models'
    """
    found = parse_final_models(which)
    return view if found is FinalModels.NONE else replace(view, final_models=found)


# --- views as text -------------------------------------------------------------------------------------------------

NAME = "[^,>]+"
"""A node: its number, or the name that the graph gives it."""

WITH_SECRETS = "with the secrets of"

Operands = list[tuple[int, ...]]
"""What stands between commas: nodes as tuples of one number, edges as tuples of two."""


class ViewForm(NamedTuple):
    """One way to write a view: how it begins, what follows, with letters for nodes and as a pattern, and the view."""

    head: str
    operands: str
    pattern: str
    build: Callable[[Operands], View]


EVERYONE = ViewForm("everyone", "", "", lambda _: everyone())
NODE = ViewForm("node:", "A", NAME, lambda nodes: node(nodes[0][0]))
COALITION = ViewForm(
    "coalition:", "A,B", f"{NAME}(,{NAME})*", lambda nodes: coalition(*(number for (number,) in nodes))
)
ANY_COALITION = ViewForm("coalition:any-", "K", "[0-9]+", lambda sizes: any_coalition(sizes[0][0]))
EAVESDROPPER = ViewForm(
    "eavesdropper:", "A>B", f"{NAME}>{NAME}(,{NAME}>{NAME})*", lambda edges: eavesdropper(*((a, b) for a, b in edges))
)

FORMS = (EVERYONE, NODE, ANY_COALITION, COALITION, EAVESDROPPER)


def parse_view(spec: str | View, *, labels: Sequence[str] | None = None, secure_sum: bool = False) -> View:
    """A view from its text: `everyone`, `node:3`, `coalition:3,5`, `coalition:any-2`, `eavesdropper:0>1,1>0`.

    `labels` are the names of a graph's nodes in their order; with them, names may stand in place of numbers.
    """
    if isinstance(spec, View):
        return spec
    text = spec if isinstance(spec, str) else ""
    for form in FORMS:
        rest = text.removeprefix(form.head)
        if text.startswith(form.head) and re.fullmatch(form.pattern, rest):
            operands = [item.split(">") for item in rest.split(",")] if rest else []
            view = form.build([tuple(node_number(name, labels) for name in names) for names in operands])
            return replace(view, secure_sum=secure_sum)
    known = ", ".join(form.head + form.operands for form in FORMS)
    raise InputError(f"view {spec!r:.60}", f"known: {known}", "write node:0, for example")


def node_number(name: str, labels: Sequence[str] | None = None) -> int:
    """The number of a node that is given by its number or by its name among the `labels` of a graph.

    >>> node_number("Mercy", ["Charite", "Hill"])
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: there is no node called 'Mercy' in this graph; its nodes are: Charite, Hill; ...
    """
    if name.isdecimal() and len(name) <= LONGEST_COUNT:
        return int(name)
    if not labels:
        raise InputError(
            f"there is no node called {name!r:.60} in this graph", "its nodes are numbers from 0", "give one"
        )
    if name not in labels:
        known = ", ".join(labels[:LISTED]) + (", ..." if len(labels) > LISTED else "")
        raise InputError(
            f"there is no node called {name!r} in this graph", f"its nodes are: {known}", "name one of them"
        )
    return labels.index(name)


def node_numbers(nodes: Sequence[int | str], labels: Sequence[str] | None = None) -> list[int]:
    """The numbers of nodes that are given by numbers or names, each once, in their order.

    >>> node_numbers(["Hill", 0, "Hill"], ["Charite", "Hill"])
    [0, 1]
    """
    return sorted({node if isinstance(node, int) else node_number(node, labels) for node in nodes})


def read_view(text: str) -> View:
    """The view that `str` wrote. Secrets of a mere number of nodes are those of all nodes, as runs write them.

    >>> written = everyone(secrets_of=(0, 2)), node(3), eavesdropper((0, 1)), any_coalition(2)
    >>> all(read_view(str(view)) == view for view in written)
    True
    >>> read_view("node:3 and all final models") == with_final_models(node(3), "all")
    True
    """
    for which in (FinalModels.AVERAGE, FinalModels.ALL):
        if text.endswith(_suffix(which)):
            return replace(read_view(text.removesuffix(_suffix(which))), final_models=which)
    found = re.fullmatch(rf"{EVERYONE.head} {WITH_SECRETS} (?:(\d+) nodes|(\d+(?:,\d+)*))", text)
    if found is None:
        return parse_view(text)
    count, listed = found.groups()
    if count and len(count) > LONGEST_COUNT:
        raise InputError(f"view {text!r:.60}", "no graph has so many nodes", "name fewer")
    return everyone(secrets_of=tuple(range(int(count))) if count else tuple(map(int, listed.split(","))))


def _suffix(which: FinalModels) -> str:
    return "" if which is FinalModels.NONE else f" and {which.noun}"


def _adversary(view: View) -> str:
    if view.kind is ViewKind.EVERYONE:
        nodes = view.secrets_of
        listed = f"{len(nodes)} nodes" if len(nodes) > LISTED else ",".join(map(str, nodes))
        return f"{EVERYONE.head} {WITH_SECRETS} {listed}" if nodes else EVERYONE.head
    if view.kind is ViewKind.EAVESDROPPER:
        return EAVESDROPPER.head + ",".join(f"{sender}>{receiver}" for sender, receiver in view.edges)
    if view.kind is ViewKind.ANY_COALITION:
        return f"{ANY_COALITION.head}{view.size}"
    form = NODE if len(view.members) == 1 else COALITION
    return form.head + ",".join(map(str, view.members))
