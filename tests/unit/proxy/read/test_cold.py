"""Readers of archived segments: they are told so, and cost the others nothing, however long cold storage takes."""

import asyncio

from tests.support.proxies.read_world import EARLIEST, LATEST, SETTINGS, World, at, numbered, on_proxy, settings

from quire.codec.pb import quire_v1_pb2 as pb
from quire.cold import ColdStore, ColdStores
from quire.cold.blocking import at_once
from quire.cold.memory_store import MemoryStore
from quire.errors import OverCapacity, PositionInFuture
from quire.rpc.serving.results import result_of
from quire.stream.archiving import archive_stream
from quire.stream.cold_moves import drop_hot

ROOT = "memory:archive"


class HeldStores(ColdStores):
    """Whose answers are held back while `may_answer` is not set."""

    def __init__(self) -> None:
        super().__init__(run=at_once, memory={})
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = self.asked_max = 0

    def _made(self, root: str) -> ColdStore:
        return _HeldStore(root, self._memory.setdefault(root, {}), self)


class _HeldStore(MemoryStore):
    def __init__(self, root: str, objects: dict[str, bytes], stores: HeldStores) -> None:
        super().__init__(root, objects)
        self._stores = stores

    async def read(self, name: str, start: int, end: int) -> bytes:
        stores = self._stores
        stores.asked += 1
        stores.asked_max = max(stores.asked_max, stores.asked)
        try:
            await stores.may_answer.wait()
            return await super().read(name, start, end)
        finally:
            stores.asked -= 1


def stores_of(world: World) -> HeldStores:
    stores = world.behind.context.cold
    assert isinstance(stores, HeldStores)
    return stores


async def write_cold(world: World, stream: str) -> None:
    """Ten records, whose txids are their numbers, in two segments, of which bookies have only the second."""
    await world.writers.create_stream(stream)
    for first in (0, 5):
        async with world.writer(stream) as writer:
            for number in range(first, first + 5):
                await writer.append(b"%d" % number, txid=number)
    await archive_stream(world.writers.context, stream, ROOT, settings=SETTINGS)
    assert await drop_hot(world.writers.context, stream) == [1]


def readers(world: World, mode: str) -> float:
    return world.measured("quire_read_proxy_readers", mode=mode)


def test_a_reader_is_told_that_it_reads_cold_storage_and_when_it_does_no_more() -> None:
    async def check(world: World) -> None:
        await write_cold(world, "old")
        stores = stores_of(world)
        stores.may_answer.clear()
        client = world.read(EARLIEST, stream="old", idle_ping_ms=100)
        await world.until(lambda: pb.COLD in client.modes)
        assert [readers(world, mode) for mode in ("cold", "catchup", "tail")] == [1, 0, 0]
        assert [each["mode"] for each in world.proxy.debug()["readers"]] == ["COLD"]
        (lane,) = world.proxy.debug()["streams"]["old"]["lanes"]
        assert lane["is_cold"]
        stores.may_answer.set()
        await world.until(lambda: client.modes[-1:] == [pb.TAIL])
        assert client.payloads == numbered(10)
        assert [readers(world, mode) for mode in ("cold", "catchup", "tail")] == [0, 0, 1]

    on_proxy(check, cold=HeldStores)


def test_a_place_behind_control_records_is_one_of_the_archived_segment_too() -> None:
    """Method: a reader is behind the last entry that bookies had of a segment, which had no records, when they have it
    no more; and one is on it. Others have read the file before them, along the same lane."""

    async def check(world: World) -> None:
        await world.writers.create_stream("old")
        tail = world.read(EARLIEST, stream="old")
        for first in (0, 5):
            async with world.writer("old") as writer:
                for number in range(first, first + 5):
                    await writer.append(b"%d" % number, txid=number)
                # By a control record that follows.
                await world.until(lambda shown=first + 5: len(tail.records) == shown)  # type: ignore[misc]
        archived = await archive_stream(world.writers.context, "old", ROOT, settings=SETTINGS)
        entries, last = archived[0].file.entries, archived[0].segment.completion
        assert last is not None
        assert entries > last.last_dlsn.entry_id + 1
        assert await drop_hot(world.writers.context, "old") == [1]
        first_of_all = world.read(EARLIEST, stream="old")
        await world.until(lambda: first_of_all.payloads == numbered(10))
        others = [world.read(at(1, entry_id), stream="old") for entry_id in (entries - 1, entries)]
        await world.until(lambda: all(client.error or len(client.records) == 5 for client in others))
        assert [(client.error, client.payloads) for client in others] == [(None, numbered(5, 5))] * 2
        refused = world.read(at(1, entries + 1), stream="old")
        await world.until(lambda: refused.error is not None)
        assert isinstance(refused.error, PositionInFuture)

    on_proxy(check, cold=HeldStores)


