"""Storing a file that takes its time."""

import asyncio
import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TypeVar

import pytest

from quire.cold.blocking import at_once, time_for
from quire.cold.file_store import FileStore
from quire.errors import ColdUnavailable, NoSuchColdObject

T = TypeVar("T")

NAME = "ns/s/1.parquet"


def test_a_large_file_has_more_time_than_a_small_one() -> None:
    assert time_for(60.0, 0) == 60.0
    assert time_for(60.0, 10 << 30) > 10_000


class Slow(io.BytesIO):
    def __init__(self, content: bytes, pause: Callable[[], None]) -> None:
        super().__init__(content)
        self._pause = pause

    def read(self, size: int | None = -1) -> bytes:
        self._pause()
        return super().read(size)


@pytest.mark.parametrize("where", ["while it is copied", "before it gets its name"])
async def test_a_file_that_is_finished_after_its_caller_gave_up_does_not_stay(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_there, go_on, link = Event(), Event(), os.link

    def pause() -> None:
        is_there.set()
        assert go_on.wait(60)

    def slow_link(source: Path, target: Path) -> None:
        pause()
        link(source, target)

    is_copying = where == "while it is copied"
    if not is_copying:
        monkeypatch.setattr("quire.cold.file_store.os.link", slow_link)
    content = Slow(b"x" * 1000, pause) if is_copying else io.BytesIO(b"x" * 1000)
    with ThreadPoolExecutor(1) as pool:

        async def run(work: Callable[[], T]) -> T:
            return await asyncio.get_running_loop().run_in_executor(pool, work)

        creating = asyncio.create_task(FileStore("file:x", tmp_path, run).create(NAME, content, 1000))
        assert await asyncio.to_thread(is_there.wait, 60)
        creating.cancel()
        await asyncio.wait([creating])
        assert creating.cancelled()
        store = FileStore("file:x", tmp_path, at_once)
        await store.delete(NAME)
        go_on.set()
    assert await store.names() == []
    await store.create(NAME, io.BytesIO(b"again"), 5)
    assert await store.read(NAME, 0, 10) == b"again"


# --- Folders that are not mounted


@pytest.mark.parametrize("is_mount_point", [False, True], ids=["the folder is missing", "the folder is empty"])
async def test_nothing_is_missing_or_deleted_where_nothing_is_mounted(is_mount_point: bool, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "archive", tmp_path / "elsewhere"
    store = FileStore("file:x", folder, at_once)
    await store.create(NAME, io.BytesIO(b"content"), 7)
    folder.rename(elsewhere)
    if is_mount_point:
        folder.mkdir()
    for call in (store.read(NAME, 0, 7), store.size(NAME), store.delete(NAME)):
        with pytest.raises(ColdUnavailable) as told:
            await call
        assert told.value.retryable
        assert "Mount it" in told.value.hint
    if is_mount_point:
        folder.rmdir()
    elsewhere.rename(folder)
    assert await store.read(NAME, 0, 7) == b"content"


async def test_a_folder_stays_when_its_last_file_goes_and_a_second_deletion_is_fine(tmp_path: Path) -> None:
    store = FileStore("file:x", tmp_path / "archive", at_once)
    await store.create(NAME, io.BytesIO(b"content"), 7)
    assert await store.names() == [NAME]
    for _ in range(2):
        await store.delete(NAME)
        assert await store.names() == []
        assert [path.name for path in (tmp_path / "archive").iterdir()] == [".quire-cold"]
    with pytest.raises(NoSuchColdObject):
        await store.size(NAME)
