"""Frames of HTTP/2 (RFC 9113), as far as gRPC needs them, and headers that need no table (RFC 7541).

A frame: length of the payload (3 bytes), type, flags, stream (4 bytes, the first bit unused), payload.

Headers that we write are literals that neither side remembers: the same headers are always the same bytes, which can be
kept and sent again. Reading them takes the table of the connection, and so is no business of this module.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
FRAME_BYTES_MAX: Final = 16_384  # Of a payload, until the other end's settings allow more.
FRAME_BYTES_TAKEN: Final = 256 << 10  # What ours allow, and the most that we send: a batch, or a read, in one piece.
WINDOW_BYTES: Final = 65_535  # Until settings say something else.
WINDOW_BYTES_MAX: Final = (1 << 31) - 1
STREAM_ID_MAX: Final = (1 << 31) - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1  # Of DATA and HEADERS.
ACK: Final = 0x1  # Of SETTINGS and PING.
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6
SETTINGS_MAX: Final = 64  # In one frame. There are about ten, and some that clients make up to see who minds.

_HEADER: Final = struct.Struct(">IBI")  # Length and type, flags, stream.
_SETTING: Final = struct.Struct(">HI")
_TWO_NUMBERS: Final = struct.Struct(">II")
_ONE_NUMBER: Final = struct.Struct(">I")
_PREFIX: Final = struct.Struct(">BI")
_WHOLE_MESSAGE: Final = struct.Struct(">IBIBI")
_LOW_31_BITS: Final = (1 << 31) - 1
MESSAGE_PREFIX_BYTES: Final = _PREFIX.size


class Http2Violation(Exception):
    """The peer broke the rules: the connection is to be closed with this code."""

    def __init__(self, message: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


class Frames:
    """Cuts what arrives into frames, and keeps what is not whole yet. A byte costs the same however it arrives."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun = bytearray()

    @property
    def kept_bytes(self) -> int:
        """Of the frame that has begun and is not whole."""
        return len(self._begun)

    def feed(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Type, flags, stream and payload of each frame that is whole now."""
        place, end, begun = 0, len(data), self._begun
        if begun:
            # Only what belongs to the frame that has begun is joined with it. To copy all would cost as much again.
            arrived = memoryview(data)
            if len(begun) < HEADER_BYTES:
                place = HEADER_BYTES - len(begun)
                begun += arrived[:place]
                if place > end:
                    return
            behind = place + HEADER_BYTES + _checked(_HEADER.unpack_from(begun)[0] >> 8) - len(begun)
            begun += arrived[place:behind]
            if behind > end:
                return
            place, self._begun = behind, bytearray()
            length_and_type, flags, stream_id = _HEADER.unpack_from(begun)
            yield length_and_type & 0xFF, flags, stream_id & _LOW_31_BITS, bytes(memoryview(begun)[HEADER_BYTES:])
        while end - place >= HEADER_BYTES:
            length_and_type, flags, stream_id = _HEADER.unpack_from(data, place)
            behind = place + HEADER_BYTES + _checked(length_and_type >> 8)
            if behind > end:
                break
            yield length_and_type & 0xFF, flags, stream_id & _LOW_31_BITS, data[place + HEADER_BYTES : behind]
            place = behind
        self._begun += memoryview(data)[place:]


def _checked(size: int) -> int:
    if size > FRAME_BYTES_TAKEN:
        raise Http2Violation(f"a frame of {size} bytes", FRAME_SIZE_ERROR)
    return size


def frame(type: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return _HEADER.pack(len(payload) << 8 | type, flags, stream_id) + payload


def data_header(stream_id: int, size: int, *, end_stream: bool = False) -> bytes:
    """What stands before `size` bytes of data."""
    return _HEADER.pack(size << 8 | DATA, END_STREAM if end_stream else 0, stream_id)


def message_header(stream_id: int, size: int, *, end_stream: bool = False) -> bytes:
    """What stands before a message of `size` bytes that fits into one frame: the frame's header and its own."""
    flags = END_STREAM if end_stream else 0
    return _WHOLE_MESSAGE.pack(size + MESSAGE_PREFIX_BYTES << 8 | DATA, flags, stream_id, 0, size)


def headers_frames(stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
    """Headers in as many frames as they need."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= FRAME_BYTES_MAX:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [block[at : at + FRAME_BYTES_MAX] for at in range(0, len(block), FRAME_BYTES_MAX)]
    first = frame(HEADERS, flags, stream_id, parts[0])
    between = [frame(CONTINUATION, 0, stream_id, part) for part in parts[1:-1]]
    return b"".join([first, *between, frame(CONTINUATION, END_HEADERS, stream_id, parts[-1])])


def settings_frame(settings: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in settings))


def settings_of(payload: bytes) -> dict[int, int]:
    """The last value of each setting: those before it would be in force for no frame at all."""
    if len(payload) % _SETTING.size:
        raise Http2Violation("settings of a wrong size", FRAME_SIZE_ERROR)
    if len(payload) > SETTINGS_MAX * _SETTING.size:
        raise Http2Violation(f"{len(payload) // _SETTING.size} settings at once", ENHANCE_YOUR_CALM)
    return dict(_SETTING.iter_unpack(payload))


def goaway_frame(last_stream_id: int, code: int, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _TWO_NUMBERS.pack(last_stream_id, code) + reason.encode())


def goaway_of(payload: bytes) -> tuple[int, int]:
    """The last stream that was looked at, and the code."""
    if len(payload) < _TWO_NUMBERS.size:
        raise Http2Violation("a GOAWAY of a wrong size", FRAME_SIZE_ERROR)
    last_stream_id, code = _TWO_NUMBERS.unpack_from(payload)
    return last_stream_id & _LOW_31_BITS, code


def number_frame(type: int, stream_id: int, number: int) -> bytes:
    """RST_STREAM with its code, WINDOW_UPDATE with its bytes."""
    return frame(type, 0, stream_id, _ONE_NUMBER.pack(number))


def number_of(payload: bytes) -> int:
    if len(payload) != _ONE_NUMBER.size:
        raise Http2Violation("a number of a wrong size", FRAME_SIZE_ERROR)
    number: int = _ONE_NUMBER.unpack(payload)[0]
    return number


def without_padding(payload: bytes, flags: int) -> bytes:
    """What a frame of DATA or HEADERS carries between padding and priority."""
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload or payload[0] >= end:
            raise Http2Violation("more padding than frame")
        start, end = 1, end - payload[0]
    if flags & WITH_PRIORITY:
        start += 5
    if start > end:
        raise Http2Violation("a frame without room for what it says", FRAME_SIZE_ERROR)
    return payload[start:end]


# --- Headers


def headers_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """As literals that are never remembered. Names are lower case, and all is ASCII."""
    parts = bytearray()
    for name, value in headers:
        parts += b"\x00"
        for text in (name.encode("ascii"), value.encode("ascii")):
            parts += _length(len(text)) + text
    return bytes(parts)


def plain_headers(block: bytes) -> dict[str, str] | None:
    """What `headers_block` has written; None if this is something else, which takes the connection's table to read.

    Literals of this kind leave the table as it is, so that it need not see them.
    """
    headers: dict[str, str] = {}
    place, end = 0, len(block)
    while place < end:
        if block[place] != 0:
            return None
        place += 1
        texts = []
        for _ in range(2):
            if place >= end or block[place] >= 0x7F:  # Long, or in Huffman's code.
                return None
            start = place + 1
            place = start + block[place]
            texts.append(block[start:place])
        if place > end or not (texts[0].isascii() and texts[1].isascii()):
            return None
        headers[texts[0].decode()] = texts[1].decode()
    return headers


def _length(number: int) -> bytes:
    """An integer with a prefix of 7 bits, of which the eighth says: not Huffman's code."""
    if number < 0x7F:
        return bytes((number,))
    number, parts = number - 0x7F, bytearray((0x7F,))
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


# --- Messages of gRPC: whether it is compressed (1 byte), its length (4 bytes), and itself


def message_prefix(size: int) -> bytes:
    return _PREFIX.pack(0, size)


def prefix_of(data: bytes | bytearray) -> tuple[bool, int]:
    """Whether the message is compressed, and how long it is."""
    compressed, size = _PREFIX.unpack_from(data)
    return bool(compressed), size
