"""Which ledgers lack copies, who repairs them, and who looks for such: the tree that Apache's autorecovery shares.

A mark says that bookies of a ledger are missing. Whoever repairs the ledger holds its lock, an ephemeral node, and
removes the mark when it is done, at the version it saw when it took the lock: a mark that was written since then tells
of something new, and stays. The auditor is elected: votes are numbered, and the lowest one counts.

Apache's auditors and workers read and write the same nodes. `quire.codec.underreplication` has paths and formats.
"""

import asyncio
from collections.abc import AsyncIterator, Container, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

from quire.codec import underreplication as codec
from quire.errors import (
    DamagedMetadata,
    LayoutMismatch,
    LockLost,
    MetadataOutcomeUnknown,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    Refused,
    SessionExpired,
    Unavailable,
    VersionConflict,
)
from quire.metadata.api import MetadataStore, Watch, wait_any_changed
from quire.metadata.driver import ANY_VERSION, Check, SessionId, Version
from quire.metadata.paths import join, parent_of
from quire.runtime import Runtime
from quire.types import LedgerId
from quire.values import dataclass

_LEVELS: Final = 4  # Of folders between `ledgers` and a mark.
_WATCHED_MAX: Final = 64  # Folders that are watched while there is nothing to do; more are looked at now and then.
_RACES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Mark:
    """A ledger that lacks copies on these bookies."""

    ledger_id: LedgerId
    replicas: tuple[str, ...]
    ctime_ms: int | None
    version: Version


class LedgerLock:
    """The lock of a ledger, which this session took."""

    def __init__(self, store: MetadataStore, session: SessionId, path: str, version: Version) -> None:
        self.session = session
        self._store, self._path, self._version = store, path, version

    def guard(self) -> Check:
        """An operation that makes a transaction fail unless the lock is still ours. Raises `LockLost` if the session
        is another one by now: the node may be that of whoever came next, and look the same.

        On ZooKeeper every new node has version 0, so it is the session that tells one holder from the next: as long as
        it lasts nobody else removes our node, and we do not before the lock is given back.
        """
        if self._store.session != self.session:
            raise LockLost(f"the session that held {self._path!r} has ended", path=self._path)
        return Check(self._path, self._version)


@dataclass(frozen=True, slots=True)
class HeldMark:
    """A marked ledger that this session alone works on. `version` is that of the mark when the lock was taken."""

    ledger_id: LedgerId
    version: Version
    lock: LedgerLock


