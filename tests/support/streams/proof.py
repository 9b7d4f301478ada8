"""The proof that a stream kept its promises, from what its clients were told and what is stored in the end.

    await check(context, "orders", history)

Call it when everything was repaired and nobody writes any more: all segments are completed. Invariants:
  NothingLost         each acknowledged record is at its place, with its payload and its txid.
  NothingInvented     nothing is in the stream that nobody appended.
  NotAppliedIsAbsent  what was refused is not in the stream.
  OnceEach            no record is there twice.
  OrderKept           what ended before something else was called is before it, whoever called; records of one call
                      follow each other; of one whose outcome is unknown there is a beginning, or nothing.
  TxidsNeverDecrease  along the stream.
  FencedBySuccessors  a writer is shut out by those only who were opened after it, or at the same time.
  OneOwnerPerLssn     all records of a segment come from one writer.
  ChainIsSound        segments follow each other without a gap, and say what their ledgers hold; `allocation` has no
                      ledger that a segment has; ledgers that nobody has are not more than what may have left them.
  MetadataReadable    each node of the stream can be decoded.
  AllReadersAgree     what a reader was shown is a piece of the stream without gaps or repeats, from where it began.
  PositionsSurvive    whoever goes on at a position that a reader gave misses nothing and sees nothing twice.
  TruncatedAsAsked    what was asked for is hidden, nothing else is, and hidden records are not shown any more.
  SealedIsTheEnd      nothing is behind the end of a stream, and readers end there.
"""

import heapq
import itertools

from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.segment import Segment
from quire.codec.stream_metadata.tree import (
    check_layout_version,
    decode_allocation,
    decode_max_lssn,
    decode_max_txid,
    decode_subscription,
)
from quire.errors import NoSuchNode, QuireError
from quire.stream.context import StreamContext
from quire.types import DLSN, EntryId, Lssn, SlotId
from tests.support.streams.history import NEVER, Call, StreamHistory
from tests.support.streams.proof_of_reading import Hidden, check_readings
from tests.support.streams.stored import StoredStream, last_known, read_stored


async def check(context: StreamContext, stream: str, history: StreamHistory, *, ledgers_left_max: int = 0) -> None:
    """Prove the invariants. Raises `AssertionError` with what is wrong.

    Ledgers of purged segments have to be there again: see `read_stored`. `ledgers_left_max` ledgers may be nobody's.
    """
    assert not history.violations, str(history.violations)
    there, gone = last_known(history)
    stored = await read_stored(context.ledgers, there | gone)
    await prove(context, stream, history, stored, ledgers_left_max=ledgers_left_max)


async def prove(
    context: StreamContext, stream: str, history: StreamHistory, stored: StoredStream, *, ledgers_left_max: int
) -> None:
    """The same for what is stored already known."""
    there, _ = last_known(history)
    assert not stored.unreadable, f"ChainIsSound: the ledgers of segments {stored.unreadable} are gone"
    check_records(history, stored)
    check_order(history, stored)
    check_fences(history)
    check_chain(stored)
    check_changes(history)
    hidden = Hidden(history, stored)
    check_truncations(history, stored, hidden)
    check_readings(history, stored, hidden)
    await check_nodes(context, stream, stored, there, ledgers_left_max)
    check_txids(stored)


# --- Records


