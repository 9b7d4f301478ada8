"""Channels on real sockets, with both event loops that Quire runs on, and inside real TLS."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest

from quire.codec.wire import v2, v3
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import BookieInfoResponse, Operation, ReadResponse, Request, StartTlsResponse
from quire.errors import BookieOutcomeUnknown, BookieUnavailable
from quire.rpc import BookieChannel, ChannelSettings
from quire.runtime import AsyncioNetwork, real_runtime
from quire.types import EntryId
from tests.integration.conftest import Run
from tests.support.certificates import Certificates
from tests.support.scripted_bookie import KEY, LEDGER, ScriptedBookie, Sink, add_frame, add_ok

LOOPBACK = "127.0.0.1"
OK = Status.EOK
E3 = EntryId(3)


async def with_bookie(check: Callable[[ScriptedBookie, tuple[str, int]], Awaitable[None]]) -> None:
    """A bookie at a free port, for one connection."""
    bookie = ScriptedBookie()
    async with await AsyncioNetwork().serve(LOOPBACK, 0, lambda: bookie) as server:
        await check(bookie, server.address)


async def agree_to_tls(bookie: ScriptedBookie, tls: ssl.SSLContext) -> None:
    """The bookie's side of START_TLS, up to the end of the handshake."""
    request = await bookie.hear_v3()
    assert request.operation is Operation.START_TLS
    bookie.say(v3.encode_response(request.txn_id, OK, StartTlsResponse()))
    bookie.transport = await AsyncioNetwork().start_tls(bookie.transport, bookie, tls, timeout_s=20, server_side=True)


async def exchange(channel: BookieChannel, bookie: ScriptedBookie) -> None:
    """Some of everything: a call of version 3, large adds, a large read."""
    info = asyncio.ensure_future(channel.bookie_info())
    request = await bookie.hear_v3()
    bookie.say(v3.encode_response(request.txn_id, OK, BookieInfoResponse(9, 4)))
    assert await info == BookieInfoResponse(9, 4)
    sink, seen = Sink(), len(bookie.received)
    frames = [add_frame(entry_id, payload=bytes([entry_id]) * 300_000) for entry_id in range(20)]
    channel.send_adds(LEDGER, frames, range(20), sink)
    assert channel.unsent_bytes == sum(map(len, frames))
    assert not channel.is_writable
    await bookie.hear(20)
    assert bookie.received[seen:] == b"".join(frames)
    bookie.say(*(add_ok(entry_id) for entry_id in reversed(range(20))))
    await sink.until(lambda: len(sink.answers) == 20)
    assert sink.answers == [(entry_id, OK) for entry_id in reversed(range(20))]
    await channel.wait_writable()
    bookie.heard.clear()
    read = asyncio.ensure_future(channel.read(LEDGER, E3))
    await bookie.hear(1)
    entry = bytes(range(256)) * 16_000
    bookie.say(v2.read_response_prefix(OK, LEDGER, E3, entry_bytes=len(entry)), entry)
    assert await read == ReadResponse(LEDGER, E3, entry)


def test_requests_and_answers_pass_through_sockets(run: Run) -> None:
    async def check(bookie: ScriptedBookie, address: tuple[str, int]) -> None:
        channel = await BookieChannel.connect(real_runtime(), *address)
        await exchange(channel, bookie)
        await channel.aclose()
        await bookie.until(lambda: bookie.lost)

    run(with_bookie(check))


def test_requests_and_answers_pass_through_tls(run: Run, certificates: Certificates) -> None:
    async def check(bookie: ScriptedBookie, address: tuple[str, int]) -> None:
        channel, _ = await asyncio.gather(
            BookieChannel.connect(real_runtime(), *address, tls=certificates.client(), server_hostname="localhost"),
            agree_to_tls(bookie, certificates.server()),
        )
        assert bookie.transport.get_extra_info("cipher") is not None
        await exchange(channel, bookie)
        await channel.aclose()
        await bookie.until(lambda: bookie.lost)

    run(with_bookie(check))


