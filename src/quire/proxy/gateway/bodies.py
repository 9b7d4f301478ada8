"""What clients send, as values: records in three forms, and small JSON objects. Pure.

    application/json        {"records": [{"text": "paid"}, {"b64": "AP8="}]}, each perhaps with a "txid"
    application/x-ndjson    a record for each line, as it stands there
    anything else           the body is one record

Invariant: WholeOrNothing, a body is taken as a whole or refused: no record of it is written if another is wrong.
"""

import binascii
import json
from base64 import b64decode
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from quire.errors import InvalidArgument, RecordTooLarge
from quire.proxy.gateway.limits import BODY_BYTES_MAX, RECORD_BYTES_MAX, RECORDS_MAX, TXID_LAST
from quire.proxy.gateway.positions import parse_place
from quire.proxy.gateway.problems import Rejected
from quire.types import DLSN

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"

_EXACT_BELOW: Final = 2.0**53  # From here on a float stands for several whole numbers.
_RECORD_HINT: Final = 'A record is {"text": "…"} or {"b64": "…"}, perhaps with a "txid".'


class Records(NamedTuple):
    """What is to be appended. Without txids each record gets the time."""

    payloads: list[bytes]
    txids: list[int] | None


class MediaType(NamedTuple):
    """What a body is said to be, in lower case."""

    name: str
    charset: str


def media_type(header: str) -> MediaType:
    """Of a Content-Type. What it cannot tell is empty."""
    name, *parameters = header.split(";")
    pairs = [parameter.partition("=") for parameter in parameters]
    charsets = [value.strip().strip('"').lower() for key, _, value in pairs if key.strip().lower() == "charset"]
    return MediaType(name.strip().lower(), charsets[0] if charsets else "")


def check_encoding(media: MediaType, content_encoding: str) -> None:
    """Raise `Rejected` for a body that somebody would have to decode first: it would be stored as it came."""
    if content_encoding.strip().lower() not in ("", "identity"):
        raise Rejected(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"bodies with Content-Encoding {content_encoding!r} are not decoded here",
            hint="Send it as it is.",
        )
    if media.name in (JSON, NDJSON) and media.charset not in ("", "utf-8", "utf8"):
        raise Rejected(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"JSON is UTF-8 here, not {media.charset!r}", hint="Encode it anew."
        )


def body_bytes_max(media: MediaType) -> int:
    """How large a body of records may be."""
    return BODY_BYTES_MAX if media.name in (JSON, NDJSON) else RECORD_BYTES_MAX


def records_of(media: MediaType, body: bytes) -> Records:
    """Raises `InvalidArgument`, and `Rejected` if there are too many."""
    if media.name == JSON:
        found = _json_records(json_object(body, "records", "txid"))
    elif media.name == NDJSON:
        lines = [line.removesuffix(b"\r") for line in body.split(b"\n")]
        found = Records([line for line in lines if line.strip()], None)
    else:
        return Records([body], None)
    if not found.payloads:
        raise InvalidArgument("there is no record in the body", hint="Send at least one.")
    if len(found.payloads) > RECORDS_MAX:
        raise Rejected(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"{len(found.payloads)} records are more than {RECORDS_MAX}",
            hint="Send them in several requests.",
        )
    largest = max(map(len, found.payloads))
    if largest > RECORD_BYTES_MAX:
        raise RecordTooLarge(f"a record of {largest} bytes does not fit: {RECORD_BYTES_MAX} is the most")
    return found


def _json_records(body: dict[str, Any]) -> Records:
    given = body.get("records")
    if not isinstance(given, list):
        raise InvalidArgument('the body has no list of "records"', hint=_RECORD_HINT)
    common = _txid(body, "the body")
    payloads, txids = list[bytes](), list[int | None]()
    for number, record in enumerate(given):
        shown = f"record {number}"
        if not isinstance(record, dict):
            raise InvalidArgument(f"{shown} is no object", hint=_RECORD_HINT)
        _check_known(record, ("text", "b64", "txid"), shown)
        payloads.append(_payload(record, shown))
        own = _txid(record, shown)
        txids.append(common if own is None else own)
    with_txid = [txid for txid in txids if txid is not None]
    if with_txid and len(with_txid) < len(txids):
        raise InvalidArgument("some of the records have txids, others have none", hint="Give one to each, or to none.")
    return Records(payloads, with_txid or None)


def _payload(record: dict[str, Any], shown: str) -> bytes:
    text, encoded = record.get("text"), record.get("b64")
    if isinstance(text, str) and "b64" not in record:
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{shown} has half of a character in its text", hint="Send it as b64.") from error
    if isinstance(encoded, str) and "text" not in record:
        try:
            return b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidArgument(f"{shown} is no base64: {error}", hint="Use the standard alphabet.") from error
    raise InvalidArgument(f"{shown} needs either text or b64, as a string", hint=_RECORD_HINT)


def _txid(holder: dict[str, Any], shown: str) -> int | None:
    txid = holder.get("txid")
    if txid is None and "txid" not in holder:
        return None
    return _integer(txid, f"the txid of {shown}")


def _integer(value: Any, shown: str) -> int:
    if type(value) is float and value.is_integer() and abs(value) < _EXACT_BELOW:
        value = int(value)  # The same number in JSON, and some programs write it so.
    if type(value) is not int or not 0 <= value <= TXID_LAST:
        raise InvalidArgument(f"{shown} must be a whole number from 0 to {TXID_LAST}")
    return value


# --- Small objects


def json_object(body: bytes, *known: str) -> dict[str, Any]:
    """A JSON object that has no other names than these; nothing at all counts as an empty one."""
    try:
        found = json.loads(body.decode()) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument("the body must be a JSON object")
    _check_known(found, known, "the body")
    return found


def _check_known(found: dict[str, Any], known: Sequence[str], shown: str) -> None:
    if unknown := sorted(set(found) - set(known)):
        names = ", ".join(map(repr, unknown))
        raise InvalidArgument(
            f"{shown} has {names}, of which nothing is known", hint=f"Possible: {', '.join(known) or 'nothing'}."
        )


def truncation_of(body: bytes) -> DLSN | int:
    """Before which place, or which txid, a stream is to be truncated."""
    found = json_object(body, "dlsn", "txid")
    if len(found) != 1:
        raise InvalidArgument("the body needs either dlsn or txid", hint='Send {"dlsn": "3:17:0"}, for example.')
    if "txid" in found:
        return _integer(found["txid"], "txid")
    return _place(found["dlsn"], "dlsn")


class Commit(NamedTuple):
    """A position that is to be stored; with `reset` even if that goes back."""

    position: DLSN
    reset: bool


def commit_of(body: bytes) -> Commit:
    found = json_object(body, "position", "reset")
    if "position" not in found:
        raise InvalidArgument("the body needs a position", hint='Send {"position": "3:17:0"}, for example.')
    reset = found.get("reset", False)
    if not isinstance(reset, bool):
        raise InvalidArgument("reset must be true or false")
    return Commit(_place(found["position"], "position"), reset)


def _place(value: Any, shown: str) -> DLSN:
    if not isinstance(value, str):
        raise InvalidArgument(f"{shown} must be a string, such as 3:17:0")
    return parse_place(value)
