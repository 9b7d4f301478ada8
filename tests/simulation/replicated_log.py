"""A small log with two copies: enough of a storage node to show whether a simulated world finds real mistakes.

A node appends numbered records to one file, syncs it, and acknowledges. A writer sends each record to both nodes and
counts it as confirmed when both have acknowledged it. Nodes crash, lose power and come back; connections break.

Invariants:
  AckedIsDurable   what a node acknowledged is in its log after any crash, in order, unchanged, and once.
  ConfirmedIsTwice a confirmed record is in both logs.
"""

import asyncio
import enum
import struct
import zlib
from collections.abc import Iterator
from typing import Final, cast

from quire.runtime import File, Runtime

PORT: Final = 7000
LOG: Final = "/data/log"
_FRAME: Final = struct.Struct(">III")  # Length of the payload, number of the record, checksum of both and the payload.
_ACK: Final = struct.Struct(">I")


class Flaw(enum.Enum):
    """What a careless author would get wrong. Each is a mistake that works on every day without a crash."""

    NONE = "a node that keeps its promises"
    ACK_BEFORE_SYNC = "acknowledges what is only written"
    ACK_DURING_SYNC = "acknowledges what was written while the sync was under way"
    NAME_NOT_SYNCED = "forgets that a new file's name needs a sync of its directory"
    KEEPS_TORN_TAIL = "goes on after a torn record instead of cutting it off"
    RETRIES_SYNC = "believes a sync that succeeds after one that failed"
    TRUSTS_PAGE_CACHE = "believes after a restart that what can be read is on the disk"


def encode(number: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), number, _checksum(number, payload)) + payload


def decode(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Each whole and intact record, with the offset after it, up to the first one that is not."""
    position = 0
    while position + _FRAME.size <= len(data):
        length, number, checksum = _FRAME.unpack_from(data, position)
        payload = data[position + _FRAME.size : position + _FRAME.size + length]
        if len(payload) < length or checksum != _checksum(number, payload):
            return
        position += _FRAME.size + length
        yield number, payload, position


def _checksum(number: int, payload: bytes) -> int:
    return zlib.crc32(payload, number) ^ len(payload) ^ 0x5EED  # An all-zero frame must not look intact.


class Node:
    """One copy of the log: recovers, then serves until it is cancelled or its disk fails."""

    def __init__(self, runtime: Runtime, flaw: Flaw) -> None:
        self._runtime = runtime
        self._flaw = flaw
        self._file: File
        self._position = 0
        self._next = 0
        self._durable = 0  # Records numbered below this are on the platter.
        self._pending: list[bytes] = []
        self._arrived = asyncio.Event()
        self._connections: dict[_Connection, None] = {}

    async def run(self) -> None:
        await self._recover()
        async with await self._runtime.network.serve("", PORT, lambda: _Connection(self)):
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                await self._commit()

    async def _recover(self) -> None:
        disk = self._runtime.disk
        await disk.makedirs("/data")
        if await disk.exists(LOG):
            self._file = await disk.open(LOG, writable=True)
        else:
            self._file = await disk.create(LOG)
        if self._flaw is not Flaw.NAME_NOT_SYNCED:
            await disk.sync_directory("/data")
        content = await self._file.pread(await self._file.size(), 0)
        for number, _, end in decode(content):
            self._next, self._position = number + 1, end
        if self._flaw is Flaw.KEEPS_TORN_TAIL:
            self._position = len(content)
        elif self._flaw is not Flaw.TRUSTS_PAGE_CACHE:
            # Written again, not only synced: after a failed sync the kernel may think these bytes are on the disk.
            await self._file.pwritev([content[: self._position]], 0)
        await self._file.truncate(self._position)
        await self._file.fdatasync()
        self._durable = self._next

    async def _commit(self) -> None:
        """Write and sync everything that waits, then acknowledge it."""
        batch, self._pending = self._pending, []
        written = self._next
        await self._file.pwritev(batch, self._position)
        self._position += sum(map(len, batch))
        if self._flaw is Flaw.ACK_BEFORE_SYNC:
            self._acknowledge(written)
        try:
            await self._file.fdatasync()
        except OSError:
            if self._flaw is not Flaw.RETRIES_SYNC:
                raise
            await self._file.fdatasync()
        self._acknowledge(self._next if self._flaw is Flaw.ACK_DURING_SYNC else written)

    def _acknowledge(self, end: int) -> None:
        self._durable = max(self._durable, end)
        for connection in self._connections:
            connection.acknowledge(self._durable)

    def on_connected(self, connection: "_Connection") -> None:
        self._connections[connection] = None
        connection.acknowledge(self._durable)

    def on_lost(self, connection: "_Connection") -> None:
        self._connections.pop(connection, None)

    def on_record(self, number: int, payload: bytes) -> None:
        if number == self._next:  # Others were sent again, or their predecessor was lost with its connection.
            self._next += 1
            self._pending.append(encode(number, payload))
            self._arrived.set()


class _Connection(asyncio.Protocol):
    """The node's end of a connection: parses records, sends acknowledgements."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._node.on_connected(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        parsed = 0
        for number, payload, end in decode(bytes(self._buffer)):
            self._node.on_record(number, payload)
            parsed = end
        del self._buffer[:parsed]

    def connection_lost(self, exc: Exception | None) -> None:
        self._node.on_lost(self)

    def acknowledge(self, end: int) -> None:
        self._transport.write(_ACK.pack(end))


class Writer:
    """Sends records to the nodes, again and again until each has acknowledged them."""

    def __init__(self, runtime: Runtime, nodes: list[str]) -> None:
        self._runtime = runtime
        self._records: list[bytes] = []
        self.acked = dict.fromkeys(nodes, 0)
        self._links: dict[str, _Link] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for node in self.acked:
                group.create_task(self._keep_connected(node))

    def append(self, payload: bytes) -> None:
        self._records.append(payload)
        for link in self._links.values():
            link.send(len(self._records) - 1, payload)

    @property
    def confirmed(self) -> list[bytes]:
        return self._records[: min(self.acked.values())]

    async def wait_confirmed(self) -> None:
        while len(self.confirmed) < len(self._records):
            self._changed.clear()
            await self._changed.wait()

    def record(self, number: int) -> bytes:
        return self._records[number]

    def on_ack(self, node: str, end: int) -> None:
        self.acked[node] = max(self.acked[node], end)
        self._changed.set()

    async def _keep_connected(self, node: str) -> None:
        while True:
            try:
                _, link = await self._runtime.network.connect(node, PORT, lambda: _Link(self, node), timeout_s=2)
            except OSError:
                await self._runtime.clock.sleep(0.05)
                continue
            self._links[node] = link
            for number in range(self.acked[node], len(self._records)):
                link.send(number, self._records[number])
            await link.lost.wait()
            del self._links[node]


class _Link(asyncio.Protocol):
    """The writer's end of a connection."""

    def __init__(self, writer: Writer, node: str) -> None:
        self.lost = asyncio.Event()
        self._writer = writer
        self._node = node
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, number: int, payload: bytes) -> None:
        self._transport.write(encode(number, payload))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        whole = len(self._buffer) // _ACK.size * _ACK.size
        for (end,) in _ACK.iter_unpack(bytes(self._buffer[:whole])):
            self._writer.on_ack(self._node, end)
        del self._buffer[:whole]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
