"""The one writer of a ledger: entries go out in runs and are acknowledged in order.

    entry_id = await writer.append(b"payload")          # returns when an ack quorum of bookies has it
    entry_ids = await writer.append_many(payloads)      # one wait for all of them

What is appended within one turn of the loop leaves as one run. A window bounds what is in flight, in entries and bytes:
beyond it `append` waits. When a bookie fails, another takes its place: nothing is acknowledged until the metadata says
so, since the new fragment begins right behind the last acknowledged entry.

Invariants, of those in the ledger protocol:
  AckedIsConfirmed     an append returns only after its entry and all before it have an ack quorum.
  PublishedFirst       no entry counts on a new bookie before the ensemble with it is stored.
  PoisonedStaysSilent  after a fence, a lost change or a close nothing is ever acknowledged again.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.codec.digest import Digest, digest_for, master_key
from quire.codec.entry import EntryCodec
from quire.codec.wire.frames import payload_bytes_max
from quire.codec.wire.v2 import add_request_prefix
from quire.errors import (
    AppendOutcomeUnknown,
    LedgerClosed,
    LedgerFenced,
    QuireError,
    RequestTooLarge,
)
from quire.ledger.ensembles import EnsembleChange, closed_metadata
from quire.ledger.replicas import Frame, Replicas
from quire.metadata import StoredLedger
from quire.types import BookieId, DigestType, EntryId, LedgerId

if TYPE_CHECKING:
    from quire.ledger.client import LedgerClient

_SMALL_BYTES = 4096  # Payloads up to this are copied into their frame: fewer parts are cheaper than one copy less.


class LedgerWriter:
    """A ledger that is being written. Made by `LedgerClient.create`, for use as `async with`."""

    def __init__(self, client: "LedgerClient", stored: StoredLedger, password: bytes) -> None:
        metadata = stored.metadata
        self._client, self._stored = client, stored
        self._settings = client.settings
        digest: Digest = digest_for(metadata.digest or DigestType.CRC32C, password)
        self._codec = EntryCodec(stored.ledger_id, digest)
        self._key = master_key(password)
        self._payload_bytes_max = payload_bytes_max(
            digest_bytes=digest.size, frame_bytes_max=client.settings.frame_bytes_max
        )
        self._replicas = Replicas(
            client.pool,
            stored.ledger_id,
            metadata.quorum,
            metadata.fragments[-1].bookies,
            unsent_bytes_max=client.settings.replica_bytes_max,
            on_confirmed=self._on_confirmed,
            on_failed=self._on_failed,
            on_final=self._poison,
        )
        self.length = 0  # Payload bytes of all entries that were given an id.
        self._queued: list[bytes] = []  # Payloads of this turn of the loop.
        self._sizes: deque[int] = deque()  # Of the payloads in flight, for the window.
        self._lengths: deque[int] = deque()  # The ledger's length after each entry in flight.
        self._confirmed_length = 0
        self._in_flight_bytes = 0
        self._waiting: deque[tuple[EntryId, asyncio.Future[None]]] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
        self._failed: dict[int, BookieId] = {}
        self._vacant: dict[int, BookieId] = {}  # Places whose bookie failed, and for which there was no other.
        self._changing: asyncio.Task[None] | None = None
        self._changes = 0
        self._problem: QuireError | None = None

    # --- What is known

    @property
    def id(self) -> LedgerId:
        return self._stored.ledger_id

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that is acknowledged, with all before it."""
        return self._replicas.appends.confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        """The last entry that got an id."""
        return EntryId(self._replicas.appends.pushed + len(self._queued))

    @property
    def metadata(self) -> StoredLedger:
        """What the metadata store says of the ledger, as far as this writer knows."""
        return self._stored

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
            await self._wait_confirmed(entry_ids[-1])
        return entry_ids

    async def enqueue(self, payloads: Sequence[bytes]) -> list[EntryId]:
        """Send entries without waiting for them: return their ids once they fit into the window.

        They are acknowledged when `flush` returns, or `last_add_confirmed` has reached them.
        """
        self._check_sizes(payloads)
        entry_ids: list[EntryId] = []
        while len(entry_ids) < len(payloads):
            await self._wait_for_room()
            count = self._take(payloads, len(entry_ids))
            pushed = self.last_add_pushed
            entry_ids += map(EntryId, range(pushed + 1 - count, pushed + 1))
        return entry_ids

    async def flush(self) -> EntryId:
        """Wait until everything sent so far is acknowledged. Returns the last entry."""
        last = self.last_add_pushed
        if last > self.last_add_confirmed or self._problem is not None:
            await self._wait_confirmed(last)
        return last

    def _check_sizes(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            if len(payload) > self._payload_bytes_max:
                raise RequestTooLarge(
                    f"an entry of {len(payload)} bytes does not fit: {self._payload_bytes_max} is the most",
                    hint="Split it, or raise the frame limit of bookies and clients.",
                )

    def _take(self, payloads: Sequence[bytes], place: int) -> int:
        """Queue as many payloads as the window allows, at least one. Returns how many."""
        entries_left = self._settings.window_entries_max - len(self._sizes)
        count, size = 0, 0
        bytes_left = self._settings.window_bytes_max - self._in_flight_bytes
        while place + count < len(payloads) and (count == 0 or (count < entries_left and size < bytes_left)):
            size += len(payloads[place + count])
            count += 1
        taken = payloads[place : place + count]
        self._sizes.extend(map(len, taken))
        self._in_flight_bytes += size
        if not self._queued:
            asyncio.get_running_loop().call_soon(self._flush)
        self._queued += taken
        return count

    async def _wait_for_room(self) -> None:
        """Return when something fits. First come, first served."""
        while True:
            if self._problem is not None:
                raise self._closed_error()
            if not self._room and self._has_room:
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(turn)
            try:
                await turn
            finally:
                if turn in self._room:
                    self._room.remove(turn)
            if self._has_room:
                return

    @property
    def _has_room(self) -> bool:
        settings = self._settings
        return len(self._sizes) < settings.window_entries_max and self._in_flight_bytes < settings.window_bytes_max

    async def _wait_confirmed(self, last: EntryId) -> None:
        if self._problem is not None:
            raise self._problem
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((last, done))
        await done

    def _flush(self) -> None:
        """Send what was appended in this turn of the loop, as one run."""
        queued, self._queued = self._queued, []
        if not queued or self._problem is not None:
            return
        appends = self._replicas.appends
        lac, first = appends.confirmed, appends.push(len(queued))
        frames: list[Frame] = []
        prefix, key, length = self._codec.prefix, self._key, self.length
        entry_id = first
        for payload in queued:
            length += len(payload)
            entry = prefix(entry_id, payload, lac=lac, length=length)
            head = add_request_prefix(key, entry_bytes=len(entry) + len(payload))
            if len(payload) <= _SMALL_BYTES:
                frames.append((head + entry + payload,))
            else:
                frames.append((head + entry, payload))
            self._lengths.append(length)
            entry_id = EntryId(entry_id + 1)
        self.length = length
        self._replicas.send(first, frames)

    # --- What the bookies say

    def _on_confirmed(self, confirmed: EntryId) -> None:
        in_flight = self._replicas.appends.in_flight + len(self._queued)
        for _ in range(len(self._sizes) - in_flight):
            self._in_flight_bytes -= self._sizes.popleft()
        for _ in range(len(self._lengths) - self._replicas.appends.in_flight):
            self._confirmed_length = self._lengths.popleft()
        waiting = self._waiting
        while waiting and waiting[0][0] <= confirmed:
            done = waiting.popleft()[1]
            if not done.done():
                done.set_result(None)
        if self._room and self._has_room:
            turn = self._room.popleft()
            if not turn.done():
                turn.set_result(None)

    def _on_failed(self, position: int, bookie: BookieId, error: QuireError) -> None:
        self._client.on_bookie_error(bookie, error)
        if self._problem is not None:
            return
        self._failed[position] = bookie
        if self._settings.delay_ensemble_change and self._replicas.appends.reachable(self._failed):
            return  # The others suffice, so far.
        self._replicas.suspend()  # From this very moment: nothing may be confirmed that counts on it.
        if self._changing is None or self._changing.done():
            self._changing = asyncio.create_task(self._change(), name=f"ensemble change of ledger {self.id}")

    async def _change(self) -> None:
        """Replace failed bookies until none is left. If that cannot be done, the writer is over."""
        try:
            while self._failed:
                self._replicas.suspend()
                async with asyncio.timeout(self._settings.change_timeout_s):
                    changed = await self._replace_failed()
                if self._problem is not None:
                    return  # Fenced or closed meanwhile.
                self._replicas.resume(changed)  # Which may find that one of them has failed already.
        except QuireError as error:
            self._poison(error)
        except TimeoutError:
            self._poison(AppendOutcomeUnknown(f"bookies of ledger {self.id} could not be replaced in time"))
        except BaseException as error:  # A bug, or the end of the loop: whoever waits is told, not left waiting.
            self._poison(AppendOutcomeUnknown(f"ledger {self.id} broke off: {error!r}", ledger_id=self.id))
            raise

    async def _replace_failed(self) -> dict[int, BookieId]:
        """Publish others in the places of those that failed, and be connected to them."""
        changed: dict[int, BookieId] = {}
        while self._failed:
            self._changes += 1
            if self._changes > self._settings.ensemble_changes_max:
                raise AppendOutcomeUnknown(f"ledger {self.id} changed its bookies {self._changes} times")
            failed, self._failed = {**self._vacant, **self._failed}, {}
            change = EnsembleChange(self._client, self._replicas.appends.confirmed, failed)
            self._stored = await change.publish(self._stored)
            self._vacant = change.vacant
            changed |= change.replaced
            for position, bookie in change.replaced.items():
                try:
                    await self._client.pool.connect(bookie, 2, timeout_s=self._settings.read_timeout_s)
                except QuireError as error:
                    self._client.on_bookie_error(bookie, error)
                    self._failed[position] = bookie
        return changed

    def _poison(self, error: QuireError) -> None:
        """Nothing is acknowledged from here on: everybody who waits is told that the outcome is unknown."""
        if self._problem is not None:
            return
        self._problem = _append_error(error, self.id)
        self._replicas.stop()
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(self._problem)
                done.exception()  # Whoever was cancelled does not look.
        self._waiting.clear()
        for turn in self._room:
            if not turn.done():
                turn.set_result(None)  # They look at the problem themselves.
        self._room.clear()

    def _closed_error(self) -> QuireError:
        problem = self._problem
        if isinstance(problem, LedgerFenced | LedgerClosed):
            return problem
        return LedgerClosed(f"ledger {self.id} cannot be written on: {problem}", ledger_id=self.id)

    # --- Closing

    async def close(self, *, drain: bool = True) -> None:
        """Seal the ledger at its last acknowledged entry. With `drain` what is in flight is waited for first.

        Raises `LedgerFenced` if another client sealed it elsewhere. A second call does nothing.
        """
        if drain and self._problem is None and self.last_add_pushed > self.last_add_confirmed:
            await self._wait_confirmed(self.last_add_pushed)
        problem = self._problem
        if isinstance(problem, LedgerClosed):
            return
        if self._changing is not None and not self._changing.done():
            await asyncio.wait([self._changing])
        confirmed, length = self.last_add_confirmed, self._confirmed_length
        self._poison(LedgerClosed(f"ledger {self.id} is closed", ledger_id=self.id))
        self._stored = await self._client.ledgers_metadata.update(
            self._stored, lambda metadata: closed_metadata(metadata, self.id, confirmed, length)
        )

    async def __aenter__(self) -> "LedgerWriter":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        try:
            await self.close(drain=kind is None)
        except QuireError:
            if kind is None:
                raise
            # What went wrong in the block says more.


def _append_error(error: QuireError, ledger_id: LedgerId) -> QuireError:
    if isinstance(error, LedgerFenced | LedgerClosed | AppendOutcomeUnknown):
        return error
    unknown = AppendOutcomeUnknown(f"ledger {ledger_id} broke off: {error}", ledger_id=ledger_id)
    unknown.__cause__ = error
    return unknown
