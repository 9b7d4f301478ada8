"""Record sets: many small payloads as the payload of one record.

    set      metadata (4) members (4) length (4) stored length (4) | stored bytes
    member   length (4) payload

Metadata is 0x1000, version 1, and the codec in its lowest two bits. The length is that of all members before
compression. Members have no numbers of their own: each takes the set's txid, and counts slot and position on from it.
"""

import struct
from collections.abc import Sequence
from struct import Struct
from typing import Final

from quire.codec.stream.compression import Compression, compressed, stored_span
from quire.codec.stream.limits import EXPANDED_BYTES_MAX, MEMBER_BYTES_MAX, MEMBER_COST_BYTES, PAYLOAD_BYTES_MAX
from quire.errors import DamagedEntry, InvalidArgument

_HEADER = Struct(">IIII")
_VERSION_MASK: Final = 0xF000
_VERSION: Final = 0x1000
_LENGTH_BYTES: Final = 4
_pack_length = Struct(">I").pack
_unpack_length = Struct(">I").unpack_from


def encode_record_set(payloads: Sequence[bytes], *, compression: Compression = Compression.NONE) -> bytes:
    """What a record of the set has as its payload."""
    if not payloads:
        raise InvalidArgument("a record set needs members")
    largest = max(map(len, payloads))
    if largest > MEMBER_BYTES_MAX:
        raise InvalidArgument(
            f"a member of {largest} bytes is too large for a record set", bytes=largest, bytes_max=MEMBER_BYTES_MAX
        )
    members = b"".join([part for payload in payloads for part in (_pack_length(len(payload)), payload)])
    expanded = len(members) + MEMBER_COST_BYTES * len(payloads)
    if expanded > EXPANDED_BYTES_MAX:
        raise InvalidArgument(
            f"a record set of {len(payloads)} members, {len(members)} bytes before compression, is too large",
            hint="Make several sets of it.",
            bytes=expanded,
            bytes_max=EXPANDED_BYTES_MAX,
        )
    stored = compressed(members, compression)
    header = _HEADER.pack(_VERSION | compression.value, len(payloads), len(members), len(stored))
    size = len(header) + len(stored)
    if size > PAYLOAD_BYTES_MAX:
        raise InvalidArgument(
            f"a record set of {size} bytes does not fit into a record", bytes=size, bytes_max=PAYLOAD_BYTES_MAX
        )
    return header + stored


def decode_record_set(data: bytes) -> list[bytes]:
    """The payloads of a set. Raises `DamagedEntry`."""
    flags, count, length, stored_length = _header(data)
    length_max = EXPANDED_BYTES_MAX - MEMBER_COST_BYTES * count
    members, at, end = stored_span(
        data, _HEADER.size, flags=flags, length=length, stored_length=stored_length, length_max=length_max
    )
    unpack, payloads = _unpack_length, []
    try:
        for _ in range(count):
            (size,) = unpack(members, at)
            begin = at + _LENGTH_BYTES
            at = begin + size
            if at > end:
                break
            payloads.append(members[begin:at])
    except struct.error:
        at = end + 1  # Less than a length is left.
    if at != end:
        raise DamagedEntry(f"{count} members do not fill the {length} bytes of a record set")
    return payloads


def record_set_count(data: bytes) -> int:
    """How many members a set has, for whoever leaves it whole. Raises `DamagedEntry`."""
    return _header(data)[1]


def record_set_bytes(data: bytes) -> int:
    """How many bytes its members have. Raises `DamagedEntry`."""
    _, count, length, _ = _header(data)
    return length - _LENGTH_BYTES * count


def expanded_bytes(data: bytes) -> int:
    """What a reader needs, about, who takes a set apart. Raises `DamagedEntry`."""
    _, count, length, _ = _header(data)
    return length + MEMBER_COST_BYTES * count


def _header(data: bytes) -> tuple[int, int, int, int]:
    if len(data) < _HEADER.size:
        raise DamagedEntry(f"a record set has {len(data)} bytes, {_HEADER.size} is the least")
    metadata, count, length, stored_length = _HEADER.unpack_from(data)
    if metadata & _VERSION_MASK != _VERSION:
        raise DamagedEntry(f"a record set begins with {metadata:#x}, which is not version 1")
    if count * _LENGTH_BYTES > length:  # Checked before anything is done so many times.
        raise DamagedEntry(f"{count} members do not fill the {length} bytes of a record set")
    return metadata, count, length, stored_length
