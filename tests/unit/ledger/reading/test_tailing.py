"""A ledger that is still being written: how far it is confirmed, waiting for the next entry, following to the end."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.unit.ledger.reading.reader_world import SETTINGS, World, eventually, on_cluster, payload

from quire.codec.digest import digest_for, master_key
from quire.codec.entry import EntryCodec
from quire.errors import BookieUnavailable, InvalidArgument, LedgerFenced, NoSuchLedger, QuireError
from quire.ledger.reading.reader import LedgerReader
from quire.ledger.writing.writer import LedgerWriter
from quire.types import NO_ENTRY, DigestType, EntryId, LedgerState

PATIENT = replace(SETTINGS, read_patience_s=5.0)


async def append(writer: LedgerWriter, first: int, end: int) -> None:
    for number in range(first, end):
        assert await writer.append(payload(number)) == number


async def followed(reader: LedgerReader, first: int = 0) -> list[int]:
    found: list[int] = []
    async for entry in reader.follow(first):
        assert entry.payload == payload(entry.entry_id)
        found.append(entry.entry_id)
    return found


# --- How far it is confirmed


def test_the_lac_is_asked_of_enough_bookies_and_only_grows() -> None:
    async def check(world: World) -> None:
        async with world.create((3, 2, 2)) as writer:
            await append(writer, 0, 5)
            async with world.readers.open(writer.id, recover=False) as reader:
                assert reader.last_add_confirmed == 3, "of the last entry bookies hear with the next"
                assert [entry.entry_id async for entry in reader.read()] == [0, 1, 2, 3]
                await append(writer, 5, 9)
                assert reader.last_add_confirmed == 3
                assert await reader.read_last_add_confirmed() == 7
                await append(writer, 9, 12)
                assert 7 <= await reader.try_last_add_confirmed() <= 10
                assert await reader.read_last_add_confirmed() == 10
                await writer.close()
                await reader.refresh()
                assert (reader.last_add_confirmed, reader.is_closed) == (11, True)
                requests = reader.statistics().requests
                assert await reader.try_last_add_confirmed() == await reader.read_last_add_confirmed() == 11
                assert reader.statistics().requests == requests, "a closed ledger is known"

    on_cluster(check)


def test_an_entry_tells_how_far_others_are_confirmed() -> None:
    async def check(world: World) -> None:
        async with world.create((3, 3, 2)) as writer:
            await append(writer, 0, 2)
            async with world.readers.open(writer.id, recover=False) as reader:
                await append(writer, 2, 20)
                [entry async for entry in reader.read_unconfirmed(0, 19)]
                assert reader.last_add_confirmed == 18

    on_cluster(check)


def test_nobody_guesses_when_a_bookie_that_alone_may_know_is_away() -> None:
    """Scenario 22: with an ack quorum of one, either of two bookies may have the last entry for itself."""

    async def check(world: World) -> None:
        async with world.create((2, 2, 1)) as writer:
            await append(writer, 0, 5)
            async with world.readers.open(writer.id, recover=False) as reader:
                away = writer.metadata.metadata.fragments[0].bookies[1]
                await world.bookies[away].crash()
                with pytest.raises(BookieUnavailable):
                    await reader.read_last_add_confirmed()
                assert await reader.try_last_add_confirmed() >= 3, "which promises nothing"
                with pytest.raises(QuireError):
                    async with world.readers.open(writer.id, recover=False):
                        pass

    on_cluster(check, bookies=2)


def test_nobody_can_be_asked() -> None:
    async def check(world: World) -> None:
        async with world.create((2, 2, 1)) as writer:
            await append(writer, 0, 5)
            async with world.readers.open(writer.id, recover=False) as reader:
                for bookie in world.bookies.values():
                    await bookie.crash()
                with pytest.raises(BookieUnavailable):
                    await reader.try_last_add_confirmed()
                with pytest.raises(BookieUnavailable):
                    await reader.wait_entry(20, timeout_s=3)

    on_cluster(check, bookies=2)


def test_a_bookie_that_has_an_explicit_lac_and_no_entry_is_no_obstacle() -> None:
    """It fails to tell its LAC, as Apache's do. Here every bookie is needed for the answer."""

    async def check(world: World) -> None:
        async with world.create((3, 1, 1)) as writer:
            await append(writer, 0, 1)
            bookie = writer.metadata.metadata.fragments[0].bookies[1]
            codec = EntryCodec(writer.id, digest_for(DigestType.CRC32C, b""))
            channel = await world.ledgers.pool.connect(bookie, 3, timeout_s=5)
            await channel.write_lac(writer.id, EntryId(0), master_key(b""), codec.encode_lac(EntryId(0)))
            async with world.readers.open(writer.id, recover=False) as reader:
                assert reader.last_add_confirmed == 0
                assert await reader.read_last_add_confirmed() == 0

    on_cluster(check)


