"""Which entries of a ledger a bookie has: its answer to GET_LIST_OF_ENTRIES_OF_LEDGER.

    header    version 0 (4) number of groups (4) 56 bytes of nothing
    group     first start (8) last start (8) size (4) period (4)

A group is a pattern: runs of `size` entries that start at `first start` and every `period` entries after it, up to and
including `last start`. One run alone has both starts equal and a period of 0.

Invariant: groups ascend and do not overlap, so that a look-up needs one of them. Java looks up the same way.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, Self

from quire.errors import InvalidArgument, ProtocolViolation
from quire.types import EntryId

HEADER_BYTES: Final = 64

_VERSION: Final = 0
_SIZE_MAX: Final = 2**31 - 1
_ENTRY_ID_MAX: Final = 2**63 - 1

_HEADER = Struct(">ii56x")
_GROUP = Struct(">qqii")


class RunGroup(NamedTuple):
    """Runs of `size` entries, at `first_start` and every `period` up to `last_start`."""

    first_start: EntryId
    last_start: EntryId
    size: int
    period: int

    @property
    def end(self) -> int:
        """The first entry id after the group."""
        return self.last_start + self.size

    def problem(self) -> str | None:
        if self.first_start < 0 or self.size < 1:
            return "it holds no entries"
        if self.end - 1 > _ENTRY_ID_MAX:
            return "it goes beyond the last entry id"
        if self.first_start == self.last_start:
            return None if self.period == 0 else "a single run has no period"
        if self.period < self.size:
            return "its runs overlap, or never come to the last one"
        if self.last_start < self.first_start or (self.last_start - self.first_start) % self.period:
            return "its last run is not one of its runs"
        return None


class EntryAvailability:
    """The entries that a bookie has of one ledger. Takes room for the groups, whatever they stand for."""

    def __init__(self, groups: Sequence[RunGroup]) -> None:
        end = 0
        for index, group in enumerate(groups):
            problem = group.problem() or (None if group.first_start >= end else "it does not come after the one before")
            if problem is not None:
                raise InvalidArgument(f"group {index} of available entries is wrong: {problem}: {tuple(group)}")
            end = group.end
        self.groups = tuple(groups)
        self._starts = [group.first_start for group in groups]

    @classmethod
    def of(cls, entry_ids: Iterable[EntryId]) -> Self:
        """Of ascending entry ids: one group for each run, as Java's bookies write it."""
        groups: list[RunGroup] = []
        start, end = EntryId(0), 0  # The run so far, [start, end).
        for entry_id in entry_ids:
            if entry_id == end and end - start < _SIZE_MAX:
                end += 1
                continue
            if end > start:
                groups.append(RunGroup(start, start, end - start, 0))
            start, end = entry_id, entry_id + 1
        if end > start:
            groups.append(RunGroup(start, start, end - start, 0))
        return cls(groups)

    def __contains__(self, entry_id: int) -> bool:
        index = bisect_right(self._starts, entry_id) - 1
        if index < 0:
            return False
        group = self.groups[index]
        offset = entry_id - group.first_start
        return entry_id < group.end and (offset % group.period if group.period else offset) < group.size

    def __iter__(self) -> Iterator[EntryId]:
        """Ascending. It may not end in a lifetime: what a peer claims to have is not limited by what it sent."""
        for group in self.groups:
            for start in range(group.first_start, group.last_start + 1, group.period or 1):
                yield from map(EntryId, range(start, start + group.size))

    def count(self) -> int:
        """How many entries there are."""
        return sum(
            group.size * ((group.last_start - group.first_start) // (group.period or 1) + 1) for group in self.groups
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntryAvailability) and self.groups == other.groups

    def __hash__(self) -> int:
        return hash(self.groups)


def encode_availability(availability: EntryAvailability) -> bytes:
    header = _HEADER.pack(_VERSION, len(availability.groups))
    return header + b"".join([_GROUP.pack(*group) for group in availability.groups])


def decode_availability(data: bytes) -> EntryAvailability:
    """Raises `ProtocolViolation`. Bytes after the last group are ignored."""
    try:
        version, count = _HEADER.unpack_from(data)
    except struct.error:
        raise ProtocolViolation(f"a list of entries has {HEADER_BYTES} bytes or more, not {len(data)}") from None
    if version != _VERSION:
        raise ProtocolViolation(f"version {version} of a list of entries does not exist", version=version)
    end = HEADER_BYTES + count * _GROUP.size
    if not HEADER_BYTES <= end <= len(data):
        raise ProtocolViolation(f"a list of {count} groups of entries does not fit into {len(data)} bytes")
    try:
        return EntryAvailability([RunGroup(*group) for group in _GROUP.iter_unpack(data[HEADER_BYTES:end])])
    except InvalidArgument as error:
        raise ProtocolViolation(str(error)) from error
