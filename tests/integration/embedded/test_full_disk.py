"""A log in a folder whose disk is full: writers are told so, readers go on, and room is used when there is some."""

import asyncio
import errno
import itertools
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quire.bookie.space import SpaceSettings
from quire.embedded import bookies
from quire.embedded.folder import parse_file_uri
from quire.embedded.log import open_embedded
from quire.errors import AppendOutcomeUnknown, DiskFull, Unavailable
from quire.metadata.drivers._sqlite_errors import translate
from quire.runtime import AsyncioClock, AsyncioNetwork, File, Runtime, StrPath, SystemRng
from quire.stream.namespace import Namespace
from quire.testing.unsynced_disk import UnsyncedDisk
from tests.support.waiting import eventually

BATCH = [b"x" * 10_000] * 100
BATCHES_MAX = 200


class FullDisk(UnsyncedDisk):
    """No file can be made while it is full: so a journal ends where it would begin its next file."""

    is_full = False

    async def create(self, path: StrPath, *, replace: bool = False, direct: bool = False) -> File:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return await super().create(path, replace=replace, direct=direct)


@asynccontextmanager
async def log_on(disk: FullDisk, folder: Path) -> AsyncIterator[Namespace]:
    runtime = Runtime(clock=AsyncioClock(), disk=disk, network=AsyncioNetwork(), rng=SystemRng())
    async with open_embedded(parse_file_uri(f"file:{folder}"), runtime=runtime) as client:
        yield client


async def fill(client: Namespace, disk: FullDisk) -> int:
    """Append until there is no room. Returns how many records of `BATCH` were acknowledged behind the first record."""
    async with client.open_writer("orders") as writer:
        await writer.append(b"before")
        disk.is_full = True
        for batches in itertools.count():
            try:
                await writer.append_many(BATCH)
            except AppendOutcomeUnknown as error:
                assert "a write found no room" in str(error)
                break
            assert batches < BATCHES_MAX
        with pytest.raises(DiskFull, match="nothing new can be stored: a write found no room") as full:
            await writer.append(b"after")
        assert "Free space" in full.value.hint
    return batches * len(BATCH)


async def test_writers_are_told_and_readers_go_on(tmp_path: Path) -> None:
    disk = FullDisk()
    async with log_on(disk, tmp_path) as client:
        count = await fill(client, disk)
        async with client.open_writer("orders") as writer:
            with pytest.raises(DiskFull):
                await writer.append(b"after")
        async with asyncio.timeout(60), client.open_reader("orders") as reader:
            assert (await anext(reader)).payload == b"before"
            for number in range(count):
                assert (await anext(reader)).payload == BATCH[0], number


async def test_room_that_is_there_again_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookies, "_SPACE", SpaceSettings(reserve_bytes=0, check_interval_s=0.05))
    disk = FullDisk()
    async with log_on(disk, tmp_path) as client:
        await fill(client, disk)
        disk.is_full = False

        async def takes_more() -> bool:
            try:
                async with client.open_writer("orders") as writer:
                    await writer.append(b"after")
            except Unavailable:
                return False
            return True

        await eventually(takes_more, what="it goes on by itself")
        async with asyncio.timeout(60), client.open_reader("orders") as reader:
            found = [record.payload async for record in reader.read_to_end()]
        assert (found[0], found[-1]) == (b"before", b"after")


def test_a_metadata_file_that_cannot_grow_is_a_full_disk(tmp_path: Path) -> None:
    """SQLite says the same of a limit of its own."""
    with sqlite3.connect(tmp_path / "metadata.db") as connection:
        connection.execute("CREATE TABLE filling (data BLOB)")
        connection.execute("PRAGMA max_page_count = 10")
        with pytest.raises(sqlite3.OperationalError) as full:
            connection.execute("INSERT INTO filling VALUES (zeroblob(1000000))")
    translated = translate(full.value, tmp_path / "metadata.db", began=True)
    assert isinstance(translated, DiskFull)
    assert str(tmp_path) in str(translated)
