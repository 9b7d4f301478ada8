"""Our side of benchmarks of streams: bookies as processes, and this process as their client, writers and readers."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

from benchmarks.ledger.figures import Work
from benchmarks.ledger.measure import at_rate
from benchmarks.processes import BookieProcess, running_bookie
from benchmarks.stream.figures import Delivery, StreamCase
from benchmarks.stream.turns import OPENING_MAX, WINDOW_BYTES_MAX, Load, StreamBench, StreamSide
from quire.errors import QuireError
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.settings import LedgerSettings
from quire.metadata import attach_cluster, open_store, parse_uri
from quire.rpc import ChannelSettings
from quire.runtime import real_runtime
from quire.stream.binding import create_namespace
from quire.stream.namespace import Namespace, open_namespace
from quire.stream.reader import StreamReader
from quire.stream.settings import StreamOverrides
from quire.stream.writer import StreamWriter
from quire.types import DLSN

T = TypeVar("T")

_ANSWER_WITHIN_S: Final = 60.0  # A busy machine is no reason to replace a bookie.
_FIRST: Final = 1  # The first record of a stream has this txid, and is not measured.


@asynccontextmanager
async def open_quire_streams(folder: str, bench: StreamBench) -> AsyncIterator[StreamSide]:
    """Bookies, a namespace in SQLite, and a client of it."""
    async with quire_namespace(folder, bookies=bench.bookies) as (namespace, bookies):
        yield QuireStreams(namespace, bookies)


@asynccontextmanager
async def quire_namespace(folder: str, *, bookies: int) -> AsyncIterator[tuple[Namespace, list[BookieProcess]]]:
    """A namespace with so many bookies of its own."""
    runtime = real_runtime()
    uri, ledgers = f"distributedlog+sqlite:{folder}/metadata.db/bench", parse_uri(f"sqlite:{folder}/metadata.db")
    ledger_settings = LedgerSettings(
        replica_bytes_max=4 * WINDOW_BYTES_MAX,  # Nobody is to be replaced because the whole window is sent at once.
        read_timeout_s=_ANSWER_WITHIN_S,
        append_timeout_s=_ANSWER_WITHIN_S,
    )
    await create_namespace(uri, runtime=runtime)
    async with open_store(ledgers, runtime=runtime) as store, AsyncExitStack() as stack:
        cluster = await attach_cluster(store, ledgers, runtime)
        running = [
            await stack.enter_async_context(running_bookie(runtime, cluster, folder, name=f"b{number}"))
            for number in range(bookies)
        ]
        namespace = await stack.enter_async_context(
            open_namespace(
                uri,
                runtime=runtime,
                ledger_settings=ledger_settings,
                pool_settings=PoolSettings(channel=ChannelSettings(request_timeout_s=_ANSWER_WITHIN_S)),
            )
        )
        yield namespace, running


class QuireStreams:
    """What `open_quire_streams` opens."""

    name = "quire"

    def __init__(self, namespace: Namespace, bookies: Sequence[BookieProcess]) -> None:
        self._namespace, self._bookies = namespace, bookies

    def cpu_s(self) -> float:
        return sum(bookie.cpu_s() for bookie in self._bookies)

    # --- As fast as the window allows

    async def write(self, turn: int, case: StreamCase, load: Load) -> tuple[Work, Work]:
        before = self._now()
        async with self._writers(turn, case) as writers:
            opened, before = self._since(before, case.streams), self._now()
            await _all(_fill(writer, os.urandom(case.record_bytes), load) for writer in writers)
            return opened, self._since(before, case.streams * load.records)

    async def read(self, turn: int, case: StreamCase, load: Load) -> Work:
        opening, records = asyncio.Semaphore(OPENING_MAX), 1 + load.records

        async def read_one(stream: str) -> None:
            async with AsyncExitStack() as stack:
                async with opening:
                    reader = await stack.enter_async_context(self._open_reader(stream))
                left = records
                async for batch in reader.batches():
                    left -= len(batch)
                    if left <= 0:
                        return

        before = self._now()
        await _all(read_one(stream) for stream in _names(turn, case))
        return self._since(before, case.streams * records)

    # --- At a fixed rate

    async def deliver(self, turn: int, case: StreamCase, records: int, rate: int) -> Delivery:
        async with self._writers(turn, case) as writers, self._readers(turn, case) as readers:
            before = self._now()
            waits_s = await _Delivering(writers, readers, os.urandom(case.record_bytes)).run(records, rate)
            return Delivery(self._since(before, records), waits_s)

    # --- Many streams

    @asynccontextmanager
    async def _writers(self, turn: int, case: StreamCase) -> AsyncIterator[list[StreamWriter]]:
        """Each with one record, in a segment of its own."""
        ensemble, write_quorum, ack_quorum = case.quorum
        quorum = StreamOverrides(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        payload = os.urandom(case.record_bytes)

        @asynccontextmanager
        async def open_one(stream: str) -> AsyncIterator[StreamWriter]:
            async with self._namespace.open_writer(stream, **quorum) as writer:
                await writer.append(payload, txid=_FIRST)
                yield writer

        async with _all_open(open_one, _names(turn, case)) as writers:
            yield writers

    @asynccontextmanager
    async def _readers(self, turn: int, case: StreamCase) -> AsyncIterator[list[StreamReader]]:
        """Each at the tail of its stream, behind the one record that is there."""

        @asynccontextmanager
        async def open_one(stream: str) -> AsyncIterator[StreamReader]:
            async with self._open_reader(stream) as reader:
                await anext(reader)
                yield reader

        async with _all_open(open_one, _names(turn, case)) as readers:
            yield readers

    def _open_reader(self, stream: str) -> AbstractAsyncContextManager[StreamReader]:
        return self._namespace.open_reader(stream, idle_error_s=_ANSWER_WITHIN_S)

    async def delete(self, turn: int, case: StreamCase) -> None:
        deleting = asyncio.Semaphore(OPENING_MAX)

        async def delete_one(stream: str) -> None:
            async with deleting:
                await self._namespace.delete_stream(stream)

        await _all(delete_one(stream) for stream in _names(turn, case))

    # --- What it took

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), self.cpu_s()

    def _since(self, before: tuple[float, float, float], count: int) -> Work:
        return Work(count, *(after - began for after, began in zip(self._now(), before, strict=True)))


def _names(turn: int, case: StreamCase) -> list[str]:
    return [f"turn{turn}-{number}" for number in range(case.streams)]


async def _fill(writer: StreamWriter, payload: bytes, load: Load) -> None:
    """As many calls under way as may be. Each appends the next run when its last one is durable."""
    payloads, left = [payload] * load.call_records, load.records

    async def append() -> None:
        nonlocal left
        while left > 0:
            run = payloads[:left]
            left -= len(run)
            await writer.append_many(run)

    await _all(append() for _ in range(load.calls))


class _Delivering:
    """Records on their way from writers to readers, one of each for every stream."""

    def __init__(self, writers: Sequence[StreamWriter], readers: Sequence[StreamReader], payload: bytes) -> None:
        self._writers, self._readers, self._payload = writers, readers, payload
        self._due_s: dict[int, float] = {}  # By txid.
        self._waits_s: list[float] = []

    async def run(self, records: int, rate: int) -> list[float]:
        """The seconds from when each record was due until its reader had it."""
        streams = len(self._writers)
        appends: list[asyncio.Task[DLSN]] = []

        def append(due_s: float) -> None:
            number = len(appends)
            txid = _FIRST + 1 + number
            self._due_s[txid] = due_s
            appends.append(asyncio.create_task(self._writers[number % streams].append(self._payload, txid=txid)))

        await _all(
            [
                at_rate(records, rate, append),
                *(
                    self._follow(reader, len(range(place, records, streams)))
                    for place, reader in enumerate(self._readers)
                ),
            ]
        )
        await asyncio.gather(*appends)
        return self._waits_s

    async def _follow(self, reader: StreamReader, left: int) -> None:
        while left:
            batch = await reader.read_many(left)
            now_s, left = time.perf_counter(), left - len(batch)
            self._waits_s += [now_s - self._due_s[record.txid] for record in batch]


@asynccontextmanager
async def _all_open(
    open_one: Callable[[str], AbstractAsyncContextManager[T]], names: Sequence[str]
) -> AsyncIterator[list[T]]:
    """All of them, for the block. Only some are opened or closed at the same time."""
    turn, closing, loop = asyncio.Semaphore(OPENING_MAX), asyncio.Event(), asyncio.get_running_loop()

    async def hold(name: str, opened: "asyncio.Future[T]") -> None:
        async with AsyncExitStack() as stack:
            async with turn:
                try:
                    opened.set_result(await stack.enter_async_context(open_one(name)))
                except QuireError as error:
                    opened.set_exception(error)
                    return
            await closing.wait()
            async with turn:
                await stack.aclose()

    handles = {name: loop.create_future() for name in names}
    holding = [asyncio.create_task(hold(name, handle)) for name, handle in handles.items()]
    try:
        yield list(await asyncio.gather(*handles.values()))
    finally:
        closing.set()
        await asyncio.gather(*holding)


async def _all(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Do all of it at once. If one fails the others end, too, and its error is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
