"""Strangers who attack a write proxy over HTTP/2, without a token, beside a client whose appends all succeed in time.

What an attack costs is counted in `tests/unit/rpc/serving/test_floods.py`; here is the whole tier, with real proxies,
bookies and clients on a simulated network.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quire.codec import http2
from quire.codec.http2_budget import BURST
from quire.codec.pb import quire_v1_pb2 as pb
from quire.proxy.client.client import ProxyClient
from quire.rpc.serving.settings import CallSettings, ServingSettings
from quire.testing import Simulation, simulate
from tests.simulation.serving.world import PORT, Serving, served
from tests.support.sim_http2 import Stranger, stranger

APPENDS = 100
CALLS = 100
TAKES_LITTLE = ServingSettings(CallSettings(message_bytes_max=2 << 20), incoming_bytes_max=8 << 20)

Attack = Callable[[Stranger], Awaitable[None]]


async def settings(client: Stranger) -> None:
    """Two windows in turn, in one frame and in many, with calls open that have to be told of each."""
    windows = [(http2.INITIAL_WINDOW_SIZE, 65_535 + n % 2) for n in range(BURST)]
    await client.send(b"".join(http2.settings_frame([each]) for each in windows))
    await client.send(http2.settings_frame(windows))


async def room(client: Stranger) -> None:
    """A byte more for the connection, again and again."""
    await client.send(http2.number_frame(http2.WINDOW_UPDATE, 0, 1) * 2 * BURST)


async def headers(client: Stranger) -> None:
    """Headers a byte at a time."""
    number = 2 * CALLS + 1
    await client.send(http2.frame(http2.HEADERS, 0, number, b"\x82"))
    await client.send(http2.frame(http2.CONTINUATION, 0, number, b"\x83") * 2 * BURST)


async def unfinished(client: Stranger) -> None:
    """A quarter of a megabyte on each call, but for its last byte, behind what opens it."""
    size, opening = 256 << 10, pb.WriteRequest(open=pb.Open(client_id="stranger", namespace="ns")).SerializeToString()
    for number in range(1, 2 * CALLS, 2):
        client.transport.write(http2.message_header(number, len(opening)) + opening)
        for part in (http2.message_prefix(size) + bytes(size // 2), bytes(size // 2 - 1)):
            client.transport.write(http2.frame(http2.DATA, 0, number, part))
    await client.send(b"")


async def latencies(world: Serving, client: ProxyClient, stream: str) -> list[float]:
    """Of one append after the other. All succeed."""
    took_s = []
    async with client.open_writer(stream) as writer:
        for number in range(APPENDS):
            began_s = world.now_s
            await writer.append(b"%d" % number + bytes(10_000))
            took_s.append(world.now_s - began_s)
            await world.pause(0.05)
    return sorted(took_s)


@pytest.mark.parametrize("attack", [settings, room, headers, unfinished])
def test_a_client_appends_as_before_while_strangers_attack(attack: Attack) -> None:
    """Method: the client writes a stream without, and another one with, strangers that come again and again, three at a
    time, and stay as long as they are let."""

    async def main(sim: Simulation) -> None:
        async with served(sim, writers=1, readers=0, serving=TAKES_LITTLE) as world, world.client() as client:
            quiet_s = await latencies(world, client, "quiet")
            refused: list[int | None] = []

            async def besiege(name: str) -> None:
                while True:
                    enemy = await stranger(sim, "w0", PORT, name=name)
                    for _ in range(CALLS):
                        enemy.open()
                    await attack(enemy)
                    if enemy.is_closed:
                        refused.append(enemy.reason)
                    else:
                        assert attack is unfinished
                        await asyncio.Event().wait()

            siege = [sim.host(name).spawn(besiege(name)) for name in ("x", "y", "z")]
            await world.pause(3)
            besieged_s = await latencies(world, client, "besieged")
            held_bytes = world.servers["w0"].incoming_bytes
            assert held_bytes <= TAKES_LITTLE.incoming_bytes_max
            assert held_bytes > TAKES_LITTLE.incoming_bytes_max // 2 or attack is not unfinished
            for each in siege:
                assert not each.done()
                each.cancel()
            assert besieged_s[-APPENDS // 100] <= 2 * quiet_s[-APPENDS // 100]
            assert attack is unfinished or len(refused) > 3
            assert set(refused) <= {http2.ENHANCE_YOUR_CALM}
            for stream in ("quiet", "besieged"):
                await client.seal_stream(stream)
                async with world.direct.open_reader(stream) as reader:
                    found = [int(record.payload.rstrip(b"\0")) async for record in reader]
                assert found == list(range(APPENDS))

    simulate(1, main, time_limit_s=300)
