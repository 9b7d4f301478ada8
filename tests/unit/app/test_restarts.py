"""When a process that ended is started again, and when somebody hears of it."""

from quire.app.restarts import FAILING_STARTS, RestartPolicy


def test_whoever_gets_nowhere_is_tried_ever_more_rarely() -> None:
    policy = RestartPolicy()
    delays = [policy.on_end(served_s=None, why="no disk").delay_s for _ in range(8)]
    assert delays == [1, 2, 4, 8, 16, 30, 30, 30]


def test_crashes_soon_after_the_start_are_a_series_too() -> None:
    policy = RestartPolicy()
    assert [policy.on_end(served_s=5.0, why="killed").delay_s for _ in range(3)] == [1, 2, 4]


def test_one_that_served_for_a_while_begins_anew() -> None:
    policy = RestartPolicy()
    for _ in range(5):
        policy.on_end(served_s=None, why="no disk")
    assert policy.on_end(served_s=3600.0, why="killed").delay_s == 1
    assert policy.on_end(served_s=None, why="no disk").delay_s == 2


def test_the_fifth_start_that_fails_alike_is_told_again() -> None:
    policy = RestartPolicy()
    ends = [policy.on_end(served_s=None, why="no disk") for _ in range(7)]
    assert [end.is_news for end in ends] == [True, False, False, False, True, False, False]
    assert [end.is_failing for end in ends] == [False] * 4 + [True] * 3
    assert policy.failed_starts == 7


def test_another_reason_is_news_and_counts_from_one() -> None:
    policy = RestartPolicy()
    for _ in range(FAILING_STARTS):
        policy.on_end(served_s=None, why="no disk")
    end = policy.on_end(served_s=None, why="no port")
    assert (end.is_news, end.is_failing, policy.failed_starts) == (True, False, 1)


def test_every_crash_of_one_that_served_is_told() -> None:
    policy = RestartPolicy()
    ends = [policy.on_end(served_s=5.0, why="killed") for _ in range(7)]
    assert all(end.is_news and not end.is_failing for end in ends)
