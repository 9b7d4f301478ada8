"""Garbage collection: forget ledgers whose metadata is gone, and give their space back.

One pass: note which ledgers are here, list those that the metadata knows, look once more at each that is here and not
listed, and delete those whose metadata is gone beyond doubt; once a day also those that were moved to other bookies.
Then old tombstones go, then entry logs without anything alive, and now and then logs with little alive are compacted.

Invariants:
  HereBeforeListed   the ledgers here are noted before the listing begins. Metadata comes before the first entry, so a
                     ledger that was here then and is not listed was deleted; in the other order it might just be new.
  WholeListsOnly     an error ends the pass, and so does a ledger that was not listed and exists after all: a list that
                     is short in one place may be short in others.
  GoneIsCertain      a ledger is deleted only after the store said of it by name that there is none, and that it is
                     still the store of this bookie's cluster. One that was added to since then stays.
  MovedTwice         a ledger that was moved is deleted by the second search in a row that finds it so, with nothing
                     added in between: one that is being copied here is not in the metadata yet.
  NothingUnexplained  `report` says of every log that is still there why it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace

from quire.bookie.compaction import (
    Compactor,
    FreeBytes,
    GarbageCounters,
    MakeRoom,
    Pacer,
    Undisturbed,
)
from quire.bookie.index import TOMBSTONE_KEPT_MS, DeleteTombstone
from quire.bookie.ledger_storage import LedgerStorage
from quire.bookie.log_survey import LogLoad, LogSurveyor, newest_log
from quire.bookie.moved_ledgers import MovedLedgers
from quire.codec.entry_log import LogId
from quire.errors import Damaged, DamagedMetadata, InvalidArgument, NoSuchLedger, QuireError
from quire.metadata.ledgers import Ledgers
from quire.protocol.compaction import Compaction, CompactionRule, CompactionSchedule, emptiness
from quire.runtime import Runtime
from quire.types import LedgerId
from quire.values import dataclass

_LEDGERS_PER_DELETE = 256
_LEDGERS_PER_LIST = 10_000  # Neighbours share a folder of the hierarchical layouts, so one read lists them.


@dataclass(frozen=True, slots=True)
class GarbageSettings:
    """How often a bookie tidies up, and how hard it works at it."""

    interval_s: float = 600.0
    """Between two passes. Each reads the whole list of ledgers from the metadata store."""

    minor_interval_s: float = 3_600.0
    minor_live_ratio_max: float = 0.2
    """Logs of which less is alive are compacted every minor interval: a fifth is copied to get the rest. 0: never."""

    major_interval_s: float = 86_400.0
    major_live_ratio_max: float = 0.8
    """The same for a major compaction. More would copy much to gain little. 0 means never."""

    moved_interval_s: float = 86_400.0
    """Between two searches for ledgers that were moved to other bookies: each reads the metadata of every ledger that
    is here, and what two in a row found is deleted. 0 means never."""

    metadata_reads_per_s: float = 1000.0
    """So that a bookie with a million ledgers does not crowd out the clients of the metadata store."""

    compaction_bytes_per_s: float = 32 << 20
    """Read and written together. A fraction of what a disk can do, as readers and writers need it too."""

    free_bytes_min: int = 64 << 20
    """Compaction does not begin to copy what would leave less than this: journals and checkpoints need it."""

    def __post_init__(self) -> None:
        intervals = (self.interval_s, self.minor_interval_s, self.major_interval_s)
        ratios = (self.minor_live_ratio_max, self.major_live_ratio_max)
        limits = (self.free_bytes_min, self.moved_interval_s)
        if min(intervals) <= 0 or not all(0 <= ratio <= 1 for ratio in ratios) or min(limits) < 0:
            raise InvalidArgument("an interval is longer than nothing, and a ratio is between 0 and 1")


@dataclass(frozen=True, slots=True)
class LogReport:
    """One log that is still there, and why. What is not known is None."""

    log_id: int
    log_bytes: int | None
    live_bytes: int | None
    live_ratio: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """The last pass, or the one under way, and what it left. Times are in ms since 1970. Made for `asdict` and JSON."""

    outcome: str = "never run"  # Or "running", "done", "failed", "cancelled".
    error: str | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    is_forced: bool = False
    compaction: str | None = None  # "minor" or "major", while and after it ran.
    ledgers_local: int = 0
    ledgers_deleted: int = 0
    tombstones: int = 0
    minor_suspended: bool = False
    major_suspended: bool = False
    logs: tuple[LogReport, ...] = ()


class GarbageCollector:
    """Tidies up one bookie's storage. `run` does so for ever; `collect` does so once, now.

    `free_bytes` tells how much room the data folder's disk has; `make_room` is entered while compaction has too little.
    `check_cluster` raises if the metadata is not that of this bookie's cluster any more: it is asked before anything is
    deleted. `moved` knows which ledgers are on other bookies by now. `on_pass` is told of the end of each pass,
    `on_failure` if writing failed so that the storage has to be opened anew.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        ledgers: Ledgers,
        runtime: Runtime,
        settings: GarbageSettings,
        *,
        free_bytes: FreeBytes | None = None,
        make_room: MakeRoom | None = None,
        check_cluster: Callable[[], Awaitable[None]] | None = None,
        moved: MovedLedgers | None = None,
        on_pass: Callable[[GarbageCounters], None] = lambda _: None,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._check_cluster = check_cluster
        self._moved, self._moved_at_s = moved, runtime.clock.monotonic()
        self._moved_before: set[LedgerId] = set()  # What the last search found,
        self._moved_touches = 0  # And when that began, as the storage counts.
        self._storage, self._ledgers, self._clock, self._settings = storage, ledgers, runtime.clock, settings
        self._on_failure, self._on_pass = on_failure, on_pass
        self.counters = GarbageCounters()
        self._surveyor = LogSurveyor(storage)
        self._undisturbed = Undisturbed()
        self._compactor = Compactor(
            storage,
            runtime.clock,
            self.counters,
            self._undisturbed,
            bytes_per_s=settings.compaction_bytes_per_s,
            free_bytes=free_bytes,
            free_bytes_min=settings.free_bytes_min,
            make_room=make_room,
        )
        rules = {
            Compaction.MINOR: CompactionRule(settings.minor_live_ratio_max, settings.minor_interval_s),
            Compaction.MAJOR: CompactionRule(settings.major_live_ratio_max, settings.major_interval_s),
        }
        self._schedule = CompactionSchedule(rules, now_s=self._clock.monotonic())
        self._metadata_pacer = Pacer(self._clock, per_s=settings.metadata_reads_per_s)
        self._collecting = asyncio.Lock()
        self._triggered = asyncio.Event()
        self._forced: set[Compaction] = set()
        self._stage = ""
        self._loads: list[LogLoad] = []  # Of the last survey.
        self._report = GarbageReport()
        self._is_over = False

    # --- When

    async def run(self) -> None:
        """A pass every interval, and whenever somebody asks. Ends only when the storage has failed."""
        while not self._is_over:
            try:
                async with asyncio.timeout(self._settings.interval_s):
                    await self._triggered.wait()
            except TimeoutError:
                pass  # It is time.
            is_forced = self._triggered.is_set()
            self._triggered.clear()
            forced, self._forced = self._forced, set()
            await self._collect(forced, is_forced=is_forced)

    def trigger(self, *, minor: bool = False, major: bool = False) -> None:
        """Have `run` do a pass now, or after the one under way, and compact though it is not due yet."""
        self._forced |= _kinds(minor=minor, major=major)
        self._triggered.set()

    def suspend(self, *, minor: bool = True, major: bool = True) -> None:
        """Compact no more; one under way stops after its present batch. What is entirely dead still goes."""
        self._schedule.suspended |= _kinds(minor=minor, major=major)

    def resume(self, *, minor: bool = True, major: bool = True) -> None:
        self._schedule.suspended -= _kinds(minor=minor, major=major)

    def report(self) -> GarbageReport:
        """What the last pass found. While one is under way, logs are as the one before left them."""
        suspended = self._schedule.suspended
        return replace(
            self._report,
            minor_suspended=Compaction.MINOR in suspended,
            major_suspended=Compaction.MAJOR in suspended,
        )

    async def collect(self, *, minor: bool = False, major: bool = False) -> GarbageReport:
        """One pass, now. Errors of the disk and of the metadata store are in the report, not raised."""
        return await self._collect(_kinds(minor=minor, major=major), is_forced=True)

    # --- One pass

    async def _collect(self, forced: Collection[Compaction], *, is_forced: bool) -> GarbageReport:
        async with self._collecting:
            counters, deleted_before = self.counters, self.counters.deleted_ledgers
            outcomes: dict[LogId, str | None] = {}
            outcome, problem = "cancelled", ""
            self._report = replace(
                self._report,
                outcome="running",
                error=None,
                started_ms=self._clock.wall_ms(),
                ended_ms=None,
                is_forced=is_forced,
                compaction=None,
            )
            try:
                await self._undisturbed.settle()  # What a cancelled pass began is part of what this one finds.
                await self._delete_ledgers()
                await self._delete_moved()
                await self._undisturbed.complete(self._drop_tombstones())
                await self._reclaim(forced, outcomes)
                outcome = "done"
            except (QuireError, OSError) as error:
                outcome, problem = "failed", f"{self._stage} failed: {error}"
                counters.passes_failed += 1
                if await self._has_failed():
                    self._is_over = True
                    self._on_failure(self._storage.failure or error)
            finally:
                counters.passes += 1
                self._report = replace(
                    self._report,
                    outcome=outcome,
                    error=problem or None,
                    ended_ms=self._clock.wall_ms(),
                    ledgers_deleted=counters.deleted_ledgers - deleted_before,
                    logs=self._log_reports(outcomes, problem),
                )
                self._on_pass(counters)
            return self.report()

    async def _delete_ledgers(self) -> None:
        """Delete what is here and has no metadata."""
        self._stage = "metadata listing"
        touches, here = self._storage.touches, await self._ledgers_here()
        self._report = replace(self._report, ledgers_local=len(here))
        unlisted = sorted(here - await self._listed(here))
        for start in range(0, len(unlisted), _LEDGERS_PER_DELETE):
            self._stage = "metadata check"
            batch = unlisted[start : start + _LEDGERS_PER_DELETE]
            for ledger_id in batch:
                await self._check_gone(ledger_id)
            if self._check_cluster is not None:
                await self._check_cluster()
            self._stage = "deletion of ledgers"
            until_ms = self._clock.wall_ms() + TOMBSTONE_KEPT_MS
            await self._undisturbed.complete(
                self._storage.delete(batch, tombstones_until_ms=until_ms, touched_max=touches)
            )
            self.counters.deleted_ledgers += sum(not self._storage.is_here(ledger_id) for ledger_id in batch)

    async def _delete_moved(self) -> None:
        """Delete what other bookies have instead, if it is time to look for such."""
        interval_s, now_s = self._settings.moved_interval_s, self._clock.monotonic()
        if self._moved is None or not interval_s or now_s - self._moved_at_s < interval_s:
            return
        self._stage = "search for moved ledgers"
        touches, found = self._storage.touches, set[LedgerId]()
        for ledger_id in sorted(await self._ledgers_here()):
            await self._metadata_pacer.take(1)
            if await self._moved.is_moved(ledger_id):
                found.add(ledger_id)
                if ledger_id in self._moved_before:
                    await self._delete_if_moved(self._moved, ledger_id)
        self._moved_at_s, self._moved_before, self._moved_touches = now_s, found, touches

    async def _delete_if_moved(self, moved: MovedLedgers, ledger_id: LedgerId) -> None:
        async with moved.certainly(ledger_id) as is_certain:
            if is_certain:
                if self._check_cluster is not None:
                    await self._check_cluster()
                until_ms = self._clock.wall_ms() + TOMBSTONE_KEPT_MS
                await self._undisturbed.complete(
                    self._storage.delete([ledger_id], tombstones_until_ms=until_ms, touched_max=self._moved_touches)
                )
                self.counters.deleted_ledgers += not self._storage.is_here(ledger_id)

    async def _ledgers_here(self) -> set[LedgerId]:
        return set(await self._storage.ledger_ids())

    async def _listed(self, here: Collection[LedgerId]) -> set[LedgerId]:
        """Those of `here` that the metadata lists. Raises if the list cannot be read to its end."""
        listed: set[LedgerId] = set()
        folder = -1
        async for ledger_id in self._ledgers.scan():
            if ledger_id // _LEDGERS_PER_LIST != folder:
                folder = ledger_id // _LEDGERS_PER_LIST
                await self._metadata_pacer.take(1)
            if ledger_id in here:
                listed.add(ledger_id)
        return listed

    async def _check_gone(self, ledger_id: LedgerId) -> None:
        await self._metadata_pacer.take(1)
        try:
            await self._ledgers.read(ledger_id)
        except NoSuchLedger:
            return
        except DamagedMetadata:
            pass  # It does not parse, but it is there.
        raise DamagedMetadata(
            f"the list of ledgers left out ledger {ledger_id}, which exists: the list cannot be trusted",
            ledger_id=ledger_id,
        )

    async def _drop_tombstones(self) -> None:
        self._stage = "deletion of tombstones"
        index = self._storage.index
        async with self._storage.checkpointing:  # So none is laid anew between looking and deleting.
            tombstones, now_ms = await asyncio.to_thread(index.tombstones), self._clock.wall_ms()
            expired = [DeleteTombstone(ledger_id) for ledger_id, expires_ms in tombstones if expires_ms <= now_ms]
            if expired:
                await asyncio.to_thread(index.commit, *expired)
        self._report = replace(self._report, tombstones=len(tombstones) - len(expired))

    async def _reclaim(self, forced: Collection[Compaction], outcomes: dict[LogId, str | None]) -> None:
        """Delete the logs without anything alive, and compact if that is due."""
        self._stage = "survey of logs"
        self._loads = await self._surveyor.survey()
        self._stage = "deletion of logs"
        await self._compactor.delete_dead(self._loads, outcomes)
        kind = self._schedule.due(self._clock.monotonic(), forced=forced)
        if kind is None:
            return
        self._stage = f"{kind.value} compaction"
        self._report = replace(self._report, compaction=kind.value)
        if kind is Compaction.MINOR:
            outcomes.update(self._compactor.damaged)  # To read them again every hour would not mend them.
        chosen = [
            load for load in self._loads if load.log_id not in outcomes and self._schedule.covers(kind, load.live_ratio)
        ]
        chosen.sort(key=lambda load: emptiness(load.live_bytes, load.log_bytes))
        await self._compactor.compact(chosen, outcomes, may_go_on=lambda: self._schedule.is_allowed(kind))
        if self._schedule.is_allowed(kind):
            self._on_compacted(kind)

    def _on_compacted(self, kind: Compaction) -> None:
        self._schedule.on_done(kind, self._clock.monotonic())
        if kind is Compaction.MAJOR:
            self.counters.major_compactions += 1
            self.counters.last_major_ms = self._clock.wall_ms()
        else:
            self.counters.minor_compactions += 1
            self.counters.last_minor_ms = self._clock.wall_ms()

    async def _has_failed(self) -> bool:
        """After a first failed write nothing is written any more, so a sync of nothing tells."""
        try:
            await self._storage.logs.sync()
            await asyncio.to_thread(self._storage.index.sync)
        except (OSError, Damaged):
            return True
        return self._storage.failure is not None

    # --- Why what is left is left

    def _log_reports(self, outcomes: Mapping[LogId, str | None], problem: str) -> tuple[LogReport, ...]:
        usage, refused = self._storage.logs.usage(), self._storage.logs.refused()
        newest = newest_log(self._storage.logs)
        loads = {load.log_id: load for load in self._loads}
        now_s, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        reports = [LogReport(each.log_id, None, None, None, f"refused: {each.problem}") for each in refused]
        for each in usage:
            load = loads.get(each.log_id)
            if each.log_id == newest or each.is_growing:
                reason = "newest log"
            elif outcome := outcomes.get(each.log_id):
                reason = outcome
            elif problem or load is None:
                reason = problem or "newer than this pass"
            elif load.problem and not load.is_readable:
                reason = load.problem
            else:
                reason = self._schedule.reason(load.live_ratio, now_s=now_s, wall_ms=wall_ms)
                reason = f"{load.problem}; {reason}" if load.problem else reason
            live_bytes, live_ratio = (None, None) if load is None else (load.live_bytes, load.live_ratio)
            reports.append(LogReport(each.log_id, each.log_bytes, live_bytes, live_ratio, reason))
        return tuple(sorted(reports, key=lambda report: report.log_id))


def _kinds(*, minor: bool, major: bool) -> set[Compaction]:
    return {kind for kind, wanted in ((Compaction.MINOR, minor), (Compaction.MAJOR, major)) if wanted}
