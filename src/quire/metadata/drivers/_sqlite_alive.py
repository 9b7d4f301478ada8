"""Which sessions' processes are gone: each has a file of its own, locked by the process for as long as it lives.

A process that hangs loses its session when the lease lapses. One that died need not be waited for: the system lets go
of its locks, however it died, and others see that. All who use the store are on one machine, as SQLite's log in shared
memory demands.

Invariants:
  LockedBeforeBegun   the file of a session exists, and is locked, before its session is in the store. So a file without
                      a lock belongs to a process that is gone.
  NoFileNoVerdict     of a session without a file nothing can be told; its lease counts.
"""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from quire.metadata.driver import SessionId


class SessionFiles:
    """The files of the sessions in one store. What cannot be done with them leaves a lease to lapse, and no error."""

    def __init__(self, store: Path) -> None:
        self._folder = store.with_name(f"{store.name}-sessions")
        self._held: dict[SessionId, int] = {}

    def hold(self, session: SessionId) -> None:
        """Before the session begins."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._path(session), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            return
        self._held[session] = descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release(session)

    def release(self, session: SessionId) -> None:
        """After the session has ended."""
        descriptor = self._held.pop(session, None)
        self.remove(session)
        if descriptor is not None:
            os.close(descriptor)

    def release_others(self, session: SessionId) -> None:
        """All of ours but that one."""
        for held in [held for held in self._held if held != session]:
            self.release(held)

    def abandon(self) -> None:
        """Let go of ours, and leave it to others to end the sessions."""
        while self._held:
            os.close(self._held.popitem()[1])

    def is_dead(self, session: SessionId) -> bool:
        """Whether the process of another session is gone."""
        if session in self._held:
            return False
        try:
            descriptor = os.open(self._path(session), os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def sweep(self, sessions: Iterable[SessionId]) -> None:
        """Remove what is left of sessions that are not among these."""
        kept = {self._path(session).name for session in (*sessions, *self._held)}
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            session = _session_of(name)
            if session is not None and name not in kept and self.is_dead(session):
                self.remove(session)

    def remove(self, session: SessionId) -> None:
        """What is left of a session that has ended."""
        try:
            self._path(session).unlink()
        except OSError:
            pass

    def _path(self, session: SessionId) -> Path:
        return self._folder / f"{session:x}"


def _session_of(name: str) -> SessionId | None:
    """None for a file that is not ours: people and their tools leave things everywhere."""
    try:
        session = SessionId(int(name, 16))
    except ValueError:
        return None
    return session if name == f"{session:x}" else None
