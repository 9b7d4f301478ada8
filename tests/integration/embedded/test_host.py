"""A folder that is served to many processes: one host, for as long as anybody uses it, and errors that say why not.

Locks belong to open files, not to processes: users in one process exclude each other as those of many do.
"""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import quire
from quire.embedded.folder import HOST, SUPERVISOR, DataFolder, hold_folder
from quire.embedded.host import ALIVE, LOG, hosted, is_held
from quire.errors import DamagedMetadata, FolderInUse, FolderUnusable, QuireError
from quire.runtime import real_runtime
from quire.stream.namespace import open_namespace
from tests.support.waiting import eventually

IDLE_S = 0.2


def data_folder(path: Path) -> DataFolder:
    return DataFolder(str(path / "data"))


def host_pid(folder: DataFolder) -> int:
    said = Path(folder.lock).read_text()
    assert said.startswith(HOST)
    return int(re.findall(r"\d+", said)[0])


async def wait_ended(folder: DataFolder) -> None:
    async def has_ended() -> bool:
        return not is_held(f"{folder.path}/{ALIVE}")

    await eventually(has_ended, what="the host ends")


@asynccontextmanager
async def client(folder: DataFolder) -> AsyncIterator[quire.Client]:
    async with (
        hosted(folder, idle_s=IDLE_S) as hosting,
        open_namespace(folder.streams(), create=True, copies_max=hosting.bookies) as namespace,
    ):
        yield namespace


async def test_users_that_come_at_once_share_one_host_which_ends_after_the_last(tmp_path: Path) -> None:
    folder = data_folder(tmp_path)
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(hosted(folder, idle_s=IDLE_S)) for _ in range(8)))
        pid = host_pid(folder)
        log = Path(folder.path, LOG).read_text()
        assert log.count("host.serves") == 1
        async with client(folder) as first, client(folder) as second:
            async with first.open_writer("orders") as writer:
                await writer.append(b"paid")
            assert await second.list_streams() == ["orders"]
        assert host_pid(folder) == pid
    await wait_ended(folder)
    assert "host.ended" in Path(folder.path, LOG).read_text()
    async with quire.connect(
        f"file:{folder.path}"
    ) as embedded:  # The folder is anybody's again, with all that is in it.
        assert await embedded.list_streams() == ["orders"]


async def test_a_host_that_was_killed_is_followed_by_another_one(tmp_path: Path) -> None:
    folder = data_folder(tmp_path)
    async with hosted(folder, idle_s=IDLE_S) as hosting, client(folder) as namespace:
        async with namespace.open_writer("orders") as writer:
            await writer.append(b"paid")
        killed = host_pid(folder)
        os.kill(killed, signal.SIGKILL)
        await wait_ended(folder)
        await asyncio.to_thread(hosting.ensure)
        assert host_pid(folder) != killed
        async with namespace.open_reader("orders") as reader:
            assert (await anext(reader)).payload == b"paid"
    await wait_ended(folder)


async def test_a_host_ends_when_its_folder_is_gone(tmp_path: Path) -> None:
    folder = data_folder(tmp_path)
    async with hosted(folder, idle_s=IDLE_S):
        alive = os.open(f"{folder.path}/{ALIVE}", os.O_RDONLY)
        shutil.rmtree(folder.path, ignore_errors=True)
        try:

            async def has_ended() -> bool:
                return not is_held(f"/proc/self/fd/{alive}")

            await eventually(has_ended, what="the host ends")
        finally:
            os.close(alive)


async def test_a_folder_of_an_application_is_not_taken_from_it(tmp_path: Path) -> None:
    folder = data_folder(tmp_path)
    async with quire.connect(f"file:{folder.path}"):
        with pytest.raises(FolderInUse, match=f"is in use by .*process {os.getpid()}") as refused:
            async with hosted(folder, idle_s=IDLE_S):
                pass
    assert refused.value.facts["path"] == folder.path


async def test_an_application_is_told_how_to_share_a_folder_that_is_served(tmp_path: Path) -> None:
    folder = data_folder(tmp_path)
    async with hosted(folder, idle_s=IDLE_S):
        with pytest.raises(FolderInUse, match="is in use by quire host") as refused:
            async with quire.connect(f"file:{folder.path}"):
                pass
    assert f"connect to {folder.streams()}" in refused.value.hint
    await wait_ended(folder)


async def test_a_local_cluster_serves_its_folder_itself(tmp_path: Path) -> None:
    folder, runtime = data_folder(tmp_path), real_runtime()
    holder = f"{SUPERVISOR} (process {os.getpid()})"
    async with hold_folder(runtime, folder, holder=holder), hosted(folder, idle_s=IDLE_S):
        assert not is_held(f"{folder.path}/{ALIVE}")
    await runtime.disk.aclose()


async def test_why_a_host_does_not_start_is_told_to_who_wants_it(tmp_path: Path) -> None:
    blocked = tmp_path / "data"
    blocked.write_text("a file")
    with pytest.raises(FolderUnusable, match="is not a folder"):
        async with hosted(data_folder(tmp_path), idle_s=IDLE_S):
            pass
    damaged = DataFolder(str(tmp_path / "damaged"))
    os.makedirs(damaged.path)
    Path(damaged.metadata).write_text("no database, whatever its name says" * 100)
    with pytest.raises(QuireError) as failed:
        async with hosted(damaged, idle_s=IDLE_S):
            pass
    assert isinstance(failed.value, DamagedMetadata)
    await wait_ended(damaged)
