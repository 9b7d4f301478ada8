"""`RocksIndex` on real files: killed processes, full disks, folders, threads. Damage is in `test_rocks_index_damage`.

What any index does is in tests/contract/index.
"""

import errno
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from quire.bookie.index import DeleteLedger, LocationMove, PutLocations
from quire.bookie.rocks_index import RocksIndex
from quire.codec.entry_log import Location
from quire.errors import DamagedIndex, Refused
from quire.types import EntryId, LedgerId
from tests.integration.bookie.numbered_commits import LONG, SMALL_MEMTABLE_BYTES, check_commits, numbered

# --- Processes ------------------------------------------------------------------------------------------------

# Commits two times unsynced and once synced, in turn, and says so when the synced one has returned.
COMMITTING = """
import sys
from quire.bookie.rocks_index import RocksIndex
from tests.integration.bookie.numbered_commits import SMALL_MEMTABLE_BYTES, numbered

index = RocksIndex.open(sys.argv[1], create=True, memtable_bytes=SMALL_MEMTABLE_BYTES)
number = int(index.mark("last") or b"-1") + 1
while True:
    for sync in (False, False, True):
        position = index.commit(*numbered(number), sync=sync)
        number += 1
    print(number, position, flush=True)
"""

HOLDING = """
import sys
from quire.bookie.rocks_index import RocksIndex

index = RocksIndex.open(sys.argv[1], create=True)
print("open", flush=True)
sys.stdin.read()
"""

# Commits until files may not grow any more, and goes on from there.
FILLING = """
import resource, sys
from quire.bookie.rocks_index import RocksIndex
from quire.types import EntryId, LedgerId
from tests.integration.bookie.numbered_commits import numbered

index = RocksIndex.open(sys.argv[1], create=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
number = 0
try:
    while True:
        index.commit(*numbered(number))
        number += 1
except OSError as error:
    print(number, error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for write in (lambda: index.commit(*numbered(number)), index.sync, lambda: index.set_fenced(LedgerId(0))):
    try:
        write()
    except OSError as error:
        print(error.errno, error.strerror)
print(index.location(LedgerId(number - 1), EntryId(7)))
index.close()
print("closed")
"""


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


