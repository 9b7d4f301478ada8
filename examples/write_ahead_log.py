"""A write-ahead log for a small database, a dict in a file. A change counts as soon as it is in the log.

Run it with the arguments `file:./quire-data crash`, and it dies with a change in the log that is not in the file. The
next run finds it there, and goes on.
"""

import json
import os
import sys
from pathlib import Path

import quire

FILE = Path("database.json")


def main(uri: str, crash: bool) -> None:
    rows, at = json.loads(FILE.read_text()) if FILE.exists() else ({}, "0:0:0")
    applied = quire.DLSN.parse(at)  # The last change that the file has.
    with quire.sync.connect(uri) as client, client.open_writer("wal") as writer:
        last = client.stream_info("wal").last_dlsn or applied  # Nobody else writes now.
        with client.open_reader("wal", start=applied.next_slot()) as reader:
            while reader.position <= last:
                rows |= (found := json.loads(next(reader).payload))
                print("found in the log:", found)
        rows |= (change := {f"row {len(rows) + 1}": f"by process {os.getpid()}"})
        dlsn = writer.append(json.dumps(change).encode())  # From here on it is a part of the database.
        if crash:
            os._exit(1)
        with open(f"{FILE}.new", "wb", buffering=0) as file:
            file.write(json.dumps([rows, str(dlsn)]).encode())
            os.fsync(file.fileno())
        os.replace(file.name, FILE)
        writer.truncate(applied)  # The log keeps what the old file lacks, should the new one not survive a power cut.
        print(f"{len(rows)} rows in {FILE}, up to {dlsn} of the log")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("QUIRE_URI", "file:./quire-data"), "crash" in sys.argv)
