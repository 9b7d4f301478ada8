"""`RocksIndex` on real files: killed processes, torn and damaged files, full disks, threads.

What any index does is in tests/contract/index.
"""

import errno
import os
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
from rocksdict import Options, Rdict

from quire.bookie.index import DeleteLedger, Index, LedgerRecord, LocationMove, PutLedger, PutLocations, PutMark
from quire.bookie.rocks_index import RocksIndex
from quire.codec.entry_log import Location
from quire.errors import DamagedIndex, Refused
from quire.types import EntryId, LedgerId

LONG = bool(os.environ.get("QUIRE_TEST_LONG"))
SMALL_MEMTABLE_BYTES = 64 << 10
ENTRIES = 50  # In each numbered commit.

Entries = list[tuple[LedgerId, EntryId, Location]]


def numbered(number: int) -> tuple[PutLedger, PutLocations, PutMark]:
    """A commit that says which one it is: a ledger of that id, with entries, and a mark."""
    ledger_id = LedgerId(number)
    entries = [(ledger_id, EntryId(entry), Location(number * 1000 + entry)) for entry in range(ENTRIES)]
    return PutLedger(ledger_id, LedgerRecord(b"%d" % number)), PutLocations(entries), PutMark("last", b"%d" % number)


def check_commits(index: Index) -> int:
    """How many numbered commits there are. They are whole, and none before the last is missing."""
    count = int(index.mark("last") or b"-1") + 1
    assert [*index.ledgers()] == [*range(count)]
    for number in range(count):
        ledger_id = LedgerId(number)
        assert index.ledger(ledger_id) == LedgerRecord(b"%d" % number)
        assert index.locations(ledger_id, EntryId(0), limit=2 * ENTRIES) == [*_rows(number)]
        assert index.last_entry(ledger_id) == ENTRIES - 1
    assert index.last_entry(LedgerId(count)) is None
    return count


def _rows(number: int) -> Iterator[tuple[int, int]]:
    return ((entry, number * 1000 + entry) for entry in range(ENTRIES))


# --- Processes ------------------------------------------------------------------------------------------------

