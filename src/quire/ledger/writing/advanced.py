"""A ledger whose entry ids the application chooses, such as numbers that it has anyway.

    async with ledgers.create_advanced(ledger_id=7) as ledger:
        await asyncio.gather(ledger.append(1, b"second"), ledger.append(0, b"first"))

Entries may come in any order and from many tasks. They are acknowledged from entry 0 on without a gap: whoever appends
entry n waits for all before it, for ever if one of them never comes. What comes early is kept here until its turn, and
sent then: an entry behind a gap could not be acknowledged, and recovery ends a ledger at the gap, so that sending it
sooner would gain nothing.
"""

from collections.abc import Iterable

from quire.errors import DuplicateEntryId, InvalidArgument
from quire.ledger.context import LedgerContext
from quire.ledger.statistics import WriterStatistics
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import StoredLedger
from quire.runtime.opening import Opened
from quire.types import EntryId, LedgerId


class AdvancedWriter(Opened):
    """A ledger that is being written with ids of the application. Made by `LedgerContext.create_advanced`."""

    def __init__(self, client: LedgerContext, stored: StoredLedger, password: bytes, *, write_flags: int = 0) -> None:
        self._writer = LedgerWriter(client, stored, password, write_flags=write_flags)
        self._early: dict[EntryId, bytes] = {}  # What waits for its turn: in the window, and not sent yet.
        self._waiting: set[EntryId] = set()  # What waits for room in the window.

    # --- What is known

    @property
    def id(self) -> LedgerId:
        return self._writer.id

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._writer.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        """The last entry of those that came without a gap."""
        return self._writer.last_add_pushed

    @property
    def metadata(self) -> StoredLedger:
        return self._writer.metadata

    def statistics(self) -> WriterStatistics:
        return self._writer.statistics()

    # --- Appending

    async def append(self, entry_id: int, payload: bytes) -> EntryId:
        """Add the entry of this id, and return once it and all before it are durable on ack quorums.

        Raises `DuplicateEntryId` if that entry was appended before, and what `LedgerWriter.append` raises.
        """
        return (await self.append_many([(entry_id, payload)]))[0]

    async def append_many(self, entries: Iterable[tuple[int, bytes]]) -> list[EntryId]:
        """Add several, with one wait for all. An id that is there already is refused before any of them is sent."""
        given = list(entries)
        if not given:
            return []
        entry_ids = [EntryId(entry_id) for entry_id, _ in given]
        self._check_ids(entry_ids)
        payloads, _ = self._writer.checked([payload for _, payload in given])
        listed = list(zip(entry_ids, payloads, strict=True))
        self._writer.check_open()
        self._waiting.update(entry_id for entry_id, _ in listed)
        try:
            for entry_id, payload in sorted(listed):
                await self._wait_for_room(min(entry_ids), entry_id)
                self._waiting.discard(entry_id)
                self._hold(entry_id, payload)
        finally:
            self._waiting.difference_update(entry_id for entry_id, _ in listed)
        await self._writer.wait_acknowledged(min(entry_ids), max(entry_ids))
        return entry_ids

    def _check_ids(self, entry_ids: list[EntryId]) -> None:
        if min(entry_ids) < 0:
            raise InvalidArgument(f"there is no entry {min(entry_ids)}", ledger_id=self.id)
        seen: set[EntryId] = set()
        for entry_id in entry_ids:
            if entry_id <= self.last_add_pushed or (
                entry_id in self._early or entry_id in seen or entry_id in self._waiting
            ):
                raise DuplicateEntryId(
                    f"entry {entry_id} of ledger {self.id} was appended before", ledger_id=self.id, entry_id=entry_id
                )
            seen.add(entry_id)

    async def _wait_for_room(self, first: EntryId, entry_id: EntryId) -> None:
        """Whoever's turn it is gets in when nothing is on its way: then all others may be waiting for it."""
        window = self._writer.window
        while not window.has_room:
            if entry_id > self.last_add_pushed + 1:
                await window.wait()
            elif self._writer.is_idle:
                return
            else:  # Until half of it has arrived.
                confirmed = self._writer.acknowledged
                await self._writer.wait_acknowledged(first, EntryId((confirmed + 1 + self.last_add_pushed) // 2))
            self._writer.check_open(sent=[first] if first <= self.last_add_pushed else [])

    def _hold(self, entry_id: EntryId, payload: bytes) -> None:
        """Keep an entry until its turn, and send all whose turn it is now."""
        self._writer.window.take(1, len(payload))
        self._early[entry_id] = payload
        run: list[bytes] = []
        while (following := EntryId(self.last_add_pushed + 1 + len(run))) in self._early:
            run.append(self._early.pop(following))
        if run:
            self._writer.queue(run)
            if self.last_add_pushed + 1 in self._waiting:
                self._writer.window.wake_all()  # It is the turn of one of those who wait for room.
        self._writer.window.pass_on()

    async def flush(self) -> EntryId:
        """Wait until all that came without a gap is acknowledged. Returns the last such entry."""
        return await self._writer.flush()

    async def force(self) -> EntryId:
        """As `LedgerWriter.force`."""
        return await self._writer.force()

    async def close(self, *, drain: bool = True) -> None:
        """As `LedgerWriter.close`. What waits behind a gap is not in the ledger: whoever appended it is told."""
        await self._closed_by(self._writer.close(drain=drain))

    async def __aenter__(self) -> "AdvancedWriter":
        await self._writer.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        await self._writer.__aexit__(kind, *exc_info)
