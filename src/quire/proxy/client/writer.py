"""A writer of a stream, through the proxy that owns it. There may be as many as you like, in any number of programs.

    dlsn = await writer.append(b"paid")                      # durable when it returns
    dlsns = await writer.append_many([b"a", b"b", b"c"])     # one wait for all of them

Records of several writers come in some order; those of one writer in the order of its appends, whatever becomes of the
proxies meanwhile. With producer ids, which are on unless told otherwise, each is stored once.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.compression import Compression
from quire.codec.stream.record_sets import encode_record_set
from quire.errors import AppendCancelled, HandleClosed, InvalidArgument, RecordTooLarge
from quire.proxy.client.appends import Append, BatchRules, Outbox
from quire.proxy.client.lane import late_error
from quire.proxy.client.requests import Requests
from quire.proxy.client.settings import ProxyClientSettings
from quire.proxy.client.writing import Writing
from quire.rpc.serving.methods import HEARTBEAT, SEAL, TRUNCATE
from quire.rpc.serving.results import dlsn_message
from quire.runtime import Runtime
from quire.runtime.opening import Opened
from quire.stream.append_rules import check_txids, checked_records
from quire.stream.settings import StreamSettings
from quire.stream.statistics import WriterStatistics
from quire.types import DLSN

_CODECS: Final = {"none": Compression.NONE, "lz4": Compression.LZ4}
_PRODUCER_BYTES: Final = 16


class ProxyWriter(Opened):
    """A stream that is being written, by us among others. Made by `open_proxy_writer`."""

    def __init__(
        self,
        writing: Writing,
        requests: Requests,
        outbox: Outbox,
        stream: str,
        settings: StreamSettings,
        *,
        last_txid: int,
    ) -> None:
        self.stream = stream
        self._writing, self._requests, self._outbox, self._settings = writing, requests, outbox, settings
        self._append_timeout_s = writing.settings.append_timeout_s
        self._lane = writing.join(stream, outbox)
        self._open: dict[Append, None] = {}  # In the order of appending.
        self._opened_txid = last_txid
        self._is_open, self._is_closed = True, False

    # --- What is known

    @property
    def last_txid(self) -> int:
        """The highest txid in the stream, as far as its owner told this writer; others may have written since."""
        return max(self._opened_txid, self._outbox.last_txid)

    def statistics(self) -> WriterStatistics:
        outbox = self._outbox
        return WriterStatistics(
            records=outbox.records,
            bytes=outbox.bytes,
            waiting_records=outbox.open_records,
            in_flight_entries=outbox.parcels,
            lssn=None if outbox.last_dlsn is None else outbox.last_dlsn.lssn,
            segment_bytes=0,  # The owner knows, and others write, too.
            rolls=max(0, outbox.segments - 1),
            last_txid=self.last_txid,
            last_dlsn=outbox.last_dlsn,
        )

    # --- Appending

    async def append(self, payload: bytes, *, txid: int | None = None) -> DLSN:
        """Append one record and return its place once it is durable on an ack quorum of bookies.

        Without a txid the stream's owner gives it one: the time in milliseconds, or the last txid if that is higher.
        Raises `RecordTooLarge`, `TxidOutOfOrder`, `HandleClosed`, `StreamSealed`, `NoSuchStream`, `AppendCancelled`,
        and when time is up `StreamUnavailable` or `OverCapacity` (nothing was stored), or `AppendOutcomeUnknown` (the
        record may be in the stream). A cancelled append may be in the stream too.
        """
        return (await self.append_many((payload,), txids=None if txid is None else (txid,)))[0]

    async def append_many(self, payloads: Sequence[bytes], *, txids: Sequence[int] | None = None) -> list[DLSN]:
        """Append records in this order. As `append`, with one wait for all of them.

        They may be any number. If they are more than a batch takes (`batch_bytes_max`, `batch_records_max`), they are
        sent in several: other writers' records may come between those. When one of them fails behind others that are
        stored, that is `AppendOutcomeUnknown`, and none behind it is stored.
        """
        records = checked_records(payloads)
        if txids is not None:
            if len(txids) != len(records):
                raise InvalidArgument(
                    f"{len(records)} records have {len(txids)} txids", hint="Give one for each, or none."
                )
            check_txids(self.stream, txids, last_txid=0)
        if not records:
            return []
        return await self._push(records, txids)

    async def append_set(
        self, payloads: Sequence[bytes], *, txid: int | None = None, compression: str = "none"
    ) -> list[DLSN]:
        """Append records as one record set: they share one header and one txid, and are compressed together.

        Readers take it apart, so that they see records like others. Raises what `append` raises. What is more than a
        batch takes (`batch_bytes_max`, `batch_records_max`) becomes several sets, sent one after the other like the
        batches of `append_many`; without a txid each of them gets its own.
        """
        members = checked_records(payloads)
        if not members:
            return []
        try:
            codec = _CODECS[compression]
        except KeyError as error:
            raise InvalidArgument(f"compression {compression!r} does not exist", hint="Use 'none' or 'lz4'.") from error
        runs = self._runs(members)
        try:
            sets = [encode_record_set(run, compression=codec) for run in runs]
        except InvalidArgument as error:
            raise RecordTooLarge(f"stream {self.stream!r}: {error}", stream=self.stream) from error
        txids = None if txid is None else [txid] * len(sets)
        return await self._push(sets, txids, members=[len(run) for run in runs])

    def _runs(self, members: Sequence[bytes]) -> list[list[bytes]]:
        """What goes into one set each."""
        client = self._writing.settings
        runs, size_bytes = [list[bytes]()], 0
        for member in members:
            size_bytes += len(member)
            if runs[-1] and (size_bytes > client.batch_bytes_max or len(runs[-1]) >= client.batch_records_max):
                runs.append([])
                size_bytes = len(member)
            runs[-1].append(member)
        return runs

    async def _push(
        self, records: Sequence[bytes], txids: Sequence[int] | None, *, members: Sequence[int] = ()
    ) -> list[DLSN]:
        self._check_open()
        deadline_s = asyncio.get_running_loop().time() + self._append_timeout_s
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._outbox.wait_room()
        except TimeoutError as error:
            raise late_error(self.stream, self._lane.problem, self._append_timeout_s) from error
        self._check_open()  # That may have taken its time.
        append = Append(records, txids, members=members, deadline_s=deadline_s, on_over=self._on_over)
        self._open[append] = None
        self._writing.push(self._lane, self._outbox, append)
        return await append.done

    def _on_over(self, append: Append) -> None:
        del self._open[append]

    async def flush(self) -> None:
        """Wait until everything that was appended so far is acknowledged, or has failed. Nothing has to be told to be
        sent: it is, as soon as there is room."""
        for append in list(self._open):
            await append.wait_over()

    # --- Changing the stream

    async def truncate(self, before: DLSN) -> int:
        """Hide all records before this place from readers. Returns how many segments changed.

        Records of the open segment stay visible until it is completed. Nothing is deleted by this: retention does that.
        """
        self._check_open()
        request = pb.TruncateRequest(
            namespace=self._writing.namespace, stream=self.stream, before=pb.Position(dlsn=dlsn_message(before))
        )
        answer = await self._requests.to_owner(TRUNCATE, request, self.stream, timeout_s=self._settings.call_timeout_s)
        return int(answer.segments)

    async def seal(self) -> None:
        """End the stream: readers stop behind its last record, and nothing can be appended any more. For ever.

        What this writer has appended is stored before. Raises `ProxyOutcomeUnknown`: then it may have ended.
        """
        self._check_open()
        await self.flush()
        request = pb.StreamRequest(namespace=self._writing.namespace, stream=self.stream)
        timeout_s = self._settings.call_timeout_s
        await self._requests.to_owner(SEAL, request, self.stream, timeout_s=timeout_s, attempt_timeout_s=timeout_s)

    # --- Closing

    def _check_open(self) -> None:
        if not self._is_open:
            raise HandleClosed(f"the writer of stream {self.stream!r} was closed", stream=self.stream)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and nothing of it waits any more."""
        return self._is_closed

    async def aclose(self, *, drain: bool = True) -> None:
        """Let go of the stream. What waits is sent first, with `drain`; else it is refused.

        The stream stays with its owner: other writers go on. A second call waits for the first one.
        """
        await self._closed_by(self._leave(drain=drain))

    async def _leave(self, *, drain: bool) -> None:
        self._is_open = False
        self._outbox.wake_all()
        if not drain:
            error = AppendCancelled(f"the writer of stream {self.stream!r} was closed", stream=self.stream)
            self._lane.refuse_waiting(self._outbox, error)
        await self.flush()
        if not self._is_closed:
            self._is_closed = True
            self._writing.leave(self._lane, self._outbox)


