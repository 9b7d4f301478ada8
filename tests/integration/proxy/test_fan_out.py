"""Many readers at the tail of one stream, through one read proxy: bookies are asked once, and nobody waits for others.

The short form is a part of every run; QUIRE_FAN_OUT_READERS=500 is the long one. How soon readers have a record is
measured by `python -m benchmarks proxy`.
"""

import asyncio
import os
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.proxy.client.places import position_message
from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.methods import READ
from quire.runtime import real_runtime
from quire.stream.client_api import Client
from tests.support.servers.local_cluster import LocalCluster

READERS: Final = int(os.environ.get("QUIRE_FAN_OUT_READERS", "60"))
RECORDS: Final = 1500
RECORD_BYTES: Final = 2000  # More in all than may be on its way to a reader that takes nothing.
CLIENTS: Final = 5  # The readers are spread over so many, each with a connection of its own.
CACHE_BYTES_MAX: Final = 256 << 20  # The default of a read proxy.


def service_of(cluster: LocalCluster, kind: str) -> list[dict[str, Any]]:
    return [each for each in cluster.wait_for("started")["services"] if each["kind"] == kind]


def counted(service: dict[str, Any], metric: str) -> float:
    """What a process counts under a name, for all labels together."""
    with urllib.request.urlopen(f"http://{service['admin']}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    values = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return sum(float(value) for name, _, value in values if name.partition("{")[0] == metric)


def storage_reads(cluster: LocalCluster) -> float:
    """Requests for entries that the bookies have answered, those that waited for one among them."""
    kinds = ("READ_ENTRY_REQUEST", "READ_ENTRY_LONG_POLL_REQUEST")
    return sum(
        counted(bookie, f"bookkeeper_server_{kind}_count") for bookie in service_of(cluster, "bookie") for kind in kinds
    )


def stored_entries(cluster: LocalCluster) -> float:
    """Entries that bookies have; each has all of them."""
    return max(counted(bookie, "bookkeeper_server_ADD_ENTRY_REQUEST_count") for bookie in service_of(cluster, "bookie"))


async def test_readers_share_every_read_and_a_stuck_one_changes_nothing(tmp_path: Path) -> None:
    """Goal: each reader gets each record once and in order; bookies are asked for each entry at most once, however many
    readers there are; one that takes nothing costs neither the others nor the proxy anything.

    Method: the readers follow from the beginning while records are appended. One more opens the stream and then reads
    nothing. The stream is sealed, so that all who read come to its end.
    """
    with LocalCluster(tmp_path, proxies=1) as cluster:
        proxy = service_of(cluster, "read-proxy")[0]
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(cluster.connect()) for _ in range(CLIENTS)]
            writer = await stack.enter_async_context(clients[0].open_writer("orders"))
            events = await stack.enter_async_context(stuck_reader(stack, proxy["address"]))
            assert (await anext(events)).HasField("opened")
            opened = asyncio.Barrier(READERS + 1)
            following = [asyncio.create_task(follow(clients[number % CLIENTS], opened)) for number in range(READERS)]
            async with asyncio.timeout(60):
                await opened.wait()
            reads, entries = storage_reads(cluster), stored_entries(cluster)

            payloads = [b"%d " % number + bytes(RECORD_BYTES) for number in range(RECORDS)]
            for first in range(0, RECORDS, 10):
                await writer.append_many(payloads[first : first + 10])
            await writer.seal()
            async with asyncio.timeout(100):
                found = await asyncio.gather(*following)
            assert found == [list(range(RECORDS))] * READERS

            entries = stored_entries(cluster) - entries
            reads = storage_reads(cluster) - reads
            assert reads <= entries + 10, f"{reads:.0f} reads of {entries:.0f} entries"
            assert counted(proxy, "quire_read_proxy_cache_bytes") <= CACHE_BYTES_MAX
            # What nobody but the stuck reader needs may stay for it, but not once for each reader.
            resident = memory_bytes(proxy["pid"])
            assert resident < 100e6 + 3 * RECORDS * RECORD_BYTES + 100e3 * READERS, f"{resident / 1e6:.0f} MB"


def stuck_reader(stack: AsyncExitStack, proxy: str) -> Any:
    """A call of `Read` whose messages nobody takes: there is no queue of ours that they could wait in."""
    transport = GrpcTransport(real_runtime(), "stuck")
    stack.push_async_callback(transport.aclose)
    request = pb.ReadRequest(stream="orders", start=position_message("earliest"), format=pb.ENTRIES)
    return transport.channel(proxy).stream(READ, request)


async def follow(client: Client, opened: asyncio.Barrier) -> list[int]:
    async with client.open_reader("orders") as reader:
        await opened.wait()
        return [int(record.payload.partition(b" ")[0]) async for record in reader]


def memory_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no process {pid}")
