"""What `RocksIndex` makes of files that a power cut tore, or that something damaged."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from quire.bookie.index import LocationMove
from quire.bookie.rocks_index import RocksIndex
from quire.codec.entry_log import Location
from quire.errors import DamagedIndex
from quire.types import EntryId, LedgerId
from tests.integration.bookie.numbered_commits import LONG, SMALL_MEMTABLE_BYTES, check_commits, numbered
from tests.support.waiting import eventually

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
        """Some of what was not synced did not reach the disk: its end, or pages in the middle, which are zeros then."""
        log = bytearray(self.log)
        end = rng.randrange(self.synced_bytes, len(log) + 1)
        del log[end:]
        for _ in range(rng.randrange(3)):
            page = rng.randrange(self.synced_bytes, len(self.log)) // 4096 * 4096
            start, stop = max(page, self.synced_bytes), min(page + 4096 * rng.randrange(1, 20), len(log))
            log[start:stop] = bytes(max(0, stop - start))
        return bytes(log)


def log_of(folder: Path) -> Path:
    [log] = folder.glob("*.log")
    return log


@pytest.fixture
def power_loss(tmp_path: Path) -> PowerLoss:
    return PowerLoss(tmp_path)


@pytest.mark.extended
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


def test_damage_that_rocksdb_would_take_for_the_end_or_never_return_from_is_noticed(power_loss: PowerLoss) -> None:
    """Lengths beyond the end of the file, and kinds of logs that are used again. Of RocksDB's own bytes, so the codec
    reads them right: what is undamaged opens.
    """
    with RocksIndex.open(power_loss.again(power_loss.log), create=False) as index:
        assert check_commits(index) == power_loss.SYNCED + power_loss.UNSYNCED
    manifest = next(power_loss.folder.glob("MANIFEST-*"))
    for name, content in ((log_of(power_loss.folder).name, power_loss.log), (manifest.name, manifest.read_bytes())):
        second = 7 + int.from_bytes(content[4:6], "little")
        third = second + 7 + int.from_bytes(content[second + 4 : second + 6], "little")
        for at, value in (
            (second + 5, 0x7F),
            (third + 5, 0x7F),
            (6, 5),
            (second + 6, 5),
            (third + 6, 5),
            (third + 6, 8),
        ):
            damaged = bytearray(content)
            damaged[at] = value
            folder = power_loss.again(power_loss.log)
            (folder / name).write_bytes(damaged)
            with pytest.raises(DamagedIndex):
                RocksIndex.open(folder, create=False)


def test_a_log_that_is_gone_is_noticed_by_those_who_know_their_position(power_loss: PowerLoss) -> None:
    folder = power_loss.again(b"")
    log_of(folder).unlink()
    with pytest.raises(DamagedIndex, match="lost what was durable"):
        RocksIndex.open(folder, create=False, position_min=power_loss.position)


# --- Damaged files --------------------------------------------------------------------------------------------

COMMITS = 120


def fill(folder: Path, *, files: int) -> None:
    """Make an index of that many files: closing flushes. RocksDB begins to compact when there are four."""
    RocksIndex.open(folder, create=True).close()  # The first one says only whose index this is.
    for number in range(1, files):
        with RocksIndex.open(folder, create=False) as index:
            for commit in range((number - 1) * COMMITS // (files - 1), number * COMMITS // (files - 1)):
                index.commit(*numbered(commit), sync=False)


@pytest.fixture(scope="module")
def closed_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with several files, too few to be compacted: RocksDB would pause for a second at each damage."""
    folder = tmp_path_factory.mktemp("closed") / "index"
    fill(folder, files=3)
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
    with RocksIndex.open(folder, create=False) as index:
        position = index.position
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
                with RocksIndex.open(copy, create=False, position_min=position) as index:
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
    damage_entries(folder)
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


async def test_damage_that_rocksdb_comes_upon_by_itself_is_reported_by_a_commit(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    fill(folder, files=4)
    damage_entries(folder)
    index = RocksIndex.open(folder, create=False, memtable_bytes=SMALL_MEMTABLE_BYTES)

    async def refused() -> bool:
        try:
            index.commit(*numbered(COMMITS), sync=False)
        except DamagedIndex:
            return True
        return False

    await eventually(refused, what="a compaction that fails stops commits")
    with pytest.raises(OSError, match="open it again"):
        index.sync()
    index.close()  # Those who commit were told.


def damage_entries(folder: Path) -> None:
    large = [path for path in folder.glob("*.sst") if path.stat().st_size > 10_000]  # Not those without entries.
    assert large
    for path in large:
        content = bytearray(path.read_bytes())
        content[100] ^= 0xFF  # In the first block of entries; there are several.
        path.write_bytes(content)


def test_another_database_is_no_index(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    Rdict(str(folder), Options(raw_mode=True)).close()
    with pytest.raises(DamagedIndex, match="no index of this format"):
        RocksIndex.open(folder, create=True)
