"""What a write proxy stores about producers, in control records: readers of streams, Java's too, skip them.

    tag        "QPR1" "T" | producer (16) first sequence number (8) records (4)
    snapshot   "QPR1" "S" | from: LSSN (8) entry (8) | producers (4), then for each, the one seen last at the end:
                            producer (16) last sequence number (8) seen, in ms since 1970 (8) runs (2), then for each:
                            first sequence number (8) records (4) LSSN (8) entry (8) slot (4)

A tag stands in an entry right before the records that it tells of. A snapshot has everything that was known when all
entries before its `from` were acknowledged: with the tags from there on, it is all that is to be known.
Numbers have their most significant byte first.
"""

import struct
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from quire.errors import DamagedEntry
from quire.types import DLSN, EntryId, Lssn, ProducerFacts, ProducerRun, SlotId

PRODUCER_ID_BYTES: Final = 16

_MAGIC: Final = b"QPR1"
_TAG_KIND: Final = _MAGIC + b"T"
_SNAPSHOT_KIND: Final = _MAGIC + b"S"
_TAG = Struct(">5s16sQI")
_SNAPSHOT = Struct(">5sQQI")
_PRODUCER = Struct(">16sQQH")
_RUN = Struct(">QIQQI")

TAG_BYTES: Final = _TAG.size


class ProducerTag(NamedTuple):
    """Which of a producer's records the next ones are."""

    producer: bytes
    first_seq: int
    records: int


class ProducerSnapshot(NamedTuple):
    """All producers of a stream, those first that were not seen for longest."""

    since: tuple[Lssn, EntryId]
    producers: tuple[ProducerFacts, ...]


def encode_tag(tag: ProducerTag) -> bytes:
    return _TAG.pack(_TAG_KIND, *tag)


def encode_snapshot(since: tuple[Lssn, EntryId], producers: Iterable[ProducerFacts]) -> bytes:
    parts = [b""]
    count = 0
    for producer, last_seq, seen_ms, runs in producers:
        count += 1
        parts.append(_PRODUCER.pack(producer, last_seq, seen_ms, len(runs)))
        parts += [_RUN.pack(first_seq, records, *place) for first_seq, records, place in runs]
    parts[0] = _SNAPSHOT.pack(_SNAPSHOT_KIND, *since, count)
    return b"".join(parts)


def decode_producers(payload: bytes) -> ProducerTag | ProducerSnapshot | None:
    """What a control record says about producers; None if it is about something else. Raises `DamagedEntry`."""
    try:
        if payload.startswith(_TAG_KIND):
            _, producer, first_seq, records = _TAG.unpack(payload)
            return ProducerTag(producer, first_seq, records)
        if payload.startswith(_SNAPSHOT_KIND):
            return _decode_snapshot(payload)
    except struct.error as error:
        raise DamagedEntry(f"what a control record says of producers is cut short: {len(payload)} bytes") from error
    return None


def _decode_snapshot(payload: bytes) -> ProducerSnapshot:
    _, lssn, entry_id, count = _SNAPSHOT.unpack_from(payload)
    at = _SNAPSHOT.size
    producers: list[ProducerFacts] = []
    for _ in range(count):
        producer, last_seq, seen_ms, runs_left = _PRODUCER.unpack_from(payload, at)
        at += _PRODUCER.size
        runs: list[ProducerRun] = []
        for _ in range(runs_left):
            first_seq, records, run_lssn, run_entry, slot = _RUN.unpack_from(payload, at)
            at += _RUN.size
            runs.append(ProducerRun(first_seq, records, DLSN(Lssn(run_lssn), EntryId(run_entry), SlotId(slot))))
        producers.append(ProducerFacts(producer, last_seq, seen_ms, tuple(runs)))
    return ProducerSnapshot((Lssn(lssn), EntryId(entry_id)), tuple(producers))
