"""One client of the ledgers in a process of its own: it works until it is killed, and keeps a diary.

    python -m tests.support.programs.chaos_client writer --metadata sqlite:… --author w1.1 --diary FILE --seed 7

A writer writes ledger after ledger. A recoverer opens ledgers with recovery while they are written. A tailer reads
them as far as they are confirmed. Whatever Quire says on purpose is a reason to go on with the next ledger; anything
else ends the process, and so fails the test.
"""

import argparse
import asyncio
import itertools
import random
import sys
from pathlib import Path

from quire.errors import QuireError
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.ledger.writing.writer import LedgerWriter
from quire.types import DigestType, LedgerId
from tests.support.diary import Diary, origin_of, payload_of
from tests.support.ledgers.history import NO_LEDGER
from tests.support.waiting import at_a_random_moment

SETTINGS = LedgerSettings(
    window_entries_max=200, read_timeout_s=2.0, speculative_read_s=0.5, change_timeout_s=10.0, replica_bytes_max=1 << 20
)
APPENDERS = 4
FOLLOW_S_MAX = 10.0
RUN_MAX = 50  # Entries that one appender sends at once.


class Writer:
    """Ledger after ledger, each written by several appenders at once: some entries' fate is always open."""

    def __init__(self, ledgers: LedgerClient, diary: Diary, author: str, rng: random.Random) -> None:
        self._ledgers, self._diary, self._author, self._rng = ledgers, diary, author, rng
        self._sent = 0  # Payloads, over all ledgers of this life.

    async def run(self) -> None:
        while True:
            ledger_id = NO_LEDGER
            try:
                async with self._ledgers.create(digest=self._rng.choice([DigestType.CRC32C, DigestType.MAC])) as writer:
                    ledger_id = writer.id
                    self._diary.created(ledger_id)
                    await self._fill(writer, self._rng.randrange(200, 4000))
                self._diary.ended(ledger_id, writer.last_add_confirmed)
            except QuireError as error:
                self._diary.gave_up(ledger_id, error)
                await at_a_random_moment(0.5, self._rng.random())

    async def _fill(self, writer: LedgerWriter, entries: int) -> None:
        end = self._sent + entries
        outcomes = await asyncio.gather(*(self._append(writer, end) for _ in range(APPENDERS)), return_exceptions=True)
        for error in outcomes:
            if error is not None:
                raise error

    async def _append(self, writer: LedgerWriter, end: int) -> None:
        while self._sent < end:
            numbers = range(self._sent, self._sent + self._rng.randrange(1, RUN_MAX))
            self._sent = numbers.stop
            self._diary.sent(writer.id, numbers)
            entry_ids = await writer.append_many([payload_of(self._author, number) for number in numbers])
            self._diary.acknowledged(writer.id, entry_ids, numbers)
            await at_a_random_moment(0.6, self._rng.random())


async def newest_ledger(ledgers: LedgerClient, rng: random.Random) -> LedgerId:
    """One of those that are likely to be written just now, or whose writer has just died."""
    newest = sorted([ledger_id async for ledger_id in ledgers.scan()])[-5:]
    return rng.choice(newest) if newest else NO_LEDGER


async def recover(ledgers: LedgerClient, diary: Diary, rng: random.Random) -> None:
    while True:
        await at_a_random_moment(2.0, rng.random())
        ledger_id = NO_LEDGER
        try:
            ledger_id = await newest_ledger(ledgers, rng)
            if ledger_id != NO_LEDGER:
                async with ledgers.open(ledger_id) as reader:
                    diary.ended(ledger_id, reader.last_add_confirmed)
        except QuireError as error:
            diary.gave_up(ledger_id, error)


async def tail(ledgers: LedgerClient, diary: Diary, rng: random.Random) -> None:
    for handle in itertools.count():
        ledger_id = NO_LEDGER
        try:
            ledger_id = await newest_ledger(ledgers, rng)
            if ledger_id != NO_LEDGER:
                async with asyncio.timeout(FOLLOW_S_MAX):
                    await follow(ledgers, diary, ledger_id, handle)
        except TimeoutError:
            pass  # A writer that was killed leaves a ledger that may never end.
        except QuireError as error:
            diary.gave_up(ledger_id, error)
        await at_a_random_moment(0.2, rng.random())


async def follow(ledgers: LedgerClient, diary: Diary, ledger_id: LedgerId, handle: int) -> None:
    """Read a ledger while it is written, to its end."""
    async with ledgers.open(ledger_id, recover=False) as reader:
        async for entry in reader.follow():
            diary.read(ledger_id, entry.entry_id, *origin_of(entry.payload))
            diary.lac(ledger_id, handle, reader.last_add_confirmed)
        diary.ended(ledger_id, reader.last_add_confirmed)


async def run(role: str, uri: str, author: str, diary: Diary, rng: random.Random) -> None:
    async with open_ledgers(uri, settings=SETTINGS) as ledgers:
        if role == "writer":
            await Writer(ledgers, diary, author, rng).run()
        elif role == "recoverer":
            await recover(ledgers, diary, rng)
        else:
            await tail(ledgers, diary, rng)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["writer", "recoverer", "tailer"])
    for option in ("--metadata", "--author", "--diary", "--seed"):
        parser.add_argument(option, required=True)
    given = parser.parse_args(words)
    asyncio.run(run(given.role, given.metadata, given.author, Diary(Path(given.diary)), random.Random(int(given.seed))))


if __name__ == "__main__":
    main(sys.argv[1:])