def test_a_failing_disk_is_no_proof_that_there_are_no_entries() -> None:
    async def check(world: World) -> None:
        async with world.create((2, 2, 1)) as writer:
            await append(writer, 0, 5)
            async with world.readers.open(writer.id, recover=False) as reader:
                await world.write(400, (2, 2, 2), size=500)  # Until no cache has the last entry any more.
                world.break_disk(writer.metadata.metadata.fragments[0].bookies[0])
                with pytest.raises(BookieUnavailable, match="1 of 2 bookies answered"):
                    await reader.read_last_add_confirmed()

    on_cluster(check, bookies=2)


# --- Waiting for the next entry


def test_an_entry_is_there_as_soon_as_it_is_confirmed() -> None:
    """Scenario 31: on advance the entry, when time is up nothing."""

    async def check(world: World) -> None:
        async with world.create((3, 2, 2)) as writer, world.readers.open(writer.id, recover=False) as reader:
            assert reader.last_add_confirmed == NO_ENTRY
            began_s = world.now_s
            assert await reader.wait_entry(0, timeout_s=2.5) is None
            assert 2.5 <= world.now_s - began_s < 3.0
            waiting = asyncio.create_task(reader.wait_entry(1, timeout_s=60))
            await append(writer, 0, 2)
            began_s = world.now_s
            await append(writer, 2, 3)
            entry = await waiting
            assert entry is not None
            assert (entry.entry_id, entry.payload) == (1, payload(1))
            assert world.now_s - began_s < 1.2, "a bookie that knows nothing of the ledger is asked again soon"
            assert await reader.wait_entry(0, timeout_s=0) == (0, payload(0)), "known to be confirmed"

    on_cluster(check, seeds=5)


def test_waiting_ends_when_the_ledger_is_closed() -> None:
    """By its writer, and by another client that recovers it. The metadata tells."""

    async def check(world: World) -> None:
        for recovered in (False, True):
            with suppress(LedgerFenced):
                async with world.create((3, 3, 2)) as writer:
                    await append(writer, 0, 5)
                    async with world.readers.open(writer.id, recover=False) as reader:
                        last, beyond = (
                            asyncio.create_task(reader.wait_entry(entry_id, timeout_s=60)) for entry_id in (4, 5)
                        )
                        await world.pass_time(1)
                        assert not beyond.done()
                        began_s = world.now_s
                        await (world.ledgers.recover(writer.id) if recovered else writer.close())
                        assert await last == (4, payload(4))
                        assert await beyond is None
                        assert world.now_s - began_s < 1.0
                        assert reader.length == sum(len(payload(number)) for number in range(5))

    on_cluster(check)


@pytest.mark.parametrize(("poll_s", "polls_max"), [(10.0, 20), (0.001, 250)])
def test_a_ledger_that_is_fenced_and_not_closed_is_not_asked_all_the_time(poll_s: float, polls_max: int) -> None:
    """Scenario 31. Whoever recovered it died: nothing will come, and bookies may say so at once.

    Method: polls of 10 s as usual; and such that are over at once, as with bookies that do not wait when fenced.
    """

    async def check(world: World) -> None:
        async with world.create((3, 3, 2)) as writer:
            await append(writer, 0, 5)
            async with world.readers.open(writer.id, recover=False) as reader:
                for bookie in writer.metadata.metadata.fragments[0].bookies:
                    with suppress(QuireError):
                        await reader.read_from(bookie, EntryId(99), fence=True)
                before = reader.statistics().polls
                assert await reader.wait_entry(5, timeout_s=60) is None
                assert 1 <= reader.statistics().polls - before <= polls_max
                waiting = asyncio.create_task(followed(reader, 4))
                before = reader.statistics().polls
                await world.pass_time(60)
                assert 1 <= reader.statistics().polls - before <= polls_max
                await world.ledgers.recover(writer.id)
                assert await waiting == [4]

    on_cluster(check, settings=replace(SETTINGS, poll_s=poll_s), seeds=1)


def test_a_bookie_that_the_news_does_not_reach_is_not_waited_for() -> None:
    """The reader waits at a bookie that its writer cannot reach any more: after a while it asks another one, too."""

    async def check(world: World) -> None:
        async with world.create((3, 3, 2)) as writer:
            await append(writer, 0, 5)
            async with world.readers.open(writer.id, recover=False) as reader:
                cut_off = writer.metadata.metadata.fragments[0].bookies[5 % 3]
                world.sim.network.partition("writer", cut_off)
                waiting = asyncio.create_task(reader.wait_entry(5, timeout_s=60))
                began_s = world.now_s
                await append(writer, 5, 7)
                entry = await waiting
                assert entry is not None
                assert entry.payload == payload(5)
                assert world.now_s - began_s < 2.0
                world.sim.network.heal()

    on_cluster(check)


