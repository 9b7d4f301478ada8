"""Fail-behind and the order of answers, of one stream in one call."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvariantBroken
from quire.protocol.write_order import StreamOrder


def test_what_is_behind_a_failure_is_refused_until_the_attempt_is_raised() -> None:
    order = StreamOrder[str]()
    assert order.on_batch(1, 1)
    assert order.on_batch(2, 1)
    assert order.on_decided(1, "failed", failed=True) == ["failed"]
    assert not order.may_append(2, 1), "it waited, and may not be handed over any more"
    assert not order.on_batch(3, 1)
    assert order.on_batch(4, 2)
    assert not order.on_batch(5, 1)
    assert order.on_decided(2, "refused", failed=True) == ["refused"]
    assert order.may_append(4, 2)


def test_what_is_before_a_failure_is_not_refused() -> None:
    """A batch may be refused at once while those before it still wait for their stream."""
    order = StreamOrder[str]()
    order.on_batch(1, 1)
    order.on_batch(2, 1)
    assert order.on_decided(2, "damaged", failed=True) == []
    assert order.may_append(1, 1)
    assert order.on_decided(1, "stored", failed=False) == ["stored", "damaged"]


def test_a_batch_is_answered_once_and_only_if_it_came() -> None:
    order = StreamOrder[str]()
    order.on_batch(1, 1)
    order.on_batch(2, 1)
    order.on_decided(2, "b", failed=False)
    with pytest.raises(InvariantBroken):
        order.on_decided(2, "b", failed=False)
    with pytest.raises(InvariantBroken):
        order.on_decided(7, "?", failed=False)
    with pytest.raises(InvariantBroken):
        order.on_batch(2, 1)


@dataclass
class Sent:
    number: int
    attempt: int
    decided: bool = False
    failed: bool = False


@given(st.data())
def test_nothing_is_appended_behind_a_failure_and_answers_come_in_order(data: st.DataObject) -> None:
    """Against a model that remembers everything. Batches come, and are decided in any order."""
    order, sent = StreamOrder[int](), list[Sent]()
    answered = list[int]()
    attempt = 1
    for _ in range(data.draw(st.integers(1, 40))):
        open_ = [each for each in sent if not each.decided]
        is_decided = data.draw(st.booleans())
        if open_ and is_decided:
            each = open_[data.draw(st.integers(0, len(open_) - 1))]
            blocked = any(
                other.failed and other.number < each.number and other.attempt >= each.attempt for other in sent
            )
            assert order.may_append(each.number, each.attempt) == (not blocked)
            each.decided, each.failed = True, blocked or data.draw(st.integers(0, 1)) == 1
            answered += order.on_decided(each.number, each.number, failed=each.failed)
        else:
            attempt += data.draw(st.integers(-1, 1))
            each = Sent(len(sent) + 1, max(0, attempt))
            blocked = any(other.failed and other.attempt >= each.attempt for other in sent)
            sent.append(each)
            assert order.on_batch(each.number, each.attempt) == (not blocked)
        first_open = next((each.number for each in sent if not each.decided), len(sent) + 1)
        assert answered == list(range(1, first_open)), "all before the first that is open, in order"
        assert order.waiting == len(sent) - len(answered)
        assert order.is_idle == (order.waiting == 0 and not any(each.failed for each in sent))
