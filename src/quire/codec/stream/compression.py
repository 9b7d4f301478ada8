"""The codecs of envelopes and record sets: none, and raw LZ4 blocks.

Both formats store a codec, the length before compression and the length that is stored, so that a block carries
neither itself. LZ4's blocks differ from library to library; each reads those of the others.
"""

import enum
from typing import Final

from quire.codec.damage import INT32_MAX
from quire.errors import DamagedEntry

_CODEC_MASK: Final = 0x3
_LZ4_RATIO_MAX: Final = 255  # One more byte of a block stands for at most so many bytes.


class Compression(enum.Enum):
    """How records are stored. The values are the codec bits of Apache's formats."""

    NONE = 0
    LZ4 = 1


def compressed(data: bytes, compression: Compression) -> bytes:
    """`data` as it is stored. It must not be empty: Apache's readers refuse a block of nothing."""
    if compression is Compression.NONE:
        return data
    from lz4.block import compress  # Most never compress anything: they need not wait for it.

    stored: bytes = compress(data, store_size=False)
    return stored


def stored_span(
    data: bytes, at: int, *, flags: int, length: int, stored_length: int, length_max: int
) -> tuple[bytes, int, int]:
    """The bytes that a header at the end of which `at` is speaks of: in which bytes they are, and from where to where.

    What is not compressed is not copied either. Bytes behind the stored ones are not looked at. Raises `DamagedEntry`,
    also for more than `length_max` bytes before compression: nobody writes those, and they would cost much memory.
    """
    end = at + stored_length
    if end > len(data):
        raise DamagedEntry(f"{stored_length} bytes should follow its header, but {len(data) - at} do")
    codec = flags & _CODEC_MASK
    if codec == Compression.NONE.value:
        if length != stored_length:
            raise DamagedEntry(f"{stored_length} bytes are stored without compression for {length}")
        return data, at, end
    if codec != Compression.LZ4.value:
        raise DamagedEntry(f"codec {codec} does not exist")
    return _decompressed(data[at:end], length, length_max), 0, length


def _decompressed(block: bytes, length: int, length_max: int) -> bytes:
    from lz4.block import LZ4BlockError, decompress

    problem = f"{len(block)} bytes of LZ4 are not those of {length}"
    # A number alone must not make us set aside memory. Apache's lengths are signed: beyond 31 bits they are none.
    if length > min(_LZ4_RATIO_MAX * len(block), INT32_MAX):
        raise DamagedEntry(problem)
    if length > length_max:
        raise DamagedEntry(f"{len(block)} bytes of LZ4 stand for {length}, and {length_max} is the most")
    try:
        found: bytes = decompress(block, uncompressed_size=length)
    except LZ4BlockError as error:
        raise DamagedEntry(problem) from error
    if len(found) != length:
        raise DamagedEntry(problem)
    return found
