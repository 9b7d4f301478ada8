"""Bugs that streams could have, each as a patch around a simulation.

Nothing of this is ever part of what is shipped. `FLAWS` says for each which workload meets it, and within how many
seeds.

One bug of this kind cannot do harm here: a writer that goes on after it was told that its ledger is fenced. It has to
begin another segment, and the versions of the stream's nodes refuse that.
"""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partialmethod
from typing import Any, cast
from unittest.mock import patch

from quire.codec.stream_metadata.segment import encode_segment, segment_name
from quire.codec.stream_metadata.tree import encode_max_lssn
from quire.errors import NoSuchNode
from quire.ledger.client import LedgerClient
from quire.metadata import ANY_VERSION, Create, HeldLock, Set
from quire.protocol import segments as segment_rules
from quire.stream import nodes, removal, retention
from quire.stream.append_rules import never_sent
from quire.stream.decoding import Decoder
from quire.stream.entry_source import EntrySource
from quire.stream.nodes import GuardedNodes
from quire.stream.outlet import Outlet
from quire.stream.reader import StreamReader
from quire.stream.record_queue import Call
from quire.stream.segment_writer import SegmentWriter
from quire.stream.segments import StreamSegments
from quire.stream.start import Places
from quire.stream.truncation import first_place
from quire.types import DLSN, EntryId, Lssn, SlotId
from tests.simulation.harness import Flaw, Patch
from tests.simulation.streams.workloads import WORKLOADS

# --- Taking over


@contextmanager
def recovery_that_does_not_fence() -> Iterator[None]:
    """Whoever takes over reads how far the old writer came, and lets it go on."""
    recover, opened = StreamSegments._recover, LedgerClient.open
    depth = 0

    @asynccontextmanager
    async def open_only(self: Any, ledger_id: Any, **options: Any) -> AsyncIterator[Any]:
        if depth:
            options["recover"] = False
        async with opened(self, ledger_id, **options) as reader:
            yield reader

    async def recover_gently(self: Any, *args: Any) -> None:
        nonlocal depth
        depth += 1
        try:
            await recover(self, *args)
        finally:
            depth -= 1

    with patch.object(LedgerClient, "open", open_only), patch.object(StreamSegments, "_recover", recover_gently):
        yield


def segments_listed_behind_the_claim() -> Patch:
    """Whoever takes over looks for segments to recover when it has claimed the stream, so perhaps much later."""

    async def recover(self: Any, password: bytes, lock: Any = None) -> int:
        await self._guarded.claim(lock)
        self._known = await self.nodes.segments_for_writer()
        for stored in [known for known in self._known if known.segment.completion is None]:
            await self._recover(stored, password)
        txids = [done.segment.completion.last_txid for done in self._known if done.segment.completion is not None]
        return int(max([self._guarded.max_txid, *txids]))

    return patch.object(StreamSegments, "recover", recover)


@contextmanager
def claims_without_the_lock() -> Iterator[None]:
    """A client that was overtaken while it opened a stream claims it again, whether or not it still has the lock."""
    claim = GuardedNodes.claim

    async def claim_anyway(self: Any, lock: Any = None) -> None:
        await claim(self, None)

    async def prove(self: Any, store: Any) -> None:
        pass

    with patch.object(GuardedNodes, "claim", claim_anyway), patch.object(HeldLock, "prove", prove):
        yield


def versions_taken_over_unseen() -> Patch:
    """After a lost answer the nodes are taken as they are, whoever wrote them last."""

    async def find_out(self: Any, guards: Any, sets: Any, proof: Any, ends_s: float) -> Any:
        for guard in guards:
            node = await self.nodes.store.get(guard.path)
            guard.data, guard.version, guard.writes = node.data, node.stat.version, node.stat.writes
        try:
            return ANY_VERSION if proof is None else (await self.nodes.store.get(proof[0])).stat.version
        except NoSuchNode:
            return ANY_VERSION

    return patch.object(GuardedNodes, "_find_out", find_out)


def nodes_without_compare_and_swap() -> Patch:
    """Whoever writes a stream's nodes last is right."""
    return patch.object(nodes, "Set", lambda path, data, _: Set(path, data, ANY_VERSION))


