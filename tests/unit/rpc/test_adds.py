"""`PendingAdds`: every add has one end, whatever is sent twice, answered late or never."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import many_examples

from quire.codec.wire.codes import Status
from quire.errors import QuireError
from quire.rpc import AddAnswers, AddSink
from quire.rpc.adds import PendingAdds
from quire.types import EntryId, LedgerId

OK, FENCED = Status.EOK, Status.EFENCED
LEDGER, OTHER = LedgerId(1), LedgerId(2)


class Nobody:
    """A sink that is only compared: the core never calls one."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def on_add_answers(self, answers: AddAnswers) -> None:
        raise NotImplementedError

    def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
        raise NotImplementedError


def ok(*entries: int, ledger_id: LedgerId = LEDGER) -> list[tuple[Status, LedgerId, tuple[EntryId, ...]]]:
    """As one run."""
    return [(OK, ledger_id, tuple(map(EntryId, entries)))]


def test_answers_are_sorted_by_sink_and_keep_their_order() -> None:
    adds, a, b = PendingAdds(), Nobody("a"), Nobody("b")
    adds.push(LEDGER, range(4), a, deadline_s=5)
    adds.push(OTHER, range(4), b, deadline_s=5)
    answers = [*ok(2), *ok(0, ledger_id=OTHER), (FENCED, LEDGER, (EntryId(1),)), *ok(3, ledger_id=OTHER), *ok(0)]
    assert adds.on_answers(answers) == [
        (a, [(OK, (2,)), (FENCED, (1,)), (OK, (0,))]),
        (b, [(OK, (0,)), (OK, (3,))]),
    ]
    assert adds.on_answers(ok(3)) == [(a, [(OK, (3,))])]


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    adds, sink = PendingAdds(), Nobody()
    assert adds.on_answers(ok(0), [(OK, 1)]) == []
    adds.push(LEDGER, range(2), sink, deadline_s=5)
    adds.push_v3(9, LEDGER, EntryId(5), sink, deadline_s=5)
    assert adds.on_answers(ok(5, 2, -1) + ok(0, ledger_id=OTHER), [(OK, 8)]) == []
    assert adds.on_answers(ok(0, 0), [(OK, 9), (OK, 9)]) == [(sink, [(OK, (0,)), (OK, (5,))])]
    assert adds.take_all() == [(sink, [1])]


def test_an_entry_sent_twice_is_answered_twice_in_the_order_of_sending() -> None:
    adds, first, second = PendingAdds(), Nobody("first"), Nobody("second")
    adds.push(LEDGER, range(3), first, deadline_s=5)
    adds.push(LEDGER, range(2, 4), second, deadline_s=6)
    assert adds.on_answers(ok(2)) == [(first, [(OK, (2,))])]
    assert adds.on_answers(ok(2)) == [(second, [(OK, (2,))])]
    assert adds.on_answers(ok(2)) == []


def test_an_entry_answered_and_sent_again_does_not_expire_with_its_first_run() -> None:
    adds, sink = PendingAdds(), Nobody()
    adds.push(LEDGER, range(2), sink, deadline_s=5)
    adds.on_answers(ok(1))
    adds.push(LEDGER, range(1, 2), sink, deadline_s=8)
    assert adds.expire(5) == [(sink, [0])]
    assert adds.expire(7.9) == []
    assert adds.expire(8) == [(sink, [1])]
    assert not adds


def test_only_what_is_late_is_lost() -> None:
    adds, sink = PendingAdds(), Nobody()
    adds.push(LEDGER, range(3), sink, deadline_s=5)
    adds.push_v3(1, LEDGER, EntryId(3), sink, deadline_s=5.5)
    adds.push(LEDGER, range(4, 6), sink, deadline_s=6)
    adds.on_answers(ok(1, 4))
    assert adds.expire(4.9) == []
    assert adds.expire(5.5) == [(sink, [0, 2, 3])]
    assert adds.on_answers(ok(0, 2), [(OK, 1)]) == [], "too late"
    assert adds.expire(6) == [(sink, [5])]
    assert not adds