def test_an_answer_without_news_is_not_the_last_word() -> None:
    """As before, but nobody is hurried: when the one that is cut off says that there is nothing, others are asked."""

    async def check(world: World) -> None:
        async with world.create((3, 3, 2)) as writer:
            await append(writer, 0, 5)
            async with world.readers.open(writer.id, recover=False) as reader:
                cut_off = writer.metadata.metadata.fragments[0].bookies[5 % 3]
                world.sim.network.partition("writer", cut_off)
                waiting = asyncio.create_task(reader.wait_entry(5, timeout_s=60))
                began_s = world.now_s
                await append(writer, 5, 7)
                assert await waiting == (5, payload(5))
                assert 2.0 <= world.now_s - began_s < 2.5
                world.sim.network.heal()

    on_cluster(check, settings=replace(SETTINGS, poll_s=2.0, speculative_poll_s=0.0))


def test_a_deleted_ledger_is_not_waited_for() -> None:
    async def check(world: World) -> None:
        with suppress(NoSuchLedger):  # The writer cannot close it any more.
            async with world.create((3, 3, 2)) as writer:
                await append(writer, 0, 5)
                async with world.readers.open(writer.id, recover=False) as reader:
                    waiting = asyncio.create_task(reader.wait_entry(9, timeout_s=60))
                    following = asyncio.create_task(followed(reader))
                    await world.pass_time(1)
                    await world.ledgers.delete(writer.id)
                    for task in (waiting, following):
                        with pytest.raises(NoSuchLedger):
                            await task

    on_cluster(check)


# --- Following


def test_a_reader_follows_to_the_end_in_order_and_once() -> None:
    async def check(world: World) -> None:
        async with world.create((3, 2, 2)) as writer:
            await append(writer, 0, 10)
            async with world.readers.open(writer.id, recover=False) as reader:
                following = asyncio.create_task(followed(reader))
                later = asyncio.create_task(followed(reader, 37))
                await append(writer, 10, 60)
                await world.pass_time(25)
                for first in range(60, 400, 20):
                    await writer.append_many([payload(number) for number in range(first, first + 20)])
                await writer.close()
                assert await following == list(range(400))
                assert await later == list(range(37, 400))
                with pytest.raises(InvalidArgument):
                    await followed(reader, -1)

    on_cluster(check, seeds=5)


def test_a_reader_follows_across_ensemble_changes() -> None:
    """Bookies crash under the writer, which replaces them; entries and LACs are elsewhere from then on."""

    async def check(world: World) -> None:
        async with world.create((3, 2, 2)) as writer, world.readers.open(writer.id, recover=False) as reader:
            following = asyncio.create_task(followed(reader))
            at = 0
            for _ in range(3):
                await append(writer, at, at + 20)
                at += 20
                await world.bookies[writer.metadata.metadata.fragments[-1].bookies[0]].crash()
                await append(writer, at, at + 20)
                at += 20
                for bookie in world.bookies.values():
                    if not bookie.is_running:
                        await bookie.start()
            await writer.close()
            assert len(writer.metadata.metadata.fragments) > 2
            assert await following == list(range(at))

    on_cluster(check, bookies=5, seeds=8)


def test_a_reader_follows_while_another_client_recovers() -> None:
    """What was confirmed before and what the recovery adopts comes in order; then the reader is at the end."""

    async def write(writer: LedgerWriter, acknowledged: list[int]) -> None:
        while True:
            acknowledged.append(await writer.append(payload(len(acknowledged))))

    async def check(world: World) -> None:
        acknowledged: list[int] = []
        with suppress(LedgerFenced):
            async with world.create((3, 2, 2)) as writer, world.readers.open(writer.id, recover=False) as reader:
                following = asyncio.create_task(followed(reader))
                writing = asyncio.create_task(write(writer, acknowledged))
                await world.pass_time(2)
                end = (await world.ledgers.recover(writer.id)).metadata.last_entry_id
                with pytest.raises(QuireError):
                    await writing
                assert acknowledged
                assert end >= acknowledged[-1]
                assert await following == list(range(end + 1))

    on_cluster(check, seeds=5)


def test_a_reader_of_a_closed_ledger_follows_to_its_end() -> None:
    async def check(world: World) -> None:
        writer = await world.write(50)
        async with world.readers.open(writer.id) as reader:
            assert await followed(reader) == list(range(50))
            assert await followed(reader, 50) == []
            assert await reader.wait_entry(50, timeout_s=60) is None

    on_cluster(check, seeds=1)


