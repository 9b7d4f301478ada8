"""Small batches as single entries: found again by their tags, whatever was lost behind them."""

import asyncio
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from tests.support.streams.cluster import SETTINGS, StreamCluster
from tests.unit.stream.test_staging import CLIENT, batch, on_stream, read, staged, texts

from quire.codec.stream.sink_tags import decode_sink_tag, encode_sink_tag
from quire.codec.stream_metadata.sinks import UNNAMED, SinkBatch, SinkState, decode_sink, encode_sink
from quire.errors import (
    AppendCancelled,
    AppendOutcomeUnknown,
    DamagedEntry,
    DamagedMetadata,
    InvalidArgument,
    PositionTruncated,
    RecordTooLarge,
    SinkTaken,
    TxidOutOfOrder,
)
from quire.metadata import ANY_VERSION
from quire.stream import staging_commit, staging_sinks
from quire.stream.archiving import archive_stream
from quire.stream.cold_moves import drop_hot
from quire.stream.context import StreamContext
from quire.stream.ownership import open_stream_writer
from quire.stream.segments import StreamSegments
from quire.stream.staging_commit import commit_staged
from quire.stream.staging_inline import InlineSink, open_inline_sink
from quire.stream.staging_sinks import caught_up, read_sink
from quire.stream.start import Txid
from quire.stream.upkeep import purge_stream
from quire.testing import sim_tree
from quire.types import DLSN, EntryId, Lssn, SlotId


async def append(context: StreamContext, which: SinkBatch, *words: str) -> bool:
    async with open_inline_sink(context, "s", SETTINGS) as sink:
        return (await sink.commit(which, [word.encode() for word in words], None)).is_new


async def state(context: StreamContext, which: SinkBatch) -> SinkState:
    return (await read_sink(context.store, context.paths("s"), which)).state


def test_batches_are_entries_of_one_segment_and_readers_do_not_see_the_tags() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_inline_sink(context, "s", SETTINGS) as sink:
            for number, words in enumerate((["a", "b"], [], ["c"])):
                done = await sink.commit(batch(number), [word.encode() for word in words], None)
                assert done.is_new
                assert not (await sink.commit(batch(number), [b"again"], None)).is_new
        assert [record.dlsn for record in await read(context, 3)] == [
            DLSN(Lssn(1), EntryId(0), SlotId(1)),
            DLSN(Lssn(1), EntryId(0), SlotId(2)),
            DLSN(Lssn(1), done.last.entry_id if done.last else EntryId(-1), SlotId(1)),
        ]
        assert await texts(context, 3) == ["a", "b", "c"]
        assert (await state(context, batch(2))).since is None, "everything is told by the node"
        assert not await append(context, batch(1), "x")

    on_stream(check)


def test_a_batch_whose_note_was_lost_is_found_by_its_tag() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        await append(context, batch(0), "a")
        path = (await read_sink(context.store, context.paths("s"), batch(0))).path
        before = await state(context, batch(0))
        since = replace(before, since=DLSN(Lssn(2), EntryId(0), SlotId(0)))
        await append(context, batch(1), "b", "c")
        await context.store.set(path, encode_sink(since), expected=ANY_VERSION)
        assert not await append(context, batch(1), "b", "c")
        assert (await state(context, batch(1))).batch == 1
        await context.store.set(path, encode_sink(since), expected=ANY_VERSION)
        part = await staged(context, batch(1), "b", "c", txid=1)
        assert not (await commit_staged(context, "s", batch(1), [part], SETTINGS)).is_new
        assert await texts(context, 3) == ["a", "b", "c"]

    on_stream(check)


def test_both_kinds_of_batches_take_turns() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        for number in range(6):
            if number % 2:
                assert await append(context, batch(number), f"{number}")
            else:
                part = await staged(context, batch(number), f"{number}", txid=context.runtime.clock.wall_ms())
                assert (await commit_staged(context, "s", batch(number), [part], SETTINGS)).is_new
        assert await texts(context, 6) == [f"{number}" for number in range(6)]
        with pytest.raises(SinkTaken):
            await append(context, batch(2, "another"), "x")

    on_stream(check)


