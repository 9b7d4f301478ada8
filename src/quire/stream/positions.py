"""Positions as text: where to begin in a stream, or where to stop, as people write it and as programs store it.

    earliest                    the first record that is left
    latest                      behind the last one: what comes from now on
    3:17:0                      a place: LSSN, entry, slot
    >3:17:0                     behind that place: what a program wants that has done the record there
    tx:1700000000000            the first record whose txid is not below
    t:2026-01-01T00:00:00Z      a moment, with Z or an offset from UTC
    t:2026-01-01                the beginning of that day in UTC

A moment without an offset is refused: it would mean something else on each machine. So is a bare number behind `t:`,
which could be seconds as well as milliseconds; txids that nobody chose are milliseconds, and `tx:` finds them.
"""

import re
from datetime import UTC, datetime
from typing import Final

from quire.codec.stream.limits import TXID_MAX
from quire.errors import InvalidArgument
from quire.stream.start import Start, Time, Txid
from quire.types import DLSN

FORMS: Final = "earliest, latest, 3:17:0, >3:17:0, tx:1700000000000, t:2026-01-01T00:00:00Z or t:2026-01-01"

_HINT: Final = f"Write {FORMS}."
_TXID: Final = re.compile(r"-?\d{1,19}", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*", re.ASCII | re.IGNORECASE)


def parse_position(text: str) -> Start:
    """What `text` stands for. Raises `InvalidArgument`, with all forms as its hint."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    kind, colon, rest = text.partition(":")
    if colon and kind == "tx":
        return _txid(text, rest)
    if colon and kind == "t":
        return _time(text, rest)
    place = text.removeprefix(">")
    try:
        dlsn = DLSN.parse(place)
    except InvalidArgument:
        raise _invalid(text) from None
    return dlsn if place == text else dlsn.next_slot()


def _txid(text: str, number: str) -> Txid:
    if not _TXID.fullmatch(number) or not -TXID_MAX - 1 <= int(number) <= TXID_MAX:
        raise _invalid(text, f"{number!r} is no txid")
    return Txid(int(number))


def _time(text: str, moment: str) -> Time:
    if not (_DAY.fullmatch(moment) or _MOMENT.fullmatch(moment)):
        raise _invalid(text, f"{moment!r} is no moment")
    try:
        found = datetime.fromisoformat(moment)
    except ValueError as error:
        raise _invalid(text, f"{moment!r} is no moment") from error
    if _DAY.fullmatch(moment):
        return Time(found.replace(tzinfo=UTC))
    if found.tzinfo is None:
        raise InvalidArgument(
            f"{text!r} is no position in a stream: its moment has no time zone",
            hint="Put Z behind it for UTC, or an offset such as +02:00.",
            text=text,
        )
    return Time(found)


def _invalid(text: str, problem: str = "") -> InvalidArgument:
    message = f"{text!r} is no position in a stream" + (f": {problem}" if problem else "")
    return InvalidArgument(message, hint=_HINT, text=text)