def check_records(history: StreamHistory, stored: StoredStream) -> None:
    found: dict[bytes, LogRecord] = {}
    for record in stored.records:
        assert record.payload not in found, (
            f"OnceEach: {record.payload!r} is at {found[record.payload].dlsn} and at {record.dlsn}"
        )
        found[record.payload] = record
    sent = {payload: call for call in history.calls for payload in call.payloads}
    for payload in found:
        assert payload in sent, f"NothingInvented: {payload!r} at {found[payload].dlsn} was never appended"
    for call in history.calls:
        _check_call(call, found)
    for before, after in itertools.pairwise(stored.records):
        assert before.txid <= after.txid, f"TxidsNeverDecrease: {before.txid} at {before.dlsn}, {after.txid} behind it"
    owners: dict[Lssn, int] = {}
    for record in stored.records:
        owner, handle = owners.setdefault(record.dlsn.lssn, sent[record.payload].handle), sent[record.payload].handle
        assert owner == handle, f"OneOwnerPerLssn: writers {owner} and {handle} both wrote to {record.dlsn.lssn}"
    acknowledged: dict[Lssn, int] = {}
    for call in history.calls:
        for dlsn in call.dlsns or ():
            owner = acknowledged.setdefault(dlsn.lssn, call.handle)
            assert owner == call.handle, f"OneOwnerPerLssn: {owner} and {call.handle} were acknowledged in {dlsn.lssn}"


def _check_call(call: Call, found: dict[bytes, LogRecord]) -> None:
    present = [payload in found for payload in call.payloads]
    if call.refused:
        assert not any(present), (
            f"NotAppliedIsAbsent: {call.payloads} is in the stream, and was refused: {call.refused}"
        )
        return
    if call.dlsns is not None:
        assert len(call.dlsns) == len(call.payloads), f"NothingLost: {len(call.dlsns)} places for {call.payloads}"
        for payload, dlsn in zip(call.payloads, call.dlsns, strict=True):
            assert payload in found, f"NothingLost: {payload!r} was acknowledged at {dlsn}, and is not there"
            assert found[payload].dlsn == dlsn, (
                f"NothingLost: {payload!r} was acknowledged at {dlsn}, and is at {found[payload].dlsn}"
            )
    assert present == sorted(present, reverse=True), f"OrderKept: of {call.payloads} a part is missing: {present}"
    assert not call.is_set or all(present) or not any(present), f"OrderKept: half a record set: {call.payloads}"
    for place, payload in enumerate(call.payloads):
        if payload in found and call.txids is not None:
            wanted = call.txids[0 if call.is_set else place]
            assert found[payload].txid == wanted, f"NothingLost: txid {wanted} became {found[payload].txid}"


def check_order(history: StreamHistory, stored: StoredStream) -> None:
    index = {record.payload: place for place, record in enumerate(stored.records)}
    spans: list[tuple[int, int, Call]] = []  # Where the records of each call are, for calls of which any are there.
    for call in history.calls:
        places = [index[payload] for payload in call.payloads if payload in index]
        if places:
            assert places == list(range(places[0], places[0] + len(places))), (
                f"OrderKept: others came between the records of one call: {call.payloads} at {places}"
            )
            spans.append((places[0], places[-1], call))
    # What ended before this one was called, and lies farthest.
    ended: list[tuple[int, int]] = []
    farthest = -1
    for first, last, call in sorted(spans, key=lambda span: span[2].called):
        while ended and ended[0][0] < call.called:
            farthest = max(farthest, heapq.heappop(ended)[1])
        assert farthest < first, (
            f"OrderKept: {stored.records[farthest].payload!r} at {stored.records[farthest].dlsn} had ended before "
            f"{call.payloads[0]!r} was called, and that is at {stored.records[first].dlsn}"
        )
        if call.ended != NEVER:
            heapq.heappush(ended, (call.ended, last))
    latest: dict[tuple[int, int], int] = {}  # One appender waits for each call, cancelled or not, before the next.
    for first, last, call in spans:
        appender = (call.handle, call.appender)
        assert latest.get(appender, -1) < first, f"OrderKept: {call.payloads} overtook calls of its own appender"
        latest[appender] = last
    if history.sealed != NEVER:
        assert stored.is_sealed, "SealedIsTheEnd: somebody was told that the stream has ended, and it has not"
        late = [call.payloads for _, _, call in spans if call.called > history.sealed]
        assert not late, f"SealedIsTheEnd: {late} were appended to a stream that had ended"


