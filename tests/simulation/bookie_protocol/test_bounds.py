"""What one client can cost the bookie is bounded, and costs the others nothing. Whoever leaves, leaves nothing."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from quire.bookie.connection import BookieConnection
from quire.bookie.settings import ServerSettings
from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import BookieInfoRequest, ForceLedgerRequest, ListEntriesRequest, ReadLacRequest
from quire.testing import SimTransport
from quire.testing.sim_bookie import SMALL_STORAGE
from quire.types import EntryId, LedgerId
from tests.support.raw_bookie_client import (
    KEY,
    LEDGER,
    ROOMY,
    V2,
    V3,
    Answer,
    RawClient,
    Version,
    World,
    bookie_settings,
    entry,
    leftovers,
    long_poll,
    with_bookie,
    write_lac,
)
from tests.support.tiers import one_in

OK = Status.EOK
LARGE = bytes(1000)
WINDOW_BYTES = 64 * 1024


def connections_of(world: World) -> list[BookieConnection]:
    return cast(list[BookieConnection], [*world.service.connections])


def held_bytes(world: World) -> int:
    """What the bookie keeps for its clients of answers they have not taken."""
    total = 0
    for connection in connections_of(world):
        transport = connection._transport
        assert isinstance(transport, SimTransport)
        total += connection._out_bytes + transport.get_write_buffer_size()
    return total


async def fill(world: World, count: int, *, ledger_id: int = LEDGER, step: int = 1, payload: bytes = LARGE) -> None:
    for entry_id in range(0, count * step, step):
        world.client.send(V2.add(ledger_id, entry_id, entry(ledger_id, entry_id, payload)))
    for _ in range(count):
        assert V2.answer(await world.client.frame()).status is OK


def stubborn(client: RawClient) -> RawClient:
    """A client that sends and never reads."""
    client.transport.pause_reading()
    return client


def batch(first: int) -> bytes:
    return v2.encode_batch_read_request(LEDGER, EntryId(first), 1, entries_max=0, bytes_max=1 << 20)


GREEDY = {
    "reads of version 2": [V2.read(LEDGER, number % 100) for number in range(1500)],
    "reads of version 3": [V3.read(LEDGER, number % 100) for number in range(1500)],
    "reads of the last entry": [V3.frame(ReadLacRequest(LEDGER)) for _ in range(1500)],
    "batches": [batch(number % 100) for number in range(1500)],
    "lists": [V3.frame(ListEntriesRequest(LEDGER)) for _ in range(1500)],
    "long polls": [V3.frame(long_poll(number % 100, 60_000)) for number in range(1500)],
    "info": [V3.frame(BookieInfoRequest()) for _ in range(1500)],
    "refused adds": [V2.add(LEDGER, 0, key=bytes(20)) for _ in range(1500)],
}


@pytest.mark.parametrize("what", GREEDY)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_client_that_never_reads_its_answers_is_held(what: str, restarted: bool) -> None:
    """Method: it asks for megabytes and takes nothing. What is kept for it stays near the limit; when it goes on, or
    another one asks, both are answered in full.
    """
    unsent_max = 20_000
    largest_answer = 110 * (len(LARGE) + 40) if what == "batches" else 24 * 110 + 200 if what == "lists" else 1200
    settings = bookie_settings(storage=ROOMY, server=ServerSettings(unsent_bytes_max=unsent_max))

    async def check(world: World) -> None:
        await fill(world, 110, step=2 if what == "lists" else 1)
        await world.client.add(V2, LEDGER, 111 if what != "lists" else 999)
        if restarted:
            await world.restart()
        client = stubborn(await world.connect())
        client.send(*GREEDY[what])
        most = 0
        for _ in range(100):
            await world.pass_time(0.05)
            most = max(most, held_bytes(world))
            assert all(connection.batches._running <= 4 for connection in connections_of(world))
        # A chunk of small requests may be answered before the transport says that it is enough.
        assert most <= unsent_max + largest_answer + 140_000
        assert (await world.client.read(V2, LEDGER, 0)).status is OK
        client.transport.resume_reading()
        await client.until(lambda: len(client.frames) == len(GREEDY[what]))
        await world.until(lambda: held_bytes(world) == 0)

    with_bookie(check, settings=settings)


@pytest.mark.parametrize("what", one_in(3, GREEDY))
def test_a_client_that_leaves_in_the_middle_of_everything_leaves_nothing(what: str) -> None:
    async def check(world: World) -> None:
        await fill(world, 110)
        await world.restart()
        for pause_s in (0.0, 0.01, 0.05, 0.2):
            client = stubborn(await world.connect())
            client.send(*GREEDY[what])
            await world.pass_time(pause_s)
            client.close()
        world.client.close()
        await world.until(lambda: not leftovers(world.service))

    settings = bookie_settings(storage=ROOMY, server=ServerSettings(unsent_bytes_max=20_000))
    with_bookie(check, settings=settings)


@pytest.mark.parametrize("seed", range(4))
def test_a_client_that_leaves_while_its_adds_are_under_way_leaves_nothing(version: Version, seed: int) -> None:
    """Neither in the queues nor in the figures."""

    async def check(world: World) -> None:
        world.slow_syncs(0.5)
        clients = [await world.connect() for _ in range(5)]
        for number, client in enumerate(clients):
            client.send(
                *(version.add(number, entry_id) for entry_id in range(20)),
                version.read(number, -1, fence=KEY),
                V3.frame(write_lac(3, ledger_id=LedgerId(number))),
                V3.frame(ForceLedgerRequest(LedgerId(number))),
            )
        await world.until(lambda: world.service.metrics.requests.adds_in_progress.value > 20)
        for client in clients:
            client.close()
        await world.until(lambda: len(world.service.connections) == 1)
        assert {*leftovers(world.service)} <= {"connections"}
        assert await world.client.add(version, 99, 0) == Answer(OK, 99, 0)

    with_bookie(check, seed=seed)


# --- Half frames


def test_half_frames_of_all_clients_share_one_budget() -> None:
    """Whoever has been sending one for longest goes."""

    async def check(world: World) -> None:
        clients = []
        for _ in range(60):
            client = await world.connect()
            client.send((5000).to_bytes(4, "big") + bytes(996))
            clients.append(client)
            await world.pass_time(0.05)
            assert world.service._half_bytes <= 20_000
            assert world.service._half_bytes == sum(world.service.half_frames.values())
        await world.until(lambda: sum(client.is_lost for client in clients) == 40)
        assert [client.is_lost for client in clients] == [True] * 40 + [False] * 20
        assert (await world.client.add(V2, LEDGER, 0)).status is OK

    with_bookie(check, settings=bookie_settings(server=ServerSettings(half_frames_bytes_max=20_000)))


def test_a_busy_client_does_not_pay_for_others_who_never_finish() -> None:
    """Its bytes arrive in pieces that end anywhere, but each of its frames is soon complete.

    Method: it was there first, and always has half a frame under way when others begin theirs.
    """

    async def check(world: World) -> None:
        stream = b"".join(V2.add(LEDGER, entry_id) for entry_id in range(400))
        at, piece = 0, len(V2.add(LEDGER, 0)) + 1
        for number in range(40):
            for _ in range(3):
                world.client.send(stream[at : at + piece])
                at += piece
                await world.pass_time(0.02)
            lazy = await world.connect()
            lazy.send((5000).to_bytes(4, "big") + bytes(996))
            await world.pass_time(0.02)
            assert not world.client.is_lost, number
        world.client.send(stream[at:])
        for entry_id in range(400):
            assert V2.answer(await world.client.frame()) == Answer(OK, LEDGER, entry_id)

    with_bookie(check, settings=bookie_settings(server=ServerSettings(half_frames_bytes_max=10_000)))


def test_one_large_frame_is_always_allowed() -> None:
    async def check(world: World) -> None:
        body = entry(LEDGER, 0, bytes(100_000))
        assert await world.client.add(V2, LEDGER, 0, body) == Answer(OK, LEDGER, 0)
        assert world.service._half_bytes == 0

    settings = bookie_settings(storage=ROOMY, server=ServerSettings(half_frames_bytes_max=1000))
    with_bookie(check, settings=settings)


# --- Connections


def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    async def check(world: World) -> None:
        more = [await world.connect() for _ in range(2)]
        for client in more:
            assert (await client.read(V2, LEDGER, 0)).status is Status.ENOLEDGER
        refused = [await world.connect() for _ in range(5)]
        for client in refused:
            await client.closed()
        assert world.service.metrics.requests.connections_refused.value == 5
        more[0].close()
        await world.until(lambda: len(world.service.connections) == 2)
        assert (await (await world.connect()).add(V2, LEDGER, 0)).status is OK

    with_bookie(check, settings=bookie_settings(server=ServerSettings(connections_max=3)))


# --- A storage that does not keep up


def test_writers_wait_while_the_storage_is_full_and_readers_do_not(version: Version) -> None:
    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        reader = await world.connect()
        async with world.storage.checkpointing:  # No checkpoint can begin.
            sent = 0
            while not world.service._throttled:
                world.client.send(version.add(LEDGER, 1 + sent, entry(LEDGER, 1 + sent, LARGE)))
                sent += 1
                await world.pass_time(0.02)
                assert sent < 200
            assert not world.storage.has_room
            world.client.send(version.read(LEDGER, 0))
            assert (await reader.read(version, LEDGER, 0)).body == entry(LEDGER, 0)
            assert (await reader.ask_v3(BookieInfoRequest())).status is OK
            await world.pass_time(5.0)
            assert world.service._throttled
        answers = [version.answer(await world.client.frame()) for _ in range(sent + 1)]
        assert {answer.status for answer in answers} == {OK}
        assert not world.service._throttled

    with_bookie(check)


def test_too_many_requests_are_refused_when_waiting_is_not_enough(version: Version) -> None:
    """Method: many clients fill the storage at once, each with no more than one chunk. Memory stays bounded."""

    async def check(world: World) -> None:
        clients = [await world.connect() for _ in range(30)]
        async with world.storage.checkpointing:
            for number, client in enumerate(clients):
                frames = [version.add(number, at, entry(number, at, LARGE)) for at in range(20)]
                client.send(*frames)
            await world.until(lambda: world.storage.is_overfull)
            await world.pass_time(2.0)
            assert world.storage.write_cache.total_bytes <= 2 * 60_000 + 2 * len(LARGE)
            busy = [version.answer(frame) for client in clients for frame in client.frames]
            assert Status.ETOOMANYREQUESTS in {answer.status for answer in busy}
        for number, client in enumerate(clients):
            await client.until(lambda client=client: len(client.frames) == 20)  # type: ignore[misc]
            for frame in client.frames:
                answer = version.answer(frame)
                assert answer.ledger_id == number
                here = (await world.client.read(version, number, answer.entry_id)).status
                assert here is (OK if answer.status is OK else here)
                assert answer.status in (OK, Status.ETOOMANYREQUESTS)

    with_bookie(check)


def test_a_disk_that_is_slow_to_sync_holds_writers_back() -> None:
    """The journal's queue is bounded: what it holds is in memory twice."""

    async def check(world: World) -> None:
        world.slow_syncs(1.0)
        clients = [await world.connect() for _ in range(4)]
        for number, client in enumerate(clients):
            client.send(*(V2.add(number, at, entry(number, at, LARGE)) for at in range(100)))
        most = 0
        for _ in range(100):
            await world.pass_time(0.1)
            most = max(most, sum(journal._commit.queued_bytes for journal in world.storage.journals.all))
        # Each may bring one more window of what the network held when the queue was full.
        assert 30_000 <= most <= 30_000 + 4 * WINDOW_BYTES
        world.slow_syncs(0.001)
        for client in clients:
            await client.until(lambda client=client: len(client.frames) == 100)  # type: ignore[misc]
        assert not world.service._throttled

    storage = replace(SMALL_STORAGE, cache_bytes_max=10 << 20)
    with_bookie(check, settings=bookie_settings(storage=storage))


