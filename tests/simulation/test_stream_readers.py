"""Readers of a stream that is written, rolled, recovered, truncated and purged while bookies and metadata fail.

See `handmade_stream.py` for how it is written. Readers of several kinds read along.

Invariants:
  AckedIsRead    each record that was acknowledged was given, unless it was truncated or purged before.
  OnceInOrder    what a reader got, over all its lives, is the stream's records in order, each once; a gap only where
                 it was told of one.
  Ends           every reader comes to the end of the sealed stream.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest

from quire.codec.stream.records import LogRecord
from quire.errors import PositionTruncated, QuireError
from quire.stream.reader import StreamReader, open_stream_reader
from quire.stream.start import Start, Txid
from quire.testing import Simulation, sim_tree, simulate
from tests.simulation.handmade_stream import Run, after, check, trouble, write
from tests.support.streams.cluster import SETTINGS, stream_cluster
from tests.support.streams.raw import RawStream
from tests.support.tiers import one_in

SEEDS = 50
_TIME_LIMIT_S = 3000.0
_PATIENCE_S = 900.0
_EVENTS = ("appended", "rolled", "failed over", "begun anew", "truncated", "purged", "read", "searched", "trouble")


async def read_on(run: Run, name: str, kind: str) -> None:
    """Read to the end of the stream, in one life or in many, and check every record against what was written."""
    rng = run.sim.rng
    settings = replace(SETTINGS, idle_s=20.0)
    if kind == "narrow":
        settings = replace(settings, read_ahead_bytes_max=rng.randrange(1, 3000))
    start: Start = "earliest"
    got: list[LogRecord] = []
    gaps: list[int] = []  # Where in `got` a gap may be.
    async with run.cluster.context(name) as context:
        while True:
            lives = rng.randrange(1, 60) if kind in ("restless", "narrow") else 10**9
            try:
                async with open_stream_reader(context, "s", settings, start=start) as reader:
                    ended = await read_some(run, reader, got, lives, kind)
                    start = reader.position
                    if ended:
                        break
            except PositionTruncated:
                run.events["overtaken"] += 1
                start = "earliest"
                gaps.append(len(got))
            except QuireError as error:
                if run.over.is_set():
                    raise
                run.events[f"{kind}: {type(error).__name__}"] += 1
                start = after(got) or start
                await run.pause(1.0)
    await run.over.wait()  # Only then all is known that was written.
    check(run, name, got, gaps)


async def read_some(run: Run, reader: StreamReader, got: list[LogRecord], lives: int, kind: str) -> bool:
    """Whether the stream has ended."""
    count = 0
    async for record in reader:
        got.append(record)
        count += 1
        if count == lives:
            return False
        if kind == "narrow":  # Slow enough to be overtaken now and then.
            await run.pause(0.3)
    return True


async def search(run: Run, name: str) -> None:
    """Begin at txids of records that are there, again and again: the first one that comes must be the right one."""
    async with run.cluster.context(name) as context:
        while not run.over.is_set():
            await run.pause(1.0)
            records = list(run.written)
            if not records:
                continue
            txid = run.sim.rng.choice(records).txid
            first_left = run.given_up
            with suppress(QuireError):
                async with open_stream_reader(context, "s", SETTINGS, start=Txid(txid)) as reader:
                    found = await reader.read_many(1, timeout_s=5.0)
                    if found and first_left == run.given_up:
                        left = records[first_left:]
                        wanted = next((record for record in left if record.txid >= txid), found[0])
                        assert found == [wanted], f"txid {txid} began with {found} and not with {wanted}"
                        run.events["searched"] += 1


async def live(sim: Simulation) -> Run:
    readers = {"r0": "steady", "r1": "restless", "r2": "narrow", "r3": "restless"}
    async with (
        stream_cluster(sim, bookies=4) as cluster,
        cluster.context("writer") as writer,
        cluster.context("helper") as helper,
    ):
        run = Run(sim, cluster, await RawStream.create(writer))
        tasks = [sim.host(name).spawn(read_on(run, name, kind)) for name, kind in readers.items()]
        searching = sim.host("r4").spawn(search(run, "r4"))
        troubling = asyncio.create_task(trouble(run, [*readers, "r4"]))
        await write(run, helper)
        run.over.set()
        await troubling
        sim_tree(cluster.cluster).repair()
        _, late = await asyncio.wait(tasks, timeout=_PATIENCE_S)
        assert not late, f"readers do not come to the end: {late}"
        for task in [*tasks, searching]:
            await task
        lost = run.acked - {record.dlsn for record in run.written}
        assert not lost, f"acknowledged records are gone: {sorted(lost)}"
        await run.stream.close()
    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", one_in(5, range(0, SEEDS, 10)))
def test_readers_get_what_was_written(first: int) -> None:
    events: Counter[str] = Counter()
    for seed in range(first, first + 10):
        events += simulate(seed, live, time_limit_s=_TIME_LIMIT_S).events
    missing = {event for event in _EVENTS if not events[event]}
    assert not missing, f"no seed met {missing}: {events}"


@pytest.mark.extended
def test_a_seed_says_everything() -> None:
    digests = set()
    for _ in range(2):
        simulation = Simulation(3, time_limit_s=_TIME_LIMIT_S)
        simulation.run(live)
        digests.add(simulation.trace_digest())
    assert len(digests) == 1
