"""Which writes share one flush: in order, one group at a time, and nothing after a failure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvariantBroken
from quire.protocol.group_commit import GroupCommit


def test_a_lone_write_is_flushed_at_once_and_company_waits_for_the_next_group() -> None:
    commit = GroupCommit(group_bytes_max=100)
    assert commit.next_group() is None
    assert commit.on_write(10) == 1
    assert commit.next_group() == 1
    assert [commit.on_write(10), commit.on_write(10)] == [2, 3]
    assert commit.next_group() is None, "a flush is under way"
    assert commit.durable == 0
    assert commit.on_flushed() == 1
    assert commit.next_group() == 2
    assert commit.on_flushed() == 3
    assert commit.next_group() is None


def test_a_group_is_bounded_but_never_empty() -> None:
    commit = GroupCommit(group_bytes_max=100)
    for size in (60, 60, 250, 40, 60, 1):
        commit.on_write(size)
    groups = []
    while (count := commit.next_group()) is not None:
        groups.append(count)
        commit.on_flushed()
    assert groups == [1, 1, 1, 2, 1]
    assert commit.queued_bytes == 0


def test_nothing_is_durable_after_a_failure() -> None:
    commit = GroupCommit(group_bytes_max=100)
    commit.on_write(1)
    assert commit.next_group() == 1
    commit.on_write(1)
    commit.on_failed()
    assert commit.next_group() is None
    assert commit.durable == 0


def test_an_end_without_a_beginning_is_a_bug() -> None:
    with pytest.raises(InvariantBroken):
        GroupCommit(group_bytes_max=1).on_flushed()


@given(st.lists(st.integers(0, 50) | st.sampled_from(["next", "done"])), st.integers(1, 60))
def test_writes_become_durable_in_order_and_each_once(events: list[int | str], bound: int) -> None:
    commit, written, flushing, durable = GroupCommit(group_bytes_max=bound), 0, 0, 0
    for event in events:
        if isinstance(event, int):
            written += 1
            assert commit.on_write(event) == written == commit.last
        elif event == "next":
            count = commit.next_group()
            assert (count is None) == (flushing > 0 or written == durable)
            flushing += count or 0
        elif flushing:
            durable += flushing
            flushing = 0
            assert commit.on_flushed() == durable == commit.durable
    assert durable + flushing <= written
