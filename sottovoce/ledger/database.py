"""The file of a ledger: SQLite, flushed at every commit, readable by its owner alone, written by one process at a time.

All facts are entries of one table, each with a hash over itself and the hash before it, so that an entry that was
edited, taken out or put in between is noticed. Whoever computes every hash anew is not, nor whoever puts an older copy
of the file back; the receipts of neighbours show both (`steps.py`).

Bytes that may be needed again stand in a table of their own and can be deleted; their hashes are in entries.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock
from typing import IO

from sottovoce.errors import InputError, SottovoceError, file_error
from sottovoce.support.config import Document
from sottovoce.support.files import irregular, open_to_append
from sottovoce.support.text import JSON, parse_json

FORMAT = 3
"""Of the tables; a file of another format is refused."""

TABLES = """
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, hash BLOB NOT NULL
);
CREATE INDEX entry_by_key ON entries (kind, key, number);
CREATE TABLE payloads (
    key TEXT, kind TEXT, name TEXT, bytes BLOB, start INTEGER, length INTEGER, PRIMARY KEY (key, kind, name)
);
"""
"""`start` and `length` are of earlier versions, which kept long bytes in a file of their own."""

BESIDE = ("-wal", "-shm", "-journal")
"""How names of files end that SQLite keeps beside a ledger."""

PAGE_BYTES = 1 << 14
"""Of a new file: messages are long, and small pages cost time for each."""

LARGEST_LOG = 1 << 24
"""Bytes to which the log beside a ledger is cut after a long transaction."""

BEGINNING = hashlib.sha256(b"sottovoce ledger").digest()
"""What the hash of the first entry covers in place of a hash before it."""


@dataclass(frozen=True)
class Entry:
    """One fact of a ledger; `key` is what it is about."""

    kind: str
    key: str
    body: Document


class Database:
    """An open ledger. `add` belongs into a `transaction`, whose end is on the disk when it returns.

    Any thread may use it: transactions of one wait for those of others.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: IO[str] | None) -> None:
        self.path, self._connection, self._lock = path, connection, lock
        self.is_usable, self._turn = True, RLock()
        self._number, self._hash = _check_chain(path, connection)

    @contextmanager
    def transaction(self, *, flush: bool = True) -> Iterator[None]:
        """All of it or nothing; on the disk at the end. A failure to write is final: the ledger is not used again.

        Without `flush` a power failure may undo it, together with all that follows up to the next flush; a kill cannot.
        """
        with self._turn:
            if not self.is_usable:
                raise SottovoceError(f"{self.path}: an earlier write failed; start again with --resume")
            before = self._number, self._hash
            try:
                self._connection.execute(f"PRAGMA synchronous={'FULL' if flush else 'NORMAL'}")
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException as error:
                self._number, self._hash = before
                if isinstance(error, sqlite3.Error):
                    self.is_usable = False
                    raise _unwritten(self.path, error) from None
                self._connection.execute("ROLLBACK")
                raise

    # --- bytes that may be needed again ----------------------------------------------------------------------------

    def store(self, key: str, kind: str, payloads: Mapping[str, bytes]) -> None:
        """Within a transaction: bytes under a key, a kind and names."""
        rows = [(key, kind, name, payload) for name, payload in payloads.items()]
        self._connection.executemany("INSERT INTO payloads (key, kind, name, bytes) VALUES (?, ?, ?, ?)", rows)

    def stored(self, key: str, kind: str) -> dict[str, bytes]:
        """The bytes under a key and a kind, by name."""
        found = self.rows("SELECT name, bytes FROM payloads WHERE key = ? AND kind = ? ORDER BY name", (key, kind))
        if any(payload is None for _, payload in found):
            raise damaged(self.path, "an earlier version kept long messages elsewhere")
        return dict(map(tuple, found))

    def drop(self, where: str, values: tuple[object, ...]) -> None:
        """Within a transaction: delete payloads. SQLite writes zeros over them."""
        self._connection.execute(f"DELETE FROM payloads WHERE {where}", values)

    def shrink(self) -> None:
        """Give back the room of what was deleted, if the disk and memory have room for what is left meanwhile."""
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA temp_store=MEMORY")  # nothing of a ledger lies anywhere else
            self._connection.execute("VACUUM")

    # --- entries ---------------------------------------------------------------------------------------------------

    def add(self, kind: str, key: str, body: Mapping[str, JSON]) -> None:
        """A further entry, within a transaction."""
        text, number = json.dumps(body, sort_keys=True, separators=(",", ":")), self._number + 1
        self._number, self._hash = number, _hash(self._hash, number, kind, key, text)
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (number, kind, key, text, self._hash))

    def entries(self, *kinds: str) -> list[Entry]:
        """All entries of these kinds, in the order in which they were written."""
        return list(self._entries(f"kind IN ({', '.join('?' * len(kinds))}) ORDER BY number", *kinds))

    def entries_about(self, kind: str, key: str) -> list[Entry]:
        """The entries of a kind about one thing."""
        return list(self._entries("kind = ? AND key = ? ORDER BY number", kind, key))

    def newest_first(self, kind: str, prefix: str) -> Iterator[Entry]:
        """The entries of a kind whose keys begin so, from the last key on; read as they are asked for."""
        where = "kind = ? AND key >= ? AND key < ? ORDER BY key DESC, number DESC"
        return self._entries(where, kind, prefix, prefix + "~")

    def _entries(self, where: str, *values: str) -> Iterator[Entry]:
        for kind, key, body in self._connection.execute(f"SELECT kind, key, body FROM entries WHERE {where}", values):
            yield Entry(kind, key, parse_json(body))

    def rows(self, query: str, values: tuple[object, ...] = ()) -> list[sqlite3.Row]:
        """The rows that a query finds."""
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise damaged(self.path, str(error)) from None

    def verify(self) -> None:
        """Refuse a file that was edited: every hash, and SQLite's own structures."""
        _check_chain(self.path, self._connection)
        if (found := self.rows("PRAGMA integrity_check")[0][0]) != "ok":
            raise damaged(self.path, found)

    def close(self) -> None:
        """Close the file and let other processes write."""
        self._connection.close()
        if self._lock is not None:
            self._lock.close()


