"""What a ledger entry of a stream holds: records, and in all but the oldest segments an envelope around them.

    envelope   01 | flags (4) length (4) stored length (4) | stored bytes

Flags have the codec in their lowest two bits. The length is that of the records before compression. Segments whose
metadata has version 3 or less hold the records alone; they are read and never written.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from quire.codec.digest import Buffer
from quire.codec.stream.compression import Compression, compressed, stored_span
from quire.codec.stream.limits import ENTRY_BYTES_MAX, ENVELOPE_BYTES, RECORDS_BYTES_MAX
from quire.codec.stream.records import LogRecord, decode_records
from quire.errors import DamagedEntry, InvalidArgument
from quire.types import EntryId, Lssn

_VERSION: Final = 1
_ENVELOPE = Struct(">BIII")


def encode_entry(runs: Sequence[Buffer], *, compression: Compression = Compression.NONE) -> bytes:
    """One entry of all `runs` of encoded records."""
    length = sum(map(len, runs))
    if not 0 < length <= RECORDS_BYTES_MAX:
        raise InvalidArgument(
            f"an entry takes 1 to {RECORDS_BYTES_MAX} bytes of records, not {length}",
            bytes=length,
            bytes_max=RECORDS_BYTES_MAX,
        )
    if compression is Compression.NONE:
        return b"".join((_ENVELOPE.pack(_VERSION, compression.value, length, length), *runs))
    stored = compressed(b"".join(runs), compression)
    return _ENVELOPE.pack(_VERSION, compression.value, length, len(stored)) + stored


def decode_entry(
    data: Buffer, *, lssn: Lssn, entry_id: EntryId, enveloped: bool = True, expand_sets: bool = True
) -> list[LogRecord]:
    """The records of an entry, of all kinds, control records included. Raises `DamagedEntry`.

    The metadata of segment `lssn` says whether its entries are `enveloped`.
    """
    whole = data if type(data) is bytes else bytes(data)
    try:
        found, at, end = records_span(whole) if enveloped else (whole, 0, len(whole))
        return decode_records(found, at, end, lssn=lssn, entry_id=entry_id, expand_sets=expand_sets)
    except DamagedEntry as error:
        damaged = DamagedEntry(f"entry {entry_id} of segment {lssn}: {error}")
        damaged.facts = {"lssn": lssn, "entry_id": entry_id, **error.facts}
        raise damaged from error


def records_span(data: bytes) -> tuple[bytes, int, int]:
    """The records in an enveloped entry: in which bytes they are, and from where to where. Raises `DamagedEntry`."""
    if len(data) < ENVELOPE_BYTES:
        raise DamagedEntry(f"it has {len(data)} bytes, {ENVELOPE_BYTES} is the least")
    version, flags, length, stored_length = _ENVELOPE.unpack_from(data)
    if version != _VERSION:
        raise DamagedEntry(f"its envelope has version {version}, not 1")
    return stored_span(
        data, ENVELOPE_BYTES, flags=flags, length=length, stored_length=stored_length, length_max=ENTRY_BYTES_MAX
    )
