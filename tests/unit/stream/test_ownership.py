"""Who may write a stream: clients that were stopped on their way, and streams that were deleted and made again."""

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest
from tests.support.streams.cluster import SETTINGS, StreamCluster
from tests.unit.stream.test_writer import play, stored_records

from quire.errors import LockLost, MetadataUnavailable, NoSuchStream, NotEnoughBookies, WriterFenced
from quire.metadata import ANY_VERSION
from quire.metadata.ledgers import Ledgers, StoredLedger
from quire.stream.context import StreamContext
from quire.stream.creation import create_stream
from quire.stream.nodes import GuardedNodes, StoredSegment, StreamNodes
from quire.stream.ownership import open_stream_writer
from quire.stream.reader import open_stream_reader
from quire.stream.removal import _Removal, delete_stream
from quire.stream.renaming import rename_stream
from quire.stream.retention import Retention
from quire.stream.settings import StreamSettings
from quire.stream.subscriptions import Subscriptions
from quire.stream.writer import StreamWriter
from quire.types import LedgerId, LedgerMetadata

UNLOCKED = replace(SETTINGS, write_lock=False)


async def make_again(context: StreamContext, stream: str = "s") -> None:
    await delete_stream(context, stream, lock_timeout_s=5)
    await create_stream(context.store, context.paths(stream), context.runtime.rng)


# --- Stopped on the way


async def stop_while_opening(
    cluster: StreamCluster, monkeypatch: pytest.MonkeyPatch, settings: StreamSettings, meanwhile: StreamContext
) -> None:
    """Open a writer on the host `stopped`. It stands still with its list of segments until another client wrote a
    record. That client's next record must succeed."""
    listing, go_on = asyncio.Event(), asyncio.Event()
    original = StreamNodes.segments_for_writer

    async def stopped(self: StreamNodes) -> list[StoredSegment]:
        found = await original(self)
        if not listing.is_set():
            listing.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(StreamNodes, "segments_for_writer", stopped)

    async def open_it() -> None:
        async with cluster.context("stopped") as context, open_stream_writer(context, "s", settings):
            raise AssertionError("it was overtaken")

    opening = asyncio.create_task(open_it())
    await listing.wait()
    lock = meanwhile.paths("s").lock
    for name in (await meanwhile.store.children(lock)).names:  # As the end of its session does.
        await meanwhile.store.delete(f"{lock}/{name}", expected=ANY_VERSION)
    async with open_stream_writer(meanwhile, "s", settings) as owner:
        await owner.append(b"one")
        go_on.set()
        await asyncio.wait([opening])
        await owner.append(b"two")
    await opening


def test_a_client_that_was_stopped_while_it_opened_does_not_fence_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        with pytest.raises(WriterFenced):
            await stop_while_opening(cluster, monkeypatch, UNLOCKED, context)
        assert [record.payload for record in await stored_records(context) if not record.is_control] == [b"one", b"two"]

    play(act)


def test_a_client_that_lost_its_lock_while_it_opened_says_so_and_does_not_claim_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        with pytest.raises(LockLost):
            await stop_while_opening(cluster, monkeypatch, SETTINGS, context)
        assert [record.payload for record in await stored_records(context) if not record.is_control] == [b"one", b"two"]

    play(act)


def test_a_client_that_was_stopped_behind_its_claim_recovers_only_what_it_had_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim, claimed, go_on = GuardedNodes.claim, asyncio.Event(), asyncio.Event()

    async def claim_and_stop(self: GuardedNodes, *args: object) -> None:
        await claim(self, *args)  # type: ignore[arg-type]
        if not claimed.is_set():
            claimed.set()
            await go_on.wait()

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", UNLOCKED) as writer:
            await writer.append(b"left")
            monkeypatch.setattr(GuardedNodes, "claim", claim_and_stop)

            async def open_it() -> None:
                async with cluster.context("stopped") as stopped, open_stream_writer(stopped, "s", UNLOCKED):
                    raise AssertionError("it was overtaken")

            opening = asyncio.create_task(open_it())
            await claimed.wait()
            async with cluster.context("other") as other, open_stream_writer(other, "s", UNLOCKED) as owner:
                await owner.append(b"one")
                go_on.set()
                with pytest.raises(WriterFenced):
                    await opening
                await owner.append(b"two")

    play(act)


# --- Deleted, and made again


