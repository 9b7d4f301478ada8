"""Frames to a bookie and what comes back, without any client between: for comparing two bookies to the byte."""

import asyncio
import struct
from typing import Any, Final

from quire.codec.pb import bookkeeper_protocol_pb2 as pb

_ANSWER_WITHIN_S: Final = 20.0
_TXN_ID: Final = 77

CLOSED: Final = "closed"


def v3(operation: str, /, *, version: int = 3, priority: int | None = None, **message: Any) -> bytes:
    """A request in version 3, such as `v3("READ_ENTRY", read={"ledger_id": 1, "entry_id": 0})`."""
    header = pb.PacketHeader(
        version=pb.ProtocolVersion.Name(version), operation=operation, txn_id=_TXN_ID, priority=priority
    )
    return pb.Request(header=header, **message).SerializeToString()


def v2(opcode: int, *fields: bytes | int, version: int = 2, flags: int = 0) -> bytes:
    """A request in version 2: a header, then bytes as they are and numbers in 64 bits."""
    raw = b"".join(field if isinstance(field, bytes) else struct.pack(">q", field) for field in fields)
    return struct.pack(">BBH", version, opcode, flags) + raw


def entry(ledger_id: int, entry_id: int, lac: int, payload: bytes = b"payload") -> bytes:
    """An entry without a digest. A bookie looks at its first three numbers only."""
    return struct.pack(">qqqq", ledger_id, entry_id, lac, len(payload)) + payload


async def talk(port: int, *bodies: bytes) -> list[str]:
    """Send frames on one connection, each after the answer to the one before. Answers in a form that compares well."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    try:
        for body in bodies:
            writer.write(struct.pack(">I", len(body)) + body)
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                answers.append(_readable(await _read_frame(reader)))
            if answers[-1] == CLOSED:
                break
    finally:
        writer.transport.abort()
    return answers


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    try:
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def _readable(body: bytes) -> str:
    if not body:
        return CLOSED
    if body[0] != 0x0A:
        return body.hex(" ", -4)
    response = pb.Response.FromString(body)
    if response.HasField("read"):
        response.read.ClearField("lac_updated_ms")  # No two moments are the same.
    if response.HasField("bookie_info"):
        response.bookie_info.ClearField("free_disk_bytes")
    return str(response)