@asynccontextmanager
async def open_proxy_writer(
    runtime: Runtime,
    writing: Writing,
    requests: Requests,
    stream: str,
    settings: StreamSettings,
) -> AsyncIterator[ProxyWriter]:
    """A writer of a stream, for the block. Some proxy owns the stream before it begins, and can write it.

    Raises `NoSuchStream` unless the stream may be created, `StreamUnavailable` and `ProxyUnreachable` if no proxy takes
    it in time, and what the owner says.
    """
    client: ProxyClientSettings = writing.settings
    heartbeat = pb.HeartbeatRequest(
        namespace=writing.namespace, stream=stream, create_if_missing=settings.create_if_missing
    )
    answer = await requests.to_owner(HEARTBEAT, heartbeat, stream, timeout_s=settings.call_timeout_s)
    rules = BatchRules(
        may_repeat=client.producer_ids or client.at_least_once,
        create_if_missing=settings.create_if_missing,
        in_flight_max=settings.in_flight_entries,
        batch_bytes=client.batch_bytes,
        batch_bytes_max=client.batch_bytes_max,
        batch_records_max=client.batch_records_max,
        records_max=settings.window_records_max,
        bytes_max=settings.window_bytes_max,
    )
    new_id = (lambda: runtime.rng.bytes(_PRODUCER_BYTES)) if client.producer_ids else None
    outbox = Outbox(rules, new_id=new_id)
    writer = ProxyWriter(writing, requests, outbox, stream, settings, last_txid=answer.last_txid)
    try:
        yield writer
    except BaseException:
        await writer.aclose(drain=False)
        raise
    else:
        await writer.aclose()
