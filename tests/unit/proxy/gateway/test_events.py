"""Server-sent events, read back by the rules of the HTML standard."""

import json
from base64 import b64decode
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from quire.codec.stream.records import LogRecord
from quire.proxy.gateway.events import OPENING, PING, end_event, failure_event, gap_event, record_events
from quire.types import DLSN

PLACE = DLSN.parse("3:17:0")


class Event(NamedTuple):
    kind: str
    id: str
    data: str


def parsed(stream: bytes) -> list[Event]:
    """What an EventSource makes of a stream: lines end with CR LF, LF or CR; one space behind a colon is none."""
    text = stream.decode().replace("\r\n", "\n").replace("\r", "\n")
    found, kind, last_id, data = list[Event](), "", "", list[str]()
    for line in text.split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            if data:
                found.append(Event(kind or "message", last_id, "\n".join(data)))
            kind, data = "", []
        elif name == "id":
            last_id = value
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
    return found


def record(payload: bytes) -> LogRecord:
    return LogRecord(PLACE, 1, payload, 0)


@given(st.lists(st.binary(max_size=50) | st.text(max_size=20).map(str.encode)), st.booleans())
def test_what_comes_out_is_what_went_in(payloads: list[bytes], as_text: bool) -> None:
    events = parsed(OPENING + b"".join(record_events(map(record, payloads), as_text=as_text)) + PING)
    assert [event.id for event in events] == ["3:17:0"] * len(payloads)
    read = [
        event.data.encode() if as_text and event.kind == "message" else b64decode(event.data, validate=True)
        for event in events
    ]
    assert read == payloads
    if not as_text:
        assert {event.kind for event in events} <= {"message"}


def test_text_is_readable_at_a_terminal() -> None:
    assert record_events([record(b"two\nlines")], as_text=True) == [b"id: 3:17:0\ndata: two\ndata: lines\n\n"]
    assert record_events([record(b"")], as_text=True) == [b"id: 3:17:0\ndata: \n\n"]
    assert record_events([record(b"a\r\n")], as_text=True) == [b"event: b64\nid: 3:17:0\ndata: YQ0K\n\n"]


def test_other_events_do_not_change_where_a_client_comes_back() -> None:
    stream = (
        gap_event(PLACE, PLACE.next_slot()) + gap_event(None, None) + end_event(PLACE) + failure_event({"code": "X"})
    )
    events = parsed(stream)
    assert {event.id for event in events} == {""}
    assert [(event.kind, json.loads(event.data)) for event in events] == [
        ("gap", {"from": "3:17:0", "to": "3:17:1"}),
        ("gap", {"from": None, "to": None}),
        ("end", {"next": "3:17:0"}),
        ("failure", {"code": "X"}),
    ]


def test_comments_are_no_events() -> None:
    assert parsed(OPENING + PING) == []
