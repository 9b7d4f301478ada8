r"""Server-sent events: records of a stream as a browser's EventSource, or a person at curl, reads them. Pure.

    id: 3:17:0
    data: cGFpZA==

A client that comes back with the last `id` misses nothing and gets nothing twice. Other events have no id, so that they
do not change where that is: `gap` says what was truncated before the client got there, `end` that the stream was
sealed, `failure` why the server stops here.

Invariant: WhatComesOutIsWhatWentIn. Text whose lines end otherwise than with `\n` could not be told apart, and bytes
that are no text could not be sent: such a record is sent as an event `b64` where the others are text.
"""

import json
from base64 import b64encode
from collections.abc import Iterable
from typing import Any, Final

from quire.codec.stream.records import LogRecord
from quire.types import DLSN

RETRY_MS: Final = 1000  # How long browsers wait before they come back.

OPENING: Final = b": quire\nretry: %d\n\n" % RETRY_MS
PING: Final = b": ping\n\n"


def record_events(records: Iterable[LogRecord], *, as_text: bool) -> list[bytes]:
    """One event for each record."""
    return list(map(_text_event if as_text else _b64_event, records))


def _b64_event(record: LogRecord) -> bytes:
    return b"id: %b\ndata: %b\n\n" % (str(record.dlsn).encode(), b64encode(record.payload))


def _text_event(record: LogRecord) -> bytes:
    payload = record.payload
    if b"\r" in payload or not _is_text(payload):
        return b"event: b64\n" + _b64_event(record)
    return b"id: %b\ndata: %b\n\n" % (str(record.dlsn).encode(), payload.replace(b"\n", b"\ndata: "))


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def gap_event(begin: DLSN | None, end: DLSN | None) -> bytes:
    """Nothing is left from `begin` to before `end`. What is not known is null."""
    return _event("gap", {"from": _shown(begin), "to": _shown(end)})


def end_event(position: DLSN) -> bytes:
    """The stream has ended. Clients should not come back."""
    return _event("end", {"next": str(position)})


def failure_event(body: dict[str, Any]) -> bytes:
    """The error that the server met, as it would be the body of an answer."""
    return _event("failure", body)


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def _shown(place: DLSN | None) -> str | None:
    return None if place is None else str(place)
