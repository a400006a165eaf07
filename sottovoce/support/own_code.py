"""Code of the user's own that settings name: `mine.py:Momentum`.

Settings may come from anybody, so they load no code by themselves. A file is looked for in one folder, which the user
names, and nowhere else:

    >>> named_object("mine.py:Momentum", Offered.ALGORITHM)
    Traceback (most recent call last):
    ...
    sottovoce.errors.InputError: algorithm 'mine.py:Momentum' is code, and no folder was named that holds it; ...
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from sottovoce.errors import InputError, SottovoceError, file_error, shortened
from sottovoce.support.files import read_bytes

_NAME = re.compile(r"(?P<file>[^:]+\.py):(?P<object>[A-Za-z_]\w*)")

_folder: ContextVar[Path | None] = ContextVar("the folder of the user's own code", default=None)


class Offered(StrEnum):
    """What code can be named for, as errors call it."""

    ALGORITHM = "algorithm"
    MODEL = "model"
    DATASET = "dataset"
    FEATURES = "feature"


@dataclass(frozen=True)
class NamedObject:
    """What a name stands for, and a digest of the code it comes from."""

    value: object
    digest: str


@contextmanager
def code_from(folder: str | Path | None) -> Iterator[None]:
    """A context in which settings may name code that lies in this folder; with None, none may.

    What that code raises becomes an `InputError` that names its file and line.
    """
    place = None if folder is None else Path(folder)
    if place is not None and not place.is_dir():
        raise InputError(f"{place} is not a folder", "code is looked for in a folder", "name the folder of your code")
    before = _folder.set(place)
    try:
        yield
    except Exception as error:
        explained = raised_in_own_code(error)
        if explained is None:
            raise
        raise explained from error
    finally:
        _folder.reset(before)


def code_folder() -> Path | None:
    """The folder in which code that settings name is looked for; None where none may be loaded."""
    return _folder.get()


def raised_in_own_code(error: BaseException) -> InputError | None:
    """What went wrong, by the last line of the user's own code on the way there; None where none of it was."""
    if isinstance(error, SottovoceError | MemoryError) or not isinstance(error, Exception):
        return None
    place = _place(error)
    if place is None:
        return None
    return InputError(
        f"{place}: {type(error).__name__}: {shortened(str(error))}", "your own code raised this error", "correct it"
    )


def _place(error: BaseException) -> str | None:
    """The last file and line of the user's own code that an error came through; None where there is none."""
    trace, found = error.__traceback__, None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        found = f"{file}, line {trace.tb_lineno}" if file in _files_of_own_code else found
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename in _files_of_own_code:
        found = f"{error.filename}, line {error.lineno}" if error.lineno else error.filename
    return found


def is_code(name: str) -> bool:
    """Whether a name stands for an object in a file of code.

    >>> is_code("mine.py:Momentum"), is_code("dp-d-sgd"), is_code("file:rows.npz")
    (True, False, False)
    """
    return _NAME.fullmatch(name) is not None


def named_object(name: str, kind: Offered) -> NamedObject | None:
    """The object in a file of code that a name stands for; None where it is no such name."""
    named = _NAME.fullmatch(name)
    if named is None:
        return None
    path = _file(name, named["file"], kind)
    try:
        source = read_bytes(path, follow_links=True)
    except OSError as error:
        raise file_error(path, error, "it holds the code that settings name", "check the name") from None
    module = _load(path, source)
    if not hasattr(module, named["object"]):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise InputError(
            f"{path} has no {named['object']}", f"{kind} = {name!r} names an object in that file",
            f"it has: {', '.join(own) or 'nothing of its own'}",
        )  # fmt: skip
    return NamedObject(getattr(module, named["object"]), hashlib.sha256(source).hexdigest())


def code_digest(name: str, kind: Offered) -> str | None:
    """A digest of the code that a name stands for; None for what the package itself has under that name."""
    found = named_object(name, kind)
    return None if found is None else found.digest


# --- files -----------------------------------------------------------------------------------------------------------


def _file(name: str, file: str, kind: Offered) -> Path:
    """Where the file is, in the folder that the user has named."""
    folder = code_folder()
    if folder is None:
        raise InputError(
            f"{kind} {name!r} is code, and no folder was named that holds it",
            "settings alone load no code, and run folders hold none",
            f"read {file}, then name its folder with --code",
        )
    path, inside = Path(file), Path(os.path.realpath(folder / file))  # which takes links in a circle as they are
    if path.is_absolute() or not inside.is_relative_to(os.path.realpath(folder)):
        raise InputError(
            f"{kind} {name!r} is outside {folder}", "code must be in the folder that was named", "move it there"
        )
    if not inside.is_file():
        raise InputError(
            f"{kind} {name!r}: there is no {file} in {folder}",
            "code must be beside the run file, or in the folder of --code",
            "check the name, or name the folder with --code",
        )  # fmt: skip
    return inside


_modules: dict[tuple[Path, bytes], ModuleType] = {}

_files_of_own_code: set[str] = set()
"""The files that were loaded, as tracebacks name them."""


def _load(path: Path, source: bytes) -> ModuleType:
    """The module of a file as it is now; loaded once, so that its classes stay the same."""
    key = (path, hashlib.sha256(source).digest())
    if key not in _modules:
        module = ModuleType(f"{path.stem}_{key[1].hex()[:12]}")
        module.__file__ = str(path)
        sys.modules[module.__name__] = module  # dataclasses and type hints look themselves up there
        _files_of_own_code.add(str(path))
        try:
            exec(compile(source, str(path), "exec"), vars(module))
        except (Exception, SystemExit, GeneratorExit) as error:
            del sys.modules[module.__name__]
            raise InputError(
                f"{_place(error) or path}: {type(error).__name__}: {error}",
                "code that settings name must be loadable",
                "correct it",
            ) from error
        _modules[key] = module
    return _modules[key]
