"""`SimNetwork.tap`: single frames are seen, kept back, sent later, or never."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from quire.testing import Simulation, simulate

SEEDS = range(10)


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data


def frames(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


class Kept:
    """A tap that keeps frames of one body."""

    def __init__(self, keeps: bytes) -> None:
        self.keeps, self.seen = keeps, list[bytes]()
        self.sends: list[Callable[[], None]] = []

    def on_frame(self, frame: bytes, send: Callable[[], None]) -> None:
        self.seen.append(frame)
        if frame == self.keeps:
            self.sends.append(send)
        else:
            send()


async def connected(sim: Simulation) -> tuple[Recorder, Recorder]:
    accepted = Recorder()
    await sim.network.host("b1").serve("b1", 3181, lambda: accepted)
    _, client = await sim.network.host("client").connect("b1", 3181, Recorder, timeout_s=10)
    await asyncio.sleep(1)
    return client, accepted


@pytest.mark.parametrize("before", [True, False], ids=["new connection", "old connection"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_frame_that_is_kept_is_overtaken_and_sent_later(seed: int, before: bool) -> None:
    async def main(sim: Simulation) -> None:
        kept = Kept(b"two")
        if before:
            sim.network.tap("client", "b1", kept.on_frame)
        client, server = await connected(sim)
        sim.network.tap("client", "b1", kept.on_frame)
        data = frames(b"one", b"two", b"three")
        for start in range(0, len(data), 5):  # Writes need not end where frames do.
            client.transport.write(data[start : start + 5])
        server.transport.write(frames(b"two"))  # The other way is not tapped.
        await asyncio.sleep(1)
        assert kept.seen == [b"one", b"two", b"three"]
        assert server.received == frames(b"one", b"three")
        assert client.received == frames(b"two")
        kept.sends[0]()
        await asyncio.sleep(1)
        assert server.received == frames(b"one", b"three", b"two")

    simulate(seed, main)


def test_without_its_tap_a_link_is_as_before() -> None:
    async def main(sim: Simulation) -> None:
        kept = Kept(b"two")
        sim.network.tap("client", "b1", kept.on_frame)
        client, server = await connected(sim)
        client.transport.write(frames(b"two"))
        sim.network.tap("client", "b1", None)
        client.transport.write(frames(b"two"))
        await asyncio.sleep(1)
        assert server.received == frames(b"two")
        assert len(kept.seen) == 1

    simulate(1, main)


@pytest.mark.parametrize("end", ["close", "reset"])
def test_what_is_kept_longer_than_its_connection_never_arrives(end: str) -> None:
    async def main(sim: Simulation) -> None:
        kept = Kept(b"two")
        sim.network.tap("client", "b1", kept.on_frame)
        client, server = await connected(sim)
        client.transport.write(frames(b"two"))
        if end == "close":
            client.transport.close()
        else:
            sim.network.reset_all("client")
        await asyncio.sleep(1)
        kept.sends[0]()
        await asyncio.sleep(1)
        assert server.received == b""

    simulate(1, main)
