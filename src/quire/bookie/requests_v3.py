"""Requests of version 3: protobuf messages, for everything that a bookie does."""

from collections.abc import Callable
from typing import Final

from quire.bookie.connection import BookieConnection
from quire.bookie.ledger_storage import Absence
from quire.bookie.long_poll import LongPoll
from quire.codec.entry import STORABLE_BYTES_MIN, stored_ids
from quire.codec.wire import v3
from quire.codec.wire.availability import EntryAvailability, encode_availability
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import (
    AUTH_DISABLED_PLUGIN,
    DEFERRED_SYNC,
    FREE_DISK,
    TOTAL_DISK,
    VERSION,
    AddRequest,
    AddResponse,
    AuthMessage,
    BookieInfoRequest,
    BookieInfoResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadFlag,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    RequestContent,
    ResponseContent,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
    WriteLacResponse,
)
from quire.codec.wire.v3_reads import read_response_parts
from quire.errors import Damaged
from quire.types import NO_ENTRY, EntryId

_OK: Final = Status.EOK


def on_v3_frame(connection: BookieConnection, frame: memoryview) -> None:
    """Carry out one request. Raises `ProtocolViolation` for what is none: the connection is to be closed."""
    request = v3.decode_request(frame)
    content = request.content
    if content is None:
        connection.send(v3.encode_refusal(request.txn_id, request.operation, Status.EBADREQ))
    elif request.version != VERSION:
        _send(connection, request, Status.EBADVERSION, _echo(content))
    elif isinstance(content, AddRequest):
        _on_add(connection, request, content)
    else:
        _HANDLERS[type(content)](connection, request, content)


def _send(connection: BookieConnection, request: Request, status: Status, content: ResponseContent) -> None:
    connection.send(v3.encode_response(request.txn_id, status, content))


def _echo(content: RequestContent) -> ResponseContent:
    """An answer that only repeats the ids of its request: older clients take them from there, also with an error."""
    match content:
        case AddRequest():
            return AddResponse(content.ledger_id, content.entry_id)
        case ReadRequest():
            return ReadResponse(content.ledger_id, content.entry_id)
        case WriteLacRequest():
            return WriteLacResponse(content.ledger_id)
        case ReadLacRequest():
            return ReadLacResponse(content.ledger_id)
        case ForceLedgerRequest():
            return ForceLedgerResponse(content.ledger_id)
        case ListEntriesRequest():
            return ListEntriesResponse(content.ledger_id)
        case BookieInfoRequest():
            return BookieInfoResponse()
        case StartTlsRequest():
            return StartTlsResponse()
        case AuthMessage():
            return AuthMessage(AUTH_DISABLED_PLUGIN)


# --- Writing


def _on_add(connection: BookieConnection, request: Request, add: AddRequest) -> None:
    service, body = connection.service, add.body
    result: int | Status
    # What is too short for ids of its own goes by those of the request, as far as it goes: it cannot be stored.
    is_storable = len(body) >= STORABLE_BYTES_MIN
    deferred = bool(add.write_flags & DEFERRED_SYNC) and not add.recovery
    stored_in, entry_id, lac = stored_ids(body) if is_storable else (add.ledger_id, add.entry_id, NO_ENTRY)
    if service.storage.is_overfull:
        result = Status.ETOOMANYREQUESTS
    else:
        result = service.add(
            stored_in,
            entry_id,
            lac,
            body,
            add.master_key,
            recovery=add.recovery,
            priority=request.priority > 0,
            deferred=deferred,
        )
    if isinstance(result, Status):
        connection.refuse_add(result)
        connection.send(connection.add_responses.encode(request.txn_id, result, add.ledger_id, add.entry_id))
    else:
        connection.acknowledge_v3(result, stored_in, request.txn_id, add.ledger_id, add.entry_id, deferred=deferred)


def _on_write_lac(connection: BookieConnection, request: Request, content: WriteLacRequest) -> None:
    service = connection.service
    timed = connection.timed(service.metrics.requests.write_lac)

    def answer(status: Status) -> None:
        timed(status)
        _send(connection, request, status, _echo(content))

    result = service.write_lac(content.ledger_id, content.body, content.master_key)
    if isinstance(result, Status):
        answer(result)
    else:
        connection.when_durable(content.ledger_id, result, lambda: answer(_OK))


def _on_force(connection: BookieConnection, request: Request, content: ForceLedgerRequest) -> None:
    """Everything that was written to the ledger before is in its journal, so that one has to catch up."""
    service = connection.service
    timed = connection.timed(service.metrics.requests.force_ledger)

    def answer() -> None:
        timed(_OK)
        _send(connection, request, _OK, _echo(content))

    service.metrics.storage.forces.value += 1
    connection.when_durable(content.ledger_id, service.storage.journals.of(content.ledger_id).last, answer)


# --- Reading


