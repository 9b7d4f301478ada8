"""What the files hold: one row for each record that applications see, in the order of the stream.

    segment BIGINT, entry BIGINT, slot BIGINT, txid BIGINT, payload BINARY

The first three are the record's DLSN. The footer of a file says, under names that begin with `quire.`, which segment it
is and which checksum each row group has: that of the values, not of the bytes that they are stored in.
"""

import hashlib
from typing import Any, Final, NamedTuple

from quire.cold.extras import library

FORMAT_VERSION: Final = 1
COLUMNS: Final = ("segment", "entry", "slot", "txid", "payload")

KEY_FORMAT: Final = b"quire.format"
KEY_STREAM: Final = b"quire.stream"
KEY_LSSN: Final = b"quire.lssn"
KEY_ROWS: Final = b"quire.rows"
KEY_ENTRIES: Final = b"quire.entries"
KEY_GROUPS: Final = b"quire.groups"  # The checksum of each row group, in hexadecimal digits, with blanks between them.

_WHAT_FOR: Final = "a segment in cold storage"


class Rows(NamedTuple):
    """Records that follow each other, column by column."""

    entries: list[int]
    slots: list[int]
    txids: list[int]
    payloads: list[bytes]


def arrow() -> Any:
    """pyarrow. Raises `MissingExtra`."""
    return library("pyarrow", _WHAT_FOR)


def parquet() -> Any:
    """pyarrow.parquet. Raises `MissingExtra`."""
    return library("pyarrow.parquet", _WHAT_FOR)


def schema() -> Any:
    pa = arrow()
    numbers = [pa.field(name, pa.int64(), nullable=False) for name in COLUMNS[:-1]]
    return pa.schema([*numbers, pa.field(COLUMNS[-1], pa.binary(), nullable=False)])


def checksum(table: Any) -> str:
    """SHA-256 of the values of a table of these columns."""
    compute, digest = library("pyarrow.compute", _WHAT_FOR), hashlib.sha256()
    for name in COLUMNS[:-1]:
        digest.update(_values(_whole(table, name), 8))
    payloads = _whole(table, COLUMNS[-1])
    digest.update(_values(compute.binary_length(payloads), 4))
    if len(payloads):
        offsets = memoryview(payloads.buffers()[1]).cast("B").cast("i")
        first, end = offsets[payloads.offset], offsets[payloads.offset + len(payloads)]
        if end > first:  # Otherwise there may be no buffer at all.
            digest.update(memoryview(payloads.buffers()[2])[first:end])
    return digest.hexdigest()


def _whole(table: Any, name: str) -> Any:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _values(array: Any, width_bytes: int) -> memoryview:
    begin = array.offset * width_bytes
    return memoryview(array.buffers()[1])[begin : begin + len(array) * width_bytes] if len(array) else memoryview(b"")
