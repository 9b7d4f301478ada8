"""Finding proxies, and keeping up with them."""

import asyncio

import pytest
from tests.unit.proxy.client.scripted_proxies import Proxies, ScriptedProxy, with_proxies

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, NotAuthenticated, ProxyUnreachable, QuireError, RequestDenied


def test_one_living_seed_is_enough_to_know_everybody() -> None:
    async def check(world: Proxies) -> None:
        await world.start("p1")
        await world.start("p2")
        await world.start("r", pb.READ_PROXY)
        async with world.client("nobody", "p2") as client:
            assert client._hosts.writers.hosts == {"p1:7400", "p2:7400"}
            assert client._hosts.readers.hosts == {"r:7400"}

    with_proxies(check)


def test_without_a_living_proxy_nothing_is_opened_and_the_hint_says_what_to_start() -> None:
    async def check(world: Proxies) -> None:
        begun_s = asyncio.get_running_loop().time()
        with pytest.raises(ProxyUnreachable, match="nobody:7400") as refused:
            async with world.client("nobody"):
                raise AssertionError
        assert "quire write-proxy run" in refused.value.hint
        assert asyncio.get_running_loop().time() - begun_s == pytest.approx(5.0, abs=0.5)

    with_proxies(check)


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("this proxy serves namespace 'other', not 'ns'"),
        NotAuthenticated("the token is not known"),
        RequestDenied("not for you"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_proxies_that_will_never_take_us_are_told_at_once(error: QuireError) -> None:
    """Those of another namespace, and those that do not know our token."""

    async def check(world: Proxies) -> None:
        async def refuse(request: object, caller: object) -> pb.HandshakeResponse:
            raise error

        proxy = ScriptedProxy(world, "p1:7400", pb.WRITE_PROXY)
        proxy.handshake = refuse  # type: ignore[method-assign]
        await world.sim.host("p1").spawn(proxy.start())
        begun_s = asyncio.get_running_loop().time()
        with pytest.raises(type(error), match=str(error)):
            async with world.client("p1"):
                raise AssertionError
        assert asyncio.get_running_loop().time() - begun_s < 0.1

    with_proxies(check)


def test_proxies_that_come_and_go_are_heard_of_from_whoever_is_left() -> None:
    async def check(world: Proxies) -> None:
        await world.start("p1")
        await world.start("p2")
        async with world.client() as client:
            followed: str | None = None
            for name in ("p3", "p4"):
                await world.start(name)
                await world.pass_time(0.1)
                assert f"{name}:7400" in client._hosts.writers.hosts
            followed = next(iter(client._hosts.anybody("client")))
            await world.kill(followed.partition(":")[0])
            world.expire(followed.partition(":")[0])
            await world.pass_time(1.0)
            assert followed not in client._hosts.writers.hosts
            await world.start("p5")
            await world.pass_time(0.1)
            assert "p5:7400" in client._hosts.writers.hosts

    with_proxies(check)


def test_the_last_known_proxies_count_while_nobody_answers() -> None:
    async def check(world: Proxies) -> None:
        await world.start("p1")
        async with world.client() as client:
            await world.kill("p1")
            await world.pass_time(30)
            assert client._hosts.writers.hosts == {"p1:7400"}
            await world.start("p1")
            async with client.open_writer("s") as writer:
                await writer.append(b"a")

    with_proxies(check)
