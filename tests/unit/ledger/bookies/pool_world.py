"""A cluster for tests of the pool: its metadata, bookies that say what they are told to, and a client to cut off."""

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.support.scripted_bookie import ScriptedBookie

from quire.codec.registration import BOOKIE_RPC, BookieServiceInfo, Endpoint
from quire.errors import BookieUnavailable
from quire.ledger.bookies.pool import BookiePool, PoolSettings, Version
from quire.metadata import Cluster, MetadataStore, Registration, StoreSettings, init_cluster, parse_uri
from quire.metadata.cluster import attach_cluster
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.rpc import BookieChannel
from quire.runtime import Runtime
from quire.testing import Simulation, simulate
from quire.types import BookieId

DEADLINE_S = 60.0  # Of virtual time.
URI = parse_uri("memory:")
B1, B2, B3 = BookieId("b1"), BookieId("b2"), BookieId("b3")
VERSIONS: tuple[Version, Version] = (2, 3)


def at(host: str, port: int) -> BookieServiceInfo:
    return BookieServiceInfo((Endpoint("bookie", host, port, BOOKIE_RPC),))


class FakeBookie:
    """Listens at one address and is registered; remembers every connection it ever got."""

    def __init__(self, world: "World", name: str, host: str) -> None:
        self._world, self.id, self.host = world, BookieId(name), host
        self.port = 0
        self.accepted: list[ScriptedBookie] = []
        self.closes_at_once = False
        self.registration: Registration | None = None
        self._stack = AsyncExitStack()

    async def listen(self, port: int = 0) -> None:
        network = self._world.sim.host(self.host).runtime.network
        server = await self._stack.enter_async_context(await network.serve(self.host, port, self._accept))
        self.port = server.address[1]

    async def register(self, info: BookieServiceInfo | None = None, *, readonly: bool = False) -> None:
        bookies = self._world.cluster.bookies
        block = bookies.register(self.id, info or at(self.host, self.port), readonly=readonly)
        self.registration = await self._stack.enter_async_context(block)

    async def start(self, port: int = 0) -> "FakeBookie":
        await self.listen(port)
        await self.register()
        return self

    async def stop(self) -> None:
        await self._stack.aclose()

    def _accept(self) -> asyncio.Protocol:
        bookie = ClosingBookie() if self.closes_at_once else ScriptedBookie()
        self.accepted.append(bookie)
        return bookie

    @property
    def connected(self) -> list[ScriptedBookie]:
        return [each for each in self.accepted if each.made and not each.lost]


class ClosingBookie(ScriptedBookie):
    """As a Java bookie does while it starts."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.close()


class World:
    """A cluster's metadata, and a client's own handle of it that can be cut off."""

    def __init__(self, sim: Simulation, tree: MemoryTree, cluster: Cluster, client: Cluster) -> None:
        self.sim, self.tree, self.cluster, self.client = sim, tree, cluster, client
        self._cut_session = client.store.session

    @property
    def runtime(self) -> Runtime:
        return self.sim.host("client").runtime

    @property
    def now(self) -> float:
        return self.sim.loop.time()

    def pool(self, settings: PoolSettings | None = None, *, tls: ssl.SSLContext | None = None) -> BookiePool:
        return BookiePool(self.runtime, self.client.bookies, settings or PoolSettings(), tls=tls)

    def bookie(self, name: str, host: str | None = None) -> FakeBookie:
        return FakeBookie(self, name, host or name)

    def cut_off(self) -> None:
        self._cut_session = self.client.store.session
        self.tree.disconnect(self._cut_session)

    def bring_back(self) -> None:
        self.tree.reconnect(self._cut_session)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await self.pass_time(0.001)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def connections(self) -> int:
        """How many connections of the client exist, in whatever state."""
        return sum(end.host == "client" for end in self.sim.network._connections)


@asynccontextmanager
async def new_world(sim: Simulation) -> AsyncIterator[World]:
    tree, settings = MemoryTree(), StoreSettings(operation_timeout_s=5.0, session_timeout_s=1000.0)
    handle = functools.partial(MemoryDriver, tree, settings)
    server, client = sim.host("metadata").runtime, sim.host("client").runtime
    async with (
        MetadataStore(handle(server), server.clock) as store,
        MetadataStore(handle(client), client.clock) as client_store,
    ):
        cluster = await init_cluster(store, URI, server)
        yield World(sim, tree, cluster, await attach_cluster(client_store, URI, client))


def in_world(check: Callable[[World], Awaitable[None]], *, seed: int = 1) -> None:
    """Run `check`, and see to it that nothing of the client is left afterwards."""

    async def main(sim: Simulation) -> None:
        async with new_world(sim) as world:
            tasks_before = set(sim.loop.pending_tasks())
            await check(world)
            left = [
                task for task in sim.loop.pending_tasks() if task.get_name().startswith(("bookie", "follow", "where"))
            ]
            assert [task for task in left if task not in tasks_before] == []
            await world.until(lambda: world.connections() == 0)

    simulate(seed, main, time_limit_s=7200.0)


async def refusal(coroutine: Awaitable[BookieChannel]) -> BookieUnavailable:
    with pytest.raises(BookieUnavailable) as raised:
        await coroutine
    return raised.value
