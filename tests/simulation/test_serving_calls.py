"""Calls between clients and proxies in simulations: Certainty under crashes and partitions, and strangers' bytes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quire.codec import http2
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import ProxyOutcomeUnknown, ProxyUnreachable
from quire.rpc.serving.grpc_headers import request_headers
from quire.rpc.serving.grpc_server import GrpcServer
from quire.rpc.serving.methods import READ, SEAL, WRITE, WRITE_ONCE
from quire.rpc.serving.settings import CallSettings, ServingSettings
from quire.rpc.serving.transport import Caller
from quire.testing import Simulation, simulate
from quire.testing.sim_calls import SimTransport, bind_sim

PORT = 4181


class Seen:
    """Which calls the handlers of all of a proxy's lives have seen."""

    def __init__(self, sim: Simulation) -> None:
        self.counts: dict[str, int] = {}
        self._rng = sim.rng

    async def once(self, request: Any, caller: Caller) -> pb.WriteOnceResponse:
        name = request.batch.stream
        self.counts[name] = self.counts.get(name, 0) + 1
        await asyncio.sleep(self._rng.choice([0.0, 0.001, 0.5]))  # Some outlast the grace of their connection.
        return pb.WriteOnceResponse()


async def certainty(sim: Simulation) -> dict[str, int]:
    """Clients call all the time, while the proxy is stopped, killed, cut off and started again.

    Unreachable means never seen, an answer means seen, and nothing is seen twice: nobody sends again by himself.
    """
    seen, outcomes = Seen(sim), {"answered": 0, "unreachable": 0, "unknown": 0}
    quick = CallSettings(keep_alive_s=0.5, keep_alive_timeout_s=0.5, connect_timeout_s=1.0)

    async def proxy() -> None:
        settings = ServingSettings(quick, connection_age_s=0.3, connection_age_grace_s=0.2)
        server = await bind_sim(sim.host("proxy").runtime, "proxy", PORT, settings=settings)
        await server.start({WRITE_ONCE: seen.once})
        try:
            await stop.wait()
        finally:
            await server.aclose(grace_s=0.01)

    async def client(name: str) -> None:
        transport = SimTransport(sim.host(name).runtime, name, settings=quick)
        channel = transport.channel(f"proxy:{PORT}")
        for number in range(20):
            call = f"{name}-{number}"
            try:
                await channel.call(
                    WRITE_ONCE,
                    pb.WriteOnceRequest(batch=pb.Batch(stream=call, records=[bytes(sim.rng.randrange(0, 200_000))])),
                    timeout_s=2,
                )
            except ProxyUnreachable:
                outcomes["unreachable"] += 1
                unreachable.append(call)
                await asyncio.sleep(0.05)
            except ProxyOutcomeUnknown:
                outcomes["unknown"] += 1
            else:
                outcomes["answered"] += 1
                assert seen.counts[call] == 1
            await asyncio.sleep(sim.rng.random() * 0.05)
        await transport.aclose()

    unreachable: list[str] = []
    stop = asyncio.Event()
    sim.host("proxy").spawn(proxy())
    clients = [sim.host(name).spawn(client(name)) for name in ("a", "b", "c")]
    while not all(each.done() for each in clients):
        await asyncio.sleep(sim.rng.random() * 0.5)
        match sim.rng.randrange(4):
            case 0:
                await sim.host("proxy").crash()
            case 1:
                stop.set()
                await asyncio.sleep(0.1)
                await sim.host("proxy").crash(power_loss=False)
            case 2:
                sim.network.partition("proxy", "a", one_way=sim.rng.random() < 0.5)
                await asyncio.sleep(sim.rng.random() * 2)
                sim.network.heal()
                continue
            case _:
                sim.network.reset_all("proxy")
                continue
        stop = asyncio.Event()
        await asyncio.sleep(sim.rng.random() * 0.2)
        sim.host("proxy").spawn(proxy())
    for each in clients:
        await each
    await asyncio.sleep(5)  # What was under way may still arrive.
    assert [call for call in unreachable if call in seen.counts] == []
    assert [call for call, count in seen.counts.items() if count > 1] == []
    return outcomes


