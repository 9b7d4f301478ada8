"""Which bookies live, how they are reached, and which disks belong to whom.

A bookie is alive while its ephemeral node exists, below `available` or, when it takes no new entries, below `readonly`.
It goes from one list to the other in one transaction: Apache's clients forget the address of a bookie whose node they
see go, also if another one came before. Apache's own bookies are in both lists for a moment; writable wins then. A
bookie's cookie is persistent: it stays while the bookie is down, and goes when the bookie is decommissioned.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from quire.codec.cookie import Cookie, decode_cookie, encode_cookie
from quire.codec.registration import BookieServiceInfo, decode_service_info, encode_service_info
from quire.errors import (
    BookieRegistered,
    DamagedMetadata,
    InvalidName,
    MetadataOutcomeUnknown,
    NodeExists,
    NoSuchNode,
    SessionExpired,
    StoreClosed,
    Unavailable,
    VersionConflict,
)
from quire.metadata.api import MetadataStore, SessionWatch, wait_any_changed
from quire.metadata.driver import Create, Delete, SessionId, Set, Stat, Version
from quire.metadata.paths import join, name_of, parent_of
from quire.runtime import Clock
from quire.types import BookieId, bookie_id
from quire.values import dataclass

_RETRY_S: Final = 0.2  # Between tries to register again while the store cannot be reached.


@dataclass(frozen=True, slots=True)
class BookieListing:
    """The live bookies. One of Apache's that changes its mode is in both lists for a moment, and writable here."""

    writable: frozenset[BookieId]
    readonly: frozenset[BookieId]


@dataclass(frozen=True, slots=True)
class StoredCookie:
    cookie: Cookie
    version: Version


class Bookies:
    """The bookies of one cluster."""

    def __init__(
        self, store: MetadataStore, clock: Clock, *, writable_root: str, readonly_root: str, cookies_root: str
    ) -> None:
        self._store, self._clock = store, clock
        self._writable_root, self._readonly_root, self._cookies_root = writable_root, readonly_root, cookies_root
        self._registered: dict[BookieId, Registration] = {}  # The newest of each bookie, also after its end.
        self._changing: dict[BookieId, asyncio.Lock] = {}  # Held by whoever changes a bookie's nodes.

    # --- Who lives

    async def listing(self) -> BookieListing:
        """The bookies that live now. Raises `DamagedMetadata` for a name that cannot be a bookie's."""
        writable = await self._ids_below(self._writable_root)
        readonly = await self._ids_below(self._readonly_root)
        return BookieListing(writable, readonly - writable)

    async def _ids_below(self, root: str) -> frozenset[BookieId]:
        try:
            names = (await self._store.children(root)).names
        except NoSuchNode:
            return frozenset()
        skipped = name_of(self._readonly_root)  # On ZooKeeper the read-only list is a child of the other one.
        return frozenset(_bookie_at(root, name) for name in names if name != skipped)

    async def follow(self) -> AsyncGenerator[BookieListing, None]:
        """The listing now, and again after each change. Never ends by itself."""
        async with (
            self._store.watch_children(self._writable_root) as writable,
            self._store.watch_children(self._readonly_root) as readonly,
        ):
            last: BookieListing | None = None
            while True:
                listing = await self.listing()
                if listing != last:
                    last = listing
                    yield listing
                await wait_any_changed(writable, readonly)

    async def service_info(self, bookie: BookieId) -> BookieServiceInfo:
        """How a live bookie is reached. Raises `NoSuchNode` if it does not live, `DamagedMetadata` for bad data."""
        for root in (self._writable_root, self._readonly_root):
            try:
                data = (await self._store.get(join(root, bookie))).data
            except NoSuchNode:
                continue
            return decode_service_info(data, bookie)
        raise NoSuchNode(
            f"bookie {bookie!r} is not registered", hint="It is down, or never started.", path=self._writable_root
        )

    # --- Registering

    @asynccontextmanager
    async def register(
        self,
        bookie: BookieId,
        info: BookieServiceInfo,
        *,
        readonly: bool = False,
        wait_s: float = 0.0,
        is_dead: Callable[[BookieServiceInfo], bool] = lambda _: False,
    ) -> AsyncIterator["Registration"]:
        """Be listed as alive for the block, again after each loss of the session.

        A node of another session is waited for up to `wait_s`: its process may have died. Then `BookieRegistered` is
        raised. A node whose content `is_dead` knows to be that of a dead process is removed at once.
        """
        data = encode_service_info(info)
        registration = Registration(self, bookie_id(bookie), data, readonly=readonly, is_dead=is_dead)
        before = self._registered.get(bookie)
        if before is not None and not before.is_over:
            raise BookieRegistered(f"bookie {bookie!r} is registered by this very process", bookie_id=bookie)
        self._registered[bookie] = registration
        try:
            with self._store.watch_session() as session:
                await registration._enter(wait_s)
                keeper = asyncio.create_task(registration._keep(session, wait_s), name=f"register {bookie}")
                try:
                    yield registration
                finally:
                    keeper.cancel()
                    await asyncio.wait([keeper])
        finally:
            await registration._leave()

    def _path(self, bookie: BookieId, *, readonly: bool) -> str:
        return join(self._readonly_root if readonly else self._writable_root, bookie)

    # --- Cookies

    async def known(self) -> frozenset[BookieId]:
        """Every bookie that has a cookie, alive or not."""
        return await self._ids_below(self._cookies_root)

    async def cookie(self, bookie: BookieId) -> StoredCookie | None:
        """The bookie's stored cookie. Raises `DamagedMetadata`."""
        try:
            node = await self._store.get(join(self._cookies_root, bookie))
        except NoSuchNode:
            return None
        return StoredCookie(decode_cookie(node.data), node.stat.version)

    async def create_cookie(self, cookie: Cookie) -> Version:
        """Raises `NodeExists` if the bookie has one."""
        path = join(self._cookies_root, cookie.bookie_id)
        return (await self._store.create(path, encode_cookie(cookie), parents=True)).version

    async def update_cookie(self, cookie: Cookie, *, expected: Version) -> Version:
        """Raises `VersionConflict`, `NoSuchNode`."""
        path = join(self._cookies_root, cookie.bookie_id)
        return (await self._store.set(path, encode_cookie(cookie), expected=expected)).version

    async def delete_cookie(self, bookie: BookieId, *, expected: Version) -> None:
        """Forget the bookie: its disks cannot be used under this id again. Raises `VersionConflict`, `NoSuchNode`."""
        await self._store.delete(join(self._cookies_root, bookie), expected=expected)


