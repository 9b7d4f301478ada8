"""Reading through a proxy: order, sharing, memory and ends, with real bookies in a simulation."""

import asyncio

import pytest
from tests.support.proxies.read_world import CALLER, LATEST, World, at, numbered, on_proxy, settings

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, NoSuchStream, OverCapacity, ProxyDraining
from quire.rpc.serving import methods
from quire.rpc.serving.results import result_of


def test_a_reader_gets_what_is_there_and_what_comes() -> None:
    async def check(world: World) -> None:
        await world.write(20)
        client = world.read()
        await world.until(lambda: len(client.records) >= 20)
        await world.write(20, first=20)
        await world.until(lambda: len(client.records) >= 40)
        assert client.payloads == numbered(40)
        client.check_order()
        assert client.events[0].opened.resolved == at(1, 0).dlsn
        assert client.modes[-1] == pb.TAIL

    on_proxy(check, seeds=3)


def test_latest_gives_only_what_comes() -> None:
    async def check(world: World) -> None:
        await world.write(5)
        client = world.read(LATEST)
        await world.until(lambda: bool(client.events))
        await world.write(5, first=5)
        await world.until(lambda: len(client.records) >= 5)
        assert client.payloads == numbered(5, first=5)

    on_proxy(check)


def test_entries_are_read_once_however_many_readers_there_are() -> None:
    """Row 20: readers that begin at the same time share one lane, from the first entry to the tail."""

    async def check(world: World) -> None:
        await world.write(100)
        before = world.entries_read()
        clients = [world.read() for _ in range(100)]
        await world.until(lambda: all(len(client.records) >= 100 for client in clients))
        await world.write(100, first=100)
        await world.until(lambda: all(len(client.records) >= 200 for client in clients))
        for client in clients:
            assert client.payloads == numbered(200)
        metrics = world.proxy._service.metrics
        assert metrics.lanes_started.value == 1
        # With each writer comes a control record, or a few where no other entry follows at once.
        assert world.entries_read() - before == metrics.read_entries.value <= 230
        assert metrics.sent_entries.value == 100 * metrics.read_entries.value

    on_proxy(check)


def test_readers_at_different_places_meet_at_the_tail() -> None:
    async def check(world: World) -> None:
        places = await world.write(100)
        clients = [world.read(at(*places[number])) for number in (0, 30, 60, 90)]
        await world.until(lambda: all(client.payloads[-1:] == [b"99"] for client in clients))
        for client, first in zip(clients, (0, 30, 60, 90), strict=True):
            assert client.payloads == numbered(100 - first, first)
        before = world.entries_read()
        await world.write(50, first=100)
        await world.until(lambda: all(client.payloads[-1:] == [b"149"] for client in clients))
        assert world.entries_read() - before < 70, "at the tail each entry is read once"
        assert all(client.modes[-1] == pb.TAIL for client in clients)
        for client in clients:
            client.check_order()

    on_proxy(check, settings=settings(lane_read_bytes=300))


def test_a_reader_that_stops_changes_nothing_for_others_and_memory_stays_bounded() -> None:
    """Row 20. Method: one reader stops taking messages while a hundred times the cache is written; then it goes on."""
    payload = b"x" * 2000

    async def check(world: World) -> None:
        slow, quick = world.read(), world.read()
        lanes = world.proxy._service.lanes
        most = 0

        async def write(count: int) -> None:
            nonlocal most
            async with world.writer() as writer:
                for _ in range(count):
                    await writer.append(payload)
                    most = max(most, lanes.tail_pool.bytes)

        await write(5)
        await world.until(lambda: len(slow.records) == len(quick.records) == 5)
        slow.may_go.clear()
        await write(500)
        await world.until(lambda: len(quick.records) == 505)
        assert len(slow.records) <= 6
        assert most <= lanes.tail_pool.budget_bytes + 2 * len(payload)
        assert lanes.tail_pool.evicted > 0
        slow.may_go.set()
        await world.until(lambda: len(slow.records) == 505)
        slow.check_order()
        assert pb.CATCHUP in slow.modes
        await write(5)
        await world.until(lambda: len(slow.records) == len(quick.records) == 510)
        assert slow.modes[-1] == pb.TAIL, "it is back"
        assert world.proxy._service.metrics.dropped_out.value >= 1

    on_proxy(check, settings=settings(cache_bytes_max=40_000), seeds=1)


