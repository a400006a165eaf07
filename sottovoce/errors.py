"""The errors of the package, as one tree.

    SottovoceError        exit code 1: the machine failed, or something else that no other input would mend
    ├── InputError        exit code 2: what the user gave is wrong
    │   └── Diverged      a run whose numbers grew beyond all bounds
    ├── PeerLost          another process of the run is gone, or does not answer
    ├── SumFailed         a secure sum is not known; the round loop catches it
    └── Unaccountable     exit code 3: refused, because no guarantee exists
        └── Uncertified   a round is not what was traced, and what it would have sent was not sent

An audit that refutes a claim ends with exit code 4, which is no error.

Every message is one line and says what was found, which rule it breaks and what to do. `file_error` says which of them
an error of the operating system about a file is; `require_extra` refuses to go on without a package.
"""

from __future__ import annotations

import errno
import os
import re
from importlib.util import find_spec
from numbers import Integral


class SottovoceError(Exception):
    """Any failure that this package explains in its own words."""

    exit_code = 1

    @property
    def parts(self) -> tuple[str, ...]:
        """What its message is made of, and what it is made from again in another process."""
        return tuple(map(str, self.args))

    def __reduce__(self) -> tuple[type[SottovoceError], tuple[str, ...]]:
        return type(self), self.parts


class _Explained(SottovoceError):
    """What was found, which rule it breaks, and what to do, in one line."""

    def __init__(self, found: str, rule: str, remedy: str) -> None:
        super().__init__(re.sub(r"\s*\n\s*", " ", f"{found}; {rule}; {remedy}"))
        self.found, self.rule, self.remedy = found, rule, remedy

    @property
    def parts(self) -> tuple[str, ...]:
        return self.found, self.rule, self.remedy


class InputError(_Explained, ValueError):
    """The input breaks a rule.

    >>> raise InputError("ring:2 has 2 nodes", "a ring needs at least 3", "use path:2")
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: ring:2 has 2 nodes; a ring needs at least 3; use path:2
    """

    exit_code = 2


class Diverged(InputError):
    """Training diverged: a gradient or a model is not finite. Sweeps note it and go on."""


class PeerLost(SottovoceError):
    """Another process of a run over processes is gone, or does not answer."""


class SumFailed(SottovoceError):
    """A secure sum of which a message is missing, or that is out of range: nothing is learned from it."""


class Unaccountable(SottovoceError):
    """Refused: nothing is proven for this combination."""

    exit_code = 3


class Uncertified(_Explained, Unaccountable):
    """A run does something else than was traced and accounted for; it ends before that is sent."""

    exit_code = 3


def require_whole(value: object, found: str, least: int, remedy: str) -> None:
    """Refuse what is no whole number from `least` on; `found` says what it is in the error."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(found, f"it must be a whole number, {least} or more", remedy)


# --- files ------------------------------------------------------------------------------------------------------------


FULL = (errno.ENOSPC, errno.EDQUOT)
"""No room is left on the disk, or the user may not take more of it."""

FORBIDDEN = (errno.EACCES, errno.EPERM)

WRONG_PATH = (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EINVAL, errno.ENXIO, errno.ENODEV,
    errno.ESPIPE,
)  # fmt: skip
"""Another path would do."""

LONGEST_SHOWN = 160
"""Characters of a path that a message shows."""


def file_error(path: str | os.PathLike[str], error: OSError, rule: str, remedy: str) -> SottovoceError:
    """What to raise where the system refuses a file: the user's path or permissions are wrong, or the machine fails.

    `rule` and `remedy` are for a path that is wrong; what else can be wrong has remedies of its own.

    >>> file_error("runs/a", PermissionError(errno.EACCES, "Permission denied"), "a run is read", "check the path")
    InputError('runs/a: Permission denied; a run is read; give yourself the permission (chmod u+rwX), or ...')
    >>> file_error("page.html", OSError(errno.ENOSPC, "No space left on device"), "a page is written", "name another")
    SottovoceError('page.html: the disk is full; what was there before is kept; make room, then ...')
    """
    shown = shortened(os.fspath(path))
    is_folder = error.errno == errno.EISDIR
    found = f"{shown} is a folder" if is_folder else f"{shown}: {error.strerror or type(error).__name__}"
    if error.errno in FULL:
        return SottovoceError(
            f"{shown}: the disk is full; what was there before is kept; make room, then give the command again, "
            "with --resume if it was a run"
        )
    if error.errno in FORBIDDEN:
        return InputError(found, rule, "give yourself the permission (chmod u+rwX), or name another place")
    if error.errno == errno.EROFS:
        return InputError(found, rule, "name a place that you can write to")
    if error.errno == errno.ENAMETOOLONG:
        return InputError(found, "a name has at most 255 bytes, a path 4,096", "use a shorter one")
    if error.errno == errno.ELOOP:
        return InputError(found, "these links lead to each other and to no file", "name the file itself")
    if error.errno in WRONG_PATH:
        return InputError(found, rule, remedy)
    return SottovoceError(f"{found}; {rule}, and the system failed; check the disk, then give the command again")


def shortened(text: str, longest: int = LONGEST_SHOWN) -> str:
    """A text for a message; of a long one its beginning and its end."""
    return text if len(text) <= longest else f"{text[: longest // 2]}...{text[-longest // 2 :]}"


# --- packages that only some commands need, and that are installed with an extra --------------------------------------


LEARNING = {"torch": "torch", "sklearn": "scikit-learn", "safetensors": "safetensors"}
"""What the extra `learning` installs: modules, by their packages. They are imported without asking beforehand."""


def without_learning(error: BaseException) -> InputError | None:
    """What to say where an import failed because the extra `learning` is not installed; None of any other failure."""
    if not isinstance(error, ModuleNotFoundError) or error.name not in LEARNING:
        return None
    return _missing(LEARNING[error.name], "learning")


def require_extra(extra: str, *packages: str) -> None:
    """Refuse to go on without the packages of an extra.

    >>> require_extra("peers", "no_such_package")
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: no_such_package is not installed; this needs the extra 'peers'; type pip install
    "sottovoce[peers]"
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise _missing(missing[0], extra)


def _missing(package: str, extra: str) -> InputError:
    return InputError(
        f"{package} is not installed", f"this needs the extra {extra!r}", f'type pip install "sottovoce[{extra}]"'
    )