@pytest.mark.extended
def test_many_slow_requests_of_one_client_do_not_pile_up() -> None:
    """Each takes a task while it waits for the disk: reading stops before there are too many."""

    async def check(world: World) -> None:
        await world.client.add(V2, LEDGER, 0)
        world.bookie.host.disk.faults.latency_by_operation_s["usage"] = (1.0, 1.0)
        client = await world.connect()
        client.send(*(V3.frame(BookieInfoRequest()) for _ in range(8_000)))
        most = 0
        for _ in range(50):
            await world.pass_time(0.02)
            most = max(most, len(world.service._tasks))
        assert most <= 5_000
        assert (await world.client.read(V2, LEDGER, 0)).status is OK
        world.bookie.host.disk.faults.latency_by_operation_s.clear()
        await client.until(lambda: len(client.frames) == 8_000)

    with_bookie(check)


def test_many_requests_that_wait_for_the_journal_do_not_pile_up() -> None:
    """A force adds nothing to the journal, so the journal's own bound does not count it."""

    async def check(world: World) -> None:
        world.slow_syncs(100.0)
        client = await world.connect()
        client.send(V2.add(LEDGER, 0), *(V3.frame(ForceLedgerRequest(LEDGER)) for _ in range(20_000)))
        await world.pass_time(50.0)
        (waiting,) = [len(connection._acks[0].others) for connection in connections_of(world) if connection._acks[0]]
        assert 5_000 <= waiting <= 10_000
        assert (await world.client.read(V2, LEDGER, 0)).status is OK
        world.slow_syncs(0.001)
        await client.until(lambda: len(client.frames) == 20_001)

    with_bookie(check)


