"""What goes wrong while proxies serve. Each fault is over when its function returns, but for what it has set off."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from quire.errors import QuireError
from quire.testing import sim_tree
from tests.simulation.serving.acting import Acting

_DRAIN_STREAMS_PER_S: Final = 100.0
_QUIET_S: Final = 0.5


async def trouble(acting: Acting) -> None:
    """As many faults as the plan says, one after the other."""
    plan, rng = acting.plan, acting.rng
    kinds = [kind for kind, weight in plan.faults.items() for _ in range(round(4 * weight))]
    for _ in range(1 + rng.randrange(plan.faults_max)):
        await asyncio.sleep(plan.fault_pause_s * (0.2 + rng.random()))
        await _wait_appending(acting)
        kind = rng.choice(kinds)
        acting.events[kind] += 1
        await _FAULTS[kind](acting)


async def _wait_appending(acting: Acting) -> None:
    """Something is on its way, somewhere; unless nobody appends for a while."""
    acting.appended.clear()
    try:
        async with asyncio.timeout(_QUIET_S):
            await acting.appended.wait()
    except TimeoutError:
        return
    await asyncio.sleep(acting.rng.choice([0.004, 0.01, 0.03]) * acting.rng.random())


async def _kill_owner(acting: Acting) -> None:
    await _die(acting, acting.owner(acting.any_stream()), 3.0)


async def _die(acting: Acting, name: str, down_s: float) -> None:
    await acting.world.kill(name)
    await asyncio.sleep(down_s * acting.rng.random())
    await acting.world.start(name)


async def _kill_all(acting: Acting) -> None:
    await asyncio.gather(*(_die(acting, name, 1.0) for name in list(acting.world.writers)))


async def _expire_owner(acting: Acting) -> None:
    sim_tree(acting.world.cluster).expire_host(acting.owner(acting.any_stream()))


async def _stall_owner(acting: Acting) -> None:
    sim_tree(acting.world.cluster).stall(acting.owner(acting.any_stream()), 4 * acting.rng.random())


async def _stall_all(acting: Acting) -> None:
    seconds = acting.rng.choice([0.5, 1.5, 4.0])
    for name in acting.world.writers:
        sim_tree(acting.world.cluster).stall(name, seconds)


async def _drain_owner(acting: Acting) -> None:
    name = acting.owner(acting.any_stream())
    await acting.world.writers[name].drain(streams_per_s=_DRAIN_STREAMS_PER_S)
    await acting.world.kill(name)
    await acting.world.start(name)


async def _move(acting: Acting) -> None:
    async with acting.world.client("operator") as client:
        try:
            await client.release_stream(acting.any_stream())
        except QuireError as error:  # It has no owner just now.
            acting.events[f"move: {type(error).__name__}"] += 1


async def _cut_client(acting: Acting) -> None:
    await _cut(acting, acting.owner(acting.any_stream()), [acting.rng.choice(acting.writer_hosts)], 3.0)


async def _cut_bookies(acting: Acting) -> None:
    names = [bookie.host.name for bookie in acting.world.bookies]
    await _cut(acting, acting.owner(acting.any_stream()), acting.rng.sample(names, 1 + acting.rng.randrange(3)), 5.0)


async def _cut_reader(acting: Acting) -> None:
    await _cut(acting, acting.any_reader(), [acting.rng.choice(acting.reader_hosts)], 3.0)


async def _cut(acting: Acting, name: str, others: list[str], seconds: float) -> None:
    network = acting.world.sim.network
    for other in others:
        network.partition(name, other)
    await asyncio.sleep(seconds * acting.rng.random())
    for other in others:
        network.heal(name, other)


async def _reset_owner(acting: Acting) -> None:
    acting.world.sim.network.reset_all(acting.owner(acting.any_stream()))


async def _kill_reader(acting: Acting) -> None:
    await _die(acting, acting.any_reader(), 1.0)


async def _slow_bookie(acting: Acting) -> None:
    slow, latencies = acting.rng.choice(acting.world.bookies).host.name, acting.world.sim.network.link_latency_s
    for name in acting.world.writers:
        latencies[name, slow] = latencies[slow, name] = (0.1, acting.rng.choice([0.2, 1.0]))


async def _crash_bookies(acting: Acting) -> None:
    chosen = acting.rng.sample(acting.world.bookies, 1 + acting.rng.randrange(2))
    await asyncio.gather(*(bookie.crash(power_loss=True) for bookie in chosen))
    await asyncio.sleep(2 * acting.rng.random())
    for bookie in chosen:
        await bookie.start()


async def _rival(acting: Acting) -> None:
    """The lock says that it should not: the fence has to decide."""
    written = acting.begin_writing("rival", acting.any_stream())
    payloads: list[bytes] = []
    try:
        async with acting.world.direct.open_writer(written.stream, write_lock=False) as writer:
            for _ in range(2):
                payloads = written.payloads(1)
                written.on_stored(payloads, [await writer.append(payloads[0])])
                await asyncio.sleep(0.05 * acting.rng.random())
    except QuireError as error:
        acting.events[f"rival: {type(error).__name__}"] += 1
        written.on_failed(payloads, error)


async def _truncate(acting: Acting) -> None:
    stream = acting.any_stream()
    readers = [each for each in acting.history.followed if each.stream == stream]
    read = min((each.records for each in readers), key=len)
    if not read:
        return
    before = acting.rng.choice(read).dlsn
    acting.hidden[stream] = max(before, acting.hidden[stream])
    async with acting.world.client("operator") as client:
        try:
            await client.truncate_stream(stream, before=before)
        except QuireError as error:
            acting.events[f"truncate: {type(error).__name__}"] += 1


_FAULTS: Final[dict[str, Callable[[Acting], Awaitable[None]]]] = {
    "kill_owner": _kill_owner,
    "kill_all": _kill_all,
    "expire_owner": _expire_owner,
    "stall_owner": _stall_owner,
    "stall_all": _stall_all,
    "drain_owner": _drain_owner,
    "move": _move,
    "cut_client": _cut_client,
    "cut_bookies": _cut_bookies,
    "reset_owner": _reset_owner,
    "kill_reader": _kill_reader,
    "cut_reader": _cut_reader,
    "slow_bookie": _slow_bookie,
    "crash_bookies": _crash_bookies,
    "rival": _rival,
    "truncate": _truncate,
}