def test_deleting_a_stream_fences_a_writer_that_lost_its_lock() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with cluster.context("other") as other, open_stream_writer(context, "s", UNLOCKED) as old:
            await old.append(b"1")
            await make_again(other)
            with pytest.raises(WriterFenced):
                await old.append(b"2")
            async with open_stream_writer(other, "s", UNLOCKED) as new:
                await new.append(b"new")
                with pytest.raises(WriterFenced):
                    await old.append(b"3")
        assert [record.payload for record in await stored_records(context) if not record.is_control] == [b"new"]

    play(act)


def test_nothing_is_deleted_before_the_writer_is_fenced() -> None:
    """Method: no bookie answers, so nothing can be told of the writer's last segment."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", UNLOCKED) as writer:
            await writer.append(b"1")
            segments = await cluster.nodes(context, "s").all_segments()
            for bookie in cluster.bookies:
                await bookie.stop()
            with pytest.raises(Exception, match="cannot be recovered"):
                await delete_stream(context, "s", lock_timeout_s=5)
            assert await cluster.nodes(context, "s").all_segments() == segments
            assert [ledger async for ledger in context.ledgers.scan()] == [segments[0].segment.ledger_id]
            for bookie in cluster.bookies:
                await bookie.start()
        await delete_stream(context, "s", lock_timeout_s=5)

    play(act)


def test_a_deletion_that_was_stopped_behind_its_claim_does_not_fence_a_later_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim, claimed, go_on = GuardedNodes.claim, asyncio.Event(), asyncio.Event()

    async def claim_and_stop(self: GuardedNodes, *args: object) -> None:
        await claim(self, *args)  # type: ignore[arg-type]
        if not claimed.is_set():
            claimed.set()
            await go_on.wait()

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"earlier")
        monkeypatch.setattr(GuardedNodes, "claim", claim_and_stop)
        async with cluster.context("remover") as remover, cluster.context("owner") as other:
            deleting = asyncio.create_task(delete_stream(remover, "s", lock_timeout_s=5))
            await claimed.wait()
            lock = other.paths("s").lock
            for name in (await other.store.children(lock)).names:  # As the end of its session does.
                await other.store.delete(f"{lock}/{name}", expected=ANY_VERSION)
            async with open_stream_writer(other, "s", SETTINGS) as owner:
                await owner.append(b"one")
                go_on.set()
                with pytest.raises(LockLost):
                    await deleting
                await owner.append(b"two")

    play(act)


def test_a_deletion_fences_a_writer_without_a_lock_that_came_while_it_went_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fence = _Removal._fence_writer

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        await create_stream(context.store, context.paths("s"), context.runtime.rng)
        async with AsyncExitStack() as late:
            writers: list[StreamWriter] = []

            async def fence_and_let_one_come(self: _Removal) -> object:
                done = await fence(self)
                if not writers:
                    writers.append(await late.enter_async_context(open_stream_writer(context, "s", UNLOCKED)))
                    await writers[0].append(b"1")
                return done

            monkeypatch.setattr(_Removal, "_fence_writer", fence_and_let_one_come)
            async with cluster.context("remover") as remover:
                await delete_stream(remover, "s", lock_timeout_s=5)
            with pytest.raises(WriterFenced):
                await writers[0].append(b"2")

    play(act)


def test_a_ledger_that_a_fenced_writer_makes_while_its_stream_is_deleted_does_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create, remove_allocated = Ledgers.create, _Removal._remove_allocated
    noted, go_on = asyncio.Event(), asyncio.Event()

    async def create_late(self: Ledgers, metadata: LedgerMetadata, *, with_id: int | None = None) -> StoredLedger:
        noted.set()
        await go_on.wait()
        return await create(self, metadata, with_id=with_id)

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        monkeypatch.setattr(Ledgers, "create", create_late)
        async with cluster.context("remover") as remover, open_stream_writer(context, "s", UNLOCKED) as old:
            appending = asyncio.create_task(old.append(b"1"))
            await noted.wait()

            async def remove_and_let_it_go_on(self: _Removal) -> None:
                await remove_allocated(self)
                go_on.set()
                await asyncio.wait([appending])

            monkeypatch.setattr(_Removal, "_remove_allocated", remove_and_let_it_go_on)
            await delete_stream(remover, "s", lock_timeout_s=5)
            with pytest.raises(WriterFenced):
                await appending
        assert [ledger async for ledger in context.ledgers.scan()] == []

    play(act)


def test_a_left_over_ledger_stays_noted_until_it_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = Ledgers.remove

    async def out_of_reach(self: Ledgers, ledger_id: LedgerId) -> None:
        monkeypatch.setattr(Ledgers, "remove", remove)
        raise MetadataUnavailable("out of reach")

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        await create_stream(context.store, context.paths("s"), context.runtime.rng)
        dead = await cluster.nodes(context, "s").guarded(context.runtime.clock, timeout_s=5)
        async with context.ledgers.create(ensemble=1, write_quorum=1, ack_quorum=1) as left:
            await dead.allocate(left.id)
        monkeypatch.setattr(Ledgers, "remove", out_of_reach)
        for _ in range(2):  # What the first one may make of it is its own affair.
            with suppress(MetadataUnavailable):
                async with open_stream_writer(context, "s", SETTINGS) as writer:
                    await writer.append(b"1")
        assert left.id not in {each async for each in context.ledgers.scan()}

    play(act)


def test_a_ledger_whose_id_was_chosen_by_hand_is_not_deleted_as_a_leftover() -> None:
    """Method: the id is noted as allocated, and there are too few bookies to find out that it is taken."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        taken = await context.ledgers.ledgers_metadata.new_id() + 1
        async with context.ledgers.create(ensemble=1, write_quorum=1, ack_quorum=1, ledger_id=taken) as ledger:
            await ledger.append(b"by hand")
        async with open_stream_writer(context, "s", replace(SETTINGS, ensemble=99)) as writer:
            with pytest.raises(NotEnoughBookies):
                await writer.append(b"1")
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"2")
        assert taken in {each async for each in context.ledgers.scan()}

    play(act)


