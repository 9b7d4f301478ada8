"""What a read proxy counts beside its entries: calls by their ends, sessions, and how far its tails are behind."""

from typing import Any

import pytest
from tests.support.proxies.read_world import CALLER, EARLIEST, World, on_proxy, settings

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NoSuchStream
from quire.rpc.serving import methods


def test_calls_are_counted_by_name_and_code() -> None:
    async def check(world: World) -> None:
        await world.write(3)
        handlers: Any = world.proxy.handlers()
        await handlers[methods.GET_STREAM](pb.StreamRequest(stream="s"), CALLER)
        with pytest.raises(NoSuchStream):
            await handlers[methods.FETCH](pb.FetchRequest(stream="none"), CALLER)
        gone, left = world.read(stream="none"), world.read(EARLIEST)
        await world.until(lambda: gone.error is not None and len(left.records) == 3)
        await left.stop()
        counted = {
            (sample.labels["rpc"], sample.labels["code"]): sample.value
            for metric in world.proxy.metrics.collect()
            for sample in metric.samples
            if sample.name == "quire_read_proxy_requests_total"
        }
        assert counted == {
            ("GetStream", "OK"): 1,
            ("Fetch", "LOG_NOT_FOUND"): 1,
            ("Read", "LOG_NOT_FOUND"): 1,
            ("Read", "CANCELLED"): 1,
        }

    on_proxy(check, seeds=1)


def test_the_ends_of_sessions_are_counted() -> None:
    async def check(world: World) -> None:
        assert world.measured("quire_read_proxy_session_expiries_total") == 0
        world.tree.expire_host("proxy")
        await world.until(lambda: world.measured("quire_read_proxy_session_expiries_total") == 1)

    on_proxy(check, seeds=1)


def test_a_tail_that_gets_nothing_from_bookies_is_behind_and_then_is_not() -> None:
    """Method: what the tail knows to be confirmed is moved on, as an answer of a bookie would, and no entry is read."""

    async def check(world: World) -> None:
        async with world.writer() as writer:
            await writer.append(b"0")
            client = world.read(EARLIEST)
            await world.until(lambda: client.modes[-1:] == [pb.TAIL])
            assert world.measured("quire_read_proxy_tail_lag_entries") == 0
            (stream,) = world.proxy._service.lanes.streams.values()
            assert stream.tail is not None
            source = stream.tail._source
            assert source is not None
            source._next -= 1  # type: ignore[assignment]  # As before the last window was fetched.
            assert world.measured("quire_read_proxy_tail_lag_entries") == 1
            assert world.measured("quire_read_proxy_stream_lag_entries", stream="s") == 1
            assert world.measured("quire_read_proxy_stream_readers", stream="s") == 1
            assert world.measured("quire_read_proxy_stream_cache_bytes", stream="s") > 0
            source._next += 1  # type: ignore[assignment]

    on_proxy(check, settings=settings(stream_metrics=True), seeds=1)


def test_no_stream_is_named_in_metrics_unless_that_is_wanted() -> None:
    async def check(world: World) -> None:
        await world.write(3)
        client = world.read(EARLIEST)
        await world.until(lambda: len(client.records) == 3)
        labels = {name for metric in world.proxy.metrics.collect() for each in metric.samples for name in each.labels}
        assert "stream" not in labels

    on_proxy(check, seeds=1)
