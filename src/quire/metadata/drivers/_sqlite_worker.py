"""The thread that owns a SQLite connection: it runs calls in order, keeps the session alive, and looks for changes.

Calls that wait together share one transaction, and so one flush of the disk; each can still fail alone. The thread
never leaves the caller's deadline to chance: a call that has not begun is withdrawn, and one that has is of unknown
outcome.
"""

import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from quire.errors import (
    DamagedMetadata,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    QuireError,
    SessionExpired,
)
from quire.metadata.api import SessionEvent, SessionId
from quire.metadata.drivers._sqlite_tree import Change, SqliteTree
from quire.metadata.settings import StoreSettings

_POLL_S: Final = 0.02  # How often watches look for other processes' writes. The promise is 100 ms.
_REAP_S: Final = 0.25  # How often somebody looks for lapsed sessions.
_BATCH_MAX: Final = 64


@dataclass(slots=True)
class Call:
    """One question to the tree. `session` is set for writes: the session they were decided under."""

    run: Callable[[SqliteTree], Any]
    session: SessionId | None = None
    result: Future[Any] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Reports:
    """Where the thread reports to. Called on the thread."""

    session_event: Callable[[SessionEvent, SessionId], None]
    changes: Callable[[list[Change] | None], None]  # None: anything may have changed.


class SqliteWorker:
    """Owns the thread. `start` returns once the file is open and a session has begun."""

    def __init__(self, path: Path, settings: StoreSettings, reports: Reports) -> None:
        self._path, self._settings, self._reports = path, settings, reports
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name=f"quire-sqlite-{path.name}", daemon=True)
        self.opened: Future[SessionId] = Future()
        self.closed: Future[None] = Future()
        self._watching = False
        self._session = SessionId(0)
        self._suspended = False
        self._seen_revision = 0
        self._seen_data_version = -1
        self._renew_at_s = self._reap_at_s = self._poll_at_s = 0.0

    def start(self) -> None:
        self._thread.start()

    def submit(self, call: Call) -> None:
        self._calls.put(call)

    def arm(self, tree: SqliteTree) -> None:
        """Begin to look for changes, from now on. Run as a call."""
        if not self._watching:
            self._seen_revision, self._seen_data_version = tree.revision(), -1
            self._watching = True

    def disarm(self) -> None:
        """Nobody watches any more. Called by the event loop's thread; at worst one look too many follows."""
        self._watching = False

    def stop(self) -> None:
        """Finish what is queued, end the session, close the file. `closed` tells when."""
        self._calls.put(None)

    def join(self) -> None:
        """Wait for the thread's last instructions, after `closed`."""
        self._thread.join()

    # --- The thread

    def _main(self) -> None:
        try:
            tree = SqliteTree.open(
                self._path, create=self._settings.create_missing, busy_timeout_s=self._settings.operation_timeout_s
            )
            with tree.writing():
                tree.end_lapsed_sessions()
                self._begin_session(tree)
            self._seen_revision = tree.revision()
        except BaseException as error:
            self.opened.set_exception(translate(error, self._path, began=False))
            self.closed.set_result(None)
            return
        self.opened.set_result(self._session)
        try:
            while self._turn(tree):
                pass
            self._end(tree)
        except BaseException as error:
            self.closed.set_exception(error)  # A bug: whoever closes the store hears of it.
        else:
            self.closed.set_result(None)

    def _turn(self, tree: SqliteTree) -> bool:
        """Wait for calls or for what is due, and do it. False when asked to stop."""
        due_s = min(self._renew_at_s, self._reap_at_s)
        if self._watching:
            due_s = min(due_s, self._poll_at_s)
        batch: list[Call] = []
        going = True
        try:
            call = self._calls.get(timeout=max(0.0, due_s - time.monotonic()))
            while True:
                if call is None:
                    going = False
                    break
                batch.append(call)
                if len(batch) == _BATCH_MAX:
                    break
                call = self._calls.get_nowait()
        except queue.Empty:
            pass
        self._run(tree, batch)
        if going:
            self._upkeep(tree)
        return going

    def _run(self, tree: SqliteTree, batch: list[Call]) -> None:
        """Run the calls in order: reads one by one, each run of writes as one transaction."""
        writes: list[Call] = []
        for call in batch:
            if call.session is not None:
                writes.append(call)
                continue
            self._run_writes(tree, writes)
            writes = []
            if call.result.set_running_or_notify_cancel():
                try:
                    call.result.set_result(call.run(tree))
                except BaseException as error:
                    call.result.set_exception(translate(error, self._path, began=False))
        self._run_writes(tree, writes)

    def _run_writes(self, tree: SqliteTree, calls: list[Call]) -> None:
        if not calls:
            return
        begun: list[Call] | None = None
        committing = False
        try:
            with tree.writing():
                # Only now: until the lock is ours, a caller who runs out of time takes the call back unharmed.
                begun = [call for call in calls if call.result.set_running_or_notify_cancel()]
                expired = self._keep_session(tree)
                results = [self._run_write(tree, call) for call in begun]
                committing = True
        except BaseException as error:
            failure = translate(error, self._path, began=committing)
            if begun is None:
                begun = [call for call in calls if call.result.set_running_or_notify_cancel()]
            for call in begun:
                call.result.set_exception(failure)
            return
        if expired:
            self._reports.session_event(SessionEvent.EXPIRED, self._session)
        for call, (value, refusal) in zip(begun, results, strict=True):
            if refusal is None:
                call.result.set_result(value)
            else:
                call.result.set_exception(refusal)
        self._look_for_changes(tree, after_own_write=True)

    def _run_write(self, tree: SqliteTree, call: Call) -> tuple[Any, QuireError | None]:
        if call.session != self._session:
            return None, SessionExpired(f"session {call.session} has expired", session=call.session)
        try:
            with tree.attempt():
                return call.run(tree), None
        except QuireError as refusal:
            return None, refusal

    # --- Upkeep: the lease, other processes' leases, other processes' writes

    def _upkeep(self, tree: SqliteTree) -> None:
        now_s = time.monotonic()
        try:
            if now_s >= self._reap_at_s:
                self._reap_at_s = now_s + min(_REAP_S, self._settings.session_timeout_s / 4)
                if now_s >= self._renew_at_s or tree.any_lapsed():
                    with tree.writing():
                        expired = self._keep_session(tree)
                    if expired:
                        self._reports.session_event(SessionEvent.EXPIRED, self._session)
            if self._watching and now_s >= self._poll_at_s:
                self._poll_at_s = now_s + _POLL_S
                self._look_for_changes(tree, after_own_write=False)
        except (sqlite3.Error, QuireError):
            self._report_suspended(True)  # Locked or failing: the lease may lapse. The next turn tries again.
        else:
            self._report_suspended(False)

    def _keep_session(self, tree: SqliteTree) -> bool:
        """Inside a write transaction: renew our lease if it is time, and end those that lapsed.

        True if somebody ended our session, as after a long stop of this process; then a new one has begun.
        """
        expired = False
        now_s = time.monotonic()
        if not tree.has_session(self._session):
            self._begin_session(tree)
            expired = True
        elif now_s >= self._renew_at_s:
            tree.renew_session(self._session)
            self._renew_at_s = now_s + self._settings.session_timeout_s / 4
        tree.end_lapsed_sessions()
        return expired

    def _begin_session(self, tree: SqliteTree) -> None:
        self._session = tree.begin_session(self._settings.session_timeout_s, os.getpid())
        self._renew_at_s = time.monotonic() + self._settings.session_timeout_s / 4

    def _look_for_changes(self, tree: SqliteTree, *, after_own_write: bool) -> None:
        if not self._watching:
            return
        data_version = tree.data_version()
        if data_version == self._seen_data_version and not after_own_write:
            return
        changes, self._seen_revision = tree.changes_since(self._seen_revision)
        self._seen_data_version = data_version
        if changes is None or changes:
            self._reports.changes(changes)

    def _report_suspended(self, suspended: bool) -> None:
        if suspended != self._suspended:
            self._suspended = suspended
            event = SessionEvent.SUSPENDED if suspended else SessionEvent.RESUMED
            self._reports.session_event(event, self._session)

    def _end(self, tree: SqliteTree) -> None:
        try:
            with tree.writing():
                tree.end_session(self._session)
        except sqlite3.Error:
            pass  # The lease lapses by itself.
        finally:
            tree.close()


