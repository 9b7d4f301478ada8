"""Readers of a read proxy that stop when they have all there is, as `quire read` does.

A stream is written now and then, by a writer that loses a bookie and gets it back; others follow it, come and go. A
lane that waits at that bookie hears late of what the others have. At any quiet moment a reader that began with the
oldest record has everything, and is told so.

Invariants:
  EndIsTold    a reader that was given all that is confirmed is told that it is at the tail, though no record follows.
  OneReads     then one lane of the stream is open at its end, and no other waits there, too.
"""

from collections import Counter
from functools import partial

import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.proxy.read.settings import ReadProxySettings
from tests.support.proxies.read_world import LATEST, Client, World, numbered, on_proxy
from tests.support.tiers import one_in

_SEEDS = 40
_STEPS = 25
_TOLD_S = 30.0  # A bookie that does not answer costs seconds; anything beyond is for ever.


async def live(world: World, events: Counter[str]) -> None:
    rng, network = world.sim.rng, world.sim.network
    followers: list[Client] = []
    sick = rng.choice(world.bookies)
    async with world.writer() as writer:
        await writer.append(b"0")
        written = 1
        for _ in range(_STEPS):
            match rng.randrange(6):
                case 0:
                    network.partition("writer", sick.host.name)
                    events["cut off"] += 1
                case 1:
                    await sick.crash()
                    await sick.start()
                    events["restarted"] += 1
                case 2:
                    network.heal()
                case 3:
                    followers.append(world.read(rng.choice([pb.Position(edge=pb.EARLIEST), LATEST])))
                case 4 if followers:
                    await followers.pop(rng.randrange(len(followers))).stop()
            for _ in range(rng.randrange(4)):
                await writer.append(b"%d" % written)
                written += 1
                await world.pass_time(rng.random() * rng.choice([0.01, 0.1, 1.0]))
            await world.pass_time(rng.random() * rng.choice([0.02, 0.2, 3.0]))
            reader = world.read(idle_ping_ms=200)
            await world.until(partial(_has_all, reader, written), within_s=_TOLD_S)
            assert reader.payloads == numbered(written)
            assert reader.position is not None
            events["told"] += 1
            (lanes,) = (each.lanes for each in world.proxy._service.lanes.streams.values())
            at_the_end = [lane for lane in lanes if lane.is_open and lane.window.end >= reader.position]
            assert [lane.is_tail for lane in at_the_end] == [True]
            await reader.stop()
    events["lanes met"] += world.proxy._service.lanes.lanes_met


def _has_all(reader: Client, written: int) -> bool:
    assert reader.error is None
    return len(reader.records) == written and bool(reader.modes) and reader.modes[-1] == pb.TAIL


def _run(seed: int, events: Counter[str]) -> None:
    settings = ReadProxySettings(
        passed_s=(0.0, 0.1, 1.0)[seed % 3],
        tail_linger_s=(0.5, 5.0)[seed % 2],
        lane_read_bytes=(100, 256 << 10)[seed // 2 % 2],
    )
    on_proxy(partial(live, events=events), seeds=range(seed, seed + 1), settings=settings)


@pytest.mark.parametrize("first", one_in(5, range(0, _SEEDS, 2)))
def test_readers_that_have_everything_are_told_so(first: int) -> None:
    events = Counter[str]()
    for seed in range(first, first + 2):
        _run(seed, events)
    assert events["told"] == 2 * _STEPS


@pytest.mark.extended
def test_the_workload_is_worth_something() -> None:
    events = Counter[str]()
    for seed in range(6):
        _run(seed, events)
    assert not {"cut off", "restarted", "told", "lanes met"} - (+events).keys()