# Commits two times unsynced and once synced, in turn, and says so when the synced one has returned.
COMMITTING = """
import sys
from quire.bookie.rocks_index import RocksIndex
from tests.integration.bookie.test_rocks_index import SMALL_MEMTABLE_BYTES, numbered

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
from tests.integration.bookie.test_rocks_index import numbered

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


# --- Power loss -----------------------------------------------------------------------------------------------


class PowerLoss:
    """The folder of an index that was open when the power went, and where in its log the last sync was."""

    SYNCED = 5
    UNSYNCED = 100

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "lost"
        with RocksIndex.open(tmp_path / "index", create=True) as index:
            for number in range(self.SYNCED):
                self.position = index.commit(*numbered(number))
            self.synced_bytes = log_of(tmp_path / "index").stat().st_size
            for number in range(self.SYNCED, self.SYNCED + self.UNSYNCED):
                index.commit(*numbered(number), sync=False)
            shutil.copytree(tmp_path / "index", self.folder)
        self.log = log_of(self.folder).read_bytes()
        assert self.synced_bytes + 3 * 32768 < len(self.log), "too little for the blocks of the log to matter"

    def again(self, log: bytes) -> Path:
        """A fresh copy of the folder, with `log` for its log."""
        copy = self.folder.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)
        log_of(copy).write_bytes(log)
        return copy

    def torn(self, rng: random.Random) -> bytes:
        """Some of what was not synced did not reach the disk: the end of it, or pages in the middle."""
        log = bytearray(self.log)
        end = rng.randrange(self.synced_bytes, len(log) + 1)
        del log[end:]
        for _ in range(rng.randrange(3)):
            page = rng.randrange(self.synced_bytes, len(self.log)) // 4096 * 4096
            start, stop = max(page, self.synced_bytes), min(page + 4096 * rng.randrange(1, 20), len(log))
            log[start:stop] = rng.choice((bytes, rng.randbytes))(max(0, stop - start))
        return bytes(log)


def log_of(folder: Path) -> Path:
    [log] = folder.glob("*.log")
    return log


@pytest.fixture
def power_loss(tmp_path: Path) -> PowerLoss:
    return PowerLoss(tmp_path)


def test_a_torn_log_is_a_loss_of_the_newest_commits_for_those_who_know_their_position(power_loss: PowerLoss) -> None:
    rng = random.Random(7)
    counts, refused = set(), 0
    for _ in range(500 if LONG else 40):
        torn = power_loss.torn(rng)
        with RocksIndex.open(power_loss.again(torn), create=False, position_min=power_loss.position) as index:
            counts.add(check_commits(index))
        try:
            with RocksIndex.open(power_loss.again(torn), create=False) as index:
                counts.add(check_commits(index))
        except DamagedIndex:  # The log alone does not tell what was torn from what was damaged.
            refused += 1
    assert min(counts) >= power_loss.SYNCED
    assert len(counts) > 10, "the log was hardly ever torn"
    assert refused > 5, "no tear was one that takes a position to tell it from damage"


def test_an_index_goes_on_after_its_log_was_torn(power_loss: PowerLoss) -> None:
    log = bytearray(power_loss.log)
    middle = (power_loss.synced_bytes + len(log)) // 2
    log[middle : middle + 50_000] = bytes(50_000)
    folder = power_loss.again(bytes(log[: len(power_loss.log)]))
    with RocksIndex.open(folder, create=False, position_min=power_loss.position) as index:
        count = check_commits(index)
        assert power_loss.SYNCED <= count < power_loss.SYNCED + power_loss.UNSYNCED
        position = index.commit(*numbered(count))
    with RocksIndex.open(folder, create=False, position_min=position) as index:
        assert check_commits(index) == count + 1


def test_a_log_that_lost_what_was_synced_is_damaged(power_loss: PowerLoss) -> None:
    rng = random.Random(8)
    for _ in range(10):
        at = rng.randrange(power_loss.synced_bytes)
        flipped = bytearray(power_loss.log)
        flipped[at] ^= 1 << rng.randrange(8)
        for log in (bytes(flipped), power_loss.log[:at]):
            with pytest.raises(DamagedIndex):
                RocksIndex.open(power_loss.again(log), create=False, position_min=power_loss.position)
        with pytest.raises(DamagedIndex):
            RocksIndex.open(power_loss.again(bytes(flipped)), create=False)


def test_a_log_that_is_gone_is_noticed_by_those_who_know_their_position(power_loss: PowerLoss) -> None:
    folder = power_loss.again(b"")
    log_of(folder).unlink()
    with pytest.raises(DamagedIndex, match="lost what was durable"):
        RocksIndex.open(folder, create=False, position_min=power_loss.position)


# --- Damaged files --------------------------------------------------------------------------------------------

COMMITS = 120


@pytest.fixture(scope="module")
def closed_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with several files, closed as it should be."""
    folder = tmp_path_factory.mktemp("closed") / "index"
    with RocksIndex.open(folder, create=True, memtable_bytes=SMALL_MEMTABLE_BYTES) as index:
        for number in range(COMMITS):
            index.commit(*numbered(number), sync=False)
    return folder


