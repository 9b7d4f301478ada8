"""SQLite metadata shared by real processes, some of which are killed or stopped at the worst moment."""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from quire.errors import (
    DamagedMetadata,
    InvalidUri,
    MetadataUnavailable,
    NotInitialised,
    Refused,
    VersionConflict,
)
from quire.metadata import ANY_VERSION, MetadataStore, SessionEvent, StoreSettings, open_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.extended

INCREMENTS = 2500

# Adds one by compare-and-swap until its own counter says that it has done so `INCREMENTS` times. Both counters move in
# one transaction, so a process that is killed anywhere goes on exactly where it was.
COUNTING = """
import asyncio, sys
from quire.errors import NodeExists, VersionConflict
from quire.metadata import Set, open_store

async def main(uri, name, times):
    async with open_store(uri) as store:
        own = f"/done-{name}"
        try:
            await store.create(own, b"0")
        except NodeExists:
            pass
        print("ready", flush=True)
        while True:
            total, done = await store.get("/total"), await store.get(own)
            if int(done.data) == int(times):
                return
            try:
                await store.transaction(
                    Set("/total", b"%d" % (int(total.data) + 1), total.stat.version),
                    Set(own, b"%d" % (int(done.data) + 1), done.stat.version),
                )
            except VersionConflict:
                pass

asyncio.run(main(*sys.argv[1:]))
"""

OWNING = """
import asyncio, sys
from quire.metadata import SessionEvent, StoreSettings, open_store

async def main(uri, timeout_s="1"):
    async with open_store(uri, settings=StoreSettings(session_timeout_s=float(timeout_s))) as store:
        with store.watch_session() as session:
            await store.create("/mine", ephemeral=True)
            print("created", flush=True)
            while await session.wait_event() is not SessionEvent.EXPIRED:
                pass
            print("expired", await store.exists("/mine"), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/metadata.db"


@pytest.fixture
def started() -> Iterator[list["subprocess.Popen[bytes]"]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def start(started: list["subprocess.Popen[bytes]"], program: str, *args: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", program, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    started.append(process)
    return process


async def line_of(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(30):
        return await asyncio.to_thread(process.stdout.readline)


async def number_at(store: MetadataStore, path: str) -> int:
    return int((await store.get(path)).data) if await store.exists(path) else 0


async def test_four_processes_count_exactly_though_one_is_killed_halfway(
    uri: str, started: list["subprocess.Popen[bytes]"]
) -> None:
    async with open_store(uri) as store:
        await store.create("/total", b"0")
        processes = [start(started, COUNTING, uri, str(number), str(INCREMENTS)) for number in range(4)]

        async def halfway() -> bool:
            return await number_at(store, "/done-0") >= INCREMENTS // 2

        await eventually(halfway, within_s=100, what="the first process is halfway")
        processes[0].kill()
        assert processes[0].wait() == -signal.SIGKILL
        survived = await number_at(store, "/done-0")
        assert INCREMENTS // 2 <= survived < INCREMENTS, "it was not killed halfway"
        processes[0] = start(started, COUNTING, uri, "0", str(INCREMENTS))
        for process in processes:
            assert await asyncio.to_thread(process.wait, 110) == 0
        assert await number_at(store, "/total") == 4 * INCREMENTS


async def test_processes_killed_at_random_moments_never_leave_half_a_write(
    uri: str, started: list["subprocess.Popen[bytes]"]
) -> None:
    """The total is the sum of what each process says it did, after every one of many kills."""
    rng = random.Random(20260117)
    async with open_store(uri) as store:
        await store.create("/total", b"0")
        for round in range(12):
            process = start(started, COUNTING, uri, "victim", "1000000")
            assert await line_of(process) == b"ready\n"
            target = await number_at(store, "/done-victim") + rng.randrange(1, 60)

            async def reached(target: int = target) -> bool:
                return await number_at(store, "/done-victim") >= target

            await eventually(reached, within_s=60)
            process.kill()
            process.wait()
            assert await number_at(store, "/total") == await number_at(store, "/done-victim"), f"round {round}"
    with sqlite3.connect(uri.removeprefix("sqlite:")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


async def test_a_stopped_process_loses_its_session_and_learns_of_it(
    uri: str, started: list["subprocess.Popen[bytes]"]
) -> None:
    process = start(started, OWNING, uri)
    assert await line_of(process) == b"created\n"
    async with open_store(uri) as store:
        process.send_signal(signal.SIGSTOP)

        async def gone() -> bool:
            return await store.exists("/mine") is None

        await eventually(gone, what="the stopped process's ephemeral node goes")
        process.send_signal(signal.SIGCONT)
    assert await line_of(process) == b"expired None\n"


async def test_a_watcher_far_behind_is_woken_all_the_same(uri: str) -> None:
    """More changes than the change log keeps, while the watcher's thread does not run."""
    async with open_store(uri) as watcher, open_store(uri) as writer:
        await writer.create("/watched")
        await writer.create("/busy")
        async with watcher.watch("/watched") as watch:
            await writer.set("/watched", b"new", expected=ANY_VERSION)
            await asyncio.gather(*(writer.set("/busy", b"", expected=ANY_VERSION) for _ in range(6000)))
            async with asyncio.timeout(10):
                await watch.wait_changed()


