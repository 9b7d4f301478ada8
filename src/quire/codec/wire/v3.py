"""Version 3 of the bookie protocol: protobuf messages, for all operations.

A frame is one `Request` or one `Response`. Both begin with a header that names the operation and carries the client's
transaction id, and hold the content of that operation under a field number of its own. One table says which content
belongs to which operation, and how it is turned into a message and back.

Protobuf's own parser reads every frame, adds included: a parser for them in Python was no faster.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from google.protobuf.message import DecodeError, Message

from quire.codec.damage import shown
from quire.codec.pb import bookkeeper_protocol_pb2 as pb
from quire.codec.wire.codes import Status, status_of_v3
from quire.codec.wire.v3_messages import (
    AddRequest,
    AddResponse,
    AuthMessage,
    BookieInfoRequest,
    BookieInfoResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    ReadFlag,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    RequestContent,
    Response,
    ResponseContent,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
    WriteLacResponse,
)
from quire.errors import InvalidArgument, ProtocolViolation
from quire.values import dataclass

M = TypeVar("M", bound=Message)

_VERSION_THREE: Final = pb.VERSION_THREE
_OPERATIONS: Final = {operation.value: operation for operation in Operation}
_READ_FLAGS: Final = {flag.value: flag for flag in ReadFlag}


# --- Whole frames


def encode_request(txn_id: int, content: RequestContent, *, priority: int = 0) -> bytes:
    """A frame. Adds are cheaper with `v3_adds.add_request_parts`."""
    form = _REQUEST_FORMS[type(content)]
    try:
        header = pb.PacketHeader(
            version=_VERSION_THREE,
            operation=form.operation.name,
            txn_id=txn_id,
            priority=priority or None,  # Not there when 0, as Java writes it.
        )
        return _framed(pb.Request(header=header, **{form.field: form.to_message(content)}))
    except ValueError as error:
        raise _unspeakable(content, error) from error


def decode_request(body: memoryview) -> Request:
    message = _parsed(pb.Request, body)
    header = message.header
    number = header.operation
    form = _REQUESTS.get(number)
    content = form.from_message(getattr(message, form.field)) if form and message.HasField(form.field) else None
    return Request(header.txn_id, _OPERATIONS[number], content, header.priority, header.version)


def encode_response(txn_id: int, status: Status, content: ResponseContent) -> bytes:
    """A frame. Errors have their content too: older Java clients take the ids from there.

    Answers to adds are cheaper with `v3_adds.AddResponses`.
    """
    form = _RESPONSE_FORMS[type(content)]
    try:
        inner = form.to_message(content)
        if form.has_status:
            inner.status = status.value
        header = pb.PacketHeader(version=_VERSION_THREE, operation=form.operation.name, txn_id=txn_id)
        return _framed(pb.Response(header=header, status=status.name, **{form.field: inner}))
    except ValueError as error:
        raise _unspeakable(content, error) from error


def encode_refusal(txn_id: int, operation: Operation, status: Status) -> bytes:
    """A frame without content: for requests that have none, START_TLS without TLS, and before authentication."""
    if status is Status.EOK:
        raise InvalidArgument("a refusal needs a status that says why")
    try:
        header = pb.PacketHeader(version=_VERSION_THREE, operation=operation.name, txn_id=txn_id)
    except ValueError as error:
        raise InvalidArgument(f"transaction id {txn_id} does not fit into 64 bits") from error
    return _framed(pb.Response(header=header, status=status.name))


def decode_response(body: memoryview) -> Response:
    message = _parsed(pb.Response, body)
    header = message.header
    operation = _OPERATIONS[header.operation]
    status = status_of_v3(message.status)
    form = _RESPONSES.get(header.operation)
    if form is None or not message.HasField(form.field):
        if status is Status.EOK:
            raise ProtocolViolation(f"the answer to {operation.name} is EOK and has no content")
        return Response(header.txn_id, operation, status, None)
    inner = getattr(message, form.field)
    if status is Status.EOK and form.has_status:
        status = status_of_v3(inner.status)  # The envelope's counts if it is an error, else the one inside.
    return Response(header.txn_id, operation, status, form.from_message(inner))


def encode_auth_message(message: AuthMessage) -> bytes:
    """The message alone, as version 2 sends it."""
    try:
        return pb.AuthMessage(plugin=message.plugin, payload=message.payload).SerializeToString()
    except ValueError as error:
        raise _unspeakable(message, error) from error


def decode_auth_message(data: memoryview) -> AuthMessage:
    return _auth_content(_parsed(pb.AuthMessage, data))


def _framed(message: Message) -> bytes:
    body = message.SerializeToString()
    return len(body).to_bytes(4, "big") + body


def _parsed(message_type: type[M], body: memoryview) -> M:
    message = message_type()
    try:
        message.ParseFromString(bytes(body))
    except DecodeError as error:
        raise ProtocolViolation(f"a frame of {len(body)} bytes is no {message.DESCRIPTOR.name} message") from error
    if not message.IsInitialized():
        missing = cast(Any, message).FindInitializationErrors()[0]  # A peer can leave out thousands.
        raise ProtocolViolation(f"{missing}: missing, or of no value that we know, in a {message.DESCRIPTOR.name}")
    return message


def _unspeakable(content: object, error: ValueError) -> InvalidArgument:
    return InvalidArgument(f"{shown(content)} cannot be sent: {error}")


# --- Contents that need more than a list of fields, or are read for each entry. Messages are `Any` to the type checker,
# since turning their plain numbers into ids would cost a call each.


def _add_request_message(content: AddRequest) -> pb.AddRequest:
    return pb.AddRequest(
        ledger_id=content.ledger_id,
        entry_id=content.entry_id,
        master_key=content.master_key,
        body=content.body,
        write_flags=content.write_flags or None,
        flag=pb.AddRequest.RECOVERY_ADD if content.recovery else None,
    )


def _add_request(message: Any) -> AddRequest:
    return AddRequest(
        message.ledger_id,
        message.entry_id,
        message.master_key,
        message.body,
        message.write_flags,
        message.HasField("flag"),  # There is but one flag.
    )


def _add_response(message: Any) -> AddResponse:
    return AddResponse(message.ledger_id, message.entry_id)


def _read_request(message: Any) -> ReadRequest:
    has = message.HasField
    return ReadRequest(
        message.ledger_id,
        message.entry_id,
        message.master_key if has("master_key") else None,
        message.previous_lac if has("previous_lac") else None,
        message.timeout_ms if has("timeout_ms") else None,
        _READ_FLAGS[message.flag] if has("flag") else None,
    )


def _read_response(message: Any) -> ReadResponse:
    has = message.HasField
    return ReadResponse(
        message.ledger_id,
        message.entry_id,
        message.body if has("body") else None,
        message.max_lac if has("max_lac") else None,
        message.lac_updated_ms if has("lac_updated_ms") else None,
    )


def _auth_content(message: pb.AuthMessage) -> AuthMessage:
    if not isinstance(message.plugin, str):  # The library hands out strings that are not UTF-8 as bytes.
        raise ProtocolViolation("the name of an auth plugin is not UTF-8 text")
    return AuthMessage(message.plugin, message.payload)


# --- The table


@dataclass(frozen=True, slots=True)
class _Form:
    """How the content of one operation is written and read, in a request or in an answer."""

    operation: Operation
    field: str  # Of the envelope.
    to_message: Callable[[Any], Any]
    from_message: Callable[[Any], Any]
    has_status: bool


def _form(
    operation: Operation,
    field: str,
    content_type: type,
    message_type: type[Message],
    *,
    to_message: Callable[[Any], Any] | None = None,
    from_message: Callable[[Any], Any] | None = None,
) -> _Form:
    """Unless told otherwise, contents and messages have the same fields, and None is a field that is not there."""
    names: tuple[str, ...] = content_type.__match_args__  # type: ignore[attr-defined]
    fields = message_type.DESCRIPTOR.fields_by_name

    def plain_to_message(content: object) -> Message:
        return message_type(**{name: getattr(content, name) for name in names})

    def plain_from_message(message: Message) -> object:
        return content_type(*(getattr(message, name) if message.HasField(name) else None for name in names))

    return _Form(
        operation, field, to_message or plain_to_message, from_message or plain_from_message, "status" in fields
    )


_OP = Operation
_REQUEST_FORMS: Final[dict[type, _Form]] = {
    ReadRequest: _form(_OP.READ_ENTRY, "read", ReadRequest, pb.ReadRequest, from_message=_read_request),
    AddRequest: _form(
        _OP.ADD_ENTRY, "add", AddRequest, pb.AddRequest, to_message=_add_request_message, from_message=_add_request
    ),
    AuthMessage: _form(_OP.AUTH, "auth", AuthMessage, pb.AuthMessage, from_message=_auth_content),
    WriteLacRequest: _form(_OP.WRITE_LAC, "write_lac", WriteLacRequest, pb.WriteLacRequest),
    ReadLacRequest: _form(_OP.READ_LAC, "read_lac", ReadLacRequest, pb.ReadLacRequest),
    BookieInfoRequest: _form(_OP.GET_BOOKIE_INFO, "bookie_info", BookieInfoRequest, pb.BookieInfoRequest),
    StartTlsRequest: _form(_OP.START_TLS, "start_tls", StartTlsRequest, pb.StartTlsRequest),
    ForceLedgerRequest: _form(_OP.FORCE_LEDGER, "force_ledger", ForceLedgerRequest, pb.ForceLedgerRequest),
    ListEntriesRequest: _form(
        _OP.GET_LIST_OF_ENTRIES_OF_LEDGER, "list_entries", ListEntriesRequest, pb.ListEntriesRequest
    ),
}
_RESPONSE_FORMS: Final[dict[type, _Form]] = {
    ReadResponse: _form(_OP.READ_ENTRY, "read", ReadResponse, pb.ReadResponse, from_message=_read_response),
    AddResponse: _form(_OP.ADD_ENTRY, "add", AddResponse, pb.AddResponse, from_message=_add_response),
    AuthMessage: _form(_OP.AUTH, "auth", AuthMessage, pb.AuthMessage, from_message=_auth_content),
    WriteLacResponse: _form(_OP.WRITE_LAC, "write_lac", WriteLacResponse, pb.WriteLacResponse),
    ReadLacResponse: _form(_OP.READ_LAC, "read_lac", ReadLacResponse, pb.ReadLacResponse),
    BookieInfoResponse: _form(_OP.GET_BOOKIE_INFO, "bookie_info", BookieInfoResponse, pb.BookieInfoResponse),
    StartTlsResponse: _form(_OP.START_TLS, "start_tls", StartTlsResponse, pb.StartTlsResponse),
    ForceLedgerResponse: _form(_OP.FORCE_LEDGER, "force_ledger", ForceLedgerResponse, pb.ForceLedgerResponse),
    ListEntriesResponse: _form(
        _OP.GET_LIST_OF_ENTRIES_OF_LEDGER, "list_entries", ListEntriesResponse, pb.ListEntriesResponse
    ),
}
_REQUESTS: Final = {form.operation.value: form for form in _REQUEST_FORMS.values()}
_RESPONSES: Final = {form.operation.value: form for form in _RESPONSE_FORMS.values()}