def test_cold_storage_that_does_not_answer_costs_readers_at_the_tail_nothing() -> None:
    """Method: more readers wait for cold storage, by place and by txid, than there are lanes for others, and than
    places are looked up at once. Then readers at a tail come, and one that catches up."""

    async def check(world: World) -> None:
        for number in range(4):
            await write_cold(world, f"old{number}")
        await world.write(5)
        stores = stores_of(world)
        stores.asked_max = 0
        stores.may_answer.clear()
        cold = [world.read(EARLIEST, stream=f"old{number}") for number in range(4)]
        cold += [world.read(pb.Position(txid=3), stream=f"old{number}", format=pb.RECORDS) for number in range(4)]
        # Four lanes, and two searches: there are no turns for more of them.
        await world.until(lambda: readers(world, "cold") == 4 and stores.asked == 2)
        await world.until(lambda: world.measured("quire_read_proxy_cold_reads", state="waiting") == 4)
        async with asyncio.timeout(2.0), world.writer() as writer:
            tail, late = world.read(LATEST), world.read(EARLIEST)
            await world.until(lambda: bool(tail.events))
            for number in range(5, 10):
                await writer.append(b"%d" % number)
            await world.until(lambda: len(tail.records) == 5 and len(late.records) == 10)
        assert [client.error for client in cold] == [None] * 8
        stores.may_answer.set()
        await world.until(lambda: all(client.error or client.payloads[-1:] == [b"9"] for client in cold))
        assert [client.payloads for client in cold] == [numbered(10)] * 4 + [numbered(7, 3)] * 4
        assert stores.asked_max == 2

    on_proxy(
        check,
        cold=HeldStores,
        settings=settings(scan_lanes_max=1, openings_max=2, cold_reads_max=2, lane_wait_s=60.0, passed_s=0.1),
    )


def test_more_places_in_cold_storage_than_there_are_lanes_are_refused_and_may_come_again() -> None:
    async def check(world: World) -> None:
        for number in range(3):
            await write_cold(world, f"old{number}")
        stores = stores_of(world)
        stores.may_answer.clear()
        taken = [world.read(EARLIEST, stream=f"old{number}") for number in range(2)]
        await world.until(lambda: readers(world, "cold") == 2)
        refused = world.read(EARLIEST, stream="old2")
        await world.until(lambda: refused.error is not None)
        assert isinstance(refused.error, OverCapacity)
        assert result_of(refused.error).code == pb.READ_OVERLOADED
        stores.may_answer.set()
        await world.until(lambda: all(len(client.records) == 10 for client in taken))
        again = world.read(EARLIEST, stream="old2")
        await world.until(lambda: len(again.records) == 10)

    on_proxy(check, cold=HeldStores, settings=settings(cold_lanes_max=2))


def test_who_waits_too_long_for_cold_storage_is_refused() -> None:
    async def check(world: World) -> None:
        await write_cold(world, "old0")
        await write_cold(world, "old1")
        stores = stores_of(world)
        stores.may_answer.clear()
        first = world.read(EARLIEST, stream="old0")
        await world.until(lambda: stores.asked == 1)
        second = world.read(EARLIEST, stream="old1")
        await world.until(lambda: second.error is not None)
        assert isinstance(second.error, OverCapacity)
        assert result_of(second.error).code == pb.READ_OVERLOADED
        assert result_of(second.error).retry_after_ms == 500
        stores.may_answer.set()
        await world.until(lambda: len(first.records) == 10)

    on_proxy(check, cold=HeldStores, settings=settings(cold_reads_max=1, lane_wait_s=0.5))
