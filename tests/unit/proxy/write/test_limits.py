"""Limits of a write proxy that are changed while it runs."""

from dataclasses import replace

from tests.support.proxies.write_world import SETTINGS, World, in_world, once

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import OverCapacity, TooManyStreams
from quire.protocol.limit_rules import AcquireLimits, changed_rules
from quire.protocol.rate_limits import RateLimits
from quire.rpc.serving import methods


def test_limits_of_streams_count_from_the_moment_at_which_they_are_changed() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        table, base = peer.proxy.table, SETTINGS.limit_rules
        assert (await peer.write("closed", b"1")).result.code == pb.OK
        table.set_limits(changed_rules(base, {"streams": {"closed*": {"requests_hard": 0}}}))
        for stream in ("closed", "closed-and-new"):
            refused = await peer.refused(methods.WRITE_ONCE, once(stream, b"2"))
            assert isinstance(refused, OverCapacity)
        assert (await peer.write("open", b"1")).result.code == pb.OK
        table.set_limits(base)
        assert (await peer.write("closed", b"3")).result.code == pb.OK
        assert [record.payload for record in await world.read("closed", 2)] == [b"1", b"3"]

    in_world(check)


def test_a_limit_that_stays_as_it_is_does_not_begin_anew() -> None:
    """Else whoever changes one limit would give everybody a second's worth of all others."""

    async def check(world: World) -> None:
        peer = await world.proxy("p1", replace(SETTINGS, stream_limits=RateLimits(requests_hard=2.0)))
        table, base = peer.proxy.table, peer.proxy.settings.limit_rules
        for _ in range(2):
            await peer.write("s", b"1")
        table.set_limits(changed_rules(base, {"namespace": {"bytes_soft": 1}}))
        assert isinstance(await peer.refused(methods.WRITE_ONCE, once("s", b"1")), OverCapacity)
        table.set_limits(changed_rules(base, {"streams": {"s": {"requests_hard": 3}}}))
        await peer.write("s", b"1")

    in_world(check)


def test_limits_of_proxy_namespace_and_acquiring_are_changed_too() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        table, base = peer.proxy.table, SETTINGS.limit_rules
        await peer.write("s", b"1")
        for level, code in (("proxy", pb.OVER_CAPACITY), ("namespace", pb.QUOTA_EXCEEDED)):
            table.set_limits(changed_rules(base, {level: {"bytes_hard": 0}}))
            refused = await peer.refused(methods.WRITE_ONCE, once("s", b"1"))
            assert refused.facts["code"] == code
        table.set_limits(replace(base, acquire=AcquireLimits(requests_per_s=0.0)))
        assert isinstance(await peer.refused(methods.WRITE_ONCE, once("new", b"1")), TooManyStreams)
        await peer.write("s", b"2")
        table.set_limits(base)
        await peer.write("new", b"1")

    in_world(check)
