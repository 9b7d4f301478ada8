"""Handles of blocking code: calls, interruptions, iterators, closing from anywhere, forks. No cluster is needed."""

import asyncio
import gc
import signal
import threading
import traceback
import warnings
from collections.abc import Generator
from contextlib import ExitStack

import pytest

from quire.errors import HandleClosed, InvalidArgument
from quire.sync.handles import Handle, open_handle
from tests.support.things import (
    SyncThing,
    Worker,
    announced,
    in_fork,
    interrupt_when,
    open_thing,
    opening,
    sync_thing,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(60)


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "quire-sync"]


# --- Calls


def test_a_call_returns_and_raises_what_the_coroutine_does() -> None:
    with sync_thing([]) as thing:
        assert [thing.add(number) for number in range(100)] == list(range(1, 101))
        with pytest.raises(InvalidArgument) as raised:
            thing.add(-1)
        assert raised.value.facts == {"number": -1}
        assert any(frame.name == "add" for frame in traceback.extract_tb(raised.value.__traceback__))
        assert thing.add(1) == 2


def test_many_threads_share_a_handle() -> None:
    with sync_thing([]) as thing:
        workers = [Worker(lambda: [thing.add(number) for number in range(50)]) for _ in range(8)]
        assert [worker.result() for worker in workers] == [list(range(1, 51))] * 8


def test_a_call_from_the_loop_thread_itself_is_refused() -> None:
    with sync_thing([]) as thing, pytest.raises(HandleClosed, match="carries them out"):
        thing._ask(lambda: thing.add(1))


# --- Interruptions


def test_an_interrupted_call_is_cancelled_and_over_before_its_caller_goes_on() -> None:
    log: list[str] = []
    with sync_thing(log) as thing:
        for _ in range(3):
            thing.thing.waiting.clear()
            with pytest.raises(KeyboardInterrupt), interrupt_when(thing.thing.waiting):
                thing.wait()
            assert log.pop() == "cancelled"
            assert thing.add(1) == 2
        thing.let_go()
        assert thing.wait() == "done"


def test_an_interrupted_opening_leaves_nothing_open() -> None:
    log: list[str] = []
    opening.clear()
    with pytest.raises(KeyboardInterrupt), interrupt_when(opening), sync_thing(log, late=True):
        raise AssertionError("it is never open")
    assert log == ["open a", "gave up a"]
    assert loop_threads() == []


def test_a_child_whose_opening_is_interrupted_leaves_its_client_usable() -> None:
    log: list[str] = []
    with sync_thing(log) as client:
        opening.clear()
        with pytest.raises(KeyboardInterrupt), interrupt_when(opening), client.open("b", late=True):
            raise AssertionError("it is never open")
        with client.open("c") as child:
            assert child.add(1) == 2
    assert log == ["open a", "open b", "gave up b", "open c", "close c", "close a"]


def test_what_is_open_is_closed_if_nobody_gets_it() -> None:
    """As when the interruption comes at the very moment at which it is open."""
    log: list[str] = []

    def refuse(*_: object) -> SyncThing:
        raise InvalidArgument("refused")

    with (
        pytest.raises(InvalidArgument, match="refused"),
        open_handle(lambda: open_thing("a", log), refuse, "a", parent=None),
    ):
        raise AssertionError("it is never open")
    assert log == ["open a", "CancelledError in a", "close a"]
    assert loop_threads() == []


# --- Blocks


def test_the_error_of_a_block_is_shown_to_its_context_manager_and_goes_on_unchanged() -> None:
    log: list[str] = []
    with pytest.raises(ZeroDivisionError) as raised, sync_thing(log):
        raise ZeroDivisionError
    assert log == ["open a", "ZeroDivisionError in a", "close a"]
    assert [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)] == [__file__]


def test_an_interrupted_block_is_a_cancelled_one() -> None:
    log: list[str] = []
    with pytest.raises(KeyboardInterrupt), sync_thing(log):
        raise KeyboardInterrupt
    assert log == ["open a", "CancelledError in a", "close a"]


def test_a_handle_is_for_one_block() -> None:
    thing = sync_thing([])
    with thing:
        pass
    with pytest.raises(HandleClosed, match="a was closed"), thing:
        pass


# --- Closing


