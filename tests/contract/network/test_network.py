"""What every `Network` does. Partitions are not part of it: no test can unplug the loopback interface."""

import errno
import functools

import pytest

from quire.runtime import Network
from quire.runtime.network import write_parts
from tests.support.network_checks import (
    DEADLINE_S,
    LOOPBACK,
    NETWORKS,
    Accepting,
    BufferedRecorder,
    OnNetwork,
    Recorder,
)

PAYLOAD = bytes(range(256)) * 2000  # Half a megabyte: more than any buffer on the way.


def test_bytes_arrive_in_order_in_both_directions(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        async with await network.serve(LOOPBACK, 0, functools.partial(Recorder, echo=True)) as server:
            transport, client = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            assert client.events == ["made"]
            for start in range(0, len(PAYLOAD), 10_000):
                transport.write(PAYLOAD[start : start + 10_000])
            await client.until(lambda: len(client.received) >= len(PAYLOAD))
            assert client.received == PAYLOAD
            transport.close()
            await client.until_seen("lost")
            assert client.error is None

    on_network(check)


@pytest.mark.parametrize("part_bytes", [10, 4095, 4096, 100_000])
def test_parts_of_any_size_arrive_in_order_behind_what_was_written_before(
    on_network: OnNetwork, part_bytes: int
) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting()
        async with await network.serve(LOOPBACK, 0, accepting) as server:
            transport, _ = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            parts = [PAYLOAD[start : start + part_bytes] for start in range(0, len(PAYLOAD), part_bytes)]
            transport.write(b"before")
            write_parts(transport, parts, len(PAYLOAD))
            write_parts(transport, [b"after"], 5)
            peer = await accepting.first()
            await peer.until(lambda: peer.received.endswith(b"after"))
            assert peer.received == b"before" + PAYLOAD + b"after"

    on_network(check)


def test_a_buffer_may_be_reused_after_write(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting()
        async with await network.serve(LOOPBACK, 0, accepting) as server:
            transport, _ = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            buffer = bytearray(b"first")
            transport.write(buffer)
            buffer[:] = b"wrong"
            transport.writelines([b" second", memoryview(b" third")])
            peer = await accepting.first()
            await peer.until(lambda: len(peer.received) >= 18)
            assert peer.received == b"first second third"

    on_network(check)


def test_port_0_binds_a_free_port_which_then_is_taken(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        async with await network.serve(LOOPBACK, 0, Recorder) as server:
            host, port = server.address
            assert host == LOOPBACK
            assert 0 < port < 65_536
            with pytest.raises(OSError, match=r"[Aa]ddress already in use") as caught:
                await network.serve(LOOPBACK, port, Recorder)
            assert caught.value.errno == errno.EADDRINUSE
        async with await network.serve(LOOPBACK, port, Recorder) as again:
            assert again.address == (LOOPBACK, port)

    on_network(check)


def test_nobody_listening_means_refused(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        async with await network.serve(LOOPBACK, 0, Recorder) as server:
            address = server.address
        with pytest.raises(ConnectionRefusedError):
            await network.connect(*address, Recorder, timeout_s=DEADLINE_S)

    on_network(check)


def test_a_silent_server_has_its_address_and_refuses_until_it_listens(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting()
        async with await network.serve(LOOPBACK, 0, accepting, silent=True) as server:
            assert server.address[1] > 0
            for _ in range(2):
                with pytest.raises(ConnectionRefusedError):
                    await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            await server.listen()
            await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            await accepting.first()
            assert server.refused == 0
        async with await network.serve(LOOPBACK, 0, accepting, silent=True) as never:
            pass
        async with await network.serve(*never.address, accepting) as again:
            assert again.address == never.address

    on_network(check)


@pytest.mark.parametrize("on_network", [each for each in NETWORKS if each != "local"], indirect=True)
def test_both_ends_know_their_addresses(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting()
        async with await network.serve(LOOPBACK, 0, accepting) as server:
            transport, _ = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            peer = await accepting.first()
            assert transport.get_extra_info("peername")[1] == server.address[1]
            assert transport.get_extra_info("sockname")[1] == peer.transport.get_extra_info("peername")[1]
            assert transport.get_extra_info("no such thing", "default") == "default"

    on_network(check)


def test_half_closed_connections_still_carry_the_answer(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting(functools.partial(Recorder, keep_open=True))
        async with await network.serve(LOOPBACK, 0, accepting) as server:
            transport, client = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            assert transport.can_write_eof()
            transport.write(b"question")
            transport.write_eof()
            with pytest.raises(RuntimeError):
                transport.write(b"more")
            peer = await accepting.first()
            await peer.until_seen("eof")
            assert peer.received == b"question"
            peer.transport.write(b"answer")
            peer.transport.close()
            await client.until_seen("lost")
            assert client.received == b"answer"
            assert client.events[-2:] == ["eof", "lost"]

    on_network(check)


def test_the_end_of_the_data_closes_the_connection_by_default(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting()
        async with await network.serve(LOOPBACK, 0, accepting) as server:
            transport, client = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            transport.write_eof()
            await client.until_seen("lost")
            peer = await accepting.first()
            await peer.until_seen("lost")
            assert peer.error is None
            assert client.error is None

    on_network(check)


def test_close_sends_what_was_written_before(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting()
        async with await network.serve(LOOPBACK, 0, accepting) as server:
            transport, client = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            transport.write(PAYLOAD)
            transport.close()
            assert transport.is_closing()
            transport.write(b"ignored")
            peer = await accepting.first()
            await peer.until_seen("lost")
            assert peer.received == PAYLOAD
            await client.until_seen("lost")
            assert client.error is None

    on_network(check)


def test_abort_ends_both_sides(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting()
        async with await network.serve(LOOPBACK, 0, accepting) as server:
            transport, client = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            peer = await accepting.first()
            transport.abort()
            assert client.events == ["made"]  # Never from within the call: the caller may hold half-changed state.
            await client.until_seen("lost")
            assert client.error is None
            await peer.until_seen("lost")

    on_network(check)


def test_a_slow_reader_pauses_the_writer_and_releases_it(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting()
        async with await network.serve(LOOPBACK, 0, accepting) as server:
            transport, client = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            peer = await accepting.first()
            peer.transport.pause_reading()
            assert not peer.transport.is_reading()
            transport.set_write_buffer_limits(high=10_000, low=1_000)
            assert transport.get_write_buffer_limits() == (1_000, 10_000)
            written = 0
            while "pause" not in client.events:
                transport.write(PAYLOAD)
                written += len(PAYLOAD)
            assert transport.get_write_buffer_size() > 10_000
            peer.transport.resume_reading()
            await client.until_seen("resume")
            assert transport.get_write_buffer_size() <= 1_000
            await peer.until(lambda: len(peer.received) >= written)
            assert client.events == ["made", "pause", "resume"]

    on_network(check)


def test_nothing_arrives_while_reading_is_paused(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting()
        async with await network.serve(LOOPBACK, 0, accepting) as server:
            transport, client = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
            transport.pause_reading()
            peer = await accepting.first()
            peer.transport.write(b"late")
            other, _ = await network.connect(*server.address, functools.partial(Recorder), timeout_s=DEADLINE_S)
            assert client.events == ["made"]
            transport.resume_reading()
            await client.until(lambda: client.received == b"late")
            other.close()

    on_network(check)


def test_buffered_protocols_work_at_both_ends(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting(BufferedRecorder)
        async with await network.serve(LOOPBACK, 0, accepting) as server:
            transport, client = await network.connect(*server.address, BufferedRecorder, timeout_s=DEADLINE_S)
            transport.write(PAYLOAD)
            peer = await accepting.first()
            await peer.until(lambda: len(peer.received) >= len(PAYLOAD))
            assert peer.received == PAYLOAD
            peer.transport.write(PAYLOAD[:1000])
            peer.transport.close()
            await client.until_seen("lost")
            assert client.received == PAYLOAD[:1000]

    on_network(check)


def test_closing_a_server_closes_its_connections_and_waits_for_them(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting()
        server = await network.serve(LOOPBACK, 0, accepting)
        clients = [(await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S))[1] for _ in range(3)]
        await accepting.first()
        for peer in accepting.made:
            await peer.until_seen("made")
            peer.transport.write(b"goodbye")
        await server.aclose()
        assert [peer.events[-1] for peer in accepting.made] == ["lost"] * 3
        for client in clients:
            await client.until_seen("lost")
            assert client.received == b"goodbye"
        with pytest.raises(ConnectionRefusedError):
            await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
        await server.aclose()

    on_network(check)


def test_closing_a_server_does_not_wait_for_a_peer_that_never_reads(on_network: OnNetwork) -> None:
    async def check(network: Network) -> None:
        accepting = Accepting()
        server = await network.serve(LOOPBACK, 0, accepting)
        transport, client = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
        transport.pause_reading()
        peer = await accepting.first()
        while "pause" not in peer.events:
            peer.transport.write(PAYLOAD)
        await server.aclose(grace_s=0.01)
        assert peer.events[-1] == "lost"
        transport.abort()
        await client.until_seen("lost")

    on_network(check)
