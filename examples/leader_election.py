"""One of many leads: run `leader_election.py sqlite:./leader.db 60` in several terminals and stop them in turn."""

import asyncio
import os
import sys

from quire.metadata import hold_lock, lock_owners, open_store
from quire.runtime import SystemRng


async def main(uri: str, seconds: float) -> None:
    me = f"process {os.getpid()}".encode()
    async with open_store(uri) as store:
        print("waiting behind", [owner.decode() for owner in await lock_owners(store, "/leader")], flush=True)
        async with hold_lock(store, "/leader", SystemRng(), owner=me) as lock:
            print("leading", flush=True)
            try:
                async with asyncio.timeout(seconds):
                    await lock.wait_lost()
            except TimeoutError:
                print("stepping down", flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(main(uri=sys.argv[1], seconds=float(sys.argv[2])))
    except KeyboardInterrupt:
        print("stopped")
