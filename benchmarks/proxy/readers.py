"""Many readers of one stream in one process: how long each record took to each of them.

    python -m benchmarks.proxy.readers '{"uri": "quire://…", "stream": "…", "readers": 500, …}'

Each record begins with the time when it was due, on the clock that all processes of a machine share. A few readers are
those that programs use; the others are lean (`lean.py`). One line says when all are open; the second, when the
stream was sealed and all have come to its end, what they saw.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Final

import uvloop

import quire
from benchmarks.processes import no_collections
from benchmarks.proxy.lean import LeanConnection, connect_lean
from benchmarks.proxy.messages import DUE, Messages
from quire.codec import http2
from quire.codec.pb import quire_v1_pb2 as pb
from quire.proxy.client.places import position_message
from quire.runtime import Runtime, real_runtime
from quire.stream.client_api import Client
from quire.values import dataclass

_STEPS_PER_S: Final = 10_000  # Waits are counted in steps of a tenth of a millisecond.
_OPENING_MAX: Final = 50  # Readers that are opened at the same time.


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


class Readers:
    """Reads what a plan says."""

    def __init__(self, runtime: Runtime, plan: ReadersPlan) -> None:
        self._runtime, self._plan = runtime, plan
        self._opening = asyncio.Semaphore(_OPENING_MAX)
        self._open, self._all_open, self._over = 0, asyncio.Event(), asyncio.Event()
        self._messages = Messages()
        self._had: list[tuple[float, tuple[float, ...]]] = []  # When a message was there, and what it had.

    async def run(self) -> Seen:
        plan = self._plan
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(quire.connect(plan.uri))
            lean = plan.readers - plan.whole_readers
            connections = []
            for _ in range(-(-(lean + plan.stuck_readers) // plan.readers_per_connection)):
                connections.append(await self._connect())
                stack.callback(connections[-1].close)
            stuck = [asyncio.create_task(self._stuck(connections[number])) for number in range(plan.stuck_readers)]
            following = [
                *(asyncio.create_task(self._follow(connections[place % len(connections)])) for place in range(lean)),
                *(asyncio.create_task(self._follow_whole(client)) for _ in range(plan.whole_readers)),
            ]
            opened = asyncio.create_task(self._all_open.wait())
            await asyncio.wait([opened, *following], return_when=asyncio.FIRST_COMPLETED)
            with no_collections():
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

    async def _connect(self) -> LeanConnection:
        return await connect_lean(self._runtime, self._plan.proxy, self._messages)

    async def _follow(self, connection: LeanConnection) -> int:
        async with self._opening:
            reader = await connection.read(self._request(), self._on_open)
        await reader.done
        self._had += [(now_s, message.due_s) for now_s, message in reader.had]
        return reader.count

    async def _stuck(self, connection: LeanConnection) -> None:
        call = await connection.call(self._request())
        await call.receive()
        self._on_open()
        await self._over.wait()
        connection.reset(call, http2.CANCEL)

    def _request(self) -> pb.ReadRequest:
        return pb.ReadRequest(
            namespace=self._plan.namespace,
            stream=self._plan.stream,
            start=position_message("earliest"),
            format=pb.ENTRIES,
            idle_ping_ms=1000,
        )

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
