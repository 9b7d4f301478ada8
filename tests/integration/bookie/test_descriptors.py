"""A bookie's process that may have few descriptors, and clients that open more connections than that."""

import asyncio
import resource
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

import quire
from quire.errors import QuireError
from quire.ledger.writing.writer import LedgerWriter
from quire.runtime import real_runtime
from tests.support.servers.one_bookie import LEDGERS, ONE
from tests.support.servers.ports import free_port
from tests.support.servers.sqlite_bookie import BookieProcess, new_cluster
from tests.support.waiting import eventually

DESCRIPTORS_MAX, INTRUDERS = 256, 400
REFUSED = "quire_bookie_connections_refused_total"
FEW = 128  # Less than a bookie with all its connections needs.


@pytest.mark.timeout(180)
async def test_idle_connections_leave_a_bookie_what_it_needs_for_its_disk(tmp_path: Path) -> None:
    """Connections beyond the reserve are closed at once and counted; a client that is there meanwhile notices nothing.

    Method: journals and entry logs are so small that appends open many files.
    """
    runtime, port, admin = real_runtime(), free_port(), free_port()
    small = ["storage.journal.file_bytes_max=100000", "storage.journal.preallocate_bytes=20000"]
    small += ["storage.log_bytes_max=100000", "storage.cache_bytes_max=200000"]
    overrides = [word for each in small for word in ("--set", each)]
    uri = await new_cluster(runtime, tmp_path)
    arguments = ("--admin", f"127.0.0.1:{admin}", *overrides)
    bookie = BookieProcess(runtime, tmp_path, uri, port=port, arguments=arguments)
    try:
        await _start_with_few(bookie)
        soft, hard = resource.prlimit(bookie.pid, resource.RLIMIT_NOFILE)
        assert soft == hard > FEW, "it did not take as many as it may have"
        resource.prlimit(bookie.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS_MAX, DESCRIPTORS_MAX))
        operator = HTTPConnection("127.0.0.1", admin)
        async with (
            quire.ledgers(uri, settings=LEDGERS) as client,
            client.create(**ONE) as ledger,
        ):
            assert await _refused(operator) == 0
            appending = asyncio.create_task(_append(ledger, 400))
            connections = await asyncio.gather(*(_idle(port) for _ in range(INTRUDERS)))
            await eventually(lambda: _is_refused(operator, INTRUDERS - DESCRIPTORS_MAX), what="many are refused")
            assert await appending == 400
            assert await _append(ledger, 100) == 100
            assert await _refused(operator) < INTRUDERS, "none was taken"
            for writer in connections:
                writer.close()
            operator.close()
            await eventually(lambda: _is_served(bookie), what="there is room for others again")
        assert await bookie.stop() == 0
    finally:
        await bookie.kill()
        await runtime.disk.aclose()


async def _start_with_few(bookie: BookieProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    try:
        await bookie.launch()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await eventually(lambda: _is_served(bookie), within_s=60, what="the bookie answers")


async def _is_served(bookie: BookieProcess) -> bool:
    with suppress(QuireError):
        async with await bookie.connect() as channel:
            await channel.bookie_info()
            return True
    return False


async def _idle(port: int) -> asyncio.StreamWriter:
    return (await asyncio.open_connection("127.0.0.1", port))[1]


async def _append(ledger: LedgerWriter, count: int) -> int:
    """Entries of 4 KiB, one after the other. Raises if one is not acknowledged."""
    for _ in range(count):
        await ledger.append(bytes(4096))
    return count


async def _refused(operator: HTTPConnection) -> float:
    lines = (await asyncio.to_thread(_metrics, operator)).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(REFUSED))


def _metrics(operator: HTTPConnection) -> str:
    operator.request("GET", "/metrics")
    return operator.getresponse().read().decode()


async def _is_refused(operator: HTTPConnection, count: int) -> bool:
    return await _refused(operator) >= count
