"""What a reader keeps ready: bounded, in order, and its end told last."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

import pytest

from quire.codec.entry import Entry
from quire.codec.stream_metadata.segment import Segment
from quire.errors import NoSuchStream
from quire.stream.entry_source import RUN_BYTES, Run, _runs_of
from quire.stream.read_ahead import ReadAhead
from quire.testing import run as simulate
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId

SEGMENT = Segment.begun(Lssn(1), LedgerId(1), 0)


def entry(entry_id: int, size: int) -> Entry:
    return Entry(LedgerId(1), EntryId(entry_id), EntryId(entry_id), 0, b"x" * size)


def a_run(number: int, size: int = 10) -> Run:
    after = DLSN(Lssn(1), EntryId(number + 1), SlotId(0))
    return Run(SEGMENT.lssn, SEGMENT.is_enveloped, [entry(number, size)] if size else [], size, after)


class Source:
    """Gives runs, then an error or the end. `given` counts."""

    def __init__(self, sizes: list[int], error: Callable[[], Exception] | None = None) -> None:
        self.sizes, self.error = sizes, error
        self.given = 0
        self.is_closed = False

    async def runs(self) -> AsyncGenerator[Run]:
        try:
            for number, size in enumerate(self.sizes):
                await asyncio.sleep(0.001)
                self.given += 1
                yield a_run(number, size)
            if self.error is not None:
                raise self.error()
        finally:
            self.is_closed = True


def on(source: Source, check: Callable[[ReadAhead], Awaitable[None]], *, bytes_max: int) -> None:
    async def main() -> None:
        async with ReadAhead(source.runs(), bytes_max=bytes_max) as ahead:
            await check(ahead)
        assert source.is_closed or not source.given

    for seed in range(3):
        source.given, source.is_closed = 0, False
        simulate(main(), seed=seed)


async def take(ahead: ReadAhead) -> Run:
    while (run := ahead.take()) is None:
        await ahead.wait()
    return run


def test_no_more_is_fetched_than_fits() -> None:
    source = Source([10] * 20)

    async def check(ahead: ReadAhead) -> None:
        for taken in range(10):
            await asyncio.sleep(1.0)
            assert (ahead.bytes, ahead.entries) == (30, 3)
            assert source.given == taken + 3
            assert (await take(ahead)).after.entry_id == taken + 1

    on(source, check, bytes_max=25)


def test_one_run_is_fetched_however_large() -> None:
    source = Source([1000, 1000])

    async def check(ahead: ReadAhead) -> None:
        await asyncio.sleep(1.0)
        assert source.given == 1
        await take(ahead)
        await asyncio.sleep(1.0)
        assert source.given == 2

    on(source, check, bytes_max=1)


def test_an_error_comes_after_what_was_given_before_it_and_stays() -> None:
    async def check(ahead: ReadAhead) -> None:
        await asyncio.sleep(1.0)
        assert [(await take(ahead)).after.entry_id for _ in range(3)] == [1, 2, 3]
        for _ in range(3):
            with pytest.raises(NoSuchStream) as error:
                await take(ahead)
        frames, traceback = 0, error.value.__traceback__
        while traceback is not None:
            frames, traceback = frames + 1, traceback.tb_next
        assert frames < 10, "each raise would add to it"

    on(Source([10] * 3, lambda: NoSuchStream("it went")), check, bytes_max=1000)


def test_the_end_is_told_last_and_stays() -> None:
    async def check(ahead: ReadAhead) -> None:
        assert (await take(ahead)).size_bytes == 10
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await take(ahead)

    on(Source([10]), check, bytes_max=1000)


def test_an_end_from_outside_is_told_at_once_and_wakes_whoever_waits() -> None:
    async def check(ahead: ReadAhead) -> None:
        await asyncio.sleep(0.0015)
        waiting = asyncio.ensure_future(_take_all(ahead))
        await asyncio.sleep(1.0)
        ahead.end(NoSuchStream("it went"))
        assert (ahead.bytes, ahead.entries) == (0, 0)
        with pytest.raises(NoSuchStream):
            await waiting

    async def _take_all(ahead: ReadAhead) -> None:
        while True:
            await take(ahead)
            await asyncio.sleep(10.0)

    source = Source([10] * 30)

    async def check_closed(ahead: ReadAhead) -> None:
        await check(ahead)
        await asyncio.sleep(1.0)
        assert source.is_closed

    on(source, check_closed, bytes_max=50)


def test_ends_of_empty_segments_do_not_pile_up() -> None:
    async def check(ahead: ReadAhead) -> None:
        await asyncio.sleep(100.0)
        assert len(ahead._ready) == 2
        assert (await take(ahead)).size_bytes == 10
        assert (await take(ahead)).after.entry_id == 1001

    on(Source([10, *[0] * 1000]), check, bytes_max=1000)


def test_leaving_the_block_ends_the_task_wherever_it_is() -> None:
    async def check(ahead: ReadAhead) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.0025):
                await asyncio.Event().wait()

    for bytes_max in (1, 1000):
        on(Source([10] * 5), check, bytes_max=bytes_max)


def test_windows_are_cut_into_runs_that_do_not_keep_the_loop_for_long() -> None:
    sizes = [RUN_BYTES // 2, RUN_BYTES // 2, 1, 3 * RUN_BYTES, 10, 10]
    runs = _runs_of(SEGMENT.lssn, [entry(number, size) for number, size in enumerate(sizes)], is_enveloped=True)
    assert [[each.entry_id for each in run.entries] for run in runs] == [[0, 1], [2], [3], [4, 5]]
    assert [run.size_bytes for run in runs] == [RUN_BYTES, 1, 3 * RUN_BYTES, 20]
    assert [run.after.entry_id for run in runs] == [2, 3, 4, 6]
