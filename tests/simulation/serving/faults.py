"""What goes wrong while proxies serve. Each fault is over when its function returns, but for what it has set off."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import QuireError
from quire.rpc.serving.transport import Caller
from quire.testing import sim_tree
from tests.simulation.serving.acting import Acting
from tests.simulation.serving.orders import Order
from tests.simulation.serving.world import PORT
from tests.support.simulation.faults import delay_writes

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


async def _delay_owner(acting: Acting) -> None:
    delay_writes(sim_tree(acting.world.cluster), acting.rng, acting.owner(acting.any_stream()))


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


async def _refuse_new(acting: Acting) -> None:
    proxy = acting.world.writers[acting.owner(acting.any_stream())]
    proxy.set_accepting(False)
    await asyncio.sleep(acting.rng.random())
    proxy.set_accepting(True)


async def _crowd(acting: Acting) -> None:
    """Give every stream to one proxy, for the balancer to spread them again."""
    chosen = acting.rng.choice(list(acting.world.writers))
    target = pb.Owner(host=chosen, port=PORT)
    for stream in acting.streams:
        owner = acting.world.writers[acting.owner(stream)]
        if owner.table.owns(stream) is not None and owner.address.host != chosen:
            await owner.release(pb.ReleaseRequest(stream=stream, suggested_owner=target), Caller("operator"))


def _balancer(acting: Acting) -> str | None:
    """Who is it, or believes to be."""
    found = [name for name, proxy in acting.world.writers.items() if proxy.balancer and proxy.balancer.term]
    return found[0] if found else None


async def _ordered(acting: Acting) -> Order | None:
    """Some stream is being moved because of load, if one is before long."""
    orders = acting.world.orders
    await _crowd(acting)
    orders.given.clear()
    try:
        async with asyncio.timeout(2.0):
            await orders.given.wait()
    except TimeoutError:
        return None
    acting.events["during a move"] += 1
    await asyncio.sleep(acting.rng.choice([0.0, 0.002, 0.01]) * acting.rng.random())
    return orders.all[-1]


async def _kill_balancer(acting: Acting) -> None:
    if await _ordered(acting) and (name := _balancer(acting)):
        await _die(acting, name, 3.0)


async def _kill_source(acting: Acting) -> None:
    if order := await _ordered(acting):
        for name, proxy in list(acting.world.writers.items()):
            if proxy.address.instance == order.proxy:
                await _die(acting, name, 3.0)


async def _kill_target(acting: Acting) -> None:
    if order := await _ordered(acting):
        await _die(acting, order.target, 3.0)


async def _late_balancer(acting: Acting) -> None:
    """Others are elected, and give orders, while its own are on their way: there are two."""
    latencies, orders = acting.world.sim.network.link_latency_s, acting.world.orders
    late: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_send(name: str) -> None:
        if not late.done():
            late.set_result(name)
            for other in acting.world.writers:
                latencies[name, other] = (0.5, 3.0)

    await _crowd(acting)
    orders.on_send = on_send
    await asyncio.wait([late], timeout=2.0)
    orders.on_send = lambda name: None
    if late.done():
        acting.events["during a move"] += 1
        sim_tree(acting.world.cluster).expire_host(late.result())
        await asyncio.sleep(3.0 * acting.rng.random())
        for other in acting.world.writers:
            latencies.pop((late.result(), other), None)


_FAULTS: Final[dict[str, Callable[[Acting], Awaitable[None]]]] = {
    "kill_owner": _kill_owner,
    "kill_all": _kill_all,
    "expire_owner": _expire_owner,
    "stall_owner": _stall_owner,
    "stall_all": _stall_all,
    "delay_owner": _delay_owner,
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
    "refuse_new": _refuse_new,
    "crowd": _crowd,
    "kill_balancer": _kill_balancer,
    "kill_source": _kill_source,
    "kill_target": _kill_target,
    "late_balancer": _late_balancer,
}
