"""What any index does, case by case. Random cases are in `test_against_model`."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from quire.bookie.index import (
    TOMBSTONE_KEPT_MS,
    DeleteLedger,
    DeleteMark,
    DeleteTombstone,
    Index,
    LedgerRecord,
    LocationMove,
    Operation,
    PutLedger,
    PutLocations,
    PutMark,
    PutTombstone,
)
from quire.codec.entry_log import Location
from quire.errors import DamagedIndex, InvalidArgument, Refused, StoreClosed
from quire.types import EntryId, LedgerId
from tests.contract.index.backends import Backend
from tests.contract.index.model import ID_MAX, Model, observed

RECORD = LedgerRecord(b"key")
BAD_IDS = [-1, 2**63, 2**64, -(2**63)]


def at(ledger: int, entry: int, location: int) -> tuple[LedgerId, EntryId, Location]:
    return LedgerId(ledger), EntryId(entry), Location(location)


def put(*entries: tuple[int, int, int]) -> PutLocations:
    return PutLocations([at(*entry) for entry in entries])


def move(ledger: int, entry: int, old: int, new: int) -> LocationMove:
    return LocationMove(LedgerId(ledger), EntryId(entry), Location(old), Location(new))


def range_of(
    index: Index, ledger: int, first: int = 0, last: int | None = None, limit: int = 100
) -> list[tuple[EntryId, Location]]:
    end = None if last is None else EntryId(last)
    return index.locations(LedgerId(ledger), EntryId(first), end, limit=limit)


def test_an_empty_index_knows_nothing(index: Index) -> None:
    assert observed(index) == Model().expected()


def test_a_location_is_found_and_can_be_replaced(index: Index) -> None:
    index.commit(put((7, 3, 100), (7, 4, 200)))
    index.commit(put((7, 3, 300)))
    assert index.location(LedgerId(7), EntryId(3)) == 300
    assert index.location(LedgerId(7), EntryId(4)) == 200
    assert index.location(LedgerId(7), EntryId(5)) is None
    assert index.location(LedgerId(8), EntryId(3)) is None


def test_the_last_of_two_locations_in_one_commit_counts(index: Index) -> None:
    index.commit(put((7, 3, 100), (7, 3, 200)), put((7, 3, 300)))
    assert index.location(LedgerId(7), EntryId(3)) == 300


def test_a_range_ascends_and_ends_with_its_ledger(index: Index) -> None:
    index.commit(put((256, 0, 9), (255, ID_MAX, 3), (255, 256, 2), (255, 1, 1), (254, 5, 8)))
    assert range_of(index, 255) == [(1, 1), (256, 2), (ID_MAX, 3)]
    assert range_of(index, 255, 1, 256) == [(1, 1), (256, 2)]
    assert range_of(index, 255, 2, 255) == []
    assert range_of(index, 255, 256, 256) == [(256, 2)]
    assert range_of(index, 255, 256, ID_MAX) == [(256, 2), (ID_MAX, 3)]
    assert range_of(index, 255, limit=2) == [(1, 1), (256, 2)]
    assert range_of(index, 255, 300, 200) == []
    assert range_of(index, 253) == []


def test_a_range_needs_room_for_an_entry(index: Index) -> None:
    for limit in (0, -1):
        with pytest.raises(InvalidArgument):
            range_of(index, 7, limit=limit)


def test_the_last_entry_is_that_of_its_own_ledger(index: Index) -> None:
    index.commit(put((5, 10, 1), (5, 9, 1), (7, 0, 1)), put((ID_MAX, ID_MAX, 0)))
    assert index.last_entry(LedgerId(5)) == 10
    assert index.last_entry(LedgerId(6)) is None
    assert index.last_entry(LedgerId(7)) == 0
    assert index.last_entry(LedgerId(ID_MAX)) == ID_MAX
    index.commit(DeleteLedger(LedgerId(7)))
    assert index.last_entry(LedgerId(7)) is None


def test_many_entries_in_any_order_come_back_in_order(index: Index) -> None:
    """Enough to fill several of RocksDB's files and several pages of an iteration."""
    entries = [at(ledger, entry, ledger * 100_000 + entry) for ledger in (6, 7, 8) for entry in range(9000)]
    random.Random(3).shuffle(entries)
    for start in range(0, len(entries), 1000):
        index.commit(PutLocations(entries[start : start + 1000]), sync=False)
    index.sync()
    assert list(index.entry_ids(LedgerId(7))) == list(range(9000))
    assert range_of(index, 7, 4000, limit=9000) == [(entry, 700_000 + entry) for entry in range(4000, 9000)]
    assert index.last_entry(LedgerId(7)) == 8999
    for ledger_id, entry_id, location in entries[:500]:
        assert index.location(ledger_id, entry_id) == location