class Underreplication:
    """The under-replication tree of one cluster. `name` is what others read about us in locks and votes."""

    def __init__(self, store: MetadataStore, root: str, runtime: Runtime, name: str) -> None:
        self._store, self._base = store, join(root, codec.UNDERREPLICATION)
        self._clock, self._rng, self._name = runtime.clock, runtime.rng, name
        self._locks: dict[LedgerId, LedgerLock] = {}  # That we took and did not give back: the newest of each ledger.
        self._changing = asyncio.Lock()  # Who removes a lock must know whether it is being taken anew.
        self._candidacy: object | None = None  # The last time that we stood for auditor.

    async def prepare(self) -> None:
        """Have the tree, or find that it is there. Raises `LayoutMismatch` for one that nobody here understands."""
        wanted = codec.ReplicationLayout()
        path = self._path(codec.LAYOUT)
        try:
            stored = codec.decode_replication_layout((await self._store.get(path)).data)
        except NoSuchNode:
            await self._create(path, codec.encode_replication_layout(wanted))
            stored = codec.decode_replication_layout((await self._store.get(path)).data)
        if stored != wanted:
            raise LayoutMismatch(
                f"under-replicated ledgers are kept as {stored.type} version {stored.version}, which is not known here",
                hint="Nothing was changed. A newer program may have set this up.",
                path=path,
            )
        for folder in (codec.LEDGERS, codec.LOCKS):
            await self._create(self._path(folder))

    # --- Marks

    async def mark(self, ledger_id: LedgerId, missing: Sequence[str]) -> bool:
        """Say that these bookies of a ledger are missing. Returns whether that was news."""
        path = self._path(codec.mark_path(ledger_id))
        for _ in range(_RACES_MAX):
            try:
                try:
                    node = await self._store.get(path)
                except NoSuchNode:
                    mark = codec.UnderreplicatedLedger(tuple(missing), self._clock.wall_ms())
                    await self._store.create(path, codec.encode_mark(mark), parents=True)
                    return True
                before = codec.decode_mark(node.data).replicas
                new = tuple(each for each in missing if each not in before)
                if not new and await self.lock_holder(ledger_id) is None:
                    if await self._store.get(path) == node:
                        return False
                    continue  # Whoever worked on it was done just now, and may have looked before.
                # Whoever works on it may have looked before: a new version makes it look again.
                mark = codec.UnderreplicatedLedger((*before, *new), self._clock.wall_ms())
                await self._store.set(path, codec.encode_mark(mark), expected=node.stat.version)
                return bool(new)
            except (NodeExists, NoSuchNode, VersionConflict, MetadataOutcomeUnknown):
                continue  # Somebody else wrote, or perhaps we did: look again.
        raise VersionConflict(f"the mark of ledger {ledger_id} changes all the time", path=path)

    async def read_mark(self, ledger_id: LedgerId) -> Mark | None:
        """The ledger's mark, if it has one. Raises `DamagedMetadata`."""
        try:
            node = await self._store.get(self._path(codec.mark_path(ledger_id)))
        except NoSuchNode:
            return None
        found = codec.decode_mark(node.data)
        return Mark(ledger_id, found.replicas, found.ctime_ms, node.stat.version)

    async def marks(self) -> AsyncIterator[Mark]:
        """Every mark, by ledger id."""
        async for ledger_id in self._marked(codec.LEDGERS, _LEVELS):
            mark = await self.read_mark(ledger_id)
            if mark is not None:
                yield mark

    async def _marked(self, folder: str, levels: int) -> AsyncIterator[LedgerId]:
        for name in await self._names(folder):
            path = f"{folder}/{name}"
            if levels:
                async for ledger_id in self._marked(path, levels - 1):
                    yield ledger_id
            elif (found := _ledger_at(path)) is not None:
                yield found

    async def lock_holder(self, ledger_id: LedgerId) -> str | None:
        """Who repairs a ledger now; None if nobody does. A holder that does not tell its name is an empty text."""
        try:
            data = (await self._store.get(self._path(codec.lock_path(ledger_id)))).data
        except NoSuchNode:
            return None
        try:
            return codec.decode_lock(data) or ""
        except DamagedMetadata:
            return ""  # It is for people to read, and nothing depends on it.

    # --- Working on one

    async def take(self, among: Container[LedgerId] | None = None) -> HeldMark | None:
        """Lock any marked ledger that nobody works on, or one of these only. None if there is none."""
        locked = set(await self._names(codec.LOCKS))
        return await self._take_below(codec.LEDGERS, _LEVELS, locked, among)

    async def _take_below(
        self, folder: str, levels: int, locked: set[str], among: Container[LedgerId] | None
    ) -> HeldMark | None:
        names = await self._names(folder)
        self._rng.shuffle(names)  # So that many workers do not all try the same ledger.
        for name in names:
            path = f"{folder}/{name}"
            if levels:
                held = await self._take_below(path, levels - 1, locked, among)
            elif name in locked or (ledger_id := _ledger_at(path)) is None or not _is_among(ledger_id, among):
                continue
            else:
                held = await self._try_lock(ledger_id)
            if held is not None:
                return held
        return None

    async def _try_lock(self, ledger_id: LedgerId) -> HeldMark | None:
        stat = await self._store.exists(self._path(codec.mark_path(ledger_id)))
        if stat is None:
            return None
        lock = await self._lock(ledger_id)
        return None if lock is None else HeldMark(ledger_id, stat.version, lock)

    async def _lock(self, ledger_id: LedgerId) -> LedgerLock | None:
        session = self._store.session
        path = self._path(codec.lock_path(ledger_id))
        try:
            async with self._changing:
                version = await self._create_lock(path, session)
                if version is None:
                    return None
                lock = self._locks[ledger_id] = LedgerLock(self._store, session, path, version)
                return lock
        except BaseException:  # It may be there, and only we can remove it as long as our session lasts.
            await self._store.finish(lambda: self._drop_lock(ledger_id, session))
            raise

    async def _create_lock(self, path: str, session: SessionId) -> Version | None:
        """Its version; None if it is another's."""
        try:
            return (await self._store.create(path, codec.encode_lock(self._name), ephemeral=True, parents=True)).version
        except NodeExists:
            return None
        except MetadataOutcomeUnknown:
            await self._store.sync()
            found = await self._store.exists(path)
            return None if found is None or found.owner != session else found.version

    async def _drop_lock(self, ledger_id: LedgerId, session: SessionId) -> None:
        """Remove a lock of this session, unless it was taken anew since: then it goes when that one is given back."""
        path = self._path(codec.lock_path(ledger_id))
        async with self._changing:
            if ledger_id in self._locks or session != self._store.session:
                return
            await self._store.sync()
            found = await self._store.exists(path)
            if found is not None and found.owner == session:
                with suppress(NoSuchNode, VersionConflict):
                    await self._store.delete(path, expected=found.version)

    @asynccontextmanager
    async def locked(self, ledger_id: LedgerId) -> AsyncIterator[LedgerLock | None]:
        """Keep workers, and bookies that tidy up, from a ledger for the block, whether or not it is marked. Yields
        None if somebody else has it. The lock goes with the session: what rests on it is written with its guard."""
        lock = await self._lock(ledger_id)
        try:
            yield lock
        finally:
            if lock is not None:
                await self._release(ledger_id, lock)

    async def finish(self, held: HeldMark) -> bool:
        """The ledger has all its copies: remove its mark, unless it was marked anew, and the lock. Returns whether the
        mark is gone."""
        path = self._path(codec.mark_path(held.ledger_id))
        try:
            await self._store.delete(path, expected=held.version)
            await self._tidy_up(parent_of(path))
            is_gone = True
        except NoSuchNode:
            is_gone = True
        except VersionConflict:
            is_gone = False
        await self.release(held)
        return is_gone

    async def release(self, held: HeldMark) -> None:
        """Let others work on the ledger; now, or as soon as the store can be reached. A lost lock is not touched."""
        await self._release(held.ledger_id, held.lock)

    async def _release(self, ledger_id: LedgerId, lock: LedgerLock) -> None:
        if self._locks.get(ledger_id) is not lock:
            return  # It was lost, and we have taken it anew since: that one is not given back yet.
        del self._locks[ledger_id]
        await self._store.finish(lambda: self._drop_lock(ledger_id, lock.session))

    async def _tidy_up(self, folder: str) -> None:
        """Delete the folders that a mark left empty. Others may be filling them: then they stay."""
        while folder != self._path(codec.LEDGERS):
            try:
                await self._store.delete(folder, expected=ANY_VERSION)
            except (NodeNotEmpty, NoSuchNode, Refused, Unavailable):
                return
            folder = parent_of(folder)

    async def wait_work(self, timeout_s: float, among: Container[LedgerId] | None = None) -> None:
        """Return when there may be something to do that was not there before, or after the timeout."""
        folders = [codec.LOCKS]
        await self._add_folders(codec.LEDGERS, _LEVELS, folders)
        async with AsyncExitStack() as stack:
            watches = [
                await stack.enter_async_context(self._store.watch_children(self._path(folder)))
                for folder in folders[:_WATCHED_MAX]
            ]
            if await self._has_work(among):
                return  # It came before the watches did.
            await _changed(watches, timeout_s)

    async def _add_folders(self, folder: str, levels: int, folders: list[str]) -> None:
        folders.append(folder)
        if levels and len(folders) < _WATCHED_MAX:
            for name in await self._names(folder):
                await self._add_folders(f"{folder}/{name}", levels - 1, folders)

    async def _has_work(self, among: Container[LedgerId] | None) -> bool:
        locked = set(await self._names(codec.LOCKS))
        async for ledger_id in self._marked(codec.LEDGERS, _LEVELS):
            if _is_among(ledger_id, among) and codec.lock_path(ledger_id).rpartition("/")[2] not in locked:
                return True
        return False

    # --- Pausing

    async def is_enabled(self) -> bool:
        return await self._store.exists(self._path(codec.DISABLE)) is None

    async def disable(self) -> bool:
        """Stop all auditors and workers of the cluster. Returns whether that is new."""
        return await self._create(self._path(codec.DISABLE))

    async def enable(self) -> bool:
        """Let them go on. Returns whether that is new."""
        try:
            await self._store.delete(self._path(codec.DISABLE), expected=ANY_VERSION)
        except NoSuchNode:
            return False
        return True

    async def wait_enabled(self) -> None:
        async with self._store.watch(self._path(codec.DISABLE)) as watch:
            while not await self.is_enabled():
                await watch.wait_changed()

    # --- How long a lost bookie may stay away

    async def delay_s(self) -> int:
        """How long a single lost bookie is waited for."""
        return (await self.delay())[0]

    async def delay(self) -> tuple[int, int]:
        """The same, and how often it was written: writing the same number again means something, too."""
        try:
            node = await self._store.get(self._path(codec.LOST_BOOKIE_RECOVERY_DELAY))
        except NoSuchNode:
            return 0, 0
        return max(0, codec.decode_recovery_delay(node.data)), node.stat.writes

    async def set_delay(self, delay_s: int) -> None:
        """0, or the number that is there already, makes the auditor look for lost bookies at once."""
        path, data = self._path(codec.LOST_BOOKIE_RECOVERY_DELAY), codec.encode_recovery_delay(delay_s)
        if not await self._create(path, data):
            await self._store.set(path, data, expected=ANY_VERSION)

    async def ensure_delay(self, delay_s: int) -> None:
        """Store a delay if there is none."""
        path = self._path(codec.LOST_BOOKIE_RECOVERY_DELAY)
        await self._create(path, codec.encode_recovery_delay(delay_s))

    def watch_delay(self) -> Watch:
        return self._store.watch(self._path(codec.LOST_BOOKIE_RECOVERY_DELAY))

    # --- When the checks last ended

    async def check_time_ms(self, check: str) -> int | None:
        """When a check last ended, by the name of its node; None if it never did."""
        try:
            return codec.decode_check_time((await self._store.get(self._path(check))).data)
        except NoSuchNode:
            return None

    async def set_check_time(self, check: str, time_ms: int) -> None:
        path, data = self._path(check), codec.encode_check_time(time_ms)
        if not await self._create(path, data):
            await self._store.set(path, data, expected=ANY_VERSION)

    # --- Who is the auditor

    async def auditor(self) -> str | None:
        """Who says to be the auditor; None if there is none."""
        for _, name in await self._votes():
            try:
                return codec.decode_vote((await self._store.get(self._path(codec.AUDITOR_ELECTION, name))).data) or ""
            except NoSuchNode:
                continue
        return None

    @asynccontextmanager
    async def elected(self) -> AsyncIterator[str]:
        """Wait to be the auditor, and stay it for the block, with our vote: see `wait_vote_lost`. Raises
        `SessionExpired` if the vote is lost while we wait."""
        session = self._store.session
        candidacy = self._candidacy = object()

        async def drop() -> None:
            await self._store.sync()
            for path in await self._own_votes(session):
                if self._candidacy is not candidacy:
                    return  # We stand anew, which began with dropping all older votes: what is left counts.
                with suppress(NoSuchNode):
                    await self._store.delete(path, expected=ANY_VERSION)

        try:
            await drop()  # A vote that could not be taken back yet would stand before the new one for ever.
            vote = await self._vote(session)
            await self._wait_first(vote)
            await self._tell_auditor()
            yield vote
        finally:
            await self._store.finish(drop)  # Also if nobody knows whether there is a vote.

    async def wait_vote_lost(self, vote: str) -> None:
        """Return when somebody removed our vote: another one is the auditor then."""
        async with self._store.watch(vote) as watch:
            while await self._store.exists(vote) is not None:
                await watch.wait_changed()

    async def _vote(self, session: SessionId) -> str:
        path = self._path(codec.AUDITOR_ELECTION, codec.VOTE_PREFIX)
        data = codec.encode_vote(self._name)
        try:
            written = await self._store.create(path, data, ephemeral=True, sequential=True, parents=True)
            return written.path
        except MetadataOutcomeUnknown:
            await self._store.sync()
            ours = await self._own_votes(session)
            if not ours:
                raise
            return ours[0]

    async def _wait_first(self, vote: str) -> None:
        name = vote.rpartition("/")[2]
        while True:
            await self._store.sync()
            names = [each for _, each in await self._votes()]
            if name not in names:
                raise SessionExpired(f"the vote {name} to be the auditor is gone", path=vote)
            place = names.index(name)
            if place == 0:
                return
            before = self._path(codec.AUDITOR_ELECTION, names[place - 1])
            async with self._store.watch(before) as predecessor, self._store.watch(vote) as own:
                if await self._store.exists(before) is not None and await self._store.exists(vote) is not None:
                    await wait_any_changed(predecessor, own)

    async def _tell_auditor(self) -> None:
        """For people who look at the tree. Nobody decides anything by it."""
        try:
            await self._store.set(
                self._path(codec.AUDITOR_ELECTION), codec.encode_vote(self._name), expected=ANY_VERSION
            )
        except (Unavailable, VersionConflict):
            pass

    async def _votes(self) -> list[tuple[int, str]]:
        names = await self._names(codec.AUDITOR_ELECTION)
        return sorted((number, name) for name in names if (number := codec.vote_number(name)) is not None)

    async def _own_votes(self, session: SessionId) -> list[str]:
        paths = [self._path(codec.AUDITOR_ELECTION, name) for _, name in await self._votes()]
        stats = [(path, await self._store.exists(path)) for path in paths]
        return [path for path, stat in stats if stat is not None and stat.owner == session]

    # --- The tree

    def _path(self, *names: str) -> str:
        return join(self._base, *names)

    async def _names(self, folder: str) -> list[str]:
        try:
            return list((await self._store.children(self._path(folder))).names)
        except NoSuchNode:
            return []

    async def _create(self, path: str, data: bytes = b"") -> bool:
        """Whether it was us: False if the node was there."""
        try:
            await self._store.create(path, data, parents=True)
        except NodeExists:
            return False
        return True


def _ledger_at(path: str) -> LedgerId | None:
    try:
        return codec.ledger_of_mark(path)
    except DamagedMetadata:
        return None  # Not a mark: somebody else's node, which is left alone.


async def _changed(watches: Iterable[Watch], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await wait_any_changed(*watches)
    except TimeoutError:
        pass


def _is_among(ledger_id: LedgerId, among: Container[LedgerId] | None) -> bool:
    return among is None or ledger_id in among
