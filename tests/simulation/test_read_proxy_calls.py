"""A read proxy behind its transport, on the simulated network: what direct calls of its handlers cannot show."""

import asyncio

import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.entries import decode_entry
from quire.errors import NoSuchStream, PositionTruncated
from quire.rpc.serving.methods import COMMIT_POSITION, FETCH, LIST_STREAMS, READ, READ_SESSION
from quire.rpc.serving.transport import Channel
from quire.testing.sim_calls import SimTransport, bind_sim
from quire.types import EntryId, Lssn
from tests.support.proxies.read_world import LATEST, STREAM, World, at, numbered, on_proxy


async def served(world: World) -> Channel:
    """The way to the proxy from another host."""
    server = await world.sim.host("proxy").spawn(bind_sim(world.sim.host("proxy").runtime, "proxy", 4100))
    await world.sim.host("proxy").spawn(server.start(world.proxy.handlers()))
    world.stack.push_async_callback(server.aclose)
    transport = SimTransport(world.sim.host("client").runtime, "client-1")
    world.stack.push_async_callback(transport.aclose)
    return transport.channel("proxy:4100")


def payloads(event: pb.ReadEvent) -> list[bytes]:
    found = [
        record
        for entry in event.entries
        for record in decode_entry(
            entry.data, lssn=Lssn(entry.lssn), entry_id=EntryId(entry.entry_id), enveloped=not entry.is_bare
        )
    ]
    return [record.payload for record in found if not record.is_control]


def test_entries_come_over_the_network_and_a_reader_that_goes_leaves_nothing_behind() -> None:
    async def check(world: World) -> None:
        await world.write(50)
        channel, got = await served(world), list[bytes]()
        async with asyncio.timeout(30), channel.stream(READ, pb.ReadRequest(stream=STREAM)) as messages:
            async for event in messages:
                got += payloads(event)
                if len(got) == 50:
                    break
        assert got == numbered(50)
        await world.until(lambda: not world.proxy._service.readings)

    on_proxy(check)


def test_a_reader_that_takes_nothing_costs_what_fits_into_its_window() -> None:
    """The proxy makes the next message when the last one has left: so much is under way, and no more."""

    async def check(world: World) -> None:
        channel = await served(world)
        async with channel.stream(READ, pb.ReadRequest(stream=STREAM, start=LATEST)) as messages:
            assert (await anext(messages)).opened.resolved == at(1, 0).dlsn
            async with world.writer() as writer:
                for _ in range(100):
                    await writer.append(b"x" * 20_000)
            await world.pass_time(5.0)
            sent = world.proxy._service.metrics.sent_bytes.value
            assert sent < 1_500_000
            count = 0
            async with asyncio.timeout(60):
                async for event in messages:
                    count += len(payloads(event))
                    if count == 100:
                        break

    on_proxy(check, seeds=1)


def test_refusals_arrive_as_the_same_errors() -> None:
    async def check(world: World) -> None:
        channel = await served(world)
        await world.write(3)
        last = (await world.write(3, first=3))[0]
        await world.write(1, first=6)
        await world.writers.truncate_stream(STREAM, before=last)
        with pytest.raises(PositionTruncated) as refused:
            async with channel.stream(READ, pb.ReadRequest(stream=STREAM, start=at(1, 0))) as messages:
                await anext(messages)
        assert refused.value.facts["earliest"] == last
        with pytest.raises(NoSuchStream):
            await channel.call(FETCH, pb.FetchRequest(stream="missing"), timeout_s=5)
        commit = pb.CommitPositionRequest(stream="missing", subscription="x", position=at(1, 0).dlsn)
        with pytest.raises(NoSuchStream):
            await channel.call(COMMIT_POSITION, commit, timeout_s=5)

    on_proxy(check, seeds=1)


def test_sessions_and_lists_work_over_the_network() -> None:
    async def check(world: World) -> None:
        await world.write(20)
        channel, got = await served(world), list[bytes]()
        async with channel.stream(LIST_STREAMS, pb.ListStreamsRequest()) as pages:
            assert [list(page.streams) async for page in pages] == [["s"]]
        request = pb.SessionStart(id=7, credit_bytes=1 << 20, request=pb.ReadRequest(stream=STREAM))
        async with asyncio.timeout(30), channel.duplex(READ_SESSION) as session:
            await session.send(pb.SessionRequest(start=request))
            async for event in session:
                assert event.id == 7
                got += payloads(event.event)
                if len(got) == 20:
                    break
        assert got == numbered(20)
        await world.until(lambda: not world.proxy._service.readings)

    on_proxy(check)
