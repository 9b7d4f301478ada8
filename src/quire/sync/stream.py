"""Streams for blocking code: the client, writers and readers.

A reader's records come over in whole batches and are given from there, so that one record costs next to nothing.
Records that came over and were not given yet are the reader's own: its position, what it commits, and its statistics
are those of what was given.
"""

import math
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Final, Self, Unpack

from quire.codec.stream.records import LogRecord
from quire.errors import InvalidArgument, StreamSealed
from quire.metadata import ANY_VERSION, Version
from quire.stream import client_api
from quire.stream import namespace as async_namespace
from quire.stream import reader as async_reader
from quire.stream import writer as async_writer
from quire.stream.decoding import place_after
from quire.stream.info import StreamInfo
from quire.stream.reader import LOOK_S
from quire.stream.reader_statistics import StreamReaderStatistics
from quire.stream.settings import StreamOverrides, StreamSettings
from quire.stream.start import Start, Txid
from quire.stream.statistics import WriterStatistics
from quire.sync.handles import Handle, Scope
from quire.sync.loop_thread import LoopThread
from quire.sync.mirror import mirror_of
from quire.types import DLSN

_ALL: Final = sys.maxsize


@mirror_of(async_writer.StreamWriter)
class StreamWriter(Handle):
    """A stream that is being written, by as many threads as you like. Made by `Client.open_writer`."""

    def __init__(self, thread: LoopThread, scope: Scope, writer: client_api.StreamWriter) -> None:
        super().__init__(thread, scope)
        self._writer = writer

    @property
    def stream(self) -> str:
        """Its name."""
        return self._writer.stream

    @property
    def last_txid(self) -> int:
        return self._writer.last_txid

    def statistics(self) -> WriterStatistics:
        return self._ask(self._writer.statistics)

    def append(self, payload: bytes, *, txid: int | None = None) -> DLSN:
        return self._call(lambda: self._writer.append(payload, txid=txid))

    def append_many(self, payloads: Sequence[bytes], *, txids: Sequence[int] | None = None) -> Sequence[DLSN]:
        return self._call(lambda: self._writer.append_many(payloads, txids=txids))

    def append_set(
        self, payloads: Sequence[bytes], *, txid: int | None = None, compression: str = "none"
    ) -> Sequence[DLSN]:
        return self._call(lambda: self._writer.append_set(payloads, txid=txid, compression=compression))

    def flush(self) -> None:
        self._call(self._writer.flush)

    def truncate(self, before: DLSN) -> int:
        return self._call(lambda: self._writer.truncate(before))

    def seal(self) -> None:
        self._call(self._writer.seal)

    def close(self, *, drain: bool = True) -> None:
        try:
            if not self._scope.is_closed:
                self._call(lambda: self._writer.aclose(drain=drain))
        finally:
            self._leave(None)


@mirror_of(async_reader.StreamReader)
class StreamReader(Handle):
    """One stream, read from one place on. Made by `Client.open_reader`. If several threads read, they take turns."""

    def __init__(self, thread: LoopThread, scope: Scope, reader: async_reader.StreamReader) -> None:
        super().__init__(thread, scope)
        self._reader, self._lock = reader, reader.lock
        self._turn = threading.Lock()
        self._batch: list[LogRecord] = []
        self._next = 0  # Of the batch.
        # What the position is at or behind, if not where the async reader says: that is ahead of what is in the batch.
        # One attribute, since other threads may look at any time.
        self._last: DLSN | LogRecord | None = None
        self._is_shut = False

    @property
    def stream(self) -> str:
        """Its name."""
        return self._reader.stream

    # --- Reading

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LogRecord:
        """The next record. Raises `StopIteration` at the end of a sealed stream, `ReaderIdle`, and what reading
        raises: `PositionTruncated`, `NoSuchStream`, `DamagedEntry`, `LockLost`.
        """
        if self._thread.is_inherited:
            self._thread.check_process()  # Before the lock: a thread that a fork has not may hold it for ever.
        with self._turn:
            if self._next >= len(self._batch) or self._is_stale():
                try:
                    self._fill(math.inf)
                except StreamSealed:
                    raise StopIteration from None
            batch, at = self._batch, self._next
            record = batch[at]
            self._next = at = at + 1
            self._last = record if at < len(batch) else None
            return record

    def batches(self) -> Generator[list[LogRecord]]:
        while True:
            self._thread.check_process()
            with self._turn:
                try:
                    self._fill(math.inf)
                except StreamSealed:
                    return
                batch = self._take(_ALL)
            yield batch

    def read_to_end(self) -> Generator[LogRecord]:
        end = self._call(self._reader.find_end, is_wait=True)
        while True:
            self._thread.check_process()
            with self._turn:
                self._fill_towards_end(end)
                if self._next >= len(self._batch) or self._batch[self._next].dlsn >= end:
                    return
                (record,) = self._take(1)
            yield record

    def _fill_towards_end(self, end: DLSN) -> None:
        """Return once there are records in the batch, or when there are none to come before `end`."""
        while self._next >= len(self._batch) or self._is_stale():
            if self._ask(lambda: self._reader.has_reached(end)):
                return
            try:
                self._fill(LOOK_S)
            except StreamSealed:
                return

    def read_many(self, max_records: int, *, timeout_s: float = math.inf) -> list[LogRecord]:
        if max_records < 1 or not timeout_s >= 0:
            raise InvalidArgument(f"{max_records} records within {timeout_s} s cannot be read")
        self._thread.check_process()
        with self._turn:
            self._fill(timeout_s)
            return self._take(max_records)

    def _fill(self, timeout_s: float) -> None:
        """Return once there are records in the batch, or when time is up. Raises `StreamSealed` at the end."""
        if self._next < len(self._batch) and not self._is_stale():
            return
        self._call(lambda: self._fetch(timeout_s), is_wait=True)

    def _is_stale(self) -> bool:
        """Whether what is ready may not be given: the reader is closed, or somebody else may read by now."""
        if self._lock is not None and self._lock.lost:
            self._last, self._batch, self._next = self.position, [], 0
            return True
        return self._is_shut or self._scope.is_closed

    async def _fetch(self, timeout_s: float) -> None:
        """Stored here, in the loop thread: if whoever waits is interrupted at that moment, nothing is lost."""
        at = self._last
        self._last = self._reader.position if at is None else at
        try:
            batch = await self._reader.read_many(_ALL, timeout_s=timeout_s)
        except BaseException:
            self._last = at
            raise
        self._batch, self._next = batch, 0
        if not batch:
            self._last = at

    def _take(self, count: int) -> list[LogRecord]:
        begin, end = self._next, min(len(self._batch), self._next + count)
        taken, is_whole = self._batch, begin == 0 and end == len(self._batch)
        if is_whole:
            self._batch = []  # It is the caller's now.
        else:
            taken, self._next = taken[begin:end], end
        if taken:
            self._last = taken[-1] if self._next < len(self._batch) else None
        return taken

    # --- What is known

    @property
    def position(self) -> DLSN:
        last = self._last
        if last is None:
            return self._reader.position
        return last if isinstance(last, DLSN) else place_after(last)

    def statistics(self) -> StreamReaderStatistics:
        told = self._ask(self._reader.statistics)
        waiting = len(self._batch) - self._next
        return replace(
            told, records=told.records - waiting, position=self.position, at_tail=told.at_tail and not waiting
        )

    def commit(self, position: DLSN | None = None, *, may_go_back: bool = False) -> DLSN:
        at = self.position if position is None else position
        return self._call(lambda: self._reader.commit(at, may_go_back=may_go_back))

    def close(self) -> None:
        self._is_shut = True
        self._leave(None)


