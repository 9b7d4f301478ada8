"""Staged ledgers: published all at once and once only, or deleted, and never both."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from tests.support.streams.cluster import SETTINGS, StreamCluster, stream_cluster

from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.sinks import (
    NODE_NAMES_MAX,
    UNNAMED,
    UNNAMED_MAX,
    SinkBatch,
    encode_sink,
    name_nodes,
)
from quire.errors import (
    NoSuchStream,
    RequestTooLarge,
    SinkFull,
    SinkTaken,
    StagedGone,
    StreamOwned,
    StreamSealed,
    TxidOutOfOrder,
)
from quire.metadata import Create, MetadataStore
from quire.stream import staging, staging_commit
from quire.stream.context import StreamContext
from quire.stream.creation import create_stream
from quire.stream.nodes import GuardedNodes
from quire.stream.ownership import open_stream_writer
from quire.stream.reader import open_stream_reader
from quire.stream.removal import delete_stream
from quire.stream.renaming import rename_stream
from quire.stream.staging import StagedSegment, discard, stage, staged_names, sweep
from quire.stream.staging_commit import commit_staged
from quire.stream.staging_inline import open_inline_sink
from quire.stream.staging_sinks import known_names, read_sink
from quire.testing import Simulation, sim_tree, simulate
from quire.types import DLSN, EntryId, Lssn, SlotId

CLIENT = "client"
Check = Callable[[StreamCluster, StreamContext], Awaitable[None]]


def on_stream(check: Check, *, seeds: int = 1) -> None:
    """Run `check` with an empty stream `s`, as a client on a host of its own."""

    async def main(sim: Simulation) -> None:
        async with stream_cluster(sim) as cluster:

            async def act() -> None:
                async with cluster.context(CLIENT) as context:
                    await create_stream(context.store, context.paths("s"), context.runtime.rng)
                    await check(cluster, context)

            await sim.host(CLIENT).spawn(act())

    for seed in range(seeds):
        simulate(seed, main, time_limit_s=3000)


def batch(number: int, query: str = "q") -> SinkBatch:
    return SinkBatch("sink", number, query)


async def staged(context: StreamContext, which: SinkBatch, *texts: str, txid: int = 1) -> StagedSegment:
    async with stage(context, "s", SETTINGS, which) as staging:
        await staging.append_many([text.encode() for text in texts], [txid] * len(texts))
    assert staging.segment is not None
    return staging.segment


async def read(context: StreamContext, count: int) -> list[LogRecord]:
    async with asyncio.timeout(60), open_stream_reader(context, "s", SETTINGS, start="earliest") as reader:
        return [await anext(reader) for _ in range(count)]


async def texts(context: StreamContext, count: int) -> list[str]:
    return [record.payload.decode() for record in await read(context, count)]


async def ledgers(context: StreamContext) -> set[int]:
    return {ledger async for ledger in context.ledgers.scan()}


def test_segments_appear_in_their_order_with_all_that_a_writer_would_store() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append_many([b"before", b"it"], txids=[3, 3])
        settings = replace(SETTINGS, entry_bytes=60)
        async with stage(context, "s", settings, batch(0)) as staging:
            await staging.append_many([b"a" * 30, b"b" * 30, b"c"], [5, 6, 7])
        second = await staged(context, batch(0), "d", txid=7)
        assert staging.segment is not None
        assert (staging.segment.records, staging.segment.first_txid, staging.segment.last_txid) == (3, 5, 7)
        done = await commit_staged(context, "s", batch(0), [staging.segment, second], SETTINGS)
        assert done == (True, DLSN(Lssn(2), EntryId(0), SlotId(0)), DLSN(Lssn(3), EntryId(0), SlotId(0)))
        segments = [stored.segment for stored in await cluster.nodes(context, "s").all_segments()]
        assert [segment.lssn for segment in segments] == [1, 2, 3]
        assert [segment.start_sequence_id for segment in segments] == [0, 2, 5]
        facts = [segment.completion for segment in segments[1:] if segment.completion is not None]
        assert [(each.last_txid, each.record_count, each.last_dlsn[1:]) for each in facts] == [
            (7, 3, (2, 0)),
            (7, 1, (0, 0)),
        ]
        assert await cluster.nodes(context, "s").max_txid() == 7
        assert await staged_names(context.store, context.paths("s")) == ()
        records = await read(context, 6)
        assert [record.position for record in records] == [1, 2, 1, 2, 3, 1]
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            assert writer.last_txid == 7
            assert (await writer.append(b"behind", txid=7)).lssn == 4

    on_stream(check)


def test_a_batch_that_comes_again_is_recognised_and_its_new_ledgers_go() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        for _ in range(3):
            again = await staged(context, batch(0), "a", "b")
            left = await staged(context, batch(0), "of an attempt that nobody heard of")
            done = await commit_staged(context, "s", batch(0), [again], SETTINGS)
        assert not done.is_new
        assert done.last == DLSN(Lssn(1), EntryId(0), SlotId(1))
        assert await texts(context, 2) == ["a", "b"]
        assert len(await ledgers(context)) == 1
        assert left.ledger not in await ledgers(context)
        older = await staged(context, batch(0), "older")
        await commit_staged(context, "s", batch(7), [await staged(context, batch(7), "c")], SETTINGS)
        assert older.ledger not in await ledgers(context)
        assert not (await commit_staged(context, "s", batch(3), [], SETTINGS)).is_new

    on_stream(check)


def test_an_empty_batch_counts() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        assert await commit_staged(context, "s", batch(0), [], SETTINGS) == (True, None, None)
        assert await commit_staged(context, "s", batch(0), [], SETTINGS) == (False, None, None)
        async with stage(context, "s", SETTINGS, batch(1)) as staging:
            pass
        assert staging.segment is None
        assert await ledgers(context) == set()
        assert await staged_names(context.store, context.paths("s")) == ()

    on_stream(check)


def test_batches_with_names_are_recognised_by_them() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        for name, is_new in (("monday", True), ("tuesday", True), ("monday", False)):
            which = SinkBatch("sink", transaction=name)
            assert (await commit_staged(context, "s", which, [], SETTINGS)).is_new == is_new

    on_stream(check)


def test_a_name_that_comes_again_with_other_rows_is_refused() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        monday = SinkBatch("sink", transaction="monday", rows="rows")
        await commit_staged(context, "s", monday, [await staged(context, monday, "a")], SETTINGS)
        assert not (await commit_staged(context, "s", monday, [await staged(context, monday, "a")], SETTINGS)).is_new
        others = replace(monday, rows="other rows")
        with pytest.raises(
            SinkTaken, match="transaction 'monday' of sink 'sink' is in the stream with other rows"
        ) as no:
            await commit_staged(context, "s", others, [await staged(context, others, "b")], SETTINGS)
        assert "another `txnId`" in no.value.hint
        assert await texts(context, 1) == ["a"]
        assert await known_names(context.store, context.paths("s"), "sink") == {monday.digest}
        plain = SinkBatch("sink", transaction="monday")
        assert not (await commit_staged(context, "s", plain, [], SETTINGS)).is_new, "what rows it has was not said"

    on_stream(check)


def test_a_name_is_known_however_many_batches_came_after_it() -> None:
    """Those without a name are as many as their own node keeps, and more; those with one are in many nodes."""

    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async def is_new(which: SinkBatch) -> bool:
            return (await commit_staged(context, "s", which, [], SETTINGS)).is_new

        names = [SinkBatch("sink", transaction=f"day-{number}") for number in range(300)]
        assert all([await is_new(name) for name in names])
        for number in range(UNNAMED_MAX + 10):
            assert await is_new(SinkBatch("sink", UNNAMED, transaction=f"by chance {number}"))
        assert not any([await is_new(name) for name in names])
        paths = context.paths("s")
        assert await known_names(context.store, paths, "sink") == {name.digest for name in names}
        assert len((await read_sink(context.store, paths, SinkBatch("sink", UNNAMED, "", "x"))).state.transactions) == (
            UNNAMED_MAX
        )
        assert await is_new(SinkBatch("another", transaction="day-0")), "a name is its sink's"
        assert await is_new(SinkBatch("sink", 0, "q")), "numbers of a query are something else"
        assert {*(await context.store.children(paths.sinks)).names} == {
            *name_nodes("sink"),
            "sink",
            "sink@unnamed",
            SinkBatch("another", transaction="day-0").node,
        }

    on_stream(check)


def test_a_name_that_could_not_be_kept_is_refused_and_the_others_stay_known() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        known = SinkBatch("sink", transaction="first")
        await commit_staged(context, "s", known, [await staged(context, known, "a")], SETTINGS)
        stored = await read_sink(context.store, context.paths("s"), known)
        others = tuple(f"{number:016d}" for number in range(NODE_NAMES_MAX - 1))
        full = replace(stored.state, transactions=(*stored.state.transactions, *others))
        longest = replace(full, transactions=tuple(f"{name:x<27}" for name in full.transactions))
        assert len(encode_sink(longest)) < 125_000, "as the limit's comment says"
        await context.store.transaction(stored.write(full))
        names = (SinkBatch("sink", transaction=str(number)) for number in count())
        new = next(name for name in names if name.node == known.node)
        part = await staged(context, new, "b")
        with pytest.raises(SinkFull, match=r"4096 names are known") as refused:
            await commit_staged(context, "s", new, [part], SETTINGS)
        assert "another `sinkId`" in refused.value.hint
        async with open_inline_sink(context, "s", SETTINGS) as sink:
            with pytest.raises(SinkFull):
                await sink.commit(new, [b"b"], None)
        assert not (await commit_staged(context, "s", known, [], SETTINGS)).is_new
        assert await texts(context, 1) == ["a"]
        assert (await commit_staged(context, "s", SinkBatch("sink", UNNAMED, "", "x"), [part], SETTINGS)).is_new
        assert await texts(context, 2) == ["a", "b"], "one without a name needs no room"

    on_stream(check)


def test_numbers_of_another_query_are_refused() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        await commit_staged(context, "s", batch(5), [], SETTINGS)
        with pytest.raises(SinkTaken, match=r"batches up to 5 came from query 'q'") as refused:
            await commit_staged(context, "s", batch(0, "another"), [], SETTINGS)
        assert "sinkId" in refused.value.hint
        assert (await commit_staged(context, "s", batch(6, "another"), [], SETTINGS)).is_new

    on_stream(check)


def test_txids_that_decrease_are_refused_and_nothing_is_published() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        high, low = await staged(context, batch(0), "a", txid=5), await staged(context, batch(0), "b", txid=4)
        with pytest.raises(TxidOutOfOrder, match="txid 4 would come behind 5"):
            await commit_staged(context, "s", batch(0), [high, low], SETTINGS)
        await commit_staged(context, "s", batch(0), [low, high], SETTINGS)
        with pytest.raises(TxidOutOfOrder, match="txid 4 is below 5"):
            await commit_staged(context, "s", batch(1), [await staged(context, batch(1), "c", txid=4)], SETTINGS)
        assert await texts(context, 2) == ["b", "a"]

    on_stream(check)


def test_txids_that_mean_nothing_are_raised_when_another_writer_was_faster() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        parts = [await staged(context, batch(0), text, text, txid=4) for text in "ab"]
        now_ms = context.runtime.clock.wall_ms() + 1_000_000
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"first", txid=now_ms)
        await commit_staged(context, "s", batch(0), parts, SETTINGS, may_restamp=True)
        records = await read(context, 5)
        assert [record.payload for record in records] == [b"first", b"a", b"a", b"b", b"b"]
        assert [record.txid for record in records] == [now_ms] * 5
        assert len(await ledgers(context)) == 3

    on_stream(check)


def test_copying_takes_as_long_as_it_takes_and_leaves_nothing_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: each copy takes longer than a commit may. The first commit is cancelled before the second of them, the
    next one fails behind them, the last one is left alone.
    """
    copy = staging.restage

    async def slowly(*args: Any) -> StagedSegment:
        await asyncio.sleep(10 * SETTINGS.call_timeout_s)
        return await copy(*args)

    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        parts = [await staged(context, batch(0), text, txid=4) for text in "ab"]
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"first")
        before = await ledgers(context)
        monkeypatch.setattr(staging_commit, "restage", slowly)

        async def commit() -> bool:
            return (await commit_staged(context, "s", batch(0), parts, SETTINGS, may_restamp=True)).is_new

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(15 * SETTINGS.call_timeout_s):
                await commit()
        assert await ledgers(context) == before
        with monkeypatch.context() as patch:
            patch.setattr(GuardedNodes, "publish", refuse_to_publish)
            with pytest.raises(RequestTooLarge):
                await commit()
        assert await ledgers(context) == before
        assert set(await staged_names(context.store, context.paths("s"))) == {part.node for part in parts}
        assert await commit()
        assert await texts(context, 3) == ["first", "a", "b"]

    on_stream(check)


