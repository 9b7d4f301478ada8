"""What Apache's DistributedLog says of records and segments, as values to compare with."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from quire.codec.stream_metadata.segment import Segment, segment_name
from quire.types import DLSN, EntryId, Lssn, SlotId


@dataclass(frozen=True, slots=True)
class JavaRecord:
    dlsn: DLSN
    txid: int
    payload: bytes
    position: int
    sequence_id: int

    @classmethod
    def of(cls, facts: list[Any]) -> Self:
        place, txid, payload, position, sequence_id = facts
        return cls(dlsn_of(place), txid, base64.b64decode(payload), position, sequence_id)


@dataclass(frozen=True, slots=True)
class JavaSegment:
    """A segment as Java sees it. What a version of the metadata does not store has Java's default."""

    name: str
    version: int
    lssn: int
    ledger_id: int
    first_txid: int
    last_txid: int
    record_count: int
    last_dlsn: DLSN
    min_active: DLSN
    truncation: str
    in_progress: bool
    completed_at_ms: int
    start_sequence_id: int
    region: int

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Self:
        places = {name: dlsn_of(facts[name]) for name in ("last_dlsn", "min_active")}
        return cls(**{**facts, **places})


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """`acknowledged` records were, the last of them at `last`; `error` is the Java class of what ended the writing."""

    acknowledged: int
    last: DLSN | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader got. It `ended` if it came upon the end of the stream."""

    records: list[JavaRecord]
    ended: bool

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Self:
        return cls([JavaRecord.of(record) for record in facts["records"]], facts["ended"])


def dlsn_of(numbers: Sequence[int]) -> DLSN:
    lssn, entry_id, slot_id = numbers
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


def as_java(segment: Segment) -> JavaSegment:
    """A stored segment as Java should see it."""
    done = segment.completion
    return JavaSegment(
        name=segment_name(segment),
        version=segment.version,
        lssn=segment.lssn,
        ledger_id=segment.ledger_id,
        first_txid=segment.first_txid,
        last_txid=done.last_txid if done else -999,
        record_count=done.record_count if done else 0,
        last_dlsn=done.last_dlsn if done else dlsn_of((segment.lssn, -1, -1)),
        min_active=segment.min_active,
        truncation=segment.truncation.name,
        in_progress=done is None,
        completed_at_ms=done.completed_at_ms if done else 0,
        start_sequence_id=segment.effective_start_sequence_id if done else 0,
        region=segment.region,
    )
