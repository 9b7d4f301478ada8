"""The read cache: what it returns is what was read last, what it keeps is bounded, and readers in order get more."""

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quire.bookie.read_cache import ReadCache
from quire.types import EntryId, LedgerId

LEDGERS = st.integers(0, 2).map(LedgerId)
BYTES_MAX = 200
LEDGER = LedgerId(1)


class ReadCacheModel(RuleBasedStateMachine):
    """Entries are written anew and deleted, and the cache is told. It may forget; it may not return older bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = ReadCache(bytes_max=BYTES_MAX)
        self.versions: dict[tuple[LedgerId, EntryId], int] = {}

    def body(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes:
        return f"{ledger_id}:{entry_id}:{self.versions.get((ledger_id, entry_id), 0)}".encode().ljust(30, b".")

    @rule(ledger_id=LEDGERS, first=st.integers(0, 9), count=st.integers(1, 9))
    def read(self, ledger_id: LedgerId, first: int, count: int) -> None:
        ids = [EntryId(entry_id) for entry_id in range(first, first + count)]
        self.cache.put(ledger_id, [(entry_id, self.body(ledger_id, entry_id)) for entry_id in ids])

    @rule(ledger_id=LEDGERS, entry_id=st.integers(0, 19).map(EntryId))
    def write_anew(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        self.versions[ledger_id, entry_id] = self.versions.get((ledger_id, entry_id), 0) + 1
        self.cache.forget_entry(ledger_id, entry_id)

    @rule(ledger_id=LEDGERS)
    def delete(self, ledger_id: LedgerId) -> None:
        for entry_id in range(20):
            self.versions[ledger_id, EntryId(entry_id)] = self.versions.get((ledger_id, EntryId(entry_id)), 0) + 1
        self.cache.forget(ledger_id)
        assert [self.cache.get(ledger_id, EntryId(entry_id)) for entry_id in range(20)] == [None] * 20

    @invariant()
    def nothing_old_is_returned(self) -> None:
        for ledger_id in map(LedgerId, range(3)):
            for entry_id in map(EntryId, range(20)):
                assert self.cache.get(ledger_id, entry_id) in (None, self.body(ledger_id, entry_id))

    @invariant()
    def it_is_bounded(self) -> None:
        kept = sum(len(body) for bodies in self.cache._bodies.values() for body in bodies.values())
        assert kept <= self.cache.bytes <= BYTES_MAX


TestAgainstModel = ReadCacheModel.TestCase
TestAgainstModel.settings = settings(deadline=None, max_examples=30, stateful_step_count=20)


def test_what_was_fetched_is_found_and_what_is_there_already_stays() -> None:
    cache = ReadCache(bytes_max=100)
    cache.put(LEDGER, [(EntryId(0), b"first"), (EntryId(1), b"second")])
    cache.put(LEDGER, [(EntryId(1), b"again"), (EntryId(2), b"third")])
    assert [cache.get(LEDGER, EntryId(entry_id)) for entry_id in range(4)] == [b"first", b"second", b"third", None]
    assert cache.bytes == len(b"firstsecondthird")
    assert cache.get(LedgerId(2), EntryId(0)) is None


def test_the_oldest_blocks_leave_first() -> None:
    cache = ReadCache(bytes_max=100)
    for entry_id in range(10):
        cache.put(LEDGER, [(EntryId(entry_id), bytes(20))])
    assert [entry_id for entry_id in range(10) if cache.get(LEDGER, EntryId(entry_id))] == [5, 6, 7, 8, 9]


def test_a_cache_without_room_keeps_nothing() -> None:
    cache = ReadCache(bytes_max=0)
    cache.put(LEDGER, [(EntryId(0), b"body")])
    assert (cache.get(LEDGER, EntryId(0)), cache.bytes) == (None, 0)
    assert cache.ahead(LEDGER, EntryId(1)).bytes_max == 0


def test_whoever_reads_on_gets_twice_as_much_up_to_a_bound() -> None:
    cache, first, fetched = ReadCache(bytes_max=32 << 20), 0, []
    for _ in range(12):
        ahead = cache.ahead(LEDGER, EntryId(first))
        fetched.append((ahead.bytes_max, ahead.entries_max))
        count = min(ahead.entries_max, ahead.bytes_max // 1060)
        cache.put(LEDGER, [(EntryId(each), bytes(1024)) for each in range(first, first + count)])
        first += count
    sizes = [size >> 10 for size, _ in fetched]
    assert all(later >= min(1024, 2 * size - 2) for size, later in itertools.pairwise(sizes))
    assert (sizes[0], max(sizes), sizes[-1]) == (16, 1024, 1024)
    assert max(entries for _, entries in fetched) <= 4096
    elsewhere = cache.ahead(LEDGER, EntryId(first + 32))
    assert (elsewhere.bytes_max, elsewhere.entries_max) == fetched[0]
    cache.forget(LEDGER)
    assert cache.ahead(LEDGER, EntryId(first)) == elsewhere


def test_large_entries_are_read_ahead_too() -> None:
    """Two of them, with what the log has around each, fit into twice what one was; and so on."""
    cache, first, counts = ReadCache(bytes_max=32 << 20), 0, []
    for _ in range(7):
        count = max(1, cache.ahead(LEDGER, EntryId(first)).bytes_max // (32_804 + 32))
        cache.put(LEDGER, [(EntryId(each), bytes(32_804)) for each in range(first, first + count)])
        counts.append(count)
        first += count
    assert counts == [1, 2, 4, 8, 16, 31, 31]


def test_whoever_reads_some_entries_in_each_stripe_reads_on() -> None:
    """Of a striped ledger a bookie has two entries in three, say, and may be asked for one of these."""
    cache, entry_id, sizes = ReadCache(bytes_max=32 << 20), 0, []
    for _ in range(8):
        ahead = cache.ahead(LEDGER, EntryId(entry_id))
        sizes.append(ahead.bytes_max >> 10)
        mine = [each for each in range(entry_id, entry_id + 10_000) if each % 3 != 2][: ahead.bytes_max // 1060]
        cache.put(LEDGER, [(EntryId(each), bytes(1024)) for each in mine])
        entry_id = next(each for each in range(mine[-1] + 1, mine[-1] + 4) if each % 3 == 0)
    assert (sizes[0], sizes[-1]) == (16, 1024)
    assert cache.ahead(LEDGER, EntryId(entry_id - 10)).bytes_max == 16 << 10, "nobody reads on backwards"


def test_where_readers_are_is_remembered_for_so_many_ledgers_only() -> None:
    cache = ReadCache(bytes_max=32 << 20)
    for ledger_id in range(10_100):
        cache.put(LedgerId(ledger_id), [(EntryId(0), bytes(16_384))])
        cache.forget_entry(LedgerId(ledger_id), EntryId(0))
    assert len(cache._next) == 10_000
    assert cache.ahead(LedgerId(0), EntryId(1)).bytes_max == 16 << 10
    assert cache.ahead(LedgerId(10_099), EntryId(1)).bytes_max >= 32 << 10
