"""Who writes and reads through proxies in these tests, and notes what it was told: for the same proof as in a
simulation (`tests/support/streams/served_history.py`)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import QuireError
from quire.rpc.serving.results import error_of
from quire.types import DLSN, EntryId, Lssn, SlotId
from tests.support.servers.served_cluster import Asking, ProxyProcess, Served
from tests.support.streams.served_history import Followed, History, Written


class Author:
    """Appends numbered records to one stream, and notes what becomes of them."""

    def __init__(self, history: History, stream: str) -> None:
        self.written = Written(f"author{len(history.written)}", stream)
        history.written.append(self.written)
        self.dlsns: list[DLSN] = []

    async def append(self, writer: Any, count: int = 1) -> list[DLSN]:
        """Raises why it failed, after that was noted."""
        payloads = self.written.payloads(count)
        try:
            dlsns: list[DLSN] = await writer.append_many(payloads)
        except QuireError as error:
            self.written.on_failed(payloads, error)
            raise
        self.written.on_stored(payloads, dlsns)
        self.dlsns += dlsns
        return dlsns

    async def write_to(self, asking: Asking, proxy: ProxyProcess, **options: Any) -> pb.Result:
        """One record to a proxy of one's choice. Returns what it said."""
        (payload,) = payloads = self.written.payloads(1)
        try:
            answer = await asking.write(proxy, self.written.stream, payload, **options)
        except QuireError as error:
            result = asking.said(error)
        else:
            result, first = answer.result, answer.placed[0].first
            dlsn = DLSN(Lssn(first.lssn), EntryId(first.entry_id), SlotId(first.slot_id))
            self.written.on_stored(payloads, [dlsn])
            self.dlsns.append(dlsn)
            return result
        self.written.on_failed(payloads, error_of(result))
        return result

    @asynccontextmanager
    async def writing(self, writer: Any) -> AsyncIterator[None]:
        """One record after the other, while the block runs. All of them have to succeed."""
        stop = asyncio.Event()

        async def keep_on() -> None:
            while not stop.is_set():
                await self.append(writer)
                await asyncio.sleep(0)

        task = asyncio.create_task(keep_on())
        try:
            yield
        finally:
            stop.set()
            await task


@asynccontextmanager
async def following(history: History, client: Any, stream: str) -> AsyncIterator[Followed]:
    """A reader from the beginning of a stream, which has come to its end when the block is left: seal it inside."""
    followed = Followed(f"reader{len(history.followed)}", stream)
    history.followed.append(followed)

    async def follow() -> None:
        async with client.open_reader(stream) as reader:
            async for batch in reader.batches():
                followed.records += batch

    task = asyncio.create_task(follow())
    try:
        yield followed
        async with asyncio.timeout(60):
            await task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def proven(served: Served, history: History) -> None:
    """All streams of a history are what their authors and readers were told."""
    for stream in sorted({written.stream for written in history.written}):
        history.prove(stream, await served.stored(stream))
