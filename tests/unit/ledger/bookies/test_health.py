"""Health as a pure core: whom to read from first, who is in quarantine, and when a bookie may be tried again."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import (
    BookieBusy,
    BookieFailed,
    BookieOutcomeUnknown,
    BookieReadOnly,
    BookieUnavailable,
    DamagedEntry,
    DuplicateEntryId,
    EntriesUnknown,
    InvalidArgument,
    LedgerExists,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    ProtocolViolation,
    QuireError,
    WrongPassword,
)
from quire.ledger.bookies.health import BookieHealth, HealthSettings, Retries
from quire.rpc.errors import unanswered_error
from quire.testing import SimRng
from quire.types import BookieId

A, B, C, D, E, F = (BookieId(name) for name in "abcdef")
FAILED = BookieFailed("a disk is sick")
UNREACHABLE = BookieUnavailable("nobody is there")

COUNTED = [
    BookieBusy,
    BookieFailed,
    DamagedEntry,
    EntriesUnknown,
    ProtocolViolation,
    WrongPassword,
]
HEALTHY = [BookieReadOnly, DuplicateEntryId, InvalidArgument, LedgerExists, LedgerFenced, NoSuchEntry, NoSuchLedger]


def new_health(settings: HealthSettings | None = None) -> BookieHealth:
    health = BookieHealth(settings or HealthSettings())
    health.on_listing(frozenset({A, B, C, D}), frozenset({E}))
    return health


def fail(health: BookieHealth, bookie: BookieId, now: float, *, times: int = 1, error: QuireError = FAILED) -> None:
    for _ in range(times):
        health.on_error(bookie, error, now)


# --- Quarantine


@pytest.mark.parametrize("kind", COUNTED)
def test_a_hundred_errors_within_a_minute_are_a_quarantine_of_half_an_hour(kind: type[QuireError]) -> None:
    health = new_health()
    fail(health, A, 0.0, times=50, error=kind("said so"))
    fail(health, A, 59.9, times=49, error=kind("said so"))
    assert health.quarantined(59.9) == frozenset()
    fail(health, A, 59.9, error=kind("said so"))
    assert health.quarantined(59.9) == {A}
    assert health.quarantined(59.9 + 1799.9) == {A}
    assert health.quarantined(59.9 + 1800.0) == frozenset()


@pytest.mark.parametrize("kind", HEALTHY)
def test_what_a_healthy_bookie_answers_counts_for_nothing(kind: type[QuireError]) -> None:
    health = new_health()
    fail(health, A, 0.0, times=1000, error=kind("said so"))
    assert health.quarantined(0.0) == frozenset()
    assert health.read_order([A, B], 0.0) == [A, B]
    assert health.failures() == {}


@pytest.mark.parametrize("kind", [BookieUnavailable, BookieOutcomeUnknown])
def test_a_bookie_that_cannot_be_reached_is_read_last_and_not_in_quarantine_unless_asked_for(
    kind: type[QuireError],
) -> None:
    """No connection, or one that broke under a request, reads or adds."""
    health = new_health()
    fail(health, A, 0.0, times=1000, error=kind("the connection broke"))
    assert health.quarantined(0.0) == frozenset()
    assert health.read_order([A, B], 0.0) == [B, A]
    assert health.failures() == {A: 1000}
    strict = new_health(HealthSettings(unreachable_counts=True))
    fail(strict, A, 0.0, times=100, error=kind("the connection broke"))
    assert strict.quarantined(0.0) == {A}


@pytest.mark.parametrize("may_be_done", [True, False])
def test_a_bookie_that_lets_requests_time_out_comes_into_quarantine(may_be_done: bool) -> None:
    health = new_health()
    silence = unanswered_error("no answer came in time", bookie="a", may_be_done=may_be_done, timed_out=True)
    fail(health, A, 0.0, times=100, error=silence)
    assert health.quarantined(0.0) == {A}


def test_errors_of_another_window_are_forgotten() -> None:
    health = new_health()
    fail(health, A, 0.0, times=99)
    fail(health, A, 60.0, times=99)
    assert health.quarantined(60.0) == frozenset()
    fail(health, A, 119.9)
    assert health.quarantined(119.9) == {A}


def test_successes_in_between_do_not_hide_a_sick_disk() -> None:
    health = new_health()
    for _ in range(100):
        fail(health, A, 1.0)
        health.on_success(A)
    assert health.quarantined(1.0) == {A}


def test_errors_during_a_quarantine_must_be_as_many_again_to_prolong_it() -> None:
    health = new_health()
    fail(health, A, 0.0, times=199)
    assert health.quarantined(1800.0) == frozenset()
    fail(health, B, 0.0, times=100)
    fail(health, B, 1000.0, times=100)
    assert health.quarantined(2799.0) == {B}


def test_no_limit_means_no_quarantine() -> None:
    health = new_health(HealthSettings(errors_max=0))
    fail(health, A, 0.0, times=1000)
    assert health.quarantined(0.0) == frozenset()


# --- The order of reads


def test_before_anything_is_known_the_order_is_as_given() -> None:
    assert BookieHealth(HealthSettings()).read_order([C, A, F], 0.0) == [C, A, F]


def test_the_order_of_reads() -> None:
    """Healthy as given, failed with the oldest failure first, read-only, slow, not listed."""
    health = new_health()
    health.on_slow(A, 1.0)
    fail(health, B, 3.0)
    fail(health, C, 2.0)
    assert health.read_order([F, E, A, B, C, D], 4.0) == [D, C, B, E, A, F]


def test_a_failure_is_forgiven_after_a_success_and_after_a_minute() -> None:
    health = new_health()
    fail(health, A, 0.0)
    fail(health, B, 0.0)
    health.on_success(A)
    assert health.read_order([B, A, C], 1.0) == [A, C, B]
    assert health.read_order([B, A, C], 59.9) == [A, C, B]
    assert health.read_order([B, A, C], 60.0) == [B, A, C]


def test_a_late_answer_does_not_make_a_slow_bookie_fast() -> None:
    health = new_health()
    health.on_slow(A, 0.0)
    health.on_success(A)
    assert health.read_order([A, B], 59.9) == [B, A]
    assert health.read_order([A, B], 60.0) == [A, B]
    assert health.failures() == {}


def test_of_bookies_that_take_no_entries_those_that_failed_come_last() -> None:
    health = BookieHealth(HealthSettings())
    health.on_listing(frozenset(), frozenset({A, B, C}))
    fail(health, A, 2.0)
    fail(health, B, 1.0)
    assert health.read_order([A, B, C], 3.0) == [C, B, A]


def test_the_newest_listing_counts() -> None:
    health = new_health()
    health.on_listing(frozenset({B}), frozenset({A}))
    assert health.read_order([E, A, B], 0.0) == [B, A, E]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["error", "unreachable", "success", "slow"]),
        st.sampled_from([A, B, C, D, E, F]),
        st.floats(0.0, 40.0),
    ),
    max_size=40,
)


@given(EVENTS, st.permutations([A, B, C, D, E, F]))
def test_against_the_whole_history(events: list[tuple[str, BookieId, float]], candidates: list[BookieId]) -> None:
    """OrderIsComplete, and the conclusions are those that a reading of all that happened comes to."""
    settings = HealthSettings(errors_max=3, window_s=50.0, quarantine_s=100.0, recent_s=30.0)
    health = new_health(settings)
    failed: dict[BookieId, float] = {}
    slow: dict[BookieId, float] = {}
    windows: dict[BookieId, list[float]] = {}
    free_at: dict[BookieId, float] = {}
    now = 0.0
    for what, bookie, pause_s in events:
        now += pause_s
        if what == "success":
            health.on_success(bookie)
            failed.pop(bookie, None)
        elif what == "slow":
            health.on_slow(bookie, now)
            slow[bookie] = now
        else:
            health.on_error(bookie, FAILED if what == "error" else UNREACHABLE, now)
            failed[bookie] = now
            if what == "error":
                window = windows.setdefault(bookie, [])
                if window and now - window[0] >= 50.0:
                    window.clear()
                window.append(now)
                if len(window) == 3:
                    free_at[bookie] = now + 100.0
                    window.clear()
        assert health.quarantined(now) == {each for each, end_s in free_at.items() if now < end_s}
    order = health.read_order(candidates, now)
    assert sorted(order) == sorted(candidates)
    has_failed = {each: at_s for each, at_s in failed.items() if at_s > now - 30.0}
    healthy = [
        each
        for each in candidates
        if each in "abcd" and each not in has_failed and slow.get(each, -math.inf) <= now - 30.0
    ]
    sick = sorted((each for each in candidates if each in "abcd" and each in has_failed), key=lambda b: has_failed[b])
    assert order[: len(healthy) + len(sick)] == healthy + sick
    assert order[len(healthy) + len(sick)] == E
    assert order[-1] == F


@pytest.mark.parametrize(
    "wrong",
    [{"errors_max": -1}, {"window_s": 0.0}, {"quarantine_s": -1.0}, {"recent_s": math.nan}, {"window_s": math.inf}],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        HealthSettings(**wrong)  # type: ignore[arg-type]


# --- Retries


def new_retries(seed: int = 1) -> Retries:
    return Retries(SimRng(seed), s_min=0.1, s_max=5.0)


def wait_s(retries: Retries, bookie: BookieId, now: float) -> float:
    """How long the bookie is to be left alone; 0.0 if not at all."""
    try:
        retries.check(bookie, now)
    except BookieUnavailable as error:
        told_s = error.facts["retry_in_s"]
        assert isinstance(told_s, float)
        assert told_s > 0
        return told_s
    return 0.0


@pytest.mark.parametrize("seed", range(20))
def test_each_failure_makes_the_wait_longer_within_its_bounds(seed: int) -> None:
    retries, now = new_retries(seed), 100.0
    waits = []
    for _ in range(100):
        told = retries.on_failure(A, BookieUnavailable("nobody is there", hint="Look."), now, began_s=now)
        assert told.hint == "Look."
        waits.append(wait_s(retries, A, now))
        assert told.facts["retry_in_s"] == waits[-1]
        assert str(told).startswith(str(UNREACHABLE))
        now += waits[-1]
        assert wait_s(retries, A, now) == 0.0
        assert wait_s(retries, B, now) == 0.0
    for number, waited_s in enumerate(waits):
        longest_s = min(5.0, 0.2 * 2**number)
        assert longest_s / 2 <= waited_s + 1e-6
        assert waited_s - 1e-6 <= longest_s
    assert len(set(waits)) == len(waits), "they are jittered"


def test_two_tries_at_the_same_time_are_one_failure() -> None:
    retries = new_retries()
    retries.on_failure(A, UNREACHABLE, 1.0, began_s=0.5)
    before_s = wait_s(retries, A, 1.0)
    retries.on_failure(A, UNREACHABLE, 1.01, began_s=0.5)
    assert wait_s(retries, A, 1.0) == before_s


def test_a_connection_that_lasted_clears_the_record() -> None:
    retries = new_retries()
    for now in (1.0, 2.0, 3.0, 4.0):
        retries.on_failure(A, UNREACHABLE, now, began_s=now)
    retries.on_lost(A, 100.0, made_s=10.0)
    assert wait_s(retries, A, 100.0) == 0.0
    retries.on_failure(A, UNREACHABLE, 101.0, began_s=100.5)
    assert wait_s(retries, A, 101.0) <= 0.2


def test_an_old_connection_that_is_found_lost_later_does_not_end_a_back_off() -> None:
    retries = new_retries()
    retries.on_failure(A, UNREACHABLE, 50.0, began_s=49.0)
    before_s = wait_s(retries, A, 50.0)
    retries.on_lost(A, 50.0, made_s=10.0)
    assert wait_s(retries, A, 50.0) == before_s


def test_one_connection_that_does_not_last_is_no_reason_to_wait_and_two_in_a_row_are() -> None:
    retries = new_retries()
    retries.on_lost(A, 1.0, made_s=0.9)
    retries.on_lost(A, 1.0, made_s=0.9)  # The other version's, at the same time.
    assert wait_s(retries, A, 1.0) == 0.0
    retries.on_lost(A, 2.0, made_s=1.9)
    assert wait_s(retries, A, 2.0) > 0.0


def test_a_bookie_that_is_forgotten_may_be_tried_at_once() -> None:
    retries = new_retries()
    retries.on_failure(A, UNREACHABLE, 1.0, began_s=0.5)
    retries.forget(A)
    assert wait_s(retries, A, 1.0) == 0.0
