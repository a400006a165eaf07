"""Views: what an adversary sees of a run, and what it knows already.

A view selects messages of the traced system and removes the columns it knows: the gradients and the noise of its
members, and the secrets they share. What remains is the linear system that its loss is computed from.

    >>> parse_view("coalition:3,5")
    View(kind='coalition', members=(3, 5), edges=(), secrets_of=(), secure_sum=False)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sottovoce.errors import InputError, Unaccountable

NAMED = 8
"""Of more nodes than this whose secrets are known, their number is said."""


@dataclass(frozen=True)
class View:
    """An adversary.

    - `everyone`: hears all messages and knows nobody's secrets (but those of `secrets_of`: SecLDP);
    - `coalition`: hears what its members receive, knows their gradients, their noise and the secrets they share;
    - `eavesdropper`: hears what travels along some directed edges (sender, receiver).

    With `secure_sum` a receiver learns only the weighted sum of what it receives in a step.
    """

    kind: str
    members: tuple[int, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    secrets_of: tuple[int, ...] = ()
    secure_sum: bool = False

    def __str__(self) -> str:
        if self.kind == "everyone":
            of = self.secrets_of
            named = f"{len(of)} nodes" if len(of) > NAMED else ",".join(map(str, of))
            return f"everyone with the secrets of {named}" if of else "everyone"
        if self.kind == "eavesdropper":
            return "eavesdropper:" + ",".join(f"{a}>{b}" for a, b in self.edges)
        return f"{'node' if len(self.members) == 1 else 'coalition'}:{','.join(map(str, self.members))}"

    def check(self, n: int) -> None:
        """Refuse nodes that are not there."""
        for node in (*self.members, *self.secrets_of, *(end for edge in self.edges for end in edge)):
            if not 0 <= node < n:
                raise InputError(f"node {node} in view {self}", f"nodes are 0..{n - 1}", "choose one of them")
        if self.kind == "coalition" and len(set(self.members)) >= n:
            raise InputError(f"view {self} has all {n} nodes", "somebody must be left to protect", "leave one out")


def everyone(*, secrets_of: tuple[int, ...] = (), secure_sum: bool = False) -> View:
    """Whoever hears all messages; with `secrets_of`, one who knows the secrets of these nodes besides."""
    return View("everyone", secrets_of=secrets_of, secure_sum=secure_sum)


def node(a: int, *, secure_sum: bool = False) -> View:
    """One curious node: it hears what is sent to it, and knows its own gradients, noise and secrets."""
    return View("coalition", (a,), secure_sum=secure_sum)


def coalition(*members: int, secure_sum: bool = False) -> View:
    """Several nodes that put together what they hear and know."""
    return View("coalition", tuple(sorted(set(members))), secure_sum=secure_sum)


def eavesdropper(*edges: tuple[int, int]) -> View:
    """Whoever taps some directed edges, (sender, receiver)."""
    return View("eavesdropper", edges=tuple(edges))


def parse_view(spec: str | View, *, secure_sum: bool = False) -> View:
    """A view from its name: `everyone`, `node:3`, `coalition:3,5`, `eavesdropper:0>1,1>0`."""
    if isinstance(spec, View):
        return spec
    if spec == "everyone":
        return everyone(secure_sum=secure_sum)
    if re.fullmatch(r"node:\d+", spec):
        return node(int(spec[5:]), secure_sum=secure_sum)
    if re.fullmatch(r"coalition:\d+(,\d+)*", spec):
        return coalition(*(int(a) for a in spec[10:].split(",")), secure_sum=secure_sum)
    if re.fullmatch(r"eavesdropper:\d+>\d+(,\d+>\d+)*", spec):
        if secure_sum:
            raise Unaccountable(
                f"{spec} with secure summation: whoever taps a wire sees ciphertext; drop one of the two"
            )
        pairs = (edge.split(">") for edge in spec[13:].split(","))
        return eavesdropper(*((int(a), int(b)) for a, b in pairs))
    raise InputError(f"view {spec!r}", "known: everyone, node:A, coalition:A,B, eavesdropper:A>B", "write node:0, say")


# --- what is left of a traced system -------------------------------------------------------------------------------
