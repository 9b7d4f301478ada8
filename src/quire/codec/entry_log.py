"""Entry log files, where a bookie's entries live for good: header, records, footer. `docs/reference/entry-log.md`.

    header    512 bytes: magic, format version, log id, zeros, crc
    record    mark, crc, length, synced-to, ledger id, entry id, body; the next record follows at once
    footer    of a finished log only: a row for each ledger, then a trailer that tells where the rows begin

Invariants:
  RecordsKnowTheirPlace  a record's crc covers its log id and offset: the same bytes anywhere else are no record. So a
                         block that a disk misplaced, or that an older file left behind, never passes for an entry.
  ZerosAreNothing        no run of zeros is a record, a header or a footer: a file may be longer than what was written.
  SyncedToIsTrue         everything before `synced_to` was durable when the record was written. What is missing there
                         was damaged; what is missing beyond may never have reached the disk.
  FooterIsLast           a footer is written only when all records before it are durable.

All decoders take any bytes and raise `DamagedEntry` for those that are not what they should be.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple, NewType, TypeAlias, cast

from google_crc32c import extend as _extend

from quire.codec.digest import Buffer
from quire.errors import DamagedEntry, InvalidArgument
from quire.types import EntryId, LedgerId

LogId = NewType("LogId", int)
Location = NewType("Location", int)  # Log id and offset of a record as one positive 64-bit number, for indexes.
Entry: TypeAlias = tuple[LedgerId, EntryId, Buffer]

LOG_ID_MAX: Final = LogId(2**31 - 1)
HEADER_BYTES: Final = 512  # One sector, which a disk writes as a whole or not at all.
RECORD_HEADER_BYTES: Final = 32
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024  # Far above any frame; bounds what a damaged length makes us read.
BODY_BYTES_MAX: Final = RECORD_BYTES_MAX - RECORD_HEADER_BYTES
LOG_BYTES_MAX: Final = 2**32 - 1  # An offset has 32 bits.
LEDGERS_MAX: Final = 65_536  # In one log: bounds its footer, and what a writer remembers.
TRAILER_BYTES: Final = 32
FORMAT_VERSION: Final = 1
MARK: Final = b"\xf8QE\xff"  # Begins a record. No UTF-8 text holds its first or last byte, so a search rarely errs.

_RUN_RECORDS_MAX: Final = 1024  # About a millisecond of work: the event loop gets its turn between runs.
_RUN_BYTES_MAX: Final = 4 * 1024 * 1024
_HEADER_MAGIC: Final = b"QUIRELOG"
_TRAILER_MAGIC: Final = b"QUIREEND"
_OFFSET_MASK: Final = 2**32 - 1
_NAME: Final = re.compile("([0-9a-f]{16})[.]log", re.ASCII)

_HEADER: Final = Struct(">8sIQ")
_RECORD: Final = Struct(">4sIIIqq")  # Mark, crc, length, synced-to, ledger id, entry id.
_COVERED: Final = Struct(">QIIIqq")  # Log id and offset, then what follows the crc; the body comes last.
_ROW: Final = Struct(">qQQ")  # Ledger id, entries, bytes.
_TRAILER: Final = Struct(">8sQQI")  # Magic, log id, where the rows begin, how many there are; the crc follows.
_CRC: Final = Struct(">I")


class LedgerUsage(NamedTuple):
    """What one ledger takes up in one log. Bytes are those of whole records, so that they add up to the log's."""

    entries: int
    bytes: int


class Record(NamedTuple):
    """One entry as it was found in a log."""

    length: int  # Of the whole record: the next one begins so much further on.
    synced_to: int
    ledger_id: LedgerId
    entry_id: EntryId
    body: bytes


class Run(NamedTuple):
    """Records to be written one after the other, from `offset` on, in a single call."""

    offset: int
    buffers: list[bytes]
    locations: list[Location]


# --- Names and places -----------------------------------------------------------------------------------------


def log_name(log_id: LogId) -> str:
    """The name of a log's file. Raises `InvalidArgument` when there is no such log id."""
    if not 0 < log_id <= LOG_ID_MAX:
        raise InvalidArgument(f"{log_id} cannot be a log id: they run from 1 to {LOG_ID_MAX}")
    return f"{log_id:016x}.log"


def parse_log_name(name: str) -> LogId | None:
    """Which log a file of this name would be; None if it is none at all."""
    match = _NAME.fullmatch(name)
    number = int(match[1], 16) if match else 0
    return LogId(number) if 0 < number <= LOG_ID_MAX else None


def location_of(log_id: LogId, offset: int) -> Location:
    return Location(log_id << 32 | offset)


