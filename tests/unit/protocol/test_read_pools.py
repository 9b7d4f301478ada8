"""What a read proxy throws away first, and what it never does."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.protocol.read_pools import Pool
from quire.protocol.read_windows import OVERHEAD_BYTES, Chunk, Window
from quire.types import DLSN, EntryId, Lssn, SlotId


def place(entry_id: int) -> DLSN:
    return DLSN(Lssn(1), EntryId(entry_id), SlotId(0))


@dataclass(eq=False)
class Lane:
    readers: list[DLSN] = field(default_factory=list)
    used_s: float = 0.0
    window: Window = field(default_factory=lambda: Window(place(0)))

    @property
    def reader_count(self) -> int:
        return len(self.readers)

    def slowest(self) -> DLSN | None:
        return min(self.readers, default=None)

    def add(self, frame_bytes: int, *, now_s: float = 0.0) -> None:
        before = self.window.end
        after = place(before.entry_id + 1)
        self.window.append(
            Chunk(before=before, after=after, lssn=Lssn(1), frame=b"x" * frame_bytes, entries=1), now_s=now_s
        )


def pool(budget_bytes: int, *, is_tail: bool = True, age_s_max: float | None = 60.0) -> Pool:
    return Pool(budget_bytes, is_tail=is_tail, passed_s=1.0, age_s_max=age_s_max)


@settings(deadline=None)
@given(
    st.booleans(),
    st.integers(1, 20_000),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3000)), max_size=80),
)
def test_a_pool_is_within_its_budget_but_for_the_newest(
    is_tail: bool, budget: int, added: list[tuple[int, int]]
) -> None:
    kept, lanes = pool(budget, is_tail=is_tail), [Lane() for _ in range(5)]
    for lane in lanes:
        kept.enter(lane)
    for number, size_bytes in added:
        lane = lanes[number]
        lane.add(size_bytes)
        newest = lane.window.end
        kept.shrink()
        assert kept.bytes == sum(each.window.bytes for each in lanes)
        assert kept.bytes <= budget or all(len(each.window) <= 1 for each in lanes)
        assert len(lane.window) >= 1
        assert lane.window.end == newest, "what just came is there to be taken"
    for lane in lanes:
        kept.leave(lane)
        kept.leave(lane)
    assert kept.bytes == 0


def test_at_the_tail_the_most_bytes_for_each_reader_go_first() -> None:
    kept, popular, lonely = pool(10 * (OVERHEAD_BYTES + 100)), Lane([place(0)] * 50), Lane([place(0)])
    for lane in (popular, lonely):
        kept.enter(lane)
    for _ in range(8):
        popular.add(100)
    for _ in range(4):
        lonely.add(100)
    assert kept.shrink() == 3
    assert (len(popular.window), len(lonely.window)) == (8, 1)


def test_of_scans_the_one_goes_first_that_nobody_has_used_for_longest() -> None:
    kept, old, young = pool(4 * OVERHEAD_BYTES, is_tail=False), Lane(used_s=1.0), Lane(used_s=2.0)
    for lane in (old, young):
        kept.enter(lane)
        for _ in range(3):
            lane.add(0)
    kept.shrink()
    assert (len(old.window), len(young.window)) == (1, 2)


def test_what_all_readers_have_passed_goes_after_a_moment() -> None:
    kept, lane = pool(1 << 20), Lane([place(2), place(3)])
    kept.enter(lane)
    for _ in range(4):
        lane.add(10, now_s=0.0)
    assert kept.expire(1.0) == 0, "for those who come a moment later"
    assert kept.expire(1.5) == 2
    assert lane.window.begin == place(2)
    lane.readers.clear()
    assert kept.expire(1.5) == 2, "nobody is there"


def test_what_is_old_goes_even_if_a_reader_has_not_come_to_it_but_only_at_the_tail() -> None:
    tail, scan = Lane([place(0)]), Lane([place(0)])
    tails, scans = pool(1 << 20), pool(1 << 20, is_tail=False, age_s_max=None)
    tails.enter(tail)
    scans.enter(scan)
    tail.add(10, now_s=0.0)
    scan.add(10, now_s=0.0)
    assert tails.expire(61.0) == 1
    assert scans.expire(61.0) == 0