def check_fences(history: StreamHistory) -> None:
    for handle in history.handles:
        if handle.fenced != NEVER:
            others = [each for each in history.handles if each is not handle and each.settled > handle.asked]
            assert any(each.asked < handle.fenced for each in others), (
                f"FencedBySuccessors: writer {handle.number} was shut out, and no other was opened since"
            )


# --- Segments


def check_chain(stored: StoredStream) -> None:
    lssns = list(stored.segments)
    assert lssns == list(range(1, len(lssns) + 1)), f"ChainIsSound: segments {lssns}"
    total = 0
    for lssn, segment in stored.segments.items():
        done, records = segment.completion, stored.all_records[lssn]
        assert done is not None, f"ChainIsSound: segment {lssn} is not completed"
        counted = [record for record in records if not record.is_control]
        users = [record for record in counted if not record.is_end_of_stream]
        assert segment.start_sequence_id == total, (
            f"ChainIsSound: segment {lssn} begins with sequence id {segment.start_sequence_id}, not {total}"
        )
        assert done.record_count == len(users), (
            f"ChainIsSound: segment {lssn} says {done.record_count} records, and has {len(users)}"
        )
        assert [record.position for record in users] == list(range(1, len(users) + 1)), (
            f"ChainIsSound: positions in segment {lssn} are {[record.position for record in users]}"
        )
        nowhere = DLSN(lssn, EntryId(-1), SlotId(-1))
        places = {each[-1].dlsn for each in (counted, records) if each} | ({nowhere} if not counted else set())
        assert done.last_dlsn in places, f"ChainIsSound: segment {lssn} ends at {done.last_dlsn}, not in {places}"
        wanted = records[-1].txid if records else segment.first_txid
        assert done.last_txid == wanted, f"ChainIsSound: segment {lssn} has txids to {wanted}, not {done.last_txid}"
        total += len(users)
    ends = [lssn for lssn, records in stored.all_records.items() if any(record.is_end_of_stream for record in records)]
    assert ends in ([], lssns[-1:]), f"SealedIsTheEnd: segments {ends} have an end, of {len(lssns)}"


def check_txids(stored: StoredStream) -> None:
    """Segments tell txids apart: searching relies on that."""
    last_txid = 0
    for lssn, segment in stored.segments.items():
        done = segment.completion
        assert done is not None
        assert last_txid <= segment.first_txid <= done.last_txid, (
            f"TxidsNeverDecrease: segment {lssn} has {segment.first_txid} to {done.last_txid}, behind {last_txid}"
        )
        users = [record for record in stored.all_records[lssn] if not record.is_control]
        assert all(record.txid >= segment.first_txid for record in users), f"TxidsNeverDecrease: in segment {lssn}"
        last_txid = done.last_txid


def check_changes(history: StreamHistory) -> None:
    """Each segment begins once, is completed once, and changes by truncation only."""
    known: dict[Lssn, Segment] = {}
    for change in history.changes:
        old, new = known.get(change.lssn), change.segment
        if old is None:
            assert new is not None, f"ChainIsSound: segment {change.lssn} went before it came"
            assert new.completion is None, f"ChainIsSound: segment {change.lssn} was never in progress"
            assert change.lssn == max(known, default=0) + 1, f"ChainIsSound: {change.lssn} began after {max(known)}"
            known[change.lssn] = new
        elif new is None:
            assert old.completion is not None, f"ChainIsSound: segment {change.lssn} was removed in progress"
        else:
            assert (old.ledger_id, old.first_txid) == (new.ledger_id, new.first_txid), (
                f"ChainIsSound: segment {change.lssn} became another one: {old}, {new}"
            )
            if old.completion is None:
                below = [lssn for lssn, segment in known.items() if lssn < new.lssn and segment.completion is None]
                assert not below, f"ChainIsSound: {new.lssn} was completed before {below}"
            else:
                assert old.completion == new.completion, f"ChainIsSound: {change.lssn} was completed twice"
                assert (old.truncation.value, old.min_active) <= (new.truncation.value, new.min_active), (
                    f"TruncatedAsAsked: what was hidden of segment {change.lssn} came back: {old}, {new}"
                )
            known[change.lssn] = new