@pytest.mark.parametrize("count", [4095, 4096, 4097, 8192])
def test_entry_ids_are_complete_where_a_page_ends(index: Index, count: int) -> None:
    index.commit(PutLocations([at(7, entry * 3, entry) for entry in range(count)]), put((8, 0, 0)))
    assert list(index.entry_ids(LedgerId(7))) == list(range(0, count * 3, 3))


def test_deleting_a_ledger_takes_its_record_and_entries_and_nothing_else(index: Index) -> None:
    for ledger in (6, 7, 8):
        index.commit(PutLedger(LedgerId(ledger), RECORD), put((ledger, 0, 1), (ledger, ID_MAX, 2)))
    index.commit(PutTombstone(LedgerId(7), 5))
    index.commit(DeleteLedger(LedgerId(7)))
    assert [*index.ledgers()] == [6, 8]
    assert index.ledger(LedgerId(7)) is None
    assert range_of(index, 7) == []
    assert range_of(index, 6) == range_of(index, 8) == [(0, 1), (ID_MAX, 2)]
    assert index.tombstone(LedgerId(7)) == 5


def test_operations_of_one_commit_happen_in_order(index: Index) -> None:
    index.commit(put((7, 0, 1), (7, 1, 1)))
    index.commit(put((7, 2, 2)), DeleteLedger(LedgerId(7)), put((7, 1, 3)), PutMark("m", b"1"), DeleteMark("m"))
    assert range_of(index, 7) == [(1, 3)]
    assert index.mark("m") is None


def test_a_deleted_ledger_can_come_back(index: Index) -> None:
    index.commit(PutLedger(LedgerId(7), RECORD), put((7, 0, 1), (7, 1, 1)))
    index.commit(DeleteLedger(LedgerId(7)))
    index.commit(PutLedger(LedgerId(7), RECORD), put((7, 1, 9)))
    assert range_of(index, 7) == [(1, 9)]
    assert [*index.ledgers()] == [7]


@pytest.mark.parametrize(
    "wrong",
    [
        *[put((bad, 0, 0)) for bad in BAD_IDS],
        *[put((0, bad, 0)) for bad in BAD_IDS],
        *[put((0, 0, bad)) for bad in BAD_IDS],
        *[PutLedger(LedgerId(bad), RECORD) for bad in BAD_IDS],
        *[DeleteLedger(LedgerId(bad)) for bad in BAD_IDS],
        *[PutTombstone(LedgerId(bad), 0) for bad in BAD_IDS],
        *[PutTombstone(LedgerId(0), bad) for bad in BAD_IDS],
        *[DeleteTombstone(LedgerId(bad)) for bad in BAD_IDS],
        PutMark("", b""),
        PutMark("n" * 256, b""),
        DeleteMark(""),
    ],
)
def test_a_commit_with_one_impossible_operation_changes_nothing(index: Index, wrong: Operation) -> None:
    index.commit(put((7, 0, 1)), PutLedger(LedgerId(7), RECORD))
    before, position = observed(index), index.position
    with pytest.raises(InvalidArgument):
        index.commit(DeleteLedger(LedgerId(7)), PutMark("a", b"1"), wrong, put((7, 1, 1)))
    assert observed(index) == before
    assert index.position == position
    index.commit(put((7, 1, 1)))  # It is no failed write: the index goes on.