def test_what_is_answered_is_forgotten_at_the_next_look() -> None:
    """Else five seconds of answered runs would be kept, at full speed hundreds of thousands of entries."""
    adds, sink = PendingAdds(), Nobody()
    for start in range(0, 100, 10):
        adds.push(LEDGER, range(start, start + 10), sink, deadline_s=5)
    adds.push_v3(1, LEDGER, EntryId(100), sink, deadline_s=5)
    adds.on_answers(ok(*range(100)), [(OK, 1)])
    assert adds
    assert adds.expire(0.1) == []
    assert not adds


SENDS = st.tuples(st.just("send"), st.sampled_from([LEDGER, OTHER]), st.lists(st.integers(0, 4), max_size=4))
SENDS_V3 = st.tuples(st.just("send v3"), st.sampled_from([LEDGER, OTHER]), st.integers(0, 4))
ANSWERS = st.tuples(st.just("answer"), st.sampled_from([LEDGER, OTHER]), st.lists(st.integers(0, 5), max_size=4))
ANSWERS_V3 = st.tuples(st.just("answer v3"), st.just(LEDGER), st.integers(1, 20))
LOOKS = st.tuples(st.just("look"), st.just(LEDGER), st.integers(0, 6))


@many_examples
@given(st.lists(st.one_of(SENDS, SENDS_V3, ANSWERS, ANSWERS_V3, LOOKS), max_size=40))
def test_every_add_has_one_end(steps: list[tuple[str, LedgerId, object]]) -> None:
    """OneEndEach, against a model that counts: per sink and entry, ends never exceed sends, and equal them at last.

    Each ledger has a sink in version 2 and another in version 3. Answers beyond what is in flight must be dropped.
    """
    adds = PendingAdds()
    sinks = {
        (ledger_id, version): Nobody(f"{ledger_id}/{version}") for ledger_id in (LEDGER, OTHER) for version in (2, 3)
    }
    open_adds: Counter[tuple[str, int]] = Counter()
    waiting_txns: dict[int, tuple[str, int]] = {}
    now = txn_id = 0

    def settle(sink: AddSink, entry_ids: list[EntryId]) -> None:
        assert isinstance(sink, Nobody)
        for entry_id in entry_ids:
            open_adds[sink.name, entry_id] -= 1
            assert open_adds[sink.name, entry_id] >= 0, "an end too many"

    for kind, ledger_id, what in steps:
        if kind == "send":
            assert isinstance(what, list)
            adds.push(ledger_id, what, sinks[ledger_id, 2], deadline_s=now + 5)
            open_adds.update((sinks[ledger_id, 2].name, entry_id) for entry_id in what)
        elif kind == "send v3":
            assert isinstance(what, int)
            txn_id += 1
            adds.push_v3(txn_id, ledger_id, EntryId(what), sinks[ledger_id, 3], deadline_s=now + 5)
            waiting_txns[txn_id] = (sinks[ledger_id, 3].name, what)
            open_adds[sinks[ledger_id, 3].name, what] += 1
        elif kind == "answer":
            assert isinstance(what, list)
            expected = Counter(what)
            for entry_id in expected:
                expected[entry_id] = min(expected[entry_id], open_adds[sinks[ledger_id, 2].name, entry_id])
            got: Counter[int] = Counter()
            for sink, answers in adds.on_answers(ok(*what, ledger_id=ledger_id)):
                entry_ids = [entry_id for _, run in answers for entry_id in run]
                got.update(entry_ids)
                settle(sink, entry_ids)
            assert got == expected
        elif kind == "answer v3":
            assert isinstance(what, int)
            for sink, answers in adds.on_answers([], [(OK, what)]):
                assert isinstance(sink, Nobody)
                assert waiting_txns[what] == (sink.name, *answers[0][1])
                settle(sink, [entry_id for _, run in answers for entry_id in run])
        else:
            assert isinstance(what, int)
            now += what
            for sink, entry_ids in adds.expire(now):
                settle(sink, entry_ids)
    for sink, entry_ids in adds.take_all():
        settle(sink, entry_ids)
    assert not adds
    assert +open_adds == Counter(), "an add without an end"