def start(started: list["subprocess.Popen[bytes]"], program: str, folder: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    started.append(process)
    return process


def line_of(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def test_processes_killed_at_random_moments_lose_nothing_that_was_synced(
    tmp_path: Path, started: list["subprocess.Popen[bytes]"]
) -> None:
    """What is found after each kill is whole commits without a gap, at least up to the last one that was announced."""
    rng = random.Random(20260118)
    folder = tmp_path / "index"
    count = 0
    for _ in range(100 if LONG else 12):
        process = start(started, COMMITTING, folder)
        for _ in range(rng.randrange(1, 40)):
            announced, position = map(int, line_of(process).split())
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert process.stdout is not None
        for line in process.stdout.read().splitlines():  # What it said before it was dead counts, too.
            if len(words := line.split()) == 2 and line.endswith(words[1]):
                announced = max(announced, int(words[0]))
        with RocksIndex.open(folder, create=False, position_min=position) as index:
            found = check_commits(index)
        assert found >= announced > count
        count = found
    assert any(path.suffix == ".sst" for path in folder.iterdir()), "nothing was ever flushed"


def test_an_index_that_another_process_has_open_is_refused_by_name(
    tmp_path: Path, started: list["subprocess.Popen[bytes]"]
) -> None:
    folder = tmp_path / "index"
    process = start(started, HOLDING, folder)
    assert line_of(process) == b"open\n"
    with pytest.raises(Refused, match=str(folder)) as caught:
        RocksIndex.open(folder, create=True)
    assert caught.value.facts == {"folder": str(folder)}
    assert caught.value.hint
    process.kill()
    process.wait()
    RocksIndex.open(folder, create=False).close()


def test_after_a_disk_ran_full_nothing_is_written_and_all_that_was_durable_is_there(
    tmp_path: Path, started: list["subprocess.Popen[bytes]"]
) -> None:
    folder = tmp_path / "index"
    out, _ = start(started, FILLING, folder).communicate(timeout=60)
    first, *refused, location, closed = out.decode().splitlines()
    count, code = map(int, first.split())
    assert count > 3
    assert code == errno.EFBIG
    assert refused == [f"{errno.EIO} an earlier write to the index failed; open it again"] * 3
    assert int(location) == (count - 1) * 1000 + 7, "reading goes on"
    assert closed == "closed"
    with RocksIndex.open(folder, create=False) as index:
        assert check_commits(index) in (count, count + 1)


# --- Folders --------------------------------------------------------------------------------------------------


def test_a_crash_while_an_index_was_made_does_not_keep_it_from_being_made(tmp_path: Path) -> None:
    with RocksIndex.open(tmp_path / "other", create=True) as index:
        index.commit(*numbered(0))
    for left in ("", "MANIFEST-*", "*.log", "CURRENT", "*"):
        half_made = tmp_path / "fresh"
        half_made.mkdir()
        (half_made / "quire.lock").touch()
        if left:
            (half_made / "quire.unfinished").touch()
            for path in (tmp_path / "other").glob(left):
                shutil.copy(path, half_made)
        with pytest.raises(DamagedIndex, match="there is no index"):
            RocksIndex.open(half_made, create=False)
        with RocksIndex.open(half_made, create=True) as index:
            assert [*index.ledgers()] == []
            index.commit(*numbered(0))
        with RocksIndex.open(half_made, create=True) as index:
            assert check_commits(index) == 1, "it is finished now"
        shutil.rmtree(half_made)


def test_an_empty_folder_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(DamagedIndex):
        RocksIndex.open(tmp_path / "index", create=False)
    with RocksIndex.open(tmp_path / "index", create=True) as index:
        index.commit(*numbered(0))
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_the_folder_above_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RocksIndex.open(tmp_path / "missing" / "index", create=True)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        RocksIndex.open(tmp_path / "file", create=True)


def test_an_index_is_tuned_by_whoever_opens_it_not_by_whoever_made_it(tmp_path: Path) -> None:
    """rocksdict prefers options that it finds in the folder, unless it is told twice: memory would not be bounded."""
    folder = tmp_path / "index"
    for memtable_bytes in (1 << 20, 2 << 20):
        with RocksIndex.open(folder, create=True, memtable_bytes=memtable_bytes):
            newest = max(folder.glob("OPTIONS-*"), key=lambda path: path.name)
            assert f"write_buffer_size={memtable_bytes}\n" in newest.read_text()


# --- Threads --------------------------------------------------------------------------------------------------


def in_threads(*programs: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def run(program: Callable[[], None]) -> None:
        try:
            program()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


class InterruptedMoves(list[LocationMove]):
    """Moves that give another thread its chance after the index has looked at what is there, and before it writes."""

    def __init__(self, moves: list[LocationMove], writer: threading.Thread) -> None:
        super().__init__(moves)
        self._writer = writer
        self._looks = 0

    def __iter__(self) -> Iterator[LocationMove]:
        self._looks += 1
        if self._looks == 2:
            self._writer.start()
            self._writer.join(timeout=0.2)  # It cannot end before the moves are done, if all is well.
        return super().__iter__()


def test_compaction_never_undoes_what_another_thread_wrote_meanwhile(tmp_path: Path) -> None:
    """An entry written anew ends where it was written, not where compaction put its old copy."""
    ledger_id, entry_id = LedgerId(7), EntryId(0)
    with RocksIndex.open(tmp_path / "index", create=True) as index:
        index.commit(PutLocations([(ledger_id, entry_id, Location(100))]))
        writer = threading.Thread(target=index.commit, args=(PutLocations([(ledger_id, entry_id, Location(999))]),))
        moves = InterruptedMoves([LocationMove(ledger_id, entry_id, Location(100), Location(1))], writer)
        assert index.replace_locations(moves) == 1
        writer.join(timeout=60)
        assert index.location(ledger_id, entry_id) == 999


def test_writers_that_are_faster_than_the_disk_wait_for_it(tmp_path: Path) -> None:
    """Several threads fill memtables faster than they are flushed; others read meanwhile. Nothing is lost."""
    threads, rounds = 3, 40
    with RocksIndex.open(tmp_path / "index", create=True, memtable_bytes=SMALL_MEMTABLE_BYTES) as index:

        def write(thread: int) -> None:
            ledger_id = LedgerId(thread)
            for round in range(rounds):
                rows = [(ledger_id, EntryId(round * 1000 + entry), Location(entry)) for entry in range(1000)]
                index.commit(PutLocations(rows), sync=round % 20 == 19)

        def read() -> None:
            last = -1
            while last < rounds * 1000 - 1:
                now = index.last_entry(LedgerId(0))
                assert (-1 if now is None else now) >= last
                last = -1 if now is None else now

        in_threads(read, *(partial(write, thread) for thread in range(threads)))
        for thread in range(threads):
            assert sum(1 for _ in index.entry_ids(LedgerId(thread))) == rounds * 1000


def test_deleting_a_large_ledger_leaves_its_neighbours_and_gives_its_room_back(tmp_path: Path) -> None:
    with RocksIndex.open(tmp_path / "index", create=True, memtable_bytes=SMALL_MEMTABLE_BYTES) as index:
        for ledger in (6, 7, 8):
            for first in range(0, 20_000, 1000):
                rows = [(LedgerId(ledger), EntryId(first + entry), Location(entry)) for entry in range(1000)]
                index.commit(PutLocations(rows), sync=False)
        index.commit(DeleteLedger(LedgerId(7)))
        assert index.last_entry(LedgerId(7)) is None
        assert [*index.entry_ids(LedgerId(7))] == []
        assert index.locations(LedgerId(7), EntryId(0), limit=10) == []
        for ledger in (6, 8):
            assert sum(1 for _ in index.entry_ids(LedgerId(ledger))) == 20_000
    with RocksIndex.open(tmp_path / "index", create=False) as index:
        assert index.last_entry(LedgerId(7)) is None
        assert index.last_entry(LedgerId(8)) == 19_999