def test_a_purge_that_was_stopped_leaves_a_stream_that_was_made_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(context: StreamContext, *payloads: bytes) -> None:
        for payload in payloads:  # Each into a segment of its own.
            async with open_stream_writer(context, "s", SETTINGS) as writer:
                await writer.append(payload)

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        await write(context, b"1", b"2")
        async with cluster.context("purger") as purger:
            delete, deleted = purger.ledgers.delete, list[int]()

            async def delete_and_stop(ledger_id: int) -> None:
                await delete(ledger_id)
                if not deleted:
                    deleted.append(ledger_id)
                    await make_again(context)
                    await write(context, b"one", b"two")

            monkeypatch.setattr(purger.ledgers, "delete", delete_and_stop)
            with pytest.raises(NoSuchStream, match="'s' is gone"):
                await Retention(purger, cluster.nodes(purger, "s")).purge_below(2**60)
        assert len(deleted) == 1
        assert [record.payload for record in await stored_records(context) if not record.is_control] == [b"one", b"two"]

    play(act)


async def take_versions_of(context: StreamContext, guarded: GuardedNodes) -> None:
    """Make the versions those of the nodes that are there now, as they may be on ZooKeeper: they begin at 0 again."""
    for guard in (guarded._lssn, guarded._txid, guarded._allocation):
        stat = (await context.store.get(guard.path)).stat
        guard.version, guard.writes = stat.version, stat.writes


def test_a_late_writer_changes_nothing_in_a_stream_that_was_made_again() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        await create_stream(context.store, context.paths("s"), context.runtime.rng)
        nodes = cluster.nodes(context, "s")
        late = await nodes.guarded(context.runtime.clock, timeout_s=5)
        await make_again(context)
        await take_versions_of(context, late)
        with pytest.raises(WriterFenced):
            await late.claim()

    play(act)


def test_a_stream_of_apaches_stays_without_an_identity_so_that_apaches_client_can_rename_it() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        paths = context.paths("s")
        for path, data in paths.initial_nodes():
            await context.store.create(path, data)
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"a")
        assert await cluster.nodes(context, "s").same.know() is None
        assert {f"{paths.root}/{name}" for name in (await context.store.children(paths.root)).names} == {
            path for path, _ in paths.initial_nodes() if path.startswith(f"{paths.root}/")
        }

    play(act)


def test_a_stream_keeps_its_identity_under_another_name() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        paths = context.paths("s")
        await create_stream(context.store, paths, context.runtime.rng)
        identity = await cluster.nodes(context, "s").same.know()
        assert identity is not None
        await rename_stream(context.store, paths, context.paths("renamed"))
        assert await cluster.nodes(context, "renamed").same.know() == identity
        await make_again(context, "renamed")
        assert await cluster.nodes(context, "renamed").same.know() not in (None, identity)

    play(act)


def test_a_reader_of_a_deleted_stream_stores_no_position_in_one_that_was_made_again() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append_many([b"a", b"b"])
        async with open_stream_reader(context, "s", SETTINGS, subscription="me") as reader:
            assert len(await reader.read_many(2)) == 2
            await reader.commit()
            await make_again(context)
            for may_go_back in (False, True):
                with pytest.raises(NoSuchStream, match="'s' is gone"):
                    await reader.commit(may_go_back=may_go_back)
        assert await Subscriptions(context.store, context.paths("s")).read("me") is None

    play(act)
