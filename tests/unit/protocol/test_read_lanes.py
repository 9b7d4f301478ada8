"""Which lane a reader is on, how far a lane reads ahead, and when two lanes are one."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.protocol.read_lanes import AHEAD_ENTRIES_FIRST, AHEAD_ENTRIES_MAX, Ahead, lane_for, lane_met
from quire.protocol.read_windows import Chunk, Window
from quire.types import DLSN, EntryId, Lssn, SlotId


def place(entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(1), EntryId(entry_id), SlotId(slot_id))


@dataclass(eq=False)
class Lane:
    window: Window
    is_tail: bool = False
    is_joinable: bool = True


def lane(begin: int, end: int, *, is_tail: bool = False, is_joinable: bool = True) -> Lane:
    window = Window(place(begin))
    if end > begin:
        window.append(
            Chunk(before=place(begin), after=place(end), lssn=Lssn(1), frame=b"x", entries=end - begin), now_s=0.0
        )
    return Lane(window, is_tail, is_joinable)


lanes = st.builds(
    lambda begin, more, is_tail, is_joinable: lane(begin, begin + more, is_tail=is_tail, is_joinable=is_joinable),
    st.integers(0, 20),
    st.integers(0, 10),
    st.booleans(),
    st.booleans(),
)


@settings(deadline=None)
@given(st.lists(lanes, max_size=5), st.integers(0, 40))
def test_a_reader_is_where_nothing_is_missing_for_it(some: list[Lane], at: int) -> None:
    found = lane_for(place(at), some)
    fitting = [each for each in some if each.is_joinable and each.window.covers(place(at))]
    if found is None:
        assert not fitting
    else:
        assert found.is_joinable
        assert found.window.begin <= place(at)
        assert found.is_tail or found in fitting


def test_who_is_beyond_the_tail_waits_there_and_nowhere_else() -> None:
    tail, scan = lane(10, 20, is_tail=True), lane(0, 8)
    assert lane_for(place(25), [scan, tail]) is tail
    assert lane_for(place(25), [scan]) is None
    assert lane_for(place(9), [scan, tail]) is None
    assert lane_for(place(8), [scan, tail]) is scan


def test_the_lane_that_has_read_furthest_is_preferred() -> None:
    short, long = lane(0, 5), lane(2, 9)
    assert lane_for(place(3), [short, long]) is long


def test_a_lane_ends_where_another_one_has_been() -> None:
    first, second = lane(0, 5), lane(5, 9)
    assert lane_met(first, [first, second]) is second
    assert lane_met(second, [first, second]) is None
    second.is_joinable = False
    assert lane_met(first, [first, second]) is None


def test_of_two_lanes_that_meet_only_one_reads_on() -> None:
    """Both are at the same place: whoever asks first ends, and is no lane for the other any more."""
    first, second = lane(0, 5), lane(3, 5)
    assert lane_met(first, [first, second]) is second
    first.is_joinable = False
    assert lane_met(second, [first, second]) is None


def test_a_lane_reads_further_ahead_the_more_often_a_reader_waits_for_it() -> None:
    ahead, at = Ahead(bytes_max=1000), place(0)
    assert ahead.is_far(lane(0, AHEAD_ENTRIES_FIRST).window, at)
    assert not ahead.is_far(lane(0, AHEAD_ENTRIES_FIRST - 1).window, at)
    for _ in range(10):
        ahead.on_waited()
    assert not ahead.is_far(lane(0, AHEAD_ENTRIES_MAX - 1).window, at)
    assert ahead.is_far(lane(0, AHEAD_ENTRIES_MAX).window, at)


def test_a_lane_is_not_far_ahead_in_bytes_however_few_the_entries() -> None:
    window = Window(place(0))
    window.append(Chunk(before=place(0), after=place(1), lssn=Lssn(1), frame=b"x" * 1000, entries=1), now_s=0.0)
    assert Ahead(bytes_max=1000).is_far(window, place(0))
    assert not Ahead(bytes_max=1001).is_far(window, place(0))
