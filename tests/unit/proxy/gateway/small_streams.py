"""Streams in a dictionary, with what the gateway needs of a client; and requests to it without sockets.

For simulations (`quire.testing`): what takes time here takes simulated time.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.types import ASGIApp

from quire.codec.stream.records import LogRecord
from quire.errors import HandleClosed, NoSuchStream, PositionTruncated, StreamOwned, StreamSealed
from quire.proxy.gateway import Gateway, GatewaySettings
from quire.proxy.gateway.clients import StreamClient
from quire.rpc.serving.tokens import Tokens
from quire.stream.info import StreamInfo
from quire.stream.start import Start, Txid
from quire.types import DLSN, EntryId, Lssn, SlotId


def place(number: int) -> DLSN:
    """Of the record of this number: each has an entry of its own."""
    return DLSN(Lssn(1), EntryId(number), SlotId(0))


@dataclass
class SmallStream:
    records: list[bytes] = field(default_factory=list)
    is_sealed: bool = False
    first: int = 0
    owner: str | None = None
    positions: dict[str, DLSN | None] = field(default_factory=dict)
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, *records: bytes) -> None:
        self.records += records
        self.wake()

    def wake(self) -> None:
        self.grown.set()
        self.grown = asyncio.Event()


class SmallWriter:
    def __init__(self, client: "SmallStreams", stream: SmallStream) -> None:
        self._client, self._stream = client, stream
        self.is_closed = False

    @property
    def last_txid(self) -> int:
        return len(self._stream.records) - 1

    async def append_many(self, payloads: Sequence[bytes], *, txids: Sequence[int] | None = None) -> list[DLSN]:
        if self.is_closed:
            raise HandleClosed("closed")
        await asyncio.sleep(self._client.append_s)
        if self._client.append_errors:
            raise self._client.append_errors.pop(0)
        begin = len(self._stream.records)
        self._stream.add(*payloads)
        return [place(begin + number) for number in range(len(payloads))]

    async def seal(self) -> None:
        self._stream.is_sealed = True
        self._stream.wake()


class Statistics(NamedTuple):
    at_tail: bool


class SmallReader:
    def __init__(self, stream: SmallStream, name: str | None, number: int) -> None:
        self._stream, self._name, self._number = stream, name, number

    @property
    def position(self) -> DLSN:
        return place(self._number)

    async def read_many(self, max_records: int, *, timeout_s: float = math.inf) -> list[LogRecord]:
        try:
            async with asyncio.timeout(None if timeout_s == math.inf else timeout_s):
                while self._number >= len(self._stream.records):
                    if self._stream.is_sealed:
                        raise StreamSealed("ended")
                    await self._stream.grown.wait()
        except TimeoutError:
            return []
        if self._number < self._stream.first:
            raise PositionTruncated("gone", earliest=place(self._stream.first))
        end = min(self._number + max_records, len(self._stream.records))
        found = [LogRecord(place(at), at, self._stream.records[at], at) for at in range(self._number, end)]
        self._number = end
        return found

    async def commit(self, position: DLSN | None = None, *, may_go_back: bool = False) -> DLSN:
        assert self._name is not None
        assert position is not None
        stored = self._stream.positions.get(self._name)
        if may_go_back or stored is None or stored < position:
            self._stream.positions[self._name] = position
        return self._stream.positions[self._name] or position

    def statistics(self) -> Statistics:
        return Statistics(self._number >= len(self._stream.records))


class SmallStreams:
    """A client. What it does otherwise than a good one, tests tell it."""

    def __init__(self, *names: str) -> None:
        self.streams = {name: SmallStream() for name in names}
        self.open_writers: list[str] = []
        self.opened = 0
        self.append_s = 0.0
        self.append_errors: list[Exception] = []

    def stream(self, name: str) -> SmallStream:
        if name not in self.streams:
            raise NoSuchStream(f"there is no stream {name!r}")
        return self.streams[name]

    async def stream_exists(self, stream: str) -> bool:
        return stream in self.streams

    async def scan_streams(self, prefix: str = "") -> AsyncIterator[str]:
        for name in sorted(self.streams, key=lambda name: name.split("/")):
            if name.startswith(prefix):
                yield name

    async def create_stream(self, stream: str) -> None:
        self.streams.setdefault(stream, SmallStream())

    async def delete_stream(self, stream: str) -> None:
        assert stream not in self.open_writers
        self.stream(stream)
        del self.streams[stream]

    async def truncate_stream(self, stream: str, *, before: DLSN | Txid) -> DLSN:
        self.stream(stream).first = before.value if isinstance(before, Txid) else before.entry_id
        return place(self.stream(stream).first)

    async def seal_stream(self, stream: str) -> None:
        self.stream(stream).is_sealed = True

    async def stream_info(self, stream: str) -> StreamInfo:
        found = self.stream(stream)
        owner = found.owner or ("gateway" if stream in self.open_writers else None)
        return StreamInfo(
            stream, (), None, None, None, None, len(found.records), found.is_sealed, owner, found.positions
        )

    async def subscriptions(self, stream: str) -> Mapping[str, DLSN | None]:
        return self.stream(stream).positions

    async def delete_subscription(self, stream: str, subscription: str) -> None:
        self.stream(stream).positions.pop(subscription, None)

    @asynccontextmanager
    async def open_writer(self, stream: str, **overrides: Any) -> AsyncIterator[SmallWriter]:
        await asyncio.sleep(0.01)
        found = self.streams.setdefault(stream, SmallStream())
        if found.owner is not None:
            raise StreamOwned(f"stream {stream!r} is held", owner=found.owner)
        if found.is_sealed:
            raise StreamSealed(f"stream {stream!r} has ended")
        assert stream not in self.open_writers, "one writer for each stream"
        self.open_writers.append(stream)
        self.opened += 1
        writer = SmallWriter(self, found)
        try:
            yield writer
            await asyncio.sleep(0.01)
        finally:
            writer.is_closed = True
            self.open_writers.remove(stream)

    @asynccontextmanager
    async def open_reader(
        self,
        stream: str,
        *,
        start: Start | str = "earliest",
        subscription: str | None = None,
        skip_truncated: bool = False,
        **overrides: Any,
    ) -> AsyncIterator[SmallReader]:
        found = self.stream(stream)
        if isinstance(start, DLSN):
            number = start.entry_id + (1 if start.slot_id > 0 else 0)
            if number < found.first and not skip_truncated:
                raise PositionTruncated("gone", earliest=place(found.first))
        else:
            number = {"earliest": found.first, "latest": len(found.records)}[str(start)]
        yield SmallReader(found, subscription, max(number, found.first))


class Once(NamedTuple):
    dlsns: Sequence[DLSN]
    is_duplicate: bool


class DeduplicatingStreams(SmallStreams):
    """As a client of write proxies, which remember producers."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.seen: dict[tuple[str, bytes], dict[int, DLSN]] = {}

    async def append_once(
        self,
        stream: str,
        payloads: Sequence[bytes],
        *,
        producer: bytes,
        first_seq: int,
        txids: Sequence[int] | None = None,
    ) -> Once:
        seen, found, new = self.seen.setdefault((stream, producer), {}), self.stream(stream), 0
        for seq, payload in enumerate(payloads, start=first_seq):
            if seq not in seen:
                seen[seq] = place(len(found.records))
                found.add(payload)
                new += 1
        return Once([seen[first_seq + number] for number in range(len(payloads))], new == 0)


