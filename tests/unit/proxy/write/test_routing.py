"""Who owns which stream: handshakes, questions, and news."""

from typing import Any

from tests.support.proxies.write_world import World, address, in_world

from quire.codec.pb import quire_v1_pb2 as pb
from quire.metadata.paths import join
from quire.proxy.membership import READ_PROXIES, LiveSet, Member
from quire.proxy.write.answers import lock_address
from quire.rpc.serving import methods
from quire.rpc.serving.transport import Caller


def test_a_handshake_tells_who_is_there_and_what_is_owned() -> None:
    async def check(world: World) -> None:
        one = await world.proxy("p1")
        await world.proxy("p2")
        context = one.proxy.namespace.context
        readers = LiveSet(context.store, context.runtime.clock, join(context.path, READ_PROXIES))
        async with readers.join(Member("r1", 4200, 0)):
            for name in ("a/1", "a/2", "b"):
                await one.write(name, b"x")
            await world.pass_time(0.1)
            answer = await one.call(methods.HANDSHAKE, pb.HandshakeRequest(prefix="a/", want_ownerships=True))
        assert (answer.role, answer.status, answer.namespace) == (pb.WRITE_PROXY, pb.WRITE_AND_ACCEPT, "ns")
        members = [(member.role, member.address.host) for member in answer.members]
        assert members == [(pb.WRITE_PROXY, "p1"), (pb.WRITE_PROXY, "p2"), (pb.READ_PROXY, "r1")]
        assert [(each.stream, each.owner.host, each.epoch) for each in answer.owned] == [
            ("a/1", "p1", 1),
            ("a/2", "p1", 1),
        ]
        assert not (await one.call(methods.HANDSHAKE, pb.HandshakeRequest())).owned

    in_world(check, seeds=1)


def test_any_proxy_knows_the_owner_and_all_agree_where_a_stream_belongs() -> None:
    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        await world.pass_time(0.1)
        chosen = [await peer.call(methods.GET_OWNER, pb.StreamRequest(stream="s")) for peer in (one, two)]
        assert chosen[0] == chosen[1]
        assert not chosen[0].is_owned
        await one.write("s", b"a")
        own = await one.call(methods.GET_OWNER, pb.StreamRequest(stream="s"))
        assert (own.owner.host, own.is_owned, own.owner_live, own.epoch) == ("p1", True, True, 1)
        seen = await two.call(methods.GET_OWNER, pb.StreamRequest(stream="s"))
        assert (seen.owner, seen.is_owned, seen.owner_live) == (own.owner, True, True)
        ring = await two.call(methods.DUMP_RING, pb.DumpRingRequest(streams=["s", "t"]))
        assert ring.streams[0].owner.host == chosen[0].owner.host
        assert len(ring.members) == 2

    in_world(check, seeds=1)


def test_who_watches_is_told_everything_and_then_what_changes() -> None:
    async def check(world: World) -> None:
        one = await world.proxy("p1")
        await one.write("s", b"a")
        handler: Any = one.proxy.handlers()[methods.WATCH_OWNERSHIP]
        changes = handler(pb.WatchOwnershipRequest(), Caller("c"))
        first = await anext(changes)
        assert [(each.stream, each.owner.host) for each in first.streams] == [("s", "p1")]
        assert first.members_changed
        assert first.status == pb.WRITE_AND_ACCEPT

        async def told(stream: str) -> pb.Ownership:
            while True:
                for each in (await anext(changes)).streams:
                    if each.stream == stream:
                        found: pb.Ownership = each
                        return found

        await one.write("t", b"a")
        assert (await told("t")).owner.host == "p1"
        await one.call(methods.RELEASE, pb.ReleaseRequest(stream="s"))
        assert not (await told("s")).HasField("owner")
        two = await world.proxy("p2")
        while True:
            change = await anext(changes)
            if len(change.members) == 2:
                break
        one.proxy.ask_to_drain()
        assert (await told("t")).owner.host == "p2"
        assert two.proxy is not one.proxy
        await changes.aclose()

    in_world(check)


def test_operators_see_streams_and_load() -> None:
    async def check(world: World) -> None:
        one = await world.proxy("p1")
        await one.write("s", bytes(1000))
        owned = (await one.call(methods.LIST_OWNED, pb.ListOwnedRequest())).streams
        assert [(each.stream, each.state, each.epoch) for each in owned] == [("s", "INITIALIZED", 1)]
        load = await one.call(methods.GET_LOAD, pb.GetLoadRequest())
        assert (load.streams, load.status) == (1, pb.WRITE_AND_ACCEPT)
        assert load.load == load.bytes_per_s + 4096 * load.requests_per_s > 0
        debug = one.proxy.debug()
        assert debug["streams"]["s"]["state"] == "INITIALIZED"
        assert debug["statistics"]["streams_owned"] == 1
        assert debug["ring"] == ["p1:4100"]

    in_world(check, seeds=1)


def test_a_lock_tells_the_address_of_the_proxy_that_holds_it() -> None:
    assert lock_address("1;0;host:4100-0123456789ab") == "host:4100"
    assert lock_address("1;-3;my-host.example:4100") == "my-host.example:4100", "Apache's have no random part"
    assert lock_address("1;0;my-host:41-0123456789ab") == "my-host:41"
    assert lock_address("laptop/17-0123456789ab") is None
    assert address("h").port == 4100
