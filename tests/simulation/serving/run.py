"""One simulated run of the serving tier: start, load and trouble, repair, proof."""

import asyncio
from dataclasses import replace
from typing import Final

from quire.codec.stream.records import LogRecord
from quire.errors import Outcome, QuireError
from quire.ledger.settings import LedgerSettings
from quire.proxy.write.settings import WriteProxySettings
from quire.testing import Simulation, sim_tree
from tests.simulation.serving.acting import Acting
from tests.simulation.serving.faults import trouble
from tests.simulation.serving.plan import Plan
from tests.simulation.serving.world import STREAMS, served

_END_S: Final = 60.0
_LEDGERS: Final = LedgerSettings(
    read_timeout_s=1.0, speculative_read_s=0.5, change_timeout_s=3.0, append_timeout_s=4.0, call_timeout_s=5.0
)


async def live(sim: Simulation, plan: Plan) -> Acting:
    rng = sim.rng
    streams = replace(
        STREAMS,
        entry_bytes=rng.choice([60, 4096]),
        commit_delay_s=0.005,
        roll_interval_s=0.0,
        roll_bytes=rng.choice(plan.roll_bytes),
    )
    writing = WriteProxySettings(
        snapshot_entries=rng.choice([4, 30, 10_000]),
        service_timeout_s=2.0,
        probation_s=3.0,
        acquire_timeout_s=6.0,
        acquire_backoff_s_max=2.0,
        close_timeout_s=2.0,
        graceful_period_s=0.2,
        stream_limits=plan.stream_limits,
        proxy_limits=plan.proxy_limits,
        streams_owned_max=plan.streams_owned_max,
        balance=plan.balance,
    )
    sizes = {"writers": plan.proxies, "readers": plan.read_proxies}
    async with served(sim, **sizes, streams=streams, writing=writing, ledgers=_LEDGERS) as world:
        acting = Acting(world, plan)
        for stream in acting.streams:
            await world.direct.create_stream(stream)
        sim.network.loss_probability = rng.choice(plan.loss)
        writers = [sim.host(host).spawn(acting.write(place)) for place, host in enumerate(acting.writer_hosts)]
        readers = [
            sim.host(host).spawn(acting.follow(place, acting.streams[place % len(acting.streams)]))
            for place, host in enumerate(acting.reader_hosts)
        ]
        try:
            await asyncio.gather(trouble(acting), *writers)
            await _end(acting, readers)
        finally:
            for task in (*writers, *readers):
                task.cancel()
            await asyncio.wait([*writers, *readers])
        return acting


async def _end(acting: Acting, readers: list[asyncio.Task[None]]) -> None:
    world = acting.world
    world.orders.prove(rest_s=acting.plan.balance.rest_s)
    acting.events["ordered"] += sum(order.is_obeyed for order in world.orders.all)
    acting.events["order refused"] += sum(not order.is_obeyed for order in world.orders.all)
    world.sim.network.heal()
    world.sim.network.loss_probability = 0.0
    sim_tree(world.cluster).repair()
    async with world.client("checker") as client:
        for stream in acting.streams:
            try:
                await client.seal_stream(stream)
            except QuireError as error:
                if error.outcome is Outcome.NOT_APPLIED:
                    raise
                await client.seal_stream(stream)  # Nobody knows. Fine to do twice.
    _, hanging = await asyncio.wait(readers, timeout=_END_S)
    assert not hanging, f"AllReadersAgree: readers never come to the end: {[task.get_name() for task in hanging]}"
    for task in readers:
        broken = task.exception()
        assert not isinstance(broken, QuireError), f"AllReadersAgree: a reader cannot go on: {broken!r}"
        task.result()
    for stream in acting.streams:
        stored: list[LogRecord] = []
        async with world.direct.open_reader(stream) as reader:
            stored += [record async for record in reader]
        acting.events["segments"] += len({record.dlsn.lssn for record in stored})
        acting.events["hidden"] += any(
            each.records[:1] < stored[:1] for each in acting.history.followed if each.stream == stream
        )
        begin = min(acting.hidden[stream], stored[0].dlsn if stored else acting.hidden[stream])
        acting.history.prove(stream, [record for record in stored if record.dlsn >= begin], begin=begin)