def _is_a_client(client: SmallStreams) -> StreamClient:
    return client  # For the type checker.


# --- Requests without sockets


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)


class Call:
    """One request. Its body comes in pieces, as `send` and `leave` say; what is answered so far can be looked at."""

    def __init__(self, application: ASGIApp, method: str, path: str, headers: Mapping[str, str]) -> None:
        raw_path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": raw_path,
            "raw_path": raw_path.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.status, self.headers, self.body = 0, dict[str, str](), b""
        self.is_complete = False
        self.task: asyncio.Future[None] = asyncio.ensure_future(application(scope, self._incoming.get, self._on_sent))

    async def _on_sent(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message.get("headers", [])}
        else:
            assert not self.is_complete
            self.body += message.get("body", b"")
            self.is_complete = not message.get("more_body", False)
            if self.is_complete:
                self.leave()

    def send(self, body: bytes, *, more: bool = False) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def answer(self) -> Answer:
        await self.task
        assert self.is_complete
        return Answer(self.status, self.headers, self.body)


class SmallGateway:
    """A gateway over small streams, and requests to it."""

    def __init__(
        self, client: SmallStreams, settings: GatewaySettings | None = None, *, tokens: Tokens | None = None
    ) -> None:
        self.client = client
        self.gateway = Gateway({"default": client}, settings, tokens=tokens)

    def begin(self, method: str, path: str, **headers: str) -> Call:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return Call(self.gateway.application, method, f"/v1/default/streams{path}", named)

    async def __call__(self, method: str, path: str, body: object = b"", **headers: str) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if not isinstance(body, bytes):
            headers = {"content_type": "application/json", **headers}
        call = self.begin(method, path, **headers)
        call.send(data)
        return await call.answer()
