"""The bookies of a cluster of three are killed one after the other, each when the last one is back, under a writer."""

import asyncio
import os
import signal
from pathlib import Path

import quire
from tests.support.servers.local_cluster import LocalCluster


async def test_no_append_fails_while_bookies_are_killed_one_after_the_other(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        acknowledged: list[bytes] = []
        async with quire.connect(cluster.uri) as client:
            async with client.open_writer("orders") as writer:
                is_over = asyncio.Event()

                async def append() -> None:
                    while not is_over.is_set():
                        record = b"%d" % len(acknowledged)
                        await writer.append(record)
                        acknowledged.append(record)

                appending = asyncio.create_task(append())
                for bookie, pid in cluster.bookie_pids().items():
                    os.kill(pid, signal.SIGKILL)
                    await asyncio.to_thread(cluster.wait_for, "restarted", service=bookie)
                    before = len(acknowledged)
                    while len(acknowledged) < before + 20 and not appending.done():
                        await asyncio.wait([appending], timeout=0.05)
                is_over.set()
                await appending
            found: list[bytes] = []
            async with client.open_reader("orders") as reader:
                while len(found) < len(acknowledged):
                    found.append((await anext(reader)).payload)
        assert found == acknowledged
