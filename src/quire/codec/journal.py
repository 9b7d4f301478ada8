"""The bookie's journal on disk: groups of records that became durable together.

    file    := header, padded to a sector        group*        zeros
    group   := group header | record* | zeros | trailer        a whole number of sectors
    record  := length u32 | ledger i64 | entry i64 | body

A group is what one flush of the disk made durable. It begins on a sector of its own, so that writing it cannot harm the
one before; groups are numbered without gaps across the files of a journal; and the next one is only written when the
last is durable. So whatever a crash left half written is the last group, and was never acknowledged.

Telling a torn group (half written: harmless) from a damaged one (acknowledged, and then spoilt) is the purpose of what
else is in it. Files are preallocated as zeros and never reused, and a disk writes whole sectors. A torn group therefore
has sectors that are still zero, more of them than its header counts, or lacks its trailer. A group that has all its
sectors and fails its checksum was written whole and is damaged.

Checksums are CRC-32C. A group's covers its offset and a random number of the file, its salt, as well, so that neither a
block in the wrong place nor bytes that somebody wrote into an entry ever pass for a group. Integers are big-endian.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from quire.errors import DamagedJournal
from quire.values import dataclass

SECTOR: Final = 512
_ZERO_SECTOR: Final = bytes(SECTOR)
_PART_BYTES_MIN: Final = 4096  # From here on copying a part costs more than a call for each.

_FILE_MAGIC: Final = b"QuireJ02"
_FILE_HEADER: Final = Struct(">8sQQHHI")  # Magic, file id, salt, which journal of how many, checksum of all these.

_GROUP_MAGIC: Final = b"QGRP"
_GROUP_HEADER: Final = Struct(
    ">4sIQIII"
)  # Magic, bytes of records, number, zero sectors, checksums of records, header.
_GROUP_PLACE: Final = Struct(">QQ")  # Salt, offset.
_TRAILER: Final = Struct(">QB")  # The group's number, and a last byte that is not zero.
_WRITTEN: Final = 0xA5

RECORD_HEADER: Final = Struct(">Iqq")

# Record kinds, told by their entry id, as in BookKeeper's journal. Entries have ids from 0.
LEDGER_KEY: Final = -0x1000
FENCE: Final = -0x2000
EXPLICIT_LAC: Final = -0x8000


class JournalNumber(NamedTuple):
    """Which of a bookie's journals this is. Ledgers are dealt out by it, so exchanged journals must be found out."""

    place: int = 0
    journals: int = 1


class FileHeader(NamedTuple):
    file_id: int
    salt: int
    journal: JournalNumber


class Record(NamedTuple):
    """One thing to be remembered: an entry, or with a negative entry id something about the ledger."""

    ledger_id: int
    entry_id: int
    body: memoryview | bytes


@dataclass(frozen=True, slots=True)
class Group:
    """A group as it was read."""

    number: int
    offset: int
    end: int  # Where the next one begins.
    records: memoryview

    def __iter__(self) -> Iterator[Record]:
        """The records, in the order in which they were written. Raises `DamagedJournal` if they do not add up."""
        data, position, end = self.records, 0, len(self.records)
        while position < end:
            start = position + RECORD_HEADER.size
            if start > end:
                raise DamagedJournal(f"group {self.number} of the journal ends within a record")
            length, ledger_id, entry_id = RECORD_HEADER.unpack_from(data, position)
            position = start + length
            if position > end:
                raise DamagedJournal(f"group {self.number} of the journal ends within a record")
            yield Record(ledger_id, entry_id, data[start:position])


class Verdict(Enum):
    """What stands where a group should begin."""

    GROUP = auto()
    NOTHING = auto()  # Zeros to the end: the journal ends here.
    TORN = auto()  # A group that was being written when the machine stopped. It was never acknowledged.
    DAMAGED = auto()  # A group that had been written whole, and cannot be read any more.


# --- Writing


def encode_file_header(header: FileHeader) -> bytes:
    """The first sector of a journal file."""
    plain = _FILE_HEADER.pack(_FILE_MAGIC, header.file_id, header.salt, *header.journal, 0)[:-4]
    return (plain + _crc(plain).to_bytes(4)).ljust(SECTOR, b"\0")


def encode_group(salt: int, offset: int, number: int, records: Iterable[bytes | memoryview]) -> list[bytes]:
    """A group of records that are encoded already (`RECORD_HEADER`, then the body, as separate items or joined), in
    parts that are to be written one behind the other.
    """
    given = list(records)
    size = sum(map(len, given))
    # The checksum reads nothing but bytes, and `bytes` of bytes is no copy.
    parts = [b"".join(given)] if size < _PART_BYTES_MIN * len(given) else list(map(bytes, given))
    checksum, extend = 0, google_crc32c.extend
    for part in parts:
        checksum = extend(checksum, part)
    padding = group_size(size) - _GROUP_HEADER.size - size - _TRAILER.size
    end = bytes(padding) + _TRAILER.pack(number, _WRITTEN)
    plain = _GROUP_HEADER.pack(_GROUP_MAGIC, size, number, _zero_sectors_of(parts, size), checksum, 0)[:-4]
    return [plain + _crc(_GROUP_PLACE.pack(salt, offset) + plain).to_bytes(4), *parts, end]


