"""The thread that owns a SQLite connection: it runs calls in order, keeps the session alive, and looks for changes.

Writes that wait together share one transaction, and so one flush of the disk; each can still be refused alone. Reads
never wait behind a file that another process keeps locked: a write tries for the lock in short turns.

Invariants:
  AdoptAfterCommit   what a transaction did to our session counts only once it is committed. A session id that was
                     rolled back is forgotten, and ids are random, so that it cannot come back as somebody else's.
  NeverEndOwn        we renew our own lapsed lease, or find that another process ended it; we never end it ourselves.
  WithdrawOrUnknown  a call that has not begun is withdrawn when its time is up; one that has is of unknown outcome.
"""

import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from quire.errors import InvariantBroken, MetadataUnavailable, QuireError, SessionExpired
from quire.metadata.driver import SessionEvent, SessionId
from quire.metadata.drivers._sqlite_alive import SessionFiles
from quire.metadata.drivers._sqlite_errors import is_busy, translate
from quire.metadata.drivers._sqlite_tree import Change, SqliteTree
from quire.metadata.settings import StoreSettings
from quire.runtime import Rng
from quire.values import dataclass

_POLL_S: Final = 0.02  # How often watches look for other processes' writes. The promise is 100 ms.
_REAP_S: Final = 0.25  # How often somebody looks for lapsed sessions.
_LOCK_TURN_S: Final = 0.05  # How long one try for the file's write lock may keep reads waiting.
_FAREWELL_S: Final = 2.0
_BATCH_MAX: Final = 64
_SESSION_ID_END: Final = 2**63


@dataclass(slots=True)
class Call:
    """One question to the tree. `session` is set for writes: the session they were decided under."""

    run: Callable[[SqliteTree, SessionId], Any]
    deadline_s: float
    session: SessionId | None = None
    result: Future[Any] = field(default_factory=Future)

    def begin(self) -> bool:
        """False if its caller has taken it back."""
        return self.result.set_running_or_notify_cancel()

    def fail(self, error: BaseException) -> None:
        if self.begin():
            self.result.set_exception(error)


@dataclass(frozen=True, slots=True)
class Lease:
    """Our session, and when its lease is to be renewed."""

    session: SessionId
    renew_at_s: float


@dataclass(frozen=True, slots=True)
class Reports:
    """Where the thread reports to. Called on the thread."""

    session_event: Callable[[SessionEvent, SessionId], None]
    changes: Callable[[list[Change] | None], None]  # None: anything may have changed.


