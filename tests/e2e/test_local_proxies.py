"""Proxies of a local cluster: many programs write one stream, and nobody notices when a proxy dies."""

import asyncio
import os
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.support.servers.local_cluster import LocalCluster

import quire

WRITERS = 4
RECORDS = 30


def pid_of(cluster: LocalCluster, name: str) -> int:
    return int(next(each["pid"] for each in cluster.wait_for("started")["services"] if each["name"] == name))


async def test_many_programs_write_one_stream_while_proxies_are_killed(tmp_path: Path) -> None:
    """Method: four writers append to one stream, one record after the other, each with a client of its own; the write
    proxy and the read proxy are killed with -9 meanwhile. Every record is read once, those of one writer in order."""
    with LocalCluster(tmp_path, proxies=1) as cluster:
        assert cluster.uri.startswith("quire://127.0.0.1:")
        assert cluster.uri.endswith("/default")
        acknowledged: list[bytes] = []
        moment = asyncio.Event()  # Enough has gone through the proxies.

        async def write(number: int) -> None:
            async with cluster.connect() as client, client.open_writer("orders") as writer:
                for record in range(RECORDS):
                    payload = b"%d %d" % (number, record)
                    await writer.append(payload)
                    acknowledged.append(payload)
                    if len(acknowledged) % 30 == 0:
                        moment.set()

        async def kill() -> None:
            for service in ("write-proxy-1", "read-proxy-1"):
                await moment.wait()
                moment.clear()
                os.kill(pid_of(cluster, service), signal.SIGKILL)

        async def read() -> list[bytes]:
            found: list[bytes] = []
            async with cluster.connect() as client:
                await client.create_stream("orders")
                async with client.open_reader("orders") as reader:
                    while len(found) < WRITERS * RECORDS:
                        found += [record.payload for record in await reader.read_many(1000)]
            return found

        async with asyncio.timeout(100):
            reading = asyncio.create_task(read())
            await asyncio.gather(kill(), *map(write, range(WRITERS)))
            found = await reading
        assert sorted(found) == sorted(acknowledged)
        for number in range(WRITERS):
            mine = [payload for payload in found if payload.startswith(b"%d " % number)]
            assert mine == [b"%d %d" % (number, record) for record in range(RECORDS)]
        cluster.wait_for("restarted", service="write-proxy-1")
        cluster.wait_for("restarted", service="read-proxy-1")


async def test_a_cluster_of_one_bookie_has_proxies_also_if_their_usual_ports_are_taken(tmp_path: Path) -> None:
    """Method: 7400 and 7500 are taken by us, or by whoever else runs on this machine."""
    with ExitStack() as stack:
        for port in (7400, 7500):
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        options = ("--bookies=1", "--write-proxies=1", "--read-proxies=1")
        with LocalCluster(tmp_path, *options, usual_ports=True) as cluster:
            services = {each["name"]: each for each in cluster.wait_for("started")["services"]}
            assert [services[name]["state"] for name in ("write-proxy-1", "read-proxy-1")] == ["up", "up"]
            assert not services["write-proxy-1"]["address"].endswith(":7400")
            assert not services["read-proxy-1"]["address"].endswith(":7500")
            assert cluster.uri == f"quire://{services['write-proxy-1']['address']}/default"
            async with cluster.connect() as client, client.open_writer("orders") as writer:
                await writer.append(b"paid")


async def test_a_program_may_go_past_the_proxies(tmp_path: Path) -> None:
    """What was written through proxies is read from the bookies."""
    with LocalCluster(tmp_path, proxies=1) as cluster:
        async with cluster.connect() as client, client.open_writer("orders") as writer:
            await writer.append(b"paid")
        direct = cluster.wait_for("started")["direct_uri"]
        async with quire.connect(direct) as client, client.open_reader("orders") as reader:
            assert (await anext(reader)).payload == b"paid"