def test_lost_answers_are_found_out() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        tree = sim_tree(cluster.cluster)
        for number in range(6):
            async with open_inline_sink(context, "s", SETTINGS) as sink:
                tree.lose_answers(CLIENT, 1 + number % 3)
                await sink.commit(batch(number), [f"{number}".encode()], None)
                tree.repair()
            assert not await append(context, batch(number), "again")
        assert await texts(context, 6) == [f"{number}" for number in range(6)]

    on_stream(check, seeds=2)


def test_a_batch_that_is_too_large_for_an_entry_is_refused() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_inline_sink(context, "s", SETTINGS) as sink:
            with pytest.raises(RecordTooLarge):
                await sink.commit(batch(0), [b"x" * 600_000] * 2, None)
            assert (await sink.commit(batch(0), [b"x"], None)).is_new

    on_stream(check)


def test_a_sink_can_tell_that_another_client_waits_for_its_stream() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async def write() -> None:
            async with open_stream_writer(context, "s", SETTINGS) as writer:
                await writer.append(b"at last")

        async with open_inline_sink(context, "s", SETTINGS) as sink:
            await sink.commit(batch(0), [b"a"], None)
            assert not await sink.is_wanted()
            other = asyncio.create_task(write())
            async with asyncio.timeout(60), context.store.watch_children(context.paths("s").lock) as queue:
                while not await sink.is_wanted():
                    await queue.wait_changed()
        await other
        assert await texts(context, 2) == ["a", "at last"]

    on_stream(check)


def test_tags_are_read_for_as_long_as_it_takes_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: a writer left two batches of which the node does not tell. To read their tags takes longer than a commit
    may, and the commit that does so fails in the end; the next one has nothing left to read.
    """
    catch_up, reads = caught_up, 0

    async def slowly(*args: Any) -> SinkState:
        nonlocal reads
        reads += 1
        await asyncio.sleep(10 * SETTINGS.call_timeout_s)
        return await catch_up(*args)

    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_inline_sink(context, "s", SETTINGS) as sink:
            await sink.commit(batch(0), [b"a"], [5])
            lose_notes(sink, monkeypatch)
            for number in (1, 2):
                await sink.commit(batch(number), [b"b"], [5])
        assert ((found := await state(context, batch(0))).batch, found.since) == (
            0,
            DLSN(Lssn(1), EntryId(1), SlotId(0)),
        )
        monkeypatch.setattr(staging_commit, "caught_up", slowly)
        for _ in range(2):
            part = await staged(context, batch(3), "c", txid=4)
            with pytest.raises(TxidOutOfOrder):
                await commit_staged(context, "s", batch(3), [part], SETTINGS)
            assert ((found := await state(context, batch(0))).batch, found.since) == (2, None)
        assert reads == 1
        assert not (await commit_staged(context, "s", batch(2), [], SETTINGS)).is_new

    on_stream(check)


def test_what_was_purged_before_it_was_looked_at_is_not_guessed() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        for number in range(3):
            await append(context, batch(number), f"{number}")
        path = (await read_sink(context.store, context.paths("s"), batch(0))).path
        old = replace(await state(context, batch(0)), batch=0, since=DLSN(Lssn(1), EntryId(1), SlotId(0)))
        await context.store.set(path, encode_sink(old), expected=ANY_VERSION)
        nodes = cluster.nodes(context, "s")
        first = (await nodes.all_segments())[0]
        await context.ledgers.delete(first.segment.ledger_id)
        await nodes.remove(first)
        with pytest.raises(PositionTruncated, match="purged before the sink looked"):
            await append(context, batch(2), "2")
        await asyncio.sleep(0)

    on_stream(check)


def lose_notes(sink: InlineSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on it is as if the process ended behind each entry, before the node was written."""

    async def lost(*_: object) -> None:
        pass

    monkeypatch.setattr(sink, "_note", lost)