def segments_that_stay_allocated() -> Patch:
    """A segment begins, and its ledger stays noted as one that nobody has: the next one to begin deletes it."""

    async def begin(self: Any, segment: Any) -> Any:
        name, data = segment_name(segment), encode_segment(segment)
        path = self.nodes.paths.segment(name)
        version = await self._commit(
            [Create(path, data)], {self._lssn.path: encode_max_lssn(segment.lssn)}, (path, data)
        )
        return nodes.StoredSegment(name, segment, version)

    return patch.object(GuardedNodes, "begin", begin)


# --- Deleting


def deletion_that_does_not_fence() -> Patch:
    """A stream is deleted under a writer that does not know that its lock is lost, and goes on."""

    async def fence_writer(self: Any) -> Any:
        return await self._segment_names()

    return patch.object(removal._Removal, "_fence_writer", fence_writer)


# --- Rolling


def roll_that_does_not_drain() -> Patch:
    """The next segment takes over while entries of the old one are in flight."""

    async def is_drained(self: Any, segment: Any) -> bool:
        return True

    return patch.object(Outlet, "_is_drained", is_drained)


def roll_that_does_not_wait() -> Patch:
    """Records are sent to the old segment until the very end, behind what it is completed with."""
    return patch.object(Outlet, "_is_held", property(lambda self: False, lambda self, _: None), create=True)


def rolled_with_an_old_txid() -> Patch:
    """The next segment begins with a txid that is below what went into the old one: whoever searches is led astray."""
    begin_with = StreamSegments.begin_with

    async def begin(self: Any, prepared: Any, first_txid: int, settings: Any) -> Any:
        known = [stored.segment.first_txid for stored in self._known if stored.segment.completion is None]
        return await begin_with(self, prepared, min([*known, first_txid]), settings)

    return patch.object(StreamSegments, "begin_with", begin)


# --- Acknowledging


def acknowledges_what_is_sent() -> Patch:
    """A record is acknowledged before its ledger has acknowledged the entry."""
    push = SegmentWriter._push

    def push_and_tell(self: Any, runs: Any, slots: Any, *args: Any, **options: Any) -> None:
        entry_id = EntryId(self._ledger.last_add_pushed + 1)
        push(self, runs, [], *args, **options)
        for call, slot, count in slots:
            call.on_acknowledged(self.lssn, entry_id, slot, count)

    return patch.object(SegmentWriter, "_push", push_and_tell)


def acknowledges_half_a_call() -> Patch:
    """A call is acknowledged with the first of its entries, though others are not."""

    def on_acknowledged(self: Any, lssn: Any, entry_id: Any, first_slot: int, count: int) -> None:
        if not self.done.done():
            places = range(first_slot, first_slot + (self.members or len(self.payloads)))
            self.done.set_result([DLSN(lssn, entry_id, SlotId(slot)) for slot in places])

    return patch.object(Call, "on_acknowledged", on_acknowledged)


def refuses_what_was_sent() -> Patch:
    """Of records in flight it is said that nothing was sent, when their segment breaks off."""
    error = SegmentWriter.error
    return patch.object(SegmentWriter, "error", lambda self: never_sent("s", error(self)))


# --- Reading


def reader_that_leaves_an_open_ledger() -> Patch:
    """A reader goes on to the next segment as soon as there is one, though entries of this one may be to come."""
    original = EntrySource._segment_runs

    async def segment_runs(self: Any, segment: Any, first: EntryId) -> AsyncGenerator[Any]:
        async with aclosing(original(self, segment, first)) as runs:
            async for run in runs:
                yield run
                await self._index.refresh()
                if segment.completion is None and Lssn(segment.lssn + 1) in self._index:
                    self._end = self._next
                    return

    return patch.object(EntrySource, "_segment_runs", segment_runs)


def reader_that_begins_one_slot_late() -> Patch:
    """Whoever begins at a place gets what is behind it."""
    init = Decoder.__init__

    def begin_late(self: Any, *, start: DLSN, **options: Any) -> None:
        init(self, start=start.next_slot(), **options)

    return patch.object(Decoder, "__init__", begin_late)


