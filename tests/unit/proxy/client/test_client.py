"""Calls by name: to whom they go, what is sent again, and what is not."""

from dataclasses import replace

import pytest
from tests.unit.proxy.client.scripted_proxies import SETTINGS, Proxies, owner_of, with_proxies

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import (
    InvalidArgument,
    MetadataUnavailable,
    NoSuchStream,
    NotOwner,
    ProxyOutcomeUnknown,
    StreamUnavailable,
)
from quire.metadata import Version
from quire.proxy.client.settings import ProxyClientSettings
from quire.stream.settings import StreamSettings


def calls(world: Proxies) -> list[str]:
    return [name for proxy in world.proxies.values() for name, _, _ in proxy.requests]


def test_a_redirect_of_a_call_is_followed_to_the_owner() -> None:
    async def check(world: Proxies) -> None:
        for name in ("p1", "p2", "p3"):
            await world.start(name)
        async with world.client() as client:
            order = client._hosts.writers_of("s")
            ring = [world.proxies[address.partition(":")[0]] for address in order]
            owner = ring[2]
            ring[0].refusals.append(NotOwner("not me", proxy=owner_of(owner.address), owner_live=True, epoch=3))
            await client.delete_stream("s")
            assert [len(proxy.requests) for proxy in ring] == [1, 0, 1]
            assert owner.requests[0][2].attempt == 2

    with_proxies(check)


def test_a_call_says_whom_it_could_not_reach() -> None:
    async def check(world: Proxies) -> None:
        for name in ("p1", "p2"):
            await world.start(name)
        async with world.client() as client:
            first, second = (address.partition(":")[0] for address in client._hosts.writers_of("s"))
            await world.kill(first)
            await client.create_stream("s")
            assert world.proxies[second].requests[-1][2].tried == (f"{first}:7400",)

    with_proxies(check)


def test_a_call_that_does_no_harm_twice_is_tried_again_and_others_are_not() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        async with world.client() as client:
            proxy.refusals.extend([MetadataUnavailable("later"), StreamUnavailable("later")])
            await client.create_stream("s")
            assert calls(world) == ["CreateStream"] * 3
            proxy.requests.clear()
            unknown = [ProxyOutcomeUnknown("lost")] * 3
            proxy.refusals.extend(unknown)
            with pytest.raises(ProxyOutcomeUnknown):
                await client.rename_stream("s", "t")
            with pytest.raises(ProxyOutcomeUnknown):
                await client.set_stream_metadata("s", b"kept", expected=Version(3))
            assert calls(world) == ["RenameStream", "SetStreamMetadata"]

    with_proxies(check)


def test_what_a_proxy_says_of_a_stream_is_told_as_it_is() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")

        async def on_getstream(request: pb.StreamRequest) -> pb.GetStreamResponse:
            return pb.GetStreamResponse(
                stream=request.stream,
                segments=[pb.Segment(lssn=1, ledger_id=7, is_completed=False, first_txid=5)],
                first_dlsn=pb.Dlsn(lssn=1, entry_id=0, slot_id=0),
                first_txid=5,
                owner="somebody",
                subscriptions=[pb.Subscription(name="us")],
            )

        proxy.on_getstream = on_getstream  # type: ignore[attr-defined]
        async with world.client() as client:
            info = await client.stream_info("s")
            assert (info.stream, info.owner, info.last_dlsn, info.last_txid) == ("s", "somebody", None, None)
            assert (info.segments[0].ledger_id, info.segments[0].last_txid) == (7, None)
            assert await client.subscriptions("s") == {"us": None}
            proxy.refusals.append(NoSuchStream("there is none"))
            assert not await client.stream_exists("s")

    with_proxies(check)


def test_settings_that_only_proxies_could_follow_are_refused() -> None:
    async def check(world: Proxies) -> None:
        await world.start("p1")
        with pytest.raises(InvalidArgument, match="ack_quorum"):
            async with world.client(settings=StreamSettings(ack_quorum=3)):
                raise AssertionError
        async with world.client(settings=replace(SETTINGS, window_bytes_max=1 << 20)) as client:
            assert client.settings_for("s", create_if_missing=False).window_bytes_max == 1 << 20
            with pytest.raises(InvalidArgument, match="no setting 'colour'"):
                client.settings_for("s", colour="red")  # type: ignore[call-arg]

    with_proxies(check, seeds=1)


@pytest.mark.parametrize("wrong", [{"append_timeout_s": 0}, {"batch_bytes": 0}, {"ping_s": 3.0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        ProxyClientSettings(**wrong)  # type: ignore[arg-type]
