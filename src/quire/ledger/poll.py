"""Waiting for an entry that is not confirmed yet: bookies are asked to answer when their LAC passes the one before it.

All bookies of the last ensemble may know, also those that do not have the entry. They are asked in turn, from that on
which hears of it first. Each waits; when one lets us wait for long another one is asked too, since the news may not
come to a bookie that is cut off from the writer. After `ensemble - ack quorum + 1` answers without news there was none:
an acknowledged entry would have come to one of them.

Invariants:
  NoSpinning   polls that are answered at once without news are followed by a pause, which grows: of a ledger that is
               fenced and not closed, and of one that a bookie does not know.
  NewsWakes    a change of the metadata ends poll and pause: the ledger may be closed, or on other bookies.
"""

import asyncio
import math
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from quire.codec.entry import Entry
from quire.codec.wire.v3_messages import ReadResponse
from quire.errors import DamagedEntry, NoSuchEntry, NoSuchLedger, QuireError, WrongPassword
from quire.ledger.in_turn import Hurry, ask_in_turn
from quire.ledger.news import News
from quire.types import BookieId, EntryId

if TYPE_CHECKING:
    from quire.ledger.reader import LedgerReader

_FIRST_PAUSE: Final = 1 / 32  # Of the longest.


async def wait_entry(reader: "LedgerReader", entry_id: EntryId, timeout_s: float) -> Entry | None:
    """See `LedgerReader.wait_entry`."""
    ends_s = reader.clock.monotonic() + timeout_s
    polling = Polling(reader)
    reached = False
    while True:
        news = reader.news
        if entry_id <= reader.last_add_confirmed:
            return await reader.read_entry(entry_id)
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

    def __init__(self, reader: "LedgerReader") -> None:
        self._reader = reader
        self._pause_s = self._first_pause_s = reader.settings.poll_pause_s_max * _FIRST_PAUSE
        self.problem: QuireError | None = None  # Why nobody answered the last poll; None if somebody did.

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

    def __init__(self, reader: "LedgerReader", entry_id: EntryId, wait_s: float) -> None:
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
        wait_s = max(
            0.0, self._ends_s - reader.clock.monotonic()
        )  # Whoever is asked later waits less: all end together.
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
