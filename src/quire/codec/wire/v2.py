"""Version 2 of the bookie protocol: fixed binary packets, the fast way to add and to read.

    header        version (1) opcode (1) flags (2); a first byte of 0 is the oldest form: the opcode is the fourth byte
    add           → header master key (20) entry                           ← header code (4) ledger id (8) entry id (8)
    read          → header ledger id (8) entry id (8) [master key]         ← header code ledger id entry id [entry]
    batch read    → header ledger id (8) first entry id (8) request id (8) count (4) bytes (8) [master key]
                  ← header code ledger id first entry id request id {size (4) entry}
    auth          → header message                                         ← header message

A master key follows a read that fences; an entry follows an answer only when the code says that all went well. Answers
repeat the ids of the request, also -1 for the last entry: clients match them by that. Other operations exist in
version 3 only.

These functions run once for each entry, so they return plain tuples, and views instead of copies. Ids are Apache's
signed numbers, unchecked: what a bookie thinks of a negative one is the bookie's business.
"""

import struct
from collections.abc import Sequence
from struct import Struct
from typing import Final

from quire.codec.digest import KEY_BYTES, Buffer
from quire.codec.wire.codes import Status, status_of_v2
from quire.codec.wire.v3_messages import AuthMessage
from quire.errors import InvalidArgument, ProtocolViolation
from quire.types import NO_ENTRY, EntryId, LedgerId

VERSION: Final = 2

ADD_ENTRY: Final = 1
READ_ENTRY: Final = 2
AUTH: Final = 3
BATCH_READ_ENTRY: Final = 7  # Bookies before 4.17 close the connection over it.
# 4, 5 and 6 are names in Apache's sources without a packet.
_OPCODES: Final = frozenset({ADD_ENTRY, READ_ENTRY, AUTH, BATCH_READ_ENTRY})

DO_FENCING: Final = 0x0001  # On reads.
RECOVERY_ADD: Final = 0x0002
HIGH_PRIORITY: Final = 0x0004
_FLAGS_MAX: Final = 0xFFFF

BATCH_ENVELOPE_BYTES: Final = 36  # What a batch takes of its size limit before its first entry,
BATCH_ENTRY_BYTES: Final = 4  # and for each entry besides the entry itself.

_KEY_END: Final = 4 + KEY_BYTES
_OK: Final = Status.EOK

_HEADER = Struct(">I")
_ADD_REQUEST = Struct(f">I{KEY_BYTES}sqqq")  # Up to the LAC, which is the last thing that a bookie looks at.
_ADD_REQUEST_SHORT = Struct(f">I{KEY_BYTES}sqq")
_ADD_PREFIX = Struct(f">II{KEY_BYTES}s")
_READ_REQUEST = Struct(">Iqq")
_READ_PREFIX = Struct(">IIqq")
_BATCH_REQUEST = Struct(">Iqqqiq")
_BATCH_PREFIX = Struct(">IIqqqiq")
_AUTH_PREFIX = Struct(">II")
_RESPONSE = Struct(">Iiqq")
_RESPONSE_PREFIX = Struct(">IIiqq")
_BATCH_RESPONSE = Struct(">Iiqqq")
_BATCH_RESPONSE_PREFIX = Struct(">IIiqqq")
_SIZE = Struct(">i")


# --- Headers


def decode_header(body: memoryview) -> tuple[int, int, int]:
    """Version, opcode and flags of any packet. Answer `EBADVERSION` above version 2.

    Raises `ProtocolViolation` for an opcode without a packet: how long it is, or whom to answer, cannot be known.
    """
    try:
        (header,) = _HEADER.unpack_from(body)
    except struct.error:
        raise _too_short("a packet", body) from None
    version = header >> 24
    opcode, flags = (header >> 16 & 0xFF, header & 0xFFFF) if version else (header & 0xFF, 0)
    if opcode not in _OPCODES:
        raise ProtocolViolation(f"no packet of version {version} has the opcode {opcode}", version=version)
    return version, opcode, flags


def _header(opcode: int, flags: int = 0, version: int = VERSION) -> int:
    if not 0 <= flags <= _FLAGS_MAX or not 0 <= version <= 0xFF:
        raise InvalidArgument(f"flags {flags} and version {version} do not fit into a packet's header")
    return version << 24 | opcode << 16 | flags if version else opcode


def _flags(header: int) -> int:
    return header & 0xFFFF if header >> 24 else 0


# --- Requests, as clients write them


