"""The end of a ledger that is still written: how far it is confirmed, the next entry, and all that come.

`follow` yields all entries as they are confirmed, until the ledger is closed: across new ensembles, and through a
recovery. What is confirmed is read in windows; behind it the reader waits for the next entry as long as bookies answer.
If an entry cannot be read, or no bookie answers, for `read_patience_s`, the error is raised; at once if no copy of an
entry is left.

To wait, bookies are asked to answer when their LAC passes the entry before the wanted one: a long poll. Any bookie of
the last ensemble may know, also one that does not have the entry. They are asked in turn, from the one that hears of it
first. When one lets us wait for long another one is asked too: the first may be cut off from the writer. After
`ensemble - ack quorum + 1` answers without news there was none: an acknowledged entry would have come to one of them.

Bookies learn the LAC from entries, each of which carries the LAC that the writer knew, and from explicit LACs.

Invariants:
  InOrder          each entry is yielded once, and never before the one before it.
  ConfirmedOnly    no entry is yielded that is not confirmed.
  EndsAtTheEnd     it ends when the metadata says that the ledger is closed, and every entry up to there was yielded.
  NoSpinning       polls that are answered at once without news are followed by a pause, which grows: of a ledger that
                   is fenced and not closed, and of one that a bookie does not know.
  NewsWakes        a change of the metadata ends poll and pause: the ledger may be closed, or on other bookies.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final

from quire.codec.entry import Entry
from quire.codec.wire.v3_messages import ReadResponse
from quire.errors import (
    BookieFailed,
    BookieUnavailable,
    CallerMistake,
    DamagedEntry,
    NoSuchEntry,
    NoSuchLedger,
    QuireError,
    WrongPassword,
)
from quire.ledger.context import LedgerContext
from quire.ledger.damage import is_lost
from quire.ledger.reading.entries import EntryRange, read_entry
from quire.ledger.reading.hedging import Hurry, ask_in_turn
from quire.ledger.reading.news import News
from quire.ledger.reading.view import LedgerView
from quire.protocol.quorum import is_covered
from quire.rpc import BookieChannel
from quire.types import NO_ENTRY, BookieId, EntryId

_RETRY_S_MIN: Final = 0.05
_FIRST_PAUSE: Final = 1 / 32  # Of the longest.


async def follow(reader: LedgerView, first: EntryId) -> AsyncGenerator[list[Entry]]:
    """One or more entries at a time."""
    at, patience, polling = first, _Patience(reader), Polling(reader)
    with reader.client.metrics.following(lambda: max(0, reader.last_add_confirmed + 1 - at)):
        while True:
            news = reader.news
            try:
                if at <= reader.last_add_confirmed:
                    entry_range = EntryRange(reader, at, reader.last_add_confirmed)
                    async with aclosing(entry_range.windows()) as found:
                        async for entries in found:
                            at = EntryId(entries[-1].entry_id + 1)
                            patience.on_success()
                            yield entries
                    continue
            except QuireError as error:
                await patience.on_error(error)
                continue
            if reader.is_closed:
                return
            if reader.gone is not None:
                raise reader.gone
            entry = await polling.once(at, math.inf, news)
            if entry is not None:
                at = EntryId(at + 1)
                yield [entry]
            if polling.problem is None:
                patience.on_success()
            else:
                await patience.on_error(polling.problem)


class _Patience:
    """How long a reader has tried in vain, and how long it waits before it tries again."""

    def __init__(self, reader: LedgerView) -> None:
        self._reader = reader
        self._failing_since_s: float | None = None
        self._retry_s = _RETRY_S_MIN

    def on_success(self) -> None:
        self._failing_since_s, self._retry_s = None, _RETRY_S_MIN

    async def on_error(self, error: QuireError) -> None:
        """Return when it is time to try again. Raises `error` if that would not help, or has not helped for long."""
        reader, now_s = self._reader, self._reader.clock.monotonic()
        if reader.gone is not None:
            raise reader.gone
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        in_vain_s = now_s - self._failing_since_s
        is_final = isinstance(error, CallerMistake | WrongPassword) or is_lost(error)
        if is_final or in_vain_s >= reader.settings.read_patience_s:
            raise error
        await reader.clock.sleep(self._retry_s)
        self._retry_s = min(2 * self._retry_s, reader.settings.poll_pause_s_max)


# --- Waiting


async def wait_entry(reader: LedgerView, entry_id: EntryId, timeout_s: float) -> Entry | None:
    """See `LedgerReader.wait_entry`."""
    ends_s = reader.clock.monotonic() + timeout_s
    polling = Polling(reader)
    reached = False
    while True:
        news = reader.news
        if entry_id <= reader.last_add_confirmed:
            return await read_entry(reader, entry_id)
        if reader.is_closed:
            return None
        if reader.gone is not None:
            raise reader.gone
        left_s = ends_s - reader.clock.monotonic()
        if left_s <= 0:
            break
        entry = await polling.once(entry_id, left_s, news)
        if entry is not None:
            return entry
        reached = reached or polling.problem is None
    if polling.problem is not None and not reached:
        raise polling.problem
    return None


class Polling:
    """Polls of one reader, one after the other."""

    def __init__(self, reader: LedgerView) -> None:
        self._reader = reader
        self._pause_s = self._first_pause_s = reader.settings.poll_pause_s_max * _FIRST_PAUSE
        self.problem: QuireError | None = None  # Of the last poll, if no bookie answered it.

    async def once(self, entry_id: EntryId, left_s: float, news: News) -> Entry | None:
        """Wait until the entry is confirmed, for one poll and no longer than `left_s`; return it if it came along.

        `news` is the reader's, from before it was looked at: returns early if that is set. Raises `NoSuchLedger` if
        the ledger was deleted.
        """
        reader = self._reader
        began_s = reader.clock.monotonic()
        poll = _Poll(reader, entry_id, min(left_s, reader.settings.poll_s))
        await poll.run(news)
        self.problem = None if poll.reached else poll.problem
        if poll.entry is not None or reader.last_add_confirmed >= entry_id:
            self._pause_s = self._first_pause_s
            return poll.entry
        if not reader.is_watching:
            await reader.refresh()
        pause_s = min(self._pause_s, left_s) - (reader.clock.monotonic() - began_s)
        if pause_s > 0:
            await _until(news, reader.clock.sleep(pause_s))
            self._pause_s = min(2 * self._pause_s, reader.settings.poll_pause_s_max)
        return None


class _Poll:
    """One question to the bookies of an ensemble."""

    def __init__(self, reader: LedgerView, entry_id: EntryId, wait_s: float) -> None:
        self._reader, self._entry_id = reader, entry_id
        self._ends_s = reader.clock.monotonic() + wait_s
        quorum = reader.metadata.metadata.quorum
        self._empty_max = quorum.ensemble - max(1, quorum.ack)
        self._empty = 0
        self.entry: Entry | None = None
        self.reached = True  # Whether somebody answered, or might have if there had been time.
        self.problem: QuireError | None = None

    async def run(self, news: News) -> None:
        """Ask until there is an answer that is enough, or news."""
        reader = self._reader
        bookies, quorum = reader.fragment_of(self._entry_id)[0].bookies, reader.metadata.metadata.quorum
        # That an entry is confirmed is told by the entry after it. Where each entry goes to some bookies only, those of
        # the later one hear of it first.
        start = (self._entry_id + (quorum.write < quorum.ensemble)) % len(bookies)
        order = reader.client.read_order([*bookies[start:], *bookies[:start]])
        hurry = Hurry(reader.settings.speculative_poll_s, reader.settings.speculative_poll_s_max)
        answered = False

        def take(bookie: BookieId, answer: ReadResponse | QuireError, silent: list[BookieId]) -> bool:
            nonlocal answered
            if isinstance(answer, QuireError):
                answered = self._on_error(bookie, answer) or answered
                return False
            answered = True
            return self._on_answer(bookie, answer)

        await ask_in_turn(order, self._ask, take, hurry, lambda: True, news=news)
        self.reached = answered or news.has_come

    async def _ask(self, bookie: BookieId) -> ReadResponse:
        reader, timeout_s = self._reader, self._reader.settings.read_timeout_s
        channel = await reader.client.pool.connect(bookie, 3, timeout_s=timeout_s)
        reader.counts.requests += 1
        reader.counts.polls += 1
        wait_s = max(0.0, self._ends_s - reader.clock.monotonic())  # All polls end at the same time.
        return await channel.long_poll(
            reader.id, EntryId(self._entry_id - 1), math.ceil(wait_s * 1000), timeout_s=wait_s + timeout_s
        )

    def _on_answer(self, bookie: BookieId, answer: ReadResponse) -> bool:
        """Whether it is enough: there is news, or there is certainly none."""
        reader = self._reader
        if answer.max_lac is not None:
            reader.raise_lac(answer.max_lac)
        if reader.last_add_confirmed < self._entry_id:
            self._empty += 1
            return self._empty > self._empty_max
        if answer.body is not None and answer.entry_id == self._entry_id:
            try:
                self.entry = reader.codec.decode(answer.body, entry_id=self._entry_id)
            except DamagedEntry as error:
                self._on_error(bookie, error)
                reader.on_bad_copy(bookie, self._entry_id, error)
                return True  # It is confirmed: another replica will have it.
            reader.on_entries([self.entry], len(self.entry.payload))
        reader.client.on_bookie_answer(bookie)
        return True

    def _on_error(self, bookie: BookieId, error: QuireError) -> bool:
        """Whether that was an answer, too."""
        if isinstance(error, WrongPassword):
            raise error
        self._reader.counts.on_failure(error)
        self._reader.client.on_bookie_error(bookie, error)
        self.problem = error
        return isinstance(error, NoSuchEntry | NoSuchLedger)


async def _until(news: News, work: Coroutine[Any, Any, None]) -> None:
    """Carry out `work`, unless there is news before it is done."""
    if news.has_come:
        work.close()
        return
    try:
        async with asyncio.timeout(None) as limit:
            with news.telling(lambda: limit.reschedule(asyncio.get_running_loop().time())):
                await work
    except TimeoutError:
        if not limit.expired():
            raise


# --- LAC


async def read_lac(client: LedgerContext, reader: LedgerView) -> EntryId:
    """The LAC, once so many of the last ensemble have answered that no acknowledged entry can have been missed.

    Raises `BookieUnavailable` if too few answer; `unanswered` in its facts are those who did not.
    """
    fragment, quorum = reader.metadata.metadata.fragments[-1], reader.metadata.metadata.quorum
    found = EntryId(fragment.first_entry_id - 1)
    answered: set[int] = set()
    errors: dict[BookieId, QuireError] = {}
    async with aclosing(_ask_all(reader, _lac_of, errors)) as answers:
        async for place, lac in answers:
            answered.add(place)
            found = max(found, lac)
            if is_covered(answered, quorum):
                return found
    raise _unanswered(reader, len(answered), errors)


async def try_lac(reader: LedgerView) -> EntryId:
    """The first LAC above the one that the reader knows; if there is none, the known one. Cheaper, and may be late.

    Raises `BookieUnavailable` if nobody answers.
    """
    known, answered = reader.last_add_confirmed, 0
    errors: dict[BookieId, QuireError] = {}
    async with aclosing(_ask_all(reader, _lac_of_last_entry, errors)) as answers:
        async for _, lac in answers:
            answered += 1
            if lac > known:
                return lac
    if not answered:
        raise _unanswered(reader, 0, errors)
    return known


# --- Asking


async def _ask_all(
    reader: LedgerView,
    ask: Callable[[LedgerView, BookieChannel], Coroutine[Any, Any, EntryId]],
    errors: dict[BookieId, QuireError],
) -> AsyncGenerator[tuple[int, EntryId]]:
    """What the bookies of the last ensemble answer, as it comes, with their places. Those that fail are in `errors`."""
    ensemble = reader.metadata.metadata.fragments[-1].bookies
    tasks = [asyncio.create_task(_ask_one(reader, ask, place, bookie, errors)) for place, bookie in enumerate(ensemble)]
    try:
        for done in asyncio.as_completed(tasks):
            try:
                yield await done
            except WrongPassword:
                raise
            except QuireError:
                continue
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask_one(
    reader: LedgerView,
    ask: Callable[[LedgerView, BookieChannel], Coroutine[Any, Any, EntryId]],
    place: int,
    bookie: BookieId,
    errors: dict[BookieId, QuireError],
) -> tuple[int, EntryId]:
    """A bookie that has nothing of the ledger, or whose copy is damaged, has answered and knows of no LAC."""
    client = reader.client
    try:
        channel = await client.pool.connect(bookie, 3, timeout_s=reader.settings.read_timeout_s)
        reader.counts.requests += 1
        lac = await ask(reader, channel)
    except (NoSuchEntry, NoSuchLedger):
        return place, NO_ENTRY
    except QuireError as error:
        reader.counts.on_failure(error)
        client.on_bookie_error(bookie, error)
        if isinstance(error, DamagedEntry):
            return place, NO_ENTRY
        errors[bookie] = error
        raise
    client.on_bookie_answer(bookie)
    return place, lac


async def _lac_of(reader: LedgerView, channel: BookieChannel) -> EntryId:
    """What a bookie knows from its last entry, and from the explicit LAC if there is one."""
    try:
        answer = await channel.read_lac(reader.id, timeout_s=reader.settings.read_timeout_s)
    except BookieFailed:
        return await _lac_without_entries(reader, channel)
    lacs: list[EntryId] = []
    damage: DamagedEntry | None = None
    try:
        if answer.last_entry_body is not None:
            lacs.append(reader.codec.decode(answer.last_entry_body, entry_id=None).lac)
    except DamagedEntry as error:
        damage = error
    if answer.lac_body is not None:
        lacs.append(reader.codec.decode_lac(answer.lac_body))
    if damage is not None and not lacs:
        raise damage
    return max(lacs, default=NO_ENTRY)


async def _lac_without_entries(reader: LedgerView, channel: BookieChannel) -> EntryId:
    """A bookie fails to tell the LAC if it has an explicit one and no entry: one that has just joined, for example.

    Its failure may as well be that of a disk, which proves nothing. That it has no entry has to be said by itself; a
    poll that does not wait then tells the explicit LAC.
    """
    timeout_s = reader.settings.read_timeout_s
    try:
        return await _lac_of_last_entry(reader, channel)
    except (NoSuchEntry, NoSuchLedger):
        answer = await channel.long_poll(reader.id, NO_ENTRY, 0, timeout_s=timeout_s)
        return NO_ENTRY if answer.max_lac is None else answer.max_lac


async def _lac_of_last_entry(reader: LedgerView, channel: BookieChannel) -> EntryId:
    answer = await channel.read(reader.id, NO_ENTRY, version=3, timeout_s=reader.settings.read_timeout_s)
    lac = reader.codec.decode(answer.body or b"", entry_id=None).lac
    return lac if answer.max_lac is None else max(lac, answer.max_lac)


def _unanswered(reader: LedgerView, answered: int, errors: dict[BookieId, QuireError]) -> BookieUnavailable:
    last_error = next(reversed(errors.values()), None)
    ensemble = reader.metadata.metadata.quorum.ensemble
    unanswered = BookieUnavailable(
        f"how far ledger {reader.id} is confirmed cannot be told: {answered} of {ensemble} bookies answered, "
        f"the last error was: {last_error}",
        ledger_id=reader.id,
        unanswered=tuple(errors),
    )
    unanswered.__cause__ = last_error
    return unanswered
