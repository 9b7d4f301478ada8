"""A log in a folder, as tests of Spark see it beside Spark."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.sinks import SinkBatch
from quire.spark.client_cache import Access, borrowed
from quire.stream.info import StreamInfo
from quire.stream.staging import some_at_once, sweep
from quire.stream.staging_commit import commit_staged


class FolderLog:
    """What is in it now."""

    def __init__(self, uri: str, access: Access) -> None:
        self.uri, self.access = uri, access

    def info(self, stream: str) -> StreamInfo:
        return self.access.run(self.access.namespace.stream_info(stream))

    def exists(self, stream: str) -> bool:
        return self.access.run(self.access.namespace.stream_exists(stream))

    def records(self, stream: str) -> list[LogRecord]:
        """Those that are confirmed. That none came for a while is not enough to know that there are no more."""
        return self.access.run(self._records(stream))

    def payloads(self, stream: str) -> list[str]:
        return [record.payload.decode() for record in self.records(stream)]

    async def _records(self, stream: str) -> list[LogRecord]:
        found: list[LogRecord] = []
        async with asyncio.timeout(60), self.access.namespace.open_reader(stream) as reader:
            while (records := await reader.read_many(10_000, timeout_s=0.5)) or not reader.statistics().at_tail:
                found += records
        return found

    def append(self, stream: str, payload: bytes) -> None:
        async def append() -> None:
            async with self.access.namespace.open_writer(stream) as writer:
                await writer.append(payload)

        self.access.run(append())

    def stamps(self, stream: str) -> set[tuple[int, int | None]]:
        """What the metadata store noted beside the nodes of segments: one for each transaction that made some.

        That is etcd's revision, or ZooKeeper's time, in milliseconds.
        """
        context, names = self.access.namespace.context, self.nodes(stream, "ledgers")

        async def stamped(name: str) -> tuple[int, int | None]:
            stat = (await context.store.get(context.paths(stream).segment(name))).stat
            return stat.version, stat.created_ms

        return set(self.access.run(some_at_once(stamped, names)))

    def complete(self, stream: str) -> None:
        """Own the stream for a moment, as the next writer would: what the one before left open is completed."""
        namespace = self.access.namespace
        settings = namespace.settings_for(stream, lock_timeout_s=120.0)  # A session has to end first.
        nobodys = SinkBatch("nobody", 0, "none")
        self.access.run(commit_staged(namespace.context, stream, nobodys, [], settings))

    def nothing_is_left(self, stream: str) -> bool:
        """Whether a sweep leaves no ledger that is in none of the streams, and none to be swept in this one.

        Of a task that Spark killed, because another one failed, nobody heard.
        """
        context = self.access.namespace.context
        self.access.run(sweep(context, stream, older_than_s=0))
        streams = self.access.run(self.access.namespace.list_streams())
        segments = {segment.ledger_id for each in streams for segment in self.info(each).segments}

        async def scan() -> set[int]:
            return {each async for each in context.ledgers.scan()}

        return self.nodes(stream, "staged") == [] and self.access.run(scan()) <= segments

    def nodes(self, stream: str, kind: str) -> list[str]:
        context = self.access.namespace.context

        async def children() -> list[str]:
            path = f"{context.paths(stream).root}/{kind}"
            return [] if await context.store.exists(path) is None else list((await context.store.children(path)).names)

        return self.access.run(children())


@contextmanager
def folder_log(folder: Path) -> Iterator[FolderLog]:
    uri = f"file:{folder}"
    with borrowed(uri) as access:
        yield FolderLog(uri, access)
