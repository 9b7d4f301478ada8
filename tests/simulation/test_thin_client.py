"""The thin client, with real proxies and real bookies at the other end: rows of the failure table from its side."""

import asyncio

import pytest

import quire
from quire.codec.stream.records import LogRecord
from quire.errors import NoSuchStream, PositionTruncated, StreamOwned, StreamSealed
from quire.proxy.client.remote_source import RemoteSource
from quire.stream.reader import StreamReader
from quire.types import DLSN
from tests.simulation.serving.world import SESSION_S, Serving, serve


async def payloads(reader: StreamReader, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [record.payload for record in await reader.read_many(count - len(found), timeout_s=30)]
    return found


def test_a_program_that_changes_its_uri_does_the_same() -> None:
    async def check(world: Serving) -> None:
        async with world.client() as client:
            assert not await client.stream_exists("orders")
            await client.create_stream("orders")
            await client.create_stream("orders")
            assert await client.list_streams() == ["orders"]
            async with client.open_writer("orders") as writer:
                first = await writer.append(b"paid", txid=1)
                rest = await writer.append_many([b"a", b"b"], txids=[2, 3])
                members = await writer.append_set([b"c", b"d"], txid=4, compression="lz4")
                assert [first, *rest, *members] == sorted([first, *rest, *members])
                assert writer.last_txid == 4
            async with client.open_reader("orders") as reader:
                assert await payloads(reader, 5) == [b"paid", b"a", b"b", b"c", b"d"]
            async with client.open_reader("orders", start=quire.txid(3)) as reader:
                assert await payloads(reader, 3) == [b"b", b"c", b"d"]
            async with client.open_reader("orders", start=f">{rest[0]}", subscription="us") as reader:
                assert await payloads(reader, 1) == [b"b"]
                assert await reader.commit() == reader.position
            async with client.open_reader("orders", start="latest", subscription="us") as reader:
                assert await payloads(reader, 2) == [b"c", b"d"]
            assert set(await client.subscriptions("orders")) == {"us"}
            await client.delete_subscription("orders", "us")
            await client.seal_stream("orders")
            await client.seal_stream("orders")
            async with client.open_reader("orders") as reader:
                assert [record.txid async for record in reader] == [1, 2, 3, 4, 4]
            with pytest.raises(StreamSealed):
                async with client.open_writer("orders") as writer:
                    await writer.append(b"late")
            info = await client.stream_info("orders")
            assert (info.is_sealed, info.record_count) == (True, 5)
            await client.set_stream_metadata("orders", b"kept")
            assert (await client.stream_metadata("orders"))[0] == b"kept"
            await client.rename_stream("orders", "old/orders")
            assert await client.list_streams() == ["old/orders"]
            await client.delete_stream("old/orders")
            with pytest.raises(NoSuchStream):
                await client.stream_info("old/orders")

    serve(check)


def test_records_outlive_the_proxy_that_took_them_and_come_once_and_in_order() -> None:
    """Row 1, and 4: the owner is killed under load, and its successor takes over within the session and a second."""

    async def check(world: Serving) -> None:
        async with world.client() as client, client.open_writer("s") as writer:
            owner = await client.stream_owner("s")
            assert owner is not None
            acked: dict[bytes, DLSN] = {}
            slowest_s = 0.0

            async def write(number: int) -> None:
                nonlocal slowest_s
                begun_s = world.now_s
                acked[b"%04d" % number] = await writer.append(b"%04d" % number)
                slowest_s = max(slowest_s, world.now_s - begun_s)

            appends = []
            for number in range(300):
                appends.append(asyncio.create_task(write(number)))
                await world.pause(0.01)
                if number == 100:
                    await world.kill(owner.partition(":")[0])
            await asyncio.gather(*appends)
            assert slowest_s < SESSION_S + 1.0
            assert await client.stream_owner("s") != owner
            async with client.open_reader("s") as reader:
                found: list[LogRecord] = []
                while len(found) < 300:
                    found += await reader.read_many(300, timeout_s=30)
            assert [record.payload for record in found] == [b"%04d" % number for number in range(300)]
            assert {record.payload: record.dlsn for record in found} == acked

    serve(check, seeds=4)


def test_a_drained_proxy_costs_its_clients_no_failed_write() -> None:
    """Row 8."""

    async def check(world: Serving) -> None:
        async with world.client() as client, client.open_writer("s") as writer:
            owner = await client.stream_owner("s")
            assert owner is not None
            draining: asyncio.Task[None] | None = None
            slowest_s = 0.0
            for number in range(200):
                begun_s = world.now_s
                await writer.append(b"%04d" % number)
                slowest_s = max(slowest_s, world.now_s - begun_s)
                await world.pause(0.005)
                if number == 50:
                    name = owner.partition(":")[0]
                    draining = world.sim.host(name).spawn(world.writers[name].drain())
            assert slowest_s < 1.0
            assert await client.stream_owner("s") != owner
            async with client.open_reader("s") as reader:
                assert await payloads(reader, 200) == [b"%04d" % number for number in range(200)]
            assert draining is not None
            await draining

    serve(check, seeds=3)


def test_a_reader_goes_on_at_another_read_proxy() -> None:
    """Row 19: no gap, no repeat, and no long stop."""

    async def check(world: Serving) -> None:
        async with (
            world.client() as client,
            client.open_writer("s") as writer,
            client.open_reader("s") as reader,
        ):
            found: list[bytes] = []
            slowest_s = 0.0
            for number in range(150):
                await writer.append(b"%d" % number)
                begun_s = world.now_s
                found += await payloads(reader, 1)
                slowest_s = max(slowest_s, world.now_s - begun_s)
                if number in (40, 90):
                    assert isinstance(reader._source, RemoteSource)
                    assert reader._source.address is not None
                    await world.kill(reader._source.address.partition(":")[0])
                if number == 60:
                    await world.start_reader("r9")
            assert found == [b"%d" % number for number in range(150)]
            assert slowest_s < 1.0

    serve(check, readers=2, seeds=3)


def test_an_exclusive_reader_shuts_others_out_until_it_goes() -> None:
    async def check(world: Serving) -> None:
        async with world.client() as client, world.client("other") as other:
            async with client.open_writer("s") as writer:
                await writer.append(b"a")
            async with client.open_reader("s", exclusive=True, subscription="us") as reader:
                assert await payloads(reader, 1) == [b"a"]
                await reader.commit()
                with pytest.raises(StreamOwned):
                    async with other.open_reader("s", exclusive=True, subscription="us", lock_timeout_s=1.0):
                        raise AssertionError
            async with other.open_reader("s", exclusive=True, subscription="us", lock_timeout_s=1.0) as reader:
                assert await reader.read_many(1, timeout_s=1.0) == []

    serve(check)


def test_what_was_truncated_is_told_or_passed_over() -> None:
    async def check(world: Serving) -> None:
        async with world.client() as client:
            async with client.open_writer("s") as writer:
                first = await writer.append(b"a")
            await client.release_stream("s")
            async with client.open_writer("s") as writer:
                second = await writer.append(b"b")
                assert second.lssn > first.lssn
                assert await writer.truncate(second) == 1
            left = await client.truncate_stream("s", before=second)
            assert first < left <= second
            with pytest.raises(PositionTruncated) as told:
                async with client.open_reader("s", start=first):
                    raise AssertionError
            assert told.value.facts["earliest"] == left
            async with client.open_reader("s", start=first, skip_truncated=True) as reader:
                assert await payloads(reader, 1) == [b"b"]
            assert await client.purge_stream("s") == 0, "the last completed segment stays"

    serve(check)
