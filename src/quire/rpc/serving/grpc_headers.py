"""What a call of gRPC says in headers: who calls what, and how it ended.

The end of a call is `grpc-status`, `grpc-message` for people, and ours: `quire-result-bin`, the `Result` in base64. For
libraries that know nothing of us it is told once more the way gRPC's own do, as a `google.rpc.Status` with the result
among its details.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from google.protobuf.message import DecodeError

from quire.codec.http2 import headers_block
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.protobuf import bytes_field, number_field, text_field
from quire.errors import InvalidArgument, ProxyFailed, ProxyOutcomeUnknown, QuireError
from quire.rpc.serving.results import error_of, meaning_of
from quire.rpc.serving.transport import Caller

_NAMES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
STATUSES: Final = {name: number for number, name in enumerate(_NAMES)}

_CONTENT_TYPE: Final = "application/grpc"
_RESULT: Final = "quire-result-bin"
_DETAILS: Final = "grpc-status-details-bin"
_RESULT_TYPE: Final = f"type.googleapis.com/{pb.Result.DESCRIPTOR.full_name}"
_TEXT_MAX: Final = 1_000  # Characters: peers refuse headers of more than some kilobytes.
_IDS_MAX: Final = 256  # Characters of a client's id.

RESPONSE_HEADERS: Final = headers_block([(":status", "200"), ("content-type", _CONTENT_TYPE)])
TRAILERS_OK: Final = headers_block([("grpc-status", "0")])


# --- Requests


def request_headers(
    path: str,
    *,
    address: str,
    client_id: str,
    attempt: int,
    tried: Sequence[str],
    timeout_s: float | None,
    token: str = "",
) -> bytes:
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", address),
        ("te", "trailers"),
        ("content-type", _CONTENT_TYPE),
        ("user-agent", "quire"),
        ("x-client-id", _escaped(client_id)),
    ]
    if token:
        headers.append(("authorization", f"Bearer {token}"))
    if timeout_s is not None:
        headers.append(("grpc-timeout", f"{min(int(timeout_s * 1000), 99_999_999)}m"))
    if attempt != 1:
        headers.append(("x-attempt", str(attempt)))
    if tried:
        headers.append(("x-tried", _escaped(",".join(tried))))
    return headers_block(headers)


def wrong_request(headers: Mapping[str, str]) -> str | None:
    """The HTTP status of what is no call of gRPC."""
    if headers.get(":method") != "POST":
        return "405"
    if not headers.get("content-type", "").startswith(_CONTENT_TYPE):
        return "415"
    return None


def caller_of(headers: Mapping[str, str], *, peer: str) -> Caller | None:
    """Who calls; None if it does not say."""
    client_id = _unescaped(headers.get("x-client-id", ""))
    if not client_id or len(client_id) > _IDS_MAX:
        return None
    attempt = headers.get("x-attempt", "1")
    return Caller(
        client_id=client_id,
        peer=peer,
        attempt=int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 10 else 1,
        tried=tuple(each for each in _unescaped(headers.get("x-tried", "")).split(",") if each),
        metadata={name: value for name, value in headers.items() if name[0] != ":" and name != "authorization"},
    )


# --- Ends


def trailers(result: pb.Result) -> bytes:
    """How a call ends that failed."""
    if len(result.message) > _TEXT_MAX:
        shortened = pb.Result()
        shortened.CopyFrom(result)
        shortened.message = result.message[:_TEXT_MAX]
        result = shortened
    status = STATUSES[meaning_of(result.code).grpc]
    headers = [
        ("grpc-status", str(status)),
        ("grpc-message", _escaped(result.message)),
        (_RESULT, _binary(result.SerializeToString())),
    ]
    if len(result.message.encode(errors="replace")) <= _TEXT_MAX:
        headers.append((_DETAILS, _binary(_standard_status(status, result))))
    return headers_block(headers)


def _standard_status(status: int, result: pb.Result) -> bytes:
    """A `google.rpc.Status`. Its message is not said twice: what is in the details has none."""
    detail = pb.Result()
    detail.CopyFrom(result)
    detail.ClearField("message")
    packed = text_field(1, _RESULT_TYPE) + bytes_field(2, detail.SerializeToString())  # A `google.protobuf.Any`.
    return number_field(1, status) + text_field(2, result.message) + bytes_field(3, packed)


def _binary(value: bytes) -> str:
    return base64.b64encode(value).rstrip(b"=").decode()


def error_in(headers: Mapping[str, str], *, address: str) -> QuireError | None:
    """What the end of a call says went wrong; None if it went well."""
    status = headers.get("grpc-status", "")
    if status == "0":
        return None
    if found := headers.get(_RESULT):
        try:
            return error_of(pb.Result.FromString(base64.b64decode(found + "=" * (-len(found) % 4))))
        except (DecodeError, binascii.Error):
            pass  # Not one of ours: the status says something at least.
    name = next((name for name, number in STATUSES.items() if str(number) == status), "no status")
    message = _unescaped(headers.get("grpc-message", "")) or f"the proxy at {address} ended the call with {name}"
    match name:
        case "UNIMPLEMENTED":
            return InvalidArgument(message, hint="Ask a proxy of the kind that serves this call.", proxy=address)
        case "INTERNAL" | "UNKNOWN":
            return ProxyFailed(message, address=address)
        case _:
            return ProxyOutcomeUnknown(message, address=address)


# --- Text in headers, as gRPC writes it: printable ASCII, and the rest by its bytes


def _escaped(text: str) -> str:
    if text.isascii() and text.isprintable() and "%" not in text:
        return text
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in text.encode(errors="replace")
    )


def _unescaped(text: str) -> str:
    if "%" not in text:
        return text
    return unquote(text, errors="replace")
