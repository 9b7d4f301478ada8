"""Requests of version 2: the binary packets for adds, reads and batch reads."""

from typing import Final

from quire.bookie.batch_read import BatchRead
from quire.bookie.connection import BookieConnection
from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.codec.wire.v2_adds import decode_add_requests
from quire.codec.wire.v3_messages import AUTH_DISABLED_PLUGIN, AuthMessage
from quire.protocol.space import SpaceMode

_OK: Final = Status.EOK


def on_v2_frame(connection: BookieConnection, frame: memoryview) -> None:
    """Carry out one request. Raises `ProtocolViolation` for what is none: the connection is to be closed."""
    version, opcode, _ = v2.decode_header(frame)
    if opcode == v2.READ_ENTRY:
        _on_read(connection, frame, version)
    elif opcode == v2.ADD_ENTRY:
        _on_add(connection, frame, version)
    elif opcode == v2.BATCH_READ_ENTRY:
        _on_batch_read(connection, frame, version)
    else:
        v2.decode_auth(frame)  # Nobody has to authenticate: whatever was sent, it is enough.
        connection.send(v2.encode_auth(AuthMessage(AUTH_DISABLED_PLUGIN), version=version))


def on_v2_adds(connection: BookieConnection, frames: list[memoryview]) -> None:
    """Carry out adds that begin alike: of one ledger, with one key, and without flags."""
    service = connection.service
    # A single one, as of many writers that take turns, is cheaper by itself.
    if len(frames) > 1 and service.mode is SpaceMode.WRITABLE and not service.storage.is_overfull:
        master_key, ledger_id, entry_ids, lacs, entries = decode_add_requests(frames)
        try:
            first = service.storage.add_run(ledger_id, entry_ids, lacs, entries, master_key)
        except OSError:
            first = None  # The journal has failed: each of them is told so.
        if first is not None:
            connection.acknowledge_v2(first, ledger_id, entry_ids)
            return
    for frame in frames:
        _on_add(connection, frame, v2.VERSION)


def _on_add(connection: BookieConnection, frame: memoryview, version: int) -> None:
    flags, master_key, ledger_id, entry_id, lac, entry = v2.decode_add_request(frame)
    result: int | Status
    if version > v2.VERSION:
        result = Status.EBADVERSION
    elif connection.service.storage.is_overfull:
        result = Status.ETOOMANYREQUESTS
    else:
        result = connection.service.add(
            ledger_id,
            entry_id,
            lac,
            bytes(entry),
            master_key,
            recovery=bool(flags & v2.RECOVERY_ADD),
            priority=bool(flags & v2.HIGH_PRIORITY),
        )
    if isinstance(result, Status):
        connection.refuse_add(result)
        connection.send(v2.encode_add_response(result, ledger_id, entry_id, version=version))
    elif version == v2.VERSION:
        connection.acknowledge_v2(result, ledger_id, (entry_id,))
    else:  # Versions 0 and 1 are answered in kind, and one by one.
        answer = v2.encode_add_response(_OK, ledger_id, entry_id, version=version)
        connection.when_durable(ledger_id, result, lambda: connection.send(answer))


def _on_read(connection: BookieConnection, frame: memoryview, version: int) -> None:
    flags, ledger_id, entry_id, master_key = v2.decode_read_request(frame)
    service = connection.service
    if not flags & v2.DO_FENCING and version == v2.VERSION and not connection.is_congested:
        entry = service.storage.cached(ledger_id, entry_id)
        if entry is not None:  # Whoever reads in order mostly finds it so.
            service.metrics.requests.read_entry.ok.observe(0.0)
            service.metrics.storage.read_bytes.value += len(entry)
            connection.send(v2.read_response_prefix(_OK, ledger_id, entry_id, entry_bytes=len(entry)), entry)
            return
    timed = connection.timed(
        service.metrics.requests.fence_read if flags & v2.DO_FENCING else service.metrics.requests.read_entry
    )

    def answer(status: Status, body: bytes | None) -> None:
        timed(status)
        if body is None:
            connection.send(v2.read_response_prefix(status, ledger_id, entry_id, version=version))
        else:
            service.metrics.storage.read_bytes.value += len(body)
            prefix = v2.read_response_prefix(_OK, ledger_id, entry_id, entry_bytes=len(body), version=version)
            connection.send(prefix, body)

    if version > v2.VERSION:
        answer(Status.EBADVERSION, None)
    elif flags & v2.DO_FENCING:
        refusal = service.fence(
            connection, ledger_id, master_key, lambda: service.read(connection, ledger_id, entry_id, answer)
        )
        if refusal is not None:
            answer(refusal, None)
    else:
        service.read(connection, ledger_id, entry_id, answer)


def _on_batch_read(connection: BookieConnection, frame: memoryview, version: int) -> None:
    flags, ledger_id, entry_id, request_id, entries_max, bytes_max, master_key = v2.decode_batch_read_request(frame)
    service = connection.service
    timed = connection.timed(service.metrics.requests.read_entry)

    def answer(status: Status, entries: list[bytes]) -> None:
        timed(status)
        service.metrics.storage.read_bytes.value += sum(map(len, entries))
        connection.send(
            *v2.batch_read_response_parts(status, ledger_id, entry_id, request_id, entries, version=version)
        )

    if version > v2.VERSION:
        answer(Status.EBADVERSION, [])
        return
    limit = min(bytes_max, service.settings.batch_bytes_max)
    batch = BatchRead(connection, ledger_id, entry_id, entries_max=entries_max, bytes_max=limit, answer=answer)
    if flags & v2.DO_FENCING:
        refusal = service.fence(connection, ledger_id, master_key, batch.start)
        if refusal is not None:
            answer(refusal, [])
    else:
        batch.start()