def split_location(location: Location) -> tuple[LogId, int]:
    """The log id and the offset in its file. Of a number that is no location, a log id that no log has."""
    return LogId(location >> 32), location & _OFFSET_MASK


# --- Header ---------------------------------------------------------------------------------------------------


def encode_header(log_id: LogId) -> bytes:
    content = _HEADER.pack(_HEADER_MAGIC, FORMAT_VERSION, log_id).ljust(HEADER_BYTES - _CRC.size, b"\0")
    return content + _CRC.pack(_extend(0, content))


def check_header(data: bytes, log_id: LogId) -> None:
    """Raise `DamagedEntry` unless `data` begins as the file of this log does."""
    if len(data) < HEADER_BYTES:
        raise DamagedEntry(f"the file has {len(data)} bytes, not even a header")
    magic, version, stored_id = _HEADER.unpack_from(data)
    if magic != _HEADER_MAGIC:
        raise DamagedEntry(f"it begins with {magic.hex()}, not as an entry log does")
    if version != FORMAT_VERSION:
        raise DamagedEntry(f"its header says format version {version}; only {FORMAT_VERSION} is known")
    end = HEADER_BYTES - _CRC.size
    if _CRC.unpack_from(data, end)[0] != _extend(0, data[:end]):
        raise DamagedEntry("its header fails its checksum")
    if stored_id != log_id:
        raise DamagedEntry(f"its header says log {stored_id}, its name says log {log_id}")


# --- Records --------------------------------------------------------------------------------------------------


def check_entries(entries: Iterable[Entry]) -> None:
    """Raise `InvalidArgument` if one of `entries` cannot be stored."""
    for ledger_id, entry_id, body in entries:
        if (ledger_id | entry_id) >> 63 or len(body) > BODY_BYTES_MAX:
            raise InvalidArgument(
                f"entry {ledger_id}:{entry_id} of {len(body)} bytes cannot be stored in an entry log",
                hint=f"Ids run from 0 to {2**63 - 1}, and a body has at most {BODY_BYTES_MAX} bytes.",
                ledger_id=ledger_id,
                entry_id=entry_id,
            )


class LogContent:
    """What has been put into one log: where the next record goes, and what its footer will say."""

    def __init__(self, log_id: LogId, *, log_bytes_max: int) -> None:
        self.log_id = log_id
        self.end = HEADER_BYTES
        self._log_bytes_max = log_bytes_max
        self._ledgers: dict[LedgerId, list[int]] = {}

    def take(self, entries: Sequence[Entry], start: int, *, synced_to: int) -> Run:
        """Turn `entries` from `start` on into records: as many as one write should carry and this log can hold.

        None of them when the log is full. An empty log takes at least one, however large. The entries must have passed
        `check_entries`, and `synced_to` be true of this log.
        """
        log_id, offset, room, ledgers = self.log_id, self.end, self._log_bytes_max, self._ledgers
        end_of_run = offset + _RUN_BYTES_MAX
        base, covered, record, extend = log_id << 32, _COVERED.pack, _RECORD.pack, _extend
        buffers: list[bytes] = []
        locations: list[int] = []
        current, usage = -1, [0, 0]
        for index in range(start, min(len(entries), start + _RUN_RECORDS_MAX)):
            ledger_id, entry_id, body = entries[index]
            # The checksum copies anything but bytes. The copy is what gets written, too: what was checked is stored.
            data = body if type(body) is bytes else bytes(body)
            length = RECORD_HEADER_BYTES + len(data)
            if offset > end_of_run or (offset + length > room and offset > HEADER_BYTES):
                break
            if ledger_id != current:
                if ledger_id not in ledgers:
                    if len(ledgers) >= LEDGERS_MAX:
                        break
                    ledgers[ledger_id] = [0, 0]
                current, usage = ledger_id, ledgers[ledger_id]
            crc = extend(extend(0, covered(log_id, offset, length, synced_to, ledger_id, entry_id)), data)
            buffers.append(record(MARK, crc, length, synced_to, ledger_id, entry_id))
            buffers.append(data)
            locations.append(base | offset)
            usage[0] += 1
            usage[1] += length
            offset += length
        first, self.end = self.end, offset
        return Run(first, buffers, cast(list[Location], locations))  # Calling `Location` on each would cost a tenth.

    def ledgers(self) -> dict[LedgerId, LedgerUsage]:
        return {ledger_id: LedgerUsage(*usage) for ledger_id, usage in self._ledgers.items()}

    def footer(self) -> bytes:
        return encode_footer(self.log_id, self.end, self.ledgers())


