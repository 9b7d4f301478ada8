"""What a test can make go wrong with a simulated disk. It outlives reboots, as a bad disk does."""

import errno
import os
import posixpath
from collections.abc import Iterator
from dataclasses import field
from typing import Final, Literal, get_args

from quire.runtime import StrPath
from quire.values import dataclass

Operation = Literal[
    "create",
    "exists",
    "listdir",
    "lock",
    "makedirs",
    "open",
    "preallocate",
    "read",
    "rename",
    "size",
    "sync",
    "sync_directory",
    "truncate",
    "unlink",
    "usage",
    "write",
]
CAPACITY_BYTES: Final = 1 << 40


def normal(path: StrPath) -> str:
    """One spelling per file: a simulated machine has no working directory but the root."""
    return posixpath.normpath(posixpath.join("/", os.fspath(path)))


@dataclass(slots=True)
class _Failure:
    operation: Operation
    path: str | None
    code: int
    times: int


@dataclass(frozen=True, slots=True)
class _BadRange:
    path: str
    start: int
    end: int


@dataclass(slots=True)
class DiskFaults:
    """The faults of one simulated disk. Nothing is wrong with it until a test says so."""

    capacity_bytes: int = CAPACITY_BYTES
    foreign_bytes: int = 0  # What others keep on the same disk: see `SimDisk.fill`.
    latency_s: tuple[float, float] = (0.000_02, 0.002)
    latency_by_operation_s: dict[Operation, tuple[float, float]] = field(default_factory=dict)
    _failures: list[_Failure] = field(default_factory=list)
    _bad_ranges: list[_BadRange] = field(default_factory=list)

    def fail_next(
        self, operation: Operation, *, code: int = errno.EIO, path: StrPath | None = None, times: int = 1
    ) -> None:
        """Let the next `times` calls of `operation` raise, on `path` only if one is given.

        `sync` stands for `fdatasync`, `fsync` and the sync inside `pwritev`. A sync that fails loses data as Linux
        does: see `FailedSync` in `quire.runtime.disk`.
        """
        if operation not in get_args(Operation):  # A misspelt fault would be a test that cannot fail.
            raise ValueError(f"{operation!r} is no disk operation; known are {', '.join(get_args(Operation))}")
        self._failures.append(_Failure(operation, None if path is None else normal(path), code, times))

    def fail_reads(self, path: StrPath, start: int, end: int) -> None:
        """Let every read that touches bytes `start` to `end` (exclusive) of a file raise EIO: a bad sector."""
        self._bad_ranges.append(_BadRange(normal(path), start, end))

    def repair(self) -> None:
        """Forget failures that have not happened yet, and bad ranges. Latency and capacity stay."""
        self._failures.clear()
        self._bad_ranges.clear()

    def latency_of(self, operation: Operation) -> tuple[float, float]:
        return self.latency_by_operation_s.get(operation, self.latency_s)

    def check(self, operation: Operation, *paths: str) -> None:
        """Raise if a failure is due for this call."""
        for failure in self._failures:
            if failure.operation == operation and (failure.path is None or failure.path in paths):
                failure.times -= 1
                if failure.times == 0:
                    self._failures.remove(failure)
                raise OSError(failure.code, os.strerror(failure.code), *paths[:1])

    def check_read(self, path: str, start: int, end: int) -> None:
        """Raise if bytes `start` to `end` of `path` cannot be read."""
        for bad in self._bad_ranges:
            if bad.path == path and bad.start < end and start < bad.end:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def ancestors(path: str) -> Iterator[str]:
    """`path` and every directory above it, up to the root."""
    while path != "/":
        yield path
        path = posixpath.dirname(path)
    yield "/"
