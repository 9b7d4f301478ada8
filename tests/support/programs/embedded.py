"""An application with a log in a folder, as a process of its own: to be killed, or to be in the way.

python -m tests.support.programs.embedded FOLDER write       append until killed, and say what was acknowledged
python -m tests.support.programs.embedded FOLDER hold        have it open until standard input ends
python -m tests.support.programs.embedded FOLDER ports       say which ports this process listens on meanwhile
"""

import asyncio
import itertools
import os
import sys
from pathlib import Path

import quire

_LISTENING = "0A"  # The state of a listening socket in /proc/net/tcp.


async def main(folder: str, task: str) -> None:
    async with quire.connect(f"file:{folder}") as client:
        if task == "write":
            await write(client)
        elif task == "hold":
            print("open", flush=True)
            await asyncio.to_thread(sys.stdin.read)
        else:
            async with client.open_writer("orders") as writer:
                await writer.append(b"paid")
                print(f"listening on {listening()}")


async def write(client: quire.Client) -> None:
    async with client.open_writer("orders") as writer:
        for first in itertools.count(0, 3):
            dlsns = await writer.append_many([str(number).encode() for number in range(first, first + 3)])
            print(*dlsns, flush=True)


def listening() -> list[str]:
    """The addresses that sockets of this process listen on."""
    ours = {os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.exists()}
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in Path("/proc/self/net", name).read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == _LISTENING and f"socket:[{row[9]}]" in ours]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
