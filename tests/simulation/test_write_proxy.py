"""Write proxies while they are killed, drained, cut off and lose their sessions: what they acknowledge is stored, once.

Real proxies, bookies and calls on a simulated network. Clients are as simple as can be: each sends one batch after the
other, to whomever the last answer named, and again until it is stored. Afterwards the streams are read without proxies:

  NothingLost      every batch that was acknowledged is where the answer said
  NothingTwice     of a client with a producer id, every record is there once
  InOrder          the records of each client are in the order in which it sent them

`QUIRE_SEEDS` says how many runs there are.
"""

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NotOwner, ProxyOutcomeUnknown, ProxyUnreachable, QuireError
from quire.proxy.write.settings import WriteProxySettings
from quire.rpc.serving import methods
from quire.rpc.serving.results import is_not_applied
from quire.rpc.serving.transport import Channel
from quire.testing.sim_calls import SimTransport
from tests.support.proxies.write_world import PORT, SETTINGS, STREAMS, World, once, places, run_world
from tests.support.tiers import one_in

SEEDS = int(os.environ.get("QUIRE_SEEDS") or (2000 if os.environ.get("QUIRE_TEST_LONG") else 40))
CHUNK = 5
PROXIES = ("p1", "p2", "p3")
STREAMS_WRITTEN = ("s0", "s1", "s2")
LASTS_S = 8.0


@dataclass
class Sender:
    """One client of one stream."""

    number: int
    stream: str
    has_producer: bool
    acked: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)  # By the number of the record.
    sent: int = 0
    host: str = PROXIES[0]  # Whom it asks next.
    seen: Counter[str] = field(default_factory=Counter)

    async def run(self, world: World, until_s: float) -> None:
        """Write until the time is over."""
        transport = SimTransport(world.sim.host(f"c{self.number}").runtime, f"c{self.number}")
        rng = world.sim.host(f"c{self.number}").rng
        try:
            while world.now_s < until_s:
                count = 1 + rng.randrange(4)
                options: dict[str, Any] = {}
                if self.has_producer:
                    options["producer"] = pb.Producer(id=self.number.to_bytes(16, "big"), first_seq=self.sent + 1)
                records = [b"%d/%d" % (self.number, self.sent + place) for place in range(count)]
                request = once(self.stream, *records, **options)
                self.sent += count
                answer = await self._stored(world, transport, request)
                found = places(answer)
                if found or answer.result.code != pb.DUPLICATE:
                    assert len(found) == count, "every record has a place"
                    for place, dlsn in enumerate(found):
                        self.acked[self.sent - count + place] = [dlsn]
                await asyncio.sleep(rng.random() * 0.1)
        finally:
            await transport.aclose()

    async def _stored(
        self, world: World, transport: SimTransport, request: pb.WriteOnceRequest
    ) -> pb.WriteOnceResponse:
        """Send it until it is stored."""
        tried = list[str]()
        rng = world.sim.host(f"c{self.number}").rng
        while True:
            channel: Channel = transport.channel(f"{self.host}:{PORT}")
            wait_ms: object = 0
            try:
                answer: pb.WriteOnceResponse = await channel.call(
                    methods.WRITE_ONCE, request, timeout_s=3.0, tried=tried
                )
                self.seen["stored"] += 1
                return answer
            except NotOwner as error:
                self.seen["redirected"] += 1
                owner = error.facts.get("proxy")
                wait_ms = error.facts.get("retry_after_ms", 0)
                if isinstance(owner, pb.Owner) and error.facts.get("owner_live"):
                    self.host = owner.host
                else:
                    self.host = PROXIES[rng.randrange(len(PROXIES))]
            except QuireError as error:
                self.seen[type(error).__name__] += 1
                if not is_not_applied(error) and not self.has_producer:
                    self.seen["maybe twice"] += 1
                if isinstance(error, ProxyUnreachable | ProxyOutcomeUnknown):
                    tried = [*tried, f"{self.host}:{PORT}"][-2:]
                wait_ms = error.facts.get("retry_after_ms", 20)
                self.host = PROXIES[rng.randrange(len(PROXIES))]
            assert isinstance(wait_ms, int)
            await asyncio.sleep(wait_ms / 1000 + rng.random() * 0.05)


