"""The bookie's server on real sockets: TLS begun in the middle of a connection, clients in clear beside it, and
everything of a real bookie behind it: RocksDB, files, metadata in SQLite.
"""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from quire.bookie.bookie import Bookie, BookieSettings
from quire.bookie.connection import BookieConnection
from quire.bookie.identity import BookieFolders
from quire.bookie.settings import ServerSettings
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import BookieInfoRequest, ListEntriesRequest, StartTlsRequest
from quire.errors import BookieUnavailable
from quire.metadata import init_cluster, open_cluster, open_store, parse_uri
from quire.rpc import BookieChannel
from quire.runtime import AsyncioNetwork, real_runtime
from quire.types import bookie_id
from tests.integration.conftest import Run
from tests.support import wire_vectors as vectors
from tests.support.certificates import Certificates
from tests.support.raw_bookie_client import (
    KEY,
    LEDGER,
    V2,
    V3,
    Answer,
    RawClient,
    decoded,
    entry,
    leftovers,
    long_poll,
    no_task_fails,
    write_lac,
)
from tests.support.waiting import eventually

OK = Status.EOK
LOOPBACK = "127.0.0.1"
START_TLS = V3.frame(StartTlsRequest())


@asynccontextmanager
async def running(
    folder: Path, *, tls: ssl.SSLContext | None = None, leaves: bool = True, **server: Any
) -> AsyncIterator[Bookie]:
    """A whole bookie at a free port. At the end all clients leave, unless told otherwise, and leave nothing behind."""
    uri, runtime = parse_uri(f"sqlite:{folder}/metadata.db"), real_runtime()
    if not (folder / "metadata.db").exists():
        async with open_store(uri, runtime=runtime) as store:
            await init_cluster(store, uri, runtime)
    settings = BookieSettings(
        BookieFolders(f"{folder}/data", (f"{folder}/journal",)),
        host=LOOPBACK,
        port=0,
        bookie_id=bookie_id("b1"),
        server=ServerSettings(**server),
    )
    try:
        with no_task_fails():
            async with (
                open_cluster(uri, runtime=runtime) as cluster,
                Bookie(runtime, cluster, settings, tls=tls) as bookie,
            ):
                yield bookie
                if not leaves:
                    return
                for connection in list(bookie.service.connections):
                    connection.abort()
                await eventually(lambda: _nothing_left(bookie), what="a client left something behind")
    finally:
        await runtime.disk.aclose()


async def _nothing_left(bookie: Bookie) -> bool:
    return not leftovers(bookie.service)


async def connect(bookie: Bookie) -> RawClient:
    _, client = await AsyncioNetwork().connect(*bookie.address, RawClient, timeout_s=20)
    return client


async def encrypt(client: RawClient, tls: ssl.SSLContext) -> None:
    """The client's side of START_TLS."""
    answer = decoded(await client.ask(START_TLS))
    assert answer.status is OK
    client.transport = await AsyncioNetwork().start_tls(
        client.transport, client, tls, timeout_s=20, server_hostname="localhost"
    )


async def some_of_everything(client: RawClient, ledger_id: int) -> None:
    for entry_id in range(20):
        version = V2 if entry_id % 2 else V3
        body = entry(ledger_id, entry_id, bytes([entry_id]) * 100_000)
        assert await client.add(version, ledger_id, entry_id, body) == Answer(OK, ledger_id, entry_id)
    client.send(*(V2.read(ledger_id, entry_id) for entry_id in range(20)))
    for _ in range(20):
        answer = V2.answer(await client.frame())
        assert answer.body == entry(ledger_id, answer.entry_id, bytes([answer.entry_id]) * 100_000)
    assert (await client.ask_v3(BookieInfoRequest())).status is OK
    assert (await client.read(V3, ledger_id, 5, fence=KEY)).status is OK
    assert (await client.add(V2, ledger_id, 20)).status is Status.EFENCED


