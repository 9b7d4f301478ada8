"""Readers that go through read proxies, of a stream that is written, rolled, recovered, truncated and purged while
bookies, metadata and the proxies themselves fail.

The stream, its troubles and the proof are those of `handmade_stream.py`; here the readers are clients of two proxies
that share lanes, with little memory and few lanes, so that windows are evicted, lanes end and meet, and slow readers
drop out. Proxies are stopped and started again, and clients go on at the other one.

Invariants:
  AckedIsRead    each record that was acknowledged was given, unless it was truncated or purged before.
  OnceInOrder    what a reader got, over all its lives and proxies, is the stream's records in order, each once; a gap
                 only where it was told of one.
  Ends           every reader comes to the end of the sealed stream.
  WithinBudget   no proxy keeps more than its budget, but for the newest chunk of each lane.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.entries import decode_entry
from quire.codec.stream.records import LogRecord
from quire.errors import PositionTruncated, QuireError
from quire.protocol.read_windows import OVERHEAD_BYTES
from quire.proxy.read.proxy import ReadProxy, open_read_proxy
from quire.proxy.read.settings import ReadProxySettings
from quire.rpc.serving.results import dlsn_message, dlsn_of
from quire.rpc.serving.transport import Caller, Offering
from quire.stream.dynamic_settings import follow_settings
from quire.stream.namespace import Namespace
from quire.stream.uri import parse_stream_uri
from quire.testing import Simulation, sim_tree, simulate
from quire.types import DLSN, EntryId, Lssn
from tests.simulation.handmade_stream import Run, after, check, trouble, write
from tests.support.streams.cluster import SETTINGS, stream_cluster
from tests.support.streams.raw import RawStream
from tests.support.tiers import one_in

SEEDS = 50
_TIME_LIMIT_S = 3000.0
_PATIENCE_S = 900.0
_EVENTS = ("appended", "rolled", "failed over", "truncated", "purged", "read", "trouble", "restarted", "lanes met")
_EVENTS_OF_OFFERS = ("offer taken", "offer refused")
_EVENTS_OF_MEMORY = ("evicted", "dropped out", "gap told")


@dataclass
class Hosted:
    """A proxy that can be stopped and started again, and the calls that it serves."""

    run: Run
    name: str
    settings: ReadProxySettings
    proxy: ReadProxy | None = None
    calls: set["asyncio.Task[None]"] = field(default_factory=set)
    up: asyncio.Event = field(default_factory=asyncio.Event)

    async def live(self) -> None:
        """One life after the other."""
        while True:
            async with self._opened() as proxy:
                self.proxy = proxy
                self.up.set()
                await self._watch_memory(self.run.sim.rng.random() * 8.0)
                if self.run.over.is_set():
                    await asyncio.Event().wait()
                self.up.clear()
                self.run.events["restarted"] += 1
                for call in self.calls:
                    call.cancel()
                if self.calls:
                    await asyncio.wait(self.calls)
                self._count(proxy)
            await self.run.pause(1.0)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[ReadProxy]:
        async with (
            self.run.cluster.context(self.name) as context,
            follow_settings(context.runtime, SETTINGS, None) as dynamic,
        ):
            namespace = Namespace(context, parse_stream_uri("distributedlog+memory:simulated/ns"), dynamic)
            async with open_read_proxy(namespace, self.settings, address=pb.Owner(host=self.name)) as proxy:
                yield proxy

    async def _watch_memory(self, for_s: float) -> None:
        ends_s = self.run.sim.loop.time() + for_s
        while self.run.sim.loop.time() < ends_s:
            assert self.proxy is not None
            for pool in (self.proxy._service.lanes.tail_pool, self.proxy._service.lanes.scan_pool):
                newest = sum(1500 + OVERHEAD_BYTES for _ in pool.members())
                assert pool.bytes <= pool.budget_bytes + newest
            await asyncio.sleep(0.1)

    def _count(self, proxy: ReadProxy) -> None:
        lanes, metrics = proxy._service.lanes, proxy._service.metrics
        self.run.events["evicted"] += lanes.tail_pool.evicted + lanes.scan_pool.evicted
        self.run.events["dropped out"] += metrics.dropped_out.value
        self.run.events["lanes met"] += lanes.lanes_met

    async def call(self, work: "asyncio.Task[None]") -> None:
        self.calls.add(work)
        try:
            await work
        finally:
            self.calls.discard(work)


@dataclass
class Reader:
    """A client: what it got, and where it goes on."""

    run: Run
    name: str
    kind: str
    proxies: list[Hosted]
    got: list[LogRecord] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    position: DLSN | None = None
    has_ended: bool = False

    async def read_on(self) -> None:
        rng = self.run.sim.rng
        while not self.has_ended:
            host = rng.choice(self.proxies)
            await host.up.wait()
            assert host.proxy is not None
            lives = rng.randrange(1, 40) if self.kind in ("restless", "slow") else 10**9
            reading = self._fetch(host.proxy, lives) if self.kind == "fetch" else self._read(host.proxy, lives)
            call = self.run.sim.host(host.name).spawn(reading)
            try:
                await host.call(call)
            except asyncio.CancelledError:
                if not call.cancelled():
                    raise
                self.run.events["disconnected"] += 1
            except PositionTruncated:
                self.run.events["overtaken"] += 1
                self.position = None
                self.gaps.append(len(self.got))
            except QuireError as error:
                if self.run.over.is_set():
                    raise
                self.run.events[f"{self.kind}: {type(error).__name__}"] += 1
                await self.run.pause(1.0)
        await self.run.over.wait()
        if self.kind == "records":  # Which do not tell where they are in their segment.
            positions = {record.dlsn: record.position for record in self.run.written}
            self.got = [record._replace(position=positions[record.dlsn]) for record in self.got]
        check(self.run, self.name, self.got, self.gaps)

    def _start(self) -> pb.Position:
        if self.kind in ("records", "restless") and self.got:
            begin = after(self.got)  # As an application resumes: behind the last record that it has done.
            if begin is not None and self.position is not None and not (self.gaps and self.gaps[-1] == len(self.got)):
                self.position = begin
        if self.position is None:
            return pb.Position(edge=pb.EARLIEST)
        return pb.Position(dlsn=dlsn_message(self.position))

    async def _read(self, proxy: ReadProxy, lives: int) -> None:
        rng = self.run.sim.rng
        request = pb.ReadRequest(stream="s", start=self._start(), idle_ping_ms=2000)
        if self.kind == "records":
            request.format = pb.RECORDS
        if self.kind == "skip":
            request.truncated = pb.SKIP
        if self.kind == "slow":
            request.max_frame_bytes = rng.randrange(1, 400)
        count = 0
        async with aclosing(proxy.read(request, Caller(self.name))) as messages:  # type: ignore[type-var]
            if self.kind == "offered":
                assert isinstance(messages, Offering)
                messages.offer_to(self._take_offered)
            async for message in messages:
                assert isinstance(message, bytes)
                count += self._take(pb.ReadEvent.FromString(message))
                if self.has_ended or count >= lives:
                    return
                await asyncio.sleep(0)
                if self.kind in ("slow", "skip"):
                    await self.run.pause(1.0)

    async def _fetch(self, proxy: ReadProxy, lives: int) -> None:
        while not self.has_ended:
            request = pb.FetchRequest(stream="s", start=self._start(), max_wait_ms=3000, max_bytes=500, min_bytes=100)
            response = await proxy.fetch(request, Caller(self.name))
            self._take(response.event)
            self.position = dlsn_of(response.next)
            await self.run.pause(0.2)

    def _take_offered(self, message: bytes) -> bool:
        """As a transport that has no room now and then."""
        if self.run.sim.rng.random() < 0.3:
            self.run.events["offer refused"] += 1
            return False
        self.run.events["offer taken"] += 1
        self._take(pb.ReadEvent.FromString(message))
        return True

    def _take(self, event: pb.ReadEvent) -> int:
        before = len(self.got)
        if event.HasField("opened") and self.position is None:
            self.position = dlsn_of(event.opened.resolved)
        if event.HasField("gap"):
            self.run.events["gap told"] += 1
            self.gaps.append(len(self.got))
        for entry in event.entries:
            place = (entry.lssn, entry.entry_id)
            assert self.position is None or place >= self.position[:2], "nothing that is behind the reader comes again"
            found = decode_entry(
                entry.data, lssn=Lssn(entry.lssn), entry_id=EntryId(entry.entry_id), enveloped=not entry.is_bare
            )
            for record in found:
                if record.is_end_of_stream:
                    self.has_ended = True
                elif not record.is_control and (not self.got or record.dlsn > self.got[-1].dlsn):
                    self.got.append(record)
        for message in event.records:
            dlsn = dlsn_of(message.dlsn)
            assert not self.got or dlsn > self.got[-1].dlsn, "records come once"
            self.got.append(LogRecord(dlsn, message.txid, message.payload, 0, message.flags))
        if event.HasField("progress"):
            position = dlsn_of(event.progress.position)
            assert self.position is None or position >= self.position, "positions only grow"
            self.position = position
        self.has_ended = self.has_ended or event.end_of_stream
        return len(self.got) - before


async def live(sim: Simulation) -> Run:
    rng = sim.rng
    kinds = ["steady", "restless", "slow", "records", "skip", "fetch", "steady", "restless", "offered", "offered"]
    async with (
        stream_cluster(sim, bookies=4) as cluster,
        cluster.context("writer") as writer,
        cluster.context("helper") as helper,
    ):
        run = Run(sim, cluster, await RawStream.create(writer))
        settings = ReadProxySettings(
            cache_bytes_max=rng.choice([8 << 10, 20_000, 1 << 20]),
            passed_s=rng.choice([0.0, 0.1, 1.0]),
            tail_linger_s=rng.choice([0.0, 1.0, 30.0]),
            tail_age_s_max=rng.choice([0.5, 60.0]),
            scan_lanes_max=rng.choice([2, 100]),
            lane_read_bytes=rng.choice([100, 1000, 256 << 10]),
            fan_out_s_per_reader=rng.choice([0.0, 0.05]),
        )
        proxies = [Hosted(run, name, settings) for name in ("p0", "p1")]
        serving = [asyncio.create_task(proxy.live()) for proxy in proxies]
        readers = [Reader(run, f"{kind} {number}", kind, proxies) for number, kind in enumerate(kinds)]
        tasks = [asyncio.create_task(reader.read_on()) for reader in readers]
        troubling = asyncio.create_task(trouble(run, ["p0", "p1"]))
        await write(run, helper)
        run.over.set()
        await troubling
        sim_tree(cluster.cluster).repair()
        done, late = await asyncio.wait([*tasks, *serving], timeout=_PATIENCE_S, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        late -= set(serving)
        if late:
            _, late = await asyncio.wait(late, timeout=_PATIENCE_S)
        assert not late, (
            f"readers do not come to the end: {[r.name for r, t in zip(readers, tasks, strict=True) if t in late]}"
        )
        for task in tasks:
            await task
        for host, task in zip(proxies, serving, strict=True):
            if host.proxy is not None:
                host._count(host.proxy)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        lost = run.acked - {record.dlsn for record in run.written}
        assert not lost, f"acknowledged records are gone: {sorted(lost)}"
        await run.stream.close()
    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", one_in(10, range(0, SEEDS, 5)))
def test_readers_of_proxies_get_what_was_written(first: int) -> None:
    for seed in range(first, first + 5):
        simulate(seed, live, time_limit_s=_TIME_LIMIT_S)


@pytest.mark.extended
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, 25))
def test_the_workload_is_worth_something(first: int) -> None:
    """What should happen does, within 25 seeds: without it the other test would prove little."""
    missing = {*_EVENTS, *_EVENTS_OF_OFFERS, *_EVENTS_OF_MEMORY}
    for seed in range(first, first + 25):
        missing -= (+simulate(seed, live, time_limit_s=_TIME_LIMIT_S).events).keys()
        if not missing:
            return
    pytest.fail(f"no seed met {missing}")


@pytest.mark.extended
def test_a_seed_says_everything() -> None:
    digests = set()
    for _ in range(2):
        simulation = Simulation(3, time_limit_s=_TIME_LIMIT_S)
        simulation.run(live)
        digests.add(simulation.trace_digest())
    assert len(digests) == 1
