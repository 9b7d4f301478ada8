"""Which proxies are alive: each has a node of its own in the metadata store, which goes when its session does.

    <namespace>/.write_proxy/member_0000000003        and the same below .read_proxy

    {"serviceEndpoint": {"host": "h", "port": 4100}, "additionalEndpoints": {}, "status": "ALIVE", "shard": 0,
     "instance": "…", "region": "…"}

That is a server set of Twitter's, which Java's clients can read, with two keys of ours behind it. The node belongs to
the session that also holds the proxy's locks: a dead proxy leaves the ring and its streams together.

Invariants:
  ComesBack       a member whose session ended is entered again by the next session, until it leaves.
  LeavesAtOnce    leaving deletes the node; also if the answer to its creation was lost.
  LastKnown       while the store cannot be reached, `current` stays what it was.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import (
    MetadataOutcomeUnknown,
    NodeExists,
    NoSuchNode,
    SessionExpired,
    StoreClosed,
    Unavailable,
)
from quire.metadata import ANY_VERSION, MetadataStore
from quire.metadata.api import SessionWatch
from quire.metadata.driver import SessionEvent
from quire.metadata.paths import join
from quire.runtime import Clock
from quire.telemetry.events import logger
from quire.values import dataclass

WRITE_PROXIES: Final = ".write_proxy"
READ_PROXIES: Final = ".read_proxy"

_log = logger("proxy")
_PREFIX: Final = "member_"
_RETRY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Member:
    """A proxy that is alive."""

    host: str
    port: int
    shard: int
    instance: str = ""
    region: str = ""

    @classmethod
    def of(cls, owner: pb.Owner, *, shard: int) -> Self:
        return cls(owner.host, owner.port, shard, owner.instance, owner.region)

    @property
    def address(self) -> str:
        """As it stands on the ring."""
        return f"{self.host}:{self.port}"

    @property
    def owner(self) -> pb.Owner:
        return pb.Owner(host=self.host, port=self.port, instance=self.instance, region=self.region)

    def message(self, role: pb.Role) -> pb.Member:
        return pb.Member(role=role, address=self.owner, shard=self.shard)


def encode_member(member: Member) -> bytes:
    text = {
        "serviceEndpoint": {"host": member.host, "port": member.port},
        "additionalEndpoints": {},
        "status": "ALIVE",
        "shard": member.shard,
        "instance": member.instance,
        "region": member.region,
    }
    return json.dumps(text).encode()


def decode_member(data: bytes) -> Member | None:
    """None if it is no member, or one that is not alive. Others write here, too: nothing of it is taken on trust."""
    try:
        found = json.loads(data)
        endpoint = found["serviceEndpoint"]
        host, port, shard = endpoint["host"], endpoint["port"], found.get("shard", -1)
        is_member = isinstance(host, str) and isinstance(port, int) and isinstance(shard, int) and 0 < port < 65536
        if not is_member or found.get("status", "ALIVE") != "ALIVE":
            return None
        return Member(host, port, shard, str(found.get("instance", "")), str(found.get("region", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class LiveSet:
    """All proxies of one kind. `current` is kept while the `async with` block runs; it is loaded when that begins,
    unless the store cannot be reached."""

    def __init__(self, store: MetadataStore, clock: Clock, path: str) -> None:
        self._store, self._clock, self._path = store, clock, path
        self.current: frozenset[Member] = frozenset()
        self.is_loaded = False
        self._changed = asyncio.Event()  # A new one after each change.
        self._following: asyncio.Task[None] | None = None

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset(member.address for member in self.current)

    # --- Looking

    async def __aenter__(self) -> Self:
        try:
            self._tell(await self._read())
        except (Unavailable, SessionExpired):
            pass  # The follower goes on trying.
        self._following = asyncio.create_task(self._follow(), name=f"follow {self._path}")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def watch(self) -> AsyncIterator[frozenset[Member]]:
        """The members now, and again whenever they changed. Changes that follow each other quickly are told as one."""
        told: frozenset[Member] | None = None
        while True:
            changed = self._changed
            if self.is_loaded and self.current != told:
                told = self.current
                yield told
            else:
                await changed.wait()

    def _tell(self, members: frozenset[Member]) -> None:
        if members != self.current or not self.is_loaded:
            self.current, self.is_loaded = members, True
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _follow(self) -> None:
        while True:
            try:
                async with self._store.watch_children(self._path) as watch:
                    while True:
                        self._tell(await self._read())
                        await watch.wait_changed()
            except StoreClosed:
                return
            except (Unavailable, SessionExpired):
                await self._clock.sleep(_RETRY_S)

    async def _read(self) -> frozenset[Member]:
        """Of a proxy that was started again the newest life: the session of the one before may not be over yet."""
        newest = {member.address: member for _, member in sorted((await self._nodes()).items())}
        return frozenset(newest.values())

    async def _nodes(self) -> dict[str, Member]:
        """By the names of their nodes. What cannot be read is nobody."""
        await self._store.sync()
        found: dict[str, Member] = {}
        try:
            names = (await self._store.children(self._path)).names
        except NoSuchNode:
            return found
        for name in names:
            try:
                member = decode_member((await self._store.get(join(self._path, name))).data)
            except NoSuchNode:
                continue  # It left between the listing and the look.
            if member is not None and name.startswith(_PREFIX):
                found[name] = member
        return found

    # --- Being one of them

    @asynccontextmanager
    async def join(self, member: Member) -> AsyncIterator[None]:
        """Be listed for the block. Raises what the store raises if that cannot be done at first."""
        with self._store.watch_session() as session:
            await self._enter(member)
            keeping = asyncio.create_task(self._keep(member, session), name=f"stay in {self._path}")
            try:
                yield
            finally:
                keeping.cancel()
                await asyncio.wait([keeping])
                await self._store.finish(lambda: self._leave(member))

    async def _keep(self, member: Member, session: SessionWatch) -> None:
        while True:
            try:
                if await session.wait_event() is not SessionEvent.EXPIRED:
                    continue
            except StoreClosed:
                return
            _log.warning("proxy.left_by_expiry", path=self._path, address=member.address)
            while True:
                try:
                    await self._enter(member)
                    break
                except StoreClosed:
                    return
                except (Unavailable, SessionExpired):
                    await self._clock.sleep(_RETRY_S)

    async def _enter(self, member: Member) -> None:
        """Have a node of this session. One whose creation was not confirmed is found again."""
        if self._store.session in await self._own(member):
            return
        wanted = join(self._path, _PREFIX)
        try:
            await self._store.create(wanted, encode_member(member), ephemeral=True, sequential=True, parents=True)
        except (MetadataOutcomeUnknown, NodeExists):
            if self._store.session not in await self._own(member):
                raise
        _log.info("proxy.joined", path=self._path, address=member.address, instance=member.instance)

    async def _own(self, member: Member) -> dict[int | None, str]:
        """Our nodes, by the sessions that they belong to: an earlier one's may not be gone yet."""
        own: dict[int | None, str] = {}
        for name, found in (await self._nodes()).items():
            if found == member:
                path = join(self._path, name)
                stat = await self._store.exists(path)
                if stat is not None:
                    own[stat.owner] = path
        return own

    async def _leave(self, member: Member) -> None:
        for path in (await self._own(member)).values():
            try:
                await self._store.delete(path, expected=ANY_VERSION)
            except NoSuchNode:
                pass
