"""A replicated key-value store: the log is the truth, and a replica is what comes of it, one change after the other.

A replica that comes late, or starts anew, reads from the beginning and ends up the same. On a cluster each of these
three would be a program of its own.
"""

import asyncio
import json
import os
import sys

import quire


async def replicate(client: quire.Client, until: "asyncio.Future[quire.DLSN]") -> dict[str, str]:
    """The store as it is behind the change at `until`, a place that may not be known yet."""
    store: dict[str, str] = {}
    async with client.open_reader("key-values") as reader:
        while not (until.done() and reader.position > until.result()):
            for record in await reader.read_many(100, timeout_s=0.1):
                key, value = json.loads(record.payload)
                store[key] = value
    return store


async def main(uri: str) -> None:
    async with quire.connect(uri) as client, client.open_writer("key-values") as writer:
        last: asyncio.Future[quire.DLSN] = asyncio.get_running_loop().create_future()
        early = [asyncio.create_task(replicate(client, last)) for _ in range(2)]
        changes = [json.dumps([f"key {number % 4}", f"value {number}"]).encode() for number in range(100)]
        places = [await writer.append(change) for change in changes]
        last.set_result(places[-1])
        for name, store in zip("abc", await asyncio.gather(*early, replicate(client, last)), strict=True):
            print(f"replica {name}:", json.dumps(store, sort_keys=True))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("QUIRE_URI", "file:./quire-data")))
