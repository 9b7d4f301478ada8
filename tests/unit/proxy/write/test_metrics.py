"""What a write proxy counts beside its batches: every call by its end, and single streams if that is wanted."""

from typing import Any

from tests.support.proxies.write_world import World, in_world, once

from quire.codec.pb import quire_v1_pb2 as pb
from quire.proxy.write.proxy import WriteProxy
from quire.proxy.write.settings import WriteProxySettings
from quire.rpc.serving import methods
from quire.rpc.serving.transport import Caller


def measured(proxy: WriteProxy, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for metric in proxy.metrics.collect()
        for sample in metric.samples
        if sample.name == name
    }


def test_calls_about_the_list_of_streams_and_owners_are_counted_as_all_others() -> None:
    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        await one.call(methods.CREATE_STREAM, pb.CreateStreamRequest(stream="s"))
        await one.refused(methods.GET_STREAM, pb.StreamRequest(stream="none"))
        await one.write("s", b"x")
        await two.refused(methods.WRITE_ONCE, once("s", b"y"))
        watch: Any = one.proxy.handlers()[methods.WATCH_OWNERSHIP]
        watching = watch(pb.WatchOwnershipRequest(), Caller("client"))
        await anext(watching)
        await watching.aclose()
        counted = measured(one.proxy, "quire_write_proxy_requests_total")
        assert counted["CreateStream", "OK"] == counted["GetStream", "LOG_NOT_FOUND"] == 1
        assert counted["WriteOnce", "OK"] == counted["WatchOwnership", "CANCELLED"] == 1
        assert measured(two.proxy, "quire_write_proxy_requests_total")["WriteOnce", "NOT_OWNER"] == 1
        assert two.proxy._metrics.redirects.value >= 1

    in_world(check, seeds=1)


def test_streams_are_named_in_metrics_if_that_is_wanted() -> None:
    async def check(world: World) -> None:
        quiet, telling = (
            await world.proxy("p1"),
            await world.proxy("p2", settings=WriteProxySettings(stream_metrics=True)),
        )
        await quiet.write("a", b"x")
        await telling.write("b", b"x")
        for name in ("requests_per_s", "bytes_per_s", "pending_operations"):
            assert not measured(quiet.proxy, f"quire_write_proxy_stream_{name}")
            assert list(measured(telling.proxy, f"quire_write_proxy_stream_{name}")) == [("b",)]
        assert measured(telling.proxy, "quire_write_proxy_stream_bytes_per_s")["b",] > 0

    in_world(check, seeds=1)