def translate(error: BaseException, path: Path, *, began: bool) -> BaseException:
    """SQLite's error as one of ours. `began`: a commit was under way, so the write may be on disk."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # The low byte is the kind, the rest says more about it.
    translated: QuireError
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        translated = DamagedMetadata(
            f"the metadata file {str(path)!r} is damaged or not a database: {error}",
            hint="Nothing was changed. Restore the file from a backup, or name another one.",
            path=str(path),
        )
    elif began and code == sqlite3.SQLITE_IOERR:
        translated = MetadataOutcomeUnknown(f"writing the metadata file {str(path)!r} failed: {error}", path=str(path))
    else:
        translated = MetadataUnavailable(
            f"the metadata file {str(path)!r} cannot be used: {error}", hint=_HINTS.get(code, ""), path=str(path)
        )
    translated.__cause__ = error
    return translated


_HINTS: Final = {
    sqlite3.SQLITE_BUSY: "Another process holds the file locked; see which processes have it open.",
    sqlite3.SQLITE_FULL: "Free some disk space, then retry.",
    sqlite3.SQLITE_READONLY: "Make the file and its folder writable for this user.",
    sqlite3.SQLITE_CANTOPEN: "Check that the folder exists and that this user may write to it.",
    sqlite3.SQLITE_PERM: "Make the file and its folder writable for this user.",
}