def _on_read(connection: BookieConnection, request: Request, read: ReadRequest) -> None:
    service = connection.service
    if read.is_long_poll:
        LongPoll(connection, request, read).start()
        return
    if read.flag is None and not connection.is_congested:
        entry, max_lac = (
            service.storage.cached(read.ledger_id, read.entry_id),
            service.storage.known_lac(read.ledger_id),
        )
        if entry is not None and max_lac is not None:  # Whoever reads in order mostly finds it so.
            service.metrics.requests.read_entry.ok.observe(0.0)
            _send_entry(connection, request, read, entry, max_lac)
            return
    fences = read.flag is ReadFlag.FENCE_LEDGER
    timed = connection.timed(service.metrics.requests.fence_read if fences else service.metrics.requests.read_entry)

    def answer(status: Status, body: bytes | None) -> None:
        if body is None or fences:
            answer_with_lac(status, body, None)
        else:
            service.with_lac(
                read.ledger_id,
                lambda lac: answer_with_lac(status, body, None if isinstance(lac, Status) else lac),
            )

    def answer_with_lac(status: Status, body: bytes | None, lac: EntryId | None) -> None:
        timed(status)
        if body is None:
            _send(connection, request, status, ReadResponse(read.ledger_id, read.entry_id, None, lac))
            return
        _send_entry(connection, request, read, body, lac)

    def go_on() -> None:
        service.read(connection, read.ledger_id, read.entry_id, answer)

    if fences:
        refusal = service.fence(connection, read.ledger_id, read.master_key, go_on)
        if refusal is not None:
            answer(refusal, None)
    else:
        go_on()


def _send_entry(
    connection: BookieConnection, request: Request, read: ReadRequest, entry: bytes, max_lac: EntryId | None
) -> None:
    connection.service.metrics.storage.read_bytes.value += len(entry)
    before, after = read_response_parts(
        request.txn_id, read.ledger_id, read.entry_id, entry_bytes=len(entry), max_lac=max_lac
    )
    connection.send(before, entry, after)


def _on_read_lac(connection: BookieConnection, request: Request, content: ReadLacRequest) -> None:
    service = connection.service
    timed = connection.timed(service.metrics.requests.read_lac)

    def answer(status: Status, last: bytes | None) -> None:
        lac = service.explicit_lac(content.ledger_id)
        if isinstance(lac, Status):
            status, lac, last = lac, None, None
        elif last is None and status in (Status.ENOENTRY, Status.ENOLEDGER, Status.EBADREQ):
            status = Status.ENOENTRY if lac is None else Status.EIO  # As Apache's bookies have it.
        timed(status)
        _send(connection, request, status, ReadLacResponse(content.ledger_id, lac, last))

    service.read(connection, content.ledger_id, NO_ENTRY, answer)


def _on_info(connection: BookieConnection, request: Request, content: BookieInfoRequest) -> None:
    service = connection.service
    timed = connection.timed(service.metrics.requests.bookie_info)
    requested = content.requested or 0

    async def look() -> None:
        try:
            usage = await service.runtime.disk.usage(service.storage.folder)
        except OSError:
            timed(Status.EIO)
            _send(connection, request, Status.EIO, _echo(content))
            return
        timed(_OK)
        total = usage.total_bytes if requested & TOTAL_DISK else None
        free = usage.free_bytes if requested & FREE_DISK else None
        _send(connection, request, _OK, BookieInfoResponse(total, free))

    connection.spawn(look())


def _on_list(connection: BookieConnection, request: Request, content: ListEntriesRequest) -> None:
    service, ledger_id = connection.service, content.ledger_id
    timed = connection.timed(service.metrics.requests.list_entries)

    async def look() -> None:
        async with connection.listing:  # One at a time, and none that its client would not take: they may be large.
            await connection.until_taken()
            send(await find())

    async def find() -> EntryAvailability | Absence | Exception:
        try:
            return await service.storage.availability(ledger_id) if ledger_id >= 0 else Absence.NO_LEDGER
        except (OSError, Damaged) as error:
            return error

    def send(found: EntryAvailability | Absence | Exception) -> None:
        if isinstance(found, EntryAvailability):
            data = encode_availability(found)
            # A list that does not fit into a frame would cost the client its connection.
            status = _OK if len(data) + 512 <= service.settings.frame_bytes_max else Status.EIO
        else:
            status, data = service.status_of(found, ledger_id), b""
        timed(status)
        _send(connection, request, status, ListEntriesResponse(ledger_id, data if status is _OK else None))

    connection.spawn(look())


# --- The connection itself


def _on_auth(connection: BookieConnection, request: Request, content: AuthMessage) -> None:
    """Nobody has to authenticate: whatever was sent, it is enough."""
    _send(connection, request, _OK, _echo(content))


def _on_start_tls(connection: BookieConnection, request: Request, content: StartTlsRequest) -> None:
    if connection.tls is None:
        connection.send(v3.encode_refusal(request.txn_id, request.operation, Status.EBADREQ))
    else:
        connection.start_tls(v3.encode_response(request.txn_id, _OK, StartTlsResponse()))


_HANDLERS: Final[dict[type, Callable[..., None]]] = {
    ReadRequest: _on_read,
    WriteLacRequest: _on_write_lac,
    ReadLacRequest: _on_read_lac,
    ForceLedgerRequest: _on_force,
    BookieInfoRequest: _on_info,
    ListEntriesRequest: _on_list,
    AuthMessage: _on_auth,
    StartTlsRequest: _on_start_tls,
}