def group_size(records_bytes: int) -> int:
    """How much of the file a group with this many bytes of records takes."""
    needed = _GROUP_HEADER.size + records_bytes + _TRAILER.size
    return -(-needed // SECTOR) * SECTOR


def _crc(data: bytes) -> int:
    checksum: int = google_crc32c.value(data)
    return checksum


def _zero_sectors_of(parts: Sequence[bytes], size: int) -> int:
    """The same as `_zero_sectors` of a group that is still in parts. Its last sector ends with the trailer."""
    end = group_size(size) - SECTOR
    count, offset = 0, _GROUP_HEADER.size
    for place, part in enumerate(parts):
        first = -offset % SECTOR  # Where a sector begins in this part.
        suspects = part[first::SECTOR]  # Of each sector one byte is looked at: that settles nearly all.
        found = suspects.find(0)
        while found >= 0 and offset + (start := first + found * SECTOR) < end:
            count += not _sector_at(parts, place, start).strip(b"\0")
            found = suspects.find(0, found + 1)
        offset += len(part)
    return count


def _sector_at(parts: Sequence[bytes], place: int, start: int) -> bytes:
    """The sector that begins at byte `start` of a part. Shorter if the records end within it: what follows is zeros."""
    sector = parts[place][start : start + SECTOR]
    while len(sector) < SECTOR and place + 1 < len(parts):
        place += 1
        sector += parts[place][: SECTOR - len(sector)]
    return sector


def _zero_sectors(data: bytes | bytearray) -> int:
    """How many sectors of a group hold nothing but zeros; the first one, which has the header, does not count."""
    if _ZERO_SECTOR not in data:  # Nearly always, and fast.
        return 0
    return sum(data.startswith(_ZERO_SECTOR, start) for start in range(SECTOR, len(data), SECTOR))


# --- Reading


def decode_file_header(data: bytes) -> FileHeader:
    """Raises `DamagedJournal`."""
    if len(data) < _FILE_HEADER.size:
        raise DamagedJournal("a journal file ends within its header")
    magic, file_id, salt, index, count, checksum = _FILE_HEADER.unpack_from(data)
    if magic != _FILE_MAGIC or checksum != _crc(data[: _FILE_HEADER.size - 4]):
        raise DamagedJournal("a journal file does not begin with a journal's header")
    return FileHeader(file_id, salt, JournalNumber(index, count))


def ends_group(data: bytes, offset: int, number: int) -> bool:
    """Whether the group of this number ends at `offset`. `data` is the whole file."""
    if not SECTOR < offset <= len(data):
        return False
    return bool(_TRAILER.unpack_from(data, offset - _TRAILER.size) == (number, _WRITTEN))


def read_group(data: bytes, salt: int, offset: int) -> tuple[Verdict, Group | None]:
    """What stands at `offset`, where a group should begin. `data` is the whole file."""
    header = _read_header(data, salt, offset)
    if header is None:
        return _judge_headless(data, salt, offset), None
    length, number, zero_sectors, checksum = header
    start, end = offset + _GROUP_HEADER.size, offset + group_size(length)
    if end > len(data):
        return Verdict.TORN, None  # The file was being lengthened when the machine stopped.
    trailer, written = _TRAILER.unpack_from(data, end - _TRAILER.size)
    if (trailer, written) == (number, _WRITTEN) and _crc(data[start : start + length]) == checksum:
        return Verdict.GROUP, Group(number, offset, end, memoryview(data)[start : start + length])
    whole = written != 0 and _zero_sectors(data[offset:end]) <= zero_sectors
    return (Verdict.DAMAGED if whole or find_group(data, salt, end) is not None else Verdict.TORN), None


def find_group(data: bytes, salt: int, start: int) -> int | None:
    """Where the next group begins, from `start` on. Nothing is written behind a group that is not durable."""
    offset = data.find(_GROUP_MAGIC, start)
    while offset >= 0:
        if offset % SECTOR == 0 and _read_header(data, salt, offset) is not None:
            return offset
        offset = data.find(_GROUP_MAGIC, offset + 1)
    return None


def _read_header(data: bytes, salt: int, offset: int) -> tuple[int, int, int, int] | None:
    if offset + _GROUP_HEADER.size > len(data):
        return None
    magic, length, number, zero_sectors, records_checksum, checksum = _GROUP_HEADER.unpack_from(data, offset)
    plain = data[offset : offset + _GROUP_HEADER.size - 4]
    if magic != _GROUP_MAGIC or checksum != _crc(_GROUP_PLACE.pack(salt, offset) + plain):
        return None
    return length, number, zero_sectors, records_checksum


def _judge_headless(data: bytes, salt: int, offset: int) -> Verdict:
    """No header here. A sector is written whole, so a header that is neither there nor zero was spoilt."""
    if find_group(data, salt, offset) is not None:
        return Verdict.DAMAGED
    sector = data[offset : offset + SECTOR]
    if sector.strip(b"\0"):
        cut_short = not sector[_GROUP_HEADER.size :].strip(b"\0")  # A group that is there has something behind it.
        return Verdict.TORN if cut_short else Verdict.DAMAGED
    return Verdict.TORN if data[offset:].strip(b"\0") else Verdict.NOTHING
