"""What clients of one ledger did and were told, and the proof that the ledger keeps its promises.

Writers, readers and recoverers note here what happens to them while it happens. Nothing is judged by the clock, so the
same history and the same proof serve simulations and real processes. Afterwards, when everything was repaired:

    await check(ledgers, history)

Invariants, of those in the ledger protocol:
  AckedIsKept         every acknowledged entry is in the closed ledger, with the payload that was acknowledged.
  ReadersAgree        whoever was told where the ledger ends was told the same; all read the same entries.
  ShownStays          what a reader was shown as confirmed is in the closed ledger.
  LacOnlyGrows        one handle never sees the LAC move back.
  ClosedIsTerminal    OPEN, IN_RECOVERY, CLOSED, in this order; a closed ledger changes bookies and nothing else.
  KeysOnlyGrow        fragments begin at strictly increasing entries, and none that was published disappears.
  OnceEach            a payload that was sent once is there at most once, and nothing else is there.
  LengthIsRight       the length in the metadata is the sum of the payloads.
  QuorumHasIt         each entry is on an ack quorum of the bookies that the metadata names for it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from quire.codec.wire.availability import EntryAvailability
from quire.errors import NoSuchEntry, NoSuchLedger, QuireError
from quire.ledger.client import LedgerClient
from quire.ledger.reading.reader import LedgerReader
from quire.protocol.quorum import write_set
from quire.types import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState

NO_LEDGER = LedgerId(-1)
_TAIL_COPIES = 3  # Entries before the end whose copies are compared one by one: that is where recoveries write.
_ORDER = (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED)


@dataclass
class LedgerHistory:
    """One ledger as its clients saw it. `violations` is what was wrong at the very moment."""

    ledger_id: LedgerId = NO_LEDGER
    sent: set[bytes] = field(default_factory=set)  # Each payload is sent once.
    acknowledged: dict[EntryId, bytes] = field(default_factory=dict)
    ends: dict[str, EntryId] = field(default_factory=dict)  # Who was told that the closed ledger ends where.
    lacs: dict[str, EntryId] = field(default_factory=dict)  # What each handle saw last.
    shown: dict[EntryId, bytes] = field(default_factory=dict)  # What readers got as confirmed.
    metadata: LedgerMetadata | None = None  # The newest version that anybody saw.
    violations: list[str] = field(default_factory=list)

    def on_sent(self, payloads: Sequence[bytes]) -> None:
        """About to be sent. Each payload may be sent once only, or `OnceEach` would prove nothing."""
        if not self.sent.isdisjoint(payloads):
            self.violations.append(f"the test sends {self.sent.intersection(payloads)} a second time")
        self.sent.update(payloads)

    def on_acknowledged(self, entry_ids: Sequence[EntryId], payloads: Sequence[bytes]) -> None:
        for entry_id, payload in zip(entry_ids, payloads, strict=True):
            if self.acknowledged.setdefault(entry_id, payload) != payload:
                self.violations.append(f"entry {entry_id} was acknowledged for two payloads")

    def on_end(self, who: str, end: EntryId) -> None:
        """Somebody was told that the ledger is closed and ends with this entry."""
        if self.ends.setdefault(who, end) != end:
            self.violations.append(f"{who} was told that the ledger ends at {self.ends[who]}, and then at {end}")

    def on_lac(self, handle: str, lac: EntryId) -> None:
        """A handle says that all up to here is confirmed."""
        if lac < self.lacs.get(handle, lac):
            self.violations.append(f"the LAC that {handle} saw moved back from {self.lacs[handle]} to {lac}")
        self.lacs[handle] = lac

    def on_shown(self, entry_id: EntryId, payload: bytes) -> None:
        """A reader got this entry as a confirmed one."""
        if self.shown.setdefault(entry_id, payload) != payload:
            self.violations.append(f"readers were shown two payloads of entry {entry_id}")

    def on_metadata(self, metadata: LedgerMetadata) -> None:
        """Somebody read the metadata. Call it in the order of versions."""
        before, self.metadata = self.metadata, metadata
        keys = [fragment.first_entry_id for fragment in metadata.fragments]
        if keys != sorted(set(keys)):
            self.violations.append(f"fragments begin at {keys}")
        if before is None:
            return
        if _ORDER.index(metadata.state) < _ORDER.index(before.state):
            self.violations.append(f"the ledger went from {before.state.name} to {metadata.state.name}")
        published = [fragment.first_entry_id for fragment in before.fragments]
        if keys[: len(published)] != published:
            self.violations.append(f"fragments began at {published}, and then at {keys}")
        if before.state is LedgerState.CLOSED and _closed_as(before) != _closed_as(metadata):
            self.violations.append(f"a closed ledger changed from {_closed_as(before)} to {_closed_as(metadata)}")


def _closed_as(metadata: LedgerMetadata) -> tuple[EntryId, int, list[EntryId]]:
    return metadata.last_entry_id, metadata.length, [fragment.first_entry_id for fragment in metadata.fragments]


async def check(ledgers: LedgerClient, history: LedgerHistory, *, excused: Collection[BookieId] = ()) -> None:
    """Prove the invariants, sealing the ledger if nobody has. Raises `AssertionError` with what is wrong.

    All bookies have to be up again, but for those that are `excused`: their disks were lost or damaged in this run, so
    they may be missing, and are taken to have had every copy that was theirs.
    """
    assert not history.violations, str(history.violations)
    entries, end = await _read_all(ledgers, history.ledger_id)
    told = {who: other for who, other in history.ends.items() if other != end}
    assert not told, f"the ledger ends at {end}, and some were told otherwise: {told}"
    lost = [entry_id for entry_id in history.acknowledged if entry_id > end]
    assert not lost, f"acknowledged entries {sorted(lost)} are behind the end, {end}"
    hidden = [entry_id for entry_id in history.shown if entry_id > end]
    assert not hidden, f"entries {sorted(hidden)} were shown to readers and are behind the end, {end}"
    ahead = {handle: lac for handle, lac in history.lacs.items() if lac > end}
    assert not ahead, f"the ledger ends at {end}, and handles saw more confirmed: {ahead}"
    for entry_id, payload in (*history.acknowledged.items(), *history.shown.items()):
        assert payload == entries[entry_id], f"entry {entry_id} is not what was acknowledged or shown"
    assert set(entries.values()) <= history.sent, "the ledger has what nobody sent"
    assert len(set(entries.values())) == len(entries), "a payload is there twice"
    assert await _read_all(ledgers, history.ledger_id) == (entries, end), "two readers do not agree"
    metadata = (await ledgers.ledgers_metadata.read(history.ledger_id)).metadata
    history.on_metadata(metadata)
    assert not history.violations, str(history.violations)
    assert metadata.state is LedgerState.CLOSED
    length = sum(map(len, entries.values()))
    assert metadata.length == length, f"the metadata say {metadata.length} bytes, and there are {length}"
    await _check_copies(ledgers, metadata, history.ledger_id, entries, frozenset(excused))


async def _read_all(ledgers: LedgerClient, ledger_id: LedgerId) -> tuple[dict[EntryId, bytes], EntryId]:
    try:
        async with ledgers.open(ledger_id) as reader:
            assert reader.is_closed
            entries = {entry.entry_id: entry.payload async for entry in reader.read()}
            assert list(entries) == list(range(reader.last_add_confirmed + 1)), "entries are missing or out of order"
            return entries, reader.last_add_confirmed
    except QuireError as error:
        raise AssertionError(f"ledger {ledger_id} cannot be read although all is well again: {error!r}") from error


async def _check_copies(
    ledgers: LedgerClient,
    metadata: LedgerMetadata,
    ledger_id: LedgerId,
    entries: dict[EntryId, bytes],
    excused: frozenset[BookieId],
) -> None:
    quorum = metadata.quorum
    named = sorted({bookie for fragment in metadata.fragments for bookie in fragment.bookies} - excused)
    found = {bookie: await _available(ledgers, bookie, ledger_id) for bookie in named}
    for entry_id in entries:
        ensemble = metadata.ensemble_at(entry_id)
        members = [ensemble[position] for position in write_set(entry_id, quorum)]
        having = [bookie for bookie in members if bookie in excused or entry_id in found[bookie]]
        assert len(having) >= quorum.ack, f"entry {entry_id} should be on {quorum.ack} of {members}, and is on {having}"
    async with ledgers.open(ledger_id) as reader:
        for entry_id in list(entries)[-_TAIL_COPIES:]:
            for bookie in [metadata.ensemble_at(entry_id)[position] for position in write_set(entry_id, quorum)]:
                if bookie not in excused and entry_id in found[bookie]:
                    await _check_copy(reader, bookie, entry_id, entries[entry_id])


async def _available(ledgers: LedgerClient, bookie: BookieId, ledger_id: LedgerId) -> EntryAvailability:
    """Which entries a bookie has; none, if it does not know the ledger."""
    try:
        channel = await ledgers.pool.connect(bookie, 3, timeout_s=ledgers.settings.read_timeout_s)
        return await channel.list_entries(ledger_id)
    except (NoSuchLedger, NoSuchEntry):
        return EntryAvailability.of(())
    except QuireError as error:
        raise AssertionError(f"bookie {bookie} does not tell what it has: {error!r}") from error


async def _check_copy(reader: LedgerReader, bookie: BookieId, entry_id: EntryId, payload: bytes) -> None:
    try:
        copy = await reader.read_from(bookie, entry_id, fence=False)
    except QuireError as error:
        raise AssertionError(f"bookie {bookie} has entry {entry_id} and does not give it: {error!r}") from error
    assert copy.payload == payload, f"the copy of entry {entry_id} on bookie {bookie} is another one"
