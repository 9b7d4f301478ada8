"""What the gateway answers when all went well, as JSON. Pure."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.segment import Truncation
from quire.stream.info import SegmentInfo, StreamInfo
from quire.types import DLSN

TRUNCATIONS: Final = {
    Truncation.ACTIVE: "none",
    Truncation.PARTIALLY_TRUNCATED: "partly",
    Truncation.TRUNCATED: "whole",
    Truncation.UNKNOWN: "unknown",
}


def appended(dlsns: Sequence[DLSN], count: int, *, is_duplicate: bool = False) -> dict[str, Any]:
    """Where records are. Of those that were there before, the places may be forgotten."""
    first, last = (str(dlsns[0]), str(dlsns[-1])) if dlsns else (None, None)
    return {"dlsn": first, "last_dlsn": last, "count": count, "duplicate": is_duplicate}


def fetched(records: Sequence[LogRecord], at: DLSN, *, is_end: bool, as_text: bool) -> dict[str, Any]:
    """Records, where to go on, and whether there is nothing more for ever."""
    return {"records": [_record(record, as_text) for record in records], "next": str(at), "end": is_end}


def _record(record: LogRecord, as_text: bool) -> dict[str, Any]:
    return {"dlsn": str(record.dlsn), "txid": record.txid, **payload_of(record.payload, as_text=as_text)}


def payload_of(payload: bytes, *, as_text: bool) -> dict[str, str]:
    """In the form in which it could be sent: text if that is wanted, and it is text."""
    if as_text:
        try:
            return {"text": payload.decode()}
        except UnicodeDecodeError:
            pass  # Base64 then, under its own name.
    return {"b64": b64encode(payload).decode()}


def stream_facts(info: StreamInfo) -> dict[str, Any]:
    """What is known of a stream. Records are counted in completed segments only."""
    return {
        "stream": info.stream,
        "sealed": info.is_sealed,
        "owner": info.owner,
        "records": info.record_count,
        "first_dlsn": _text(info.first_dlsn),
        "last_dlsn": _text(info.last_dlsn),
        "first_txid": info.first_txid,
        "last_txid": info.last_txid,
        "segments": list(map(_segment, info.segments)),
        "subscriptions": {name: _text(place) for name, place in info.subscriptions.items()},
    }


def _segment(segment: SegmentInfo) -> dict[str, Any]:
    return {
        "lssn": segment.lssn,
        "ledger": segment.ledger_id,
        "completed": segment.is_completed,
        "truncated": TRUNCATIONS[segment.truncation],
        "records": segment.record_count,
        "first_dlsn": _text(segment.first_dlsn),
        "last_dlsn": _text(segment.last_dlsn),
        "first_txid": segment.first_txid,
        "last_txid": segment.last_txid,
        "completed_at_ms": segment.completed_at_ms,
    }


def _text(place: DLSN | None) -> str | None:
    return None if place is None else str(place)