def check_truncations(history: StreamHistory, stored: StoredStream, hidden: Hidden) -> None:
    """What was asked for is hidden; what nobody asked for is not, unless it was so old that it was purged."""
    asked = max((truncation.before for truncation in history.truncations), default=DLSN(Lssn(0), EntryId(0), SlotId(0)))
    for record in stored.records:
        segment = stored.segments[record.dlsn.lssn]
        is_hidden = segment.is_truncated or (segment.is_partially_truncated and record.dlsn < segment.min_active)
        assert record.dlsn < asked or not is_hidden, f"TruncatedAsAsked: {record.dlsn} is hidden, {asked} was asked for"
    completed: dict[Lssn, int] = {}
    for change in history.changes:
        if change.segment is not None and change.segment.completion is not None:
            completed.setdefault(change.lssn, change.moment)
        elif change.segment is None:
            _check_purge(history, stored, change.lssn, change.wall_ms, asked)
    for truncation in history.truncations:
        if truncation.answered == NEVER:
            continue
        for place in range(hidden.index(NEVER), len(stored.records)):
            dlsn = stored.records[place].dlsn
            if dlsn >= truncation.before or completed.get(dlsn.lssn, NEVER) > truncation.asked:
                break
            raise AssertionError(f"TruncatedAsAsked: {dlsn} is not hidden, {truncation.before} was asked for")


def _check_purge(history: StreamHistory, stored: StoredStream, lssn: Lssn, wall_ms: int, asked: DLSN) -> None:
    segment = stored.segments[lssn]
    assert segment.completion is not None
    done = segment.completion
    is_old = history.retention_ms > 0 and done.completed_at_ms < wall_ms - history.retention_ms
    is_truncated = segment.is_truncated
    is_below = done.last_txid < history.purged_below
    assert is_old or is_truncated or is_below, f"TruncatedAsAsked: segment {lssn} was purged, and nobody asked for that"


# --- Nodes and ledgers


async def check_nodes(
    context: StreamContext, stream: str, stored: StoredStream, there: dict[Lssn, Segment], ledgers_left_max: int
) -> None:
    paths, store = context.paths(stream), context.store
    try:
        check_layout_version((await store.get(paths.version)).data)
        max_lssn = decode_max_lssn((await store.get(paths.segments)).data)
        max_txid = decode_max_txid((await store.get(paths.max_txid)).data)
        allocated = decode_allocation((await store.get(paths.allocation)).data)
        for name in await _children(context, paths.subscribers):
            decode_subscription((await store.get(paths.subscriber(name))).data)
    except QuireError as error:
        raise AssertionError(f"MetadataReadable: {error!r}") from error
    assert max_lssn == max(stored.segments, default=0), f"ChainIsSound: the highest LSSN is said to be {max_lssn}"
    txids = [done.last_txid for segment in stored.segments.values() if (done := segment.completion) is not None]
    assert max_txid == max(txids, default=0), f"ChainIsSound: the highest txid is said to be {max_txid}"
    assert (max_txid == TXID_MAX) == stored.is_sealed, "SealedIsTheEnd: records and metadata do not agree"
    used = {segment.ledger_id for segment in stored.segments.values()}
    assert len(used) == len(stored.segments), "ChainIsSound: two segments have one ledger"
    assert allocated not in used, f"ChainIsSound: ledger {allocated} is allocated, and a segment has it"
    ledgers = {ledger_id async for ledger_id in context.ledgers.scan()}
    assert used & ledgers >= {segment.ledger_id for segment in there.values()}, "ChainIsSound: a ledger is gone"
    left = ledgers - used - {allocated}
    assert len(left) <= ledgers_left_max, f"ChainIsSound: ledgers {sorted(left)} are nobody's ({ledgers_left_max} may)"


async def _children(context: StreamContext, path: str) -> tuple[str, ...]:
    try:
        return (await context.store.children(path)).names
    except NoSuchNode:
        return ()