def test_a_batch_that_was_cancelled_under_way_is_in_doubt_until_another_writer_has_looked() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_inline_sink(context, "s", SETTINGS) as sink:
            await sink.commit(batch(0), [b"a"], None)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.0005):
                    await sink.commit(batch(1), [b"b"], None)
            assert sink.is_over
            with pytest.raises(AppendCancelled, match="whether batch 1 of sink 'sink' is in stream 's' is not known"):
                await sink.commit(batch(1), [b"b"], None)
        assert (await state(context, batch(1))).since is not None, "nobody knows, so tags have to be read"
        assert not await append(context, batch(1), "b")
        assert await append(context, batch(2), "c")
        assert await texts(context, 3) == ["a", "b", "c"]

    on_stream(check)


def test_a_batch_whose_outcome_is_unknown_is_in_doubt_though_the_writer_could_go_on() -> None:
    """Method: no bookie's answer arrives, and then everything works again before the sink is closed."""

    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_inline_sink(context, "s", SETTINGS) as sink:
            await sink.commit(batch(0), [b"a"], None)
            for bookie in cluster.bookies:
                cluster.sim.network.partition(bookie.host.name, CLIENT, one_way=True)
            with pytest.raises(AppendOutcomeUnknown):
                await sink.commit(batch(1), [b"b"], None)
            cluster.sim.network.heal()
            assert sink.is_over
        assert (await state(context, batch(1))).since is not None
        await append(context, batch(1), "b")
        await append(context, batch(2), "c")
        assert await texts(context, 3) == ["a", "b", "c"]

    on_stream(check)


def test_tags_of_batches_that_are_known_do_not_move_a_sink_back() -> None:
    """Also if another query's numbers went on behind them."""

    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        await append(context, batch(0), "a")
        part = await staged(context, batch(1, "next"), "b", txid=context.runtime.clock.wall_ms())
        assert (await commit_staged(context, "s", batch(1, "next"), [part], SETTINGS)).is_new
        stored = await read_sink(context.store, context.paths("s"), batch(1))
        low = replace(stored.state, since=DLSN(Lssn(1), EntryId(0), SlotId(0)))
        await context.store.set(stored.path, encode_sink(low), expected=ANY_VERSION)
        assert not await append(context, batch(1, "next"), "b")
        assert await texts(context, 2) == ["a", "b"]

    on_stream(check)


def test_tags_are_read_from_the_number_on_that_a_forgotten_segment_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: somebody began a segment, and its ledger is gone, as an interrupted recovery of Apache's leaves it."""

    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"a", txid=1)
        nodes = cluster.nodes(context, "s")
        segments = StreamSegments(context, await nodes.guarded(context.runtime.clock, timeout_s=10))
        await segments.recover(SETTINGS.password)
        begun = await segments.begin(1, SETTINGS)
        await begun.resources.aclose()
        await context.ledgers.delete(begun.ledger.id)
        async with open_inline_sink(context, "s", SETTINGS) as sink:
            lose_notes(sink, monkeypatch)
            done = await sink.commit(batch(0), [b"b"], None)
            assert done.first is not None
            assert done.first.lssn == begun.stored.segment.lssn
        assert not await append(context, batch(0), "b")
        assert await texts(context, 2) == ["a", "b"]

    on_stream(check)


def test_segments_stay_hot_while_a_sink_has_to_look_for_tags_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        await append(context, batch(0), "a")
        async with open_inline_sink(context, "s", SETTINGS) as sink:
            await sink.commit(batch(1), [b"b"], None)
            lose_notes(sink, monkeypatch)
            await sink.commit(batch(2), [b"c"], None)
        for _ in range(2):
            async with open_stream_writer(context, "s", SETTINGS) as writer:
                await writer.append(b"another's")
        await archive_stream(context, "s", "memory:sinks", settings=SETTINGS)
        with monkeypatch.context() as patch:
            patch.setattr(staging_sinks, "caught_up_to", unreadable)
            assert await drop_hot(context, "s") == [1], "batch 2 is told of in segment 2 only"
        assert not await append(context, batch(2), "c")
        assert await drop_hot(context, "s") == [2, 3], "now the node tells of it"

    on_stream(check)