@dataclass
class Faults:
    """What goes wrong, one thing after the other."""

    world: World
    settings: WriteProxySettings
    events: Counter[str] = field(default_factory=Counter)

    async def run(self, until_s: float) -> None:
        rng = self.world.sim.rng
        kinds = [self.kill, self.drain, self.expire, self.stall, self.cut_off, self.bookie, self.release]
        while self.world.now_s < until_s:
            await asyncio.sleep(0.1 + rng.random())
            fault = rng.choice(kinds)
            self.events[fault.__name__] += 1
            await fault(rng.choice(PROXIES))

    async def kill(self, host: str) -> None:
        await self.world.kill(host)
        await asyncio.sleep(self.world.sim.rng.random() * 4)
        await self.start(host)

    async def start(self, host: str) -> None:
        await self.world.proxy(host, self.settings, streams=SIM_STREAMS, served=True, **LEDGERS)

    async def drain(self, host: str) -> None:
        await self.world.peers[host].proxy.drain()
        await self.world.stop(host)
        await self.start(host)

    async def expire(self, host: str) -> None:
        self.world.tree.expire_host(host)

    async def stall(self, host: str) -> None:
        self.world.tree.stall(host, self.world.sim.rng.random() * 5)

    async def cut_off(self, host: str) -> None:
        """From some bookies, or from all."""
        rng, network = self.world.sim.rng, self.world.sim.network
        cut = [bookie.host.name for bookie in self.world.bookies if rng.random() < 0.7]
        for name in cut:
            network.partition(host, name)
        await asyncio.sleep(rng.random() * 4)
        for name in cut:
            network.heal(host, name)

    async def bookie(self, _: str) -> None:
        bookie = self.world.sim.rng.choice(self.world.bookies)
        await bookie.crash()
        await asyncio.sleep(self.world.sim.rng.random())
        await bookie.start()

    async def release(self, host: str) -> None:
        proxy = self.world.peers[host].proxy
        for stream in proxy.table.owned:
            other = self.world.sim.rng.choice([each for each in PROXIES if each != host])
            request = pb.ReleaseRequest(stream=stream.name, suggested_owner=pb.Owner(host=other, port=PORT))
            await self.world.peers[host].call(methods.RELEASE, request)
            return


SIM_STREAMS = replace(STREAMS, entry_bytes=120, commit_delay_s=0.005, roll_interval_s=3.0)
LEDGERS = {"change_timeout_s": 3.0, "append_timeout_s": 4.0, "read_timeout_s": 1.0, "call_timeout_s": 5.0}


async def check(world: World) -> Counter[str]:
    rng = world.sim.rng
    settings = replace(
        SETTINGS,
        snapshot_entries=rng.choice([5, 50, 10_000]),
        service_timeout_s=rng.choice([0.0, 2.0]),
        probation_s=3.0,
        acquires_max=rng.choice([1, 64]),
        acquire_timeout_s=6.0,
        acquire_backoff_s_max=2.0,
        close_timeout_s=2.0,
        graceful_period_s=0.2,
    )
    faults = Faults(world, settings)
    for host in PROXIES:
        await faults.start(host)
    senders = [Sender(number, rng.choice(STREAMS_WRITTEN), has_producer=number % 3 != 2) for number in range(6)]
    until_s = world.now_s + LASTS_S
    writing = [
        world.sim.host(f"c{sender.number}").spawn(sender.run(world, until_s), name=f"sender {sender.number}")
        for sender in senders
    ]
    failing = asyncio.create_task(faults.run(until_s))
    await asyncio.gather(failing, *writing)
    await verify(world, senders)
    met = faults.events
    for sender in senders:
        met.update(sender.seen)
    return met


async def verify(world: World, senders: list[Sender]) -> None:
    world.sim.network.heal()
    world.tree.repair()
    await world.stop_all()
    for stream in dict.fromkeys(sender.stream for sender in senders):
        namespace = await world.reader()
        await namespace.seal_stream(stream)
        async with namespace.open_reader(stream) as reader:
            records = [record async for record in reader]
        by_place = {record.dlsn: record.payload for record in records}
        assert len(by_place) == len(records)
        for sender in senders:
            if sender.stream != stream:
                continue
            own = [int(r.payload.split(b"/")[1]) for r in records if r.payload.startswith(b"%d/" % sender.number)]
            for number, (dlsn,) in sender.acked.items():
                assert by_place.get(dlsn) == b"%d/%d" % (sender.number, number), f"NothingLost: {number} at {dlsn}"  # type: ignore[call-overload]
            if sender.has_producer:
                assert own == list(range(sender.sent)), "NothingTwice"
            else:
                firsts = list(dict.fromkeys(own))
                assert firsts == sorted(firsts), "InOrder"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", one_in(8, range(0, SEEDS, CHUNK)))
def test_proxies_keep_their_promises(first: int) -> None:
    for seed in range(first, min(SEEDS, first + CHUNK)):
        run_world(check, seed=seed, bookies=4)


@pytest.mark.extended
def test_the_workload_is_worth_something() -> None:
    """What should happen does: without it the other test would prove little."""
    met: Counter[str] = Counter()
    for seed in range(1000, 1004):
        met.update(run_world(check, seed=seed, bookies=4))
    wanted = {"kill", "drain", "expire", "stall", "cut_off", "bookie", "release", "stored", "redirected"}
    assert wanted <= {kind for kind, count in met.items() if count}
    assert met["stored"] > 500
