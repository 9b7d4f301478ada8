"""Ledger metadata under compare-and-swap, in any layout, on any store.

Invariants:
  ReadWhatIsStored   a ledger keeps the format version it was stored in; an update never upgrades it in place.
  OnePath            a ledger is only ever at the path that its layout gives its id: Java bookies delete the entries of
                     ledgers they cannot find by listing.
  WholeScans         a scan yields every ledger that existed throughout, or raises. Garbage collection deletes what a
                     scan leaves out, so a short answer would be data loss.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from quire.codec.layout import ETCD, FLAT
from quire.codec.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from quire.codec.ledger_paths import ETCD_LEDGERS, TREES, is_tree_name, ledger_id_at, ledger_path
from quire.errors import (
    DamagedMetadata,
    LedgerExists,
    LockLost,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchLedger,
    NoSuchNode,
    NotInitialised,
    Refused,
    SessionExpired,
    Unavailable,
    VersionConflict,
)
from quire.metadata.api import MetadataStore, Watch
from quire.metadata.driver import ANY_VERSION, Check, Node, Set, Version
from quire.metadata.ledger_ids import LedgerIds
from quire.metadata.paths import join, parent_of
from quire.runtime import Rng
from quire.types import LedgerId, LedgerMetadata, ledger_id
from quire.values import dataclass

_CTOKEN_END: Final = 2**63 - 1  # Apache's tokens are 0 to 2^63-2.
_LOST_ANSWERS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """A ledger's metadata as it was read, and the version to write against."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    version: Version
    created_ms: int | None  # From the metadata if it is stored there, else from the store if it keeps times.


