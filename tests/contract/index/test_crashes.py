"""The simulated index alone: what a crash leaves of it, and the faults a test can ask for."""

import errno

import pytest

from quire.bookie.index import PutMark
from quire.errors import DamagedIndex, StoreClosed
from quire.testing.sim_index import SimIndex, SimIndexFolder
from quire.testing.sim_rng import SimRng

SEEDS = range(60)
NAMES = [str(number) for number in range(6)]


def marks_of(index: SimIndex) -> list[str]:
    return [name for name in NAMES if index.mark(name) is not None]


def folder_with(seed: int, *, synced: int, unsynced: int) -> tuple[SimIndexFolder, SimIndex]:
    folder = SimIndexFolder(SimRng(seed))
    index = folder.open(create=True)
    for name in NAMES[:synced]:
        index.commit(PutMark(name, b""))
    for name in NAMES[synced : synced + unsynced]:
        index.commit(PutMark(name, b""), sync=False)
    return folder, index


def test_a_crash_keeps_what_was_synced_and_any_number_of_the_commits_after_it() -> None:
    left = set()
    for seed in SEEDS:
        folder, _ = folder_with(seed, synced=2, unsynced=3)
        folder.crash()
        left.add(tuple(marks_of(folder.open(create=False))))
    assert left == {tuple(NAMES[:count]) for count in range(2, 6)}


def test_what_a_crash_left_stays_in_the_next_crash() -> None:
    for seed in SEEDS:
        folder, _ = folder_with(seed, synced=0, unsynced=4)
        folder.crash()
        first = marks_of(folder.open(create=False))
        folder.crash()
        assert marks_of(folder.open(create=False)) == first


def test_the_same_seed_crashes_the_same_way() -> None:
    def left(seed: int) -> list[str]:
        folder, _ = folder_with(seed, synced=1, unsynced=5)
        folder.crash()
        return marks_of(folder.open(create=False))

    assert [left(seed) for seed in SEEDS] == [left(seed) for seed in SEEDS]


def test_a_killed_process_loses_nothing() -> None:
    folder, _ = folder_with(1, synced=2, unsynced=3)
    folder.kill()
    assert marks_of(folder.open(create=False)) == NAMES[:5]


def test_what_a_killed_process_did_not_sync_a_later_crash_may_still_take() -> None:
    left = set()
    for seed in SEEDS:
        folder, _ = folder_with(seed, synced=0, unsynced=2)
        folder.kill()
        folder.open(create=False)
        folder.crash()
        left.add(len(marks_of(folder.open(create=False))))
    assert left == {0, 1, 2}


def test_an_index_from_before_a_crash_is_dead() -> None:
    """`finally` blocks of a dead process still run in a simulation: they must not reach the folder any more."""
    folder, index = folder_with(1, synced=1, unsynced=0)
    folder.crash()
    successor = folder.open(create=False)
    for call in (index.ledgers, index.sync, index.close, lambda: index.commit(PutMark("5", b""))):
        with pytest.raises(OSError, match="has stopped since"):
            call()
    assert marks_of(successor) == NAMES[:1]


def test_a_crash_before_the_first_commit_leaves_an_empty_index() -> None:
    folder = SimIndexFolder(SimRng(1))
    folder.open(create=True)
    folder.crash()
    assert marks_of(folder.open(create=False)) == []


@pytest.mark.parametrize("call", ["commit", "sync"])
@pytest.mark.parametrize("power_loss", [True, False])
def test_a_failed_commit_may_be_there_or_not_once_the_index_is_opened_again(call: str, power_loss: bool) -> None:
    left = set()
    for seed in SEEDS:
        folder, index = folder_with(seed, synced=1, unsynced=1)
        folder.faults.fail_next("commit" if call == "commit" else "sync", OSError(errno.ENOSPC, "full"))
        with pytest.raises(OSError, match="full") as caught:
            index.commit(PutMark("2", b""))
        assert caught.value.errno == errno.ENOSPC
        assert ("2" in marks_of(index)) == (call == "sync")
        with pytest.raises(OSError, match="open it again"):
            index.commit(PutMark("3", b""), sync=False)
        with pytest.raises(OSError, match="open it again"):
            index.sync()
        if power_loss:
            folder.crash()
        else:
            index.close()
        left.add(tuple(marks_of(folder.open(create=False))))
    assert left == {("0",), ("0", "1"), ("0", "1", "2")}


def test_a_read_that_fails_is_no_failed_write() -> None:
    folder, index = folder_with(1, synced=1, unsynced=0)
    folder.faults.fail_next("read", DamagedIndex("a block is damaged"), times=2)
    for _ in range(2):
        with pytest.raises(DamagedIndex):
            index.mark("0")
    index.commit(PutMark("1", b""))
    assert marks_of(index) == ["0", "1"]


def test_opening_can_fail() -> None:
    folder, index = folder_with(1, synced=1, unsynced=0)
    index.close()
    folder.faults.fail_next("open", DamagedIndex("the manifest is gone"))
    with pytest.raises(DamagedIndex, match="manifest"):
        folder.open(create=True)
    assert marks_of(folder.open(create=False)) == ["0"]


def test_a_close_that_cannot_sync_says_so_and_lets_go() -> None:
    folder, index = folder_with(1, synced=1, unsynced=1)
    folder.faults.fail_next("sync")
    with pytest.raises(OSError, match="simulated"):
        index.close()
    with pytest.raises(StoreClosed):
        index.mark("0")
    assert marks_of(folder.open(create=False))[:1] == ["0"]


def test_faults_can_be_taken_back_and_misspelt_ones_are_refused() -> None:
    folder, index = folder_with(1, synced=0, unsynced=0)
    folder.faults.fail_next("commit", times=3)
    folder.faults.repair()
    index.commit(PutMark("0", b""))
    with pytest.raises(ValueError, match="fsync"):
        folder.faults.fail_next("fsync")  # type: ignore[arg-type]
