"""All entries of a ledger as they are confirmed, until it is closed: across new ensembles, and while others recover it.

What is confirmed is read in windows; behind it the reader waits at the bookies. A reader may wait for ever for the next
entry, but not for ever in vain: if an entry cannot be read, or no bookie answers, for `read_patience_s`, the error is
raised; and at once if no copy of an entry is left.

Invariants:
  InOrder          each entry is yielded once, and never before the one before it.
  ConfirmedOnly    no entry is yielded that is not confirmed.
  EndsAtTheEnd     it ends when the metadata says that the ledger is closed, and every entry up to there was yielded.
"""

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from quire.codec.entry import Entry
from quire.errors import CallerMistake, QuireError, WrongPassword
from quire.ledger.damage import is_lost
from quire.ledger.poll import Polling
from quire.ledger.ranges import EntryRange
from quire.types import EntryId

if TYPE_CHECKING:
    from quire.ledger.reader import LedgerReader

_RETRY_S_MIN: Final = 0.05


async def windows(reader: "LedgerReader", first: EntryId) -> AsyncGenerator[list[Entry]]:
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

    def __init__(self, reader: "LedgerReader") -> None:
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
