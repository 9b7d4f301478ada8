"""A log in a folder: what is acknowledged stays, one process at a time, and errors that say what to do."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quire
from quire.errors import FolderInUse, FolderUnusable, QuireError, WrongDisk
from quire.stream.settings import StreamSettings
from quire.types import DLSN
from tests.support.private_files import shared_with_others

DEADLINE_S = 60.0


async def payloads(client: quire.Client, stream: str = "orders") -> list[bytes]:
    """All that is in a stream now."""
    await client.seal_stream(stream)
    async with client.open_reader(stream) as reader:
        return [record.payload async for record in reader]


@contextmanager
def program(folder: Path, task: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.programs.embedded", str(folder), task]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_what_was_written_is_there_when_the_folder_is_opened_again(tmp_path: Path) -> None:
    uri = f"file:{tmp_path}/data"
    for number in range(3):
        async with quire.connect(uri) as client, client.open_writer("orders") as writer:
            await writer.append_many([f"{number}.{each}".encode() for each in range(100)])
    async with quire.connect(uri) as client:
        assert await client.list_streams() == ["orders"]
        expected = [f"{number}.{each}".encode() for number in range(3) for each in range(100)]
        assert await payloads(client) == expected


async def test_what_is_in_the_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Whatever the process usually allows others to see."""
    async with quire.connect(f"file:{tmp_path}/above/data") as client, client.open_writer("orders") as writer:
        await writer.append(b"paid")
        assert shared_with_others(tmp_path / "above") == []


async def test_a_reader_tails_what_the_same_process_writes(tmp_path: Path) -> None:
    async with (
        quire.connect(f"file:{tmp_path}") as client,
        client.open_writer("orders") as writer,
        client.open_reader("orders", start="latest") as reader,
    ):
        for number in range(20):
            dlsn = await writer.append(str(number).encode())
            record = await anext(reader)
            assert (record.dlsn, record.payload) == (dlsn, str(number).encode())


def test_blocking_programs_have_the_same_door(tmp_path: Path) -> None:
    with quire.sync.connect(f"file:{tmp_path}") as client:
        with client.open_writer("orders") as writer:
            written = [writer.append(b"paid", txid=7)]
        with client.open_reader("orders") as reader:
            assert [next(reader).dlsn] == written


async def test_ledgers_are_in_the_folder_too(tmp_path: Path) -> None:
    async with (
        quire.ledgers(f"file:{tmp_path}") as ledgers,
        ledgers.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger,
    ):
        await ledger.append(b"entry")
    async with quire.ledgers(f"file:{tmp_path}") as ledgers, ledgers.open(ledger.id) as reader:
        assert [entry.payload async for entry in reader.read()] == [b"entry"]


async def test_settings_for_a_cluster_work_in_a_folder(tmp_path: Path) -> None:
    """As a program brings them along that is moved from the one to the other by its URI."""
    settings = StreamSettings(ensemble=5, write_quorum=3, ack_quorum=2)
    async with quire.connect(f"file:{tmp_path}", settings=settings) as client:
        async with client.open_writer("orders") as writer:
            await writer.append(b"one")
        async with client.open_writer("orders", ensemble=3) as writer:
            await writer.append(b"two")
        assert await payloads(client) == [b"one", b"two"]


async def test_namespaces_in_one_folder_know_nothing_of_each_other(tmp_path: Path) -> None:
    for team in ("a", "b"):
        async with quire.connect(f"file:{tmp_path}?namespace=/teams/{team}") as client:
            assert await client.list_streams() == []
            await client.create_stream(f"of-{team}")
    async with quire.connect(f"file:{tmp_path}") as client:
        assert await client.list_streams() == []
    async with quire.connect(f"file:{tmp_path}?namespace=/teams/a") as client:
        assert await client.list_streams() == ["of-a"]


