"""Four processes count together in one file, without a server: every increment is a compare-and-swap."""

import asyncio
import os
import sys
import tempfile

from quire.errors import VersionConflict
from quire.metadata import open_store

PROCESSES, INCREMENTS = 4, 250


async def count(uri: str) -> None:
    done = conflicts = 0
    async with open_store(uri) as store:
        while done < INCREMENTS:
            node = await store.get("/counter")
            try:
                await store.set("/counter", b"%d" % (int(node.data) + 1), expected=node.stat.version)
                done += 1
            except VersionConflict:
                conflicts += 1
    print(f"process {os.getpid()}: {done} increments, {conflicts} times another process was faster")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_store(uri := f"sqlite:{folder}/metadata.db") as store:
            await store.create("/counter", b"0")
            command = [sys.executable, __file__, uri]
            processes = [await asyncio.create_subprocess_exec(*command) for _ in range(PROCESSES)]
            await asyncio.gather(*(process.wait() for process in processes))
            total = int((await store.get("/counter")).data)
    print(f"the counter says {total}, and {PROCESSES} x {INCREMENTS} = {PROCESSES * INCREMENTS}")


if __name__ == "__main__":
    asyncio.run(count(sys.argv[1]) if len(sys.argv) > 1 else main())
