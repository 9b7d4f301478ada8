"""Deadlines of calls whose steps include work that takes as long as it takes."""

import asyncio

import pytest

from quire.errors import MetadataUnavailable
from quire.ledger.deadlines import Deadline
from quire.testing import Simulation, simulate


def late() -> MetadataUnavailable:
    return MetadataUnavailable("time is up")


def test_work_that_is_not_counted_leaves_all_the_time_for_what_follows() -> None:
    async def main(_: Simulation) -> None:
        deadline = Deadline(10)
        began_s = asyncio.get_running_loop().time()

        async def call() -> None:
            async with deadline.or_raise(late):
                await asyncio.sleep(9)
                with deadline.suspended():
                    await asyncio.sleep(100)
                await asyncio.Event().wait()

        with pytest.raises(MetadataUnavailable, match="time is up"):
            await call()
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(119)

    simulate(0, main)


def test_work_that_fails_gives_no_time_for_trying_again() -> None:
    """Else whoever tries again after each failure would never come to an end."""

    async def main(_: Simulation) -> None:
        deadline, tries = Deadline(10), 0

        async def call() -> None:
            nonlocal tries
            async with deadline.or_raise(late):
                while True:
                    tries += 1
                    try:
                        with deadline.suspended():
                            await asyncio.sleep(100)
                            raise OSError
                    except OSError:
                        await asyncio.sleep(3)

        with pytest.raises(MetadataUnavailable, match="time is up"):
            await call()
        assert tries == 4

    simulate(0, main)