def test_a_closed_handle_refuses_everything() -> None:
    with sync_thing([]) as client:
        with client.open("b") as child:
            numbers = child.count(10)
            assert next(numbers) == 0
        for use in (lambda: child.add(1), lambda: child.count(1), lambda: child.open("c")):
            with pytest.raises(HandleClosed, match="b was closed"):
                use()
        numbers.close()
    with pytest.raises(HandleClosed, match="a was closed"):
        client.add(1)


def test_whoever_waits_is_told_that_the_handle_was_closed() -> None:
    with sync_thing([]) as client, client.open("b") as child:
        worker = Worker(lambda: child.wait(is_wait=True))
        assert child.thing.waiting.wait(20)
    error = worker.result()
    assert isinstance(error, HandleClosed)
    assert "b was closed" in str(error)


def test_a_call_that_may_change_something_runs_to_its_end() -> None:
    log: list[str] = []
    with sync_thing(log) as client:
        worker = Worker(client.wait)
        assert client.thing.waiting.wait(20)
        client._thread.post(lambda: client._thread._loop.call_later(0.05, client.thing.go.set))
    assert worker.result() == "done"
    assert log == ["open a", "close a"]


def test_children_are_closed_first_and_newest_first() -> None:
    log: list[str] = []
    with ExitStack() as forgotten:
        with sync_thing(log) as client:
            b, c, d = (forgotten.enter_context(client.open(name)) for name in "bcd")
            forgotten.enter_context(b.open("e"))
            c.close()
            del log[:]
        assert log == ["close d", "close e", "close b", "close a"]
        with pytest.raises(HandleClosed):
            d.add(1)
        with pytest.raises(HandleClosed):
            c.add(1)
    assert log[4:] == [], "leaving a block that was closed does nothing"


def test_an_interrupted_closing_leaves_nothing_open() -> None:
    """The second client keeps the loop thread alive, so that its end cannot be what cleans up."""
    log: list[str] = []
    with sync_thing([], "other"):
        client = sync_thing(log)
        child = client.open("b")
        worker = Worker(client.wait)  # Which closing waits for, and which never ends by itself.
        assert client.thing.waiting.wait(20)
        with pytest.raises(KeyboardInterrupt), interrupt_when(client.thing.closed):
            client.close()
        child.close()
        assert isinstance(worker.result(), HandleClosed)
    assert log == ["open a", "open b", "close b", "close a", "cancelled"]


def test_an_opening_in_another_thread_ends_with_the_client() -> None:
    log: list[str] = []
    opening.clear()
    with sync_thing(log) as client:
        worker = Worker(lambda: client.open("b", late=True))
        assert opening.wait(20)
    assert isinstance(worker.result(), HandleClosed)
    assert log == ["open a", "open b", "gave up b", "close a"]


def test_the_loop_thread_lives_as_long_as_the_last_client() -> None:
    assert loop_threads() == []
    with sync_thing([]):
        (thread,) = loop_threads()
        assert thread.daemon
        with sync_thing([]) as second:
            assert loop_threads() == [thread]
            assert second.add(1) == 2
        assert loop_threads() == [thread]
    assert loop_threads() == []
    with sync_thing([]) as again:
        assert again.add(1) == 2


# --- Without a block


def test_a_handle_is_opened_and_closed_without_a_block() -> None:
    log: list[str] = []
    client = sync_thing(log)
    child = client.open("b")
    assert child.add(1) == 2
    client.close()
    child.close()
    client.close()
    assert log == ["open a", "open b", "close b", "close a"]
    assert loop_threads() == []


def forget(name: str, log: list[str], *, child: str | None = None) -> list[str]:
    """What a program is told that forgets to close something."""

    def program() -> None:
        thing = sync_thing(log, name)
        if child is not None:
            thing = thing.open(child)
            gc.collect()
        assert thing.add(1) == 2

    async def is_over() -> bool:
        return loop_threads() == []

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program()
        gc.collect()
    asyncio.run(eventually(is_over, what="the loop thread has ended"))
    return [str(each.message) for each in caught if each.category is ResourceWarning]


ADVICE = "was left open and forgotten: call its `close()`, or use `with`"


