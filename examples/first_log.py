"""Your first log: what is written stays, in order, each record at a place of its own. Run it twice, and see both runs.

    python examples/first_log.py                # in the folder ./quire-data, without any server
    python examples/first_log.py file:/tmp/log  # in another one

The URI may be in QUIRE_URI, too, as for all examples.
"""

import asyncio
import os
import sys

import quire


async def main(uri: str) -> None:
    async with quire.connect(uri) as client:
        async with client.open_writer("first-log") as writer:
            await writer.append(b"hello")  # It is on disk when this returns.
            *_, last = await writer.append_many([b"log", b"world"])  # Several at once, and one wait for all of them.
        async with client.open_reader("first-log", start="earliest") as reader:
            async for record in reader:
                print(record.dlsn, record.payload.decode())
                if record.dlsn == last:  # A reader never ends by itself: it waits for what comes next.
                    break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("QUIRE_URI", "file:./quire-data")))
