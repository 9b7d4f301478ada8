"""A window: what fits, who waits, and that nobody waits for ever."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from quire.ledger.writing.window import Waiters, Window
from quire.testing import Simulation, simulate
from quire.types import EntryId


@given(st.lists(st.integers(0, 20), min_size=1, max_size=20), st.integers(0, 5), st.integers(0, 40), st.data())
def test_what_fits_is_as_much_as_may_be_and_never_nothing(
    sizes: list[int], entries: int, size_bytes: int, data: st.DataObject
) -> None:
    """The last one may stick out of the window's bytes: else nothing large would ever fit."""
    window = Window(entries_max=6, bytes_max=50)
    window.take(entries, size_bytes)
    begin = data.draw(st.integers(0, len(sizes) - 1))
    count, total = window.fit(sizes, begin)
    expected = 0
    while begin + expected < len(sizes) and (
        expected == 0 or (entries + expected < 6 and size_bytes + sum(sizes[begin : begin + expected]) < 50)
    ):
        expected += 1
    assert (count, total) == (expected, sum(sizes[begin : begin + expected]))


def test_whoever_waits_gets_in_one_after_the_other_also_if_some_give_up() -> None:
    async def main(sim: Simulation) -> None:
        window, order = Window(entries_max=1, bytes_max=100), list[int]()
        window.take(1, 1)

        async def enter(number: int) -> None:
            await window.wait()
            order.append(number)
            window.take(1, 1)
            window.pass_on()

        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(enter(number)))
            await asyncio.sleep(0.1)
        tasks[1].cancel()  # While it waits,
        await asyncio.sleep(0.1)
        window.give_back(1, 1)
        await asyncio.sleep(0.1)
        window.give_back(1, 1)
        tasks[2].cancel()  # and when it was its turn already.
        await asyncio.sleep(0.1)
        while len(order) < 4:
            window.give_back(1, 1)
            await asyncio.sleep(0.1)
        assert order == [0, 3, 4, 5]

    simulate(1, main)


def test_waiters_are_woken_in_order_and_late_ones_too() -> None:
    async def main(sim: Simulation) -> None:
        waiters, told = Waiters(), list[int]()

        async def wait(entry_id: int) -> None:
            await waiters.wait(EntryId(entry_id), EntryId(entry_id))
            told.append(entry_id)

        tasks = [asyncio.create_task(wait(entry_id)) for entry_id in (3, 9, 5, 4)]
        await asyncio.sleep(0.1)
        waiters.on_confirmed(EntryId(4))
        await asyncio.sleep(0.1)
        assert sorted(told) == [3, 4]
        waiters.fail(lambda first: ZeroDivisionError(f"over {first}"))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in results] == [type(None), ZeroDivisionError, ZeroDivisionError, type(None)]

    simulate(1, main)
