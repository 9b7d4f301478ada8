"""The checksum of a batch of records on its way to a proxy: CRC32C over the stream's name in UTF-8, then over each
record's length (4 bytes, most significant first) and bytes. A record set counts as one record."""

from collections.abc import Sequence
from itertools import chain
from struct import Struct

from google_crc32c import value as _crc32c

_length = Struct(">I").pack


def batch_checksum(stream: str, records: Sequence[bytes]) -> int:
    """Of records, or of one record set, for `stream`."""
    # One call over all of it: each call costs more than copying a record does.
    lengths = map(_length, map(len, records))
    crc: int = _crc32c(b"".join((stream.encode(), *chain.from_iterable(zip(lengths, records, strict=True)))))
    return crc