async def unreadable(*_: object) -> NoReturn:
    raise DamagedEntry("it cannot be read")


def test_what_a_killed_query_left_untold_does_not_keep_segments_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lets go of segments notes first what they tell. Method: a query is killed before it notes its last batch;
    others write on, while its segment is dropped, then purged; and it comes back with that batch.
    """

    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        sink = SinkBatch("a/b", 2, "q")
        async with open_inline_sink(context, "s", SETTINGS) as inline:
            await inline.commit(replace(sink, number=1), [b"b"], [1])
            lose_notes(inline, monkeypatch)
            await inline.commit(sink, [b"c"], [2])
        for number in (3, 4):
            async with open_stream_writer(context, "s", SETTINGS) as writer:
                await writer.append(b"another's", txid=number)
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"under way", txid=5)
            await archive_stream(context, "s", "memory:sinks", settings=SETTINGS)
            assert await drop_hot(context, "s") == [1, 2]
            found = await state(context, sink)
            assert (found.batch, found.since) == (2, DLSN(Lssn(4), EntryId(0), SlotId(0))), "as far as it is completed"
            await purge_stream(context, context.paths("s"), Txid(4), SETTINGS)
        assert not (await commit_staged(context, "s", sink, [], SETTINGS)).is_new
        assert (await commit_staged(context, "s", replace(sink, number=3), [], SETTINGS)).is_new

    on_stream(check)


def test_what_a_killed_query_left_untold_is_noted_before_it_is_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_inline_sink(context, "s", SETTINGS) as inline:
            await inline.commit(batch(0), [b"a"], [1])
            lose_notes(inline, monkeypatch)
            await inline.commit(batch(1), [b"b"], [2])
        for number in (3, 4):
            async with open_stream_writer(context, "s", SETTINGS) as writer:
                await writer.append(b"another's", txid=number)
        assert await purge_stream(context, context.paths("s"), Txid(4), SETTINGS) == 2
        for number, is_new in ((1, False), (2, True)):
            assert (await commit_staged(context, "s", batch(number), [], SETTINGS)).is_new == is_new

    on_stream(check)


# --- Formats


def test_a_tag_says_what_it_was_given() -> None:
    for tag in (SinkBatch("s", 7, "q"), SinkBatch("ñ/ø", transaction="t" * 200), SinkBatch("s", UNNAMED, "", "x")):
        assert decode_sink_tag(encode_sink_tag(tag)) == tag
    assert decode_sink_tag(b"control") is None
    for damaged in (b"QSK1", encode_sink_tag(SinkBatch("s", 7, "q"))[:-1], b"QSK1" + bytes(14)):
        with pytest.raises(DamagedEntry):
            decode_sink_tag(damaged)


def test_a_sinks_node_says_what_it_was_given() -> None:
    place = DLSN(Lssn(1), EntryId(2), SlotId(3))
    given = SinkState("q", 4, ("a", "b"), place, place, None, "token")
    assert decode_sink(encode_sink(given)) == given
    for damaged in (b"", b"{}", b"[]", b'{"v":2}', encode_sink(given).replace(b'"batch":4', b'"batch":"4"')):
        with pytest.raises(DamagedMetadata):
            decode_sink(damaged)


@pytest.mark.parametrize(("sink", "number", "name"), [("", 1, ""), ("..", 1, ""), ("s", -1, ""), ("s", 1, "t")])
def test_a_batch_has_a_sink_and_either_number_or_name(sink: str, number: int, name: str) -> None:
    with pytest.raises(InvalidArgument):
        SinkBatch(sink, number, transaction=name)
