"""Shared writers: opened once, given back when idle, gone when they failed; and appends that go on whoever leaves."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.proxy.gateway.small_streams import SmallStreams, place

from quire.errors import (
    AppendOutcomeUnknown,
    OverCapacity,
    ProxyDraining,
    StreamOwned,
    StreamUnavailable,
    TxidOutOfOrder,
    WriterFenced,
)
from quire.proxy.gateway.settings import GatewaySettings
from quire.proxy.gateway.writers import SharedWriters
from quire.testing import Simulation, simulate


def run(work: Callable[[SharedWriters, SmallStreams], Awaitable[None]], **settings: float) -> None:
    async def main(_: Simulation) -> None:
        client = SmallStreams()
        writers = SharedWriters(client, GatewaySettings(**settings))  # type: ignore[arg-type]
        try:
            await work(writers, client)
        finally:
            await writers.aclose()
        assert client.open_writers == []

    for seed in range(5):
        simulate(seed, main)


def test_many_requests_share_one_writer() -> None:
    async def work(writers: SharedWriters, client: SmallStreams) -> None:
        found = await asyncio.gather(*(writers.append("s", [b"%d" % number], None) for number in range(50)))
        assert sorted(dlsn for dlsns in found for dlsn in dlsns) == list(map(place, range(50)))
        assert client.opened == 1

    run(work)


def test_an_idle_writer_is_given_back_and_a_busy_one_is_not() -> None:
    async def work(writers: SharedWriters, client: SmallStreams) -> None:
        await writers.append("idle", [b"a"], None)
        for _ in range(20):
            await writers.append("busy", [b"a"], None)
            await asyncio.sleep(5)
        assert client.open_writers == ["busy"]
        client.append_s = 500.0
        slow = asyncio.create_task(writers.append("busy", [b"a"], None))
        await asyncio.sleep(400)
        assert client.open_writers == ["busy"]
        await slow

    run(work, writer_idle_s=60.0, append_timeout_s=1000.0)


def test_a_writer_that_failed_is_not_used_again() -> None:
    async def work(writers: SharedWriters, client: SmallStreams) -> None:
        client.append_errors = [WriterFenced("another took over")]
        with pytest.raises(WriterFenced):
            await writers.append("s", [b"a"], None)
        assert await writers.append("s", [b"b"], None) == [place(0)]
        assert client.opened == 2

    run(work)


def test_a_mistake_of_one_caller_costs_the_others_nothing() -> None:
    async def work(writers: SharedWriters, client: SmallStreams) -> None:
        client.append_errors = [TxidOutOfOrder("lower")]
        with pytest.raises(TxidOutOfOrder):
            await writers.append("s", [b"a"], [1])
        await writers.append("s", [b"b"], None)
        assert client.opened == 1

    run(work)


def test_a_stream_that_another_client_writes_is_refused_until_it_is_free() -> None:
    async def work(writers: SharedWriters, client: SmallStreams) -> None:
        await client.create_stream("s")
        client.streams["s"].owner = "somebody"
        with pytest.raises(StreamOwned):
            await writers.append("s", [b"a"], None)
        client.streams["s"].owner = None
        assert await writers.append("s", [b"a"], None) == [place(0)]

    run(work)


def test_an_append_goes_on_when_its_client_has_left() -> None:
    async def work(writers: SharedWriters, client: SmallStreams) -> None:
        client.append_s = 5.0
        leaving = asyncio.create_task(writers.append("s", [b"a"], None))
        await asyncio.sleep(1)
        leaving.cancel()
        await asyncio.sleep(10)
        assert client.streams["s"].records == [b"a"]
        assert client.open_writers == ["s"]

    run(work)


def test_an_append_that_takes_too_long_is_of_unknown_outcome() -> None:
    async def work(writers: SharedWriters, client: SmallStreams) -> None:
        client.append_s = 5.0
        with pytest.raises(AppendOutcomeUnknown):
            await writers.append("s", [b"a"], None)
        await asyncio.sleep(10)
        assert client.streams["s"].records == [b"a"]

    run(work, append_timeout_s=1.0)


def test_the_oldest_idle_writer_makes_room_and_a_busy_one_does_not() -> None:
    async def work(writers: SharedWriters, client: SmallStreams) -> None:
        for stream in ("a", "b", "c"):
            await writers.append(stream, [b"1"], None)
            await asyncio.sleep(1)
        assert client.open_writers == ["b", "c"]
        client.append_s = 5.0
        busy = [asyncio.create_task(writers.append(stream, [b"2"], None)) for stream in ("b", "c")]
        await asyncio.sleep(1)
        with pytest.raises(OverCapacity):
            await writers.append("d", [b"1"], None)
        await asyncio.gather(*busy)

    run(work, writers_max=2)


def test_no_writer_is_open_while_a_stream_is_deleted() -> None:
    async def work(writers: SharedWriters, client: SmallStreams) -> None:
        client.append_s = 2.0
        under_way = asyncio.create_task(writers.append("s", [b"a"], None))
        await asyncio.sleep(1)
        async with writers.without("s"):
            assert client.open_writers == []
            with pytest.raises(StreamUnavailable):
                await writers.append("s", [b"b"], None)
        assert await under_way == [place(0)]
        await writers.append("s", [b"b"], None)

    run(work)


def test_sealing_needs_the_writer_that_is_here() -> None:
    async def work(writers: SharedWriters, client: SmallStreams) -> None:
        assert not await writers.seal("s")
        await writers.append("s", [b"a"], None)
        assert await writers.seal("s")
        assert client.streams["s"].is_sealed
        assert client.open_writers == []

    run(work)


def test_stopping_lets_appends_end_and_takes_no_others() -> None:
    async def work(writers: SharedWriters, client: SmallStreams) -> None:
        client.append_s = 2.0
        under_way = asyncio.create_task(writers.append("s", [b"a"], None))
        await asyncio.sleep(1)
        await writers.aclose()
        assert await under_way == [place(0)]
        with pytest.raises(ProxyDraining):
            await writers.append("s", [b"b"], None)

    run(work)
