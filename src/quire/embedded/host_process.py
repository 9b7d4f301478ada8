"""The process that holds a folder and serves it to others: see `quire.embedded.host`, which starts it.

    python -m quire.embedded.host_process FOLDER IDLE_S

It leaves its parent at once, so that nobody has to wait for its end, and writes one line to standard output: that it
serves, or why it does not. From then on it works until nobody has used the folder for `IDLE_S`, until the folder is
gone, a bookie fails, or a signal comes.
"""

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

import uvloop

from quire.embedded.folder import HOST, DataFolder
from quire.embedded.host import ALIVE, USERS, told
from quire.embedded.log import serve_folder
from quire.errors import QuireError
from quire.telemetry.events import configure, logger

_LISTEN: Final = "127.0.0.1"
_LOOKS: Final = 4  # How often it is looked for users in the time after which a host without them ends.
_LOOK_S_MAX: Final = 1.0

_LOG = logger("host")


def main(arguments: Sequence[str]) -> int:
    folder, idle_s = DataFolder(arguments[0]), float(arguments[1])
    if os.fork():
        os._exit(0)
    configure(json=True)
    alive = os.open(f"{folder.path}/{ALIVE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(alive, fcntl.LOCK_EX)  # Others only ask for it, and for moments.
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(folder, idle_s, alive))
    except (QuireError, OSError) as error:
        _LOG.error("host.failed", error=str(error), kind=type(error).__name__)
        _tell(told(error))
        return 1
    return 0


async def _serve(folder: DataFolder, idle_s: float, alive: int) -> None:
    holder = f"{HOST} (process {os.getpid()})"
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with serve_folder(folder, None, None, None, holder=holder, listen=_LISTEN) as (_, _, bookies):
        _LOG.info("host.serves", folder=folder.path, ports=[bookie.address[1] for bookie in bookies])
        _tell('{"serves": true}')
        ends = [stopped.wait(), _unused(folder, idle_s, alive), *(bookie.wait_failed() for bookie in bookies)]
        tasks = [asyncio.create_task(end) for end in ends]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    _LOG.info("host.ended", folder=folder.path)


async def _unused(folder: DataFolder, idle_s: float, alive: int) -> None:
    """Return when nobody has used the folder for long, and nobody can from now on; or when it is gone."""
    loop = asyncio.get_running_loop()
    used_s = loop.time()
    users = os.open(f"{folder.path}/{USERS}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        await asyncio.sleep(min(_LOOK_S_MAX, idle_s / _LOOKS))
        if not _is_there(folder, alive):
            _LOG.warning("host.folder_gone", folder=folder.path)
            return
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            used_s = loop.time()
            continue
        if loop.time() - used_s >= idle_s:
            return  # With the lock: it goes with this process.
        fcntl.flock(users, fcntl.LOCK_UN)


def _is_there(folder: DataFolder, alive: int) -> bool:
    try:
        return os.path.samestat(os.stat(f"{folder.path}/{ALIVE}"), os.fstat(alive))
    except FileNotFoundError:
        return False


def _tell(line: str) -> None:
    """To whoever started this process, once."""
    try:
        os.write(1, f"{line}\n".encode())
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError:
        pass  # It has ended meanwhile. Others may come.


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
