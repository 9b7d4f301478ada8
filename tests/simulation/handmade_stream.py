"""A stream that is written by hand, rolled, recovered, truncated and purged while bookies and metadata fail.

So each seed meets states that our own writer avoids and other writers leave: segments without records, two in progress,
entries whose fate their writer never learned. Afterwards the ledgers themselves say what was written, in which order,
and each reader must have got just that.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from quire.codec.stream.entries import decode_entry
from quire.codec.stream.records import LogRecord
from quire.errors import QuireError
from quire.stream.context import StreamContext
from quire.testing import Simulation, sim_tree
from quire.types import DLSN, NO_ENTRY
from tests.support.streams.cluster import StreamCluster
from tests.support.streams.raw import RawSegment, RawStream

_LASTS_S = 6.0


@dataclass
class Run:
    """One stream, all that was ever in it, and what readers got."""

    sim: Simulation
    cluster: StreamCluster
    stream: RawStream
    acked: set[DLSN] = field(default_factory=set)
    written: list[LogRecord] = field(default_factory=list)  # In order, as the closed ledgers have it.
    given_up: int = 0  # Records of `written` that were truncated or purged by now.
    events: Counter[str] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def pause(self, seconds_max: float) -> None:
        await asyncio.sleep(self.sim.rng.random() * seconds_max)


# --- The writer


async def write(run: Run, helper: StreamContext) -> None:
    """Segment after segment until time is up; then the end of the stream."""
    rng, began_s = run.sim.rng, run.sim.loop.time()
    segment = await run.stream.begin()
    while run.sim.loop.time() < began_s + _LASTS_S:
        dice = rng.random()
        if dice < 0.7:
            await append(run, segment)
        elif dice < 0.78:
            segment = await roll(run, segment)
        elif dice < 0.85:
            segment = await fail_over(run, segment, helper)
        else:
            await give_up_some(run)
        await run.pause(0.15)
    await segment.end_of_stream()
    await close(run, segment, run.stream.context)


async def append(run: Run, segment: RawSegment) -> None:
    rng = run.sim.rng
    payloads = [b"%d" % rng.randrange(10**9) for _ in range(rng.randrange(1, 5))]
    kind = rng.random()
    before = len(run.stream.records)
    if kind < 0.6:
        await segment.append(*payloads)
    elif kind < 0.8:
        await segment.append_mixed(b"single", payloads)
    else:
        await segment.control()
    run.acked.update(record.dlsn for record in run.stream.records[before:])
    run.events["appended"] += 1


async def roll(run: Run, segment: RawSegment) -> RawSegment:
    """The new segment is there before the old one is completed, or afterwards; entries may still go to the old one."""
    run.events["rolled"] += 1
    if run.sim.rng.random() < 0.3:
        await close(run, segment, run.stream.context)
        await run.pause(0.5)
        return await run.stream.begin()
    following = await run.stream.begin()
    if run.sim.rng.random() < 0.5:  # With the txid that the new one begins with, which is a lower bound there.
        run.acked.update(await segment.append(b"last", txid=following.segment.first_txid))
    await close(run, segment, run.stream.context)
    return following


async def fail_over(run: Run, segment: RawSegment, helper: StreamContext) -> RawSegment:
    """Another client recovers the segment while appends are under way. Nobody knows which of those it keeps."""
    run.events["failed over"] += 1
    appends = run.sim.rng.choice((0, 0, 1, 3))
    in_flight = [asyncio.create_task(append(run, segment)) for _ in range(appends)]
    await run.pause(0.02)
    sealed = await helper.ledgers.recover(segment.ledger.id)
    await asyncio.gather(*in_flight, return_exceptions=True)
    if sealed.metadata.last_entry_id == NO_ENTRY and run.sim.rng.random() < 0.7:
        # Apache's way: such a segment is deleted, and one of the same number is begun.
        run.events["begun anew"] += 1
        await run.pause(0.3)
        await helper.ledgers.delete(segment.ledger.id)
        await run.pause(0.3)
        await run.stream.forget(segment)
    else:
        await close(run, segment, helper)
    await run.pause(0.3)
    following = await run.stream.begin()
    if run.sim.rng.random() < 0.5:
        await run.pause(0.3)
        return await fail_over(run, following, helper)  # The next writer does not live long, either.
    return following


async def close(run: Run, segment: RawSegment, context: StreamContext) -> None:
    """Complete a segment as its ledger has it."""
    with suppress(QuireError):
        await segment.ledger.close()
    async with context.ledgers.open(segment.ledger.id) as ledger:
        whole: list[LogRecord] = []
        async for entry_id, payload in ledger.read():
            whole += decode_entry(payload, lssn=segment.segment.lssn, entry_id=entry_id)
        segment.entries = ledger.last_add_confirmed + 1
    seen = [record for record in whole if not record.is_control and not record.is_end_of_stream]
    segment.position, segment.last = len(seen), seen[-1].dlsn if seen else None
    segment.last_txid = whole[-1].txid if whole else segment.last_txid
    run.written += seen
    await segment.complete_node()


async def give_up_some(run: Run) -> None:
    """Truncate somewhere, or purge what is truncated."""
    rng, stream = run.sim.rng, run.stream
    done = [raw for raw in stream.segments if raw.is_completed]
    truncated = [raw for raw in done if raw.segment.is_truncated]
    if truncated and rng.random() < 0.5:
        await stream.purge(truncated[0])
        run.events["purged"] += 1
    elif len(done) > 2 and len(run.written) > 2 * run.given_up + 1:
        before = rng.choice(run.written[run.given_up : len(run.written) * 3 // 4 + 1]).dlsn
        run.given_up = sum(record.dlsn < before for record in run.written)
        await stream.truncate(before)
        run.events["truncated"] += 1


# --- Trouble


async def trouble(run: Run, hosts: list[str]) -> None:
    rng, tree = run.sim.rng, sim_tree(run.cluster.cluster)
    while not run.over.is_set():
        await run.pause(2.0)
        kind = rng.randrange(4)
        bookie = rng.choice(run.cluster.bookies)
        if kind == 0:
            tree.stall(rng.choice(hosts), rng.random() * 6.0)
        elif kind == 1:
            tree.expire_host(rng.choice(hosts))
        elif kind == 2:
            run.sim.network.reset_all(bookie.host.name)
        elif all(each.is_running for each in run.cluster.bookies):
            await bookie.crash(power_loss=False)
            await run.pause(1.0)
            await bookie.start()
        run.events["trouble"] += 1


# --- The proof


def after(got: list[LogRecord]) -> DLSN | None:
    return got[-1].dlsn.next_slot() if got else None


def check(run: Run, name: str, got: list[LogRecord], gaps: list[int]) -> None:
    index = {record.dlsn: place for place, record in enumerate(run.written)}
    places = [index[record.dlsn] for record in got]  # A record that is not in the ledgers has no index.
    assert [run.written[place] for place in places] == got, f"{name} got records that are not those of the ledgers"
    expected = places[0] if places else 0
    assert expected <= run.given_up, f"{name} began too late"
    for number, place in enumerate(places):
        if number in gaps:
            assert expected <= place <= max(expected, run.given_up), f"{name} went on too late after a gap"
            expected = place
        assert place == expected, f"{name} got record {place} where record {expected} should come"
        expected += 1
    assert not places or places[-1] == len(run.written) - 1 or len(got) in gaps, f"{name} did not come to the end"
    run.events["read"] += len(got)