def add_request_prefix(master_key: bytes, *, entry_bytes: int, flags: int = 0) -> bytes:
    """What goes before an entry of `entry_bytes` bytes in all: send it, then the entry's parts, uncopied.

    It says nothing of ids, so that a writer may use it again for entries of one size.
    """
    _check_key(master_key)
    try:
        return _ADD_PREFIX.pack(_KEY_END + entry_bytes, _header(ADD_ENTRY, flags), master_key)
    except struct.error as error:
        raise InvalidArgument(f"an entry of {entry_bytes} bytes does not fit into a frame") from error


def encode_read_request(
    ledger_id: LedgerId, entry_id: EntryId, *, flags: int = 0, master_key: bytes | None = None
) -> bytes:
    """Entry -1 is the last one that the bookie has. A master key goes with `DO_FENCING` and only with it."""
    key = _fencing_key(flags, master_key)
    try:
        return _READ_PREFIX.pack(20 + len(key), _header(READ_ENTRY, flags), ledger_id, entry_id) + key
    except struct.error as error:
        raise _no_int64(ledger_id, entry_id) from error


def encode_batch_read_request(
    ledger_id: LedgerId,
    first_entry_id: EntryId,
    request_id: int,
    *,
    entries_max: int,
    bytes_max: int,
    flags: int = 0,
    master_key: bytes | None = None,
) -> bytes:
    """Entries from `first_entry_id` on, as far as the bookie has them without a gap; the first whatever its size.

    `entries_max` of 0 means any number, `bytes_max` of 0 means one entry. `request_id` tells answers apart.
    """
    key = _fencing_key(flags, master_key)
    header = _header(BATCH_READ_ENTRY, flags)
    try:
        return (
            _BATCH_PREFIX.pack(40 + len(key), header, ledger_id, first_entry_id, request_id, entries_max, bytes_max)
            + key
        )
    except struct.error as error:
        raise _no_int64(ledger_id, first_entry_id, request_id, entries_max, bytes_max) from error


def encode_auth(message: AuthMessage, *, version: int = VERSION) -> bytes:
    """A request and an answer alike. An answer has the version of its request."""
    from quire.codec.wire.v3 import encode_auth_message  # And Google's library, which nothing else here needs.

    data = encode_auth_message(message)
    return _AUTH_PREFIX.pack(4 + len(data), _header(AUTH, version=version)) + data


def _check_key(master_key: bytes) -> None:
    if len(master_key) != KEY_BYTES:
        raise InvalidArgument(f"a master key has {KEY_BYTES} bytes, not {len(master_key)}")


def _fencing_key(flags: int, master_key: bytes | None) -> bytes:
    if (master_key is not None) != bool(flags & DO_FENCING):
        raise InvalidArgument("a read carries a master key if it fences, and only then")
    if master_key is None:
        return b""
    _check_key(master_key)
    return master_key


# --- Requests, as bookies read them


def decode_add_request(body: memoryview) -> tuple[int, bytes, LedgerId, EntryId, EntryId, memoryview]:
    """Flags, master key, ledger id, entry id, LAC and the entry, which begins with these three numbers.

    An entry below 24 bytes cannot be stored and comes without a LAC: answer it with `EBADREQ`.
    """
    try:
        header, key, ledger_id, entry_id, lac = _ADD_REQUEST.unpack_from(body)
    except struct.error:
        try:
            header, key, ledger_id, entry_id = _ADD_REQUEST_SHORT.unpack_from(body)
        except struct.error:
            raise _too_short("an add request", body) from None
        lac = NO_ENTRY
    return header & 0xFFFF if header >> 24 else 0, key, ledger_id, entry_id, lac, body[_KEY_END:]


def decode_read_request(body: memoryview) -> tuple[int, LedgerId, EntryId, bytes | None]:
    """Flags, ledger id, entry id, and the master key if the read fences."""
    try:
        header, ledger_id, entry_id = _READ_REQUEST.unpack_from(body)
    except struct.error:
        raise _too_short("a read request", body) from None
    return _flags(header), ledger_id, entry_id, _decode_fencing_key(header, body, _READ_REQUEST.size)


def decode_batch_read_request(body: memoryview) -> tuple[int, LedgerId, EntryId, int, int, int, bytes | None]:
    """Flags, ledger id, first entry id, request id, most entries, most bytes, and the master key if it fences."""
    try:
        header, ledger_id, entry_id, request_id, entries_max, bytes_max = _BATCH_REQUEST.unpack_from(body)
    except struct.error:
        raise _too_short("a batch read request", body) from None
    key = _decode_fencing_key(header, body, _BATCH_REQUEST.size)
    return _flags(header), ledger_id, entry_id, request_id, entries_max, bytes_max, key


def decode_auth(body: memoryview) -> AuthMessage:
    """A request and an answer alike."""
    from quire.codec.wire.v3 import decode_auth_message

    return decode_auth_message(body[4:])