def test_reads_that_wait_for_the_disk_are_bounded_and_refused_beyond(version: Version) -> None:
    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        await world.restart()
        faults = world.bookie.host.disk.faults
        faults.latency_by_operation_s["read"] = (5.0, 5.0)
        world.client.send(*(version.read(LEDGER, 0) for _ in range(20_200)))
        answers = [version.answer(await world.client.frame()) for _ in range(20_200)]
        refused = [answer for answer in answers if answer.status is not OK]
        assert {answer.status for answer in refused} == {Status.ETOOMANYREQUESTS}
        assert 100 <= len(refused) <= 200
        assert {answer.body for answer in answers if answer.status is OK} == {entry(LEDGER, 0)}

    with_bookie(check)


def test_batches_that_wait_for_the_disk_are_bounded_and_refused_beyond() -> None:
    """Only a few of a connection's batches are in the making; the others wait, and cost memory."""

    async def check(world: World) -> None:
        await fill(world, 10)
        await world.restart()
        world.bookie.host.disk.faults.latency_by_operation_s["read"] = (5.0, 5.0)
        client = await world.connect()
        client.send(*(batch(number % 10) for number in range(1500)))
        await client.until(lambda: len(client.frames) >= 490)
        assert max(len(connection.batches._waiting) for connection in connections_of(world)) == 1000
        assert world.service.metrics.requests.reads_rejected.value == 1500 - 1000 - 4
        await client.until(lambda: len(client.frames) == 1500)
        statuses = [v2.decode_batch_read_response(memoryview(frame)[4:])[0] for frame in client.frames]
        assert statuses == [Status.ETOOMANYREQUESTS] * 496 + [OK] * 1004
        assert (await world.client.read(V2, LEDGER, 0)).status is OK

    with_bookie(check, settings=bookie_settings(storage=ROOMY))