async def refuse_to_publish(*_: object) -> None:
    raise RequestTooLarge("it is too much")


def test_a_staged_ledger_whose_writer_is_cancelled_goes() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async def write() -> None:
            async with stage(context, "s", SETTINGS, batch(0)) as staging:
                await staging.append_many([b"a"], [1])
                await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await write()
        assert await ledgers(context) == set()
        assert await staged_names(context.store, context.paths("s")) == ()

    on_stream(check)


def test_a_live_writer_keeps_its_stream_and_a_dead_ones_segment_is_completed() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        part = await staged(context, batch(0), "behind", txid=2)
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"alive", txid=1)
            with pytest.raises(StreamOwned):
                await commit_staged(context, "s", batch(0), [part], replace(SETTINGS, lock_timeout_s=0))
        other = cluster.sim.host("other")

        async def die() -> None:
            async with cluster.context("other") as theirs:
                stack = open_stream_writer(theirs, "s", SETTINGS)
                await (await stack.__aenter__()).append(b"last words", txid=2)
                dying.set()
                await asyncio.Event().wait()

        dying = asyncio.Event()
        other.spawn(die())
        await dying.wait()
        sim_tree(cluster.cluster).abandon("other")
        await other.crash()
        await commit_staged(context, "s", batch(0), [part], replace(SETTINGS, lock_timeout_s=20))
        assert await texts(context, 3) == ["alive", "last words", "behind"]

    on_stream(check)