def test_a_certificate_for_somebody_else_is_refused_before_anything_is_sent(
    run: Run, certificates: Certificates
) -> None:
    async def check(bookie: ScriptedBookie, address: tuple[str, int]) -> None:
        connecting, agreeing = await asyncio.gather(
            BookieChannel.connect(real_runtime(), *address, tls=certificates.client(), server_hostname="elsewhere"),
            agree_to_tls(bookie, certificates.server()),
            return_exceptions=True,
        )
        assert isinstance(connecting, BookieUnavailable)
        assert "certificate verify failed" in str(connecting)
        assert bookie.heard == []
        assert agreeing is None or isinstance(agreeing, OSError)

    run(with_bookie(check))


def test_a_bookie_without_tls_is_refused(run: Run, certificates: Certificates) -> None:
    async def check(bookie: ScriptedBookie, address: tuple[str, int]) -> None:
        connecting = asyncio.ensure_future(
            BookieChannel.connect(real_runtime(), *address, tls=certificates.client(), server_hostname="localhost")
        )
        assert isinstance(await bookie.hear_v3(), Request)
        bookie.say(v3.encode_refusal(1, Operation.START_TLS, Status.EBADREQ))
        with pytest.raises(BookieUnavailable, match="did not agree to TLS"):
            await connecting
        await bookie.until(lambda: bookie.lost)

    run(with_bookie(check))


def test_a_handshake_that_never_ends_is_given_up(run: Run, certificates: Certificates) -> None:
    async def check(bookie: ScriptedBookie, address: tuple[str, int]) -> None:
        settings = ChannelSettings(connect_timeout_s=0.3)
        connecting = asyncio.ensure_future(
            BookieChannel.connect(
                real_runtime(), *address, settings, tls=certificates.client(), server_hostname="localhost"
            )
        )
        await bookie.hear_v3()
        bookie.transport.pause_reading()
        bookie.say(v3.encode_response(1, OK, StartTlsResponse()))
        with pytest.raises(BookieUnavailable, match="cannot be reached"):
            await connecting

    run(with_bookie(check))


def test_a_bookie_that_dies_fails_everything_that_waits(run: Run) -> None:
    async def check(bookie: ScriptedBookie, address: tuple[str, int]) -> None:
        channel = await BookieChannel.connect(real_runtime(), *address)
        lac = asyncio.ensure_future(channel.write_lac(LEDGER, E3, KEY, b"packet"))
        await bookie.hear(1)
        sink = Sink()
        channel.send_adds(LEDGER, [add_frame(0)], range(1), sink)
        await bookie.hear(2)
        bookie.transport.abort()
        with pytest.raises(BookieOutcomeUnknown):
            await lac
        await channel.wait_closed()
        assert sink.lost_ids == [0]
        assert channel.closed

    run(with_bookie(check))


def test_nobody_at_the_port_is_unavailable(run: Run) -> None:
    async def check() -> None:
        async with await AsyncioNetwork().serve(LOOPBACK, 0, ScriptedBookie) as server:
            address = server.address
        with pytest.raises(BookieUnavailable, match="cannot be reached"):
            await BookieChannel.connect(real_runtime(), *address)

    run(check())


def test_no_answer_is_noticed_at_the_deadline(run: Run) -> None:
    async def check(bookie: ScriptedBookie, address: tuple[str, int]) -> None:
        channel = await BookieChannel.connect(real_runtime(), *address, ChannelSettings(request_timeout_s=0.2))
        sink = Sink()
        with pytest.raises(BookieUnavailable, match="in time"):
            await channel.read_lac(LEDGER)
        channel.send_adds(LEDGER, [add_frame(0)], range(1), sink)
        await sink.until(lambda: sink.lost_ids == [0])
        await channel.aclose()

    run(with_bookie(check))
