"""The auditor: the one of all candidates that looks for ledgers which lack copies, and marks them.

It does one thing at a time, in this order: what was asked for by writing the delay, what a lost bookie calls for, and
periodic checks that are due. A lost session or vote ends its term, and it votes again.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from quire.codec import underreplication as nodes
from quire.errors import QuireError, SessionExpired
from quire.ledger.client import LedgerClient
from quire.metadata import BookieListing, Cluster
from quire.metadata.underreplication import Underreplication
from quire.protocol.auditing import LostBookies, Rounds
from quire.replication.checks import Checks
from quire.replication.metrics import AutorecoveryMetrics
from quire.replication.sessions import in_session
from quire.replication.settings import AutorecoverySettings
from quire.runtime import Clock
from quire.telemetry.events import logger

_log = logger("autorecovery")
_BOOKIES = "bookies"


class Auditor:
    """Wants to be the auditor, and is when it is elected, until it is cancelled."""

    def __init__(
        self,
        client: LedgerClient,
        cluster: Cluster,
        marks: Underreplication,
        clock: Clock,
        settings: AutorecoverySettings,
        metrics: AutorecoveryMetrics,
    ) -> None:
        self._cluster, self._marks, self._clock = cluster, marks, clock
        self._settings, self._metrics = settings, metrics
        self._checks = Checks(client, cluster, marks, clock, settings, metrics)

    async def run(self) -> None:
        """Never returns by itself."""
        while True:
            try:
                await in_session(self._cluster.store, self._term)
            except SessionExpired:
                _log.warning("auditor.term_ended")
            except QuireError as error:
                _log.warning("auditor.failed", error=str(error))
                await self._clock.sleep(self._settings.failure_pause_s)

    async def _term(self) -> None:
        await self._marks.prepare()
        self._metrics.elections.add()
        async with self._marks.elected() as vote:
            _log.info("auditor.elected", vote=vote)
            self._metrics.is_auditor.value = 1
            term = _Term(self._cluster, self._marks, self._checks, self._clock, self._settings, self._metrics)
            auditing = asyncio.create_task(term.run(), name="audit")
            losing = asyncio.create_task(self._marks.wait_vote_lost(vote), name="keep the vote")
            try:
                await asyncio.wait([auditing, losing], return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._metrics.is_auditor.value = 0
                auditing.cancel()
                losing.cancel()
                await asyncio.wait([auditing, losing])
            for task in (auditing, losing):
                if not task.cancelled():
                    task.result()
            _log.warning("auditor.vote_lost", vote=vote)


class _Term:
    """What one auditor knows between its election and its end."""

    def __init__(
        self,
        cluster: Cluster,
        marks: Underreplication,
        checks: Checks,
        clock: Clock,
        settings: AutorecoverySettings,
        metrics: AutorecoveryMetrics,
    ) -> None:
        self._cluster, self._marks, self._checks, self._clock = cluster, marks, checks, clock
        self._settings, self._metrics = settings, metrics
        self._news = asyncio.Event()
        self._jobs: dict[str, Callable[[], Awaitable[None]]] = {
            nodes.CHECK_ALL_LEDGERS_CTIME: checks.check_ledgers,
            nodes.PLACEMENT_POLICY_CHECK_CTIME: checks.check_placement,
            nodes.REPLICAS_CHECK_CTIME: checks.check_replicas,
        }

    async def run(self) -> None:
        await self._marks.ensure_delay(self._settings.lost_bookie_delay_s)
        delay_s, self._delay_writes = await self._marks.delay()
        self._lost = LostBookies(await self._cluster.bookies.known(), delay_s)
        self._rounds = await self._new_rounds()
        followers = [
            asyncio.create_task(self._follow_bookies(), name="follow bookies"),
            asyncio.create_task(self._follow_delay(), name="follow the delay"),
        ]
        working = asyncio.create_task(self._work(), name="audit in turn")
        try:
            await asyncio.wait([working, *followers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, *followers):
                task.cancel()
            await asyncio.wait([working, *followers])
        for task in (working, *followers):
            if not task.cancelled():
                task.result()

    async def _new_rounds(self) -> Rounds:
        settings = self._settings
        intervals_s = {
            _BOOKIES: settings.bookie_check_interval_s,
            nodes.CHECK_ALL_LEDGERS_CTIME: settings.ledger_check_interval_s,
            nodes.PLACEMENT_POLICY_CHECK_CTIME: settings.placement_check_interval_s,
            nodes.REPLICAS_CHECK_CTIME: settings.replicas_check_interval_s,
        }
        ages_s: dict[str, float | None] = {_BOOKIES: None}
        for check in self._jobs:
            ended_ms = await self._marks.check_time_ms(check)
            age_s = None if ended_ms is None else max(0.0, (self._clock.wall_ms() - ended_ms) / 1000)
            ages_s[check] = age_s
        return Rounds(intervals_s, ages_s, self._clock.monotonic())

    # --- What happens

    async def _follow_bookies(self) -> None:
        async with aclosing(self._cluster.bookies.follow()) as listings:
            async for listing in listings:
                self._on_listing(listing)

    def _on_listing(self, listing: BookieListing) -> None:
        was_waiting = self._lost.is_waiting
        lost = self._lost.on_listing(listing.writable | listing.readonly, self._clock.monotonic())
        wait_s = None if self._lost.audit_at_s is None else self._lost.audit_at_s - self._clock.monotonic()
        if lost:
            _log.warning("bookies.lost", bookies=lost, audit_in_s=wait_s)
        elif was_waiting:
            _log.info("bookies.came_back")
        if wait_s and not was_waiting:
            self._metrics.bookie_audits.add()
        self._news.set()

    async def _follow_delay(self) -> None:
        async with self._marks.watch_delay() as watch:
            while True:
                delay_s, writes = await self._marks.delay()
                if writes != self._delay_writes:
                    self._delay_writes = writes
                    self._lost.on_delay(delay_s, self._clock.monotonic())
                    _log.info("auditor.delay_written", delay_s=delay_s, audit_now=self._lost.is_waiting)
                    self._news.set()
                await watch.wait_changed()

    # --- What is done, one thing at a time

    async def _work(self) -> None:
        while True:
            self._news.clear()
            now_s = self._clock.monotonic()
            if self._lost.audit_at_s is not None and self._lost.audit_at_s <= now_s:
                await self._audit()
            elif not self._lost.is_waiting and (check := self._rounds.due(now_s)) is not None:
                await self._check(check)
            else:
                await self._wait(now_s)

    async def _wait(self, now_s: float) -> None:
        at_s = self._rounds.next_at_s() if self._lost.audit_at_s is None else self._lost.audit_at_s
        try:
            async with asyncio.timeout(None if at_s == math.inf else max(0.0, at_s - now_s)):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _audit(self) -> None:
        await self._marks.wait_enabled()
        if not await self._checks.audit_bookies(self._lost.on_audit):
            self._lost.on_discarded(self._clock.monotonic())

    async def _check(self, check: str) -> None:
        await self._marks.wait_enabled()
        try:
            if check == _BOOKIES:
                await self._audit()
            else:
                await self._jobs[check]()
                await self._marks.set_check_time(check, self._clock.wall_ms())
        finally:
            self._rounds.on_done(check, self._clock.monotonic())
