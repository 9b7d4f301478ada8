"""Competing consumers: jobs are spread over a few streams, each of which has one consumer at a time.

A consumer takes a stream that nobody has, does some jobs, stores how far it came, and lets go. If it dies, another goes
on from what was stored: no job is lost, and the last few may be done twice. Run it in several terminals on a cluster.
"""

import asyncio
import os
import random
import sys
from contextlib import suppress

import quire
from quire.errors import StreamOwned


async def consume(client: quire.Client, name: str, left: dict[str, quire.DLSN]) -> None:
    while left:
        stream, last = random.choice(list(left.items()))
        with suppress(StreamOwned):  # Then somebody else is at it.
            async with client.open_reader(stream, subscription="workers", exclusive=True, lock_timeout_s=0) as reader:
                for record in await reader.read_many(4, timeout_s=0.1):
                    print(f"{name} does {record.payload.decode()}", flush=True)
                if await reader.commit() > last:
                    left.pop(stream, None)
        await asyncio.sleep(0.01)  # The others want a turn, too.


async def main(uri: str) -> None:
    async with quire.connect(uri) as client:
        left = {}  # The streams with jobs to do, and the last job of each.
        for stream in ("jobs-1", "jobs-2", "jobs-3"):
            async with client.open_writer(stream) as writer:
                *_, left[stream] = await writer.append_many([f"{stream}.{number}".encode() for number in range(6)])
        await asyncio.gather(*(consume(client, name, left) for name in ("Ann", "Bob")))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("QUIRE_URI", "file:./quire-data")))
