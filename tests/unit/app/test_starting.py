"""Services wait for their metadata store, until they are told to stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from quire.app.starting import when_reachable
from quire.errors import MetadataUnavailable, NotInitialised
from quire.testing import run


class Door:
    """Cannot be opened for the first few times."""

    def __init__(self, *, failures: int, takes_s: float = 0.0, error: Exception | None = None) -> None:
        self._failures, self._takes_s = failures, takes_s
        self._error = error or MetadataUnavailable("nobody answers")
        self.tries = 0
        self.steps: list[str] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        self.tries += 1
        await asyncio.sleep(self._takes_s)
        if self.tries <= self._failures:
            raise self._error
        self.steps.append("opened")
        try:
            yield "the service"
        finally:
            self.steps.append("closed")


def test_what_cannot_be_reached_is_tried_again_and_told_seldom(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        door = Door(failures=25)
        async with AsyncExitStack() as stack:
            assert await when_reachable(stack, door.open, asyncio.Event()) == "the service"
            assert door.steps == ["opened"]
        assert door.steps == ["opened", "closed"]
        assert [record.message.split()[0] for record in caplog.records] == ["metadata.awaited"] * 3

    run(main(), seed=1)


@pytest.mark.parametrize("takes_s", [0.0, 100.0], ids=["between tries", "during one"])
def test_who_is_told_to_stop_waits_no_longer(takes_s: float) -> None:
    async def main() -> None:
        door, stop = Door(failures=1_000, takes_s=takes_s), asyncio.Event()
        asyncio.get_running_loop().call_later(10.25, stop.set)
        async with AsyncExitStack() as stack:
            assert await when_reachable(stack, door.open, stop) is None
        assert asyncio.get_running_loop().time() < 11.0

    run(main(), seed=1)


@pytest.mark.parametrize("error", [NotInitialised("there is no cluster"), TimeoutError("of its own")])
def test_any_other_error_is_raised_at_once(error: Exception) -> None:
    async def main() -> None:
        door = Door(failures=1, error=error)
        async with AsyncExitStack() as stack:
            with pytest.raises(type(error), match=str(error)):
                await when_reachable(stack, door.open, asyncio.Event())

    run(main(), seed=1)
