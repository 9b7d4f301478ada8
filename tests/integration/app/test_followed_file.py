"""A file that is read again while a process runs."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quire.app.followed_file import followed_file
from quire.errors import InvalidArgument
from quire.runtime.clock import AsyncioClock
from tests.support.waiting import eventually


class Script(AsyncioClock):
    """Does something at the beginning of each wait, which is then over; and nothing passes when all is done."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps: Iterator[Callable[[], object]] = iter(steps)
        self.is_done = False

    async def sleep(self, seconds: float) -> None:
        step = next(self._steps, None)
        if step is None:
            self.is_done = True
            await asyncio.Event().wait()
        else:
            step()


async def taken(file: Path, *steps: Callable[[], object]) -> list[str]:
    """What was taken of a file to which these things are done, one before each look."""
    seen: list[str] = []

    def take(text: str) -> None:
        if "bad" in text:
            raise InvalidArgument("this makes no sense")
        seen.append(text)

    clock = Script(*steps)

    async def is_done() -> bool:
        return clock.is_done

    async with followed_file("words", str(file), clock, take):
        await eventually(is_done, what="all looks are over")
    return seen


def nothing() -> None:
    pass


async def test_what_changed_is_taken_once(tmp_path: Path) -> None:
    file = tmp_path / "words"
    file.write_text("one")
    assert await taken(file, nothing, lambda: file.write_text("two"), nothing, nothing) == ["one", "two"]


async def test_a_file_that_is_being_written_is_not_taken(tmp_path: Path) -> None:
    """Else whoever edits the tokens of a proxy would shut out all of its clients for a second."""
    file = tmp_path / "words"
    file.write_text("one")
    steps = (lambda: file.write_text(""), lambda: file.write_text("two"), nothing, nothing)
    assert await taken(file, *steps) == ["one", "two"]


@pytest.mark.parametrize("harm", [lambda file: file.write_text("bad"), Path.unlink], ids=["nonsense", "gone"])
async def test_what_was_taken_last_counts_while_there_is_nothing_better(
    tmp_path: Path, harm: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "words"
    file.write_text("one")
    steps = (lambda: harm(file), nothing, nothing, nothing, lambda: file.write_text("two"), nothing, nothing)
    assert await taken(file, *steps) == ["one", "two"]
    told = [record for record in caplog.records if getattr(record, "event", "") == "words.refused"]
    assert len(told) == 1


@pytest.mark.parametrize("text", ["bad", None])
async def test_at_first_it_has_to_be_right(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "words"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidArgument, match="words"):
        await taken(file)
