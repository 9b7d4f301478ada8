"""Many readers of one stream in one process, for `quire bench proxy`: how long each record took to each of them.

    python -m quire.cli.bench_proxy_readers '{"uri": "quire://…", "stream": "…", "readers": 500, …}'

Each record begins with the time when it was due, on the clock that all processes of a machine share. A few readers are
those that programs use. To decode each record hundreds of times would cost more than all else together, so the others
are the same calls to the read proxy, whose messages are decoded once for all who get the same one. One line says when
all are open; the second, when the stream was sealed and all have come to its end, what they saw.
"""

import asyncio
import json
import struct
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import uvloop

import quire
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.entries import decode_entry
from quire.codec.stream.records import CONTROL, END_OF_STREAM
from quire.errors import invariant
from quire.proxy.client.places import position_message
from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.methods import READ, Method
from quire.runtime import Runtime, real_runtime
from quire.stream.client_api import Client
from quire.types import EntryId, Lssn

DUE: Final = struct.Struct(">d")
_STEPS_PER_S: Final = 10_000  # Waits are counted in steps of a tenth of a millisecond.
_OPENING_MAX: Final = 50  # Readers that are opened at the same time.
_MESSAGES_KEPT_MAX: Final = 1000
_UNSEEN: Final = CONTROL | END_OF_STREAM


@dataclass(frozen=True, slots=True)
class ReadersPlan:
    """What to open."""

    uri: str
    proxy: str
    """Where the read proxy is."""
    namespace: str
    stream: str
    readers: int
    whole_readers: int
    """So many of them are those that programs use."""
    readers_per_connection: int
    stuck_readers: int
    """So many more take nothing after their first message."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Of all readers together; but for those that are stuck."""

    cpu_s: float
    """Since all were open."""
    fewest: int
    """Records of the reader that had the fewest."""
    waits: Counter[int]
    """How many records took so long, in steps."""


@dataclass(frozen=True, slots=True)
class _Message:
    """Where the entries of a message begin and end, if it has any, and when each of its records was due."""

    first: tuple[int, int] | None
    last: tuple[int, int] | None
    due_s: tuple[float, ...]

    def follows(self, last: tuple[int, int]) -> bool:
        assert self.first is not None
        return self.first == (last[0], last[1] + 1) or (self.first[0] > last[0] and self.first[1] == 0)


class _Encoded:
    """In place of a type of messages."""

    @staticmethod
    def FromString(encoded: bytes) -> bytes:  # noqa: N802 - as protobuf has it
        return encoded


class _ReadEncoded(Method):
    """A call whose responses stay as they came."""

    @cached_property
    def response_type(self) -> Any:
        return _Encoded


_READ: Final = _ReadEncoded(READ.descriptor)


