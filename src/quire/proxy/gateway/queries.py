"""What clients ask for, as values: paths, query parameters and headers. Pure.

Parameters that are not known are refused: a misspelt one would be ignored otherwise, and the answer be wrong.
"""

import hashlib
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote_to_bytes
from uuid import UUID

from quire.errors import InvalidArgument
from quire.proxy.gateway.limits import (
    FETCH_BYTES,
    FETCH_BYTES_MAX,
    FETCH_RECORDS,
    PAGE_STREAMS,
    PAGE_STREAMS_MAX,
    PRODUCER_CHARACTERS_MAX,
    RECORDS_MAX,
    TXID_LAST,
    WAIT_MS,
    WAIT_MS_MAX,
)
from quire.proxy.gateway.positions import parse_event_id, parse_start
from quire.proxy.gateway.problems import Rejected
from quire.stream.start import Start

FORMS: Final = ("b64", "text")
TRUNCATED: Final = ("fail", "skip")

_PARAMETERS_MAX: Final = 32
_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)
_KEY: Final = re.compile(r"(.+)/(\d{1,19})", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)

Query: TypeAlias = Mapping[str, str]


def segment_text(raw: str) -> str:
    """A segment of a path, decoded: `%2F` is a slash that belongs to a name. Raises `Rejected`."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise Rejected(HTTPStatus.BAD_REQUEST, f"{raw!r} in the path is not UTF-8") from error


def parse_query(raw: bytes, *known: str) -> dict[str, str]:
    """Raises `InvalidArgument` for what is not known, comes twice, or is not text."""
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_PARAMETERS_MAX)
    except ValueError as error:
        raise InvalidArgument(f"the query cannot be read: {error}") from error
    found = dict(pairs)
    if unknown := sorted(set(found) - set(known)):
        hint = f"Possible: {', '.join(known)}." if known else "This path takes none."
        raise InvalidArgument(f"nothing is known of the parameter {', '.join(map(repr, unknown))}", hint=hint)
    if len(found) < len(pairs):
        raise InvalidArgument("a parameter comes twice")
    return found


def _number(query: Query, name: str, default: int, *, least: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise InvalidArgument(f"{name}={text!r} must be a whole number from {least} to {most}")
    return int(text)


def _choice(query: Query, name: str, choices: tuple[str, ...], default: str) -> str:
    chosen = query.get(name, default)
    if chosen not in choices:
        raise InvalidArgument(f"{name}={chosen!r} is not known", hint=f"Possible: {', '.join(choices)}.")
    return chosen


# --- Reading


class Fetch(NamedTuple):
    """What a read wants: at most so much, from there on, and how long it waits for the first record."""

    start: Start
    limit: int
    max_bytes: int
    wait_s: float
    as_text: bool
    skip_truncated: bool


def fetch_of(raw: bytes) -> Fetch:
    query = parse_query(raw, "from", "limit", "max_bytes", "wait_ms", "as", "truncated")
    return Fetch(
        parse_start(query.get("from", "earliest")),
        _number(query, "limit", FETCH_RECORDS, least=1, most=RECORDS_MAX),
        _number(query, "max_bytes", FETCH_BYTES, least=1, most=FETCH_BYTES_MAX),
        _number(query, "wait_ms", WAIT_MS, least=0, most=WAIT_MS_MAX) / 1000,
        _choice(query, "as", FORMS, "b64") == "text",
        _choice(query, "truncated", TRUNCATED, "fail") == "skip",
    )


class TailOf(NamedTuple):
    """What an event stream wants."""

    start: Start
    as_text: bool
    skip_truncated: bool


def tail_of(raw: bytes, last_event_id: str | None) -> TailOf:
    """A client that comes back goes on behind the last event it had, whatever its URL says."""
    query = parse_query(raw, "from", "as", "truncated")
    start = parse_start(query.get("from", "latest"))
    return TailOf(
        parse_event_id(last_event_id) if last_event_id else start,
        _choice(query, "as", FORMS, "b64") == "text",
        _choice(query, "truncated", TRUNCATED, "skip") == "skip",
    )


# --- Listing


class Page(NamedTuple):
    """Some of the streams: those behind one name."""

    prefix: str
    after: str
    limit: int


def page_of(raw: bytes) -> Page:
    query = parse_query(raw, "prefix", "page", "limit")
    limit = _number(query, "limit", PAGE_STREAMS, least=1, most=PAGE_STREAMS_MAX)
    return Page(query.get("prefix", "").removeprefix("/"), query.get("page", "").removeprefix("/"), limit)


def listed_before(name: str, other: str) -> bool:
    """Whether one stream is listed before another: depth first, and by name within a level."""
    return name.split("/") < other.split("/")


# --- Sending again


class ProducerSeq(NamedTuple):
    """Who sends, and which of its records comes first. A producer counts its records of a stream from 1."""

    producer: bytes
    first_seq: int


def producer_of(key: str) -> ProducerSeq:
    """What `Idempotency-Key: <producer>/<seq>` says. A producer is a UUID, or any name, of which a hash is made.

    Raises `InvalidArgument`.
    """
    match = _KEY.fullmatch(key.strip())
    if match is None or len(match[1]) > PRODUCER_CHARACTERS_MAX or not 1 <= int(match[2]) <= TXID_LAST:
        raise InvalidArgument(
            f"{key!r} is no idempotency key",
            hint=f"Send <producer>/<seq>: a name of up to {PRODUCER_CHARACTERS_MAX} characters, and the number of the "
            "first record among all that it sends to this stream, from 1 on.",
        )
    name = match[1]
    producer = UUID(name).bytes if _UUID.fullmatch(name) else hashlib.blake2b(name.encode(), digest_size=16).digest()
    return ProducerSeq(producer, int(match[2]))
