"""SQLite's errors as ours, in one place."""

import sqlite3
from pathlib import Path
from typing import Final

from quire.errors import DamagedMetadata, DiskFull, MetadataOutcomeUnknown, MetadataUnavailable, QuireError

_HINTS: Final = {
    sqlite3.SQLITE_BUSY: "Another process holds the file locked; see which processes have it open.",
    sqlite3.SQLITE_READONLY: "Make the file and its folder writable for this user.",
    sqlite3.SQLITE_CANTOPEN: "Check that the folder exists and that this user may write to it.",
    sqlite3.SQLITE_PERM: "Make the file and its folder writable for this user.",
}


def code_of(error: BaseException) -> int:
    """The kind of a SQLite error, without the details in the higher bytes; 0 for anything else."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF if isinstance(error, sqlite3.Error) else 0


def is_busy(error: BaseException) -> bool:
    """Whether another process held the lock that was asked for."""
    return code_of(error) == sqlite3.SQLITE_BUSY


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk has no room: for the file, or for the index of its log, which the processes share."""
    return code_of(error) == sqlite3.SQLITE_FULL or error.sqlite_errorcode == sqlite3.SQLITE_IOERR_SHMSIZE


def translate(error: BaseException, path: Path, *, began: bool = False) -> BaseException:
    """What callers get for `error`. `began`: a commit was under way, so the write may be on disk."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = code_of(error)
    translated: QuireError
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        translated = DamagedMetadata(
            f"the metadata file {str(path)!r} is damaged or not a database: {error}",
            hint="Nothing was changed. Restore the file from a backup, or name another one.",
            path=str(path),
        )
    elif is_full(error):
        translated = DiskFull(f"the disk of {str(path)!r} is full", path=str(path))
    elif began and code == sqlite3.SQLITE_IOERR:
        translated = MetadataOutcomeUnknown(f"writing the metadata file {str(path)!r} failed: {error}", path=str(path))
    else:
        translated = MetadataUnavailable(
            f"the metadata file {str(path)!r} cannot be used: {error}", hint=_HINTS.get(code, ""), path=str(path)
        )
    translated.__cause__ = error
    return translated
