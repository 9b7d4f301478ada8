"""Streams laid out node by node and entry by entry with our codecs: also such as no writer of today leaves behind.

Nothing here knows how a writer works. A test says which ledgers and nodes there are, and Java has to live with them.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

from quire.codec.stream.entries import decode_entry, encode_entry
from quire.codec.stream.records import LogRecord, encode_control, encode_records
from quire.codec.stream_metadata.segment import Completion, Segment, decode_segment, encode_segment, segment_name
from quire.codec.stream_metadata.tree import (
    StreamPaths,
    decode_max_lssn,
    decode_max_txid,
    encode_max_lssn,
    encode_max_txid,
)
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import MetadataStore, open_store
from quire.metadata.driver import ANY_VERSION, Create, Delete, Op, Set
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId
from tests.interop.ledger_client import Payloads
from tests.interop.stream_facts import JavaSegment, as_java
from tests.interop.stream_peer import NamespaceSite

# Every ledger of a stream is protected like this, whoever made it.
DIGEST: Final = "crc32"
PASSWORD: Final = b""

COMPLETED_AT_MS: Final = round(time.time() * 1_000)  # Not so long ago that Java would delete the segment for its age.


class _LeftBehind(Exception):
    """Ends the block of a writer whose ledger is somebody else's by now: what it is told then is of no interest."""


class RawStream:
    """One stream of a namespace. Ledgers that are left open stay so until the block of `raw_streams` ends."""

    def __init__(self, store: MetadataStore, ledgers: LedgerClient, paths: StreamPaths, stack: AsyncExitStack) -> None:
        self.store, self.ledgers, self.paths, self._stack = store, ledgers, paths, stack

    async def create(self) -> None:
        ancestors = [Create(path) for path in self.paths.ancestors()]
        await self.store.transaction(*ancestors, *(Create(path, data) for path, data in self.paths.initial_nodes()))

    # --- Ledgers

    async def ledger(self, entries: Sequence[bytes]) -> LedgerId:
        """A sealed ledger."""
        async with self.ledgers.create(digest=DIGEST, password=PASSWORD) as writer:
            for entry in entries:
                await writer.append(entry)
            return writer.id

    async def open_ledger(self, entries: Sequence[bytes]) -> LedgerId:
        """A ledger that its writer neither seals nor goes on with, until somebody recovers it.

        Each entry says that the one before it was acknowledged. That the last one was, nobody has been told.
        """
        writer = await self._stack.enter_async_context(_abandoned(self.ledgers))
        for entry in entries:
            await writer.append(entry)
        return writer.id

    async def entries(self, ledger: int) -> list[bytes]:
        """What a sealed ledger holds."""
        async with self.ledgers.open(ledger, password=PASSWORD, recover=False) as reader:
            assert reader.is_closed
            return [bytes(entry.payload) async for entry in reader.read()]

    async def records(self, segment: Segment, *, expand_sets: bool = True) -> list[LogRecord]:
        """All records of a segment whose ledger is sealed, control records included."""
        entries = await self.entries(segment.ledger_id)
        return [
            record
            for number, entry in enumerate(entries)
            for record in decode_entry(
                entry,
                lssn=segment.lssn,
                entry_id=EntryId(number),
                enveloped=segment.is_enveloped,
                expand_sets=expand_sets,
            )
        ]

    # --- Nodes

    async def data(self, path: str) -> bytes:
        return (await self.store.get(path)).data

    async def segments(self) -> dict[str, Segment]:
        """The stored segments by the names of their nodes, in the order of their LSSNs."""
        names = (await self.store.children(self.paths.segments)).names
        found = {name: decode_segment(await self.data(self.paths.segment(name))) for name in names}
        return dict(sorted(found.items(), key=lambda item: item[1].lssn))

    async def add(self, segment: Segment, *, name: str | None = None) -> None:
        """Store a segment, and what it says about the highest LSSN and txid."""
        path = self.paths.segment(name or segment_name(segment))
        await self.store.transaction(Create(path, encode_segment(segment)), *await self._highest(segment))

    async def complete(self, segment: Segment, completed: Segment) -> None:
        """Store that a segment was completed, in one step as every writer does."""
        await self.store.transaction(
            Create(self.paths.segment(segment_name(completed)), encode_segment(completed)),
            Delete(self.paths.segment(segment_name(segment)), ANY_VERSION),
            *await self._highest(completed),
        )

    async def _highest(self, segment: Segment) -> list[Op]:
        lssn = max(decode_max_lssn(await self.data(self.paths.segments)), segment.lssn)
        ops: list[Op] = [Set(self.paths.segments, encode_max_lssn(lssn), ANY_VERSION)]
        if segment.completion:
            txid = max(decode_max_txid(await self.data(self.paths.max_txid)), segment.completion.last_txid)
            ops.append(Set(self.paths.max_txid, encode_max_txid(txid), ANY_VERSION))
        return ops

    # --- Whole segments

    async def segment_of(
        self, lssn: int, payloads: Payloads, *, first_txid: int, count: int, start_sequence_id: int
    ) -> Segment:
        """A completed segment with one record an entry. Its ledger is there, its node is not."""
        ledger = await self.ledger(entries_of(payloads, first_txid=first_txid, count=count))
        begun = Segment.begun(Lssn(lssn), ledger, first_txid)
        last = Completion(first_txid + count - 1, COMPLETED_AT_MS, count, place(lssn, count - 1, 0))
        return begun.completed(last, start_sequence_id=start_sequence_id)

    async def add_full(
        self, lssn: int, payloads: Payloads, *, first_txid: int, count: int, start_sequence_id: int
    ) -> Segment:
        """The same with its node."""
        segment = await self.segment_of(
            lssn, payloads, first_txid=first_txid, count=count, start_sequence_id=start_sequence_id
        )
        await self.add(segment)
        return segment