def test_a_bookie_serves_in_clear(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as bookie:
            client = await connect(bookie)
            assert await client.ask(vectors.V2_ADD) == vectors.V2_ADD_OK
            assert await client.ask(vectors.V2_READ) == vectors.V2_READ_OK
            assert await client.ask(vectors.V2_BATCH) == vectors.V2_BATCH_OK
            assert await client.ask(vectors.V3_AUTH) == vectors.V3_AUTH_OK
            assert await client.ask(vectors.V3_ADD) == vectors.V3_ADD_OK
            await some_of_everything(client, LEDGER)
            refused = decoded(await client.ask(START_TLS))
            assert (refused.status, refused.content) == (Status.EBADREQ, None)

    run(main())


def test_what_was_stored_is_there_in_the_next_life(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as bookie:
            client = await connect(bookie)
            for entry_id in range(30):
                assert (await client.add(V2, LEDGER, entry_id)).status is OK
            assert (await client.ask_v3(write_lac(29))).status is OK
            assert (await client.read(V3, LEDGER + 1, -1, fence=KEY)).status is Status.ENOENTRY
        async with running(tmp_path) as bookie:
            client = await connect(bookie)
            for entry_id in (0, 17, 29):
                assert (await client.read(V2, LEDGER, entry_id)).body == entry(LEDGER, entry_id)
            assert (await client.read(V2, LEDGER, -1)).body == entry(LEDGER, 29)
            assert (await client.add(V2, LEDGER + 1, 0)).status is Status.EFENCED
            polled = (await client.ask_v3(long_poll(28, 60_000))).content
            assert (polled.entry_id, polled.max_lac) == (29, 29)  # type: ignore[union-attr]
            assert (await client.ask_v3(ListEntriesRequest(LEDGER))).status is OK

    run(main())


def test_a_long_poll_wakes_another_client(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as bookie:
            writer, reader = await connect(bookie), await connect(bookie)
            await writer.add(V2, LEDGER, 0)
            reader.send(V3.frame(long_poll(-1, 60_000)))
            await eventually(lambda: _waits(bookie), what="the bookie has the long poll")
            await writer.add(V2, LEDGER, 1)
            assert V3.answer(await reader.frame()) == Answer(OK, LEDGER, 0, entry(LEDGER, 0))

    async def _waits(bookie: Bookie) -> bool:
        return any(connection.waiters for connection in bookie.service.connections)

    run(main())


# --- TLS


def test_both_versions_go_on_inside_tls(run: Run, tmp_path: Path, certificates: Certificates) -> None:
    async def main() -> None:
        async with running(tmp_path, tls=certificates.server()) as bookie:
            client = await connect(bookie)
            await encrypt(client, certificates.client())
            await some_of_everything(client, LEDGER)
            again = decoded(await client.ask(START_TLS))
            assert (again.status, again.content) == (Status.EBADREQ, None)
            assert (await client.read(V2, LEDGER, 0)).status is OK

    run(main())


def test_clients_in_clear_and_in_tls_work_side_by_side(run: Run, tmp_path: Path, certificates: Certificates) -> None:
    async def main() -> None:
        async with running(tmp_path, tls=certificates.server()) as bookie:
            clients = [await connect(bookie) for _ in range(4)]
            for client in clients[::2]:
                await encrypt(client, certificates.client())
            await asyncio.gather(*(some_of_everything(client, number) for number, client in enumerate(clients)))

    run(main())


def test_a_channel_connects_with_tls(run: Run, tmp_path: Path, certificates: Certificates) -> None:
    async def main() -> None:
        async with running(tmp_path, tls=certificates.server()) as bookie:
            host, port = bookie.address
            channel = await BookieChannel.connect(
                real_runtime(), host, port, tls=certificates.client(), server_hostname="localhost"
            )
            info = await channel.bookie_info()
            assert info.total_disk_bytes
            await channel.aclose()
        async with running(tmp_path) as bookie:
            host, port = bookie.address
            with pytest.raises(BookieUnavailable):
                await BookieChannel.connect(
                    real_runtime(), host, port, tls=certificates.client(), server_hostname="localhost"
                )

    run(main())


BROKEN_HANDSHAKES: dict[str, Callable[[RawClient], Awaitable[None]]] = {}


def broken(call: Callable[[RawClient], Awaitable[None]]) -> Callable[[RawClient], Awaitable[None]]:
    BROKEN_HANDSHAKES[call.__name__] = call
    return call


@broken
async def garbage(client: RawClient) -> None:
    client.transport.write(os.urandom(2000))


@broken
async def plain_frames(client: RawClient) -> None:
    client.transport.write(V2.read(LEDGER, 0))


@broken
async def half_a_hello(client: RawClient) -> None:
    client.transport.write(bytes.fromhex("16030100a5010000a10303"))


@broken
async def silence(client: RawClient) -> None:
    """The bookie does not wait for ever."""


@broken
async def goodbye(client: RawClient) -> None:
    client.transport.close()


@broken
async def slamming_the_door(client: RawClient) -> None:
    client.transport.abort()


@broken
async def a_reset(client: RawClient) -> None:
    connection = client.transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()


@broken
async def half_a_hello_and_goodbye(client: RawClient) -> None:
    client.transport.write(bytes.fromhex("16030100a5010000a10303"))
    client.transport.close()


@pytest.mark.parametrize("how", BROKEN_HANDSHAKES)
def test_a_handshake_that_fails_ends_its_connection_only(
    run: Run, tmp_path: Path, certificates: Certificates, how: str
) -> None:
    """And leaves nothing behind: a bookie whose places for connections fill up with dead ones is lost."""

    # The bookie has to end only these two. The others should not be cut off on a busy machine.
    waits: dict[str, Any] = {"tls_timeout_s": 1.5} if how in ("half_a_hello", "silence") else {}

    async def main() -> None:
        async with running(tmp_path, tls=certificates.server(), **waits) as bookie:
            other = await connect(bookie)
            await other.add(V2, LEDGER, 0)
            for _ in range(2):
                client = await connect(bookie)
                assert decoded(await client.ask(START_TLS)).status is OK
                await BROKEN_HANDSHAKES[how](client)
                await client.until(lambda client=client: client.is_lost)  # type: ignore[misc]
            await eventually(lambda: _only_one(bookie), within_s=5, what="dead connections are forgotten")
            assert (await other.read(V2, LEDGER, 0)).body == entry(LEDGER, 0)
            fresh = await connect(bookie)
            await encrypt(fresh, certificates.client())
            assert (await fresh.read(V3, LEDGER, 0)).body == entry(LEDGER, 0)

    async def _only_one(bookie: Bookie) -> bool:
        return len(bookie.service.connections) == 1

    run(main())


def test_a_bookie_stops_in_the_middle_of_a_handshake(run: Run, tmp_path: Path, certificates: Certificates) -> None:
    async def main() -> None:
        async with asyncio.timeout(8):  # Less than a client may take for its handshake.
            async with running(tmp_path, tls=certificates.server(), leaves=False) as bookie:
                client = await connect(bookie)
                assert decoded(await client.ask(START_TLS)).status is OK
            await client.until(lambda: client.is_lost)

    run(main())


@pytest.mark.parametrize("excess", [V2.add(LEDGER, 5), V2.add(LEDGER, 5)[:10], b"\x00"], ids=["frame", "half", "byte"])
def test_nothing_sent_in_clear_behind_start_tls_counts(
    run: Run, tmp_path: Path, certificates: Certificates, excess: bytes
) -> None:
    """Somebody between client and bookie could have put it there, to be taken for part of what comes encrypted."""

    async def main() -> None:
        async with running(tmp_path, tls=certificates.server()) as bookie:
            client = await connect(bookie)
            client.send(START_TLS + excess)
            async with asyncio.timeout(5):  # Less than a client may take for its handshake.
                await client.until(lambda: client.is_lost)
            assert bookie.metrics.damage.protocol_violations.value == 1
            assert (await (await connect(bookie)).read(V2, LEDGER, 5)).status is Status.ENOLEDGER

    run(main())


def test_answers_that_are_due_during_the_handshake_come_encrypted(
    run: Run, tmp_path: Path, certificates: Certificates
) -> None:
    """Method: adds, and START_TLS behind them without waiting. In clear they would have spoilt the handshake."""

    async def main() -> None:
        async with running(tmp_path, tls=certificates.server()) as bookie:
            client = await connect(bookie)
            client.send(*(V2.add(LEDGER, number, entry(LEDGER, number, bytes(50_000))) for number in range(20)))
            client.send(START_TLS)
            answers = []
            while (frame := await client.frame())[4] != 0x0A:
                answers.append(V2.answer(frame))
            assert decoded(frame).status is OK
            client.transport = await AsyncioNetwork().start_tls(
                client.transport, client, certificates.client(), timeout_s=20, server_hostname="localhost"
            )
            while len(answers) < 20:
                answers.append(V2.answer(await client.frame()))
            assert sorted(answers) == [Answer(OK, LEDGER, number) for number in range(20)]

    run(main())


# --- Sockets


def test_a_client_that_takes_nothing_does_not_hold_up_the_others(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, unsent_bytes_max=100_000) as bookie:
            client = await connect(bookie)
            for entry_id in range(10):
                await client.add(V2, LEDGER, entry_id, entry(LEDGER, entry_id, bytes(100_000)))
            stuck = await connect(bookie)
            stuck.transport.pause_reading()
            stuck.send(*(V2.read(LEDGER, number % 10) for number in range(1000)))
            for entry_id in range(10, 30):
                assert (await client.add(V3, LEDGER, entry_id)).status is OK
                assert (await client.read(V2, LEDGER, entry_id)).body == entry(LEDGER, entry_id)
            held = [
                connection._out_bytes + connection._transport.get_write_buffer_size()
                for connection in cast(list[BookieConnection], [*bookie.service.connections])
                if connection._transport is not None
            ]
            assert sum(held) <= 2_000_000
            stuck.transport.resume_reading()
            await stuck.until(lambda: len(stuck.frames) == 1000)

    run(main())


def test_clients_that_vanish_leave_nothing(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as bookie:
            staying = await connect(bookie)
            await staying.add(V2, LEDGER, 0)
            for number in range(30):
                client = await connect(bookie)
                client.send(
                    *(V2.add(LEDGER, entry_id) for entry_id in range(100)),
                    *(V3.read(LEDGER, entry_id) for entry_id in range(100)),
                    V3.frame(long_poll(10_000, 3_600_000)),
                    V3.frame(ListEntriesRequest(LEDGER)),
                    V2.add(LEDGER, 0)[: number + 1],
                )
                await asyncio.sleep(0)
                client.transport.abort()
            await eventually(lambda: _only_one(bookie), what="the others are forgotten")
            assert {*leftovers(bookie.service)} <= {"connections"}
            assert (await staying.read(V2, LEDGER, 0)).body == entry(LEDGER, 0)

    async def _only_one(bookie: Bookie) -> bool:
        return len(bookie.service.connections) == 1 and not bookie.service._tasks

    run(main())
