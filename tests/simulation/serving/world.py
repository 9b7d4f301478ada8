"""The whole serving tier in a simulation: bookies, write proxies, read proxies, and their clients on other hosts.

Everything is the real thing but for clock, disks and network.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from quire.codec.pb import quire_v1_pb2 as pb
from quire.ledger.settings import LedgerSettings
from quire.metadata import Cluster, StoreSettings
from quire.protocol.balancing import BalanceSettings
from quire.proxy.client.client import ProxyClient, open_proxy_client
from quire.proxy.client.settings import ProxyClientSettings
from quire.proxy.read.proxy import open_read_proxy
from quire.proxy.write.proxy import WriteProxy, open_write_proxy
from quire.proxy.write.settings import WriteProxySettings
from quire.rpc.serving.grpc_server import GrpcServer
from quire.rpc.serving.settings import ServingSettings
from quire.rpc.serving.tokens import Tokens
from quire.runtime import Runtime
from quire.stream.binding import bind_namespace
from quire.stream.namespace import Namespace, open_namespace
from quire.stream.settings import StreamSettings
from quire.testing import SimBookie, Simulation, sim_cluster, sim_tree, simulate
from quire.testing.sim_calls import SimTransport, bind_sim
from tests.simulation.serving.orders import Orders

URI = "distributedlog+memory:simulated/messaging/ns"
PORT = 7400
SESSION_S = 2.0
STREAMS = StreamSettings(call_timeout_s=20.0, lock_timeout_s=5.0)
UNBALANCED = WriteProxySettings(balance=BalanceSettings(is_on=False))
STORE = StoreSettings(operation_timeout_s=1.5, session_timeout_s=SESSION_S)


@dataclass
class Serving:
    """A cluster that is served. Proxies are called after their hosts."""

    sim: Simulation
    cluster: Cluster
    direct: Namespace
    """For those who want to see what is really there."""
    bookies: list[SimBookie] = field(default_factory=list)
    streams: StreamSettings = STREAMS
    """How proxies write."""
    writing: WriteProxySettings = UNBALANCED
    ledgers: LedgerSettings | None = None
    serving: ServingSettings | None = None
    """What proxies take of all their clients."""
    tokens: Tokens | None = None
    """What proxies ask their clients for, if they do."""
    writers: dict[str, WriteProxy] = field(default_factory=dict)
    servers: dict[str, GrpcServer] = field(default_factory=dict)
    """Where the writers are served."""
    orders: Orders = field(default_factory=Orders)
    """What balancers wanted."""
    _running: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _shards: dict[str, int] = field(default_factory=dict)

    @property
    def now_s(self) -> float:
        return self.sim.loop.time()

    async def pause(self, seconds: float) -> None:
        """Let virtual time pass: for clients, which do not know that they are simulated."""
        await asyncio.sleep(seconds)

    async def start(self, name: str) -> None:
        """A write proxy if its name begins with w, else a read proxy."""
        if name.startswith("w"):
            await self.start_writer(name)
        else:
            await self.start_reader(name)

    async def start_writer(self, name: str, settings: WriteProxySettings | None = None) -> WriteProxy:
        shard = self._shard(name)
        started: asyncio.Future[WriteProxy] = self.sim.loop.create_future()
        self._running[name] = self.sim.host(name).spawn(
            self._run_writer(name, started, replace(settings or self.writing, shard=shard)), name=name
        )
        self.writers[name] = await started
        return self.writers[name]

    async def _run_writer(self, name: str, started: "asyncio.Future[WriteProxy]", settings: WriteProxySettings) -> None:
        runtime = self.sim.host(name).runtime
        async with AsyncExitStack() as stack:
            server = await bind_sim(runtime, name, PORT, settings=self.serving)
            stack.push_async_callback(server.aclose)
            client_id = f"1;{settings.shard};{name}:{PORT}"
            namespace = await stack.enter_async_context(self._namespace(runtime, client_id))
            transport = SimTransport(runtime, name)
            stack.push_async_callback(transport.aclose)
            address = pb.Owner(host=name, port=PORT)
            proxy = await stack.enter_async_context(
                open_write_proxy(namespace, settings, address=address, transport=transport)
            )
            if self.tokens is not None:
                server.require(self.tokens)
            self.orders.note(proxy)
            await server.start(proxy.handlers())
            await stack.enter_async_context(proxy.join())
            self.servers[name] = server
            started.set_result(proxy)
            await proxy.wait_drained()

    async def start_reader(self, name: str) -> None:
        started: asyncio.Future[None] = self.sim.loop.create_future()
        shard = self._shard(name)
        self._running[name] = self.sim.host(name).spawn(self._run_reader(name, started, shard), name=name)
        await started

    async def _run_reader(self, name: str, started: "asyncio.Future[None]", shard: int) -> None:
        runtime = self.sim.host(name).runtime
        async with AsyncExitStack() as stack:
            server = await bind_sim(runtime, name, PORT, settings=self.serving)
            stack.push_async_callback(server.aclose)
            namespace = await stack.enter_async_context(self._namespace(runtime, name))
            proxy = await stack.enter_async_context(open_read_proxy(namespace, address=pb.Owner(host=name, port=PORT)))
            if self.tokens is not None:
                server.require(self.tokens)
            await server.start(proxy.handlers())
            await stack.enter_async_context(proxy.join(shard=shard))
            started.set_result(None)
            await asyncio.Event().wait()

    def _namespace(self, runtime: Runtime, client_id: str) -> AbstractAsyncContextManager[Namespace]:
        return open_namespace(
            URI,
            runtime=runtime,
            client_id=client_id,
            settings=self.streams,
            store_settings=STORE,
            ledger_settings=self.ledgers,
        )

    def _shard(self, name: str) -> int:
        return self._shards.setdefault(name, len(self._shards))

    async def kill(self, name: str) -> None:
        """As kill -9 does: its session ends by itself, later."""
        sim_tree(self.cluster).abandon(name)
        await self.sim.host(name).crash(power_loss=False)
        self._running.pop(name, None)

    @asynccontextmanager
    async def client(
        self, host: str = "client", *, settings: StreamSettings = STREAMS, **client_settings: Any
    ) -> AsyncIterator[ProxyClient]:
        runtime = self.sim.host(host).runtime
        transport = SimTransport(runtime, host, token=client_settings.get("token"))
        seeds = ",".join(f"{name}:{PORT}" for name in self._shards)
        try:
            async with open_proxy_client(
                f"quire://{seeds}/ns",
                settings=settings,
                client_settings=ProxyClientSettings(**client_settings),
                client_id=host,
                transport=transport,
                runtime=runtime,
            ) as client:
                yield client
        finally:
            await transport.aclose()

    async def stop(self) -> None:
        for task in self._running.values():
            task.cancel()
        if self._running:
            await asyncio.wait(self._running.values())


@asynccontextmanager
async def served(sim: Simulation, *, writers: int, readers: int, **settings: Any) -> AsyncIterator[Serving]:
    """A cluster of three bookies with so many proxies, called w0, w1 … and r0, r1 …, for the block."""
    async with sim_cluster(sim) as cluster:
        bookies = [SimBookie(sim, f"b{number}", cluster) for number in range(3)]
        for bookie in bookies:
            await bookie.start()
        runtime = sim.host("admin").runtime
        await bind_namespace(URI, runtime=runtime)
        async with open_namespace(URI, runtime=runtime, client_id="admin", settings=STREAMS) as direct:
            world = Serving(sim, cluster, direct, bookies, **settings)
            for number in range(writers):
                await world.start_writer(f"w{number}")
            for number in range(readers):
                await world.start_reader(f"r{number}")
            try:
                yield world
            finally:
                await world.stop()
        for bookie in bookies:
            await bookie.stop()


def serve(
    check: Callable[[Serving], Awaitable[None]],
    *,
    writers: int = 2,
    readers: int = 1,
    seeds: "int | range" = 2,
    time_limit_s: float = 900.0,
) -> None:
    """Run `check` on a cluster with so many proxies, once for each seed."""

    async def main(sim: Simulation) -> None:
        async with served(sim, writers=writers, readers=readers) as world:
            await sim.host("client").spawn(check(world))  # type: ignore[arg-type]

    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        simulate(seed, main, time_limit_s=time_limit_s)