class SqliteWorker:
    """Owns the thread. `opened` tells when the file is open and a session has begun."""

    def __init__(self, path: Path, settings: StoreSettings, rng: Rng, reports: Reports) -> None:
        self._path, self._settings, self._rng, self._reports = path, settings, rng, reports
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name=f"quire-sqlite-{path.name}", daemon=True)
        self.opened: Future[SessionId] = Future()
        self.closed: Future[None] = Future()
        self._ended = threading.Event()
        self._lease = Lease(SessionId(0), 0.0)
        self._files = SessionFiles(path)
        self._waiting: list[Call] = []  # Writes that could not get the file's lock yet.
        self._stopping = False
        self._suspended = False
        self._watching = False
        self._seen_revision = 0
        self._seen_data_version = -1
        self._reap_at_s = self._poll_at_s = self._spare_until_s = 0.0

    # --- What the event loop's thread calls

    def start(self) -> None:
        self._thread.start()

    def submit(self, call: Call) -> None:
        self._calls.put(call)
        if self._ended.is_set():
            self._fail_all()

    def disarm(self) -> None:
        """Nobody watches any more. At worst one look too many follows."""
        self._watching = False

    def stop(self) -> None:
        """Finish what is queued, end the session, close the file. `closed` tells when."""
        self._calls.put(None)

    def join(self) -> None:
        """Wait for the thread's last instructions, after `closed`."""
        self._thread.join()

    # --- The thread

    def _main(self) -> None:
        tree = None
        try:
            tree = SqliteTree.open(
                self._path, create=self._settings.create_missing, busy_timeout_s=self._settings.operation_timeout_s
            )
            with tree.writing(self._settings.operation_timeout_s):
                lease = self._begin_session(tree)
                if self._settings.sole_user:
                    tree.end_all_sessions(but=lease.session)
                else:
                    tree.end_lapsed_sessions(but=lease.session)
            self._lease, self._seen_revision = lease, tree.revision()
            self._files.sweep(tree.sessions(but=lease.session))
        except BaseException as error:
            if tree is not None:
                tree.close()
            self._files.abandon()
            self.opened.set_exception(translate(error, self._path))
            self.closed.set_result(None)
            return
        self.opened.set_result(self._lease.session)
        try:
            while not self._stopping or self._waiting:
                self._turn(tree)
            self._farewell(tree)
        except BaseException as error:  # A bug. Nobody may wait for a thread that is gone.
            self._report_suspended(True)
            self.closed.set_exception(translate(error, self._path))
        else:
            self.closed.set_result(None)
        finally:
            tree.close()
            self._files.abandon()
            self._ended.set()
            self._fail_all()

    def _fail_all(self) -> None:
        """Answer what nobody will run any more."""
        abandoned, self._waiting = self._waiting, []
        try:
            while True:
                call = self._calls.get_nowait()
                abandoned += [] if call is None else [call]
        except queue.Empty:
            pass
        for call in abandoned:
            call.fail(InvariantBroken(f"the thread that works on {str(self._path)!r} has ended"))

    def _turn(self, tree: SqliteTree) -> None:
        """Wait for calls or for what is due, and do it."""
        for call in self._next_calls():
            if call.session is not None:
                self._waiting.append(call)
            elif call.begin():
                self._run_read(tree, call)
        self._run_writes(tree)
        if not self._stopping:
            self._upkeep(tree)

    def _next_calls(self) -> list[Call]:
        due_s = 0.0 if self._waiting else self._reap_at_s
        if self._watching:
            due_s = min(due_s, self._poll_at_s)
        calls: list[Call] = []
        try:
            call = self._calls.get(timeout=max(0.0, due_s - time.monotonic()))
            while call is not None and len(calls) < _BATCH_MAX:
                calls.append(call)
                call = self._calls.get_nowait()
            if call is None:
                self._stopping = True
            else:
                calls.append(call)
        except queue.Empty:
            pass
        return calls

    def _run_read(self, tree: SqliteTree, call: Call) -> None:
        try:
            self._check_file(tree)
            call.result.set_result(call.run(tree, self._lease.session))
        except BaseException as error:
            call.result.set_exception(translate(error, self._path))

    # --- Writes

    def _run_writes(self, tree: SqliteTree) -> None:
        """Carry out the writes that wait, in one transaction; they go on waiting while the file is locked."""
        now_s = time.monotonic()
        calls = [call for call in self._waiting if not call.result.cancelled()]
        self._waiting = []
        if not calls:
            return
        begun: list[Call] = []
        committing = False
        try:
            with tree.writing(min(_LOCK_TURN_S, self._settings.operation_timeout_s)):
                # Only now: until the lock is ours, a caller who runs out of time takes the call back unharmed.
                begun = [call for call in calls if call.begin()]
                lease = self._keep_session(tree)
                results = [self._run_write(tree, call, lease.session) for call in begun]
                committing = True
        except BaseException as error:
            if is_busy(error) and not begun:
                late = [call for call in calls if call.deadline_s <= now_s]
                self._waiting = [call for call in calls if call.deadline_s > now_s]
                begun = [call for call in late if call.begin()]
            failure = translate(error, self._path, began=committing)
            for call in begun:
                call.result.set_exception(failure)
            return
        self._adopt(lease)
        for call, (value, refusal) in zip(begun, results, strict=True):
            if refusal is None:
                call.result.set_result(value)
            else:
                call.result.set_exception(refusal)
        self._try_to_look(tree)

    def _run_write(self, tree: SqliteTree, call: Call, session: SessionId) -> tuple[Any, QuireError | None]:
        if call.session != session:
            return None, SessionExpired(f"session {call.session} has expired", session=call.session)
        try:
            with tree.attempt():
                return call.run(tree, session), None
        except QuireError as refusal:
            return None, refusal

    # --- The session

    def _keep_session(self, tree: SqliteTree) -> Lease:
        """Inside a transaction: our lease as it will be once this is committed, and the end of others' that lapsed."""
        self._check_file(tree)
        lease, now_s = self._lease, time.monotonic()
        if not tree.has_session(lease.session):  # Somebody ended it, as after a long stop of this process.
            lease = self._begin_session(tree)
        elif now_s >= lease.renew_at_s:
            tree.renew_session(lease.session)
            lease = Lease(lease.session, now_s + self._settings.session_timeout_s / 4)
        if now_s > self._lease.renew_at_s + self._settings.session_timeout_s / 4:
            # We could not renew in time. If the file was locked, nobody could: the others get a chance to, too.
            self._spare_until_s = now_s + self._settings.session_timeout_s
        if now_s >= self._spare_until_s:
            tree.end_lapsed_sessions(but=lease.session)
        return lease

    def _begin_session(self, tree: SqliteTree) -> Lease:
        session = SessionId(self._rng.randrange(1, _SESSION_ID_END))
        self._files.hold(session)
        tree.begin_session(session, self._settings.session_timeout_s, os.getpid())
        return Lease(session, time.monotonic() + self._settings.session_timeout_s / 4)

    def _adopt(self, lease: Lease) -> None:
        """After a commit: it is our lease now, and the file could be written."""
        expired = lease.session != self._lease.session
        self._lease = lease
        self._files.release_others(lease.session)
        self._seen_data_version = -1  # Our own commits do not show there, and this one may have ended sessions.
        if expired:
            self._reports.session_event(SessionEvent.EXPIRED, lease.session)
            self._suspended = True  # So that the next line tells that the new session is in order.
        self._report_suspended(False)

    def _report_suspended(self, suspended: bool) -> None:
        if suspended != self._suspended:
            self._suspended = suspended
            event = SessionEvent.SUSPENDED if suspended else SessionEvent.RESUMED
            self._reports.session_event(event, self._lease.session)

    def _farewell(self, tree: SqliteTree) -> None:
        try:
            with tree.writing(min(_FAREWELL_S, self._settings.operation_timeout_s)):
                tree.end_session(self._lease.session)
        except sqlite3.Error:
            pass  # Somebody else ends it, as one of a process that is gone.
        else:
            self._files.release(self._lease.session)

    # --- Upkeep: the lease, other processes' leases, other processes' writes

    def _upkeep(self, tree: SqliteTree) -> None:
        now_s = time.monotonic()
        if now_s >= self._reap_at_s:
            self._reap_at_s = now_s + min(_REAP_S, self._settings.session_timeout_s / 8)
            try:
                self._check_file(tree)
                lapsed = now_s >= self._spare_until_s and tree.any_lapsed(but=self._lease.session)
                dead = list(filter(self._files.is_dead, tree.sessions(but=self._lease.session)))
                if lapsed or dead or now_s >= self._lease.renew_at_s:
                    with tree.writing(_LOCK_TURN_S):
                        lease = self._keep_session(tree)
                        for session in dead:
                            tree.end_session(session)
                    self._adopt(lease)
                    for session in dead:
                        self._files.remove(session)
            except (sqlite3.Error, QuireError) as error:
                # Others write too, so a lock is only serious once a good part of the lease has gone by.
                if not is_busy(error) or now_s > self._lease.renew_at_s + self._settings.session_timeout_s / 4:
                    self._report_suspended(True)
        if self._watching and now_s >= self._poll_at_s:
            self._poll_at_s = now_s + _POLL_S
            self._try_to_look(tree)

    def _check_file(self, tree: SqliteTree) -> None:
        """A deleted or replaced file would be a world of our own, in which every lock is free."""
        if not tree.is_file_at(self._path):
            raise MetadataUnavailable(
                f"the metadata file {str(self._path)!r} was deleted or replaced while in use",
                hint="Put the file back and restart the processes that used it.",
                path=str(self._path),
            )

    # --- Watches

    def arm(self, tree: SqliteTree, _: SessionId) -> None:
        """Begin to look for changes, from now on. Run as a call."""
        if not self._watching:
            self._seen_revision, self._seen_data_version = tree.revision(), -1
            self._watching = True

    def _try_to_look(self, tree: SqliteTree) -> None:
        """Report what was written since the last look. If that fails, the next look sees it."""
        if not self._watching:
            return
        try:
            data_version = tree.data_version()
            if data_version == self._seen_data_version:
                return
            changes, self._seen_revision = tree.changes_since(self._seen_revision)
            self._seen_data_version = data_version
        except sqlite3.Error:
            self._seen_data_version = -1
            self._report_suspended(True)
            return
        if changes is None or changes:
            self._reports.changes(changes)
