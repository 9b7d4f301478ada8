"""All journals of a bookie: each ledger writes to one of them, so that its records stay in order.

Several disks share the load when there are several journals; a ledger's is chosen by its id. Their records have numbers
of their own, so durability is always asked of the journal of a ledger.
"""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Self

from quire.bookie.journal import Damage, Journal, JournalMark, JournalSettings, Replay
from quire.codec.journal import JournalNumber, Record
from quire.errors import invariant
from quire.runtime import Disk, Runtime
from quire.types import LedgerId


class Journals:
    """The journals that are being written."""

    def __init__(self) -> None:
        self.all: list[Journal] = []
        self._waiting: list[deque[tuple[int, asyncio.Future[None]]]] = []
        self._failure: Exception | None = None

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        folders: Sequence[str],
        settings: JournalSettings,
        *,
        after: Sequence[JournalMark],
        on_durable: Callable[[int, int], None],
        on_written: Callable[[int, int], None] | None = None,
        on_failure: Callable[[Exception], None],
    ) -> Self:
        """Begin a new file in each folder. `on_durable` is told which journal, and up to which record; `on_written` the
        same of groups with records that do not wait for the flush.

        The first failure of any of them is told to `on_failure`; whoever waits for durability gets it too.
        """
        journals = cls()
        try:
            await journals._open(runtime, folders, settings, after, on_durable, on_written, on_failure)
        except BaseException:
            await journals.aclose()
            raise
        return journals

    async def _open(
        self,
        runtime: Runtime,
        folders: Sequence[str],
        settings: JournalSettings,
        after: Sequence[JournalMark],
        on_durable: Callable[[int, int], None],
        on_written: Callable[[int, int], None] | None,
        on_failure: Callable[[Exception], None],
    ) -> None:
        for number, (folder, mark) in enumerate(zip(folders, after, strict=True)):
            self._waiting.append(deque())
            journal = await Journal.open(
                runtime,
                folder,
                settings,
                after=mark,
                number=JournalNumber(number, len(folders)),
                on_durable=self._told(number, on_durable),
                on_failure=lambda error: self._fail(error, on_failure),
            )
            if on_written is not None:
                journal.on_written = functools.partial(on_written, number)
            self.all.append(journal)

    def _told(self, journal: int, on_durable: Callable[[int, int], None]) -> Callable[[int], None]:
        waiting = self._waiting[journal]

        def told(number: int) -> None:
            while waiting and waiting[0][0] <= number:
                _, future = waiting.popleft()
                if not future.done():
                    future.set_result(None)
            on_durable(journal, number)

        return told

    def _fail(self, error: Exception, on_failure: Callable[[Exception], None]) -> None:
        first, self._failure = self._failure is None, self._failure or error
        for waiting in self._waiting:
            while waiting:
                _, future = waiting.popleft()
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # Whoever stopped waiting need not look at it.
        if first:
            on_failure(error)

    def __len__(self) -> int:
        return len(self.all)

    def of(self, ledger_id: LedgerId) -> Journal:
        return self.all[ledger_id % len(self.all)]

    async def wait_durable(self, ledger_id: LedgerId, number: int) -> None:
        """Return once the record of this number in the ledger's journal is durable. Raises what the disk raised."""
        which = ledger_id % len(self.all)
        if number <= self.all[which].durable:
            return
        if self._failure is not None:
            raise self._failure
        waiting = self._waiting[which]
        invariant(not waiting or waiting[-1][0] <= self.all[which].last, "journal numbers only grow")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if waiting and waiting[-1][0] > number:  # Rare: somebody waits for a fence that was set some time ago.
            items = sorted([*waiting, (number, future)], key=lambda item: item[0])
            waiting.clear()
            waiting.extend(items)
        else:
            waiting.append((number, future))
        await future

    @property
    def has_room(self) -> bool:
        return all(journal.has_room for journal in self.all)

    @property
    def failure(self) -> Exception | None:
        return self._failure

    @property
    def marks(self) -> tuple[JournalMark, ...]:
        """The places behind the last durable group of each."""
        return tuple(journal.mark for journal in self.all)

    async def free_before(self, marks: Sequence[JournalMark]) -> None:
        for journal, mark in zip(self.all, marks, strict=True):
            await journal.free_before(mark)

    async def aclose(self) -> None:
        """Write what is queued in each, then close. One that fails does not keep the others open."""
        async with AsyncExitStack() as stack:
            for journal in self.all:
                stack.push_async_callback(journal.aclose)


class Replays:
    """Reads several journals back, one after the other. Afterwards `ends` and `damages` hold one item for each."""

    def __init__(self, disk: Disk, folders: Sequence[str], *, start: Sequence[JournalMark]) -> None:
        self._replays = [
            Replay(disk, folder, start=mark, number=JournalNumber(index, len(folders)))
            for index, (folder, mark) in enumerate(zip(folders, start, strict=True))
        ]

    async def records(self) -> AsyncIterator[Record]:
        for replay in self._replays:
            async for record in replay.records():
                yield record

    @property
    def ends(self) -> list[JournalMark]:
        return [replay.end for replay in self._replays]

    @property
    def damages(self) -> list[list[Damage]]:
        return [replay.damages for replay in self._replays]