@pytest.mark.parametrize("seed", range(40))
def test_certainty_holds_whatever_happens_to_the_proxy(seed: int) -> None:
    outcomes = simulate(seed, certainty)
    assert outcomes["answered"] > 0


def test_all_outcomes_occur_in_those_simulations() -> None:
    """Else the test above would prove less than it seems to."""
    outcomes = [simulate(seed, certainty) for seed in range(5)]
    assert all(sum(each[name] for each in outcomes) > 0 for name in outcomes[0])


def test_a_seed_repeats_every_step() -> None:
    digests = []
    for _ in range(2):
        sim = Simulation(11)
        sim.run(certainty)
        digests.append(sim.trace_digest())
    assert digests[0] == digests[1]


# --- Strangers


async def seal(request: Any, caller: Caller) -> pb.StreamResponse:
    return pb.StreamResponse()


async def read(request: Any, caller: Caller) -> AsyncIterator[bytes]:
    while True:
        yield bytes(100)


async def echo(requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
    async for request in requests:
        yield pb.WriteResponse(pong=pb.Pong(number=request.ping.number))


class Stranger(asyncio.Protocol):
    """Writes, and does not care."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


def strange_bytes(sim: Simulation) -> bytes:
    """Almost sensible: calls that are opened, and frames of every type with anything in them; some damaged."""
    rng = sim.rng
    parts = [http2.PREFACE, http2.settings_frame([(rng.randrange(1, 7), rng.randrange(0, 70_000))])]
    for number in range(rng.randrange(1, 30)):
        call_id = 2 * number + 1
        match rng.randrange(5):
            case 0:
                path = rng.choice([SEAL.path, READ.path, WRITE.path, "/x"])
                block = request_headers(path, address="x", client_id="s", attempt=1, tried=(), timeout_s=None)
                parts.append(http2.headers_frames(call_id, block, end_stream=rng.random() < 0.2))
            case 1:
                body = rng.bytes(rng.randrange(0, 300))
                if rng.random() < 0.7:
                    body = http2.message_prefix(rng.choice([len(body), 0, 10, 1 << 20, 1 << 31])) + body
                parts.append(http2.frame(http2.DATA, rng.randrange(0, 16), rng.randrange(0, call_id + 4), body))
            case _:
                body = rng.bytes(rng.choice([0, 4, 5, 6, 8, 12, 40]))
                parts.append(http2.frame(rng.randrange(0, 11), rng.randrange(0, 64), rng.randrange(0, call_id), body))
    data = b"".join(parts)
    if rng.random() < 0.3:
        place = rng.randrange(len(data))
        data = data[:place] + rng.bytes(3) + data[place:]
    return data


async def attacked(sim: Simulation) -> GrpcServer:
    """A stranger's bytes beside an honest client; `simulate` itself fails if anything is raised where nobody looks."""
    settings = ServingSettings(first_message_timeout_s=2.0)
    server = await bind_sim(sim.host("proxy").runtime, "proxy", PORT, settings=settings)
    await server.start({SEAL: seal, READ: read, WRITE: echo})
    transport = SimTransport(sim.host("client").runtime, "honest")
    channel = transport.channel(f"proxy:{PORT}")
    network = sim.host("stranger").runtime.network
    async with channel.duplex(WRITE) as call:
        for number in range(5):
            stranger, _ = await network.connect("proxy", PORT, Stranger, timeout_s=5)
            stranger.write(strange_bytes(sim))
            await channel.call(SEAL, pb.StreamRequest(), timeout_s=5)
            await call.send(pb.WriteRequest(ping=pb.Ping(number=number)))
            assert (await anext(call)).pong.number == number
            await asyncio.sleep(sim.rng.random() * 4)
            stranger.abort()
    await transport.aclose()
    await asyncio.sleep(20)
    assert server.counts() | {"connections": 0, "calls": 0} == server.counts()
    assert server.incoming_bytes == 0
    await server.aclose()
    return server


@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_strangers_bytes_harm_nobody(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        simulate(seed, attacked)