def _decode_fencing_key(header: int, body: memoryview, at: int) -> bytes | None:
    if header >> 24 < VERSION or not header & DO_FENCING:  # Fencing came with version 2.
        return None
    key = bytes(body[at : at + KEY_BYTES])
    if len(key) < KEY_BYTES:
        raise _too_short("a fencing read request", body)
    return key


# --- Answers, as bookies write them. `version` is that of the request.


def encode_add_response(status: Status, ledger_id: LedgerId, entry_id: EntryId, *, version: int = VERSION) -> bytes:
    try:
        return _RESPONSE_PREFIX.pack(24, _header(ADD_ENTRY, 0, version), status.v2_answer, ledger_id, entry_id)
    except struct.error as error:
        raise _no_int64(ledger_id, entry_id) from error


def read_response_prefix(
    status: Status, ledger_id: LedgerId, entry_id: EntryId, *, entry_bytes: int = 0, version: int = VERSION
) -> bytes:
    """The answer to a read; after `EOK`, the entry of `entry_bytes` bytes is sent behind it, uncopied."""
    if entry_bytes and status is not _OK:
        raise InvalidArgument(f"an answer of {status.name} carries no entry")
    header = _header(READ_ENTRY, 0, version)
    try:
        return _RESPONSE_PREFIX.pack(24 + entry_bytes, header, status.v2_answer, ledger_id, entry_id)
    except struct.error as error:
        raise _no_int64(ledger_id, entry_id) from error


def batch_read_response_parts(
    status: Status,
    ledger_id: LedgerId,
    first_entry_id: EntryId,
    request_id: int,
    entries: Sequence[Buffer] = (),
    *,
    version: int = VERSION,
) -> list[Buffer]:
    """The answer to a batch read, in parts to be sent one after another, so that no entry is copied."""
    if entries and status is not _OK:
        raise InvalidArgument(f"an answer of {status.name} carries no entries")
    length = 32 + sum(BATCH_ENTRY_BYTES + len(entry) for entry in entries)
    header = _header(BATCH_READ_ENTRY, 0, version)
    try:
        parts: list[Buffer] = [
            _BATCH_RESPONSE_PREFIX.pack(length, header, status.v2_answer, ledger_id, first_entry_id, request_id)
        ]
    except struct.error as error:
        raise _no_int64(ledger_id, first_entry_id, request_id) from error
    for entry in entries:
        parts += (_SIZE.pack(len(entry)), entry)
    return parts


# --- Answers, as clients read them


def decode_add_response(body: memoryview) -> tuple[Status, LedgerId, EntryId]:
    try:
        _, code, ledger_id, entry_id = _RESPONSE.unpack_from(body)
    except struct.error:
        raise _too_short("an add response", body) from None
    return status_of_v2(code) if code else _OK, ledger_id, entry_id


def decode_read_response(body: memoryview) -> tuple[Status, LedgerId, EntryId, memoryview | None]:
    """Status, the ids of the request, and the entry after `EOK`."""
    try:
        _, code, ledger_id, entry_id = _RESPONSE.unpack_from(body)
    except struct.error:
        raise _too_short("a read response", body) from None
    if code:
        return status_of_v2(code), ledger_id, entry_id, None
    return _OK, ledger_id, entry_id, body[_RESPONSE.size :]


def decode_batch_read_response(body: memoryview) -> tuple[Status, LedgerId, EntryId, int, list[memoryview]]:
    """Status, ledger id, first entry id and request id of the request, and the entries."""
    try:
        _, code, ledger_id, entry_id, request_id = _BATCH_RESPONSE.unpack_from(body)
    except struct.error:
        raise _too_short("a batch read response", body) from None
    status = status_of_v2(code)
    return status, ledger_id, entry_id, request_id, _decode_batch(body) if status is _OK else []


def _decode_batch(body: memoryview) -> list[memoryview]:
    entries: list[memoryview] = []
    at, end = _BATCH_RESPONSE.size, len(body)
    while at < end:
        start = at + BATCH_ENTRY_BYTES
        if start > end:
            raise ProtocolViolation(f"a batch ends within the size of its entry {len(entries)}")
        (size,) = _SIZE.unpack_from(body, at)
        at = start + size
        if size < 0 or at > end:
            raise ProtocolViolation(f"entry {len(entries)} of a batch claims {size} bytes, {end - start} are left")
        entries.append(body[start:at])
    return entries


# --- Complaints


def _too_short(what: str, body: memoryview) -> ProtocolViolation:
    return ProtocolViolation(f"{what} does not fit into {len(body)} bytes", body_bytes=len(body))


def _no_int64(*numbers: int) -> InvalidArgument:
    return InvalidArgument(f"one of the numbers {', '.join(map(str, numbers))} does not fit into its field")
