"""`SimNetwork`: delays, pieces, and the faults a test can ask for. tests/contract/network has what any network does."""

import asyncio
import errno
import functools
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from quire.testing import SimNetwork, SimRefused, SimTransport, Simulation, SimUnhandled, simulate

SEEDS = range(30)


class Recorder(asyncio.Protocol):
    """Remembers what arrived, and when."""

    transport: asyncio.Transport

    def __init__(self, *, echo: bool = False) -> None:
        self.pieces: list[bytes] = []
        self.times: list[float] = []
        self.lost_at: float | None = None
        self.error: Exception | None = None
        self._echo = echo

    @property
    def received(self) -> bytes:
        return b"".join(self.pieces)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.times.append(asyncio.get_running_loop().time())
        if self._echo:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_at, self.error = asyncio.get_running_loop().time(), exc


class Pair:
    """A client and a server, connected."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.net: SimNetwork = sim.network
        self.loop = sim.loop
        self.accepted: list[Recorder] = []
        self.client: Recorder

    async def connect(self) -> "Pair":
        def accept() -> Recorder:
            self.accepted.append(Recorder())
            return self.accepted[-1]

        await self.net.host("server").serve("server", 3181, accept)
        _, self.client = await self.net.host("client").connect("server", 3181, Recorder, timeout_s=10)
        return self

    @property
    def server(self) -> Recorder:
        return self.accepted[0]


def _with_pair(seed: int, check: Callable[[Pair], Awaitable[Any]]) -> Any:
    async def main(sim: Simulation) -> Any:
        return await check(await Pair(sim).connect())

    return simulate(seed, main)


def test_bytes_arrive_in_other_pieces_than_they_were_written() -> None:
    """A parser must see frames split in the middle, and several at once."""
    frames = [b"<%06d>" % number for number in range(200)]
    split = merged = 0
    for seed in SEEDS:

        async def check(pair: Pair) -> list[bytes]:
            for frame in frames:
                pair.client.transport.write(frame)
                await asyncio.sleep(0.001)
            await asyncio.sleep(1)
            return pair.server.pieces

        pieces = _with_pair(seed, check)
        assert b"".join(pieces) == b"".join(frames)
        split += sum(1 for piece in pieces if not piece.endswith(b">"))
        merged += sum(1 for piece in pieces if piece.count(b"<") > 1)
    assert split > 100
    assert merged > 100


def test_each_direction_has_its_own_delay() -> None:
    async def check(pair: Pair) -> None:
        pair.net.link_latency_s["client", "server"] = (2.0, 2.0)
        pair.net.link_latency_s["server", "client"] = (0.5, 0.5)
        start = pair.loop.time()
        pair.client.transport.write(b"x")
        pair.server.transport.write(b"y")
        await asyncio.sleep(5)
        assert pair.server.times[0] - start == pytest.approx(2.0)
        assert pair.client.times[0] - start == pytest.approx(0.5)

    _with_pair(1, check)


def test_delays_differ_between_seeds_and_repeat_with_one() -> None:
    async def check(pair: Pair) -> tuple[float, ...]:
        pair.client.transport.write(b"x" * 1000)
        await asyncio.sleep(1)
        return tuple(pair.server.times)

    assert _with_pair(3, check) == _with_pair(3, check)
    assert len({_with_pair(seed, check) for seed in SEEDS}) == len(SEEDS)


def test_a_one_way_partition_holds_one_direction_until_it_heals() -> None:
    async def check(pair: Pair) -> None:
        pair.net.partition("client", "server", one_way=True)
        pair.client.transport.write(b"held")
        pair.server.transport.write(b"free")
        await asyncio.sleep(3600)
        assert pair.server.received == b""
        assert pair.client.received == b"free"
        pair.client.transport.write(b", then more")
        pair.net.heal("client", "server")
        await asyncio.sleep(1)
        assert pair.server.received == b"held, then more"
        assert pair.server.lost_at is pair.client.lost_at is None

    for seed in SEEDS:
        _with_pair(seed, check)


def test_a_partition_catches_what_is_already_on_its_way() -> None:
    async def check(pair: Pair) -> None:
        pair.net.latency_s = (1.0, 1.0)
        pair.client.transport.write(b"late")
        await asyncio.sleep(0.5)
        pair.net.partition("server", "client")
        await asyncio.sleep(60)
        assert pair.server.received == b""
        pair.net.heal()
        await asyncio.sleep(5)
        assert pair.server.received == b"late"

    _with_pair(1, check)


def test_a_partition_between_others_disturbs_nobody() -> None:
    async def check(pair: Pair) -> None:
        pair.net.host("third")
        pair.net.partition("client", "third")
        pair.client.transport.write(b"through")
        await asyncio.sleep(1)
        assert pair.server.received == b"through"
        pair.net.partition("client", "server")
        pair.net.heal("client", "third")
        pair.client.transport.write(b" not")
        await asyncio.sleep(1)
        assert pair.server.received == b"through"

    _with_pair(1, check)


def test_a_partition_that_lasts_too_long_resets_the_connection_at_both_ends() -> None:
    async def check(pair: Pair) -> None:
        start = pair.loop.time()
        pair.net.partition("client", "server", one_way=True, reset_after_s=30)
        pair.client.transport.write(b"lost for good")
        await asyncio.sleep(60)
        for end in (pair.client, pair.server):
            assert end.lost_at == start + 30
            assert isinstance(end.error, ConnectionResetError)
        pair.net.heal()
        await asyncio.sleep(60)
        assert pair.server.received == b""

    _with_pair(1, check)


def test_a_partition_that_heals_in_time_resets_nothing_even_if_another_follows() -> None:
    async def check(pair: Pair) -> None:
        pair.net.partition("client", "server", reset_after_s=30)
        await asyncio.sleep(20)
        pair.net.heal()
        pair.net.partition("client", "server")
        await asyncio.sleep(60)
        assert pair.client.lost_at is None

    _with_pair(1, check)


def test_connecting_through_a_partition_times_out_or_succeeds_after_healing() -> None:
    async def check(pair: Pair) -> None:
        host = pair.net.host("client")
        for source, target in (("client", "server"), ("server", "client")):
            pair.net.partition(source, target, one_way=True)
            start = pair.loop.time()
            with pytest.raises(TimeoutError):
                await host.connect("server", 3181, Recorder, timeout_s=7)
            assert pair.loop.time() == start + 7
            pair.net.heal()
        await asyncio.sleep(1)
        # The server had accepted the attempt whose answer never arrived: it must not keep a ghost of it.
        assert [peer.lost_at is None for peer in pair.accepted] == [True, False]
        pair.net.partition("client", "server")
        pair.loop.call_later(3600, pair.net.heal)
        await host.connect("server", 3181, Recorder, timeout_s=7200)

    for seed in SEEDS:
        _with_pair(seed, check)


def test_cut_breaks_one_connection_and_loses_what_was_under_way() -> None:
    async def check(pair: Pair) -> None:
        _, other = await pair.net.host("client").connect("server", 3181, Recorder, timeout_s=10)
        pair.client.transport.write(b"lost")
        pair.net.cut(pair.client.transport)
        await asyncio.sleep(5)
        assert pair.server.received == b""
        assert isinstance(pair.client.error, ConnectionResetError)
        assert isinstance(pair.server.error, ConnectionResetError)
        assert other.lost_at is None
        with pytest.raises(TypeError):
            pair.net.cut(asyncio.Transport())

    _with_pair(1, check)


def test_reset_all_breaks_a_hosts_connections_and_leaves_its_listeners() -> None:
    async def check(pair: Pair) -> None:
        await pair.net.host("third").serve("third", 1, Recorder)
        _, other = await pair.net.host("client").connect("third", 1, Recorder, timeout_s=10)
        pair.net.reset_all("server")
        await asyncio.sleep(1)
        assert isinstance(pair.client.error, ConnectionResetError)
        assert other.lost_at is None
        await pair.net.host("client").connect("server", 3181, Recorder, timeout_s=10)

    _with_pair(1, check)


def test_a_crashed_host_loses_connections_listeners_and_its_old_network() -> None:
    async def check(pair: Pair) -> None:
        old = pair.net.host("server")
        pair.net.crash("server")
        await asyncio.sleep(1)
        assert isinstance(pair.client.error, ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await pair.net.host("client").connect("server", 3181, Recorder, timeout_s=10)
        with pytest.raises(OSError, match="crashed") as caught:
            await old.serve("server", 3181, Recorder)
        assert caught.value.errno == errno.ENETDOWN
        with pytest.raises(OSError, match="crashed"):
            await old.connect("client", 1, Recorder, timeout_s=10)
        await pair.net.host("server").serve("server", 3181, Recorder)
        await pair.net.host("client").connect("server", 3181, Recorder, timeout_s=10)

    _with_pair(1, check)


def test_connections_break_by_chance() -> None:
    async def check(pair: Pair) -> bool:
        pair.net.loss_probability = 0.02
        for _ in range(50):
            if pair.client.lost_at is None:
                pair.client.transport.write(b"x")
            await asyncio.sleep(0.1)
        assert (pair.client.lost_at is None) == (pair.server.lost_at is None)
        return pair.client.lost_at is None

    assert {_with_pair(seed, check) for seed in SEEDS} == {True, False}


def test_an_abort_is_an_end_or_an_error_for_the_peer() -> None:
    async def check(pair: Pair) -> type | None:
        pair.client.transport.abort()
        await asyncio.sleep(1)
        assert pair.client.error is None
        assert pair.server.lost_at is not None
        return None if pair.server.error is None else type(pair.server.error)

    assert {_with_pair(seed, check) for seed in SEEDS} == {None, ConnectionResetError}


def test_data_for_a_closed_end_is_answered_with_a_reset() -> None:
    class HalfOpen(Recorder):
        def eof_received(self) -> bool:
            return True

    async def main(sim: Simulation) -> None:
        made: list[HalfOpen] = []

        def accept() -> HalfOpen:
            made.append(HalfOpen())
            return made[-1]

        await sim.network.host("server").serve("", 3181, accept)
        transport, _ = await sim.network.host("client").connect("server", 3181, Recorder, timeout_s=10)
        transport.close()
        await asyncio.sleep(1)
        assert made[0].lost_at is None
        made[0].transport.write(b"anybody there?")
        await asyncio.sleep(1)
        assert isinstance(made[0].error, ConnectionResetError)

    simulate(1, main)


def test_names_ports_and_addresses() -> None:
    async def main(sim: Simulation) -> None:
        net = sim.network
        one, two = net.host("one"), net.host("two")
        async with await one.serve("localhost", 5000, Recorder) as local:
            assert local.address == ("localhost", 5000)
            await one.connect("127.0.0.1", 5000, Recorder, timeout_s=1)
            with pytest.raises(ConnectionRefusedError):
                await two.connect("one", 5000, Recorder, timeout_s=1)
        async with await one.serve("0.0.0.0", 5000, Recorder) as public, await two.serve("", 5000, Recorder):
            assert public.address == ("one", 5000)
            transport, _ = await two.connect("one", 5000, Recorder, timeout_s=1)
            assert transport.get_extra_info("peername") == ("one", 5000)
        with pytest.raises(OSError, match="not an address"):
            await one.serve("two", 5000, Recorder)
        with pytest.raises(socket.gaierror):
            await one.connect("nowhere", 5000, Recorder, timeout_s=1)

    simulate(1, main)


def test_a_connection_reset_while_it_is_being_made_is_an_error_and_no_connection() -> None:
    class Hasty(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            assert isinstance(transport, SimTransport)
            sim_network[0].cut(transport)

    async def main(sim: Simulation) -> None:
        sim_network.append(sim.network)
        await sim.network.host("server").serve("server", 1, Hasty)
        clients: list[Recorder] = []

        def dial() -> Recorder:
            clients.append(Recorder())
            return clients[-1]

        with pytest.raises(ConnectionResetError):
            await sim.network.host("client").connect("server", 1, dial, timeout_s=10)
        await asyncio.sleep(1)
        assert not hasattr(clients[0], "transport")
        assert clients[0].lost_at is None

    sim_network: list[SimNetwork] = []
    simulate(1, main)


def test_a_protocol_that_raises_fails_the_run() -> None:
    class Faulty(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError("cannot parse")

    async def main(sim: Simulation) -> None:
        await sim.network.host("server").serve("server", 1, Faulty)
        transport, _ = await sim.network.host("client").connect("server", 1, Recorder, timeout_s=10)
        transport.write(b"x")
        await asyncio.sleep(1)

    with pytest.raises(SimUnhandled, match="cannot parse"):
        simulate(1, main)


def test_tls_is_refused() -> None:
    async def main(sim: Simulation) -> None:
        host = sim.network.host("one")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        transport = asyncio.Transport()
        for attempt in (
            host.connect("one", 1, Recorder, timeout_s=1, tls=tls),
            host.serve("one", 1, Recorder, tls=tls),
            host.start_tls(transport, Recorder(), tls, timeout_s=1),
        ):
            with pytest.raises(SimRefused, match="TLS"):
                await attempt

    simulate(1, main)


def test_a_long_echo_survives_small_windows() -> None:
    async def main(sim: Simulation) -> None:
        net = SimNetwork(sim.loop, sim.rng, window_bytes=1000)
        payload = bytes(range(251)) * 400
        await net.host("server").serve("server", 1, functools.partial(Recorder, echo=True))
        transport, client = await net.host("client").connect("server", 1, Recorder, timeout_s=10)
        transport.write(payload)
        await asyncio.sleep(60)
        assert client.received == payload

    simulate(1, main)