@pytest.fixture
def folder(closed_index: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    shutil.copytree(closed_index, tmp_path / "index")
    return tmp_path / "index"


def test_the_index_to_be_damaged_is_whole(folder: Path) -> None:
    assert len([*folder.glob("*.sst")]) > 1
    with RocksIndex.open(folder, create=False) as index:
        assert check_commits(index) == COMMITS


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_flipped_bit_is_noticed_or_does_no_harm(folder: Path, pattern: str) -> None:
    """Each file of a kind, flipped in many places: what is not refused is right to the last entry."""
    rng = random.Random(9)
    noticed = 0
    for path in sorted(folder.glob(pattern)):
        whole = path.read_bytes()
        for _ in range(100 if LONG else 16):
            flipped = bytearray(whole)
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            copy = folder.with_name("copy")
            shutil.copytree(folder, copy)
            (copy / path.name).write_bytes(flipped)
            try:
                with RocksIndex.open(copy, create=False) as index:
                    assert check_commits(index) == COMMITS
            except DamagedIndex:
                noticed += 1
            shutil.rmtree(copy)
    assert noticed > 5


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_gone_is_damage_and_never_a_new_beginning(folder: Path, pattern: str, create: bool) -> None:
    for path in folder.glob(pattern):
        path.unlink()
    with pytest.raises(DamagedIndex, match=str(folder)):
        RocksIndex.open(folder, create=create)


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_an_empty_file_is_damage(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        os.truncate(path, 0)
    with pytest.raises(DamagedIndex, match=str(folder)):
        RocksIndex.open(folder, create=False)


@pytest.mark.parametrize("pattern", ["OPTIONS-*", "IDENTITY", "LOG*", "rocksdict-config.json", "LOCK"])
def test_files_that_hold_nothing_of_ours_do_not_matter(folder: Path, pattern: str) -> None:
    for number, path in enumerate(folder.glob(pattern)):
        path.write_bytes(b"damaged" * number)
    with RocksIndex.open(folder, create=False) as index:
        assert check_commits(index) == COMMITS


def test_damage_in_the_middle_of_a_list_is_no_short_list(folder: Path) -> None:
    """What cannot be read raises, from every question that needs it; the error keeps nothing open."""
    for path in folder.glob("*.sst"):
        content = bytearray(path.read_bytes())
        content[100] ^= 0xFF  # In the first block of entries; small files have several.
        path.write_bytes(content)
    with RocksIndex.open(folder, create=False) as index:
        questions: list[Callable[[LedgerId], object]] = [
            lambda ledger: index.locations(ledger, EntryId(0), limit=1000),
            lambda ledger: [*index.entry_ids(ledger)],
            lambda ledger: index.location(ledger, EntryId(0)),
            lambda ledger: index.replace_locations([LocationMove(ledger, EntryId(0), Location(0), Location(1))]),
        ]
        errors = []
        for question in questions:
            with pytest.raises(DamagedIndex, match="checksum") as caught:
                [question(LedgerId(ledger)) for ledger in range(COMMITS)]
            errors.append(caught.value)
    RocksIndex.open(folder, create=False).close()
    assert all(error.__cause__ is not None and error.__traceback__ is not None for error in errors)


def test_another_database_is_no_index(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    Rdict(str(folder), Options(raw_mode=True)).close()
    with pytest.raises(DamagedIndex, match="no index of this format"):
        RocksIndex.open(folder, create=True)


# --- Folders --------------------------------------------------------------------------------------------------


def test_a_crash_while_an_index_was_made_does_not_keep_it_from_being_made(folder: Path, tmp_path: Path) -> None:
    for left in ("MANIFEST-*", "*.sst", "CURRENT"):
        half_made = tmp_path / "fresh.new"
        half_made.mkdir()
        for path in folder.glob(left):
            shutil.copy(path, half_made)
        if left == "CURRENT":
            (half_made / "CURRENT").rename(half_made / "000001.dbtmp")
        with RocksIndex.open(tmp_path / "fresh", create=True) as index:
            assert [*index.ledgers()] == []
        shutil.rmtree(tmp_path / "fresh")


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


def test_compaction_never_undoes_what_another_thread_wrote_meanwhile(tmp_path: Path) -> None:
    """Whoever comes first: an entry written anew ends where it was written, not where compaction put its old copy."""
    ledger_id, count, step = LedgerId(7), 20_000, 50

    def entries(first: int, offset: int) -> Entries:
        return [(ledger_id, EntryId(entry), Location(offset + entry)) for entry in range(first, first + step)]

    with RocksIndex.open(tmp_path / "index", create=True, memtable_bytes=SMALL_MEMTABLE_BYTES) as index:
        index.commit(*(PutLocations(entries(first, 0)) for first in range(0, count, step)))

        def write() -> None:
            for first in range(0, count, step):
                index.commit(PutLocations(entries(first, 10**6)), sync=False)

        def compact() -> None:
            for first in range(0, count, step):
                moves = [
                    LocationMove(ledger_id, EntryId(entry), Location(entry), Location(2 * 10**6 + entry))
                    for entry in range(first, first + step)
                ]
                index.replace_locations(moves, sync=False)

        in_threads(write, compact)
        found = index.locations(ledger_id, EntryId(0), limit=count)
    assert found == [(entry, 10**6 + entry) for entry in range(count)]


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
