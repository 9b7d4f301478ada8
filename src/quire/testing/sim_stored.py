"""What a disk holds, and what of it a crash leaves: the bytes of one file, and the names of all files. No I/O, no time.

Both keep two states: what a running system sees, and what is on the platter. Between them lies an ordered list of
changes that were made and not synced; a sync carries changes over, a crash lets chance decide about the rest.
"""

import posixpath
from collections.abc import Callable, Iterable
from typing import Final, Protocol, Self

from quire.testing.sim_rng import SimRng
from quire.values import dataclass

SECTOR_BYTES: Final = 512  # Disks promise to write this much as a whole or not at all; nothing larger is promised.


@dataclass(frozen=True, slots=True)
class _Change:
    """Bytes written at an offset; or, with no bytes, the file cut or lengthened to `offset`."""

    number: int
    offset: int
    data: bytes | None


class Content(Protocol):
    """Bytes that can be changed: what a `bytearray` does, and whatever keeps much in little memory."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> bytes | bytearray: ...
    def __setitem__(self, part: slice, data: bytes, /) -> None: ...
    def __delitem__(self, part: slice, /) -> None: ...
    def extend(self, data: bytes, /) -> None: ...
    def copy(self) -> Self: ...


class StoredBytes:
    """The content of one file, twice: `content` makes what each of the two is kept in.

    Invariants: `visible` is every change applied; what `sync` has carried over is never lost by `crash`.
    """

    def __init__(self, content: Callable[[], Content] = bytearray) -> None:
        self.visible = content()
        self._durable = content()
        self._unsynced: list[_Change] = []
        self._last = 0

    def write(self, offset: int, data: bytes) -> None:
        self._change(offset, data)

    def resize(self, size: int) -> None:
        """Cut at `size`, or lengthen with zeros."""
        self._change(size, None)

    def _change(self, offset: int, data: bytes | None) -> None:
        self._last += 1
        change = _Change(self._last, offset, data)
        _apply(self.visible, change)
        self._unsynced.append(change)

    def mark(self) -> int:
        """The last change made so far: a sync that begins now promises everything up to here, and nothing later."""
        return self._last

    def sync(self, mark: int) -> None:
        """Changes up to `mark` reach the platter."""
        for change in self._take(mark):
            _apply(self._durable, change)

    def fail_sync(self, mark: int, rng: SimRng) -> None:
        """A sync that fails: some of the changes reach the platter, and none is ever written again.

        The kernel calls the pages clean after reporting the error once, so the next sync has nothing to do and
        succeeds. `visible` still shows the changes: they are in memory until the machine stops.
        """
        self._gamble(self._take(mark), rng)

    def crash(self, rng: SimRng) -> None:
        """The machine stops: of what was not synced, some is kept, some lost, some torn."""
        self._gamble(self._take(self._last), rng)
        self.visible = self._durable.copy()

    def flip_bit(self, offset: int, bit: int) -> None:
        """Damage one stored bit, in memory and on the platter."""
        for content in (self.visible, self._durable):
            if offset < len(content):
                content[offset : offset + 1] = bytes([content[offset : offset + 1][0] ^ 1 << bit])

    def _take(self, mark: int) -> list[_Change]:
        taken = [change for change in self._unsynced if change.number <= mark]
        self._unsynced = [change for change in self._unsynced if change.number > mark]
        return taken

    def _gamble(self, changes: Iterable[_Change], rng: SimRng) -> None:
        # Each write on its own would almost never lose all of many writes, which is the likeliest crash of all.
        mood = rng.random()
        for change in changes:
            if mood < 0.25:
                continue
            if mood < 0.4 or rng.random() < 0.4:
                _apply(self._durable, change)
            elif change.data is not None and rng.random() < 0.5:
                _apply_torn(self._durable, change.offset, change.data, rng)


def _apply(content: Content, change: _Change) -> None:
    if change.data is None:
        _resize(content, change.offset)
    elif change.data:
        _resize(content, max(len(content), change.offset))
        content[change.offset : change.offset + len(change.data)] = change.data


def _resize(content: Content, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _apply_torn(content: Content, offset: int, data: bytes, rng: SimRng) -> None:
    """A prefix; or each sector by itself; or the file's new length without its new bytes, which read as zeros."""
    end = offset + len(data)
    kind = rng.randrange(3)
    if kind == 0:
        _apply(content, _Change(0, offset, data[: rng.randrange(len(data) + 1)]))
        return
    if kind == 1 or rng.random() < 0.5:
        _resize(content, max(len(content), end))
    if kind == 1:
        return
    start = offset
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if rng.random() < 0.5:
            _apply(content, _Change(0, start, data[start - offset : stop - offset]))
        start = stop


@dataclass(frozen=True, slots=True)
class _NameChange:
    """One name given up, or one given to a file, or both at once: a rename."""

    removed: str | None
    added: str | None
    content: StoredBytes | None

    def directories(self) -> set[str]:
        return {posixpath.dirname(path) for path in (self.removed, self.added) if path is not None}


class StoredNames:
    """Which path names which file. Of each directory, a prefix of its changes survives a crash: all, if it was synced.

    A rename between two directories is one change in both: neither half survives without the other.
    """

    def __init__(self) -> None:
        self.files: dict[str, StoredBytes] = {}
        self._durable: dict[str, StoredBytes] = {}
        self._unsynced: list[_NameChange] = []

    def link(self, path: str, content: StoredBytes) -> None:
        self._change(_NameChange(None, path, content))

    def unlink(self, path: str) -> None:
        self._change(_NameChange(path, None, None))

    def rename(self, source: str, target: str) -> None:
        self._change(_NameChange(source, target, self.files[source]))

    def _change(self, change: _NameChange) -> None:
        _apply_name(self.files, change)
        self._unsynced.append(change)

    def sync(self, directory: str) -> None:
        """All changes in `directory` become durable, with those in other directories that renames tie to them."""
        wanted = {directory}
        kept: list[_NameChange] = []
        chosen: list[_NameChange] = []
        # Backwards: a chosen rename pulls in everything that happened before it in its other directory.
        for change in reversed(self._unsynced):
            if change.directories() & wanted:
                wanted |= change.directories()
                chosen.append(change)
            else:
                kept.append(change)
        self._unsynced = kept[::-1]
        for change in reversed(chosen):
            _apply_name(self._durable, change)

    def crash(self, rng: SimRng) -> None:
        """The machine stops: each directory keeps a random prefix of its unsynced changes."""
        lost: set[str] = set()  # Directories whose prefix has ended.
        keep = rng.choice([0.0, 0.5, 0.9, 1.0])
        for change in self._unsynced:
            if change.directories() & lost or rng.random() >= keep:
                lost |= change.directories()
            else:
                _apply_name(self._durable, change)
        self._unsynced = []
        self.files = dict(self._durable)


def _apply_name(names: dict[str, StoredBytes], change: _NameChange) -> None:
    if change.removed is not None:
        names.pop(change.removed, None)
    if change.added is not None and change.content is not None:
        names[change.added] = change.content