async def test_an_application_may_stop_its_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a debugger: a minute goes by between two turns of the loop, for the log as for the application."""
    loop, away_s = asyncio.get_running_loop(), 0.0
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + away_s)
    async with quire.connect(f"file:{tmp_path}") as client, client.open_writer("orders") as writer:
        await writer.append(b"one")
        for turns in range(20):
            appending = asyncio.create_task(writer.append(b"more"))
            for _ in range(turns):
                await asyncio.sleep(0)
            away_s += 60.0
            await appending
        async with client.open_reader("orders") as reader:
            for _ in range(21):
                away_s += 60.0
                await anext(reader)


# --- Killed, moved


@pytest.mark.parametrize("rounds", [1, 4])
async def test_nothing_acknowledged_is_lost_by_a_kill(tmp_path: Path, rounds: int) -> None:
    acknowledged: list[str] = []
    for life in range(rounds):
        with program(tmp_path, "write") as process:
            assert process.stdout is not None
            for _ in range(50 + 37 * life):
                acknowledged += process.stdout.readline().split()
            process.kill()
            acknowledged += process.stdout.read().rpartition("\n")[0].split()
    settings = StreamSettings(lock_timeout_s=0.0)  # Nobody waits for the session of a process that died.
    async with quire.connect(f"file:{tmp_path}", settings=settings) as client:
        await client.seal_stream("orders")
        async with client.open_reader("orders") as reader:
            found = [str(record.dlsn) async for record in reader]
    assert set(acknowledged) <= set(found)
    assert found == sorted(found, key=DLSN.parse)


async def test_a_folder_may_be_moved(tmp_path: Path) -> None:
    async with quire.connect(f"file:{tmp_path}/here") as client, client.open_writer("orders") as writer:
        await writer.append(b"paid")
    (tmp_path / "here").rename(tmp_path / "there")
    async with quire.connect(f"file:{tmp_path}/there") as client:
        assert await payloads(client) == [b"paid"]


async def test_a_path_is_that_of_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with quire.connect("file:data") as client:
        monkeypatch.chdir("elsewhere")
        async with client.open_writer("orders") as writer:
            await writer.append(b"paid")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "elsewhere"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_no_port_is_open(tmp_path: Path) -> None:
    with program(tmp_path, "ports") as process:
        said, _ = process.communicate(timeout=DEADLINE_S)
    assert said == "listening on []\n"


# --- Refused


async def test_a_second_process_is_told_who_has_the_folder(tmp_path: Path) -> None:
    with program(tmp_path, "hold") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(FolderInUse, match=rf"in use by embedded.py \(process {process.pid}\)") as refused:
            async with quire.connect(f"file:{tmp_path}"):
                pass
        assert f"quire up --data {tmp_path}" in refused.value.hint
        process.communicate(timeout=DEADLINE_S)
    async with quire.connect(f"file:{tmp_path}") as client:
        assert await client.list_streams() == []


async def test_a_second_client_of_the_same_process_is_told_so(tmp_path: Path) -> None:
    async with quire.connect(f"file:{tmp_path}") as client:
        with pytest.raises(FolderInUse, match="in use by") as refused:
            async with quire.connect(f"file:{tmp_path}"):
                pass
        assert refused.value.hint.startswith("This program has it open already")
        await client.create_stream("orders")  # The first one never noticed.


async def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("something else")
    for path in ("file", "file/below"):
        with pytest.raises(FolderUnusable, match="is not a folder"):
            async with quire.connect(f"file:{tmp_path}/{path}"):
                pass
    assert (tmp_path / "file").read_text() == "something else"


async def test_a_folder_that_may_not_be_written_is_named() -> None:
    with pytest.raises(FolderUnusable, match="/proc/quire") as refused:  # Nobody creates folders there, not even root.
        async with quire.connect("file:/proc/quire"):
            pass
    assert refused.value.hint


async def test_a_folder_of_others_is_told_from_one_that_is_broken() -> None:
    with pytest.raises(FolderUnusable, match="'/sys/quire' may not be written by this user") as refused:
        async with quire.connect("file:/sys/quire"):  # Where the kernel alone makes folders.
            pass
    assert refused.value.hint == "Give yourself the right to write there, or choose another."


async def test_errors_of_the_application_are_left_alone(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError, match="its own"):
        async with quire.connect(f"file:{tmp_path}"):
            raise BrokenPipeError("its own")


async def test_an_emptied_bookie_is_found_out(tmp_path: Path) -> None:
    async with quire.connect(f"file:{tmp_path}") as client, client.open_writer("orders") as writer:
        await writer.append(b"paid")
    for path in sorted((tmp_path / "bookie-1").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(WrongDisk, match="bookie-1"):
        async with quire.connect(f"file:{tmp_path}"):
            pass


async def test_errors_say_why_nothing_can_be_written(tmp_path: Path) -> None:
    async with quire.connect(f"file:{tmp_path}") as client, client.open_writer("orders") as writer:
        await writer.append(b"paid")
    (tmp_path / "bookie-1" / "READ_ONLY").write_text("moving to a larger disk")
    with pytest.raises(QuireError) as refused:
        await write_where_nothing_can_be_written(tmp_path)
    why = "an operator made the bookie read-only: moving to a larger disk"
    assert refused.value.__notes__ == [f"bookie-1, in this process, takes nothing new: {why}"]


async def write_where_nothing_can_be_written(folder: Path) -> None:
    async with quire.connect(f"file:{folder}") as client:
        async with client.open_reader("orders") as reader:
            assert (await anext(reader)).payload == b"paid"
        async with client.open_writer("orders", call_timeout_s=2.0) as writer:
            await writer.append(b"more")


async def test_handles_are_opened_and_closed_without_blocks(tmp_path: Path) -> None:
    """Closed folders can be opened again at once: what was opened without a block has let go of everything."""
    for number in range(2):
        client = await quire.connect(f"file:{tmp_path}/log")
        writer = await client.open_writer("orders")
        await writer.append(b"%d" % number)
        await writer.aclose()
        writer = await client.open_writer("orders")  # The first one has given up the stream.
        await writer.append(b"more")
        reader = await client.open_reader("orders", start="earliest")
        assert len([record async for record in reader.read_to_end()]) == 2 * (number + 1)
        await reader.close()
        await client.close()
        await client.close()
    ledgers = await quire.ledgers(f"file:{tmp_path}/log")
    ledger = await ledgers.create(ensemble=1, write_quorum=1, ack_quorum=1)
    await ledger.append(b"entry")
    await ledger.close()
    entries = await ledgers.open(ledger.id)
    assert entries.last_add_confirmed == 0
    await entries.close()
    await ledgers.close()


def test_blocking_handles_are_opened_and_closed_without_blocks(tmp_path: Path) -> None:
    for number in range(2):
        client = quire.sync.connect(f"file:{tmp_path}/log")
        writer = client.open_writer("orders")
        writer.append(b"%d" % number)
        writer.close()
        writer = client.open_writer("orders")
        writer.append(b"more")
        reader = client.open_reader("orders", start="earliest")
        assert len(list(reader.read_to_end())) == 2 * (number + 1), "a blocking reader ends at the end as of now"
        reader.close()
        client.close()
        client.close()
