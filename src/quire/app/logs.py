"""Log files that other processes write: read as they grow, and kept from growing for ever.

A process that appends to a file goes on at its new end when the file is cut. So a log that has become large is copied
to a file beside it, one older one is forgotten, and the log is emptied, whoever writes it. A line that is written in
just that moment may be lost.
"""

import json
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

LOG_BYTES_MAX: Final = 8 << 20
_READ_BYTES_MAX: Final = 1 << 20  # At one time: whoever follows has other things to do, too.


def open_log(path: Path) -> int:
    """A descriptor for a process that appends to the log. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    bound_log(path)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def bound_log(path: Path, *, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Begin the log anew if it has become too large. Raises `OSError`."""
    try:
        if path.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    shutil.copy(path, path.with_name(f"{path.name}.1"))
    os.truncate(path, 0)
    return True


def bound_logs(folder: Path) -> None:
    """All logs in a folder."""
    for path in folder.glob("*.log"):
        try:
            bound_log(path)
        except OSError:
            pass  # Copying needs room. When there is some again, it will work.


def append_event(path: Path, event: Mapping[str, Any]) -> None:
    """Write one line, with the time. A log that cannot be written is no reason for anything to fail."""
    line = {"timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"), **event}
    try:
        with path.open("a") as log:
            log.write(json.dumps(line, ensure_ascii=False) + "\n")
    except OSError:
        pass  # The disk is full, perhaps: those who can do something about it are told otherwise.


class LogTail:
    """The lines that come after the end that a log has now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = self._size()
        self._rest = b""

    def lines(self) -> list[str]:
        """Those that were completed since the last call; not all of them at once if they are many."""
        size = self._size()
        if size < self._offset:  # It was begun anew.
            self._offset, self._rest = 0, b""
        if size == self._offset:
            return []
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                found = log.read(_READ_BYTES_MAX)
        except OSError:
            return []
        self._offset += len(found)
        *whole, self._rest = (self._rest + found).split(b"\n")
        if len(self._rest) > _READ_BYTES_MAX:
            self._rest = b""  # No line of anybody's.
        return [line.decode(errors="replace") for line in whole]

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0
