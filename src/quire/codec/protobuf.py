"""Protobuf's binary format by hand, for the few messages that a program writes and reads before its first append.

Loading Google's library takes longer than opening a database. What is written here has the same bytes; what is read is
only what was written like this. Whoever finds anything else asks the library, which knows what it means.

    field     tag, then a number as a varint, or a length as a varint and so many bytes
    tag       a varint: the field's number times eight, plus 0 for a number or 2 for bytes
    varint    seven bits a byte, lowest first; the high bit says that more follow. A negative number takes ten bytes.
"""

from collections.abc import Iterator
from typing import Final

_UINT64_END: Final = 2**64
_NUMBER, _BYTES = 0, 2


def varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return bytes((number,))
    if 0 <= number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if 0 <= number < 0x200000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    number %= _UINT64_END
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number_field(field: int, value: int) -> bytes:
    return varint(field << 3 | _NUMBER) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    return varint(field << 3 | _BYTES) + varint(len(value)) + value


def text_field(field: int, value: str) -> bytes:
    return bytes_field(field, value.encode())


def message_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, in order. Raises `ValueError` for what is not of the kind that we write."""
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        if tag >= 0x80:
            raise ValueError("a field number above 15")
        value, at = _read_varint(data, at + 1)
        if tag & 7 == _BYTES:
            start, at = at, at + value
            if at > end:
                raise ValueError("it ends too early")
            yield tag >> 3, data[start:at]
        elif tag & 7 == _NUMBER:
            yield tag >> 3, value
        else:
            raise ValueError("neither a number nor bytes")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index, byte in enumerate(data[at : at + 5]):  # Nothing of ours is longer.
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise ValueError("no number of ours")
