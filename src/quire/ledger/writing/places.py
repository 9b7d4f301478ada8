"""Keep the places of an ensemble filled while its ledger is written.

A bookie that fails is replaced: from that moment on nothing is confirmed, until others are published in the metadata
and connected. Where there is nobody to take a place it stays vacant, as long as every entry can reach its ack quorum
without it; and it is filled as soon as somebody can: another bookie, or its own, which the metadata names still. That
one lacks what was written meanwhile, so a fragment begins with it, at whose end repairs find what is missing. So a
cluster of three may restart its bookies one after the other under a writer.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, NamedTuple

from quire.errors import AppendOutcomeUnknown, DiskFull, MetadataUnavailable, NotEnoughBookies, QuireError
from quire.ledger.bookies.health import is_unreachable
from quire.ledger.bookies.pool import Version
from quire.ledger.context import LedgerContext
from quire.ledger.writing.ensemble_change import RETRY_PAUSE_S, EnsembleChange
from quire.ledger.writing.replicas import Replicas
from quire.metadata import StoredLedger
from quire.types import BookieId

_REFILL_S: Final = 2.0  # How often somebody is looked for who takes a vacant place.
_BACK_WITHIN_S: Final = 1.0  # Nothing is confirmed while a bookie is asked whether it is back.
_PATIENCE_S: Final = 5.0  # How long to wait for bookies that are listed, and cannot be reached, if there are no others.
_PAUSE_S_MAX: Final = 300.0  # One that fails again and again is left alone for longer each time, if it is not needed.


class _Trouble(NamedTuple):
    """When a bookie failed, and how long it is left alone after that if it is not needed."""

    since_s: float
    pause_s: float = 2 * _REFILL_S

    def is_over(self, now_s: float) -> bool:
        return now_s - self.since_s >= self.pause_s

    def again(self, now_s: float) -> "_Trouble":
        was_well = now_s - self.since_s > 2 * _PAUSE_S_MAX
        return _Trouble(now_s) if was_well else _Trouble(now_s, min(_PAUSE_S_MAX, 2 * self.pause_s))


class Places:
    """The places of one writer's ensemble. `on_over` is told why they cannot be kept; then the writer is over."""

    def __init__(
        self,
        client: LedgerContext,
        stored: StoredLedger,
        replicas: Replicas,
        version: Version,
        *,
        on_over: Callable[[QuireError], None],
    ) -> None:
        self._client, self.stored, self._replicas, self._version = client, stored, replicas, version
        self._settings, self._on_over = client.settings, on_over
        self._failed: dict[int, BookieId] = {}
        self._vacant: dict[int, BookieId] = {}  # Whose bookie failed, and for which there was no other.
        self._troubles: dict[BookieId, _Trouble] = {}
        self._refused: set[BookieId] = set()  # Who said no: no connection that comes back changes that.
        self._changing: asyncio.Task[None] | None = None
        self._refilling: asyncio.Task[None] | None = None
        self._is_closing = self._is_over = False
        self.changes = 0

    @property
    def _is_changing(self) -> bool:
        return self._changing is not None and not self._changing.done()

    async def wait_unchanging(self) -> None:
        """Return when no change is under way. The writer is about to be closed: no bookie is waited for any more."""
        self._is_closing = True
        if self._changing is not None:
            await asyncio.wait([self._changing])

    def stop(self) -> None:
        """The writer is over. A change under way ends without effect."""
        self._is_over = True

    async def aclose(self) -> None:
        """Let nothing of this run any more."""
        self._is_over = True
        tasks = [task for task in (self._changing, self._refilling) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- Changes

    def on_failed(self, position: int, bookie: BookieId, error: QuireError) -> None:
        """The place needs another bookie, now or as soon as entries find no quorum without it."""
        self._note_failed(position, bookie, error)
        missing = {**self._vacant, **self._failed}
        may_wait = self._settings.delay_ensemble_change and not self._is_changing
        if may_wait and self._replicas.appends.reachable(missing):
            self._vacant, self._failed = missing, {}
            self._refill_later()
        else:
            self._begin_change()

    def _note_failed(self, position: int, bookie: BookieId, error: QuireError) -> None:
        self._failed[position] = bookie
        if not is_unreachable(error):
            self._refused.add(bookie)
        now_s, known = self._client.clock.monotonic(), self._troubles.get(bookie)
        self._troubles[bookie] = _Trouble(now_s) if known is None else known.again(now_s)

    def _troubled(self) -> set[BookieId]:
        """Those to leave alone while they are not needed."""
        now_s = self._client.clock.monotonic()
        return {bookie for bookie, trouble in self._troubles.items() if not trouble.is_over(now_s)}

    def _begin_change(self, avoid: Collection[BookieId] = ()) -> None:
        self._replicas.suspend()  # From this very moment: nothing may be confirmed that counts on who failed.
        if not self._is_changing:
            self._changing = self._spawn(self._change(set(avoid)), "ensemble change")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"{name} of ledger {self.stored.ledger_id}")
        task.add_done_callback(_bring_to_light)
        return task

    async def _change(self, avoid: set[BookieId]) -> None:
        """Fill vacant places, and replace failed bookies until none is left."""
        ledger_id = self.stored.ledger_id
        try:
            while True:
                self._replicas.suspend()
                async with asyncio.timeout(self._settings.change_timeout_s):
                    changed = await self._fill(avoid)
                if self._is_over:
                    return  # Fenced or closed meanwhile.
                self._client.metrics.on_ensemble_change()
                self._replicas.resume(changed)  # Which may find that one of them has failed already.
                if not self._failed:
                    self._refill_later()
                    return
        except QuireError as error:
            self._on_over(error)
        except TimeoutError:
            problem = f"bookies of ledger {ledger_id} could not be replaced in time"
            self._on_over(AppendOutcomeUnknown(problem, ledger_id=ledger_id))
        except BaseException as error:  # A bug, or the end of the loop: whoever waits is told, not left waiting.
            self._on_over(AppendOutcomeUnknown(f"ledger {ledger_id} broke off: {error!r}", ledger_id=ledger_id))
            raise

    async def _fill(self, avoid: set[BookieId]) -> dict[int, BookieId]:
        """Publish others in the places of those that failed, and be connected to them. Whoever failed meanwhile is in
        `avoid`, and is tried again only when there are no others.
        """
        changed: dict[int, BookieId] = {}
        is_needed, patient_until_s = False, self._client.clock.monotonic() + _PATIENCE_S
        avoid |= self._troubled()
        while True:
            is_needed |= bool(self._failed)
            self.changes += bool(self._failed)
            if self.changes > self._settings.ensemble_changes_max:
                raise AppendOutcomeUnknown(f"ledger {self.stored.ledger_id} changed its bookies {self.changes} times")
            back = await self._take_back(avoid)
            failed, self._failed = {**self._vacant, **self._failed}, {}
            avoid.update(failed.values())
            confirmed = self._replicas.appends.confirmed
            change = EnsembleChange(self._client, confirmed, failed, avoid, back=back)
            try:
                self.stored = await change.publish(self.stored)
            except NotEnoughBookies:
                self._vacant = failed | back
                is_cut_off = len(failed) == len(self._replicas.ensemble)  # It is us, not the bookies.
                is_hopeless = is_cut_off or self._client.pool.writable.isdisjoint(avoid - self._refused)
                if is_hopeless or self._is_closing or self._client.clock.monotonic() >= patient_until_s:
                    raise
                avoid.clear()  # Somebody may only have lost a connection, or have been away for a moment.
                await self._client.clock.sleep(RETRY_PAUSE_S)
                continue
            except (MetadataUnavailable, DiskFull):  # Nothing was stored.
                if is_needed or changed:
                    raise
                self._vacant = failed | back  # As before; unless somebody failed just now.
                if self._failed:
                    continue
                return {}
            self._vacant = change.vacant
            changed |= back | change.replaced
            for position, bookie in change.replaced.items():
                try:
                    await self._client.pool.connect(bookie, self._version, timeout_s=self._settings.read_timeout_s)
                except QuireError as error:
                    self._client.on_bookie_error(bookie, error)
                    self._note_failed(position, bookie, error)
            if not self._failed:
                return changed

    # --- Vacant places

    def _refill_later(self) -> None:
        if self._vacant and not self._is_over and (self._refilling is None or self._refilling.done()):
            self._refilling = self._spawn(self._refill_all(), "vacant places")

    async def _refill_all(self) -> None:
        ledger_id = self.stored.ledger_id
        try:
            while self._vacant and not self._is_over:
                await self._client.clock.sleep(_REFILL_S)
                if not self._is_changing:
                    await self._refill()
        except Exception as error:  # A bug, perhaps of a placement policy: whoever waits is told, not left waiting.
            self._on_over(AppendOutcomeUnknown(f"ledger {ledger_id} broke off: {error!r}", ledger_id=ledger_id))
            raise

    async def _refill(self) -> None:
        """Look for somebody who takes a vacant place. Whoever has to be waited for is waited for here, while entries
        are confirmed."""
        troubled, is_any = self._troubled(), False
        avoid = troubled | set(self._vacant.values())
        for position, bookie in [*self._vacant.items()]:
            may_be_back = bookie in self._client.pool.writable and bookie not in troubled
            if may_be_back and await self._is_reached(bookie):
                avoid.discard(bookie)
                is_any = True
            elif not self._settings.delay_ensemble_change:
                is_any |= await self._is_replaceable(position, avoid)
        if is_any and not self._is_over and not self._is_changing:
            self._begin_change(avoid)

    async def _is_replaceable(self, position: int, avoid: set[BookieId]) -> bool:
        """Whether there is another bookie for a place, and it can be reached. Those that cannot are to be avoided."""
        while True:
            try:
                chosen = self._client.replacement(
                    self.stored.metadata, self._replicas.ensemble, position, frozenset(avoid)
                )
            except NotEnoughBookies:
                return False
            if await self._is_reached(chosen):
                return True
            avoid.add(chosen)

    async def _take_back(self, avoid: Collection[BookieId]) -> dict[int, BookieId]:
        """The bookies of vacant places that can be reached again."""
        taken: dict[int, BookieId] = {}
        for position, bookie in [*self._vacant.items()]:
            is_listed = bookie in self._client.pool.writable and bookie not in avoid
            if is_listed and await self._is_reached(bookie, within_s=_BACK_WITHIN_S):
                taken[position] = self._vacant.pop(position)
        return taken

    async def _is_reached(self, bookie: BookieId, *, within_s: float | None = None) -> bool:
        timeout_s = self._settings.read_timeout_s if within_s is None else within_s
        try:
            await self._client.pool.connect(bookie, self._version, timeout_s=timeout_s)
        except QuireError:
            return False
        return True


def _bring_to_light(task: asyncio.Task[None]) -> None:
    """What is raised here is a bug: whoever waited for the ledger was told, and nobody else awaits the task."""
    if not task.cancelled() and (error := task.exception()) is not None:
        message = "keeping the bookies of a ledger failed"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
