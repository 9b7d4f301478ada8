"""Clients of proxies that ask for tokens, while those expire and are taken back."""

import pytest

from quire.errors import NotAuthenticated, QuireError
from quire.proxy.client.client import ProxyClient
from quire.proxy.client.writer import ProxyWriter
from quire.rpc.serving.tokens import KnownToken, Tokens, new_token
from quire.testing import Simulation, simulate
from tests.simulation.serving.world import Serving, served


def made(sim: Simulation, principal: str, *, after_s: float | None = None) -> tuple[str, KnownToken]:
    now_s = sim.host("admin").runtime.clock.wall_ms() / 1000
    draw = sim.host("admin").runtime.rng.bytes
    return new_token(principal, draw=draw, expires_s=None if after_s is None else now_s + after_s)


async def write_for(world: Serving, client: ProxyClient, seconds: float) -> list[bytes]:
    """One record after the other. Returns them, if all of them are stored."""
    sent: list[bytes] = []
    async with client.open_writer("s") as writer:
        end_s = world.now_s + seconds
        while world.now_s < end_s:
            sent.append(b"%d" % len(sent))
            await writer.append(sent[-1])
            await world.pause(0.1)
    return sent


async def append_until_refused(writer: ProxyWriter, acknowledged: list[bytes]) -> None:
    while True:
        payload = b"%d" % len(acknowledged)
        await writer.append(payload)
        acknowledged.append(payload)


@pytest.mark.parametrize("seed", range(3))
def test_a_client_whose_token_is_replaced_in_time_does_not_notice(seed: int) -> None:
    """Method: its token expires while it writes and reads. From a moment before on it has another one, which it shows
    when it is asked again. Another client goes on with the old one: it is refused, and told why."""

    async def main(sim: Simulation) -> None:
        (first, brief), (second, lasting) = made(sim, "us", after_s=6.0), made(sim, "us")
        tokens = Tokens([brief, lasting], lambda: sim.host("admin").runtime.clock.wall_ms() / 1000)
        began_s = sim.loop.time()

        def shown() -> str:
            return first if sim.loop.time() - began_s < 5.0 else second

        async with (
            served(sim, writers=2, readers=1, tokens=tokens) as world,
            world.client("ours", token=shown) as client,
            world.client("late", token=first) as late,
        ):
            await client.create_stream("s")
            async with late.open_writer("s") as stale, client.open_reader("s") as reader:
                await stale.append(b"early")
                sent = await write_for(world, client, 12.0)
                assert [(await anext(reader)).payload for _ in range(len(sent) + 1)] == [b"early", *sent]
                with pytest.raises(NotAuthenticated, match="expired"):
                    await stale.append(b"late")

    simulate(seed, main, time_limit_s=120)


@pytest.mark.parametrize("token", [None, "quire-1.none.such"])
def test_a_client_without_a_token_that_counts_is_told_so_at_once(token: str | None) -> None:
    async def main(sim: Simulation) -> None:
        async with served(sim, writers=1, readers=1, tokens=Tokens([], lambda: 0.0)) as world:
            begun_s = world.now_s
            with pytest.raises(NotAuthenticated) as refused:
                async with world.client("nobody", token=token):
                    raise AssertionError
            assert "QUIRE_TOKEN" in refused.value.hint
            assert world.now_s - begun_s < 0.5

    simulate(0, main, time_limit_s=60)


def test_what_was_under_way_is_answered_before_a_call_ends_whose_token_was_taken_back() -> None:
    async def main(sim: Simulation) -> None:
        (first, one), (second, other) = made(sim, "one"), made(sim, "other")
        tokens = Tokens([one, other], lambda: sim.host("admin").runtime.clock.wall_ms() / 1000)
        async with served(sim, writers=1, readers=0, tokens=tokens) as world:
            async with world.client("one", token=first) as client, world.client("other", token=second) as neighbour:
                await client.create_stream("s")
                async with client.open_writer("s") as writer:
                    await writer.append(b"first")
                    tokens.replace({other.id: other})
                    acknowledged = [b"first"]
                    with pytest.raises(QuireError, match="taken back"):
                        await append_until_refused(writer, acknowledged)
                    with pytest.raises(NotAuthenticated):
                        await writer.append(b"never")
                await neighbour.seal_stream("s")
            async with world.direct.open_reader("s") as reader:
                found = [record.payload async for record in reader]
            assert found[: len(acknowledged)] == acknowledged
            assert b"never" not in found

    simulate(0, main, time_limit_s=120)
