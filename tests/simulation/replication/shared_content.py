"""What a simulated disk keeps, in little memory: long bodies that many entries have in common are kept once.

A file is a list of pieces. Where bytes that are written hold one of the bodies, compared byte by byte, the piece is
that body itself; everything else is kept as it is. So a disk gives back what was written, whatever that was, and a
hundred gigabytes of entries that end with one of a few bodies take some megabytes.
"""

import random
from bisect import bisect_left, bisect_right
from typing import Final, Self

_MARK: Final = random.Random(3).randbytes(16)  # How every body begins: what to search for in a write.


def make_bodies(count: int, size: int) -> list[bytes]:
    """Bodies that differ from one another from the 17th byte on."""
    rng = random.Random(size)
    return [_MARK + bytes([number]) + rng.randbytes(size - len(_MARK) - 1) for number in range(count)]


class SharedContent:
    """The bytes of one file: a `Content` of `quire.testing.sim_stored`. What was never written reads as zeros."""

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies = bodies
        self._size = 0
        self._starts: list[int] = []  # Of `_pieces`, which do not overlap.
        self._pieces: list[bytes] = []

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> bytes:
        start, stop, _ = part.indices(self._size)
        taken: list[bytes | memoryview] = []
        at = start
        for index in range(self._first_behind(start), bisect_left(self._starts, stop)):
            begin, piece = self._starts[index], self._pieces[index]
            taken.append(bytes(max(0, begin - at)))
            at = min(stop, begin + len(piece))
            taken.append(memoryview(piece)[max(0, start - begin) : at - begin])
        taken.append(bytes(max(0, stop - at)))
        return b"".join(taken)

    def __setitem__(self, part: slice, data: bytes, /) -> None:
        start, stop, _ = part.indices(self._size)
        self._size = max(self._size, start + len(data))
        self._cut(start, max(stop, start + len(data)))
        index = bisect_left(self._starts, start)
        pieces = self._split(data)
        self._pieces[index:index] = pieces
        starts = []
        for piece in pieces:
            starts.append(start)
            start += len(piece)
        self._starts[index:index] = starts

    def __delitem__(self, part: slice, /) -> None:
        start, stop, _ = part.indices(self._size)
        if stop != self._size:
            raise ValueError("a file is cut at its end only")
        self._cut(start, stop)
        self._size = start

    def extend(self, data: bytes, /) -> None:
        if data == bytes(len(data)):
            self._size += len(data)
        else:
            self[self._size : self._size] = data

    def copy(self) -> Self:
        other = type(self)(self._bodies)
        other._size, other._starts, other._pieces = self._size, list(self._starts), list(self._pieces)
        return other

    @property
    def own_bytes(self) -> int:
        """What it takes in memory beside the bodies that all share."""
        shared = {id(body) for body in self._bodies}
        return sum(len(piece) for piece in self._pieces if id(piece) not in shared)

    def _first_behind(self, offset: int) -> int:
        """Which piece is the first that ends behind `offset`."""
        index = bisect_right(self._starts, offset)
        if index and self._starts[index - 1] + len(self._pieces[index - 1]) > offset:
            index -= 1
        return index

    def _cut(self, start: int, stop: int) -> None:
        """Take out what is there, and keep what a piece has before and behind it."""
        first, end = self._first_behind(start), bisect_left(self._starts, stop)
        if first >= end:
            return
        left: list[tuple[int, bytes]] = []
        begin, piece = self._starts[first], self._pieces[first]
        if begin < start:
            left.append((begin, piece[: start - begin]))
        begin, piece = self._starts[end - 1], self._pieces[end - 1]
        if begin + len(piece) > stop:
            left.append((stop, piece[stop - begin :]))
        self._starts[first:end] = [offset for offset, _ in left]
        self._pieces[first:end] = [each for _, each in left]

    def _split(self, data: bytes) -> list[bytes]:
        """The same bytes, with the bodies in them by reference."""
        pieces, done, found = [], 0, data.find(_MARK)
        while found >= 0:
            body = next((each for each in self._bodies if data.startswith(each, found)), None)
            if body is None:
                found = data.find(_MARK, found + 1)
                continue
            if found > done:
                pieces.append(data[done:found])
            pieces.append(body)
            done = found + len(body)
            found = data.find(_MARK, done)
        if done < len(data):
            pieces.append(data[done:])
        return pieces