@mirror_of(async_namespace.Namespace)
class Client(Handle):
    """All streams of one namespace. Made by `quire.sync.connect`."""

    def __init__(self, thread: LoopThread, scope: Scope, namespace: client_api.Client) -> None:
        super().__init__(thread, scope)
        self._namespace = namespace

    @property
    def uri(self) -> client_api.Uri:
        """Where it is."""
        return self._namespace.uri

    def settings_for(self, stream: str, **overrides: Unpack[StreamOverrides]) -> StreamSettings:
        return self._ask(lambda: self._namespace.settings_for(stream, **overrides))

    # --- Which streams there are

    def stream_exists(self, stream: str) -> bool:
        return self._call(lambda: self._namespace.stream_exists(stream))

    def list_streams(self, prefix: str = "") -> list[str]:
        return self._call(lambda: self._namespace.list_streams(prefix))

    def scan_streams(self, prefix: str = "") -> Generator[str]:
        return self._iterate(lambda: self._namespace.scan_streams(prefix))

    def watch_streams(self) -> Generator[frozenset[str]]:
        return self._iterate(self._namespace.watch_streams)

    def create_stream(self, stream: str) -> None:
        self._call(lambda: self._namespace.create_stream(stream))

    def delete_stream(self, stream: str) -> None:
        self._call(lambda: self._namespace.delete_stream(stream))

    def rename_stream(self, stream: str, new_name: str) -> None:
        self._call(lambda: self._namespace.rename_stream(stream, new_name))

    # --- One of them

    def truncate_stream(self, stream: str, *, before: DLSN | Txid) -> DLSN:
        return self._call(lambda: self._namespace.truncate_stream(stream, before=before))

    def purge_stream(self, stream: str, *, before: Txid | None = None) -> int:
        return self._call(lambda: self._namespace.purge_stream(stream, before=before))

    def seal_stream(self, stream: str) -> None:
        self._call(lambda: self._namespace.seal_stream(stream))

    def stream_info(self, stream: str, *, sizes: bool = False) -> StreamInfo:
        return self._call(lambda: self._namespace.stream_info(stream, sizes=sizes))

    def subscriptions(self, stream: str) -> dict[str, DLSN | None]:
        return self._call(lambda: self._namespace.subscriptions(stream))

    def delete_subscription(self, stream: str, subscription: str) -> None:
        self._call(lambda: self._namespace.delete_subscription(stream, subscription))

    def stream_metadata(self, stream: str) -> tuple[bytes, Version]:
        return self._call(lambda: self._namespace.stream_metadata(stream))

    def set_stream_metadata(self, stream: str, data: bytes, *, expected: Version = ANY_VERSION) -> None:
        self._call(lambda: self._namespace.set_stream_metadata(stream, data, expected=expected))

    # --- Writing and reading

    def open_writer(self, stream: str, **overrides: Unpack[StreamOverrides]) -> StreamWriter:
        return self._open(
            lambda: self._namespace.open_writer(stream, **overrides), StreamWriter, f"the writer of stream {stream!r}"
        )

    def open_reader(
        self,
        stream: str,
        *,
        start: Start | str = "earliest",
        subscription: str | None = None,
        exclusive: bool = False,
        skip_truncated: bool = False,
        **overrides: Unpack[StreamOverrides],
    ) -> StreamReader:
        return self._open(
            lambda: self._namespace.open_reader(
                stream,
                start=start,
                subscription=subscription,
                exclusive=exclusive,
                skip_truncated=skip_truncated,
                **overrides,
            ),
            StreamReader,
            f"the reader of stream {stream!r}",
        )

    # --- Its end

    def close(self) -> None:
        self._leave(None)
