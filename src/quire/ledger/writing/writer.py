"""The one writer of a ledger: entries go out in runs and are acknowledged in order.

    entry_id = await writer.append(b"payload")          # returns when an ack quorum of bookies has it
    entry_ids = await writer.append_many(payloads)      # one wait for all of them

What is appended within one turn of the loop leaves as one run. A window bounds what is in flight, in entries and bytes:
beyond it `append` waits. When a bookie fails, another takes its place: nothing is acknowledged until the metadata says
so, since the new fragment begins right behind the last acknowledged entry.

With deferred sync bookies acknowledge before an entry is on disk. Then `append` returns earlier, and what is confirmed
moves only with `force`, when the disks of all bookies have it. A bookie cannot be replaced then: what it acknowledged
was never proven.

Invariants, of those in the ledger protocol:
  AckedIsConfirmed     an append returns only after its entry and all before it have an ack quorum.
  PublishedFirst       no entry counts on a new bookie before the ensemble with it is stored.
  PoisonedStaysSilent  after a fence, a lost change or a close nothing is ever acknowledged again.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Final, Protocol

from quire.codec.digest import digest_for, master_key
from quire.codec.entry import EntryCodec
from quire.codec.wire.frames import payload_bytes_max
from quire.errors import (
    AppendOutcomeUnknown,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    QuireError,
    RequestTooLarge,
)
from quire.ledger.context import LedgerContext
from quire.ledger.statistics import WriterStatistics
from quire.ledger.writing.ensemble_change import closed_metadata
from quire.ledger.writing.errors import again, append_error
from quire.ledger.writing.lac import force_all, tell_lac
from quire.ledger.writing.places import Places
from quire.ledger.writing.replicas import Replicas, Run
from quire.ledger.writing.requests import AddRequests, FlaggedAdds, PlainAdds
from quire.ledger.writing.window import Waiters, Window
from quire.metadata import StoredLedger
from quire.runtime.opening import Opened
from quire.types import NO_ENTRY, BookieId, DigestType, EntryId, LedgerId

_RUN_ENTRIES_MAX: Final = 500  # A run is encoded without a pause: answers and other ledgers wait meanwhile.
_RUN_BYTES_MAX: Final = 512 << 10


class AppendListener(Protocol):
    """Whoever sends with `enqueue_nowait` and wants to hear what became of it. Called within a turn of the loop."""

    def on_confirmed(self, confirmed: EntryId) -> None:
        """Entries up to this one are acknowledged, and there may be room for others."""

    def on_over(self) -> None:
        """Nothing more is acknowledged. `error_for` says what to tell of an entry."""


class LedgerWriter(Opened):
    """A ledger that is being written. Made by `LedgerContext.create`, for use as `async with`."""

    def __init__(self, client: LedgerContext, stored: StoredLedger, password: bytes, *, write_flags: int = 0) -> None:
        metadata = stored.metadata
        self._client, self._settings = client, client.settings
        digest, key = digest_for(metadata.digest or DigestType.CRC32C, password), master_key(password)
        self._codec, self._key = EntryCodec(stored.ledger_id, digest), key
        self._payload_bytes_max = payload_bytes_max(
            digest_bytes=digest.size, frame_bytes_max=client.settings.frame_bytes_max
        )
        requests: AddRequests = (
            FlaggedAdds(stored.ledger_id, digest, key, write_flags=write_flags)
            if write_flags
            else PlainAdds(stored.ledger_id, digest, key)
        )
        self._replicas = Replicas(
            client.pool,
            stored.ledger_id,
            metadata.quorum,
            metadata.fragments[-1].bookies,
            requests,
            lag_bytes_max=client.settings.replica_bytes_max,
            on_confirmed=self._on_confirmed,
            on_failed=self._on_failed,
            on_final=self.poison,
        )
        self._places = Places(client, stored, self._replicas, requests.version, on_over=self.poison)
        self.is_deferred = write_flags != 0
        self._forced: tuple[EntryId, int] = (NO_ENTRY, 0)  # With deferred sync: what all disks have, and its length.
        self._acked_length = 0  # The ledger's length after the last run that is acknowledged as a whole.
        self.length = 0  # Payload bytes of all entries that were sent.
        self._queued: list[bytes] = []  # Payloads that have an id and wait to be sent.
        self.window = Window(entries_max=self._settings.window_entries_max, bytes_max=self._settings.window_bytes_max)
        self._waiters = Waiters()
        self.listener: AppendListener | None = None
        self._pump_is_due = False
        self._waiting_for_channel: asyncio.Task[None] | None = None
        self._told_lac = NO_ENTRY  # What bookies know of what is confirmed.
        self._progress_s = client.clock.monotonic()
        self._minding: asyncio.Task[None] | None = None
        self._problem: QuireError | None = None
        self._is_sealed = False
        self._last_failure: QuireError | None = None  # Of a bookie: why others were needed.

    # --- What is known

    @property
    def id(self) -> LedgerId:
        return self._places.stored.ledger_id

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that is acknowledged, with all before it; with deferred sync, the last one that is forced."""
        return self._forced[0] if self.is_deferred else self._replicas.appends.confirmed

    @property
    def acknowledged(self) -> EntryId:
        """The last entry that is acknowledged, with all before it, forced or not."""
        return self._replicas.appends.confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        """The last entry that got an id."""
        return EntryId(self._replicas.appends.pushed + len(self._queued))

    @property
    def metadata(self) -> StoredLedger:
        """What the metadata store says of the ledger, as far as this writer knows."""
        return self._places.stored

    def statistics(self) -> WriterStatistics:
        return WriterStatistics(
            confirmed=self.last_add_confirmed,
            pushed=self.last_add_pushed,
            length=self.length,
            in_flight_entries=self.window.entries,
            in_flight_bytes=self.window.bytes,
            ensemble=self._replicas.ensemble,
            ensemble_changes=self._places.changes,
        )

    # --- Appending

    async def append(self, payload: bytes) -> EntryId:
        """Add one entry and return its id once it is durable on an ack quorum of bookies.

        Raises `RequestTooLarge` and `LedgerClosed` (nothing was sent), `LedgerFenced` and `AppendOutcomeUnknown` (the
        entry may be in the ledger). A cancelled append may be in the ledger too.
        """
        return (await self.append_many((payload,)))[0]

    async def append_many(self, payloads: Sequence[bytes]) -> list[EntryId]:
        """Add entries in this order and return their ids. As `append`, with one wait for all of them.

        Entries of other calls come between only when these do not fit into the window at once.
        """
        entry_ids = await self.enqueue(payloads)
        if entry_ids:
            await self.wait_acknowledged(entry_ids[0], entry_ids[-1])
        return entry_ids

    async def enqueue(self, payloads: Sequence[bytes]) -> list[EntryId]:
        """Send entries without waiting for them: return their ids once they fit into the window.

        They are acknowledged when `flush` returns, or `last_add_confirmed` has reached them.
        """
        payloads, sizes = self.checked(payloads)
        entry_ids: list[EntryId] = []
        while len(entry_ids) < len(payloads):
            self.check_open(sent=entry_ids)
            if await self.window.wait():
                self._client.metrics.on_window_wait()
                self.check_open(sent=entry_ids)
            done = len(entry_ids)
            count, size_bytes = self.window.fit(sizes, done)
            self.window.take(count, size_bytes)
            first = self.last_add_pushed + 1
            self.queue(payloads[done : done + count])
            entry_ids += map(EntryId, range(first, first + count))
            self.window.pass_on()
        return entry_ids

    def enqueue_nowait(self, payload: bytes) -> EntryId:
        """Send one entry, which is not too large, without waiting: whether the window has room the caller asks before.

        Raises `LedgerClosed` or `LedgerFenced` if nothing can be sent any more.
        """
        self.check_open()
        self.window.take(1, len(payload))
        self.queue((payload,))
        return self.last_add_pushed

    def checked(self, payloads: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
        """The same as bytes, which nobody changes any more, and their sizes. Raises `RequestTooLarge`."""
        try:
            frozen = [payload if type(payload) is bytes else bytes(memoryview(payload)) for payload in payloads]
        except TypeError as error:
            raise InvalidArgument(f"an entry is bytes: {error}") from error
        sizes = list(map(len, frozen))
        if sizes and max(sizes) > self._payload_bytes_max:
            raise RequestTooLarge(
                f"an entry of {max(sizes)} bytes does not fit: {self._payload_bytes_max} is the most",
                hint="Split it, or raise the frame limit of bookies and clients.",
            )
        return frozen, sizes

    def check_open(self, *, sent: Sequence[EntryId] = ()) -> None:
        """Raises why nothing can be appended any more: `LedgerClosed` or `LedgerFenced`, if nothing was `sent` yet."""
        if self._problem is not None and sent:
            raise self.error_for(sent[0])
        if isinstance(self._problem, LedgerFenced):
            raise again(self._problem)
        if self._problem is not None:
            raise LedgerClosed(f"nothing can be appended to ledger {self.id}: {self._problem}", ledger_id=self.id)

    def queue(self, payloads: Sequence[bytes]) -> None:
        """Give the next ids to these, which are in the window, and send them as soon as may be."""
        if not self._queued and not self._replicas.appends.in_flight:
            self._progress_s = self._client.clock.monotonic()
        self._queued += payloads
        self._pump_soon()

    @property
    def is_idle(self) -> bool:
        """Whether everything that was appended is acknowledged."""
        return self.last_add_pushed == self._replicas.appends.confirmed

    async def flush(self) -> EntryId:
        """Wait until everything sent so far is acknowledged. Returns the last entry."""
        last = self.last_add_pushed
        await self.wait_acknowledged(EntryId(self._replicas.appends.confirmed + 1), last)
        return last

    async def force(self) -> EntryId:
        """With deferred sync: have all that is acknowledged on the disks of all bookies. Returns the last such entry.

        Without there is nothing to do. Raises `LedgerClosed`, and `AppendOutcomeUnknown` if one bookie cannot: then the
        ledger ends with what was forced before.
        """
        self.check_open()
        head = self._replicas.appends.confirmed
        if not self.is_deferred or head <= self._forced[0]:
            return self.last_add_confirmed
        length = self._length_at(head)
        try:
            timeout_s = self._settings.read_timeout_s
            await force_all(self.id, await self._replicas.lasting_channels(timeout_s=timeout_s), timeout_s=timeout_s)
        except QuireError as error:
            self.poison(error)
        if self._problem is not None:
            raise self.error_for(EntryId(self._forced[0] + 1))
        self._forced = max(self._forced, (head, length))  # A later call may have been answered first.
        return self.last_add_confirmed

    async def wait_acknowledged(self, first: EntryId, last: EntryId) -> None:
        """Return when entries up to `last` are acknowledged, also if they are not queued yet. Raises why they will
        never be: `LedgerClosed` only if `first`, and so none of them, was ever sent.
        """
        if last <= self._replicas.appends.confirmed:
            return
        if self._problem is not None:
            raise self.error_for(first)
        await self._waiters.wait(first, last)

    # --- Sending

    def _pump_soon(self) -> None:
        if not self._pump_is_due and self._queued:
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Send what is queued, one run a turn, unless the bookies' connections are full."""
        self._pump_is_due = False
        queued = self._queued
        if not queued or self._problem is not None or self._waiting_for_channel is not None:
            return
        channel = self._replicas.crowded()
        if channel is not None:
            waiting = asyncio.create_task(channel.wait_writable(), name=f"room for ledger {self.id}")
            self._waiting_for_channel = waiting
            waiting.add_done_callback(self._on_channel_writable)
            return
        count = size_bytes = 0
        for payload in queued:
            if count and (count == _RUN_ENTRIES_MAX or size_bytes > _RUN_BYTES_MAX):
                break
            count += 1
            size_bytes += len(payload)
        run = queued[:count]
        del queued[:count]
        lac = self.last_add_confirmed
        try:
            self.length = self._replicas.send(run, lac=lac, length=self.length, now_s=self._client.clock.monotonic())
        except BaseException as error:  # A bug: whoever waits is told, and it comes to light.
            self.poison(AppendOutcomeUnknown(f"ledger {self.id} broke off: {error!r}", ledger_id=self.id))
            raise
        self._told_lac = max(self._told_lac, lac)
        self._pump_soon()

    def _on_channel_writable(self, waiting: "asyncio.Task[None]") -> None:
        if not waiting.cancelled():
            waiting.exception()  # The channel may be gone: whoever sends through it next notices.
        if waiting is self._waiting_for_channel:
            self._stop_waiting_for_channel()

    def _stop_waiting_for_channel(self) -> None:
        """It has room, or is nothing to wait for any more: its bookie was replaced, or the writer is over."""
        waiting, self._waiting_for_channel = self._waiting_for_channel, None
        if waiting is not None:
            waiting.cancel()
        self._pump_soon()

    # --- What the bookies say

    def _on_confirmed(self, confirmed: EntryId, done: list[Run]) -> None:
        now_s = self._progress_s = self._client.clock.monotonic()
        metrics = self._client.metrics
        for run in done:
            size_bytes = sum(map(len, run.payloads))
            self._acked_length = run.length_before + size_bytes
            self.window.give_back(len(run.payloads), size_bytes)
            metrics.on_appended(len(run.payloads), size_bytes)
            metrics.on_append_seconds(now_s - run.sent_s, len(run.payloads), self.id)
        self._waiters.on_confirmed(confirmed)
        if self.listener is not None:
            self.listener.on_confirmed(confirmed)

    def _length_at(self, confirmed: EntryId) -> int:
        runs = self._replicas.runs
        return runs[0].length_at(confirmed) if runs and runs[0].first <= confirmed else self._acked_length

    def _on_failed(self, position: int, bookie: BookieId, error: QuireError) -> None:
        self._client.on_bookie_error(bookie, error)
        if self._problem is not None:
            return
        self._last_failure = error
        self._stop_waiting_for_channel()  # It may have been that of the failed one.
        if self.is_deferred:
            self.poison(error)  # What it acknowledged was never proven to be on its disk.
            return
        self._places.on_failed(position, bookie, error)

    def poison(self, error: QuireError) -> None:
        """Nothing is acknowledged from here on: everybody who waits is told that the outcome is unknown."""
        if self._problem is not None:
            return
        problem = self._problem = append_error(error, self.id, self._last_failure)
        if not isinstance(problem, LedgerClosed):
            self._client.metrics.on_append_failed()
        self._acked_length = self._length_at(self._replicas.appends.confirmed)
        self._replicas.stop()
        self._places.stop()
        self._waiters.fail(self.error_for)
        if self.listener is not None:
            self.listener.on_over()
        self.window.wake_all()  # They look at the problem themselves.
        self._stop_waiting_for_channel()

    def error_for(self, first: EntryId) -> QuireError:
        """What to tell of entries from `first` on: if that was sent, nobody knows whether it is in the ledger."""
        problem = self._problem
        if problem is None or isinstance(problem, LedgerFenced | AppendOutcomeUnknown):
            return again(problem or AppendOutcomeUnknown(f"ledger {self.id} is over", ledger_id=self.id))
        if first > self._replicas.appends.pushed:
            return again(problem)
        unknown = AppendOutcomeUnknown(f"{problem}, with entries on their way", ledger_id=self.id)
        unknown.__cause__ = problem
        return unknown

    # --- While nothing else happens

    async def _mind(self) -> None:
        """Tell bookies what is confirmed when no entry does, and give up on entries that find no quorum."""
        settings, clock = self._settings, self._client.clock
        lac_interval_s, told_s = settings.explicit_lac_interval_s, clock.monotonic()
        while self._problem is None:
            await clock.sleep(min(lac_interval_s or math.inf, settings.append_timeout_s / 4))
            confirmed, now_s = self.last_add_confirmed, clock.monotonic()
            if lac_interval_s and confirmed > self._told_lac and now_s - told_s >= lac_interval_s:
                told_s, packet = now_s, self._codec.encode_lac(confirmed)
                ensemble = self._replicas.ensemble
                if await tell_lac(self._client, self._places.stored, ensemble, confirmed, self._key, packet):
                    self._told_lac = max(self._told_lac, confirmed)
            waited_s = clock.monotonic() - self._progress_s
            if not self.is_idle and waited_s > settings.append_timeout_s:
                problem = f"no entry of ledger {self.id} found an ack quorum for {waited_s:.0f} s"
                self.poison(AppendOutcomeUnknown(problem, ledger_id=self.id))

    # --- Closing

    async def close(self, *, drain: bool = True) -> None:
        """Seal the ledger at its last acknowledged entry. With `drain` what is in flight is waited for first.

        With deferred sync it is sealed at what was forced: call `force` before. Raises `LedgerFenced` if another client
        sealed it elsewhere. A second call does nothing. If bookies lack entries, autorecovery is told at once.
        """
        await self._closed_by(self._seal(drain=drain))

    async def _seal(self, *, drain: bool) -> None:
        undrained: QuireError | None = None
        if drain and self._problem is None:
            try:
                await self.flush()
            except QuireError as error:
                undrained = error  # What is acknowledged is sealed all the same.
        if self._is_sealed:
            return
        await self._places.wait_unchanging()
        self.poison(LedgerClosed(f"ledger {self.id} is closed", ledger_id=self.id))
        confirmed, length = self._forced if self.is_deferred else (self.last_add_confirmed, self._acked_length)
        is_all = confirmed == self._replicas.appends.pushed
        try:
            self._places.stored = await self._client.ledgers_metadata.update(
                self._places.stored,
                lambda metadata: closed_metadata(metadata, self.id, confirmed, length, is_all=is_all),
            )
        except LedgerFenced:
            await self._client.mark_lacking(self.id, self._replicas.lacking)
            raise
        self._is_sealed = True
        await self._client.mark_lacking(self.id, self._replicas.lacking)
        if undrained is not None:
            raise undrained

    async def __aenter__(self) -> "LedgerWriter":
        if self.is_deferred and self._settings.delay_ensemble_change:
            raise InvalidArgument("with deferred sync no bookie is ever replaced, so that cannot be delayed either")
        self._minding = asyncio.create_task(self._mind(), name=f"mind ledger {self.id}")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        try:
            await self._seal(drain=kind is None)
        except QuireError:
            if kind is None:
                raise
            # What went wrong in the block says more.
        finally:
            if self._minding is not None:
                self._minding.cancel()
                await asyncio.wait([self._minding])
            await self._places.aclose()
            if self._minding is not None and not self._minding.cancelled():
                self._minding.result()  # A bug comes to light.
