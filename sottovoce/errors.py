"""The errors of the package, as one tree.

    SottovoceError        exit code 1
    ├── InputError        exit code 2: what the user gave is wrong
    │   └── Diverged      a run whose numbers grew beyond all bounds
    ├── PeerLost          another process of the run is gone, or does not answer
    └── Unaccountable     exit code 3: refused, because no guarantee exists

Every message is one line and says what was found, which rule it breaks and what to do.
"""

from __future__ import annotations


class SottovoceError(Exception):
    """Any failure that this package explains itself."""

    exit_code = 1


class InputError(SottovoceError, ValueError):
    """The input breaks a rule.

    >>> raise InputError("ring:2 has 2 nodes", "a ring needs at least 3", "use path:2")
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: ring:2 has 2 nodes; a ring needs at least 3; use path:2
    """

    exit_code = 2

    def __init__(self, found: str, rule: str, remedy: str) -> None:
        super().__init__(f"{found}; {rule}; {remedy}")
        self.found, self.rule, self.remedy = found, rule, remedy

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        return type(self), (self.found, self.rule, self.remedy)


class Diverged(InputError):
    """Training diverged: a gradient or a model is not finite. Sweeps note it and go on."""


class PeerLost(SottovoceError):
    """Another process of a run over processes is gone, or does not answer."""


class Unaccountable(SottovoceError):
    """Refused: nothing is proven for this combination."""

    exit_code = 3
