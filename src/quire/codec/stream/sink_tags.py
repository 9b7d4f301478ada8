"""Which batch of which sink the records of an entry are, in a control record before them: readers skip it.

    tag   "QSK1" | batch number, -1 or -2 for none (8) | sizes of the texts (2 each) | sink, query, transaction: UTF-8

Numbers have their most significant byte first. An entry is stored as a whole or not at all, so that a batch and its tag
cannot come apart.
"""

import struct
from struct import Struct
from typing import Final

from quire.codec.stream_metadata.sinks import SinkBatch
from quire.errors import DamagedEntry, QuireError

_MAGIC: Final = b"QSK1"
_TAG = Struct(">4sqHHH")


def encode_sink_tag(batch: SinkBatch) -> bytes:
    texts = [text.encode() for text in (batch.sink, batch.query, batch.transaction)]
    return b"".join((_TAG.pack(_MAGIC, batch.number, *map(len, texts)), *texts))


def decode_sink_tag(payload: bytes) -> SinkBatch | None:
    """The batch that a control record tells of; None if it is about something else. Raises `DamagedEntry`."""
    if not payload.startswith(_MAGIC):
        return None
    try:
        _, number, *sizes = _TAG.unpack_from(payload)
        at, texts = _TAG.size, []
        for size in sizes:
            texts.append(payload[at : at + size].decode())
            at += size
        if at != len(payload):
            raise DamagedEntry(f"the tag of a batch should have {at} bytes, not {len(payload)}")
        return SinkBatch(texts[0], number, texts[1], texts[2])
    except (struct.error, UnicodeDecodeError) as error:
        raise DamagedEntry(f"the tag of a batch cannot be read: {payload[:80]!r}") from error
    except QuireError as error:
        raise DamagedEntry(f"the tag of a batch says what none says: {error}") from error
