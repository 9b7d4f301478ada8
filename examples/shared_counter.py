"""Four processes count together in one file, without a server: every increment is a compare-and-swap."""

import asyncio
import multiprocessing
import os
import tempfile

from quire.errors import VersionConflict
from quire.metadata import MetadataStore, open_store

WORKERS, INCREMENTS = 4, 250


async def increment(store: MetadataStore) -> int:
    """Add one, and return how often another process was faster."""
    conflicts = 0
    while True:
        node = await store.get("/counter")
        try:
            await store.set("/counter", b"%d" % (int(node.data) + 1), expected=node.stat.version)
            return conflicts
        except VersionConflict:
            conflicts += 1


async def work(uri: str) -> None:
    async with open_store(uri) as store:
        conflicts = sum([await increment(store) for _ in range(INCREMENTS)])
        print(
            f"process {os.getpid()}: {INCREMENTS} increments, {conflicts} times another process was faster", flush=True
        )


async def total(uri: str, *, start: bool = False) -> int:
    async with open_store(uri) as store:
        if start:
            await store.create("/counter", b"0")
        return int((await store.get("/counter")).data)


def run(uri: str) -> None:
    asyncio.run(work(uri))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        uri = f"sqlite:{folder}/metadata.db"
        asyncio.run(total(uri, start=True))
        workers = [multiprocessing.Process(target=run, args=(uri,)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(f"the counter says {asyncio.run(total(uri))}, and {WORKERS} x {INCREMENTS} = {WORKERS * INCREMENTS}")