async def test_a_session_granted_before_a_reboot_has_lapsed(uri: str) -> None:
    """The monotonic clock restarts at a reboot, so such a lease seems to end far in the future."""
    async with open_store(uri) as store:
        await store.create("/mine", ephemeral=True)
        session = store.session
        with sqlite3.connect(uri.removeprefix("sqlite:")) as connection:
            connection.execute("UPDATE sessions SET lapses_s = lapses_s + 1e6 WHERE id = ?", (session,))
            connection.execute("UPDATE sessions SET timeout_s = 10")
        connection.close()
        async with open_store(uri) as other:

            async def gone() -> bool:
                stat = await other.exists("/mine")
                return stat is None

            await eventually(gone)


async def test_a_sole_user_ends_the_sessions_of_the_dead_at_once(uri: str) -> None:
    long = StoreSettings(session_timeout_s=3600.0)
    async with open_store(uri, settings=long) as dead:
        await dead.create("/owned", ephemeral=True)
        async with open_store(uri, settings=long) as store:
            assert await store.exists("/owned") is not None
        async with open_store(uri, settings=StoreSettings(sole_user=True)) as store:
            assert await store.exists("/owned") is None


async def test_many_processes_may_create_the_file_at_once(
    tmp_path: Path, started: list["subprocess.Popen[bytes]"]
) -> None:
    program = """
import asyncio, sys
from quire.metadata import open_store

async def main(uri, name):
    async with open_store(uri) as store:
        await store.create(f"/{name}")

asyncio.run(main(*sys.argv[1:]))
"""
    uri = f"sqlite:{tmp_path}/new.db"
    processes = [start(started, program, uri, f"process-{number}") for number in range(6)]
    for process in processes:
        assert await asyncio.to_thread(process.wait, 60) == 0
    async with open_store(uri) as store:
        assert len((await store.children("/")).names) == 6


# --- One process alone, locked files, full files, deleted files


async def test_the_only_live_process_is_woken_by_the_end_of_another(
    uri: str, started: list["subprocess.Popen[bytes]"]
) -> None:
    """It ends the lapsed session itself, and must hear of its own doing."""
    process = start(started, OWNING, uri)
    assert await line_of(process) == b"created\n"
    async with open_store(uri) as store, store.watch("/mine") as watch:
        process.kill()
        process.wait()
        async with asyncio.timeout(20):
            while await store.exists("/mine") is not None:
                await watch.wait_changed()


async def test_the_session_of_a_process_that_died_ends_before_its_lease(
    uri: str, started: list["subprocess.Popen[bytes]"]
) -> None:
    """Its lease is for an hour. A process that is only stopped keeps it."""
    dying, stopped = start(started, OWNING, uri, "3600"), start(started, OWNING.replace("/mine", "/kept"), uri, "3600")
    assert await line_of(dying) == await line_of(stopped) == b"created\n"
    stopped.send_signal(signal.SIGSTOP)
    async with open_store(uri) as store, store.watch("/mine") as watch:
        dying.kill()
        dying.wait()
        async with asyncio.timeout(20):
            while await store.exists("/mine") is not None:
                await watch.wait_changed()
        assert await store.exists("/kept") is not None
    stopped.kill()
    stopped.wait()
    async with open_store(uri, settings=StoreSettings(sole_user=True)):
        pass
    assert os.listdir(f"{uri.removeprefix('sqlite:')}-sessions") == [], "nothing is left of any of them"


