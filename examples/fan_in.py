"""Fan-in: a hundred producers feed one stream, and what each of them sent comes out in its order.

A stream has one writer at a time, which all tasks of a program may share (with `quire.sync`, all threads): what they
append at the same time travels together. Other processes need streams of their own, or send theirs to this one.
"""

import asyncio
import os
import sys
from itertools import chain

import quire

PRODUCERS, RECORDS = 100, 20


async def produce(writer: quire.StreamWriter, name: int) -> list[quire.DLSN]:
    return [await writer.append(b"%d %d" % (name, number)) for number in range(RECORDS)]  # Each is on disk.


async def main(uri: str) -> None:
    async with quire.connect(uri) as client:
        async with client.open_writer("fan-in") as writer:
            produced = await asyncio.gather(*(produce(writer, name) for name in range(PRODUCERS)))
        places = list(chain.from_iterable(produced))
        entries = {(place.lssn, place.entry_id) for place in places}
        print(f"{PRODUCERS} producers appended {len(places)} records, which left in {len(entries)} entries")
        received: dict[int, list[int]] = {name: [] for name in range(PRODUCERS)}
        async with client.open_reader("fan-in", start=min(places)) as reader:
            while reader.position <= max(places):
                for record in await reader.read_many(1000):
                    name, number = map(int, record.payload.split())
                    received[name].append(number)
        in_order = sum(numbers == list(range(RECORDS)) for numbers in received.values())
        print(f"the records of {in_order} producers came in their order, none missing, none twice")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("QUIRE_URI", "file:./quire-data")))
