"""What a new owner finds out about the producers of its stream: from control records, backwards from the stream's end.

A node of the stream says whether it ever had a producer, so that all other streams cost one look. It is made before the
first tag is written, and holds the LSSN of the segment in which that is. While it is there, owners write a snapshot
every so many entries and bytes, whether or not anything changed: so the way back to the last one is short.

    <stream>/<default>/producers       decimal: no segment before this one has tags

Invariants:
  MarkedFirst       there is no tag in a stream without the node.
  ReadToSnapshot    everything behind the `from` of the last snapshot is read, or behind the node's segment; or else
                    everything that is younger than producers are remembered for.
"""

from typing import Final, NamedTuple

from quire.codec.damage import decimal, utf8
from quire.codec.stream.entries import decode_entry
from quire.codec.stream.producers import ProducerSnapshot, ProducerTag, decode_producers
from quire.codec.stream.records import CONTROL, LogRecord
from quire.codec.stream_metadata.segment import Segment
from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import NodeExists, NoSuchLedger, NoSuchNode
from quire.ledger.reading.reader import LedgerReader
from quire.metadata import MetadataStore
from quire.protocol.producers import AGE_MS_MAX, ProducerTable
from quire.stream.context import StreamContext
from quire.stream.nodes import StreamNodes
from quire.stream.settings import StreamSettings
from quire.types import DLSN, EntryId, Lssn, ProducerRun

_LOOK_BACK: Final = 32  # Entries that are read at first; then twice as many, while they are small.
_LOOK_BACK_MAX: Final = 1024
_LOOK_BACK_BYTES: Final = 4 << 20
_AGE_SLACK_MS: Final = 3600 * 1000  # Clocks of owners differ.


class _Tagged(NamedTuple):
    """A tag, and where the records are that it tells of."""

    tag: ProducerTag
    place: DLSN


class Scanned(NamedTuple):
    """How much was read."""

    entries: int
    size_bytes: int


def producers_path(paths: StreamPaths) -> str:
    return f"{paths.root}/producers"


async def read_mark(store: MetadataStore, paths: StreamPaths) -> Lssn | None:
    """The first segment that may have tags; None if the stream has none."""
    try:
        data = (await store.get(producers_path(paths))).data
    except NoSuchNode:
        return None
    what = "first segment with producers"
    return Lssn(decimal(utf8(data, what), what, low=0))


async def mark(store: MetadataStore, paths: StreamPaths, epoch: Lssn) -> None:
    """Say that the stream has producers from this segment on. Fine if that was said before."""
    try:
        await store.create(producers_path(paths), b"%d" % epoch)
    except NodeExists:
        pass


async def read_producers(
    context: StreamContext, stream: str, settings: StreamSettings, table: ProducerTable
) -> Scanned | None:
    """Fill the table with all that the stream says; None if it never had a producer.

    All segments are completed, and nobody else writes the stream. Raises what reading metadata and ledgers raises.
    """
    paths = context.paths(stream)
    first = await read_mark(context.store, paths)
    if first is None:
        return None
    now_ms = context.runtime.clock.wall_ms()
    look = _BackwardLook()
    for stored in reversed(await StreamNodes(context.store, paths).all_segments()):
        segment = stored.segment
        done = segment.completion
        if done is None:
            continue  # Ours, just begun: there is nothing in it.
        is_old = done.completed_at_ms < now_ms - AGE_MS_MAX - _AGE_SLACK_MS
        if segment.lssn < first or is_old or look.is_past(segment.lssn):
            break
        try:
            async with context.ledgers.open(segment.ledger_id, password=settings.password) as ledger:
                await look.read(ledger, segment)
        except NoSuchLedger:
            break  # It was purged, and so were all before it.
    if look.snapshot is not None:
        table.restore(look.snapshot.producers)
    for tag, place in reversed(look.tags):
        table.replay(tag.producer, ProducerRun(tag.first_seq, tag.records, place), now_ms=now_ms)
    table.forget_old(now_ms)
    return Scanned(look.entries, look.size_bytes)


class _BackwardLook:
    """Entries from the end of a stream backwards, until the last snapshot and all that belongs to it are found."""

    def __init__(self) -> None:
        self.snapshot: ProducerSnapshot | None = None
        self.tags: list[_Tagged] = []  # The last one first.
        self.entries = self.size_bytes = 0

    def is_past(self, lssn: Lssn, entry_id: EntryId | None = None) -> bool:
        """Whether what the snapshot leaves out is read, when this place, or this whole segment, is next."""
        if self.snapshot is None:
            return False
        since_lssn, since_entry = self.snapshot.since
        return lssn < since_lssn or (lssn == since_lssn and entry_id is not None and entry_id < since_entry)

    async def read(self, ledger: LedgerReader, segment: Segment) -> None:
        end, batch = ledger.last_add_confirmed + 1, _LOOK_BACK
        while end > 0 and not self.is_past(segment.lssn, EntryId(end - 1)):
            begin = max(0, end - batch)
            entries = [entry async for entry in ledger.read(begin, end - 1)]
            read_bytes = sum(len(entry.payload) for entry in entries)
            for entry_id, payload in reversed(entries):
                if self.is_past(segment.lssn, entry_id):
                    return
                self.entries += 1
                self.size_bytes += len(payload)
                self._on_records(
                    decode_entry(payload, lssn=segment.lssn, entry_id=entry_id, enveloped=segment.is_enveloped)
                )
            end = begin
            if 2 * read_bytes <= _LOOK_BACK_BYTES:
                batch = min(2 * batch, _LOOK_BACK_MAX)
            else:
                batch = max(1, batch * _LOOK_BACK_BYTES // max(1, 2 * read_bytes))

    def _on_records(self, records: list[LogRecord]) -> None:
        for record in reversed(records):
            found = decode_producers(record.payload) if record.flags & CONTROL else None
            if isinstance(found, ProducerTag):
                self.tags.append(_Tagged(found, record.dlsn.next_slot()))
            elif isinstance(found, ProducerSnapshot) and self.snapshot is None:
                self.snapshot = found
