"""Positions as they stand in URLs, in Last-Event-ID and in bodies. Pure.

The forms are those of `quire.stream.positions`, and one more: `t:1700000000000`, milliseconds since 1970. In a query a
plus sign means a space, so an offset such as `+02:00` arrives without its plus unless it was sent as `%2B`: what could
only have been a plus is taken for one.
"""

import re
from typing import Final

from quire.errors import InvalidArgument
from quire.proxy.gateway.limits import TXID_LAST
from quire.stream.positions import parse_position
from quire.stream.start import Start, Time
from quire.types import DLSN

_MS: Final = re.compile(r"t:(\d{1,16})", re.ASCII)
_LOST_PLUS: Final = re.compile(r"(t:.*\d\d:\d\d\S*) (\d\d:?\d\d)", re.ASCII | re.DOTALL)


def parse_start(text: str) -> Start:
    """Where to begin. Raises `InvalidArgument`."""
    if ms := _MS.fullmatch(text):
        return Time(int(ms[1]))
    if lost := _LOST_PLUS.fullmatch(text):
        text = f"{lost[1]}+{lost[2]}"
    start = parse_position(text)
    return _checked(text, start) if isinstance(start, DLSN) else start


def parse_event_id(text: str) -> DLSN:
    """Where an event stream goes on whose client had this event last: behind it. Raises `InvalidArgument`."""
    return parse_place(text.strip()).next_slot()


def parse_place(text: str) -> DLSN:
    """The place of a record, such as `3:17:0`. Raises `InvalidArgument`."""
    return _checked(text, DLSN.parse(text))


def _checked(text: str, dlsn: DLSN) -> DLSN:
    """Numbers that no stream has are refused before they get anywhere: not all of them could be stored."""
    lssn, entry_id, slot_id = dlsn
    if not (0 <= lssn < TXID_LAST and -1 <= entry_id < TXID_LAST and -1 <= slot_id < TXID_LAST):
        raise InvalidArgument(f"{text!r} is no place in a stream", hint="LSSN, entry and slot fit into 64 bits.")
    return dlsn
