"""RocksDB's log format, as far as it takes to tell a log that ends early from one that was damaged.

RocksDB keeps its list of files (`MANIFEST`) and its unflushed writes (`*.log`) in this format:

    block     32 KiB, of records; fewer than 7 bytes at its end are filled with zeros
    record    crc (4) length (2) kind (1) payload; least significant byte first; never beyond the end of its block

The kind says whether a payload is whole (1), or the first (2), a middle (3) or the last part (4) of one. The crc is
CRC-32C of kind and payload, rotated and shifted so that a crc of bytes that hold a crc means something.

We look because RocksDB does not look hard enough. A length that was damaged into one beyond the end of the file is to
it the end of an interrupted write, and what follows is silently gone. A kind that was damaged into one of a log that is
used again, which ours never are, makes its reader turn in a circle forever.
"""

import enum
from struct import Struct
from typing import Final

from google_crc32c import value as _crc32c

_BLOCK_BYTES: Final = 32 * 1024
_KINDS: Final = range(1, 5)
_KIND: Final = 6  # Where in a record its kind is.
_MASK_DELTA: Final = 0xA282EAD8

_HEADER: Final = Struct("<IHB")


class LogState(enum.Enum):
    """What can be said of a log."""

    WHOLE = enum.auto()  # Every record reads, to the last byte.
    TORN = enum.auto()  # It ends within a record, or in zeros: a write was interrupted.
    BROKEN = enum.auto()  # A record does not read: damage, or a power cut that spared later pages.
    FOREIGN = enum.auto()  # There is a kind of record that is not known. RocksDB must not be let near it.


def log_state(log: bytes) -> LogState:
    at, inside = 0, False  # Where the next record begins, and whether it should go on with a payload.
    while at < len(log):
        left = _left_in_block(at)
        if left < _HEADER.size:
            at += left
            continue
        end = _record_end(log, at)
        if end is None:
            return _state_after_damage(log, at)
        kind = log[at + _KIND]
        if inside != (kind in (3, 4)):
            return LogState.BROKEN
        inside = kind in (2, 3)
        at = end
    return LogState.TORN if inside else LogState.WHOLE


def _state_after_damage(log: bytes, at: int) -> LogState:
    """`at` is where no record begins, though one should. RocksDB goes on, if it does, at the start of a later block."""
    next_block = at + _left_in_block(at)
    later_blocks = range(next_block, len(log), _BLOCK_BYTES)
    if any(log[start + _KIND] > _KINDS[-1] for start in (at, *later_blocks) if start + _KIND < len(log)):
        return LogState.FOREIGN
    if not _is_cut_short(log, at) and log.count(0, at) < len(log) - at:
        return LogState.BROKEN
    same_block = range(at + 1, min(next_block, len(log)))  # If the length is damaged, the next record may be anywhere.
    if any(_record_end(log, start) is not None for start in (*same_block, *later_blocks)):
        return LogState.BROKEN
    return LogState.TORN


def _record_end(log: bytes, at: int) -> int | None:
    """Where the record at `at` ends. None if there is none: cut short, of no known kind, or not matching its crc."""
    start = at + _HEADER.size
    if start > len(log):
        return None
    crc, length, kind = _HEADER.unpack_from(log, at)
    end = start + length
    if kind not in _KINDS or end > len(log) or end - at > _left_in_block(at):
        return None
    return end if _masked(_crc32c(log[at + _KIND : end])) == crc else None


def _is_cut_short(log: bytes, at: int) -> bool:
    """Whether the record at `at` would go on behind the end of the log, and could have."""
    if at + _HEADER.size > len(log):
        return True
    _, length, _ = _HEADER.unpack_from(log, at)
    return bool(len(log) - at < _HEADER.size + length <= _left_in_block(at))


def _left_in_block(at: int) -> int:
    return _BLOCK_BYTES - at % _BLOCK_BYTES


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