def test_what_is_discarded_cannot_be_published_and_what_is_published_cannot_be_discarded() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        first, second = await staged(context, batch(0), "a"), await staged(context, batch(0), "b")
        await discard(context, "s", [second.node])
        with pytest.raises(StagedGone, match="was deleted"):
            await commit_staged(context, "s", batch(0), [first, second], SETTINGS)
        await commit_staged(context, "s", batch(0), [first], SETTINGS)
        assert await discard(context, "s", [first.node, second.node]) == 0
        assert await texts(context, 1) == ["a"]

    on_stream(check)


def test_a_ledger_that_is_discarded_while_it_is_written_is_no_result() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        async def stage_and_discard() -> None:
            async with stage(context, "s", SETTINGS, batch(0)) as staging:
                await staging.append_many([b"a"], [1])
                await discard(context, "s", await staged_names(context.store, context.paths("s")))

        with pytest.raises(StagedGone):
            await stage_and_discard()
        assert await ledgers(context) == set()

    on_stream(check)


def test_a_sweep_finds_what_is_old_and_what_others_began_to_delete() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        old = await staged(context, batch(0), "old")
        await asyncio.sleep(100)
        new = await staged(context, batch(1), "new")
        assert await sweep(context, "s", older_than_s=50) == 1
        assert await ledgers(context) == {new.ledger}
        sim_tree(cluster.cluster).lose_answers(CLIENT, 1)
        assert await sweep(context, "s", older_than_s=0) == 1
        assert await ledgers(context) == set()
        assert old.node not in await staged_names(context.store, context.paths("s"))

    on_stream(check)


