"""What is alive in each entry log: what garbage collection and compaction decide from.

A log counts as alive as far as its ledgers are here. That is an upper bound, told by the log's footer without reading
its entries: of a ledger that is here, entries may have been written anew elsewhere.

Invariants:
  OnlySettledLogs   a log is listed only if the index knows all that was ever put into it. Entries that a checkpoint
                    under way has written are in no index yet, and would look dead. So the list is made while none
                    runs, and without the newest log; whatever begins later is left to the next survey.
  DeadStaysDead     what is dead in a settled log stays so: only new logs are written to, and the index only ever
                    points to what was written last.
"""

import asyncio
from array import array
from collections.abc import Collection

from quire.bookie.entry_log import EntryLogs
from quire.bookie.ledger_storage import LedgerStorage
from quire.codec.entry_log import LogId
from quire.errors import DamagedEntry
from quire.types import LedgerId
from quire.values import dataclass


def newest_log(logs: EntryLogs) -> LogId | None:
    """The log that is never deleted, since its name remembers which ids are taken."""
    taken = [each.log_id for each in logs.usage()] + [each.log_id for each in logs.refused()]
    return max(taken, default=None)


@dataclass(frozen=True, slots=True)
class LogLoad:
    """One settled log, and how much of it belongs to ledgers that are here. None if that cannot be told."""

    log_id: LogId
    log_bytes: int
    live_bytes: int | None = None
    entries: int = 0  # Of all ledgers, dead or alive.
    has_footer: bool = False
    problem: str | None = None  # Why that cannot be told.
    is_readable: bool = True

    @property
    def live_ratio(self) -> float | None:
        return None if self.live_bytes is None else self.live_bytes / max(1, self.log_bytes)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What each ledger takes up in a log, in 16 bytes a ledger."""

    has_footer: bool
    entries: int
    ledger_ids: "array[int]"
    sizes: "array[int]"


class LogSurveyor:
    """Knows what is alive in each log. What a finished log holds never changes, so it is read once and remembered, as
    long as `rows_max` ledgers of all logs suffice; beyond that, footers are read again.
    """

    def __init__(self, storage: LedgerStorage, *, rows_max: int = 4_000_000) -> None:
        self._storage, self._rows_max = storage, rows_max
        self._rows: dict[LogId, _Rows] = {}
        self.rows = 0

    async def survey(self) -> list[LogLoad]:
        """The settled logs, oldest first. Raises if the index failed: what it says would not be durable."""
        logs, index = self._storage.logs, self._storage.index
        async with self._storage.checkpointing:  # `OnlySettledLogs`; and no deletion of ledgers is half done.
            await asyncio.to_thread(index.sync)
            usage, newest = logs.usage(), newest_log(logs)
            live = set(await self._storage.ledger_ids())
        self._forget_all_but({each.log_id for each in usage})
        settled = [each for each in usage if each.log_id != newest and not each.is_growing]
        return [await self._load(each.log_id, each.log_bytes, live) for each in settled]

    async def _load(self, log_id: LogId, log_bytes: int, live: Collection[LedgerId]) -> LogLoad:
        try:
            rows = self._rows.get(log_id) or await self._read(log_id)
        except DamagedEntry as error:
            return LogLoad(log_id, log_bytes, problem=str(error))
        except OSError as error:
            return LogLoad(log_id, log_bytes, problem=f"cannot be read: {error}", is_readable=False)
        await asyncio.sleep(0)  # There may be 65,536 rows: others take their turn between logs.
        live_bytes = sum(size for each, size in zip(rows.ledger_ids, rows.sizes, strict=True) if each in live)
        return LogLoad(log_id, log_bytes, live_bytes, rows.entries, rows.has_footer)

    async def _read(self, log_id: LogId) -> _Rows:
        usage = await self._storage.logs.ledgers_in(log_id)
        rows = _Rows(
            await self._storage.logs.has_footer(log_id),
            sum(each.entries for each in usage.values()),
            array("q", usage),
            array("q", (each.bytes for each in usage.values())),
        )
        if self.rows + len(rows.sizes) <= self._rows_max:
            self._rows[log_id] = rows
            self.rows += len(rows.sizes)
        return rows

    def _forget_all_but(self, log_ids: Collection[LogId]) -> None:
        self._rows = {log_id: rows for log_id, rows in self._rows.items() if log_id in log_ids}
        self.rows = sum(len(rows.sizes) for rows in self._rows.values())