class Readers:
    """Reads what a plan says."""

    def __init__(self, runtime: Runtime, plan: ReadersPlan) -> None:
        self._runtime, self._plan = runtime, plan
        self._opening = asyncio.Semaphore(_OPENING_MAX)
        self._open, self._all_open, self._over = 0, asyncio.Event(), asyncio.Event()
        self._messages: dict[bytes, _Message] = {}
        self._had: list[tuple[float, tuple[float, ...]]] = []  # When a message was there, and what it had.

    async def run(self) -> Seen:
        plan = self._plan
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(quire.connect(plan.uri))
            lean = plan.readers - plan.whole_readers
            transports = []
            for number in range(-(-(lean + plan.stuck_readers) // plan.readers_per_connection)):
                transports.append(GrpcTransport(self._runtime, f"bench readers {number}"))
                stack.push_async_callback(transports[-1].aclose)
            stuck = [asyncio.create_task(self._stuck(transports[number])) for number in range(plan.stuck_readers)]
            following = [
                *(asyncio.create_task(self._follow(transports[place % len(transports)])) for place in range(lean)),
                *(asyncio.create_task(self._follow_whole(client)) for _ in range(plan.whole_readers)),
            ]
            opened = asyncio.create_task(self._all_open.wait())
            await asyncio.wait([opened, *following], return_when=asyncio.FIRST_COMPLETED)
            _tell("open")
            cpu_s = time.process_time()
            counts = await asyncio.gather(*following)
            cpu_s = time.process_time() - cpu_s
            self._over.set()
            await asyncio.gather(opened, *stuck)
            return Seen(cpu_s, min(counts), self._waits())

    def _on_open(self) -> None:
        self._open += 1
        if self._open == self._plan.readers + self._plan.stuck_readers:
            self._all_open.set()

    async def _follow_whole(self, client: Client) -> int:
        count = 0
        async with AsyncExitStack() as stack:
            async with self._opening:
                reader = await stack.enter_async_context(client.open_reader(self._plan.stream))
            self._on_open()
            async for batch in reader.batches():
                due_s = tuple(DUE.unpack_from(record.payload)[0] for record in batch)
                self._had.append((time.perf_counter(), due_s))
                count += len(batch)
        return count

    async def _follow(self, transport: GrpcTransport) -> int:
        count, last = 0, (-1, -1)
        async with AsyncExitStack() as stack:
            async with self._opening:
                call = transport.channel(self._plan.proxy).stream(_READ, self._request())
                events = await stack.enter_async_context(call)
                await anext(events)
            self._on_open()
            async for encoded in events:
                message = self._messages.get(encoded) or self._decoded(encoded)
                self._had.append((time.perf_counter(), message.due_s))
                if message.last is not None:
                    invariant(message.follows(last), "an entry is missing, or came twice", last=last)
                    last = message.last
                    count += len(message.due_s)
        return count

    async def _stuck(self, transport: GrpcTransport) -> None:
        async with transport.channel(self._plan.proxy).stream(_READ, self._request()) as events:
            await anext(events)
            self._on_open()
            await self._over.wait()

    def _request(self) -> pb.ReadRequest:
        return pb.ReadRequest(
            namespace=self._plan.namespace,
            stream=self._plan.stream,
            start=position_message("earliest"),
            format=pb.ENTRIES,
            idle_ping_ms=1000,
        )

    def _decoded(self, encoded: bytes) -> "_Message":
        places: list[tuple[int, int]] = []
        due_s: list[float] = []
        for entry in pb.ReadEvent.FromString(encoded).entries:
            records = decode_entry(
                entry.data,
                lssn=Lssn(entry.lssn),
                entry_id=EntryId(entry.entry_id),
                enveloped=not entry.is_bare,
                expand_sets=True,
            )
            due_s += [DUE.unpack_from(record.payload)[0] for record in records if not record.flags & _UNSEEN]
            place = (entry.lssn, entry.entry_id)
            invariant(not places or _Message(place, place, ()).follows(places[-1]), "an entry is missing", place=place)
            places.append(place)
        if len(self._messages) >= _MESSAGES_KEPT_MAX:
            self._messages.clear()
        message = _Message(places[0] if places else None, places[-1] if places else None, tuple(due_s))
        self._messages[encoded] = message
        return message

    def _waits(self) -> Counter[int]:
        waits = Counter[int]()
        for now_s, due_s in self._had:
            waits.update([round((now_s - each_s) * _STEPS_PER_S) for each_s in due_s])
        return waits


def wait_ms(waits: Counter[int], share: float) -> float:
    """The wait that this share of all records did not exceed."""
    left = share * waits.total()
    for step in sorted(waits):
        left -= waits[step]
        if left <= 0:
            return step / _STEPS_PER_S * 1000
    return 0.0


def _tell(what: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"event": what, **facts}) + "\n")
    sys.stdout.flush()


async def _main() -> None:
    seen = await Readers(real_runtime(), ReadersPlan(**json.loads(sys.argv[1]))).run()
    _tell("done", cpu_s=seen.cpu_s, fewest=seen.fewest, waits=seen.waits)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main())
