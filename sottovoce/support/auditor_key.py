"""The auditor's key: it signs the reruns that this user made, so that nobody else's are believed.

Whoever sends a folder could put reruns into it that hide a leak. The key lies outside of all folders of runs, in the
user's own state folder, and only what it has signed is used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import sys
from functools import cache
from pathlib import Path

from sottovoce.errors import InputError
from sottovoce.support.files import make_private_folder, read_bytes, write_bytes

KEY_BYTES = 32


def state_folder() -> Path | None:
    """Where a user's programs keep what is theirs: $XDG_STATE_HOME, or what the platform uses; None without a home."""
    if os.environ.get("XDG_STATE_HOME"):
        return Path(os.environ["XDG_STATE_HOME"]) / "sottovoce"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".local/state") / "sottovoce"


def sign(content: bytes) -> str:
    """The signature of this user's key; the key is made when it is first needed."""
    return hmac.new(_key(state_folder()), content, hashlib.sha256).hexdigest()


def is_signed(content: bytes, signature: str) -> bool:
    """Whether this user's key made the signature."""
    return hmac.compare_digest(sign(content).encode(), signature.encode(errors="replace"))


@cache
def _key(folder: Path | None) -> bytes:
    """The key of a state folder. Without a folder that can be written it is of this process alone."""
    if folder is not None:
        path = folder / "auditor.key"
        with contextlib.suppress(OSError, InputError):
            return _read_or_make(path)
    return secrets.token_bytes(KEY_BYTES)


def _read_or_make(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        found = read_bytes(path)
        if len(found) == KEY_BYTES:
            return found
    make_private_folder(path.parent)
    key = secrets.token_bytes(KEY_BYTES)
    write_bytes(path, key, private=True)
    return read_bytes(path)
