"""When a lost bookie is looked after, and when checks come round."""

from quire.protocol.auditing import LostBookies, Rounds
from quire.types import BookieId

A, B, C = (BookieId(name) for name in "abc")
ALL = {A, B, C}


def test_without_a_delay_a_lost_bookie_counts_at_once() -> None:
    lost = LostBookies(ALL, 0)
    assert lost.on_listing({A, B}, 5.0) == [C]
    assert lost.audit_at_s == 5.0


def test_a_bookie_with_a_cookie_that_was_never_seen_is_lost() -> None:
    lost = LostBookies(ALL, 0)
    assert lost.on_listing({A}, 0.0) == [B, C]


def test_a_single_one_is_waited_for_and_forgotten_when_it_comes_back() -> None:
    lost = LostBookies(ALL, 60)
    lost.on_listing({A, B}, 5.0)
    assert lost.audit_at_s == 65.0
    lost.on_listing({A, B}, 30.0)
    assert lost.audit_at_s == 65.0, "the wait does not begin anew"
    lost.on_listing(ALL, 40.0)
    assert not lost.is_waiting


def test_a_second_loss_ends_the_wait() -> None:
    lost = LostBookies(ALL, 60)
    lost.on_listing({A, B}, 5.0)
    lost.on_listing({A}, 6.0)
    assert lost.audit_at_s == 6.0


def test_after_an_audit_a_lost_bookie_is_old_news() -> None:
    lost = LostBookies(ALL, 0)
    lost.on_listing({A, B}, 5.0)
    lost.on_audit({A, B})
    assert not lost.is_waiting
    assert lost.on_listing({A, B}, 6.0) == []
    lost.on_listing(ALL, 7.0)
    assert lost.on_listing({A, B}, 8.0) == [C], "it came back, and is lost again"


def test_a_bookie_that_is_lost_while_an_audit_reads_calls_for_another_one() -> None:
    lost = LostBookies(ALL, 0)
    lost.on_audit(ALL)
    assert lost.on_listing({A, B}, 6.0) == [C]
    assert lost.audit_at_s == 6.0


def test_an_audit_that_was_discarded_is_due_again_and_its_bookies_are_still_lost() -> None:
    lost = LostBookies(ALL, 0)
    lost.on_listing({A, B}, 5.0)
    lost.on_audit({A, B})
    lost.on_discarded(6.0)
    assert lost.audit_at_s == 6.0
    assert lost.on_listing({A, B}, 7.0) == [C]
    assert lost.is_waiting


def test_writing_zero_or_the_same_delay_asks_for_an_audit() -> None:
    for before, written in ((60, 0), (60, 60), (0, 0)):
        lost = LostBookies(ALL, before)
        lost.on_delay(written, 9.0)
        assert lost.audit_at_s == 9.0


def test_another_delay_moves_the_wait_and_nothing_else() -> None:
    lost = LostBookies(ALL, 60)
    lost.on_delay(30, 1.0)
    assert not lost.is_waiting
    lost.on_listing({A, B}, 5.0)
    lost.on_delay(100, 10.0)
    assert lost.audit_at_s == 105.0


def test_a_check_that_never_ended_is_due_and_one_that_did_waits_for_the_rest_of_its_interval() -> None:
    rounds = Rounds({"one": 100.0, "two": 50.0, "never": 0.0}, {"one": None, "two": 20.0}, 1000.0)
    assert rounds.due(1000.0) == "one"
    rounds.on_done("one", 1005.0)
    assert rounds.due(1005.0) is None
    assert rounds.next_at_s() == 1030.0
    assert rounds.due(1030.0) == "two"
