"""A channel's life: connecting, TLS as far as it goes in clear, bytes that make no sense, and closing."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest
from tests.support.scripted_bookie import LEDGER, ScriptedBookie, Sink, World, add_frame, add_ok, ids, on_channel

from quire.codec.wire import v2, v3
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import ForceLedgerResponse, Operation, Request, StartTlsRequest, StartTlsResponse
from quire.errors import BookieOutcomeUnknown, BookieUnavailable, ProtocolViolation
from quire.rpc import BookieChannel, ChannelSettings
from quire.testing import SimDeadlock, SimHostNetwork, Simulation, simulate
from quire.types import EntryId

OK = Status.EOK
E3 = EntryId(3)


# --- Connecting


def test_nobody_at_the_address_is_unavailable() -> None:
    async def main(sim: Simulation) -> None:
        runtime = sim.host("client").runtime
        sim.host("bookie")
        for host in ("bookie", "nowhere"):
            with pytest.raises(BookieUnavailable, match=f"{host}:3181 cannot be reached") as raised:
                await BookieChannel.connect(runtime, host, 3181)
            assert isinstance(raised.value.__cause__, OSError)

    simulate(1, main)


def test_connecting_takes_no_longer_than_allowed() -> None:
    async def main(sim: Simulation) -> None:
        await sim.host("bookie").runtime.network.serve("bookie", 3181, ScriptedBookie)
        sim.network.partition("client", "bookie")
        began = sim.loop.time()
        with pytest.raises(BookieUnavailable):
            await BookieChannel.connect(
                sim.host("client").runtime, "bookie", 3181, ChannelSettings(connect_timeout_s=2)
            )
        assert sim.loop.time() - began == pytest.approx(2)

    simulate(1, main)


def test_a_bookie_that_closes_at_once_fails_what_was_asked() -> None:
    """As a Java bookie does while it starts."""

    async def check(world: World) -> None:
        world.bookie.transport.close()
        with pytest.raises(BookieUnavailable, match="closed the connection"):
            await world.channel.read(LEDGER, E3)
        await world.channel.wait_closed()

    on_channel(check)


# --- Garbage

GARBAGE = {
    "no length": bytes(4),
    "a frame too large": b"\x7f\xff\xff\xff",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an opcode of nobody": (4).to_bytes(4, "big") + b"\x02\x09\x00\x00",
    "a code of nobody": add_ok(3)[:8] + (55).to_bytes(4, "big") + add_ok(3)[12:],
    "a read without ids": (8).to_bytes(4, "big") + b"\x02\x02\x00\x00\x00\x00\x00\x00",
    "one byte": (1).to_bytes(4, "big") + b"\x02",
    "a batch that ends early": (35).to_bytes(4, "big") + b"\x02\x07\x00\x00" + bytes(31),
    "no protobuf": (5).to_bytes(4, "big") + b"\x0a\xff\xff\xff\xff",
    "success without content": (10).to_bytes(4, "big") + bytes.fromhex("0a06 0803 100a 1801 1000"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_bytes_that_make_no_sense_end_the_connection_and_all_that_waits(name: str) -> None:
    """What was said before them still counts."""

    async def check(world: World) -> None:
        force = asyncio.ensure_future(world.channel.force(LEDGER))
        await world.bookie.hear(1)
        sink = Sink()
        world.send(range(3), sink)
        read = asyncio.ensure_future(world.channel.read(LEDGER, E3))
        await world.bookie.hear(5)
        world.bookie.say(add_ok(1), GARBAGE[name], add_ok(2))
        for call in (force, read):
            with pytest.raises(ProtocolViolation):
                await call
        assert sink.answers == [(1, OK)]
        [(entry_ids, error)] = sink.lost
        assert entry_ids == [0, 2]
        assert isinstance(error, ProtocolViolation)
        await world.channel.wait_closed()
        await world.bookie.until(lambda: world.bookie.lost)
        with pytest.raises(BookieUnavailable, match="does not know"):
            await world.channel.read(LEDGER, E3)

    on_channel(check)


@pytest.mark.parametrize("seed", range(10))
def test_answers_cut_into_single_bytes_are_understood(seed: int) -> None:
    async def check(world: World) -> None:
        force = asyncio.ensure_future(world.channel.force(LEDGER))
        await world.bookie.hear(1)
        sink = Sink()
        world.send(range(5), sink)
        read = asyncio.ensure_future(world.channel.read(LEDGER, E3))
        await world.bookie.hear(7)
        answers = [
            *(add_ok(entry_id) for entry_id in range(5)),
            v3.encode_response(1, OK, ForceLedgerResponse(LEDGER)),
            v2.read_response_prefix(OK, LEDGER, E3, entry_bytes=5) + b"entry",
        ]
        answers.sort(key=lambda _: world.sim.rng.random())
        for byte in b"".join(answers):
            world.channel.data_received(bytes([byte]))
        assert sorted(sink.answers) == [(entry_id, OK) for entry_id in range(5)]
        await force
        assert (await read).body == b"entry"

    on_channel(check, seed=seed)


# --- TLS, up to the handshake: a simulation has none


def _on_tls(check: Callable[[ScriptedBookie, "asyncio.Task[BookieChannel]", Simulation], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        bookie = ScriptedBookie()
        await sim.host("bookie").runtime.network.serve("bookie", 3181, lambda: bookie)
        connecting = asyncio.create_task(
            BookieChannel.connect(sim.host("client").runtime, "bookie", 3181, tls=ssl.create_default_context())
        )
        request = await bookie.hear_v3()
        assert request == Request(1, Operation.START_TLS, StartTlsRequest())
        await check(bookie, connecting, sim)
        await bookie.until(lambda: bookie.lost)
        assert bookie.heard == [], "nothing else was sent in clear"

    simulate(1, main)


def test_a_bookie_without_tls_is_not_spoken_to() -> None:
    async def check(bookie: ScriptedBookie, connecting: "asyncio.Task[BookieChannel]", sim: Simulation) -> None:
        bookie.say(v3.encode_refusal(1, Operation.START_TLS, Status.EBADREQ))
        with pytest.raises(BookieUnavailable, match="did not agree to TLS"):
            await connecting

    _on_tls(check)


def test_a_bookie_that_does_not_answer_to_tls_is_given_up() -> None:
    async def check(bookie: ScriptedBookie, connecting: "asyncio.Task[BookieChannel]", sim: Simulation) -> None:
        with pytest.raises(BookieUnavailable, match="in time"):
            await connecting

    _on_tls(check)


@pytest.mark.parametrize("slipped_in", [add_ok(0), add_ok(0)[:5], add_ok(0) * 2])
def test_bytes_slipped_in_before_the_handshake_are_refused(slipped_in: bytes) -> None:
    """Else whoever sits in between could answer for the bookie: the bytes would be read as if they came inside TLS."""

    async def check(bookie: ScriptedBookie, connecting: "asyncio.Task[BookieChannel]", sim: Simulation) -> None:
        bookie.say(v3.encode_response(1, OK, StartTlsResponse()), slipped_in)
        with pytest.raises(BookieUnavailable, match="more came in clear"):
            await connecting

    _on_tls(check)


def test_nothing_is_read_in_clear_once_the_bookie_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes later than the agreement is left for the handshake to choke on."""
    reading: list[bool] = []

    async def broken_handshake(
        _: SimHostNetwork, transport: asyncio.Transport, *args: object, **kwargs: object
    ) -> None:
        reading.append(transport.is_reading())
        raise ConnectionResetError("in the middle of the handshake")

    monkeypatch.setattr(SimHostNetwork, "start_tls", broken_handshake)

    async def check(bookie: ScriptedBookie, connecting: "asyncio.Task[BookieChannel]", sim: Simulation) -> None:
        bookie.say(v3.encode_response(1, OK, StartTlsResponse()))
        with pytest.raises(BookieUnavailable, match="in the middle of the handshake"):
            await connecting

    _on_tls(check)
    assert reading == [False]