class Registration:
    """A bookie's place in the lists of the living."""

    def __init__(
        self,
        bookies: Bookies,
        bookie: BookieId,
        data: bytes,
        *,
        readonly: bool,
        is_dead: Callable[[BookieServiceInfo], bool],
    ) -> None:
        self._is_dead = is_dead
        self._bookies, self._store = bookies, bookies._store
        self._bookie, self._data = bookie, data
        self.readonly = readonly  # The list it belongs in; a move that failed halfway is repeated.
        self._settled = False
        # A mode change, a re-registration and the clean-up of an older registration must not cross.
        self._changing = bookies._changing.setdefault(bookie, asyncio.Lock())
        self._registered_under = self._store.session
        self._over = asyncio.Event()
        self._refusal: Exception | None = None

    async def set_readonly(self, readonly: bool) -> None:
        """Move to the other list, in one transaction."""
        async with self._changing:
            if readonly != self.readonly or not self._settled:
                self.readonly = readonly
                await self._settle(wait_s=0.0)

    async def wait_lost(self) -> None:
        """Raise why the bookie could not be listed again after its session was lost, or `StoreClosed` at the end."""
        await self._over.wait()
        raise self._refusal or StoreClosed(f"the registration of bookie {self._bookie!r} has ended")

    async def _enter(self, wait_s: float) -> None:
        async with self._changing:
            session = self._store.session
            await self._settle(wait_s)
            self._registered_under = session

    async def _settle(self, wait_s: float) -> None:
        """Be in the right list, and only there."""
        self._settled = False
        path, other = (self._bookies._path(self._bookie, readonly=each) for each in (self.readonly, not self.readonly))
        async with self._store.watch(path) as watch:
            deadline_s = self._bookies._clock.monotonic() + wait_s
            while not await self._try_move(path, other):
                try:
                    async with asyncio.timeout(max(0.0, deadline_s - self._bookies._clock.monotonic())):
                        await watch.wait_changed()
                except TimeoutError as error:
                    raise BookieRegistered(
                        f"bookie {self._bookie!r} is registered by another live process",
                        bookie_id=self._bookie,
                        path=path,
                    ) from error
        self._settled = True

    async def _keep(self, session: SessionWatch, wait_s: float) -> None:
        """Register again whenever the session that holds our node is over."""
        registered_under = self._registered_under
        try:
            while True:
                while self._store.session == registered_under:
                    await session.wait_event()
                registered_under = await self._enter_again(wait_s)
        except StoreClosed:
            return
        except Exception as error:  # Whatever it is, the bookie is not listed any more, and has to know.
            self._refusal = error
            self._over.set()

    async def _enter_again(self, wait_s: float) -> SessionId:
        while True:
            try:
                await self._enter(wait_s)
            except (SessionExpired, Unavailable):
                await self._bookies._clock.sleep(_RETRY_S)
            else:
                return self._registered_under

    async def _try_move(self, path: str, other: str) -> bool:
        """Have our node at `path`, and not at `other`. False if another session's is at `path`."""
        while True:
            here, there = await self._store.exists(path), await self._store.exists(other)
            if here is not None and not self._is_ours(here):
                if not await self._drop_dead(path):
                    return False
                continue
            enter = Create(path, self._data, ephemeral=True) if here is None else Set(path, self._data, here.version)
            leave = [Delete(other, there.version)] if there is not None and self._is_ours(there) else []
            try:
                await self._store.transaction(enter, *leave)
                return True
            except MetadataOutcomeUnknown as unknown:
                try:
                    moved = self._is_ours(await self._store.exists(path))
                    if moved and not self._is_ours(await self._store.exists(other)):
                        return True
                except (Unavailable, SessionExpired) as error:
                    raise unknown from error
                raise
            except NoSuchNode:
                await self._ensure_list(parent_of(path))
            except (NodeExists, VersionConflict):
                continue  # Another process came, or an older registration of this session was cleaned up meanwhile.

    async def _ensure_list(self, path: str) -> None:
        if await self._store.exists(path) is None:
            with suppress(NodeExists):
                await self._store.create(path, parents=True)

    async def _drop_dead(self, path: str) -> bool:
        """Remove what a process left that is known to be dead. False if it may live."""
        try:
            node = await self._store.get(path)
            if not self._is_dead(decode_service_info(node.data, self._bookie)):
                return False
            await self._store.delete(path, expected=node.stat.version)
        except (NoSuchNode, VersionConflict):
            pass  # Gone by itself, or somebody else's by now: look again.
        except DamagedMetadata:
            return False
        return True

    def _is_ours(self, stat: Stat | None) -> bool:
        return stat is not None and stat.owner == self._store.session

    async def _drop(self, *, readonly: bool) -> None:
        """Remove our node from a list. Another session's stays: it is not ours to say that it is dead."""
        path = self._bookies._path(self._bookie, readonly=readonly)
        stat = await self._store.exists(path)
        if stat is not None and self._is_ours(stat):
            try:
                await self._store.delete(path, expected=stat.version)
            except (NoSuchNode, VersionConflict):
                pass  # Gone, or registered anew since we looked: then it is not ours to remove.

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    async def _leave(self) -> None:
        self._over.set()
        await self._store.finish(self._drop_both)

    async def _drop_both(self) -> None:
        """Clean up, perhaps much later: if the bookie was registered again meanwhile, the nodes are not ours."""
        async with self._changing:
            if self._bookies._registered.get(self._bookie) is self:
                for readonly in (False, True):
                    await self._drop(readonly=readonly)


def _bookie_at(root: str, name: str) -> BookieId:
    try:
        return bookie_id(name)
    except InvalidName as error:
        raise DamagedMetadata(
            f"{name!r} below {root!r} cannot be a bookie id",
            hint="Java clients hang on such a node. Find out who made it, and delete it.",
            path=join(root, name),
        ) from error
