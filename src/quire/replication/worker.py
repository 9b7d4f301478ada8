"""Repair marked ledgers, one after the other: copy what is missing, then say so in the metadata.

    take any marked ledger that nobody works on, and lock it
    ask its bookies again: whoever came back is not replaced
    for each closed fragment with a bad place: choose a bookie, copy, wait for all acknowledgements, change metadata
    the same for a closed ledger's fragments whose bookies stand where the placement policy does not want them, if asked
    ask once more: all well → remove the mark;  open ledger → give its writer time;  else → leave it alone for a while
    an open ledger after that time: bookies missing that could be replaced, or copies bad → recover it, which closes it

Everything may be done twice: a copy that is there already is written again, and metadata that was changed already is
left alone. So a worker may die at any point, and another one begins anew.

Invariants:
  CopiesFirst     metadata names a new bookie only after it acknowledged every entry of its place.
  LastIsForeign   the last fragment of a ledger that is not closed is never touched: first it is recovered.
  LockedOrIdle    nothing is copied without the lock, which is always given back, and metadata is changed only in one
                  transaction with a look at it.
"""

import asyncio
import enum
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from typing import Any

from quire.errors import MetadataUnavailable, NoSuchLedger, NotEnoughBookies, QuireError, SessionExpired
from quire.ledger.client import LedgerClient
from quire.ledger.reading.reader import LedgerReader
from quire.ledger.repair.fragment_check import NOT_LISTED, BadSpan, check_ledger, check_span, learn_lac, plain_reader
from quire.ledger.repair.fragment_copy import Copied, copy_entries
from quire.metadata import Cluster
from quire.metadata.bookies import BookieListing
from quire.metadata.underreplication import HeldMark, Underreplication
from quire.protocol.fragments import Span, spans_of
from quire.protocol.repair import Backoff, Exchange, Look, abandoned, exchanged, may_close, may_shut_out
from quire.replication.metrics import AutorecoveryMetrics
from quire.replication.pacing import Pace
from quire.replication.sessions import in_session
from quire.replication.settings import AutorecoverySettings
from quire.runtime import Clock
from quire.telemetry.events import logger
from quire.types import BookieId, LedgerId, LedgerMetadata, LedgerState

_log = logger("autorecovery")
_MISPLACED = "misplaced"
_ROUNDS_MAX = 3  # Times that one fragment is looked at again because somebody came back meanwhile.


class _Outcome(enum.Enum):
    WHOLE = enum.auto()  # Every bookie has what it should.
    OPEN = enum.auto()  # What is bad belongs to the ledger's writer.
    FAILED = enum.auto()


class _CameBack(Exception):
    """A bookie that is being replaced is listed again."""