def test_ledgers_that_are_only_read_do_not_pile_up_in_memory() -> None:
    """Without adds there are no checkpoints, at whose end ledgers leave memory."""

    async def check(world: World) -> None:
        table, most = world.storage.table, SMALL_STORAGE.ledgers_cached_max
        for ledger_id in range(40):
            await world.client.add(V2, ledger_id, 0)
        await world.until(lambda: not world.storage.is_dirty and len(table.by_id) <= most)
        world.client.send(*(V2.read(ledger_id, 0) for ledger_id in range(40)))
        for _ in range(40):
            assert V2.answer(await world.client.frame()).status is OK
        assert len(table.by_id) > most
        await world.pass_time(2.0)  # Four checkpoint intervals, and long before garbage collection.
        assert len(table.by_id) == most

    with_bookie(check)


def test_clients_do_not_wait_for_one_another() -> None:
    async def check(world: World) -> None:
        await fill(world, 50)
        await world.restart()
        stuck = stubborn(await world.connect())
        stuck.send(*GREEDY["reads of version 2"])

        async def work(number: int) -> None:
            client = await world.connect()
            for entry_id in range(30):
                assert await client.add(V3, number, entry_id) == Answer(OK, number, entry_id)
                assert (await client.read(V2, LEDGER, entry_id)).body == entry(LEDGER, entry_id, LARGE)

        await asyncio.gather(*(work(number) for number in range(20, 24)))
        assert not stuck.frames

    with_bookie(check, settings=bookie_settings(server=ServerSettings(unsent_bytes_max=20_000)))
