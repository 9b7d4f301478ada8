"""Recovery: shut out the writer of a ledger, find out where it ends, and seal it there.

1. The metadata says IN_RECOVERY: from here on the writer cannot change bookies.
2. The last ensemble is fenced, as far as no ack quorum can consist of bookies that have not answered: from here on
   nothing more can be acknowledged. Their answers tell the highest LAC that the writer sent.
3. Entries behind it are read in order, each read a fence as well, and written back to all who should have them. One
   intact copy means that an entry is there; it is absent only when so many of its bookies deny it that the others are
   no ack quorum. Anything else, silence, damage, a refusal, means that nobody knows, and the recovery fails.
4. At the first absent entry the ledger is sealed.

Invariants, of those in the ledger protocol:
  AckedIsKept        every entry that was acknowledged is in the sealed ledger.
  FencedBeforeAbsent an entry is called absent only by bookies that are fenced, so it cannot come later.
  SealedOnce         if another client sealed the ledger first, its word counts.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from quire.codec.entry import Entry
from quire.codec.wire.v2 import HIGH_PRIORITY, RECOVERY_ADD
from quire.errors import (
    BookieUnavailable,
    DamagedEntry,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    QuireError,
    RecoveryFailed,
    WrongPassword,
)
from quire.ledger.context import LedgerContext
from quire.ledger.reading.reader import LedgerReader
from quire.ledger.writing.ensemble_change import RETRY_PAUSE_S, EnsembleChange
from quire.ledger.writing.replicas import Replicas
from quire.ledger.writing.requests import PlainAdds
from quire.metadata import StoredLedger
from quire.protocol.quorum import absences_needed, is_covered, write_set
from quire.types import NO_ENTRY, BookieId, EntryId, LedgerMetadata, LedgerState

_AHEAD_MAX: Final = 16  # Entries that are looked for, and written back, at the same time.


async def recover(client: LedgerContext, stored: StoredLedger, password: bytes) -> StoredLedger:
    """Seal a ledger, whoever writes it. Returns its metadata when it is closed.

    Raises `WrongPassword`, and `RecoveryFailed` if too few bookies answered; then it can be tried again.
    """
    return await _Recovery(client, stored, password).run()


class _Recovery:
    def __init__(self, client: LedgerContext, stored: StoredLedger, password: bytes) -> None:
        self._client, self._stored, self._frozen = client, stored, stored
        self._password = password
        self._reader = LedgerReader(client, stored, password)
        self._failed: dict[int, BookieId] = {}
        self._vacant: dict[int, BookieId] = {}
        self._avoid: set[BookieId] = set()  # Who failed, in whichever place.
        self._lacking: Collection[BookieId] = ()
        self._problem: QuireError | None = None
        self._changed = asyncio.Event()

    async def run(self) -> StoredLedger:
        self._stored = await self._client.ledgers_metadata.update(self._stored, _begin)
        if self._stored.metadata.state is LedgerState.CLOSED:
            return self._stored
        self._frozen = self._stored  # Reads go by this: those who are chosen later know nothing of old entries.
        self._reader = LedgerReader(self._client, self._stored, self._password)
        fragment = self._stored.metadata.fragments[-1]
        confirmed, length = await self._fence(fragment.bookies)
        start = max(confirmed, EntryId(fragment.first_entry_id - 1))
        last, length = await self._write_back(start, length if start == confirmed else None)
        sealed = await self._seal(last, length)
        await self._client.mark_lacking(sealed.ledger_id, self._lacking)
        return sealed

    # --- Shutting the writer out

    async def _fence(self, ensemble: tuple[BookieId, ...]) -> tuple[EntryId, int | None]:
        """Fence enough of the last ensemble. Returns the highest LAC they knew, and the length there if it is known."""
        quorum = self._stored.metadata.quorum
        answered: set[int] = set()
        lac, length, last_error = NO_ENTRY, None, None
        tasks = {asyncio.create_task(self._fence_one(bookie)): p for p, bookie in enumerate(ensemble)}
        try:
            for done in asyncio.as_completed(list(tasks)):
                try:
                    position, entry = await done
                except WrongPassword:
                    raise
                except QuireError as error:
                    last_error = error
                    continue
                answered.add(ensemble.index(position))
                if entry is not None and entry.lac > lac:
                    lac = entry.lac
                    length = None
                if entry is not None and entry.entry_id == lac:
                    length = entry.length
                if is_covered(answered, quorum):
                    return lac, length
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise RecoveryFailed(
            f"ledger {self._stored.ledger_id} cannot be recovered: {len(answered)} of {len(ensemble)} answered; "
            f"the last error: {last_error}",
            ledger_id=self._stored.ledger_id,
        ) from last_error

    async def _fence_one(self, bookie: BookieId) -> tuple[BookieId, Entry | None]:
        """Fence one bookie and get its last entry; None if it has none, or none that can be trusted."""
        client, reader = self._client, self._reader
        try:
            channel = await client.pool.connect(bookie, 3, timeout_s=client.settings.read_timeout_s)
            answer = await channel.read(
                reader.id,
                NO_ENTRY,
                version=3,
                master_key=reader.master_key,
                timeout_s=client.settings.read_timeout_s,
            )
            return bookie, reader.codec.decode(answer.body or b"", entry_id=None)
        except (NoSuchEntry, NoSuchLedger, DamagedEntry):
            return bookie, None  # Fenced all the same.
        except QuireError as error:
            client.on_bookie_error(bookie, error)
            raise

    # --- Finding the end

    async def _write_back(self, start: EntryId, length: int | None) -> tuple[EntryId, int]:
        """Read on behind `start` and write back what is found. Returns the last entry of the ledger and its length."""
        metadata, client, reader = self._stored.metadata, self._client, self._reader
        replicas = Replicas(
            client.pool,
            self._stored.ledger_id,
            metadata.quorum,
            metadata.fragments[-1].bookies,
            PlainAdds(reader.id, reader.codec.digest, reader.master_key, flags=RECOVERY_ADD | HIGH_PRIORITY),
            confirmed=start,
            lag_bytes_max=client.settings.replica_bytes_max,
            on_confirmed=lambda *_: self._changed.set(),
            on_failed=self._on_failed,
            on_final=self._on_final,
        )
        try:
            async with aclosing(self._find_all(EntryId(start + 1))) as found:
                async for entry in found:
                    if replicas.appends.pushed == start:
                        await self._connect(replicas.ensemble)
                    length = entry.length
                    replicas.send(
                        [entry.payload],
                        lac=start,  # Not what is written back by now: readers would see it before it is decided.
                        length=entry.length - len(entry.payload),
                        now_s=client.clock.monotonic(),
                    )
                    await self._settle(replicas, in_flight_max=_AHEAD_MAX)
            await self._settle(replicas, in_flight_max=0)
            last = replicas.appends.confirmed
            return last, await self._length_at(last) if length is None else length
        except (NotEnoughBookies, NoSuchEntry, BookieUnavailable) as error:
            raise RecoveryFailed(f"ledger {reader.id} cannot be recovered: {error}", ledger_id=reader.id) from error
        finally:
            replicas.stop()
            self._lacking = replicas.lacking

    async def _find_all(self, first: EntryId) -> AsyncGenerator[Entry]:
        """The entries from `first` on, up to the first that is absent. Some are looked for ahead of their turn."""
        ahead: deque[asyncio.Task[Entry | None]] = deque()
        wanted = first
        try:
            while True:
                while len(ahead) < (1 if wanted == first else _AHEAD_MAX):  # Most ledgers have none to recover.
                    ahead.append(asyncio.create_task(self._find(wanted)))
                    wanted = EntryId(wanted + 1)
                entry = await ahead.popleft()
                if entry is None:
                    return
                yield entry
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def _find(self, entry_id: EntryId) -> Entry | None:
        """The entry, or None if it is certain that it was never acknowledged, nor ever will be."""
        reader, quorum = self._reader, self._stored.metadata.quorum
        bookies = self._frozen.metadata.fragments[-1].bookies
        denials, last_error = 0, None
        tasks = [
            asyncio.create_task(reader.read_from(bookies[p], entry_id, fence=True)) for p in write_set(entry_id, quorum)
        ]
        try:
            for done in asyncio.as_completed(tasks):
                try:
                    return await done
                except (NoSuchEntry, NoSuchLedger):
                    denials += 1
                    if denials >= absences_needed(quorum):
                        return None
                except QuireError as error:
                    last_error = error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise RecoveryFailed(
            f"nobody can say whether ledger {reader.id} has entry {entry_id}: {last_error}", ledger_id=reader.id
        ) from last_error

    async def _settle(self, replicas: Replicas, *, in_flight_max: int) -> None:
        """Wait until no more than so many entries lack their ack quorum, and replace bookies that fail meanwhile."""
        while True:
            if self._problem is not None:
                raise self._problem
            if self._failed:
                await self._replace(replicas)
            elif replicas.appends.in_flight <= in_flight_max:
                return
            else:
                self._changed.clear()
                await self._changed.wait()

    async def _connect(self, bookies: Collection[BookieId]) -> None:
        """As far as may be: whoever cannot be reached is noticed when something is sent."""

        async def connect(bookie: BookieId) -> None:
            try:
                await self._client.pool.connect(bookie, 2, timeout_s=self._client.settings.read_timeout_s)
            except QuireError as error:
                self._client.on_bookie_error(bookie, error)

        await asyncio.gather(*map(connect, sorted(set(bookies))))

    def _on_failed(self, position: int, bookie: BookieId, error: QuireError) -> None:
        self._client.on_bookie_error(bookie, error)
        self._failed[position] = bookie
        self._changed.set()

    def _on_final(self, error: QuireError) -> None:
        self._problem = error
        self._changed.set()

    async def _replace(self, replicas: Replicas) -> None:
        """Other bookies take the places of failed ones: in memory only, until the ledger is sealed."""
        replicas.suspend()
        failed, self._failed = {**self._vacant, **self._failed}, {}
        self._avoid.update(failed.values())
        change = EnsembleChange(self._client, replicas.appends.confirmed, failed, self._avoid)
        try:
            changed = change.replace_in(self._stored.metadata)
        except NotEnoughBookies:
            if self._avoid == set(failed.values()):
                raise
            self._avoid.clear()  # Those that failed before may have recovered. The call's deadline ends this.
            self._failed = failed | self._failed
            await self._client.clock.sleep(RETRY_PAUSE_S)
            return
        self._vacant = change.vacant
        if changed is not None:
            self._stored = replace(self._stored, metadata=changed)
        await self._connect(change.replaced.values())
        replicas.resume(change.replaced)

    async def _length_at(self, last: EntryId) -> int:
        """The ledger's length, from the last entry: no bookie had to tell it."""
        if last == NO_ENTRY:
            return 0
        return (await self._reader.read_entry(last)).length

    # --- Sealing

    async def _seal(self, last: EntryId, length: int) -> StoredLedger:
        before = set(self._frozen.metadata.fragments)
        ours = [each for each in self._stored.metadata.fragments if each not in before]

        def close(metadata: LedgerMetadata) -> LedgerMetadata | None:
            if metadata.state is LedgerState.CLOSED:
                return None  # Somebody was faster, and is right.
            fragments = metadata.fragments
            if ours:  # Older ones may have been changed by re-replication meanwhile: those stay.
                fragments = (*(each for each in fragments if each.first_entry_id < ours[0].first_entry_id), *ours)
            return replace(metadata, state=LedgerState.CLOSED, last_entry_id=last, length=length, fragments=fragments)

        return await self._client.ledgers_metadata.update(self._frozen, close)


def _begin(metadata: LedgerMetadata) -> LedgerMetadata | None:
    return replace(metadata, state=LedgerState.IN_RECOVERY) if metadata.state is LedgerState.OPEN else None