def test_a_stream_that_is_deleted_ends_its_readers_and_never_mixes_with_the_next_one() -> None:
    """Row 18. Places and names are the same again; the readers of the old stream are told that it is gone, also those
    that slept meanwhile, and readers of the new one get nothing of what is still kept of the old one.
    """

    async def check(world: World) -> None:
        await world.write(10)
        waiting, asleep = world.read(), world.read()
        await world.until(lambda: len(waiting.records) == len(asleep.records) == 10)
        asleep.may_go.clear()
        await world.writers.delete_stream("s")
        await world.writers.create_stream("s")
        await world.write(10, first=100)
        fresh = world.read()
        await world.until(lambda: len(fresh.records) == 10)
        assert fresh.payloads == numbered(10, first=100)
        asleep.may_go.set()
        await world.until(lambda: waiting.error is not None and asleep.error is not None)
        for client in (waiting, asleep):
            assert isinstance(client.error, NoSuchStream)
            assert client.payloads == numbered(10)
        await world.write(10, first=110)
        await world.until(lambda: len(fresh.records) == 20)

    on_proxy(check, seeds=4)


def test_a_lane_that_waits_for_the_next_segment_does_not_take_that_of_another_stream() -> None:
    """The old stream had one segment; so soon is it deleted and created again, with two, that no watch sees it gone."""

    async def check(world: World) -> None:
        await world.write(3)
        client = world.read()
        await world.until(lambda: len(client.records) == 3)
        world.tree.stall("proxy", 2.0)
        await world.writers.delete_stream("s")
        await world.writers.create_stream("s")
        await world.write(3, first=100)
        await world.write(3, first=200)
        await world.until(lambda: client.error is not None)
        assert isinstance(client.error, NoSuchStream)
        assert client.payloads == numbered(3)

    on_proxy(check, seeds=4)


def test_a_sealed_stream_ends() -> None:
    async def check(world: World) -> None:
        await world.write(10)
        clients = [world.read(), world.read(format=pb.RECORDS), world.read(LATEST)]
        await world.until(lambda: len(clients[0].records) == len(clients[1].records) == 10)
        await world.writers.seal_stream("s")
        await world.until(lambda: all(client.has_ended for client in clients))
        late = world.read()
        await world.until(lambda: late.has_ended)
        assert late.payloads == clients[0].payloads == numbered(10)
        assert clients[2].records == []

    on_proxy(check)


def test_many_readers_are_told_at_intervals_and_one_alone_at_once() -> None:
    """Method: one record every 2 ms. Each of 200 readers gets a message every 20 ms, one alone gets each record."""

    async def check(world: World) -> None:
        async def write(first: int) -> None:
            async with world.writer() as writer:
                for number in range(first, first + 100):
                    await writer.append(b"%d" % number)
                    await world.pass_time(0.002)

        alone = world.read(LATEST)
        await world.until(lambda: bool(alone.events))
        await write(0)
        await world.until(lambda: len(alone.records) == 100)
        assert len(alone.events) > 90
        many = [world.read(LATEST) for _ in range(200)]
        await world.until(lambda: all(client.events for client in many))
        began_s = world.now_s
        await write(100)
        await world.until(lambda: all(len(client.records) == 100 for client in many))
        messages_max = (world.now_s - began_s) / 0.02 + 3
        assert max(len(client.events) for client in many) <= messages_max < 100

    on_proxy(check, settings=settings(fan_out_s_per_reader=1.0, fan_out_interval_s_max=0.02), seeds=1)


def test_messages_are_handed_out_without_waking_readers_and_one_that_has_no_room_costs_nobody() -> None:
    """Method: 20 readers take what they are handed, in rounds of 20 ms. One of them stops for a while, in which the
    others get everything; then it goes on where it was."""

    async def check(world: World) -> None:
        many = [world.read(LATEST, offers=True) for _ in range(20)]
        await world.until(lambda: all(client.events for client in many))
        stopped, others = many[0], many[1:]
        async with world.writer() as writer:
            for number in range(200):
                if number == 50:
                    stopped.may_go.clear()
                await writer.append(b"%d" % number)
                await world.pass_time(0.002)
            await world.until(lambda: all(client.payloads == numbered(200) for client in others))
            assert len(stopped.records) < 80
            stopped.may_go.set()
            await world.until(lambda: stopped.payloads == numbered(200))
            # Which readers are woken, and which are not, is nothing that they could tell.
            assert all(client.offered > len(client.events) / 2 for client in others)
            assert len({tuple(client.came_s) for client in others}) == 1, "all have their turn in the same round"
            await writer.seal()
        await world.until(lambda: all(client.has_ended for client in many))
        for client in many:
            assert client.error is None
            assert client.payloads == numbered(200)

    on_proxy(check, settings=settings(fan_out_s_per_reader=1.0, fan_out_interval_s_max=0.02))


