"""Write proxies in a simulation: metadata in memory, real bookies on simulated disks, and any number of proxies.

Handlers are called as a transport calls them, without a network between: what is tested here is the proxy.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from quire.bookie.bookie import BookieSettings
from quire.bookie.identity import BookieFolders
from quire.bookie.journal import JournalSettings
from quire.bookie.settings import StorageSettings
from quire.bookie.space import SpaceSettings
from quire.codec.batch_checksum import batch_checksum
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.records import LogRecord
from quire.errors import QuireError
from quire.metadata import Cluster, StoreSettings
from quire.proxy.write.answers import lock_client_id
from quire.proxy.write.proxy import WriteProxy, open_write_proxy
from quire.proxy.write.settings import WriteProxySettings
from quire.rpc.serving import methods
from quire.rpc.serving.methods import Method
from quire.rpc.serving.transport import Caller
from quire.stream.binding import bind_namespace
from quire.stream.namespace import Namespace, open_namespace
from quire.stream.settings import StreamSettings
from quire.testing import SimBookie, SimTree, Simulation, sim_cluster, sim_tree, simulate
from quire.testing.sim_calls import bind_sim
from tests.support.streams.cluster import LEDGER_SETTINGS

T = TypeVar("T")

URI = "distributedlog+memory:simulated/messaging/ns"
SESSION_S = 2.0
STORE = StoreSettings(operation_timeout_s=1.5, session_timeout_s=SESSION_S)
STREAMS = StreamSettings(call_timeout_s=10.0, lock_timeout_s=5.0)
SETTINGS = WriteProxySettings(session_timeout_s=SESSION_S, graceful_period_s=0.5)
PORT = 4100
_BOOKIE = BookieSettings(
    BookieFolders("/data", ("/journal",)),
    checkpoint_interval_s=0.5,
    storage=StorageSettings(
        cache_bytes_max=8 << 20,
        log_bytes_max=8 << 20,
        journal=JournalSettings(file_bytes_max=4 << 20, preallocate_bytes=64 << 10),
    ),
    space=SpaceSettings(reserve_bytes=0),
)


def address(host: str) -> pb.Owner:
    return pb.Owner(host=host, port=PORT)


class Peer:
    """One proxy, and a client that calls it."""

    def __init__(self, proxy: WriteProxy, *, client_id: str = "client") -> None:
        self.proxy, self.client_id = proxy, client_id
        self._handlers = proxy.handlers()

    async def call(self, method: Method, request: Any, *, tried: Sequence[str] = ()) -> Any:
        handler: Any = self._handlers[method]
        return await handler(request, Caller(self.client_id, tried=tuple(tried)))

    async def refused(self, method: Method, request: Any, *, tried: Sequence[str] = ()) -> QuireError:
        """The error that a call ends with."""
        try:
            answer = await self.call(method, request, tried=tried)
        except QuireError as error:
            return error
        raise AssertionError(f"{method} was not refused: {answer}")

    async def write(self, stream: str, *records: bytes, **options: Any) -> pb.WriteOnceResponse:
        answer: pb.WriteOnceResponse = await self.call(methods.WRITE_ONCE, once(stream, *records, **options))
        return answer

    async def heartbeat(self, stream: str, **options: Any) -> pb.HeartbeatResponse:
        request = pb.HeartbeatRequest(stream=stream, create_if_missing=True, **options)
        answer: pb.HeartbeatResponse = await self.call(methods.HEARTBEAT, request)
        return answer

    @asynccontextmanager
    async def write_call(self, **options: Any) -> AsyncIterator["Duplex"]:
        """An open Write call."""
        handler: Any = self._handlers[methods.WRITE]
        duplex = Duplex(handler, Caller(self.client_id))
        async with duplex:
            await duplex.send(pb.WriteRequest(open=pb.Open(client_id=self.client_id, **options)))
            first = await duplex.receive()
            assert first.HasField("opened"), first
            duplex.opened = first.opened
            yield duplex


class Duplex:
    """A Write call, as a client has it."""

    def __init__(self, handler: Any, caller: Caller) -> None:
        self._requests: asyncio.Queue[pb.WriteRequest | None] = asyncio.Queue()
        self._responses = handler(self._read(), caller)
        self.opened = pb.Opened()
        self.taken = 0  # Requests that the proxy has read.
        self._next_seq = 1

    async def _read(self) -> AsyncIterator[pb.WriteRequest]:
        while (request := await self._requests.get()) is not None:
            self.taken += 1
            yield request

    async def __aenter__(self) -> "Duplex":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._responses.aclose()

    async def send(self, request: pb.WriteRequest) -> None:
        self._requests.put_nowait(request)

    def done_sending(self) -> None:
        self._requests.put_nowait(None)

    async def receive(self) -> pb.WriteResponse:
        response: pb.WriteResponse = await anext(self._responses)
        return response

    async def ack(self) -> pb.Ack:
        """The next answer, whatever else is told before it."""
        while True:
            response = await self.receive()
            if response.HasField("ack"):
                return response.ack

    def send_batch(self, stream: str, *records: bytes, attempt: int = 1, **options: Any) -> int:
        """Send it without waiting. Returns its number."""
        number = self._next_seq
        self._next_seq += 1
        made = batch(stream, *records, attempt=attempt, call_seq=number, **options)
        self._requests.put_nowait(pb.WriteRequest(batch=made))
        return number


def batch(stream: str, *records: bytes, **options: Any) -> pb.Batch:
    options = {"create_if_missing": True, "crc32c": batch_checksum(stream, records), **options}
    return pb.Batch(stream=stream, records=records, **options)


def once(stream: str, *records: bytes, **options: Any) -> pb.WriteOnceRequest:
    return pb.WriteOnceRequest(batch=batch(stream, *records, **options))


def producer(number: int, first_seq: int) -> pb.Producer:
    return pb.Producer(id=number.to_bytes(16, "big"), first_seq=first_seq)


def places(answer: pb.WriteOnceResponse | pb.Ack) -> list[tuple[int, int, int]]:
    """Of each record."""
    return [
        (run.first.lssn, run.first.entry_id, run.first.slot_id + slot)
        for run in answer.placed
        for slot in range(run.count)
    ]


@dataclass
class World:
    sim: Simulation
    cluster: Cluster
    bookies: list[SimBookie]
    stack: AsyncExitStack
    namespaces: dict[str, Namespace] = field(default_factory=dict)
    peers: dict[str, "Peer"] = field(default_factory=dict)
    _ends: dict[str, asyncio.Event] = field(default_factory=dict)
    _lives: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    @property
    def tree(self) -> SimTree:
        return sim_tree(self.cluster)

    @property
    def now_s(self) -> float:
        return self.sim.loop.time()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def proxy(
        self,
        host: str,
        settings: WriteProxySettings = SETTINGS,
        *,
        streams: StreamSettings = STREAMS,
        served: bool = False,
        **options: Any,
    ) -> Peer:
        """A proxy on a host of its own, listed among those alive; on the network, too, if it is `served`. `options` are
        settings of its ledger client."""
        ready: asyncio.Future[WriteProxy] = asyncio.get_running_loop().create_future()
        end = self._ends[host] = asyncio.Event()

        async def live() -> None:
            try:
                async with (
                    open_namespace(
                        URI,
                        settings=streams,
                        store_settings=STORE,
                        ledger_settings=replace(LEDGER_SETTINGS, **options),
                        client_id=lock_client_id(settings.shard, address(host)),
                        runtime=self.sim.host(host).runtime,
                    ) as namespace,
                    open_write_proxy(namespace, settings, address=address(host)) as proxy,
                    serving(self.sim, host, proxy) if served else nullcontext(),
                    proxy.join(),
                ):
                    ready.set_result(proxy)
                    await end.wait()
            except BaseException as error:
                if not ready.done():
                    ready.set_exception(error)
                raise

        self._lives[host] = self.sim.host(host).spawn(live(), name=f"proxy {host}")
        self.peers[host] = Peer(await ready)
        return self.peers[host]

    async def stop(self, host: str) -> None:
        self._ends[host].set()
        await self._lives.pop(host)

    async def kill(self, host: str) -> None:
        """The process dies. Its session, and so its locks, stay until their time is over."""
        self._lives.pop(host)
        self.tree.abandon(host)
        await self.sim.host(host).crash(power_loss=False)

    async def stop_all(self) -> None:
        for host in list(self._lives):
            await self.stop(host)

    async def reader(self, host: str = "reader") -> Namespace:
        if host not in self.namespaces:
            opening = open_namespace(
                URI, settings=STREAMS, store_settings=STORE, client_id=host, runtime=self.sim.host(host).runtime
            )
            self.namespaces[host] = await self.stack.enter_async_context(opening)
        return self.namespaces[host]

    async def read(self, stream: str, count: int) -> list[LogRecord]:
        """The first `count` records of a stream, as a client reads them without a proxy."""
        namespace = await self.reader()
        found: list[LogRecord] = []
        async with asyncio.timeout(60), namespace.open_reader(stream) as reader:
            while len(found) < count:
                found += await reader.read_many(count - len(found))
        return found


@asynccontextmanager
async def serving(sim: Simulation, host: str, proxy: WriteProxy) -> AsyncIterator[None]:
    """Where other hosts reach it."""
    runtime = sim.host(host).runtime
    server = await bind_sim(runtime, host, PORT)
    try:
        await server.start(proxy.handlers())
        yield
    finally:
        await server.aclose()


def in_world(check: Callable[[World], Awaitable[None]], *, bookies: int = 3, seeds: int = 2) -> None:
    for seed in range(seeds):
        run_world(check, seed=seed, bookies=bookies)


def run_world(check: Callable[[World], Awaitable[T]], *, seed: int, bookies: int) -> T:
    async def main(sim: Simulation) -> T:
        async with sim_cluster(sim) as cluster:
            started = [SimBookie(sim, f"b{number}", cluster, settings=_BOOKIE) for number in range(bookies)]
            for bookie in started:
                await bookie.start()
            async with AsyncExitStack() as stack:
                await bind_namespace(URI, runtime=sim.host("admin").runtime)
                world = World(sim, cluster, started, stack)
                result = await check(world)
                await world.stop_all()
            for bookie in started:
                if bookie.is_running:
                    await bookie.stop()
            return result

    return simulate(seed, main, time_limit_s=3600)