def foreign_lock(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri.removeprefix("sqlite:"), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


async def test_reads_go_on_while_another_process_keeps_the_file_locked(uri: str) -> None:
    async with open_store(uri, settings=StoreSettings(operation_timeout_s=5)) as store:
        await store.create("/a", b"readable")
        connection = foreign_lock(uri)
        writes = [asyncio.create_task(store.set("/a", b"%d" % n, expected=ANY_VERSION)) for n in range(5)]
        for _ in range(20):
            assert (await store.get("/a")).data == b"readable"
        assert not any(write.done() for write in writes)
        connection.execute("ROLLBACK")
        connection.close()
        await asyncio.gather(*writes)
        assert (await store.get("/a")).data == b"4"


async def test_a_lock_longer_than_the_session_timeout_costs_nobody_its_session(uri: str) -> None:
    """None of them could renew, and none of them is dead: whoever gets the lock first must not end the others."""
    patient = StoreSettings(operation_timeout_s=10, session_timeout_s=1)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(uri, settings=patient)) for _ in range(4)]
        sessions = [store.session for store in stores]
        watches = [stack.enter_context(store.watch_session()) for store in stores]
        for number, store in enumerate(stores):
            await store.create(f"/{number}", ephemeral=True)
        connection = foreign_lock(uri)
        async with asyncio.timeout(20):
            for watch in watches:
                assert await watch.wait_event() is SessionEvent.SUSPENDED
            with sqlite3.connect(uri.removeprefix("sqlite:")) as other:
                newest = other.execute("SELECT max(lapses_s) FROM sessions").fetchone()[0]
            other.close()

            async def all_lapsed() -> bool:
                return bool(time.monotonic() > newest)

            await eventually(all_lapsed)
            connection.execute("ROLLBACK")
            connection.close()
            for watch in watches:
                assert await watch.wait_event() is SessionEvent.RESUMED
        assert [store.session for store in stores] == sessions
        assert (await stores[0].children("/")).names == ("0", "1", "2", "3")


