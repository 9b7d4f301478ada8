"""What a read proxy keeps of one stream for all its readers: a window of the stream that moves along with them.
Sans-IO.

A window holds chunks, entries that follow each other, from its `begin` to its `end`. Readers are places in the stream
and nothing more: whoever is inside the window is given what is behind its place, whoever has dropped out of it has to
look for another one. So what a slow reader costs is the size of a position.

Invariants:
  NoGaps       a chunk begins where the one before it ends: what a reader is given from its place on is all there is.
  OldestFirst  chunks go in the order in which they came.
  BytesAreReal `bytes` is what the chunks take, what was made of them since included.
"""

from bisect import bisect_right
from typing import Final

from quire.errors import invariant
from quire.types import DLSN, Lssn

OVERHEAD_BYTES: Final = 512  # What a chunk takes beside its frame.


class Chunk:
    """Entries of one segment as they are sent, encoded once for all readers; none where a segment ends.

    It stands for every place from `before` to before `after`, whether or not there is an entry.
    """

    __slots__ = ("added_s", "after", "before", "entries", "frame", "is_enveloped", "lssn", "made", "offset", "window")

    def __init__(
        self, *, before: DLSN, after: DLSN, lssn: Lssn, frame: bytes, entries: int, is_enveloped: bool = True
    ) -> None:
        invariant(before < after, "a chunk stands for nothing", before=before, after=after)
        self.before, self.after, self.lssn, self.frame = before, after, lssn, frame
        self.entries, self.is_enveloped = entries, is_enveloped
        self.offset = 0  # Bytes that came into the window before it.
        self.added_s = 0.0
        self.made: dict[object, bytes] = {}  # What else was made of it, to be shared like the frame: see `keep`.
        self.window: Window | None = None  # That it is in.

    @property
    def size_bytes(self) -> int:
        return OVERHEAD_BYTES + len(self.frame) + sum(map(len, self.made.values()))

    def keep(self, key: object, data: bytes) -> None:
        """Keep something that was made of the chunk, as long as the chunk is kept."""
        before = self.size_bytes
        self.made[key] = data
        if self.window is not None:
            self.window.on_grown(self.size_bytes - before)


class Account:
    """Where the bytes of several windows are added up."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Window:
    """The chunks of one lane. `begin` is where it starts even if nothing is in it yet."""

    def __init__(self, begin: DLSN) -> None:
        self.begin = self.end = begin
        self.bytes = 0
        self._account = Account()
        self.entries_ever = 0
        self.bytes_ever = 0  # Of frames: how far apart two places are.
        self._chunks: list[Chunk] = []
        self._afters: list[DLSN] = []
        self._first = 0  # Before it are chunks that went; they are cut off from time to time.

    def __len__(self) -> int:
        return len(self._chunks) - self._first

    @property
    def oldest(self) -> Chunk | None:
        return self._chunks[self._first] if len(self) else None

    # --- Coming and going

    def append(self, chunk: Chunk, *, now_s: float) -> None:
        invariant(chunk.before == self.end, "a window has no gaps", end=self.end, before=chunk.before)
        chunk.added_s, chunk.offset, chunk.window = now_s, self.bytes_ever, self
        self._chunks.append(chunk)
        self._afters.append(chunk.after)
        self.end = chunk.after
        self.on_grown(chunk.size_bytes)
        self.bytes_ever += len(chunk.frame)
        self.entries_ever += chunk.entries

    def drop_oldest(self) -> Chunk:
        invariant(len(self) > 0, "an empty window has nothing to drop", begin=self.begin)
        chunk = self._chunks[self._first]
        self._first += 1
        self.begin = chunk.after
        self.on_grown(-chunk.size_bytes)
        chunk.window = None
        # Only a reference in a list of places that went: it must not keep the frame.
        self._chunks[self._first - 1] = _NOTHING
        if self._first > 64 and self._first * 2 > len(self._chunks):
            del self._chunks[: self._first], self._afters[: self._first]
            self._first = 0
        return chunk

    def on_grown(self, size_bytes: int) -> None:
        """The window takes so much more than it did."""
        self.bytes += size_bytes
        self._account.bytes += size_bytes

    def charge(self, account: Account) -> None:
        """Count its bytes there from now on, and nowhere else."""
        self._account.bytes -= self.bytes
        account.bytes += self.bytes
        self._account = account

    # --- Places

    def covers(self, place: DLSN) -> bool:
        """Whether a reader at this place gets all that it needs here, now or as soon as the window grows."""
        return self.begin <= place <= self.end

    def chunks_from(self, place: DLSN, bytes_max: int) -> list[Chunk]:
        """The chunks that stand for `place` and what is behind it: as many as fit, and at least one if there is any."""
        chunks, at = self._chunks, self._index(place)
        found: list[Chunk] = []
        size_bytes = 0
        while at < len(chunks):
            chunk = chunks[at]
            size_bytes += len(chunk.frame)
            if found and size_bytes > bytes_max:
                break
            found.append(chunk)
            at += 1
        return found

    def bytes_from(self, place: DLSN) -> int:
        """How much there is at a place and behind it, in bytes of frames."""
        at = self._index(place)
        return self.bytes_ever - self._chunks[at].offset if at < len(self._chunks) else 0

    def entries_from(self, place: DLSN, entries_max: int) -> int:
        """How many entries there are at a place and behind it; counted up to `entries_max`."""
        at, count = self._index(place), 0
        while at < len(self._chunks) and count < entries_max:
            count += self._chunks[at].entries
            at += 1
        return count

    def _index(self, place: DLSN) -> int:
        """Of the chunk that stands for `place`, or of the next one to come. Readers at the end are the usual ones."""
        if place >= self.end:
            return len(self._chunks)
        return max(self._first, bisect_right(self._afters, place, self._first))


_NOWHERE: Final = DLSN(Lssn(0), -1, -1)  # type: ignore[arg-type]
_NOTHING: Final = Chunk(before=_NOWHERE, after=_NOWHERE.next_slot(), lssn=Lssn(0), frame=b"", entries=0)