class Ledgers:
    """All ledgers of one cluster."""

    def __init__(self, store: MetadataStore, root: str, layout: str, rng: Rng) -> None:
        self._store, self._root, self._rng = store, root, rng
        self.layout = layout
        self._ids = LedgerIds(store, root, layout, rng)

    def path(self, ledger: LedgerId) -> str:
        """Where the ledger's metadata is, or would be."""
        return join(self._root, ledger_path(self.layout, ledger))

    # --- One ledger

    async def create(self, metadata: LedgerMetadata, *, with_id: int | None = None) -> StoredLedger:
        """Store a new ledger, under `with_id` or a new id of its own. Raises `LedgerExists` for a taken `with_id`.

        With format version 3 a lost answer is found out by a token: the call returns as if nothing had happened.
        """
        if metadata.format_version == 3:
            metadata = replace(metadata, ctoken=self._rng.randrange(_CTOKEN_END))
        if with_id is not None:
            return await self._create_at(ledger_id(with_id), metadata)
        while True:
            try:
                return await self._create_at(await self._next_id(), metadata)
            except LedgerExists:
                continue  # Somebody chose this id by hand: the generator's next one may be free.

    async def new_id(self) -> LedgerId:
        """An id that no ledger has and no other caller gets, to be noted before the ledger is created with it. Ledgers
        that are noted are deleted when they are left over: one whose id was chosen by hand must not be among them.
        """
        while True:
            ledger = await self._next_id()
            if await self._store.exists(self.path(ledger)) is None:
                return ledger

    async def _next_id(self) -> LedgerId:
        """A new id. A lost answer costs a number and nothing else, so it is asked for again."""
        for _ in range(_LOST_ANSWERS_MAX):
            try:
                return await self._ids.next_id()
            except MetadataOutcomeUnknown as error:
                lost = error
        raise MetadataUnavailable("the store did not confirm a new ledger id; no ledger was created") from lost

    async def _create_at(self, ledger: LedgerId, metadata: LedgerMetadata) -> StoredLedger:
        path, data = self.path(ledger), encode_ledger_metadata(metadata)
        doubt = _Doubt()
        while True:
            with doubt.kept():
                try:
                    written = await self._store.create(path, data, parents=True)
                    return StoredLedger(ledger, metadata, written.version, metadata.ctime_ms)
                except NodeExists as error:
                    found = await self._find_own(ledger, metadata)
                    if found is not None:
                        return found
                    raise LedgerExists(f"ledger {ledger} exists already", ledger_id=ledger) from error
                except MetadataOutcomeUnknown as unknown:
                    doubt.add(unknown)
                    if metadata.format_version != 3:
                        raise  # Nothing in it would tell ours from another.

    async def _find_own(self, ledger: LedgerId, metadata: LedgerMetadata) -> StoredLedger | None:
        """The stored ledger if it is the one we tried to create: an earlier try whose answer was lost."""
        if metadata.format_version != 3:
            return None
        try:
            stored = await self._read_or_none(ledger)
        except DamagedMetadata:
            return None
        return stored if stored is not None and stored.metadata.ctoken == metadata.ctoken else None

    async def read(self, ledger: LedgerId) -> StoredLedger:
        """Raises `NoSuchLedger`, and `DamagedMetadata` if what is stored does not parse."""
        stored = await self._read_or_none(ledger)
        if stored is None:
            raise NoSuchLedger(f"there is no ledger {ledger}", ledger_id=ledger)
        return stored

    async def _read_or_none(self, ledger: LedgerId) -> StoredLedger | None:
        path = self.path(ledger)
        try:
            return _stored(ledger, path, await self._store.get(path))
        except NoSuchNode:
            return None

    async def write(
        self, ledger: LedgerId, metadata: LedgerMetadata, *, expected: Version, guard: Check | None = None
    ) -> Version:
        """Store and return the new version, or raise `VersionConflict` or `NoSuchLedger` and change nothing; or
        `LockLost`, if what `guard` checks is not so at that very moment."""
        path, guards = self.path(ledger), () if guard is None else (guard,)
        try:
            *_, written = await self._store.transaction(
                *guards, Set(path, encode_ledger_metadata(metadata), expected=expected)
            )
        except (NoSuchNode, VersionConflict) as error:
            if guard is not None and error.facts.get("path") == guard.path:
                raise LockLost(f"ledger {ledger} was not changed: its lock is lost", path=guard.path) from error
            if isinstance(error, VersionConflict):
                raise
            raise NoSuchLedger(f"there is no ledger {ledger}", ledger_id=ledger) from error
        assert written is not None
        return written.version

    async def update(
        self,
        stored: StoredLedger,
        change: Callable[[LedgerMetadata], LedgerMetadata | None],
        *,
        guard: Callable[[], Check | None] = lambda: None,
    ) -> StoredLedger:
        """Apply `change` to what is stored, however often others write in between; each write with a new `guard`.

        `change` sees the newest metadata and returns the new one, or None if nothing needs to change any more; it may
        raise what makes the change impossible. A write whose answer was lost is looked at again in the same way: if it
        happened, `change` finds nothing left to do.
        """
        doubt = _Doubt()
        while True:
            changed = change(stored.metadata)
            if changed is None:
                return stored
            changed = replace(changed, ctoken=0, format_version=stored.metadata.format_version)
            with doubt.kept():
                try:
                    version = await self.write(stored.ledger_id, changed, expected=stored.version, guard=guard())
                    return replace(stored, metadata=changed, version=version)
                except VersionConflict:
                    pass
                except MetadataOutcomeUnknown as unknown:
                    doubt.add(unknown)
                await self._store.sync()
                stored = await self.read(stored.ledger_id)

    async def remove(self, ledger: LedgerId, *, expected: Version = ANY_VERSION) -> None:
        """Delete the ledger's metadata; fine if it is gone already. Raises `VersionConflict`."""
        path = self.path(ledger)
        try:
            await self._store.delete(path, expected=expected)
        except NoSuchNode:
            pass
        if self.layout in TREES:
            await self._tidy_up(parent_of(path))

    async def _tidy_up(self, folder: str) -> None:
        """Delete the folders that the ledger left empty. Others may be filling them: then they stay."""
        while folder != self._root:
            try:
                await self._store.delete(folder, expected=ANY_VERSION)
            except (NodeNotEmpty, NoSuchNode, Refused, Unavailable):
                return
            folder = parent_of(folder)

    def watch(self, ledger: LedgerId) -> Watch:
        """Wake when the ledger's metadata may have changed."""
        return self._store.watch(self.path(ledger))

    # --- All ledgers

    async def scan(self) -> AsyncIterator[LedgerId]:
        """Every ledger id, ascending; in the etcd layout by bucket. Raises rather than end early."""
        await self._store.sync()  # So that a follower that lags behind cannot hide a ledger.
        if self.layout == FLAT:
            names = await self._names(self._root)
        elif self.layout == ETCD:
            names = [f"{ETCD_LEDGERS}/{name}" for name in await self._names(join(self._root, ETCD_LEDGERS))]
        else:
            async for ledger in self._scan_trees():
                yield ledger
            return
        for found in sorted(ledger for ledger in map(self._id_at, names) if ledger is not None):
            yield found

    async def _scan_trees(self) -> AsyncIterator[LedgerId]:
        top = await self._names(self._root)
        for tree in TREES[self.layout]:
            for name in top:
                if is_tree_name(name, tree[0], leaf=False):
                    async for ledger in self._scan_folder(name, tree[1:]):
                        yield ledger

    async def _scan_folder(self, folder: str, digits: tuple[int, ...]) -> AsyncIterator[LedgerId]:
        """The ledgers below `folder`, a path relative to the root. One that vanished was emptied by a removal."""
        try:
            names = (await self._store.children(join(self._root, folder))).names
        except NoSuchNode:
            return
        leaf = len(digits) == 1
        for name in names:
            if not is_tree_name(name, digits[0], leaf=leaf):
                continue
            path = f"{folder}/{name}"
            if not leaf:
                async for ledger in self._scan_folder(path, digits[1:]):
                    yield ledger
            elif (found := self._id_at(path)) is not None:
                yield found

    async def _names(self, folder: str) -> list[str]:
        try:
            return list((await self._store.children(folder)).names)
        except NoSuchNode as error:
            raise NotInitialised(
                f"there are no ledgers to list: {folder!r} does not exist",
                hint="Set the cluster up with `quire metadata init`, or correct the root in the URI.",
                path=folder,
            ) from error

    def _id_at(self, path: str) -> LedgerId | None:
        """The ledger at a relative path; None for anything that is not a ledger's path in this layout."""
        try:
            return ledger_id_at(self.layout, path)
        except DamagedMetadata:
            return None


class _Doubt:
    """Remembers that a write may have happened: whatever keeps us from finding out leaves its outcome unknown."""

    def __init__(self) -> None:
        self._unknown: MetadataOutcomeUnknown | None = None
        self._times = 0

    def add(self, unknown: MetadataOutcomeUnknown) -> None:
        """Note a lost answer; after too many of them, give up."""
        self._unknown, self._times = unknown, self._times + 1
        if self._times == _LOST_ANSWERS_MAX:
            raise unknown

    @contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except (Unavailable, SessionExpired) as error:
            if self._unknown is None or self._unknown is error:
                raise
            raise self._unknown from error


def _stored(ledger: LedgerId, path: str, node: Node) -> StoredLedger:
    try:
        metadata = decode_ledger_metadata(node.data)
    except DamagedMetadata as error:
        raise DamagedMetadata(f"ledger {ledger}: {error}", ledger_id=ledger, path=path) from error
    created_ms = node.stat.created_ms if metadata.ctime_ms is None else metadata.ctime_ms
    return StoredLedger(ledger, metadata, node.stat.version, created_ms)