# Fills its disk quota (no file may grow) until its lease is over and another process has ended its session.
LIMITED = """
import asyncio, resource, signal, sys
from quire.errors import QuireError
from quire.metadata import SessionEvent, StoreSettings, open_store

async def main(uri):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    async with open_store(uri, settings=StoreSettings(session_timeout_s=1.0)) as store:
        await store.create("/mine", ephemeral=True)
        first = store.session
        with store.watch_session() as session:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            print("limited", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            while await session.wait_event() is not SessionEvent.EXPIRED:
                pass
        await store.create("/again", ephemeral=True)
        stat = await store.exists("/again")
        print("session", store.session != first, stat.owner == store.session, store.session, flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_session_that_could_not_be_stored_is_never_shared(
    uri: str, started: list["subprocess.Popen[bytes]"]
) -> None:
    """A process cannot write for longer than its session; its tries to begin a new one are undone. When another
    process begins one meanwhile, the two must not end up with the same session.
    """
    process = start(started, LIMITED, uri)
    assert process.stdin is not None
    assert await line_of(process) == b"limited\n"
    async with open_store(uri) as observer:

        async def ended() -> bool:
            return await observer.exists("/mine") is None

        await eventually(ended)
        async with open_store(uri) as other:
            await other.create("/others", ephemeral=True)
            process.stdin.write(b"\n")
            process.stdin.flush()
            told = (await line_of(process)).split()
            assert told[:3] == [b"session", b"True", b"True"]
            assert int(told[3]) not in (other.session, observer.session)
            process.stdin.close()
            assert await asyncio.to_thread(process.wait, 20) == 0
            stat = await observer.exists("/others")
            assert stat is not None
            assert stat.owner == other.session


async def test_a_file_deleted_under_a_running_process_is_noticed(uri: str) -> None:
    """Otherwise two worlds would exist, and a lock would have two holders."""
    async with open_store(uri) as store:
        await store.create("/a")
        with store.watch_session() as session:
            for suffix in ("", "-wal", "-shm"):
                Path(uri.removeprefix("sqlite:") + suffix).unlink(missing_ok=True)
            for call in (store.get("/a"), store.set("/a", b"", expected=ANY_VERSION)):
                with pytest.raises(MetadataUnavailable, match="deleted or replaced"):
                    await call
            async with asyncio.timeout(10):
                assert await session.wait_event() is SessionEvent.SUSPENDED


async def test_an_answer_that_came_while_the_loop_was_busy_counts(uri: str) -> None:
    async with open_store(uri, settings=StoreSettings(operation_timeout_s=1.0)) as store:
        create = asyncio.create_task(store.create("/a"))
        await asyncio.sleep(0)
        deadline_s = time.monotonic() + 1.5
        while time.monotonic() < deadline_s:  # A callback that hogs the loop for longer than the deadline.
            pass
        assert (await create).path == "/a"


async def test_looking_at_an_empty_file_leaves_it_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(NotInitialised):
        async with open_store(f"sqlite:{tmp_path}/empty.db", settings=StoreSettings(create_missing=False)):
            raise AssertionError("opened")
    assert (tmp_path / "empty.db").stat().st_size == 0


# --- Bad input


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes\n" * 100)
    with pytest.raises(DamagedMetadata, match=r"notes\.txt"):
        async with open_store(f"sqlite:{path}"):
            raise AssertionError("opened")
    assert path.read_text() == "these are my notes\n" * 100


async def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Refused, match="another program"):
        async with open_store(f"sqlite:{path}"):
            raise AssertionError("opened")
    assert path.read_bytes() == before


async def test_a_newer_format_is_refused(uri: str) -> None:
    async with open_store(uri):
        pass
    with sqlite3.connect(uri.removeprefix("sqlite:")) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Refused, match="99"):
        async with open_store(uri):
            raise AssertionError("opened")


async def test_missing_folders_folders_and_missing_files_are_named(tmp_path: Path) -> None:
    looking = StoreSettings(create_missing=False)
    for uri, settings, error in (
        (f"sqlite:{tmp_path}/nowhere/m.db", None, InvalidUri),
        (f"sqlite:{tmp_path}", None, InvalidUri),
        (f"sqlite:{tmp_path}/absent.db", looking, NotInitialised),
    ):
        with pytest.raises(error) as caught:
            async with open_store(uri, settings=settings):
                raise AssertionError("opened")
        assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


async def test_a_file_locked_by_another_process_is_an_error_within_the_deadline(uri: str) -> None:
    async with open_store(uri, settings=StoreSettings(operation_timeout_s=0.5)) as store:
        connection = sqlite3.connect(uri.removeprefix("sqlite:"), isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(MetadataUnavailable, match=r"metadata\.db"):
                await store.create("/a")
            assert await store.exists("/a") is None
        finally:
            connection.execute("ROLLBACK")
            connection.close()
        await store.create("/a")


async def test_a_damaged_file_is_reported_as_damage(uri: str) -> None:
    async with open_store(uri) as store:
        await store.create("/a", b"x" * 100_000)
    path = Path(uri.removeprefix("sqlite:"))
    data = bytearray(path.read_bytes())
    data[4096 : len(data)] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(DamagedMetadata):
        async with open_store(uri) as store:
            await store.get("/a")


async def test_conflicts_inside_one_batch_fail_alone(uri: str) -> None:
    """Calls that share one transaction of the file are still independent of each other."""
    async with open_store(uri) as store:
        version = (await store.create("/a")).version
        results = await asyncio.gather(
            *(store.set("/a", b"%d" % number, expected=version) for number in range(10)), return_exceptions=True
        )
        assert sum(isinstance(result, VersionConflict) for result in results) == 9
        assert (await store.get("/a")).data == b"0"


async def test_closing_ends_the_thread_and_the_session(uri: str) -> None:
    before = set(threading.enumerate())

    def threads() -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("quire-")]

    async with open_store(uri) as store:
        assert threads() == ["quire-sqlite-metadata.db"]
        await store.create("/mine", ephemeral=True)
    assert threads() == []
    async with open_store(uri) as store:
        assert await store.exists("/mine") is None
