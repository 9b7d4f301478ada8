"""The write proxy as its clients see it: writing, redirects, giving streams up."""

from tests.support.proxies.write_world import World, in_world, places

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NotOwner
from quire.rpc.serving import methods


def test_records_are_stored_in_order_and_answered_with_their_places() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        first = await peer.write("s", b"a", b"b")
        second = await peer.write("s", b"c")
        assert first.result.code == pb.OK
        assert first.result.applied == pb.YES
        records = await world.read("s", 3)
        assert [record.payload for record in records] == [b"a", b"b", b"c"]
        assert [record.dlsn for record in records] == [*places(first), *places(second)]
        assert records[0].txid == first.txid_first

    in_world(check)


def test_who_asks_another_proxy_is_sent_to_the_owner() -> None:
    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        await one.write("s", b"a")
        error = await two.refused(methods.HEARTBEAT, pb.HeartbeatRequest(stream="s"))
        assert isinstance(error, NotOwner)
        owner = error.facts["proxy"]
        assert isinstance(owner, pb.Owner)
        assert (owner.host, owner.port, error.facts["owner_live"]) == ("p1", 4100, True)
        assert owner.instance == one.proxy.address.instance

    in_world(check)
