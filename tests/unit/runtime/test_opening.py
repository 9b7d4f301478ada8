"""Handles that are opened with and without a block, closed in every order, and forgotten."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quire.errors import HandleClosed, InvalidArgument
from quire.runtime.opening import Opened, Opening, opens


class Thing(Opened):
    """Tells what happens to it, and insists on being opened and closed by one task."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    @opens("a child")
    async def open(self, name: str) -> "AsyncIterator[Thing]":
        async with open_thing(name, self.log) as thing:
            yield thing

    async def close(self) -> None:
        await self._close_opening()


@asynccontextmanager
async def open_thing(name: str, log: list[str], *, problem: Exception | None = None) -> AsyncIterator[Thing]:
    async with asyncio.timeout(1000):
        if problem is not None:
            raise problem
        log.append(f"open {name}")
        try:
            yield Thing(name, log)
        except BaseException as error:
            log.append(f"{type(error).__name__} in {name}")
            raise
        finally:
            await asyncio.sleep(0)
            log.append(f"close {name}")


def opening(log: list[str], name: str = "a", problem: Exception | None = None) -> Opening[Thing]:
    return Opening(open_thing(name, log, problem=problem), f"thing {name}")


async def test_a_block_opens_and_closes_in_the_callers_task() -> None:
    log: list[str] = []
    before = asyncio.all_tasks()

    async def use() -> None:
        async with opening(log) as thing:
            assert thing.name == "a"
            assert asyncio.all_tasks() == before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use()
    assert log == ["open a", "ZeroDivisionError in a", "close a"]


async def test_a_handle_is_opened_and_closed_without_a_block() -> None:
    log: list[str] = []
    thing = await opening(log)
    assert log == ["open a"]
    await asyncio.create_task(thing.close())
    await thing.close()
    assert log == ["open a", "close a"]


async def test_what_keeps_a_handle_from_being_opened_is_raised() -> None:
    with pytest.raises(InvalidArgument, match="refused"):
        await opening([], problem=InvalidArgument("refused"))


async def test_closing_a_client_closes_what_was_opened_through_it_newest_first() -> None:
    log: list[str] = []
    client = await opening(log)
    b, c, d = [await client.open(name) for name in "bcd"]
    await b.open("e")
    await c.close()
    del log[:]
    await client.close()
    assert log == ["close d", "close e", "close b", "close a"]
    await d.close()
    assert log[4:] == []
    with pytest.raises(HandleClosed, match="thing a was closed"):
        await client.open("f")


async def test_the_end_of_a_block_closes_what_was_opened_through_it_without_one() -> None:
    log: list[str] = []
    async with opening(log) as client:
        await client.open("b")
    assert log == ["open a", "open b", "close b", "close a"]


async def test_a_client_may_be_closed_before_its_block_ends() -> None:
    log: list[str] = []
    async with opening(log) as client:
        await client.close()
        assert log == ["open a", "close a"]
    assert log == ["open a", "close a"]


async def test_each_opening_is_for_one_handle() -> None:
    once = opening([])
    thing = await once
    with pytest.raises(InvalidArgument, match="thing a was opened before"):
        await once
    await thing.close()


async def test_an_opening_that_is_cancelled_leaves_nothing_open() -> None:
    log: list[str] = []
    begun = asyncio.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield
        finally:
            log.append("gave up")

    async def open_it() -> None:
        await Opening(slow(), "a slow one")

    task = asyncio.create_task(open_it())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["gave up"]


def test_a_forgotten_with_says_so() -> None:
    client: Any = opening([])
    with pytest.raises(
        AttributeError, match="thing a is not open yet, so it has no 'create_stream': `await` it, or use"
    ):
        client.create_stream("orders")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client = None
        gc.collect()
    (told,) = caught
    assert told.category is RuntimeWarning
    assert str(told.message) == "thing a was never opened: `await` it, or use `async with`"


def forget(work: Callable[[], Awaitable[object]]) -> list[str]:
    """The warnings of a program that forgets to close something."""

    async def main() -> None:
        await work()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    return [f"{each.category.__name__}: {each.message}" for each in caught]


def test_a_handle_that_is_open_when_its_loop_ends_is_closed_with_a_warning_that_names_it() -> None:
    log: list[str] = []

    async def work() -> None:
        client = await opening(log)
        await client.open("b")

    told = forget(work)
    advice = "was left open when its event loop ended: `await` its `close()`, or use `async with`"
    assert sorted(told) == [f"ResourceWarning: a child {advice}", f"ResourceWarning: thing a {advice}"]
    assert log == ["open a", "open b", "CancelledError in b", "close b", "CancelledError in a", "close a"]


def test_what_is_closed_causes_no_warning() -> None:
    async def work() -> None:
        client = await opening([])
        await client.open("b")
        await client.close()
        async with opening([]):
            pass

    assert forget(work) == []