def test_a_forgotten_handle_is_closed_with_a_warning_that_names_it() -> None:
    log: list[str] = []
    assert forget("a", log) == [f"a {ADVICE}"]
    assert log == ["open a", "close a"]


def test_a_child_keeps_its_client_open() -> None:
    log: list[str] = []
    assert forget("a", log, child="b") == [f"b {ADVICE}", f"a {ADVICE}"]
    assert log == ["open a", "open b", "close b", "close a"]


# --- Iterators


def counted(thing: SyncThing, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the loop thread was called from here on."""
    crossings = [0]
    call = Handle._call

    def counting(self: Handle, *arguments: object, **options: object) -> object:
        crossings[0] += 1
        return call(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Handle, "_call", counting)
    return crossings


def test_items_come_over_in_batches_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with sync_thing([]) as thing:
        thing.let_go()
        crossings = counted(thing, monkeypatch)
        assert list(thing.count(10_000)) == list(range(10_000))
        assert crossings[0] < 50


def test_items_that_are_there_do_not_wait_for_those_to_come() -> None:
    log: list[str] = []
    with sync_thing(log) as thing:
        numbers = thing.count(3)
        assert [next(numbers) for _ in range(3)] == [0, 1, 2]
        thing.let_go()
        assert list(numbers) == []
        assert log == ["open a", "iterator closed"]


@pytest.mark.parametrize("end", [5, 10_000])
def test_an_iterator_is_closed_when_it_is_left(end: int) -> None:
    """One waits for its next item then; of the other there are more than anybody has asked for."""
    log: list[str] = []
    with sync_thing(log) as thing:
        for number in thing.count(end):
            if number == 2:
                break
        gc.collect()
        assert log.pop() == "iterator closed"
        numbers = thing.count(end)
        next(numbers)
        numbers.close()
        assert log.pop() == "iterator closed"
        never_begun = thing.count(end)
        never_begun.close()
        assert log == ["open a"]


def test_an_iterator_that_is_interrupted_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    with sync_thing(log) as thing:
        numbers = thing.count(2)
        assert [next(numbers), next(numbers)] == [0, 1]
        asked = threading.Event()
        monkeypatch.setattr(thing._thread, "call", announced(thing._thread.call, asked))
        with pytest.raises(KeyboardInterrupt), interrupt_when(asked):
            next(numbers)
        assert log == ["open a", "iterator closed"]
        assert thing.add(1) == 2


def test_an_iterator_that_is_collected_in_the_loop_thread_blocks_nobody() -> None:
    log: list[str] = []
    with sync_thing(log) as thing:
        numbers = thing.count(5)
        next(numbers)
        thing._ask(numbers.close)

        async def is_closed() -> bool:
            return log == ["open a", "iterator closed"]

        asyncio.run(eventually(is_closed, what="the iterator is closed"))
        assert thing.add(1) == 2


def test_whoever_waits_for_items_is_told_that_the_handle_was_closed() -> None:
    def all_of(numbers: Generator[int]) -> list[int]:
        return list(numbers)

    log: list[str] = []
    with sync_thing(log) as client, client.open("b") as child:
        worker = Worker(lambda: all_of(child.count(5)))
        assert child.thing.waiting.wait(20)
    assert isinstance(worker.result(), HandleClosed)
    assert log.index("iterator closed") < log.index("close b")


# --- Forks


def test_a_fork_cannot_use_its_parents_handles_and_can_open_its_own() -> None:
    log: list[str] = []
    with sync_thing(log) as thing:
        numbers = thing.count(5)
        next(numbers)

        def in_child() -> bool:
            with pytest.raises(HandleClosed, match="fork"):
                thing.add(1)
            numbers.close()
            with sync_thing([]) as own:
                assert own.add(1) == 2
            return True

        assert in_fork(in_child)
        assert thing.add(1) == 2
    assert log == ["open a", "iterator closed", "close a"]


def test_a_fork_that_leaves_its_parents_block_closes_nothing() -> None:
    log: list[str] = []
    thing = sync_thing(log)
    assert in_fork(lambda: thing.__exit__(None, None, None) is False)
    assert thing.add(1) == 2
    thing.close()
    assert log == ["open a", "close a"]


def test_interruptions_work_as_they_did_before() -> None:
    """Nothing of the above has replaced the handler of the signal."""
    with sync_thing([]):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