# --- Closing


def test_closing_leaves_no_timer_behind() -> None:
    """Method: without timers a simulation in which all wait is a deadlock, and time stands still."""
    times: list[float] = []

    async def check(world: World) -> None:
        sink = Sink()
        world.send(range(1), sink)
        await world.channel.aclose()
        try:
            await asyncio.Event().wait()
        finally:
            times.append(world.sim.loop.time())

    with pytest.raises(SimDeadlock):
        on_channel(check)
    assert times[0] < 0.1, "the tick was due then"


def test_closing_sends_what_was_handed_over_and_fails_what_waits() -> None:
    async def check(world: World) -> None:
        sink = Sink()
        force = asyncio.ensure_future(world.channel.force(LEDGER))
        await world.bookie.hear(1)
        read = asyncio.ensure_future(world.channel.read(LEDGER, E3))
        await world.bookie.hear(2)
        world.send(range(100), sink)
        await world.channel.aclose()
        assert world.channel.closed
        with pytest.raises(BookieOutcomeUnknown, match="was closed"):
            await force
        with pytest.raises(BookieUnavailable, match="was closed"):
            await read
        [(entry_ids, error)] = sink.lost
        assert entry_ids == list(range(100))
        assert isinstance(error, BookieOutcomeUnknown)
        await world.bookie.until(lambda: world.bookie.lost)
        assert len(world.bookie.heard) == 102
        await world.channel.aclose()
        await world.channel.wait_closed()

    on_channel(check)


def test_a_block_closes_its_channel() -> None:
    async def check(world: World) -> None:
        async with world.channel as channel:
            assert not channel.closed
        assert world.channel.closed
        await world.bookie.until(lambda: world.bookie.lost)

    on_channel(check)


def test_closing_does_not_wait_for_a_bookie_that_takes_nothing() -> None:
    async def check(world: World) -> None:
        world.bookie.transport.pause_reading()
        world.channel.send_adds(LEDGER, [add_frame(0, payload=bytes(500_000))], ids(0), Sink())
        began = world.sim.loop.time()
        await world.channel.aclose()
        assert world.sim.loop.time() - began == pytest.approx(1.0, abs=0.01)

    on_channel(check)


def test_closing_that_is_cancelled_still_lets_go() -> None:
    async def check(world: World) -> None:
        world.bookie.transport.pause_reading()
        world.channel.send_adds(LEDGER, [add_frame(0, payload=bytes(500_000))], ids(0), Sink())
        closing = asyncio.ensure_future(world.channel.aclose())
        await world.pass_time(0.1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        async with asyncio.timeout(0.1):
            await world.channel.wait_closed()

    on_channel(check)
