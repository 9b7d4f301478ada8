"""What the messages of proxies to readers say: decoded once, however many readers get the same one."""

import struct
from collections import deque
from typing import Final

from quire.codec import http2
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.entries import decode_entry
from quire.codec.stream.records import CONTROL, END_OF_STREAM
from quire.errors import invariant
from quire.types import EntryId, Lssn
from quire.values import dataclass

DUE: Final = struct.Struct(">d")
_UNSEEN: Final = CONTROL | END_OF_STREAM
_KEPT_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """Where the entries of a message begin and end, if it has any, and when each of its records was due."""

    first: tuple[int, int] | None
    last: tuple[int, int] | None
    due_s: tuple[float, ...]

    def follows(self, last: tuple[int, int]) -> bool:
        """Whether nothing is between the entry at `last` and these."""
        assert self.first is not None
        return self.first == (last[0], last[1] + 1) or (self.first[0] > last[0] and self.first[1] == 0)


class Messages:
    """The last few that came: readers of one stream are given the same ones, one reader after the other."""

    def __init__(self) -> None:
        self._last: tuple[bytes, DecodedMessage] = (b"", DecodedMessage(None, None, ()))
        self._kept: deque[tuple[bytes, DecodedMessage]] = deque(maxlen=_KEPT_MAX)

    def decoded(self, data: bytes) -> DecodedMessage:
        """What a message says, of which `data` is all, its prefix included."""
        if data == self._last[0]:
            return self._last[1]
        found = next((each for each in self._kept if each[0] == data), None)
        if found is None:
            found = (data, _decoded(data))
            self._kept.append(found)
        self._last = found
        return found[1]


def _decoded(data: bytes) -> DecodedMessage:
    places: list[tuple[int, int]] = []
    due_s: list[float] = []
    for entry in pb.ReadEvent.FromString(data[http2.MESSAGE_PREFIX_BYTES :]).entries:
        records = decode_entry(
            entry.data,
            lssn=Lssn(entry.lssn),
            entry_id=EntryId(entry.entry_id),
            enveloped=not entry.is_bare,
            expand_sets=True,
        )
        due_s += [DUE.unpack_from(record.payload)[0] for record in records if not record.flags & _UNSEEN]
        place = (entry.lssn, entry.entry_id)
        is_next = not places or DecodedMessage(place, place, ()).follows(places[-1])
        invariant(is_next, "an entry is missing, or came twice", place=place)
        places.append(place)
    return DecodedMessage(places[0] if places else None, places[-1] if places else None, tuple(due_s))