def entries_of(
    payloads: Payloads, *, first_txid: int, count: int, control: bool = True, enveloped: bool = True
) -> list[bytes]:
    """Entries of one record each, with numbers as txids, and the control record that makes the last one visible."""
    txids = range(first_txid, first_txid + count)
    runs = [encode_records([payloads[txid]], [txid], position=at) for at, txid in enumerate(txids, start=1)]
    if control:
        runs.append(encode_control(txid=txids[-1], position=count))
    return [encode_entry([run]) if enveloped else run for run in runs]


async def check_segments(raw: RawStream, told: list[JavaSegment]) -> list[Segment]:
    """The stored segments, each of which must be to us what it is to Java, and must be what we would have stored."""
    stored = await raw.segments()
    for name, segment in stored.items():
        assert encode_segment(segment) == await raw.data(raw.paths.segment(name))
        assert segment_name(segment) == name
    assert [as_java(segment) for segment in stored.values()] == [
        # Readers of Java's give a segment in progress the sequence id that it will have.
        replace(each, start_sequence_id=0) if each.in_progress else each
        for each in told
    ]
    return list(stored.values())


def place(lssn: int, entry_id: int, slot_id: int) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


@asynccontextmanager
async def raw_streams(site: NamespaceSite) -> AsyncIterator["RawStreams"]:
    async with (
        open_store(site.ledgers) as store,
        open_ledgers(site.ledgers) as ledgers,
        AsyncExitStack() as stack,
    ):
        yield RawStreams(site, store, ledgers, stack)


class RawStreams:
    """The streams of one namespace, and its node."""

    def __init__(self, site: NamespaceSite, store: MetadataStore, ledgers: LedgerClient, stack: AsyncExitStack) -> None:
        self.site, self.store, self.ledgers, self._stack = site, store, ledgers, stack

    def stream(self, name: str) -> RawStream:
        """One that exists, or will."""
        return RawStream(self.store, self.ledgers, self.site.paths(name), self._stack)

    async def create(self, name: str) -> RawStream:
        stream = self.stream(name)
        await stream.create()
        return stream


@asynccontextmanager
async def _abandoned(ledgers: LedgerClient) -> AsyncIterator[LedgerWriter]:
    creating = ledgers.create(digest=DIGEST, password=PASSWORD)
    writer = await creating.__aenter__()
    try:
        yield writer
    finally:
        over = _LeftBehind()
        try:
            await creating.__aexit__(_LeftBehind, over, None)
        except _LeftBehind:
            pass