def position_of_the_record_itself() -> Patch:
    """A reader's position is that of the last record, which is shown again to whoever goes on there."""
    position = _position_of()
    return patch.object(
        StreamReader, "position", property(lambda self: self._given.dlsn if self._given else position(self))
    )


def position_behind_the_entry() -> Patch:
    """A reader's position is the next entry, whatever is left of the one that it reads."""
    position = _position_of()
    return patch.object(
        StreamReader,
        "position",
        property(lambda self: self._given.dlsn.next_entry() if self._given else position(self)),
    )


def _position_of() -> Callable[[StreamReader], DLSN]:
    position = cast(property, inspect.getattr_static(StreamReader, "position"))
    return cast(Callable[[StreamReader], DLSN], position.fget)


def latest_is_the_next_segment() -> Patch:
    """Whoever wants what is new misses the rest of the open segment."""

    async def latest(self: Any) -> DLSN:
        return first_place(Lssn((self._index.last or 0) + 1))

    return patch.object(Places, "_latest", latest)


def truncated_is_passed_over() -> Patch:
    """A reader whose place is gone goes on with what is left, and does not say so."""
    return patch.object(Places, "_admit", partialmethod(_admit_anywhere, Places._admit))


async def _admit_anywhere(self: Any, original: Any, at: DLSN, skip_truncated: bool) -> Any:
    return await original(self, at, True)


# --- Truncating and purging


def truncation_that_hides_too_much() -> Patch:
    """The record at the place itself goes, too."""
    truncate = segment_rules.truncate
    return patch.object(retention, "truncate", lambda segments, dlsn: truncate(segments, dlsn.next_slot()))


def purge_of_the_last_completed_segment() -> Patch:
    """Nothing is left that says where sequence ids go on."""

    def purge(segments: Any, is_expired: Any, truncated_only: bool) -> list[Any]:
        purged: list[Any] = []
        for segment in segments:
            done = segment.completion
            if done is None or (truncated_only and not segment.is_truncated) or not is_expired(segment, done):
                break
            purged.append(segment)
        return purged

    return patch.object(segment_rules, "_purge", purge)


FLAWS = [
    Flaw(recovery_that_does_not_fence, WORKLOADS["streams/rivals"], 40),
    Flaw(segments_listed_behind_the_claim, WORKLOADS["streams/takeovers"], 40),
    Flaw(claims_without_the_lock, WORKLOADS["streams/takeovers"], 40),
    Flaw(deletion_that_does_not_fence, WORKLOADS["streams/remade"], 40),
    Flaw(versions_taken_over_unseen, WORKLOADS["streams/lost_answers"], 80),
    Flaw(nodes_without_compare_and_swap, WORKLOADS["streams/rivals"], 80),
    Flaw(segments_that_stay_allocated, WORKLOADS["streams/rolling"], 40),
    Flaw(roll_that_does_not_drain, WORKLOADS["streams/rolling"], 40),
    Flaw(roll_that_does_not_wait, WORKLOADS["streams/rolling"], 40),
    Flaw(rolled_with_an_old_txid, WORKLOADS["streams/rolling"], 40),
    Flaw(acknowledges_what_is_sent, WORKLOADS["streams/failover"], 40),
    Flaw(acknowledges_half_a_call, WORKLOADS["streams/rolling"], 40),
    Flaw(refuses_what_was_sent, WORKLOADS["streams/rivals"], 40),
    Flaw(reader_that_leaves_an_open_ledger, WORKLOADS["streams/tailing"], 120),
    Flaw(reader_that_begins_one_slot_late, WORKLOADS["streams/tailing"], 40),
    Flaw(position_of_the_record_itself, WORKLOADS["streams/tailing"], 40),
    Flaw(position_behind_the_entry, WORKLOADS["streams/tailing"], 40),
    Flaw(latest_is_the_next_segment, WORKLOADS["streams/tailing"], 40),
    Flaw(truncated_is_passed_over, WORKLOADS["streams/truncation"], 40),
    Flaw(truncation_that_hides_too_much, WORKLOADS["streams/truncation"], 40),
    Flaw(purge_of_the_last_completed_segment, WORKLOADS["streams/purging"], 80),
]
