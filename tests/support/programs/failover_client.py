"""One writer in a process of its own. It waits for the stream, writes until it is killed or shut out, and waits again.

    python -m tests.support.programs.failover_client --uri distributedlog+sqlite:… --author w1.1 --diary FILE

Its diary has a line for each thing, written with one system call before it is done (`sent`) or at once when the process
learns of it (the others): what a killed process wrote is there. Times are those of the machine's monotonic clock, the
same for all processes.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence

from quire.errors import QuireError
from quire.metadata import StoreSettings
from quire.stream.namespace import open_namespace
from quire.stream.settings import StreamSettings
from quire.stream.writer import StreamWriter
from quire.types import DLSN
from tests.support.waiting import at_a_random_moment

STREAM = "failover"
SETTINGS = StreamSettings(lock_timeout_s=30.0, roll_interval_s=0, roll_bytes=200_000)
STORE_SETTINGS = StoreSettings(session_timeout_s=2.0)
APPENDERS = 4


class Diary:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: str, **facts: object) -> None:
        line = json.dumps({"event": event, "at_s": time.monotonic(), **facts}).encode() + b"\n"
        assert os.write(self._file, line) == len(line)


class Appending:
    """Several tasks append at the same time: the fate of some records is always open."""

    def __init__(self, diary: Diary, author: str) -> None:
        self._diary, self._author, self._sent = diary, author, 0

    async def run(self, writer: StreamWriter) -> None:
        tasks = [asyncio.create_task(self._append(writer)) for _ in range(APPENDERS)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _append(self, writer: StreamWriter) -> None:
        while True:
            numbers = range(self._sent, self._sent + 1 + self._sent % 7)
            self._sent = numbers.stop
            self._diary.note("sent", first=numbers.start, end=numbers.stop)
            dlsns: Sequence[DLSN] = await writer.append_many([payload_of(self._author, number) for number in numbers])
            self._diary.note("acknowledged", first=numbers.start, end=numbers.stop, dlsns=list(dlsns))
            await at_a_random_moment(0.005, 1.0)


def payload_of(author: str, number: int) -> bytes:
    return f"{author}/{number}:".encode() + bytes(number % 300)


async def run(uri: str, author: str, diary: Diary) -> None:
    appending = Appending(diary, author)
    async with open_namespace(uri, store_settings=STORE_SETTINGS, client_id=author, settings=SETTINGS) as namespace:
        while True:
            try:
                async with namespace.open_writer(STREAM) as writer:
                    diary.note("owns")
                    await appending.run(writer)
            except QuireError as error:
                diary.note("refused", error=type(error).__name__, message=str(error))
                await at_a_random_moment(0.1, 1.0)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    for option in ("--uri", "--author", "--diary"):
        parser.add_argument(option, required=True)
    given = parser.parse_args(words)
    asyncio.run(run(given.uri, given.author, Diary(given.diary)))


if __name__ == "__main__":
    main(sys.argv[1:])