class Worker:
    """Repairs marked ledgers until it is cancelled: all, or only those `among` the given ones."""

    def __init__(
        self,
        client: LedgerClient,
        cluster: Cluster,
        marks: Underreplication,
        clock: Clock,
        settings: AutorecoverySettings,
        metrics: AutorecoveryMetrics,
        *,
        among: Container[LedgerId] | None = None,
    ) -> None:
        self._client, self._cluster, self._marks, self._clock = client, cluster, marks, clock
        self._settings, self._metrics, self._among = settings, metrics, among
        self._pace = Pace(clock, settings.bytes_per_s)
        self._backoff = Backoff(settings.failed_ledger_backoff_s)
        self._failures: dict[LedgerId, int] = {}
        self._deferred: dict[HeldMark, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Never returns by itself."""
        while True:
            try:
                await in_session(self._cluster.store, self._work)
            except SessionExpired:
                _log.warning("worker.session_lost")
            except QuireError as error:
                _log.warning("worker.failed", error=str(error))
                await self._clock.sleep(self._settings.failure_pause_s)

    async def _work(self) -> None:
        try:
            await self._marks.prepare()
            await self._client.pool.wait_listed()
            while True:
                await self._marks.wait_enabled()
                if len(self._deferred) >= self._settings.deferred_max:
                    await self._wait_room()
                elif (held := await self._marks.take(self._among)) is not None:
                    await self._repair_held(held)
                else:
                    await self._marks.wait_work(self._settings.idle_s, self._among)
        finally:
            for task in tuple(self._deferred.values()):
                task.cancel()
            if self._deferred:
                await asyncio.wait(tuple(self._deferred.values()))

    async def _wait_room(self) -> None:
        """Until one of the ledgers that have to wait is given back. There may be others to do, but none for us."""
        waiting = tuple(self._deferred.values())
        await asyncio.wait(waiting, timeout=self._settings.idle_s, return_when=asyncio.FIRST_COMPLETED)

    # --- One ledger

    async def _repair_held(self, held: HeldMark) -> None:
        ledger_id = held.ledger_id
        outcome, look = _Outcome.FAILED, None
        try:
            with self._metrics.timed(self._metrics.repairs):
                outcome, look = await self._repair(held)
        except NoSuchLedger:
            outcome = _Outcome.WHOLE  # Deleted: it needs no copies any more.
        except QuireError as error:
            _log.warning("ledger.repair_failed", ledger_id=ledger_id, error=str(error))
            if isinstance(error, MetadataUnavailable | SessionExpired):
                await self._marks.release(held)
                raise
        except BaseException:
            await self._marks.release(held)
            raise
        match outcome:
            case _Outcome.WHOLE:
                self._failures.pop(ledger_id, None)
                is_gone = await self._finish(held)
                _log.info("ledger.whole", ledger_id=ledger_id, marked_again=not is_gone)
            case _Outcome.OPEN:
                grace_s = self._settings.open_ledger_grace_s
                _log.info("ledger.waits_for_writer", ledger_id=ledger_id, grace_s=grace_s)
                self._defer(held, grace_s, lambda: self._look_again(ledger_id, look))
            case _Outcome.FAILED:
                failures = self._failures[ledger_id] = self._failures.get(ledger_id, 0) + 1
                delay_s = self._backoff.delay_s(failures)
                self._metrics.deferred.add()
                _log.warning("ledger.left_alone", ledger_id=ledger_id, failures=failures, delay_s=delay_s)
                self._defer(held, delay_s, None)

    async def _finish(self, held: HeldMark) -> bool:
        try:
            return await self._marks.finish(held)
        except BaseException:
            await self._marks.release(held)
            raise

    async def _repair(self, held: HeldMark) -> tuple[_Outcome, Look | None]:
        """What came of it, and what is wrong with the fragment that belongs to the ledger's writer."""
        ledger_id = held.ledger_id
        reader, listing, is_certain = await self._look(ledger_id)
        bad = await self._check(reader, listing)
        repaired, is_fresh = 0, True
        for each in bad:
            if each.span.is_closed:
                try:
                    repaired += await self._repair_span(held, reader, each, is_fresh=is_fresh)
                except NoSuchLedger:
                    raise
                except QuireError as error:
                    if "unreadable" in error.facts:
                        await self._cluster.ledgers.read(ledger_id)  # Or it was deleted meanwhile, and nothing is lost.
                        self._metrics.unreadable.add()
                    _log.warning("fragment.repair_failed", ledger_id=ledger_id, first=each.span.first, error=str(error))
                is_fresh = False
        if not bad and self._settings.mark_misplaced:
            repaired += await self._place(held, reader)
        self._metrics.repaired.add(int(repaired > 0))
        if bad:
            reader, listing, is_certain = await self._look(ledger_id)
            bad = await self._check(reader, listing)
        look = _last_of(bad)
        if look is not None or abandoned(reader.metadata.metadata, listing.writable):
            return _Outcome.OPEN, look
        return _Outcome.FAILED if bad or not is_certain else _Outcome.WHOLE, None

    async def _look(self, ledger_id: LedgerId) -> tuple[LedgerReader, BookieListing, bool]:
        """The ledger as it is now, opened without disturbing anybody, the bookies that live now, and whether it is
        known how far the ledger is confirmed. If not, only what the metadata proves can be checked, and repaired."""
        reader = plain_reader(self._client, await self._cluster.ledgers.read(ledger_id))
        is_certain = not await learn_lac(reader)
        return reader, await self._cluster.bookies.listing(), is_certain

    async def _check(self, reader: LedgerReader, listing: BookieListing) -> list[BadSpan]:
        listed = listing.writable | listing.readonly
        return await check_ledger(reader, listed, percentage=self._settings.verification_percentage)

    # --- One fragment

    async def _repair_span(self, held: HeldMark, reader: LedgerReader, bad: BadSpan, *, is_fresh: bool) -> bool:
        """Whether there was anything to do. `is_fresh` says that it was checked a moment ago."""
        for _ in range(_ROUNDS_MAX):
            if not is_fresh:
                listing = await self._cluster.bookies.listing()
                bad = await check_span(
                    reader,
                    bad.span,
                    listing.writable | listing.readonly,
                    percentage=self._settings.verification_percentage,
                )
            if not bad.problems:
                _log.info("fragment.came_back", ledger_id=reader.id, first=bad.span.first)
                return False
            exchanges = self._choose(reader, bad)
            try:
                await self._copy(reader, bad, exchanges)
            except _CameBack:
                is_fresh = False
                continue
            await self._publish(held, reader, bad, exchanges)
            return True
        raise NotEnoughBookies("bookies of the fragment come and go", ledger_id=reader.id)

    def _choose(self, reader: LedgerReader, bad: BadSpan) -> dict[int, Exchange]:
        """Who takes each bad place. A bookie that lives, and for which there is no other, gets back what it lacks.

        Raises `NotEnoughBookies` if no place can be filled.
        """
        metadata, ensemble = reader.metadata.metadata, list(bad.span.bookies)
        exclude = frozenset(bad.bookies)
        exchanges: dict[int, Exchange] = {}
        for position in bad.problems:
            old = bad.span.bookies[position]
            try:
                new = self._client.replacement(metadata, tuple(ensemble), position, exclude)
            except NotEnoughBookies as error:
                if old not in self._client.pool.writable:
                    missing = error
                    continue
                new = old
            ensemble[position] = new
            exchanges[position] = Exchange(old, new)
        if not exchanges:
            raise missing
        return exchanges

    async def _copy(self, reader: LedgerReader, bad: BadSpan, exchanges: dict[int, Exchange]) -> None:
        pool = self._client.pool
        away = {bad.span.bookies[position] for position, why in bad.problems.items() if why == NOT_LISTED}
        _log.info(
            "fragment.copying",
            ledger_id=reader.id,
            first=bad.span.first,
            last=bad.span.last,
            exchanges={str(position): list(each) for position, each in exchanges.items()},
            problems={str(position): why for position, why in bad.problems.items()},
        )

        async def before_batch(sent_bytes: int) -> None:
            await self._pace.pay(sent_bytes)
            if not away.isdisjoint(pool.writable | pool.readonly):
                raise _CameBack

        targets: dict[int, BookieId] = {position: exchange.new for position, exchange in exchanges.items()}
        await copy_entries(self._client, reader, bad.span, targets, before_batch=before_batch, on_batch=self._on_batch)

    def _on_batch(self, copied: Copied) -> None:
        self._metrics.entries_read.add(copied.entries)
        self._metrics.entries_written.add(copied.entries)
        self._metrics.bytes_read.add(copied.read_bytes)
        self._metrics.bytes_written.add(copied.written_bytes)

    async def _publish(
        self, held: HeldMark, reader: LedgerReader, bad: BadSpan, exchanges: dict[int, Exchange]
    ) -> None:
        """All copies are there: now the metadata may say so, as long as the lock is ours. Without it a taker may have
        tidied them up, since no metadata named it."""
        moved = {position: each for position, each in exchanges.items() if each.old != each.new}
        if moved:
            stored = await self._cluster.ledgers.read(reader.id)
            stored = await self._cluster.ledgers.update(
                stored, lambda metadata: exchanged(metadata, bad.span.first, moved), guard=held.lock.guard
            )
            reader.adopt(stored)
        _log.info("fragment.repaired", ledger_id=reader.id, first=bad.span.first, places=sorted(exchanges))

    # --- Fragments that stand in the wrong place

    async def _place(self, held: HeldMark, reader: LedgerReader) -> int:
        """Move copies of a closed ledger until the placement policy's rule holds for each fragment. How many fragments
        were changed; one for which there are no such bookies stays as it is, and is found again by the next check."""
        metadata = reader.metadata.metadata
        placed = 0
        if metadata.state is not LedgerState.CLOSED:
            return placed
        for span in spans_of(metadata, metadata.last_entry_id):
            if self._client.keeps_placement(metadata, span.bookies):
                continue
            exchanges = self._choose_better(metadata, span)
            if not exchanges:
                _log.info("fragment.stays_misplaced", ledger_id=reader.id, first=span.first)
                continue
            misplaced = BadSpan(span, dict.fromkeys(exchanges, _MISPLACED), {})  # Every copy is fine.
            try:
                await self._copy(reader, misplaced, exchanges)
                await self._publish(held, reader, misplaced, exchanges)
            except NoSuchLedger:
                raise
            except QuireError as error:  # Nothing is lost by it: the copies are where they were.
                _log.warning("fragment.not_placed", ledger_id=reader.id, first=span.first, error=str(error))
                continue
            placed += 1
        return placed

    def _choose_better(self, metadata: LedgerMetadata, span: Span) -> dict[int, Exchange]:
        """Exchanges with which the rule is kept: one, if one is enough. Empty if there are none."""
        places = range(len(span.bookies))
        for tried in (*([place] for place in places), places):
            found = self._exchange_until_kept(metadata, span, tried)
            if found:
                return found
        return {}

    def _exchange_until_kept(self, metadata: LedgerMetadata, span: Span, places: Iterable[int]) -> dict[int, Exchange]:
        ensemble, exchanges = list(span.bookies), dict[int, Exchange]()
        for place in places:
            gone = frozenset(each.old for each in exchanges.values())
            try:
                new = self._client.replacement(metadata, tuple(ensemble), place, gone)
            except NotEnoughBookies:
                continue
            exchanges[place] = Exchange(ensemble[place], new)
            ensemble[place] = new
            if self._client.keeps_placement(metadata, tuple(ensemble)):
                return exchanges
        return {}

    # --- Ledgers that have to wait

    def _defer(self, held: HeldMark, delay_s: float, then: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Keep the lock for a while, do something, and give the lock back."""

        async def wait() -> None:
            try:
                await self._clock.sleep(delay_s)
                if then is not None:
                    await then()
            except QuireError as error:
                _log.warning("ledger.repair_failed", ledger_id=held.ledger_id, error=str(error))
            finally:
                del self._deferred[held]
                await self._marks.release(held)

        self._deferred[held] = asyncio.create_task(wait(), name=f"ledger {held.ledger_id} has to wait")

    async def _look_again(self, ledger_id: LedgerId, before: Look | None) -> None:
        """The writer had time to replace who is missing. If it did not, or copies are bad of which it knows nothing, it
        is shut out, and the ledger closed. Then it can be repaired."""
        try:
            metadata = (await self._cluster.ledgers.read(ledger_id)).metadata
            if metadata.state is LedgerState.CLOSED:
                return
            writable = (await self._cluster.bookies.listing()).writable
            missing = abandoned(metadata, writable)
            bad = [] if missing else await self._still_bad(ledger_id, before)
            if (bad or may_shut_out(metadata, writable)) and await self._marks.is_enabled():
                _log.warning("ledger.shut_out", ledger_id=ledger_id, missing=missing, bad=bad)
                self._metrics.shut_out.add()
                await self._client.recover(ledger_id)
        except NoSuchLedger:
            return

    async def _still_bad(self, ledger_id: LedgerId, before: Look | None) -> list[BookieId]:
        """Whose copies of the last fragment are a reason to close the ledger."""
        if before is None:
            return []
        reader, listing, is_certain = await self._look(ledger_id)
        after = _last_of(await self._check(reader, listing)) if is_certain else None
        if after is None or not may_close(reader.metadata.metadata.quorum, before, after):
            return []
        return [after.span.bookies[place] for place in after.faults]


def _last_of(bad: Sequence[BadSpan]) -> Look | None:
    """The fragment that belongs to the ledger's writer, if it is bad."""
    return next((Look(each.span, each.faults) for each in bad if not each.span.is_closed), None)
