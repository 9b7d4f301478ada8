"""The folder of the index's RocksDB database: how it is made, locked, checked and opened; its errors as ours.

Three things are ours, not RocksDB's:
  NothingFromNothing  RocksDB begins an empty database where it finds no `CURRENT` file, whatever else is there. So one
                      is only begun in a folder that has nothing, or a file that says that the last one to begin there
                      did not come to an end. That file is durable before RocksDB's, and goes when those are.
  LookFirst           RocksDB takes some damage to its logs for their end, and never returns from some other. So they
                      are checked before it sees them (`quire.codec.rocksdb_log`), under a lock of our own.
  TornIsNotDamaged    after a power cut, pages may be missing from the end of RocksDB's log of writes, though later ones
                      are there. That looks like damage. Taking it for a torn end would hide damage, refusing it would
                      keep a bookie from starting. So such an end is given up only if the position that the caller
                      relies on lies before it; a caller who knows no position gets no such leave.
"""

import errno
import fcntl
import os
from typing import Final

from rocksdict import AccessType, DbClosedError, Rdict, WriteOptions

from quire.bookie._rocks_options import tuned
from quire.codec.index_records import FORMAT_KEY, FORMAT_VALUE
from quire.codec.rocksdb_log import LogState, log_state
from quire.errors import DamagedIndex, Refused, StoreClosed

_LOCK: Final = "quire.lock"
_UNFINISHED: Final = "quire.unfinished"
_CODES: Final = {
    os.strerror(code): code
    for code in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    )
}


class RocksFolder:
    """A folder with a database that this object alone has open. `db` is for use until `close`."""

    db: Rdict

    def __init__(
        self, path: str, *, create: bool, position_min: int | None, cache_bytes: int, memtable_bytes: int
    ) -> None:
        """Raises `DamagedIndex`, `Refused` if somebody has it open, or `OSError`."""
        self.path = path
        self._cache_bytes, self._memtable_bytes = cache_bytes, memtable_bytes
        if not _is_finished(path):
            if not create:
                raise DamagedIndex(f"there is no index in {path!r}", folder=path)
            _make_folder(path)
        self._lock = self._locked()
        try:
            if _is_finished(path):  # Looked at once more: somebody may have made it before we had the lock.
                self._open(position_min)
            else:
                self._make(position_min)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        try:
            self.db.close()
        finally:
            os.close(self._lock)

    def _locked(self) -> int:
        handle = os.open(os.path.join(self.path, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise _refused(self.path) from error
        return handle

    def _make(self, position_min: int | None) -> None:
        """Begin a database: nobody relies on what an unfinished one has."""
        unfinished = os.path.join(self.path, _UNFINISHED)
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT, 0o600))
        for name in os.listdir(self.path):
            if name not in (_LOCK, _UNFINISHED):
                os.unlink(os.path.join(self.path, name))
        _sync_directory(self.path)
        _sync_directory(os.path.dirname(self.path.rstrip("/")) or ".")
        self.db = self._database(self.path, new=True)
        try:
            self._write_format()
            os.unlink(unfinished)
            _sync_directory(self.path)
            self._check(position_min)
        except BaseException:
            self.db.close()
            raise

    def _write_format(self) -> None:
        durable = WriteOptions()
        durable.sync = True
        try:
            self.db.put(FORMAT_KEY, FORMAT_VALUE, durable)
        except Exception as error:
            raise translated(error, self.path) from error

    def _open(self, position_min: int | None) -> None:
        if self._is_torn_or_damaged():
            damaged = DamagedIndex(f"a log of the index in {self.path!r} is damaged", folder=self.path)
            if position_min is None:
                raise damaged
            seen = self._database(self.path, read_only=True)  # Only looking: nothing is given up by this.
            readable = seen.latest_sequence_number()
            seen.close()
            if readable < position_min:
                raise damaged
        self.db = self._database(self.path)
        try:
            self._check(position_min)
        except BaseException:
            self.db.close()
            raise

    def _is_torn_or_damaged(self) -> bool:
        """Whether writes are missing before others that are there. Raises if it cannot be a power cut's doing."""
        states = {name: log_state(_content(self.path, name)) for name in (*_manifests(self.path), *_logs(self.path))}
        for name, state in states.items():
            # RocksDB syncs a manifest before it relies on it: only its very end can be missing.
            if state is LogState.FOREIGN or (state is LogState.BROKEN and name.startswith("MANIFEST")):
                raise DamagedIndex(f"{name} of the index in {self.path!r} is damaged", folder=self.path, file=name)
        *older, newest = [states[name] for name in _logs(self.path)] or [LogState.WHOLE]
        return newest is LogState.BROKEN or any(state is not LogState.WHOLE for state in older)

    def _database(self, path: str, *, new: bool = False, read_only: bool = False) -> Rdict:
        options = tuned(new=new, cache_bytes=self._cache_bytes, memtable_bytes=self._memtable_bytes)
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        try:
            # Named, or rocksdict would take the default family's options from the folder, and not from us.
            return Rdict(path, options, column_families={"default": options}, access_type=access)
        except Exception as error:
            raise translated(error, self.path) from error

    def _check(self, position_min: int | None) -> None:
        try:
            position, found = self.db.latest_sequence_number(), self.db.get(FORMAT_KEY)
        except Exception as error:
            raise translated(error, self.path) from error
        if position_min is not None and position < position_min:
            raise DamagedIndex(
                f"the index in {self.path!r} lost what was durable: it ends at position {position}, not {position_min}",
                folder=self.path,
                position=position,
                position_min=position_min,
            )
        if found != FORMAT_VALUE:
            raise DamagedIndex(f"{self.path!r} holds no index of this format: {found!r}", folder=self.path)


