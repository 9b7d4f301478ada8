"""One program, from a folder to a cluster: nothing changes but the URI.

    python examples/one_uri.py file:./guests                            # a folder; bookies run in this program
    python examples/one_uri.py distributedlog+sqlite:./metadata.db/ns   # bookies of this machine
    python examples/one_uri.py distributedlog://zk1:2181/ns              # a cluster, ours or Apache's

The URI may be in QUIRE_URI, too. Settings for a cluster do no harm in a folder: there are as many copies as bookies.
"""

import asyncio
import os
import sys

import quire


async def main(uri: str) -> None:
    settings = quire.StreamSettings(ensemble=3, write_quorum=3, ack_quorum=2)
    async with quire.connect(uri, settings=settings) as client:
        copies = client.settings_for("guests").write_quorum
        async with client.open_writer("guests") as writer:
            number = writer.last_txid + 1
            dlsn = await writer.append(f"guest {number}".encode(), txid=number)
        print(f"guest {number} is at {dlsn}, on {copies} bookie{'s' if copies > 1 else ''}")
        async with client.open_reader("guests", start=quire.txid(number - 2)) as reader:
            async for record in reader:
                print(f"  {record.payload.decode()}")
                if record.txid == number:
                    break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("QUIRE_URI", "file:./quire-data")))