def test_lost_answers_are_found_out() -> None:
    """Every answer of a commit is lost in turn, and of a staging: nothing is doubled, and nothing is lost."""

    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        tree = sim_tree(cluster.cluster)
        for number in range(8):
            part = await staged(context, batch(number), f"{number}", txid=1)
            for _ in range(number):
                await context.store.exists("/")  # Nothing is lost here: reads have no outcome to lose.
            tree.lose_answers(CLIENT, 1 + number % 4)
            await commit_staged(context, "s", batch(number), [part], SETTINGS)
            tree.repair()
        assert await texts(context, 8) == [f"{number}" for number in range(8)]

    on_stream(check, seeds=3)


def takes_segments(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the metadata store take transactions with so many new segments only."""
    transaction = MetadataStore.transaction

    async def limited(self: MetadataStore, *ops: Any) -> object:
        if sum(isinstance(op, Create) and "/ledgers/logrecs" in op.path for op in ops) > most:
            raise RequestTooLarge("too many operations")
        return await transaction(self, *ops)

    monkeypatch.setattr(MetadataStore, "transaction", limited)


def test_more_segments_than_a_transaction_takes_are_few_before_they_are_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neighbours are copied into one ledger, what is large stays as it is, and the records are where they would be."""

    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        words = [f"{part}/{row}" for part in range(100) for row in range(3)]
        parts = [await staged(context, batch(0), *words[at : at + 3], txid=5 + at) for at in range(0, 300, 3)]
        large = await staged(context, batch(0), *(letter * 900 for letter in "abc"), txid=600)
        with monkeypatch.context() as patch:
            takes_segments(32, patch)
            done = await commit_staged(context, "s", batch(0), [*parts, large], SETTINGS)
        assert done.is_new
        segments = [stored.segment for stored in await cluster.nodes(context, "s").all_segments()]
        assert 2 < len(segments) <= 32
        assert segments[-1].ledger_id == large.ledger
        counts = [segment.completion.record_count for segment in segments if segment.completion is not None]
        assert [segment.start_sequence_id for segment in segments] == [sum(counts[:at]) for at in range(len(counts))]
        records = await read(context, 303)
        assert [record.payload.decode() for record in records] == [*words, *(letter * 900 for letter in "abc")]
        assert [record.txid for record in records[:300]] == [5 + at for at in range(0, 300, 3) for _ in range(3)]
        assert [record.position for record in records] == [place for count in counts for place in range(1, count + 1)]
        assert await ledgers(context) == {segment.ledger_id for segment in segments}
        assert await staged_names(context.store, context.paths("s")) == ()

    on_stream(check)


def test_records_that_need_another_txid_and_fewer_ledgers_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        parts = [await staged(context, batch(0), f"{part}") for part in range(50)]
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"first")
            highest = writer.last_txid
        copied: list[int] = []
        copy = staging.restage

        async def counted(*args: Any) -> StagedSegment:
            copied.append(len(args[4]))
            return await copy(*args)

        takes_segments(32, monkeypatch)
        monkeypatch.setattr(staging_commit, "restage", counted)
        await commit_staged(context, "s", batch(0), parts, SETTINGS, may_restamp=True)
        assert sum(copied) == 50
        records = await read(context, 51)
        assert [record.payload.decode() for record in records] == ["first", *map(str, range(50))]
        assert all(record.txid >= highest for record in records)

    on_stream(check)