@pytest.mark.parametrize("bad", BAD_IDS)
def test_impossible_ids_are_refused_by_every_question(index: Index, bad: int) -> None:
    questions: list[Callable[[], object]] = [
        lambda: index.location(LedgerId(bad), EntryId(0)),
        lambda: index.location(LedgerId(0), EntryId(bad)),
        lambda: range_of(index, bad),
        lambda: range_of(index, 0, bad),
        lambda: range_of(index, 0, 0, bad),
        lambda: index.last_entry(LedgerId(bad)),
        lambda: index.entry_ids(LedgerId(bad)),
        lambda: index.ledger(LedgerId(bad)),
        lambda: index.tombstone(LedgerId(bad)),
        lambda: index.set_fenced(LedgerId(bad)),
        lambda: index.replace_locations([move(0, bad, 0, 0)]),
    ]
    for question in questions:
        with pytest.raises(InvalidArgument):
            question()


def test_compaction_moves_only_what_is_still_where_it_was(index: Index) -> None:
    index.commit(put((7, 0, 100), (7, 1, 101), (7, 2, 102), (8, 0, 103)))
    index.commit(put((7, 1, 999)), DeleteLedger(LedgerId(8)))  # While compaction copied.
    moved = index.replace_locations([move(7, 0, 100, 1), move(7, 1, 101, 2), move(8, 0, 103, 3), move(7, 5, 0, 4)])
    assert moved == 1
    assert range_of(index, 7) == [(0, 1), (1, 999), (2, 102)]
    assert range_of(index, 8) == []


def test_an_entry_moved_twice_in_one_call_ends_at_its_last_place(index: Index) -> None:
    index.commit(put((7, 0, 100)))
    assert index.replace_locations([move(7, 0, 100, 1), move(7, 0, 100, 2), move(7, 0, 1, 3)]) == 2
    assert index.location(LedgerId(7), EntryId(0)) == 3


def test_moving_to_no_place_at_all_is_refused_whole(index: Index) -> None:
    index.commit(put((7, 0, 100), (7, 1, 100)))
    with pytest.raises(InvalidArgument):
        index.replace_locations([move(7, 0, 100, 1), move(7, 1, 100, -1)])
    assert range_of(index, 7) == [(0, 100), (1, 100)]


def test_moving_nothing_is_fine(index: Index) -> None:
    assert index.replace_locations([]) == 0


def test_a_ledgers_record_comes_back_whole(index: Index) -> None:
    records = [
        LedgerRecord(b""),
        LedgerRecord(b"k" * 20, fenced=True),
        LedgerRecord(b"k", explicit_lac=b""),
        LedgerRecord(b"k", explicit_lac=b"\x00" * 36, limbo=True),
        LedgerRecord(bytes(range(256)) * 300, fenced=True, explicit_lac=b"x", limbo=True),
    ]
    for number, record in enumerate(records):
        index.commit(PutLedger(LedgerId(number), record))
    assert [index.ledger(LedgerId(number)) for number in range(len(records))] == records


def test_fencing_keeps_the_rest_of_the_record_and_happens_once(index: Index) -> None:
    record = LedgerRecord(b"key", explicit_lac=b"lac", limbo=True)
    fenced = LedgerRecord(b"key", fenced=True, explicit_lac=b"lac", limbo=True)
    index.commit(PutLedger(LedgerId(7), record))
    assert index.set_fenced(LedgerId(7)) == fenced
    assert index.ledger(LedgerId(7)) == fenced
    position = index.position
    assert index.set_fenced(LedgerId(7)) == fenced
    assert index.position == position


def test_a_ledger_that_is_not_known_cannot_be_fenced(index: Index) -> None:
    index.commit(put((7, 0, 1)))
    assert index.set_fenced(LedgerId(7)) is None
    assert index.ledger(LedgerId(7)) is None
    assert [*index.ledgers()] == []


def test_the_list_of_ledgers_is_that_of_the_moment_it_was_asked_for(index: Index) -> None:
    """A ledger that is created while garbage collection reads the metadata must not be taken for a deleted one."""
    for ledger in (1, 2, 256, ID_MAX):
        index.commit(PutLedger(LedgerId(ledger), RECORD))
    listed = index.ledgers()
    index.commit(PutLedger(LedgerId(3), RECORD), DeleteLedger(LedgerId(2)))
    assert [*listed] == [1, 2, 256, ID_MAX]
    assert [*index.ledgers()] == [1, 3, 256, ID_MAX]


