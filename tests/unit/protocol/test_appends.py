"""Which entries are confirmed, in which order, and what a change of the ensemble does to them."""

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocol.test_quorum import quorums

from quire.protocol.appends import PendingAppends
from quire.protocol.quorum import write_set
from quire.types import NO_ENTRY, EntryId, Quorum

E = [EntryId(number) for number in range(20)]


def test_entries_are_confirmed_in_order() -> None:
    """Scenario 2: with entries 0 to 9 in flight and 3 delayed, nothing behind 3 is confirmed before it."""
    appends = PendingAppends(Quorum(3, 3, 2))
    assert appends.push(10) == 0
    assert appends.on_acks(0, E[:10]) == NO_ENTRY
    assert appends.on_acks(1, [*E[:3], *E[4:10]]) == 2
    assert appends.on_acks(1, [E[3]]) == 9
    assert appends.in_flight == 0


def test_a_silent_bookie_does_not_hold_up_a_quorum() -> None:
    """Scenario 1."""
    appends = PendingAppends(Quorum(3, 3, 2))
    appends.push(5)
    appends.on_acks(0, E[:5])
    assert appends.on_acks(2, E[:5]) == 4


def test_an_answer_from_outside_the_write_set_changes_nothing() -> None:
    appends = PendingAppends(Quorum(5, 3, 2))
    appends.push(1)
    assert appends.on_acks(3, [E[0]]) == NO_ENTRY
    assert appends.on_acks(4, [E[0]]) == NO_ENTRY
    assert appends.on_acks(0, [E[0], E[7]]) == NO_ENTRY
    assert appends.on_acks(1, [E[0]]) == 0


def test_nothing_is_confirmed_while_the_ensemble_changes() -> None:
    """Scenarios 4 and 7: a new fragment begins behind the last confirmed entry; a replaced bookie's acks are void."""
    appends = PendingAppends(Quorum(3, 3, 2))
    appends.push(3)
    appends.on_acks(0, E[:3])
    appends.on_acks(1, E[:1])
    assert appends.confirmed == 0
    assert appends.suspend() == 1
    assert appends.on_acks(1, E[:3]) == 0
    appends.replace([0])
    assert appends.missing(0) == [1, 2]
    assert appends.resume() == 0
    assert appends.on_acks(0, [E[1]]) == 1


def test_an_entry_that_was_only_held_is_confirmed_when_the_change_ends() -> None:
    """Scenario 6: the replaced bookie is outside its write set."""
    appends = PendingAppends(Quorum(4, 2, 2))
    appends.push(1)
    appends.suspend()
    appends.on_acks(0, [E[0]])
    assert appends.on_acks(1, [E[0]]) == NO_ENTRY
    appends.replace([3])
    assert appends.resume() == 0


def test_what_is_given_up_is_never_confirmed() -> None:
    appends = PendingAppends(Quorum(1, 1, 1))
    appends.push(2)
    assert appends.give_up() == 2
    assert appends.on_acks(0, E[:2]) == NO_ENTRY


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(1, 4), st.just(())),
        st.tuples(st.just("ack"), st.integers(0, 6), st.lists(st.integers(0, 25), max_size=6)),
        st.tuples(st.just("suspend"), st.just(0), st.just(())),
        st.tuples(st.just("resume"), st.just(0), st.lists(st.integers(0, 6), max_size=2)),
    ),
    max_size=40,
)


@given(quorums(), EVENTS)
def test_against_a_plain_model(quorum: Quorum, events: list[tuple[str, int, list[int]]]) -> None:
    appends, acks, confirmed, suspended = PendingAppends(quorum), dict[int, set[int]](), -1, False
    for kind, number, ids in events:
        if kind == "push":
            assert appends.push(number) == len(acks)
            acks |= {len(acks) + step: set() for step in range(number)}
        elif kind == "ack" and number < quorum.ensemble:
            appends.on_acks(number, [EntryId(each) for each in ids])
            for each in ids:
                if confirmed < each < len(acks) and number in write_set(EntryId(each), quorum):
                    acks[each].add(number)
        elif kind == "suspend":
            suspended = True
            assert appends.suspend() == confirmed + 1
        elif kind == "resume":
            suspended = False
            changed = [each for each in ids if each < quorum.ensemble]
            appends.replace(changed)
            appends.resume()
            for each, have in acks.items():
                if each > confirmed:
                    have -= set(changed)
        while not suspended and confirmed + 1 in acks and len(acks[confirmed + 1]) >= quorum.ack:
            confirmed += 1
        assert appends.confirmed == confirmed
        assert appends.pushed == len(acks) - 1
        for position in range(quorum.ensemble):
            assert appends.missing(position) == [
                each
                for each, have in acks.items()
                if each > confirmed and position in write_set(EntryId(each), quorum) and position not in have
            ]