def decode_record(log_id: LogId, offset: int, data: bytes, at: int = 0) -> Record | int:
    """The record of this log at `offset`, which is byte `at` of `data`.

    If `data` ends before the record does, how many bytes are needed instead: once or twice, first for its header.
    """
    if len(data) - at < RECORD_HEADER_BYTES:
        return RECORD_HEADER_BYTES
    if offset > LOG_BYTES_MAX:
        raise DamagedEntry(f"a log has no records beyond {LOG_BYTES_MAX}")
    mark, crc, length, synced_to, ledger_id, entry_id = _RECORD.unpack_from(data, at)
    if mark != MARK:
        raise DamagedEntry(f"no record begins here: found {mark.hex()} instead of its mark")
    if not RECORD_HEADER_BYTES <= length <= RECORD_BYTES_MAX:
        raise DamagedEntry(f"a record cannot have {length} bytes")
    if len(data) - at < length:
        return int(length)
    body = data[at + RECORD_HEADER_BYTES : at + length]
    if _extend(_extend(0, _COVERED.pack(log_id, offset, length, synced_to, ledger_id, entry_id)), body) != crc:
        raise DamagedEntry("the record fails its checksum")
    return Record(length, synced_to, ledger_id, entry_id, body)


def decode_run(
    log_id: LogId, offset: int, data: bytes, at: int, *, ledger_id: LedgerId, entries_max: int
) -> list[tuple[EntryId, Location, bytes]]:
    """The whole and intact records of one ledger that follow one another from byte `at` of `data`, which is `offset`.

    As `decode_record` in a loop, at half the price. Whatever ends the run is left for somebody to ask for by itself.
    """
    base, shift = log_id << 32, offset - at
    size = min(len(data), LOG_BYTES_MAX - shift)
    unpack, covered, extend = _RECORD.unpack_from, _COVERED.pack, _extend
    run: list[tuple[EntryId, Location, bytes]] = []
    while len(run) < entries_max and size - at >= RECORD_HEADER_BYTES:
        mark, crc, length, synced_to, stored_ledger_id, entry_id = unpack(data, at)
        end = at + length
        if mark != MARK or stored_ledger_id != ledger_id or end > size or length < RECORD_HEADER_BYTES:
            break
        body = data[at + RECORD_HEADER_BYTES : end]
        if extend(extend(0, covered(log_id, at + shift, length, synced_to, ledger_id, entry_id)), body) != crc:
            break
        run.append((entry_id, base | at + shift, body))  # type: ignore[arg-type]
        at = end
    return run


# --- Footer ---------------------------------------------------------------------------------------------------


def encode_footer(log_id: LogId, begin: int, ledgers: Mapping[LedgerId, LedgerUsage]) -> bytes:
    """Everything after the last record of a finished log; `begin` is its offset."""
    rows = b"".join(_ROW.pack(ledger_id, *usage) for ledger_id, usage in sorted(ledgers.items()))
    content = rows + _TRAILER.pack(_TRAILER_MAGIC, log_id, begin, len(ledgers))
    return content + _CRC.pack(_extend(0, content))


def footer_begin(trailer: bytes, log_id: LogId, *, log_bytes: int) -> int:
    """Where the footer begins, told by the last `TRAILER_BYTES` of a file with `log_bytes`."""
    if len(trailer) != TRAILER_BYTES:
        raise DamagedEntry("the file is too short to have a footer")
    magic, stored_id, begin, rows = _TRAILER.unpack_from(trailer)
    if magic != _TRAILER_MAGIC or stored_id != log_id:
        raise DamagedEntry("the file does not end with the trailer of this log")
    if begin < HEADER_BYTES or rows > LEDGERS_MAX or begin + rows * _ROW.size + TRAILER_BYTES != log_bytes:
        raise DamagedEntry(f"a footer from {begin} with {rows} ledgers does not fit a file of {log_bytes} bytes")
    return int(begin)


def decode_footer(data: bytes, log_id: LogId, *, begin: int) -> dict[LedgerId, LedgerUsage]:
    """What each ledger takes up in this log; `data` is everything from `begin` to the end of the file."""
    footer_begin(data[-TRAILER_BYTES:], log_id, log_bytes=begin + len(data))
    content = data[: -_CRC.size]
    if _CRC.unpack_from(data, len(content))[0] != _extend(0, content):
        raise DamagedEntry("the footer fails its checksum")
    rows = content[: len(data) - TRAILER_BYTES]
    return {LedgerId(row[0]): LedgerUsage(row[1], row[2]) for row in _ROW.iter_unpack(rows)}
