"""A read proxy in a simulation: real bookies, a namespace for writers, one for the proxy, and readers that call its
handlers as a transport would.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from quire.bookie.bookie import BookieSettings
from quire.bookie.identity import BookieFolders
from quire.bookie.journal import JournalSettings
from quire.bookie.settings import StorageSettings
from quire.bookie.space import SpaceSettings
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.entries import decode_entry
from quire.codec.stream.records import LogRecord
from quire.cold import ColdStores
from quire.cold.blocking import at_once
from quire.ledger.settings import LedgerSettings
from quire.metadata import Cluster, StoreSettings
from quire.proxy.read.proxy import ReadProxy, open_read_proxy
from quire.proxy.read.settings import ReadProxySettings
from quire.rpc.serving.results import dlsn_of
from quire.rpc.serving.transport import Caller, Offering
from quire.stream.binding import bind_namespace
from quire.stream.namespace import Namespace, open_namespace
from quire.stream.settings import StreamSettings
from quire.testing import SimBookie, SimTree, Simulation, sim_cluster, sim_tree, simulate
from quire.types import DLSN, EntryId, Lssn

URI = "distributedlog+memory:simulated/messaging/ns"
STREAM = "s"
SETTINGS = StreamSettings(call_timeout_s=20.0, lock_timeout_s=5.0, commit_delay_s=0.005, idle_s=5.0)
STORE = StoreSettings(operation_timeout_s=3.0, session_timeout_s=4.0)
LEDGERS = LedgerSettings(read_timeout_s=2.0, speculative_read_s=1.0, poll_s=2.0, change_timeout_s=10.0)
CALLER = Caller("test")
_STORAGE = StorageSettings(
    cache_bytes_max=8 << 20,
    log_bytes_max=8 << 20,
    journal=JournalSettings(file_bytes_max=4 << 20, preallocate_bytes=64 << 10),
)
EARLIEST = pb.Position(edge=pb.EARLIEST)
LATEST = pb.Position(edge=pb.LATEST)


def at(lssn: int, entry_id: int, slot_id: int = 0) -> pb.Position:
    return pb.Position(dlsn=pb.Dlsn(lssn=lssn, entry_id=entry_id, slot_id=slot_id))


@dataclass
class Client:
    """One call of `Read`, and all that came."""

    proxy: ReadProxy
    request: pb.ReadRequest
    events: list[pb.ReadEvent] = field(default_factory=list)
    records: list[LogRecord] = field(default_factory=list)
    came_s: list[float] = field(default_factory=list)
    position: DLSN | None = None
    error: Exception | None = None
    may_go: asyncio.Event = field(default_factory=asyncio.Event)
    offers: bool = False
    """Whether it takes messages that are handed out, as long as it may go on."""
    offered: int = 0
    task: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self.may_go.set()

    async def run(self) -> None:
        messages = self.proxy.read(self.request, CALLER)
        if self.offers:
            assert isinstance(messages, Offering)
            messages.offer_to(self._on_offered)
        try:
            async for message in messages:
                assert isinstance(message, bytes)
                self._take(pb.ReadEvent.FromString(message))
                await self.may_go.wait()
                await asyncio.sleep(0)
        except Exception as error:
            self.error = error
        finally:
            await messages.aclose()  # type: ignore[attr-defined]

    def _on_offered(self, message: bytes) -> bool:
        if not self.may_go.is_set():
            return False
        self.offered += 1
        self._take(pb.ReadEvent.FromString(message))
        return True

    def _take(self, event: pb.ReadEvent) -> None:
        self.events.append(event)
        now_s = asyncio.get_running_loop().time()
        for entry in event.entries:
            found = decode_entry(
                entry.data, lssn=Lssn(entry.lssn), entry_id=EntryId(entry.entry_id), enveloped=not entry.is_bare
            )
            self.records += [record for record in found if not record.is_control and not record.is_end_of_stream]
            self.came_s += [now_s] * (len(self.records) - len(self.came_s))
        for record in event.records:
            self.records.append(LogRecord(dlsn_of(record.dlsn), record.txid, record.payload, 0, record.flags))
            self.came_s.append(now_s)
        if event.HasField("progress"):
            position = dlsn_of(event.progress.position)
            assert self.position is None or position >= self.position
            self.position = position

    @property
    def payloads(self) -> list[bytes]:
        return [record.payload for record in self.records]

    @property
    def modes(self) -> list[int]:
        return [event.progress.mode for event in self.events if event.HasField("progress")]

    @property
    def gaps(self) -> list[tuple[DLSN, DLSN]]:
        return [(dlsn_of(getattr(e.gap, "from")), dlsn_of(e.gap.to)) for e in self.events if e.HasField("gap")]

    @property
    def has_ended(self) -> bool:
        return any(event.end_of_stream for event in self.events)

    def check_order(self) -> None:
        places = [record.dlsn for record in self.records]
        assert places == sorted(set(places)), "in order, each once"

    async def stop(self) -> None:
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])


@dataclass
class World:
    sim: Simulation
    cluster: Cluster
    bookies: list[SimBookie]
    stack: AsyncExitStack
    writers: Namespace  # Of the host `writer`.
    behind: Namespace  # The proxy's own.
    proxy: ReadProxy
    clients: list[Client] = field(default_factory=list)

    @property
    def tree(self) -> SimTree:
        return sim_tree(self.cluster)

    @property
    def now_s(self) -> float:
        return self.sim.loop.time()

    async def open(self, host: str, **options: Any) -> Namespace:
        return await _open(self.sim, self.stack, host, **options)

    def read(self, start: pb.Position = EARLIEST, *, offers: bool = False, **fields: Any) -> Client:
        """Begin to read, as a client of the proxy."""
        request = pb.ReadRequest(stream=fields.pop("stream", STREAM), start=start, **fields)
        client = Client(self.proxy, request, offers=offers)
        client.task = self.sim.host("proxy").spawn(client.run())
        self.clients.append(client)
        return client

    async def fetch(self, start: pb.Position, **fields: Any) -> pb.FetchResponse:
        request = pb.FetchRequest(stream=fields.pop("stream", STREAM), start=start, **fields)
        return await self.proxy.fetch(request, CALLER)

    @asynccontextmanager
    async def writer(self, stream: str = STREAM, **overrides: Any) -> AsyncIterator[Any]:
        async with self.writers.open_writer(stream, **overrides) as writer:
            yield writer

    async def write(self, count: int, *, first: int = 0, stream: str = STREAM, **overrides: Any) -> list[DLSN]:
        """Records `first`, `first + 1` …, each awaited; then the writer is closed."""
        async with self.writer(stream, **overrides) as writer:
            return [await writer.append(b"%d" % number) for number in range(first, first + count)]

    def measured(self, name: str, **labels: str) -> float:
        """What the proxy says at a scrape."""
        (found,) = (
            sample.value
            for metric in self.proxy.metrics.collect()
            for sample in metric.samples
            if sample.name == name and sample.labels == labels
        )
        return found

    def entries_read(self) -> int:
        """Entries that bookies gave to the proxy."""
        return self.behind.context.ledgers.metrics.read_entries.value

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, condition: Callable[[], bool], *, within_s: float = 120.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - whatever changes, nobody would tell
                await asyncio.sleep(0.01)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def _open(sim: Simulation, stack: AsyncExitStack, host: str, **options: Any) -> Namespace:
    options = {"settings": SETTINGS, "store_settings": STORE, "ledger_settings": LEDGERS, "client_id": host, **options}
    opening = open_namespace(URI, runtime=sim.host(host).runtime, **options)
    return await sim.host(host).spawn(stack.enter_async_context(opening))


def on_proxy(
    check: Callable[[World], Awaitable[None]],
    *,
    seeds: int | range = 2,
    settings: ReadProxySettings | None = None,
    stream_settings: StreamSettings = SETTINGS,
    ledgers: LedgerSettings = LEDGERS,
    cold: Callable[[], ColdStores] = lambda: ColdStores(run=at_once, memory={}),
) -> None:
    """Run `check` on an empty stream, once for each seed. `cold` is what the proxy and writers have."""

    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            kept = BookieSettings(
                BookieFolders("/data", ("/journal",)),
                checkpoint_interval_s=0.5,
                storage=_STORAGE,
                space=SpaceSettings(reserve_bytes=0),
            )
            bookies = [SimBookie(sim, f"b{number}", cluster, settings=kept) for number in range(3)]
            for bookie in bookies:
                await bookie.start()
            async with AsyncExitStack() as stack:
                await bind_namespace(URI, runtime=sim.host("admin").runtime)
                stores = cold()
                writers = await _open(sim, stack, "writer", settings=stream_settings, cold=stores)
                behind = await _open(
                    sim, stack, "proxy", settings=stream_settings, ledger_settings=ledgers, cold=stores
                )
                opening = open_read_proxy(behind, settings, address=pb.Owner(host="proxy", port=4100))
                proxy = await sim.host("proxy").spawn(stack.enter_async_context(opening))
                await writers.create_stream(STREAM)
                world = World(sim, cluster, bookies, stack, writers, behind, proxy)
                try:
                    await check(world)
                finally:
                    for client in world.clients:
                        await client.stop()
            for bookie in bookies:
                if bookie.is_running:
                    await bookie.stop()

    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        simulate(seed, main, time_limit_s=3000)


def settings(**changed: Any) -> ReadProxySettings:
    return replace(ReadProxySettings(), **changed)
