"""The metadata tree as tables of one SQLite file: schema, operations, sessions, and the log of changes. Synchronous.

    nodes      one row a node; `version` is the store-wide revision of its last write, so no version ever comes back
    sessions   one row a live client: a lease that its owner renews and that anybody may end once it has lapsed
    changes    one row a write: what watches of other processes read; old rows are cut off
    store      the revision

Leases are measured on the machine's monotonic clock, which all its processes share and which no time server moves. It
restarts at a reboot: a lease that ends later than its own length from now was granted before one, and has lapsed too.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from quire.errors import (
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    NotInitialised,
    ParentIsEphemeral,
    Refused,
    VersionConflict,
)
from quire.metadata.driver import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Delete,
    Node,
    Op,
    SessionId,
    Set,
    Stat,
    Version,
    Written,
)
from quire.metadata.paths import name_of, parent_of

_APPLICATION_ID: Final = int.from_bytes(b"QUIR")
_FORMAT: Final = 1
_CHANGES_KEPT: Final = 4096  # A watcher that falls further behind wakes all its watches instead.
_TRIM_EVERY: Final = 256

_SCHEMA: Final = """
CREATE TABLE nodes (
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL,
    version INTEGER NOT NULL, writes INTEGER NOT NULL, created_ms INTEGER NOT NULL, owner INTEGER,
    children_version INTEGER NOT NULL, next_sequence INTEGER NOT NULL
);
CREATE INDEX nodes_by_parent ON nodes (parent, path);
CREATE INDEX nodes_by_owner ON nodes (owner) WHERE owner IS NOT NULL;
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, lapses_s REAL NOT NULL, timeout_s REAL NOT NULL, pid INTEGER NOT NULL
);
CREATE TABLE changes (revision INTEGER PRIMARY KEY, path TEXT NOT NULL, existence INTEGER NOT NULL);
CREATE TABLE store (revision INTEGER NOT NULL);
INSERT INTO store VALUES (0);
INSERT INTO nodes VALUES ('/', '', x'', 0, 1, 0, NULL, 0, 0);
"""


class Change(NamedTuple):
    path: str
    existence: bool  # Created or deleted, rather than written.


class SqliteTree:
    """One connection to the file. Used by one thread."""

    def __init__(self, connection: sqlite3.Connection, identity: tuple[int, int]) -> None:
        self._db = connection
        self._identity = identity  # Of the file that was opened.

    @classmethod
    def open(cls, path: Path, *, create: bool, busy_timeout_s: float) -> Self:
        """Open the file, creating it and its tables if needed and wanted."""
        if not create and not path.exists():
            raise NotInitialised(
                f"there is no metadata file {str(path)!r}", hint="Create it with `quire metadata init`.", path=str(path)
            )
        if not path.exists():
            with suppress(OSError):  # SQLite will say what is wrong.
                path.touch(mode=0o600)  # For its owner alone, and so are the files that SQLite puts beside it.
        connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
        try:
            tree = cls(connection, _identity(path))
            tree._prepare(path, busy_timeout_s, create=create)
        except BaseException:
            connection.close()
            raise
        return tree

    def _prepare(self, path: Path, busy_timeout_s: float, *, create: bool) -> None:
        self._check_owner(path)
        if not create and not self._is_ours():
            raise NotInitialised(
                f"the metadata file {str(path)!r} is empty",
                hint="Set it up with `quire metadata init`.",
                path=str(path),
            )
        deadline_s = time.monotonic() + busy_timeout_s
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # Several processes create the file at once: SQLite does not wait for this lock by itself.
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.005)
        self._db.execute("PRAGMA synchronous = FULL")  # In WAL mode: every commit is on disk when it returns.
        if not self._is_ours():
            with self.writing(busy_timeout_s):
                if not self._is_ours():  # Another process may have won the race for the lock.
                    for statement in _SCHEMA.split(";\n"):
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                    self._db.execute(f"PRAGMA user_version = {_FORMAT}")

    def _is_ours(self) -> bool:
        return bool(self._pragma("application_id") == _APPLICATION_ID)

    def _check_owner(self, path: Path) -> None:
        tables = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if not self._is_ours() and tables:
            raise Refused(
                f"{str(path)!r} is a database of another program",
                hint="Nothing was changed. Name another file in the sqlite: URI.",
                path=str(path),
            )
        if self._is_ours() and self._pragma("user_version") != _FORMAT:
            raise Refused(
                f"{str(path)!r} has metadata format {self._pragma('user_version')}, and this Quire reads {_FORMAT}",
                hint="Nothing was changed. Use the version of Quire that wrote it, or a newer one.",
                path=str(path),
            )

    def _pragma(self, name: str) -> int:
        value: int = self._db.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    def is_file_at(self, path: Path) -> bool:
        """Whether `path` still leads to the file that was opened."""
        try:
            return _identity(path) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        self._db.close()

    # --- Transactions

    @contextmanager
    def writing(self, busy_timeout_s: float) -> Iterator[None]:
        """One write transaction: durable when the block ends, undone if it raises.

        Waits up to `busy_timeout_s` for the file's lock; then SQLite's error says that it is busy.
        """
        self._db.execute(f"PRAGMA busy_timeout = {max(1, int(busy_timeout_s * 1000))}")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """A part of a write transaction that is undone alone if it raises."""
        self._db.execute("SAVEPOINT attempt")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # A full disk, for one, makes SQLite undo the whole transaction by itself.
                self._db.execute("ROLLBACK TO attempt")
                self._db.execute("RELEASE attempt")
            raise
        self._db.execute("RELEASE attempt")

    # --- Reading

    def get(self, path: str) -> Node | None:
        row = self._db.execute(
            "SELECT version, writes, created_ms, owner, data FROM nodes WHERE path = ?", (path,)
        ).fetchone()
        return None if row is None else Node(row[4], Stat(*row[:4]))

    def stat(self, path: str) -> Stat | None:
        row = self._db.execute(
            "SELECT version, writes, created_ms, owner FROM nodes WHERE path = ?", (path,)
        ).fetchone()
        return None if row is None else Stat(*row)

    def children(self, path: str) -> Children | None:
        self._db.execute("BEGIN")  # One snapshot for both questions.
        try:
            row = self._db.execute("SELECT children_version FROM nodes WHERE path = ?", (path,)).fetchone()
            paths = self._db.execute("SELECT path FROM nodes WHERE parent = ? ORDER BY path", (path,)).fetchall()
        finally:
            self._db.execute("COMMIT")
        if row is None:
            return None
        return Children(tuple(sorted(name_of(child) for (child,) in paths)), Version(row[0]))

    # --- Writing, inside `writing()`

    def apply(self, op: Op, session: SessionId, now_ms: int) -> Written | None:
        """Carry out one operation, or raise what refuses it."""
        if isinstance(op, Create):
            return self._create(op, session, now_ms)
        stat = self.stat(op.path)
        if stat is None:
            raise NoSuchNode(f"there is no metadata node {op.path!r}", path=op.path)
        if op.expected not in (ANY_VERSION, stat.version):
            raise VersionConflict(
                f"{op.path!r} has version {stat.version}, not {op.expected}", path=op.path, stored=stat.version
            )
        if isinstance(op, Check):
            return None
        if isinstance(op, Delete):
            self._delete(op.path)
            return None
        return self._set(op, stat.writes + 1)

    def _create(self, op: Create, session: SessionId, now_ms: int) -> Written:
        parent = parent_of(op.path)
        row = self._db.execute("SELECT owner, next_sequence FROM nodes WHERE path = ?", (parent,)).fetchone()
        if row is None:
            raise NoSuchNode(f"there is no parent {parent!r} to create {op.path!r} in", path=op.path, parent=parent)
        if row[0] is not None:
            raise ParentIsEphemeral(f"{parent!r} is ephemeral and cannot have children", path=op.path, parent=parent)
        path = f"{op.path}{row[1]:010d}" if op.sequential else op.path
        revision = self._next_revision(path, existence=True)
        owner = session if op.ephemeral else None
        try:
            self._db.execute(
                "INSERT INTO nodes VALUES (?, ?, ?, ?, 1, ?, ?, 0, 0)", (path, parent, op.data, revision, now_ms, owner)
            )
        except sqlite3.IntegrityError as error:
            raise NodeExists(f"the metadata node {path!r} exists already", path=path) from error
        # As in ZooKeeper, every child takes a number, so that a number is never given twice.
        self._db.execute(
            "UPDATE nodes SET children_version = ?, next_sequence = next_sequence + 1 WHERE path = ?",
            (revision, parent),
        )
        return Written(path, Version(revision), 1)

    def _set(self, op: Set, writes: int) -> Written:
        revision = self._next_revision(op.path, existence=False)
        self._db.execute(
            "UPDATE nodes SET data = ?, version = ?, writes = ? WHERE path = ?", (op.data, revision, writes, op.path)
        )
        return Written(op.path, Version(revision), writes)

    def _delete(self, path: str) -> None:
        if self._db.execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise NodeNotEmpty(f"{path!r} has children", path=path)
        revision = self._next_revision(path, existence=True)
        self._db.execute("DELETE FROM nodes WHERE path = ?", (path,))
        self._db.execute("UPDATE nodes SET children_version = ? WHERE path = ?", (revision, parent_of(path)))

    def _next_revision(self, path: str, *, existence: bool) -> int:
        revision: int = self._db.execute("UPDATE store SET revision = revision + 1 RETURNING revision").fetchone()[0]
        self._db.execute("INSERT INTO changes VALUES (?, ?, ?)", (revision, path, existence))
        if revision % _TRIM_EVERY == 0:
            self._db.execute("DELETE FROM changes WHERE revision <= ?", (revision - _CHANGES_KEPT,))
        return revision

    # --- Sessions, inside `writing()` but for `sessions` and `any_lapsed`

    def begin_session(self, session: SessionId, timeout_s: float, pid: int) -> None:
        self._db.execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?)", (session, time.monotonic() + timeout_s, timeout_s, pid)
        )

    def has_session(self, session: SessionId) -> bool:
        """False once somebody ended it. A lease that lapsed unnoticed is still good: its nodes never went."""
        return self._db.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).fetchone() is not None

    def renew_session(self, session: SessionId) -> None:
        self._db.execute("UPDATE sessions SET lapses_s = ? + timeout_s WHERE id = ?", (time.monotonic(), session))

    def sessions(self, *, but: SessionId) -> list[SessionId]:
        return [SessionId(row[0]) for row in self._db.execute("SELECT id FROM sessions WHERE id != ?", (but,))]

    def any_lapsed(self, *, but: SessionId) -> bool:
        return bool(self._lapsed(but))

    def end_lapsed_sessions(self, *, but: SessionId) -> None:
        for session in self._lapsed(but):
            self.end_session(session)

    def end_all_sessions(self, *, but: SessionId) -> None:
        for session in self.sessions(but=but):
            self.end_session(session)

    def _lapsed(self, but: SessionId) -> list[SessionId]:
        now_s = time.monotonic()
        rows = self._db.execute(
            "SELECT id FROM sessions WHERE id != ? AND (lapses_s < ? OR lapses_s > ? + timeout_s)", (but, now_s, now_s)
        )
        return [SessionId(row[0]) for row in rows.fetchall()]

    def end_session(self, session: SessionId) -> None:
        """Delete the session and its nodes. Ephemeral nodes have no children, so the order does not matter."""
        for (path,) in self._db.execute("SELECT path FROM nodes WHERE owner = ?", (session,)).fetchall():
            self._delete(path)
        self._db.execute("DELETE FROM sessions WHERE id = ?", (session,))

    # --- Changes

    def data_version(self) -> int:
        """A number that differs when another connection has committed since. Costs next to nothing."""
        return self._pragma("data_version")

    def revision(self) -> int:
        revision: int = self._db.execute("SELECT revision FROM store").fetchone()[0]
        return revision

    def changes_since(self, revision: int) -> tuple[list[Change] | None, int]:
        """What was written after `revision`, and the newest revision. None instead of a list that would have gaps."""
        rows = self._db.execute(
            "SELECT revision, path, existence FROM changes WHERE revision > ? ORDER BY revision", (revision,)
        ).fetchall()
        if not rows:
            return [], revision
        if rows[0][0] != revision + 1:
            return None, rows[-1][0]
        return [Change(path, bool(existence)) for _, path, existence in rows], rows[-1][0]


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
