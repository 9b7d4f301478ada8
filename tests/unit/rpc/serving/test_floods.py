"""What a stranger can make a proxy do and keep: work is counted in lines of the serving code, memory in bytes.

BoundedWork, BoundedInput and BoundedOutput of `quire.rpc.serving.http2_connection`, OneLeavesRoom of `grpc_server`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.support.sim_http2 import Stranger, stranger
from tests.support.steps import counted_steps

from quire.codec import http2, http2_budget
from quire.codec.pb import quire_v1_pb2 as pb
from quire.rpc.serving import grpc_server_connection, http2_call, http2_connection
from quire.rpc.serving.grpc_server import GrpcServer
from quire.rpc.serving.methods import FETCH, SEAL, WRITE
from quire.rpc.serving.settings import CallSettings, ServingSettings
from quire.rpc.serving.transport import Caller
from quire.testing import Simulation, simulate
from quire.testing.sim_calls import SimTransport, bind_sim

PORT = 4181
CALLS = 200
FRAMES = 12_000
STEPS_PER_BYTE_MAX = 10
STEPS_OF_BURST_MAX = 100_000  # Once in the life of a connection.
SERVING = (http2, http2_budget, http2_connection, http2_call, grpc_server_connection)
LITTLE = ServingSettings(CallSettings(message_bytes_max=1 << 20), incoming_bytes_max=8 << 20)


async def seal(request: Any, caller: Caller) -> pb.StreamResponse:
    return pb.StreamResponse()


async def echo(requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
    async for request in requests:
        yield pb.WriteResponse(pong=pb.Pong(number=request.ping.number))


async def deaf(requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
    await asyncio.Event().wait()
    yield pb.WriteResponse()


async def served(sim: Simulation, settings: ServingSettings | None = None, *, write: Any = echo) -> GrpcServer:
    server = await bind_sim(sim.host("proxy").runtime, "proxy", PORT, settings=settings)
    await server.start({SEAL: seal, WRITE: write})
    return server


def window(value: int) -> bytes:
    return http2.settings_frame([(http2.INITIAL_WINDOW_SIZE, value)])


FLOODS: dict[str, Callable[[], bytes]] = {
    "settings in one frame": lambda: http2.settings_frame([(4, 65_535 + n % 2) for n in range(FRAMES)]),
    "settings": lambda: (window(65_535) + window(65_536)) * (FRAMES // 2),
    "settings that are heard": lambda: http2.frame(http2.SETTINGS, http2.ACK, 0) * FRAMES,
    "room for the connection": lambda: http2.number_frame(http2.WINDOW_UPDATE, 0, 1) * FRAMES,
    "room for a call": lambda: http2.number_frame(http2.WINDOW_UPDATE, 1, 1) * FRAMES,
    "room for a call that is over": lambda: (
        http2.number_frame(http2.RST_STREAM, 1, 8) + http2.number_frame(http2.WINDOW_UPDATE, 1, 1) * FRAMES
    ),
    "headers in small parts": lambda: (
        http2.frame(http2.HEADERS, 0, 2 * CALLS + 1, b"\x82") + http2.frame(9, 0, 2 * CALLS + 1, b"\x83") * FRAMES
    ),
    "priorities": lambda: http2.frame(http2.PRIORITY, 0, 1, bytes(5)) * FRAMES,
    "frames that do not exist": lambda: http2.frame(99, 0, 1, bytes(5)) * FRAMES,
    "questions": lambda: http2.frame(http2.PING, 0, 0, bytes(8)) * FRAMES,
    "answers": lambda: http2.frame(http2.PING, http2.ACK, 0, bytes(8)) * FRAMES,
    "data of nothing": lambda: http2.frame(http2.DATA, 0, 1) * FRAMES,
    "resets of a call that is over": lambda: http2.number_frame(http2.RST_STREAM, 1, 8) * FRAMES,
    "good-byes": lambda: http2.goaway_frame(0, 0) * FRAMES,
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_frames_that_carry_nothing_ends_the_connection_before_it_costs_much(kind: str) -> None:
    async def main(sim: Simulation) -> None:
        server = await served(sim)
        client = await stranger(sim, "proxy", PORT)
        for _ in range(CALLS):
            client.open()
        await client.send(b"")
        assert server.counts()["calls"] == CALLS
        flood = FLOODS[kind]()
        with counted_steps(*SERVING) as steps:
            await client.send(flood)
        assert client.reason == http2.ENHANCE_YOUR_CALM
        assert client.is_closed
        assert steps.count < STEPS_PER_BYTE_MAX * len(flood) + STEPS_OF_BURST_MAX
        assert server.counts() == {"connections": 0, "calls": 0, "broken_rules": 1}
        await server.aclose()

    simulate(1, main)


def test_a_message_in_the_smallest_parts_costs_no_more_for_each_byte_than_frames_do() -> None:
    """It is allowed: every byte of it is a byte of a message."""

    async def main(sim: Simulation) -> None:
        server = await served(sim)
        client = await stranger(sim, "proxy", PORT)
        number = client.open()
        body = pb.WriteRequest(ping=pb.Ping(number=7), open=pb.Open(client_id="x" * FRAMES)).SerializeToString()
        message = http2.message_prefix(len(body)) + body
        flood = b"".join(http2.frame(http2.DATA, 0, number, message[at : at + 1]) for at in range(len(message)))
        with counted_steps(*SERVING) as steps:
            await client.send(flood)
        assert client.of(http2.DATA, number)
        assert steps.count < STEPS_PER_BYTE_MAX * len(flood)
        client.transport.abort()
        await server.aclose()

    simulate(1, main)


def test_room_that_is_made_for_data_that_came_is_no_flood() -> None:
    """A client that makes room for its call and for the connection after every frame of data, however small."""

    async def main(sim: Simulation) -> None:
        server = await served(sim)
        client = await stranger(sim, "proxy", PORT)
        number = client.open()
        ping = pb.WriteRequest(ping=pb.Ping(number=1)).SerializeToString()
        for _ in range(12):
            await client.send((http2.message_header(number, len(ping)) + ping) * 1_000)
            answers = len(client.of(http2.DATA, number))
            some = http2.number_frame(http2.WINDOW_UPDATE, 0, 9) + http2.number_frame(http2.WINDOW_UPDATE, number, 9)
            await client.send(some * 1_000)
        assert answers == 12_000
        assert client.reason is None
        client.transport.abort()
        await server.aclose()

    simulate(1, main)


def test_room_that_is_made_for_calls_that_were_opened_is_no_flood() -> None:
    """A client that makes room for each call as it opens it, and later once more."""

    async def main(sim: Simulation) -> None:
        server = await served(sim)
        client = await stranger(sim, "proxy", PORT)
        numbers = [client.open() for _ in range(http2_budget.BURST)]
        for _ in range(2):
            await client.send(b"".join(http2.number_frame(http2.WINDOW_UPDATE, number, 9) for number in numbers))
        assert client.reason is None
        assert server.counts()["calls"] == http2_budget.BURST
        client.transport.abort()
        await server.aclose()

    simulate(1, main)


def unfinished_messages(client: Stranger, count: int) -> None:
    """Each of a quarter of a megabyte, but for its last byte; and before it one that is whole, so that no time ends."""
    size = 250 << 10
    for _ in range(count):
        number = client.open()
        client.transport.write(http2.message_header(number, 0))
        client.transport.write(http2.frame(http2.DATA, 0, number, http2.message_prefix(size) + bytes(size - 1)))


def announced_messages(client: Stranger, count: int) -> None:
    """Of which nothing comes, behind one that is whole."""
    for _ in range(count):
        number = client.open()
        client.transport.write(http2.message_header(number, 0))
        client.transport.write(http2.frame(http2.DATA, 0, number, http2.message_prefix(1 << 20)))


def unread_messages(client: Stranger, count: int) -> None:
    """Whole ones, for a handler that does not ask for them: large ones, and very many that are empty."""
    for _ in range(count):
        number = client.open()
        client.transport.write(http2.message_header(number, 100_000) + bytes(100_000))
        client.transport.write(http2.frame(http2.DATA, 0, number, http2.message_prefix(0) * 10_000))


@pytest.mark.parametrize("keep", [unfinished_messages, announced_messages, unread_messages])
def test_what_one_connection_makes_us_keep_is_counted_and_leaves_as_much_to_others(
    keep: Callable[[Stranger, int], None],
) -> None:
    """Method: four times what there is memory for. Then others come, one after the other, and each gets its share."""

    async def main(sim: Simulation) -> None:
        server = await served(sim, LITTLE, write=deaf)
        budget = LITTLE.incoming_bytes_max
        greedy = await stranger(sim, "proxy", PORT)
        keep(greedy, 4 * budget // (100 << 10))
        await greedy.send(b"")
        assert budget // 4 < server.incoming_bytes <= budget // 2
        assert server.counts()["too_many_bytes"] > 0
        assert not greedy.is_closed
        held = server.incoming_bytes
        others = [await stranger(sim, "proxy", PORT) for _ in range(3)]
        for other in others:
            unfinished_messages(other, 2)
            await other.send(b"")
            assert server.incoming_bytes - held > 2 * (249 << 10)
            held = server.incoming_bytes
        for client in (*others, greedy):
            client.transport.abort()
        await asyncio.sleep(1)
        assert server.incoming_bytes == 0
        await server.aclose()

    simulate(1, main)


def test_frames_and_headers_that_are_not_whole_are_counted_too() -> None:
    """Method: connections that stop within a frame, or within headers, until there is no memory for one more."""

    async def main(sim: Simulation) -> None:
        server = await served(sim, LITTLE)
        clients = [await stranger(sim, "proxy", PORT) for _ in range(60)]
        for place, client in enumerate(clients):
            if place % 2:
                client.transport.write(http2.frame(http2.HEADERS, 0, 1, bytes(10_000)))
            else:
                client.transport.write(http2.frame(http2.DATA, 0, client.open(), bytes(256 << 10))[:-1])
        await clients[0].send(b"")
        refused = [client for client in clients if client.is_closed]
        assert {client.reason for client in refused} == {http2.ENHANCE_YOUR_CALM}
        assert refused
        assert (LITTLE.incoming_bytes_max * 3) // 4 < server.incoming_bytes <= LITTLE.incoming_bytes_max
        transport = SimTransport(sim.host("client").runtime, "honest")
        await transport.channel(f"proxy:{PORT}").call(SEAL, pb.StreamRequest(), timeout_s=5)
        await transport.aclose()
        for client in clients:
            client.transport.abort()
        await asyncio.sleep(1)
        assert server.incoming_bytes == 0
        await server.aclose()

    simulate(1, main)


def test_a_message_of_the_largest_size_is_taken_when_there_is_little_memory_but_nobody_else() -> None:
    async def main(sim: Simulation) -> None:
        settings = ServingSettings(LITTLE.calls, incoming_bytes_max=3 << 20)
        server = await served(sim, settings)
        transport = SimTransport(sim.host("client").runtime, "honest")
        filled = pb.StreamRequest(stream="x" * (LITTLE.calls.message_bytes_max - 10))
        for _ in range(3):
            await transport.channel(f"proxy:{PORT}").call(SEAL, filled, timeout_s=5)
        await transport.aclose()
        assert server.incoming_bytes == 0
        await server.aclose()

    simulate(1, main)


def test_ends_of_calls_that_nobody_reads_end_the_connection() -> None:
    """Method: calls that do not exist, so that each is answered at once; and a client that reads nothing."""

    async def main(sim: Simulation) -> None:
        server = await served(sim)
        client = await stranger(sim, "proxy", PORT)
        client.transport.pause_reading()
        block = http2.headers_block([(":method", "POST"), (":path", "/x.Y/Z"), ("content-type", "application/grpc")])
        for at in range(1, 200_000, 2):
            client.transport.write(http2.headers_frames(at, block, end_stream=True))
            if at % 2_000 == 1:
                await asyncio.sleep(0.1)
            if server.counts()["connections"] == 0:
                break
        assert server.counts()["connections"] == 0
        assert server.counts()["broken_rules"] == 1
        client.transport.abort()
        await server.aclose()

    simulate(1, main)


def test_calls_that_are_over_are_forgotten_while_one_stays_silent() -> None:
    """Method: calls that are not served here, each refused at once, behind one that sends nothing."""

    async def main(sim: Simulation) -> None:
        server = await served(sim)
        client = await stranger(sim, "proxy", PORT)
        client.open()
        for _ in range(1_000):
            client.open(FETCH)
        await client.send(b"")
        (connection,) = server._connections
        assert len(connection._silent) == 1
        client.transport.abort()
        await server.aclose()

    simulate(1, main)
