"""Who owns which stream, for clients that ask and for those that want to be told.

A client that watches is told first everything, then what changed: of a stream that changed twice before it looked, the
last word. What is kept for a slow one is a set of names.
"""

import asyncio
from collections.abc import AsyncGenerator

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream_metadata.names import stream_name
from quire.protocol import balancing
from quire.protocol.ring import HashRing
from quire.proxy.membership import LiveSet, Member
from quire.proxy.write.answers import lock_address
from quire.proxy.write.load_board import LoadBoard
from quire.proxy.write.refusals import Refusals
from quire.proxy.write.stream_table import StreamTable
from quire.stream.context import StreamContext
from quire.stream.info import lock_holder


class Routing:
    """What one proxy knows of where streams are."""

    def __init__(
        self,
        context: StreamContext,
        table: StreamTable,
        refusals: Refusals,
        address: pb.Owner,
        namespace: str,
        board: LoadBoard,
        *,
        writers: LiveSet,
        readers: LiveSet,
    ) -> None:
        self._context, self._table, self._refusals = context, table, refusals
        self._address, self._namespace, self._writers, self._readers = address, namespace, writers, readers
        self._board = board
        self._watchers: dict[_Watcher, None] = {}  # In the order in which they are told.
        self._ring: tuple[frozenset[str], HashRing] = (frozenset(), HashRing(()))
        table.on_ownership = self._on_ownership

    # --- Answers

    def handshake(self, request: pb.HandshakeRequest) -> pb.HandshakeResponse:
        return pb.HandshakeResponse(
            server_id=f"{self._address.host}:{self._address.port}",
            role=pb.WRITE_PROXY,
            status=self._table.status,
            namespace=self._namespace,
            members=self.members(),
            owned=self._all_owned(request.prefix) if request.want_ownerships else [],
        )

    def members(self) -> list[pb.Member]:
        sets = ((self._writers, pb.WRITE_PROXY), (self._readers, pb.READ_PROXY))
        return [member.message(role) for live, role in sets for member in sorted(live.current, key=_shown)]

    async def get_owner(self, stream: str) -> pb.GetOwnerResponse:
        """Who owns the stream, by what we hold and what the lock says; or where it belongs."""
        name = stream_name(stream)
        owned = self._table.owns(name)
        if owned is not None:
            return pb.GetOwnerResponse(owner=self._address, is_owned=True, owner_live=True, epoch=owned.epoch)
        holder = await lock_holder(self._context.store, self._context.paths(name).lock)
        address = lock_address(holder) if holder is not None else None
        if address is not None:
            owner = self._refusals.owner_at(address)
            return pb.GetOwnerResponse(owner=owner, is_owned=True, owner_live=self._refusals.is_live(owner))
        chosen = self.place(name)
        return pb.GetOwnerResponse(owner=chosen, is_owned=False, owner_live=chosen is not None)

    def place(self, stream: str, *, but_not: str = "") -> pb.Owner | None:
        """Where a stream belongs that nobody owns, among the proxies that are alive: by the ring, and by load."""
        members = {member.address: member for member in self._writers.current}
        candidates = self._ring_of(frozenset(members)).candidates(f"{self._namespace}/{stream}")
        chosen = balancing.place((each for each in candidates if each != but_not), self._board.loads)
        return None if chosen is None else members[chosen].owner

    def _ring_of(self, addresses: frozenset[str]) -> HashRing:
        if self._ring[0] != addresses:
            self._ring = (addresses, HashRing(addresses))
        return self._ring[1]

    def _all_owned(self, prefix: str) -> list[pb.Ownership]:
        return [self._ownership(stream.name) for stream in self._table.owned if stream.name.startswith(prefix)]

    def _ownership(self, name: str) -> pb.Ownership:
        owned = self._table.owns(name)
        if owned is not None:
            return pb.Ownership(stream=name, owner=self._address, epoch=owned.epoch)
        moved_to = self._table.moved.get(name)
        return pb.Ownership(stream=name, owner=moved_to)

    # --- Telling

    async def watch(self, request: pb.WatchOwnershipRequest) -> AsyncGenerator[pb.OwnershipChange]:
        """Everything, then what changes."""
        watcher = _Watcher(request.prefix)
        self._watchers[watcher] = None
        following = asyncio.create_task(self._follow_members(watcher), name="tell members")
        try:
            yield pb.OwnershipChange(
                streams=self._all_owned(request.prefix),
                status=self._table.status,
                members=self.members(),
                members_changed=True,
            )
            while True:
                await watcher.news.wait()
                changed, has_members = watcher.take()
                yield pb.OwnershipChange(
                    streams=[self._ownership(name) for name in changed],
                    status=self._table.status,
                    members=self.members() if has_members else [],
                    members_changed=has_members,
                )
        finally:
            del self._watchers[watcher]
            following.cancel()
            await asyncio.wait([following])

    async def _follow_members(self, watcher: "_Watcher") -> None:
        async def follow(live: LiveSet) -> None:
            async for _ in live.watch():
                watcher.on_members()

        await asyncio.gather(follow(self._writers), follow(self._readers))

    def _on_ownership(self, stream: str) -> None:
        for watcher in self._watchers:
            watcher.on_stream(stream)

    def on_status(self) -> None:
        for watcher in self._watchers:
            watcher.news.set()


class _Watcher:
    """What one client has not been told yet."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.news = asyncio.Event()
        self._changed: dict[str, None] = {}
        self._has_members = False

    def on_stream(self, stream: str) -> None:
        if stream.startswith(self._prefix):
            self._changed[stream] = None
            self.news.set()

    def on_members(self) -> None:
        self._has_members = True
        self.news.set()

    def take(self) -> tuple[list[str], bool]:
        changed, has_members = list(self._changed), self._has_members
        self._changed.clear()
        self._has_members = False
        self.news.clear()
        return changed, has_members


def _shown(member: Member) -> str:
    return member.address