def test_a_proxy_serves_its_own_namespace_only() -> None:
    async def check(world: World) -> None:
        for name in ("", "ns"):
            assert (await world.fetch(at(1, 0), namespace=name)).next == at(1, 0).dlsn
        with pytest.raises(InvalidArgument, match="'ns', not 'other'"):
            await world.fetch(at(1, 0), namespace="other")

    on_proxy(check, seeds=1)


def test_more_readers_than_may_be_are_refused() -> None:
    async def check(world: World) -> None:
        first, second = world.read(), world.read()
        await world.until(lambda: first.error is not None or second.error is not None)
        refused, taken = (first, second) if first.error else (second, first)
        assert isinstance(refused.error, OverCapacity)
        assert refused.error.facts["retry_after_ms"] == 1000
        assert result_of(refused.error).code == pb.READ_OVERLOADED, "another proxy may have room"
        await taken.stop()
        third = world.read()
        await world.until(lambda: bool(third.events))

    on_proxy(check, settings=settings(readers_max=1), seeds=1)


def test_more_places_than_there_are_lanes_wait_their_turn_and_idle_lanes_make_room() -> None:
    """Method: ten readers at ten places, two lanes. Those whose lane is closed start another one when they go on."""

    async def check(world: World) -> None:
        places = await world.write(100)
        clients = [world.read(at(*places[number * 10])) for number in range(10)]
        await world.until(lambda: all(client.error or client.payloads[-1:] == [b"99"] for client in clients))
        for number, client in enumerate(clients):
            assert client.error is None
            assert client.payloads == numbered(100 - number * 10, number * 10)

    on_proxy(check, settings=settings(scan_lanes_max=2, lane_read_bytes=100), seeds=3)


def test_a_proxy_that_drains_sends_its_readers_elsewhere() -> None:
    async def check(world: World) -> None:
        await world.write(3)
        client = world.read()
        await world.until(lambda: len(client.records) == 3)
        world.proxy.ask_to_drain()
        await world.until(lambda: client.error is not None)
        assert isinstance(client.error, ProxyDraining)
        late = world.read()
        await world.until(lambda: late.error is not None)
        assert isinstance(late.error, ProxyDraining)
        assert world.proxy.status == pb.DOWN
        assert world.proxy.draining.is_set()

    on_proxy(check, seeds=1)


def test_a_proxy_is_found_while_it_is_joined() -> None:
    async def check(world: World) -> None:
        assert world.proxy.not_ready
        async with world.proxy.join(shard=3):
            await world.until(lambda: bool(world.proxy._readers.current))
            answer = await world.proxy.handshake(pb.HandshakeRequest(), CALLER)
            assert answer.role == pb.READ_PROXY
            assert [(each.role, each.address.host, each.shard) for each in answer.members] == [
                (pb.READ_PROXY, "proxy", 3)
            ]
            assert world.proxy.not_ready == []
        await world.until(lambda: not world.proxy._readers.current)

    on_proxy(check, seeds=1)


def test_what_is_going_on_can_be_seen() -> None:
    async def check(world: World) -> None:
        await world.write(3)
        client = world.read()
        await world.until(lambda: len(client.records) == 3)
        await world.until(lambda: client.modes[-1:] == [pb.TAIL] or world.proxy.debug()["readers"][0]["mode"] == "TAIL")
        seen = world.proxy.debug()
        assert seen["streams"]["s"]["lanes"][0]["is_tail"]
        assert seen["readers"][0]["stream"] == "s"
        assert seen["cache"]["tail"]["bytes"] >= 0
        assert world.proxy.statistics()["readers"] == 1
        names = {metric.name for metric in world.proxy.metrics.collect()}
        assert "quire_read_proxy_cache_bytes" in names

    on_proxy(check, seeds=1)


def test_every_call_of_reading_and_of_the_catalog_is_served() -> None:
    async def check(world: World) -> None:
        served = set(world.proxy.handlers())
        wanted = {method for (service, _), method in methods.METHODS.items() if service in ("Reader", "Catalog")}
        assert wanted <= served
        await asyncio.sleep(0)

    on_proxy(check, seeds=1)