@contextmanager
def open_ledger(path: Path, *, read_only: bool = False) -> Iterator[Database]:
    """The ledger in a file, made if it is not there yet; with `read_only`, also while another process writes."""
    if read_only:
        _check_file(path)
    lock = None if read_only else _make_and_lock(path)
    try:
        database = Database(path, _connect(path, read_only), lock)
    except BaseException:
        if lock is not None:
            lock.close()
        raise
    try:
        yield database
    finally:
        database.close()


def _check_file(path: Path) -> None:
    if not path.exists():
        raise InputError(
            f"{path}: no such file", "a ledger is one file", "make it, for example with sotto run --ledger"
        )
    if not path.is_file():
        raise InputError(f"{path} is not a file", "a ledger is one file", "name another")
    if path.is_symlink():
        raise InputError(
            f"{path} is a link", "through a link, two processes could write the same ledger", "name the file"
        )
    if path.stat().st_mode & 0o077:
        raise InputError(f"{path}: others can read it", "only its owner may read a ledger", f"type chmod 600 {path}")
    for beside in (Path(f"{path}{end}") for end in BESIDE):
        if beside.is_symlink() or (beside.exists() and not beside.is_file()):
            raise irregular(beside, os.lstat(beside).st_mode)


def _make_and_lock(path: Path) -> IO[str]:
    """Make the file, for its owner alone, unless it is there; one process holds the lock beside it."""
    with ExitStack() as failed:
        try:
            lock = failed.enter_context(open_to_append(Path(f"{path}.lock")))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                flush_folder(path.absolute().parent)
            _check_permission(path)
        except BlockingIOError:
            raise InputError(
                f"{path}: another process uses it",
                "only one process at a time can write it",
                "wait until the other process has ended",
            ) from None
        except OSError as error:
            raise file_error(
                error.filename or path, error, "the ledger must be writable", "name a file of yours"
            ) from None
        _check_file(path)
        failed.pop_all()
    return lock


def flush_folder(folder: Path) -> None:
    """That a file was made in it is on the disk when this returns."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_permission(path: Path) -> None:
    """SQLite writes the file, and others beside it."""
    for place in (path, path.absolute().parent):
        if not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return."""
    mode = "ro" if read_only else "rw"
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=10.0,
            check_same_thread=False,
        )  # fmt: skip
        connection.row_factory = sqlite3.Row
        if not read_only:
            connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA journal_size_limit={LARGEST_LOG}")
            connection.execute("PRAGMA secure_delete=ON")
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found == 0 and not read_only and not connection.execute("SELECT * FROM sqlite_master").fetchone():
            connection.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version={FORMAT}; COMMIT;")
            found = FORMAT
        is_alike = _tables(connection) == _expected_tables()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise _unwritten(path, error) from None
        raise damaged(path, str(error)) from None
    if found != FORMAT or not is_alike:
        connection.close()
        if found == FORMAT:
            raise damaged(path, "its tables are others")
        raise InputError(f"{path}: not a ledger of this version", f"its format is {FORMAT}", "name another file")
    return connection


def _tables(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Tables, indices and triggers, as they were made."""
    return {tuple(row) for row in connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql NOT NULL")}


@cache
def _expected_tables() -> set[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        return _tables(connection)


def _check_chain(path: Path, connection: sqlite3.Connection) -> tuple[int, bytes]:
    """The number and hash of the last entry; refused where the hash of one does not fit it and the one before."""
    found, before = 0, BEGINNING
    try:
        for number, kind, key, text, digest in connection.execute("SELECT * FROM entries ORDER BY number"):
            found, before = found + 1, _hash(before, found + 1, kind, key, text)
            if number != found or before != digest:
                raise damaged(path, f"entry {found} does not fit its hash")
    except sqlite3.Error as error:
        raise damaged(path, str(error)) from None
    except TypeError:  # bytes in place of text
        raise damaged(path, f"entry {found + 1} is not text") from None
    return found, before


def _hash(before: bytes, number: int, *parts: str) -> bytes:
    return hashlib.sha256(before + json.dumps([number, *parts]).encode()).digest()


def damaged(path: Path, what: str) -> InputError:
    """What to raise where a ledger is not as it was written."""
    return InputError(
        f"{path}: edited or damaged ({what})", "a ledger must be as it was written",
        "do not restore an older copy; keep the file, and count its whole budget as spent",
    )  # fmt: skip


def _unwritten(path: Path, error: sqlite3.Error) -> SottovoceError:
    """A write that failed: whether it is on the disk is not known, so the process must end."""
    full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    what = "the disk is full" if full else f"it could not be written ({error})"
    remedy = "make room" if full else "check the disk"
    return SottovoceError(f"{path}: {what}; nothing is sent that was not stored first; {remedy}, then use --resume")
