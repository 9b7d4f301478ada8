"""How much room ledgers take and will take: against loads that are known exactly."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidArgument
from quire.protocol.capacity import (
    DAY_MS,
    BookieSpace,
    Capacity,
    Forecast,
    Holding,
    Projection,
    WhatIf,
    by_namespace,
    forecast,
)
from quire.protocol.quorum import entries_at, write_set
from quire.protocol.shares import LedgerEnd, bytes_by_bookie, entries_at_position, shares
from quire.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState, Quorum

GIB = 1 << 30
NOW_MS = 1_000 * DAY_MS
BOOKIES = tuple(BookieId(f"bookie-{number}") for number in range(1, 4))
QUORUM = Quorum(3, 3, 2)


def space(bookie: BookieId, *, free: int = 100 * GIB, total: int = 200 * GIB) -> BookieSpace:
    return BookieSpace(bookie, True, free, total)


def daily(
    days: int, bytes_a_day: int, *, owner: str = "ns/orders", until: float = 0.0, quorum: Quorum = QUORUM
) -> list[Holding]:
    """A ledger for each of the days before `until` days ago, which each bookie has a whole copy of."""
    found = []
    for age in range(days, 0, -1):
        begun = NOW_MS - round((age + until) * DAY_MS)
        copies = dict.fromkeys(BOOKIES[: quorum.write], bytes_a_day)
        found.append(Holding(LedgerId(1000 - age), owner, bytes_a_day, quorum, copies, begun, begun + DAY_MS))
    return found


def cluster(holdings: list[Holding], *spaces: BookieSpace, purged: frozenset[str] = frozenset()) -> Capacity:
    return Capacity(NOW_MS, spaces or tuple(map(space, BOOKIES)), tuple(holdings), purged)


def full_in(found: Forecast) -> float:
    assert found.days_to_first_full is not None
    return found.days_to_first_full


# --- What a ledger takes


@given(st.integers(1, 7), st.data())
def test_the_share_of_a_position_is_counted_as_writers_spread_entries(ensemble: int, data: st.DataObject) -> None:
    write = data.draw(st.integers(1, ensemble))
    quorum = Quorum(ensemble, write, 1)
    first = data.draw(st.integers(0, 50))
    end = first + data.draw(st.integers(0, 40))
    for position in range(ensemble):
        expected = len(list(entries_at(position, EntryId(first), EntryId(end), quorum)))
        assert entries_at_position(position, first, end, quorum) == expected


def test_each_bookie_holds_what_the_fragments_that_name_it_give_it() -> None:
    """Entries 0 to 9 on A, B, C; 10 to 19 on A, B, D; two copies of each, 100 bytes with all that is around it."""
    a, b, c, d = (BookieId(name) for name in "abcd")
    metadata = LedgerMetadata(
        Quorum(3, 2, 2),
        (Fragment(EntryId(0), (a, b, c)), Fragment(EntryId(10), (a, b, d))),
        LedgerState.CLOSED,
        EntryId(19),
        20 * 60,
    )
    end = LedgerEnd(EntryId(19), 20 * 60)
    expected = dict.fromkeys((a, b, c, d), 0)
    for entry in range(20):
        members = metadata.ensemble_at(EntryId(entry))
        for position in write_set(EntryId(entry), metadata.quorum):
            expected[members[position]] += 100
    assert bytes_by_bookie(metadata, end) == expected
    assert [share.entries for share in shares(metadata, end)] == [10, 10]


def test_a_fragment_behind_the_end_and_an_empty_ledger_hold_nothing() -> None:
    fragments = (Fragment(EntryId(0), BOOKIES), Fragment(EntryId(5), BOOKIES))
    metadata = LedgerMetadata(QUORUM, fragments, LedgerState.CLOSED, EntryId(4), 500)
    assert [share.entries for share in shares(metadata, LedgerEnd(EntryId(4), 500))] == [5, 0]
    empty = LedgerMetadata(QUORUM, fragments[:1], LedgerState.CLOSED)
    assert set(bytes_by_bookie(empty, LedgerEnd(EntryId(-1), 0)).values()) == {0}


# --- Growth, and when a disk is full


def test_a_steady_load_is_forecast_exactly() -> None:
    """1 GiB a day on each bookie, 100 GiB free, of which 1 GiB is the limit: full in 99 days."""
    found = forecast(cluster(daily(5, GIB)))
    assert [each.growth_bytes_per_day for each in found.bookies] == [pytest.approx(GIB)] * 3
    assert full_in(found) == pytest.approx(99)
    assert [each.stored_bytes for each in found.bookies] == [5 * GIB] * 3
    (owner,) = found.owners
    assert (owner.payload_bytes, owner.stored_bytes, owner.ledgers) == (5 * GIB, 15 * GIB, 5)


@given(
    st.integers(2, 14),
    st.integers(1 << 20, 1 << 34),
    st.floats(0.0, 0.9),
    st.lists(st.floats(-0.08, 0.08), min_size=14, max_size=14),
)
def test_an_uneven_load_is_forecast_within_a_tenth(days: int, size: int, late: float, noise: list[float]) -> None:
    """Method: segments of one day, each up to 8 % larger or smaller, and one in progress that is `late` of a day old.
    What comes is the mean of that load; the forecast of when the disk is full may be off by 10 %."""
    held = daily(days, size, until=late)
    sizes = [round(size * (1 + noise[number])) for number in range(days)]
    held = [
        Holding(each.ledger_id, each.owner, own, QUORUM, dict.fromkeys(BOOKIES, own), each.begun_ms, each.ended_ms)
        for each, own in zip(held, sizes, strict=True)
    ]
    own = round(size * late)
    begun = NOW_MS - round(late * DAY_MS)
    held.append(Holding(LedgerId(9), "ns/orders", own, QUORUM, dict.fromkeys(BOOKIES, own), begun, None))
    spaces = tuple(space(bookie, free=100 * size + GIB, total=200 * size + 20 * GIB) for bookie in BOOKIES)
    found = forecast(cluster(held, *spaces))
    assert full_in(found) == pytest.approx(100, rel=0.1)


def test_only_what_was_written_lately_counts() -> None:
    """Ten days at 9 GiB, then seven at 1: the last seven days say what comes."""
    held = daily(10, 9 * GIB, until=7.0) + daily(7, GIB)
    assert full_in(forecast(cluster(held))) == pytest.approx(99)
    assert full_in(forecast(cluster(held), window_days=17)) == pytest.approx(99 * 17 / 97)


def test_a_ledger_across_the_beginning_of_the_window_counts_in_part() -> None:
    begun = NOW_MS - 10 * DAY_MS
    held = [Holding(LedgerId(1), "x", 10 * GIB, QUORUM, dict.fromkeys(BOOKIES, 10 * GIB), begun, None)]
    assert forecast(cluster(held), window_days=2.0).bookies[0].growth_bytes_per_day == pytest.approx(GIB)


def test_a_stream_that_is_purged_never_fills_a_disk_that_holds_it() -> None:
    """It keeps seven days at 1 GiB, and has them: what comes is what goes."""
    held = daily(7, GIB)
    found = forecast(cluster(held, purged=frozenset({"ns/orders"})))
    assert found.days_to_first_full is None
    assert found.owners[0].kept_days == pytest.approx(7)


def test_a_disk_too_small_for_what_is_kept_fills_up_before_the_first_day_goes() -> None:
    """Of a stream that is kept for seven days, and has them, the first segment goes after a day: until then the need
    rises by one day's load, and stays there."""
    held, purged = daily(7, GIB), frozenset({"ns/orders"})
    small = tuple(space(bookie, free=GIB // 2 + GIB, total=40 * GIB) for bookie in BOOKIES)
    assert full_in(forecast(cluster(held, *small, purged=purged))) == pytest.approx(0.5)
    enough = tuple(space(bookie, free=2 * GIB + GIB, total=40 * GIB) for bookie in BOOKIES)
    assert forecast(cluster(held, *enough, purged=purged)).days_to_first_full is None


def test_what_is_known_of_less_than_a_day_is_told_as_a_guess() -> None:
    begun = NOW_MS - DAY_MS // 2
    held = [Holding(LedgerId(1), "x", GIB, QUORUM, dict.fromkeys(BOOKIES, GIB), begun, None)]
    found = forecast(cluster(held))
    assert found.is_guess
    assert found.notes == ("most of the growth began within a day: how fast it goes on is a guess",)
    assert forecast(cluster(daily(2, GIB))).notes == ()
    assert not forecast(cluster(daily(2, GIB))).is_guess


def test_a_young_stream_that_outweighs_old_ones_makes_a_guess_of_the_whole() -> None:
    """An hour of loading is no reason to say that the disk is full tomorrow."""
    begun = NOW_MS - DAY_MS // 24
    load = Holding(LedgerId(1), "load", GIB, QUORUM, dict.fromkeys(BOOKIES, GIB), begun, None)
    assert forecast(cluster([*daily(7, GIB), load])).is_guess
    assert not forecast(cluster([*daily(7, 30 * GIB), load])).is_guess


def test_nothing_written_is_nothing_to_fear() -> None:
    found = forecast(cluster([]))
    assert (found.days_to_first_full, found.owners) == (None, ())
    assert [each.growth_bytes_per_day for each in found.bookies] == [0.0] * 3


def test_a_readonly_bookie_gets_nothing_new_and_the_others_get_its_part() -> None:
    spaces = (space(BOOKIES[0])._replace(is_writable=False), space(BOOKIES[1]), space(BOOKIES[2]))
    found = forecast(cluster(daily(4, GIB), *spaces))
    assert [each.days_to_full for each in found.bookies] == [None, pytest.approx(66), pytest.approx(66)]
    assert found.notes == ("new ledgers need 3 bookies, and 2 would be writable",)


def test_garbage_and_truncated_segments_are_reclaimable() -> None:
    first, *rest = daily(3, GIB)
    gone = Holding(first.ledger_id, first.owner, GIB, QUORUM, first.by_bookie, first.begun_ms, first.ended_ms, True)
    spaces = tuple(space(bookie)._replace(garbage_bytes=5) for bookie in BOOKIES)
    found = forecast(cluster([gone, *rest], *spaces))
    assert [each.reclaimable_bytes for each in found.bookies] == [GIB + 5] * 3
    assert found.owners[0].reclaimable_bytes == 3 * GIB


# --- What if


def test_fewer_copies_of_what_comes_last_longer() -> None:
    found = forecast(cluster(daily(5, GIB)), WhatIf(quorum=Quorum(3, 2, 2)))
    assert full_in(found) == pytest.approx(99 * 3 / 2)
    assert [each.stored_bytes for each in found.bookies] == [5 * GIB] * 3, "what is there stays"


def test_with_retention_what_is_older_goes_at_once_and_the_rest_in_turn() -> None:
    """Ten days at 1 GiB with 3 left: without retention full in 3 days; keeping five, never."""
    spaces = tuple(space(bookie, free=4 * GIB, total=40 * GIB) for bookie in BOOKIES)
    held = daily(10, GIB)
    assert full_in(forecast(cluster(held, *spaces))) == pytest.approx(3)
    found = forecast(cluster(held, *spaces), WhatIf(retention_days=5))
    assert found.days_to_first_full is None
    projection = Projection(cluster(held, *spaces), WhatIf(retention_days=5), window_days=7)
    assert projection.used_bytes(BOOKIES[0], 0) == pytest.approx(-5 * GIB), "five days are older"
    assert projection.used_bytes(BOOKIES[0], 100) == pytest.approx(-5 * GIB)


def test_a_retention_longer_than_the_room_lasts_does_not_help() -> None:
    assert full_in(forecast(cluster(daily(5, GIB)), WhatIf(retention_days=300))) == pytest.approx(99)


def test_added_bookies_share_what_comes() -> None:
    found = forecast(cluster(daily(5, GIB)), WhatIf(added_bookies=2))
    assert [each.bookie for each in found.bookies[3:]] == ["new-1", "new-2"]
    assert full_in(found) == pytest.approx(99 * 5 / 3)
    assert found.bookies[4].total_bytes == 200 * GIB


def test_a_lost_bookie_leaves_its_copies_and_its_part_to_the_others() -> None:
    """30 GiB on each of four, 100 free: the three left get 10 more each, and a third more a day."""
    four = (*BOOKIES, BookieId("bookie-4"))
    held = [
        Holding(each.ledger_id, "x", GIB, Quorum(4, 3, 2), dict.fromkeys(four, GIB), each.begun_ms, each.ended_ms)
        for each in daily(30, GIB)
    ]
    found = forecast(cluster(held, *map(space, four)), WhatIf(lost=four[0]))
    assert [each.bookie for each in found.bookies] == list(four[1:])
    assert full_in(found) == pytest.approx((99 - 10) / (4 / 3))
    assert found.notes == ("new ledgers need 4 bookies, and 3 would be writable",)


def test_what_does_not_fit_on_the_others_is_told() -> None:
    spaces = tuple(space(bookie, free=3 * GIB, total=100 * GIB) for bookie in BOOKIES)
    found = forecast(cluster(daily(20, GIB), *spaces), WhatIf(lost=BOOKIES[0]))
    assert "the others have not enough room for the copies that bookie-1 has" in found.notes
    with pytest.raises(InvalidArgument, match="no bookie 'nobody'"):
        forecast(cluster([]), WhatIf(lost=BookieId("nobody")))


def test_the_need_of_a_bookie_over_time_is_that_which_fills_it() -> None:
    """The drawing and the day agree."""
    capacity = cluster(daily(9, GIB), purged=frozenset({"ns/orders"}))
    for what_if in (WhatIf(), WhatIf(retention_days=30), WhatIf(retention_days=200), WhatIf(added_bookies=1)):
        projection = Projection(capacity, what_if, window_days=7)
        for each in projection.bookies:
            day = projection.days_to_full(each)
            if day is None:
                assert max(projection.used_bytes(each.bookie, at / 2) for at in range(1000)) < each.room_bytes
            else:
                assert projection.used_bytes(each.bookie, day) == pytest.approx(each.room_bytes)


def test_streams_are_summed_up_by_namespace() -> None:
    held = daily(2, GIB, owner="a/x") + daily(2, GIB, owner="a/y") + daily(2, GIB, owner="(no stream)")
    found = by_namespace(forecast(cluster(held)).owners, {"a/x": "a", "a/y": "a"})
    assert [(each.owner, each.stored_bytes, each.kept_days) for each in found] == [
        ("(no stream)", 6 * GIB, None),
        ("a", 12 * GIB, None),
    ]
    assert math.isclose(found[1].growth_bytes_per_day, 6 * GIB)
