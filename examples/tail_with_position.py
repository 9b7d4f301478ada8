"""A reader that stores its position with what it made of the records, in one transaction: each record counts once.

Kill it at any moment, run it again, and the total is right. Where there is no such transaction, have the position kept
with the stream: `open_reader(name, subscription="totals")`, and `await reader.commit()` after the work.
"""

import asyncio
import os
import random
import sqlite3
import sys

import quire


async def main(uri: str) -> None:
    database = sqlite3.connect("totals.db")
    with database:
        database.execute("CREATE TABLE IF NOT EXISTS totals (records INTEGER, amount INTEGER, position TEXT)")
        database.execute("INSERT INTO totals SELECT 0, 0, NULL WHERE NOT EXISTS (SELECT * FROM totals)")
    async with quire.connect(uri) as client:
        async with client.open_writer("payments") as writer:  # Something to read. It could be any other program.
            *_, last = await writer.append_many([b"%d" % random.randrange(100) for _ in range(10)])
        (stored,) = database.execute("SELECT position FROM totals").fetchone()
        start = quire.DLSN.parse(stored) if stored else "earliest"
        async with client.open_reader("payments", start=start) as reader:
            async for record in reader:
                with database:
                    change = "UPDATE totals SET records = records + 1, amount = amount + ?, position = ?"
                    database.execute(change, (int(record.payload), str(reader.position)))
                records, amount = database.execute("SELECT records, amount FROM totals").fetchone()
                print(f"payment {records}: {amount} in all", flush=True)
                if record.dlsn >= last:  # Leave this out to follow the stream for ever.
                    break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("QUIRE_URI", "file:./quire-data")))
