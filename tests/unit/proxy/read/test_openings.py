"""What is asked at the same time is looked up once, and nobody is told what was so before its call."""

import asyncio

import pytest

from quire.errors import NoSuchStream
from quire.proxy.read.openings import Together
from quire.testing import run


def test_many_who_ask_together_cost_two_looks() -> None:
    async def main() -> None:
        together, looks = Together[int](), 0

        async def look() -> int:
            nonlocal looks
            looks += 1
            mine = looks
            await asyncio.sleep(1.0)
            return mine

        async def ask(after_s: float) -> int:
            await asyncio.sleep(after_s)
            return await together.do("key", look)

        answers = await asyncio.gather(*(ask(after_s) for after_s in (0.0, *[0.5] * 100, 1.5, 5.0)))
        assert answers[0] == 1
        assert set(answers[1:101]) == {2}, "theirs began after they asked"
        assert answers[101:] == [3, 4]

    for seed in range(5):
        run(main(), seed=seed)


def test_an_error_is_told_to_all_and_not_remembered() -> None:
    async def main() -> None:
        together, fails = Together[str](), True

        async def look() -> str:
            await asyncio.sleep(1.0)
            if fails:
                raise NoSuchStream("there is none")
            return "found"

        asked = [asyncio.create_task(together.do("key", look)) for _ in range(3)]
        for each in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(each, NoSuchStream)
        fails = False
        assert await together.do("key", look) == "found"

    run(main(), seed=1)


def test_a_caller_that_goes_does_not_take_the_others_along() -> None:
    async def main() -> None:
        together = Together[str]()

        async def look() -> str:
            await asyncio.sleep(1.0)
            return "found"

        first = asyncio.create_task(together.do("key", look))
        await asyncio.sleep(0.5)
        others = [asyncio.create_task(together.do("key", look)) for _ in range(2)]
        await asyncio.sleep(0)
        first.cancel()
        others[0].cancel()
        assert await others[1] == "found"
        with pytest.raises(asyncio.CancelledError):
            await first
        last = asyncio.create_task(together.do("key", look))
        await asyncio.sleep(0.5)
        await together.aclose()
        with pytest.raises(asyncio.CancelledError):
            await last

    for seed in range(5):
        run(main(), seed=seed)