def translated(error: Exception, folder: str) -> Exception:
    """What callers get for an error of RocksDB's, which has nothing but a text."""
    text = str(error)
    if isinstance(error, DbClosedError):
        return StoreClosed(f"the index in {folder!r} is closed", folder=folder)
    if text.startswith(("IO error: lock hold by current process", "IO error: While lock file")):
        return _refused(folder)
    # A file that is not there is one that the database lists: its folder exists.
    gone = "create_if_missing is false" in text or os.strerror(errno.ENOENT) in text
    if gone or text.startswith("Corruption"):
        return DamagedIndex(f"the index in {folder!r} is damaged: {text}", folder=folder)
    code = next((code for name, code in _CODES.items() if name in text), errno.EIO)
    return OSError(code, text, folder)


def is_stall(error: Exception) -> bool:
    """Whether a write was refused only because flushing does not keep up with it."""
    return str(error).startswith("Result incomplete")


def _refused(folder: str) -> Refused:
    return Refused(
        f"the index in {folder!r} is open already, in this process or in another",
        hint="Stop the other bookie, or give this one a folder of its own.",
        folder=folder,
    )


def _is_finished(folder: str) -> bool:
    """Whether there is a database, or what is left of one: then it is to be opened, and never begun."""
    try:
        names = set(os.listdir(folder))
    except FileNotFoundError:
        return False
    return _UNFINISHED not in names and not names <= {_LOCK}


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path, 0o700)  # Not left to rocksdict, which would make the folders above, too, and sync none.
    except FileExistsError:
        pass


def _manifests(folder: str) -> list[str]:
    """The manifest in use, if `CURRENT` names one. If not, RocksDB finds words for that."""
    try:
        name = _content(folder, "CURRENT").decode(errors="replace").rstrip("\n")
    except FileNotFoundError:
        return []
    return [name] if name in os.listdir(folder) else []


def _logs(folder: str) -> list[str]:
    """Those of writes, the newest last."""
    return sorted((name for name in os.listdir(folder) if name.endswith(".log")), key=lambda name: (len(name), name))


def _content(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