def test_a_store_that_takes_less_than_any_should_is_named_and_nothing_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        parts = [await staged(context, batch(0), f"{each}") for each in range(3)]
        with monkeypatch.context() as patch:
            takes_segments(2, patch)
            with pytest.raises(RequestTooLarge, match="has 3 segments") as refused:
                await commit_staged(context, "s", batch(0), parts, SETTINGS)
        assert "--max-txn-ops" in refused.value.hint
        await discard(context, "s", [part.node for part in parts])
        assert await ledgers(context) == set()

    on_stream(check)


def test_whatever_is_lost_while_ledgers_are_merged_a_batch_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is lost in turn. Then a commit that is cancelled under way leaves nothing that a next one minds."""

    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        monkeypatch.setattr(staging_commit, "_SEGMENTS_MAX", 2)
        takes_segments(2, monkeypatch)
        tree = sim_tree(cluster.cluster)
        for number in range(12):
            parts = [await staged(context, batch(number), f"{number}/{part}") for part in range(4)]
            if number % 3 == 2:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01 * number):
                        await commit_staged(context, "s", batch(number), parts, SETTINGS)
            tree.lose_answers(CLIENT, 1 + number)
            await commit_staged(context, "s", batch(number), parts, SETTINGS)
            tree.repair()
        assert await texts(context, 48) == [f"{number}/{part}" for number in range(12) for part in range(4)]
        assert await sweep(context, "s", older_than_s=0) == 0

    on_stream(check, seeds=3)


def test_a_sealed_stream_and_one_that_is_not_there_take_nothing() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        part = await staged(context, batch(0), "a")
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.seal()
        with pytest.raises(StreamSealed):
            await commit_staged(context, "s", batch(0), [part], SETTINGS)
        with pytest.raises(StreamSealed):
            await commit_staged(context, "s", batch(0), [], SETTINGS)
        with pytest.raises(NoSuchStream):
            async with stage(context, "no", SETTINGS, batch(0)):
                pass
        assert await context.store.exists(context.paths("no").top) is None

    on_stream(check)


def test_a_batch_is_recognised_when_its_stream_has_been_sealed_since() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        await commit_staged(context, "s", batch(0), [await staged(context, batch(0), "a")], SETTINGS)
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.seal()
        again = await staged(context, batch(0), "a")
        assert not (await commit_staged(context, "s", batch(0), [again], SETTINGS)).is_new
        assert await staged_names(context.store, context.paths("s")) == ()

    on_stream(check)


def test_a_ledger_that_is_staged_while_the_stream_is_deleted_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: a task stages one when the deletion has looked for them, just before its last step."""

    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        await staged(context, batch(0), "early")  # So that the folder is there.
        real, late = context.store.delete_tree, list[StagedSegment]()

        async def delete_tree(path: str, **guarded: Any) -> None:
            await real(path, **guarded)
            if path == context.paths("s").sinks and not late:
                late.append(await staged(context, batch(1), "late"))

        monkeypatch.setattr(context.store, "delete_tree", delete_tree)
        await delete_stream(context, "s", lock_timeout_s=5)
        assert len(late) == 1
        assert await ledgers(context) == set()
        assert await context.store.exists(context.paths("s").root) is None

    on_stream(check)


def test_a_deleted_stream_takes_its_staged_ledgers_along_and_a_renamed_one_keeps_its_sinks() -> None:
    async def check(cluster: StreamCluster, context: StreamContext) -> None:
        await commit_staged(context, "s", batch(0), [await staged(context, batch(0), "a")], SETTINGS)
        await staged(context, batch(1), "b")
        await rename_stream(context.store, context.paths("s"), context.paths("t"))
        assert not (await commit_staged(context, "t", batch(0), [], SETTINGS)).is_new
        await delete_stream(context, "t", lock_timeout_s=5)
        assert await ledgers(context) == set()
        assert await context.store.exists(context.paths("t").top) is None

    on_stream(check)