def test_a_tombstone_outlives_its_ledger_until_it_is_deleted(index: Index) -> None:
    now_ms = 1_700_000_000_000
    index.commit(PutLedger(LedgerId(7), LedgerRecord(b"key", fenced=True)), PutTombstone(LedgerId(300), 0))
    index.commit(DeleteLedger(LedgerId(7)), PutTombstone(LedgerId(7), now_ms + TOMBSTONE_KEPT_MS))
    assert index.tombstone(LedgerId(7)) == now_ms + TOMBSTONE_KEPT_MS
    assert index.tombstones() == [(7, now_ms + TOMBSTONE_KEPT_MS), (300, 0)]
    assert [*index.ledgers()] == []
    index.commit(DeleteTombstone(LedgerId(300)))
    assert index.tombstones() == [(7, now_ms + TOMBSTONE_KEPT_MS)]


def test_marks_are_bytes_under_a_name(index: Index) -> None:
    index.commit(PutMark("needs check", b"\x00\xff"), PutMark("ä", b""), PutMark("n" * 255, b"long"))
    assert index.mark("needs check") == b"\x00\xff"
    assert index.mark("ä") == b""
    assert index.mark("n" * 255) == b"long"
    assert index.mark("needs") is None


def test_every_commit_moves_the_position(index: Index) -> None:
    positions = [index.position]
    positions.append(index.commit(put((7, 0, 1))))
    positions.append(index.commit(DeleteLedger(LedgerId(7)), sync=False))
    index.replace_locations([move(7, 0, 1, 2)])  # Nothing to move, so nothing is committed.
    positions.append(index.commit(PutMark("a", b"")))
    assert all(before < after for before, after in pairwise(positions))
    assert index.sync() == index.position == positions[-1]


def test_closing_keeps_even_what_was_not_synced(backend: Backend) -> None:
    index = backend.open()
    index.commit(PutLedger(LedgerId(7), RECORD), put((7, 0, 1)), sync=False)
    position = index.position
    seen = observed(index)
    index.close()
    with backend.open(create=False, position_min=position) as again:
        assert observed(again) == seen
        assert again.position == position


def test_an_index_that_ends_before_what_others_rely_on_is_damaged(backend: Backend) -> None:
    with backend.open() as index:
        position = index.commit(put((7, 0, 1)))
    with pytest.raises(DamagedIndex, match=str(position + 1)) as caught:
        backend.open(create=True, position_min=position + 1)
    assert caught.value.facts["position"] == position
    backend.open(create=False, position_min=position).close()


def test_an_index_that_should_exist_and_does_not_is_damaged(backend: Backend) -> None:
    with pytest.raises(DamagedIndex):
        backend.open(create=False)
    with pytest.raises(DamagedIndex):
        backend.open(create=True, position_min=5)
    backend.open(create=True).close()
    backend.open(create=False).close()


def test_only_one_can_have_an_index_open(backend: Backend) -> None:
    index = backend.open()
    with pytest.raises(Refused, match="open already"):
        backend.open()
    index.commit(put((7, 0, 1)))
    index.close()
    with backend.open() as again:
        assert again.location(LedgerId(7), EntryId(0)) == 1


def test_a_closed_index_answers_nothing(backend: Backend) -> None:
    index = backend.open()
    index.close()
    index.close()
    calls: list[Callable[[], object]] = [
        lambda: index.location(LedgerId(7), EntryId(0)),
        lambda: range_of(index, 7),
        lambda: index.last_entry(LedgerId(7)),
        lambda: list(index.entry_ids(LedgerId(7))),
        lambda: index.ledger(LedgerId(7)),
        lambda: index.ledgers(),
        lambda: index.tombstone(LedgerId(7)),
        lambda: index.tombstones(),
        lambda: index.mark("a"),
        lambda: index.position,
        lambda: index.commit(put((7, 0, 1))),
        lambda: index.commit(put((7, 0, 1)), sync=False),
        lambda: index.sync(),
        lambda: index.replace_locations([move(7, 0, 1, 2)]),
        lambda: index.set_fenced(LedgerId(7)),
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()