def test_nobody_follows_for_ever_in_vain() -> None:
    """No bookie can be reached: after `read_patience_s` the error comes. If one comes back before, nothing happened."""

    async def check(world: World) -> None:
        async with world.create((3, 3, 2)) as writer:
            await append(writer, 0, 10)
            async with world.readers.open(writer.id, recover=False) as reader:
                following = asyncio.create_task(followed(reader))
                await world.pass_time(1)
                for bookie in world.bookies.values():
                    await bookie.crash(power_loss=False)
                await world.pass_time(3)
                for bookie in world.bookies.values():
                    await bookie.start()
                await world.pass_time(20)
                assert not following.done()
                began_s = world.now_s
                for bookie in world.bookies.values():
                    await bookie.crash(power_loss=False)
                with pytest.raises(BookieUnavailable):
                    await following
                assert 5.0 <= world.now_s - began_s < 20.0
                for bookie in world.bookies.values():
                    await bookie.start()

    on_cluster(check, settings=PATIENT)


def test_an_entry_that_cannot_be_read_is_tried_for_a_while_and_then_an_error() -> None:
    async def check(world: World) -> None:
        writer = await world.write(30, (2, 1, 1))
        away = world.bookies[writer.metadata.metadata.fragments[0].bookies[1]]
        async with world.readers.open(writer.id) as reader:
            await away.crash()
            following = asyncio.create_task(followed(reader))
            await world.pass_time(3)
            await away.start()
            assert await following == list(range(30))
            await away.crash()
            with pytest.raises(BookieUnavailable):
                await followed(reader)

    on_cluster(check, bookies=2, settings=PATIENT)


# --- The metadata


def test_an_outage_of_the_metadata_store_does_not_disturb_a_reader() -> None:
    """Entries go on to come, and what happened to the metadata is learned when the store is back."""

    async def check(world: World) -> None:
        async with world.create((3, 2, 2)) as writer:
            await append(writer, 0, 10)
            async with world.readers.open(writer.id, recover=False) as reader:
                following = asyncio.create_task(followed(reader))
                for outage_s in (3.0, 60.0):
                    world.tree.stall("reader", outage_s)
                    await append(writer, writer.last_add_confirmed + 1, writer.last_add_confirmed + 20)
                    await world.pass_time(2)
                    assert reader.last_add_confirmed == writer.last_add_confirmed - 1
                await writer.close()
                assert await following == list(range(writer.last_add_confirmed + 1))

    on_cluster(check)


def test_the_watch_is_taken_up_when_the_store_is_back() -> None:
    """The store is away when the block begins, so that nothing can be watched at first."""

    async def check(world: World) -> None:
        async with world.create((3, 2, 2)) as writer:
            await append(writer, 0, 10)
            async with world.readers.open(writer.id, recover=False) as before:
                assert [entry.entry_id async for entry in before.read()] == list(range(9))  # Be connected.
            world.tree.stall("reader", 60.0)
            async with LedgerReader(world.readers, before.metadata, b"") as reader:
                following = asyncio.create_task(followed(reader))
                await eventually(lambda: reader.last_add_confirmed == 8)
                assert not reader.is_watching
                await eventually(lambda: reader.is_watching, within_s=120)
                await writer.close()
                assert await following == list(range(10))

    on_cluster(check)


def test_older_metadata_is_not_adopted() -> None:
    async def check(world: World) -> None:
        async with world.create((3, 2, 2)) as writer, world.readers.open(writer.id, recover=False) as reader:
            before = reader.metadata
            await writer.close()
            await reader.refresh()
            assert reader.is_closed
            reader.adopt(before)
            assert reader.metadata.metadata.state is LedgerState.CLOSED

    on_cluster(check, seeds=1)


def test_the_watch_lives_as_long_as_the_block() -> None:
    def watches() -> int:
        return sum(task.get_name().startswith("metadata of ledger") for task in asyncio.all_tasks())

    async def check(world: World) -> None:
        async with world.create((3, 2, 2)) as writer:
            async with world.readers.open(writer.id, recover=False) as reader:
                await world.pass_time(1)
                assert (watches(), reader.is_watching) == (1, True)
            assert (watches(), reader.is_watching) == (0, False)
            async with world.readers.open(writer.id, recover=False) as reader:
                await writer.close()
                await world.pass_time(1)
                assert (watches(), reader.is_closed) == (0, True), "nothing more can come"
        async with world.readers.open(writer.id) as closed:
            assert watches() == 0
        async with LedgerReader(world.readers, closed.metadata, b"", keep_metadata=True):
            await world.pass_time(1)
            assert watches() == 1
        assert watches() == 0

    on_cluster(check, seeds=1)
